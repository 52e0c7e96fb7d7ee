"""The rules of time that a program's transfers must keep, looked at one by one after the fact.

Nothing here is shared with the event loop: it only asks of finished transfers whether each came as early as the
rules allow, and no earlier.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from emit.program import RECEIVES, SENDS
from emit.timing.predict import Predictor, Transfers

CLOSE = 1e-9


def near(a: float, b: float) -> bool:
    return abs(a - b) <= CLOSE * max(1.0, abs(a), abs(b))


class Rules:
    """What is broken in `moves`, in words; `end_us` is when the last step ends."""

    def __init__(self, predictor: Predictor, size_bytes: float, moves: Transfers) -> None:
        self.predictor, self.moves, self.broken = predictor, moves, list[str]()
        program = predictor.program
        places = [(rank, tb, at) for rank, tb, at, _ in program.steps()]
        steps = {(rank, tb, at): step for rank, tb, at, step in program.steps()}
        by_sender = {tuple(p): i for i, p in enumerate(moves.sender.tolist())}
        by_receiver = {tuple(p): i for i, p in enumerate(moves.receiver.tolist())}
        self._amounts(size_bytes, steps)
        ends = {}
        self.ready = [0.0] * len(moves)
        slot = self._slots()
        # what a step waits for may stand further down: until nothing changes
        waiting = places
        while waiting:
            later = []
            for place in waiting:
                rank, tb, at = place
                step = steps[place]
                before = [(rank, tb, at - 1)] if at else []
                if step.dep_tb >= 0:
                    before.append((rank, step.dep_tb, step.dep_step))
                if not all(b in ends for b in before):
                    later.append(place)
                    continue
                can = max((ends[b] for b in before), default=0.0)
                if step.op in RECEIVES:
                    can = max(can, float(moves.arrive_us[by_receiver[place]]))
                if step.op in SENDS:
                    can = max(can, slot[by_sender[place]])
                if step.op in RECEIVES and not near(float(moves.received_us[by_receiver[place]]), can):
                    self.broken.append(f"{place} receives at {moves.received_us[by_receiver[place]]}, could at {can}")
                if step.op in SENDS:
                    i = by_sender[place]
                    self.ready[i] = can
                    if moves.start_us[i] < can - CLOSE * max(1.0, can):
                        self.broken.append(f"{place} starts at {moves.start_us[i]} before {can}")
                    can = float(moves.end_us[i])
                ends[place] = can
            if len(later) == len(waiting):
                self.broken.append(f"{later[0]} never ends")
                break
            waiting = later
        self.end_us = max(ends.values(), default=0.0)
        self._resources()

    def _amounts(self, size_bytes: float, steps: dict[tuple[int, int, int], object]) -> None:
        net, m = self.predictor.network, self.moves
        chunk = self.predictor.chunk_bytes(size_bytes)
        for i in range(len(m)):
            there = (int(net.src[m.link[i]]), int(net.dst[m.link[i]])) == (int(m.src[i]), int(m.dst[i]))
            lasts = m.bytes[i] / 1e3 / net.bandwidth_gbs[m.link[i]]
            if not there or m.sender[i][0] != m.src[i] or m.receiver[i][0] != m.dst[i]:
                self.broken.append(f"transfer {i} goes over another link")
            if m.bytes[i] != m.count[i] * chunk or m.count[i] != steps[tuple(m.sender[i].tolist())].count:  # type: ignore[attr-defined]
                self.broken.append(f"transfer {i} moves another amount")
            if not near(m.end_us[i] - m.start_us[i], lasts):
                self.broken.append(f"transfer {i} holds its link for another time")
            if not near(m.arrive_us[i], m.end_us[i] + float(net.alpha_us[m.link[i]])):  # a difference would lose digits
                self.broken.append(f"transfer {i} has another latency")

    def _slots(self) -> list[float]:
        """When the slot that each transfer takes is free."""
        m, depth = self.moves, self.predictor.fifo_depth
        queues = defaultdict(list)
        for i in np.lexsort((m.step, m.start_us)).tolist():
            queues[int(m.src[i]), int(m.dst[i]), int(m.channel[i])].append(i)
        free = [0.0] * len(m)
        for queue in queues.values():
            for k, i in enumerate(queue[depth:]):
                free[i] = float(m.received_us[queue[k]])
            if any(a > b for a, b in zip(m.into[queue], m.into[queue][1:], strict=False)):
                self.broken.append("a connection's order is lost")
        return free

    def _resources(self) -> None:
        """Never over capacity; and who waits for a place has it taken by what runs, or by what is older."""
        net, m = self.predictor.network, self.moves
        using = defaultdict(list)
        for i in range(len(m)):
            for r in [*net.uses(int(m.link[i])).tolist(), net.nresources + int(m.link[i])]:
                using[r].append(i)
        capacity = np.concatenate([net.capacity_gbs, net.bandwidth_gbs])
        rate = net.bandwidth_gbs[m.link]
        ready = np.array(self.ready)
        eps = CLOSE * max(1.0, float(m.end_us.max(initial=0.0)))
        held = (m.end_us - m.start_us) > 2 * eps
        for r, users in using.items():
            users_ = np.array(users)
            for i in users:
                now = m.start_us[i] + eps
                flying = (m.start_us[users_] <= now) & (m.end_us[users_] > now + eps) & held[users_]
                if held[i] and rate[users_[flying]].sum() > capacity[r] * (1 + 1e-9):
                    self.broken.append(f"resource {r} is over capacity at {m.start_us[i]}")
        instants = np.unique(np.concatenate([m.start_us, m.end_us]))
        for i in range(len(m)):
            if m.start_us[i] <= ready[i] + 2 * eps:
                continue
            waits = instants[(instants > ready[i] + eps) & (instants < m.start_us[i] - 2 * eps)]
            for now in [self.ready[i], *waits.tolist()]:
                if not self._full(i, now, using, capacity, rate, ready, eps):
                    self.broken.append(f"transfer {i} waits at {now} for nothing")
                    break

    def _full(self, i, now, using, capacity, rate, ready, eps) -> bool:  # type: ignore[no-untyped-def]
        net, m = self.predictor.network, self.moves
        for r in [*net.uses(int(m.link[i])).tolist(), net.nresources + int(m.link[i])]:
            users = np.array(using[r])
            running = (m.start_us[users] < now - eps) & (m.end_us[users] > now + eps)
            older = (np.abs(m.start_us[users] - now) <= eps) & (ready[users] <= ready[i] + eps)
            taken = rate[users[(running | older) & (users != i)]].sum()
            if taken + rate[i] > capacity[r] * (1 + 1e-9):
                return True
        return False
