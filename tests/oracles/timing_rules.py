"""The rules of time that a program's transfers must keep, checked one by one on a finished prediction.

The check shares nothing with the event loop: it only asks whether each finished transfer came as early as the rules
allow, and no earlier.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from emit.program import RECEIVES, SENDS
from emit.timing.predict import Predictor, Transfers

CLOSE = 1e-9


def near(a: float, b: float) -> bool:
    """Return whether two numbers are equal within a relative tolerance."""
    return abs(a - b) <= CLOSE * max(1.0, abs(a), abs(b))


class Rules:
    """A check of a prediction's transfers against the rules of time.

    Attributes:
        broken: The violated rules, in words.
        end_us: End of the last step in µs.
    """

    def __init__(self, predictor: Predictor, size_bytes: float, moves: Transfers) -> None:
        self.predictor, self.moves, self.broken = predictor, moves, list[str]()
        program = predictor.program
        places = [(rank, tb, position) for rank, tb, position, _ in program.steps()]
        steps = {(rank, tb, position): step for rank, tb, position, step in program.steps()}
        by_sender = {tuple(p): i for i, p in enumerate(moves.sender.tolist())}
        by_receiver = {tuple(p): i for i, p in enumerate(moves.receiver.tolist())}
        self._amounts(size_bytes, steps)
        ends = {}
        self.ready = [0.0] * len(moves)
        slot = self._slots()
        # A step may wait for a step that stands further down, so repeat until nothing changes.
        waiting = places
        while waiting:
            later = []
            for place in waiting:
                rank, tb, position = place
                step = steps[place]
                awaited = [(rank, tb, position - 1)] if position else []
                if step.dep_tb >= 0:
                    awaited.append((rank, step.dep_tb, step.dep_step))
                if not all(b in ends for b in awaited):
                    later.append(place)
                    continue
                earliest = max((ends[b] for b in awaited), default=0.0)
                if step.op in RECEIVES:
                    earliest = max(earliest, float(moves.arrive_us[by_receiver[place]]))
                if step.op in SENDS:
                    earliest = max(earliest, slot[by_sender[place]])
                if step.op in RECEIVES and not near(float(moves.received_us[by_receiver[place]]), earliest):
                    self.broken.append(
                        f"{place} receives at {moves.received_us[by_receiver[place]]}, could at {earliest}"
                    )
                if step.op in SENDS:
                    i = by_sender[place]
                    self.ready[i] = earliest
                    if moves.start_us[i] < earliest - CLOSE * max(1.0, earliest):
                        self.broken.append(f"{place} starts at {moves.start_us[i]} before {earliest}")
                    earliest = float(moves.end_us[i])
                ends[place] = earliest
            if len(later) == len(waiting):
                self.broken.append(f"{later[0]} never ends")
                break
            waiting = later
        self.end_us = max(ends.values(), default=0.0)
        self._resources()

    def _amounts(self, size_bytes: float, steps: dict[tuple[int, int, int], object]) -> None:
        """Check the link, amount, duration and latency of every transfer."""
        net, m = self.predictor.network, self.moves
        chunk = self.predictor.chunk_bytes(size_bytes)
        for i in range(len(m)):
            joins_ranks = (int(net.src[m.link[i]]), int(net.dst[m.link[i]])) == (int(m.src[i]), int(m.dst[i]))
            lasts = m.bytes[i] / 1e3 / net.bandwidth_gbs[m.link[i]]
            if not joins_ranks or m.sender[i][0] != m.src[i] or m.receiver[i][0] != m.dst[i]:
                self.broken.append(f"transfer {i} goes over another link")
            if m.bytes[i] != m.count[i] * chunk or m.count[i] != steps[tuple(m.sender[i].tolist())].count:  # type: ignore[attr-defined]
                self.broken.append(f"transfer {i} moves another amount")
            if not near(m.end_us[i] - m.start_us[i], lasts):
                self.broken.append(f"transfer {i} holds its link for another time")
            if not near(
                m.arrive_us[i], m.end_us[i] + float(net.alpha_us[m.link[i]])
            ):  # A difference would lose digits.
                self.broken.append(f"transfer {i} has another latency")

    def _slots(self) -> list[float]:
        """Return the time in µs at which each transfer's FIFO slot is free."""
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
        """Check that no resource exceeds its capacity and that no transfer waits without a reason.

        A transfer may wait only while running or older transfers fill a resource that it uses.
        """
        net, m = self.predictor.network, self.moves
        using = defaultdict(list)
        for i in range(len(m)):
            for r in [*net.uses(int(m.link[i])).tolist(), net.nresources + int(m.link[i])]:
                using[r].append(i)
        capacity = np.concatenate([net.capacity_gbs, net.bandwidth_gbs])
        rate = net.bandwidth_gbs[m.link]
        ready = np.array(self.ready)
        eps = CLOSE * max(1.0, float(m.end_us.max(initial=0.0)))
        lasting = (m.end_us - m.start_us) > 2 * eps
        for r, users in using.items():
            users_ = np.array(users)
            for i in users:
                now = m.start_us[i] + eps
                flying = (m.start_us[users_] <= now) & (m.end_us[users_] > now + eps) & lasting[users_]
                if lasting[i] and rate[users_[flying]].sum() > capacity[r] * (1 + 1e-9):
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
        """Return whether running or older transfers leave a resource of transfer `i` too little room at `now`."""
        net, m = self.predictor.network, self.moves
        for r in [*net.uses(int(m.link[i])).tolist(), net.nresources + int(m.link[i])]:
            users = np.array(using[r])
            running = (m.start_us[users] < now - eps) & (m.end_us[users] > now + eps)
            older = (np.abs(m.start_us[users] - now) <= eps) & (ready[users] <= ready[i] + eps)
            used_gbs = rate[users[(running | older) & (users != i)]].sum()
            if used_gbs + rate[i] > capacity[r] * (1 + 1e-9):
                return True
        return False
