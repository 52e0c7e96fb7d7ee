"""The order of sends within a step: which of the sends that share a port go first.

A step's sends through a switch are the edges of a bipartite graph between output ports and input ports. In an unlucky
order they leave ports idle. By König's theorem as many slots as the busiest port has sends are enough.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import count

import numpy as np

from synth.model.problem import Problem
from synth.model.schedule import Schedule


def slotted(problem: Problem, schedule: Schedule) -> Schedule:
    """Return the same sends step by step, with those of each step in an order in which ports wait little.

    The order is optimal where each send has at most two ports, one on each of two sides, as the output and input ports
    of a switch; otherwise it is a greedy one.
    """
    slot = np.zeros(len(schedule), dtype=np.int64)
    order = np.argsort(schedule.step, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(schedule.step[order])) + 1):
        if len(rows):
            ports = _ports(problem, schedule, rows)
            slot[rows] = _edge_colours(ports) if _is_bipartite(ports) else _first_free(ports)
    return schedule.take(np.lexsort((np.arange(len(schedule)), slot, schedule.step)))


def _ports(problem: Problem, schedule: Schedule, rows: np.ndarray) -> list[list[int]]:
    """Return for every send of a step its ports: numbers of the resources that it shares with other sends.

    Resources that the same sends use count as one port. A send that shares nothing has no port.

    Args:
        problem: The problem.
        schedule: The schedule.
        rows: Rows of the step's sends in the schedule.
    """
    net = problem.network
    users: dict[int, list[int]] = defaultdict(list)
    for i, link in enumerate(schedule.link[rows].tolist()):
        for r in net.uses(link).tolist():
            users[r].append(i)
    distinct = sorted({tuple(u) for u in users.values() if len(u) > 1}, key=lambda u: (-len(u), u))
    ports: list[list[int]] = [[] for _ in rows]
    for port, sends in enumerate(distinct):
        for i in sends:
            ports[i].append(port)
    return ports


def _is_bipartite(ports: list[list[int]]) -> bool:
    """Return True if no send has over two ports, and the ports have a two-colouring that differs at its two ports."""
    neighbours: dict[int, list[int]] = defaultdict(list)
    for pair in ports:
        if len(pair) > 2:
            return False
        for p in pair:
            neighbours[p].extend(q for q in pair if q != p)
    side: dict[int, int] = {}
    for start in sorted(neighbours):
        if start in side:
            continue
        side[start] = 0
        stack = [start]
        while stack:
            p = stack.pop()
            for q in neighbours[p]:
                if q not in side:
                    side[q] = 1 - side[p]
                    stack.append(q)
                elif side[q] == side[p]:
                    return False
    return True


def _first_free(ports: list[list[int]]) -> list[int]:
    """Return for each send the first slot that is free at all its ports; sends at busy ports choose first."""
    load = Counter(p for pair in ports for p in pair)
    busy_slots: dict[int, set[int]] = defaultdict(set)
    slots = [0] * len(ports)
    for i in sorted(range(len(ports)), key=lambda i: (-max((load[p] for p in ports[i]), default=0), i)):
        slot = 0
        while any(slot in busy_slots[p] for p in ports[i]):
            slot += 1
        for p in ports[i]:
            busy_slots[p].add(slot)
        slots[i] = slot
    return slots


def _edge_colours(ports: list[list[int]]) -> list[int]:
    """Return a slot for each send so that no two sends with a common port share a slot, by alternating paths.

    The slots are 0, 1, …, as many as the busiest port has sends.

    Args:
        ports: At most two ports of each send, which `_is_bipartite` accepts.
    """
    send_at: dict[int, dict[int, int]] = defaultdict(dict)  # port → slot → send
    slots = [-1] * len(ports)

    def free(port: int) -> int:
        """Return the first slot without a send at a port."""
        return next(slot for slot in count() if slot not in send_at[port])

    for i, pair in enumerate(ports):
        if not pair:
            slots[i] = 0
            continue
        first, last = pair[0], pair[-1]
        a, b = free(first), free(last)
        if a != b:
            # The path from `last` has sends of colours a, b, a, … in turn. After a swap, a is free at both ends.
            path, port, slot = [], last, a
            while slot in send_at[port]:
                send = send_at[port][slot]
                path.append((send, slot))
                far_ports = [p for p in ports[send] if p != port]
                if not far_ports:
                    break
                port = far_ports[0]
                slot = b if slot == a else a
            for send, slot in path:
                for p in ports[send]:
                    del send_at[p][slot]
            for send, slot in path:
                slots[send] = b if slot == a else a
                for p in ports[send]:
                    send_at[p][slots[send]] = send
        slots[i] = a
        for p in pair:
            send_at[p][a] = i
    return slots
