"""List schedules: nothing over capacity, nothing before its data, nothing idle that could work."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.engines.flow.csr_network import CsrNetwork, csr_network
from synth.engines.flow.list_scheduling import list_schedule, urgencies
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from tests.random_problems import random_topology
from topologies.families import family
from topologies.network import network
from topologies.topology import Topology

INTERPRETED = Runner(interpreted=True)
SEEDS = st.integers(0, 2**32)


@dataclass(frozen=True)
class Sends:
    """Sends of a network, as arguments of `list_schedule`."""

    net: CsrNetwork
    bundle: Ints
    hold_us: Floats
    urgency: Floats
    before: Ints
    after: Ints

    def starts(self, run: Runner = INTERPRETED) -> Floats:
        """Return the start of each send in µs."""
        parts = self.bundle, self.hold_us, self.urgency, self.before, self.after
        rows, when_us = list_schedule(run, run.table(self.net), *parts)
        start = np.empty(len(rows))
        start[rows] = when_us
        return start

    @property
    def lasts_us(self) -> Floats:
        return self.hold_us + self.net.alpha_us[self.bundle]

    def ready(self, start: Floats) -> Floats:
        """Return the time in µs at which all data that a send waits for has arrived."""
        when = np.zeros(len(start))
        np.maximum.at(when, self.after, (start + self.lasts_us)[self.before])
        return when


class Wrong(AssertionError):
    """A rule of list schedules was broken; the message names it."""


def check(sends: Sends, start: Floats) -> None:
    """Check that starts are those of a list schedule: right, and no bundle is idle while a ready send could use it."""
    net, end = sends.net, start + sends.hold_us
    slack = 1e-6 * float(sends.hold_us.min(initial=1.0))
    ready = sends.ready(start)
    if (start < ready - slack).any():
        raise Wrong("early")
    # Nothing changes between two events.
    times = np.unique(np.concatenate([start, end, ready]))
    times = times[np.insert(np.diff(times) > slack, 0, True)]
    for now in (times[:-1] + times[1:]) / 2:
        goes = np.flatnonzero((start <= now) & (now < end))
        bundles = sends.bundle[goes]
        if len(np.unique(bundles)) < len(bundles):
            raise Wrong("two at once")
        used = np.zeros(len(net.capacity_gbs))
        for bundle in bundles:
            used[uses(net, bundle)] += net.bandwidth_gbs[bundle]
        if (used > net.capacity_gbs * (1 + 2e-9)).any():
            raise Wrong("over capacity")
        for row in np.flatnonzero((ready < now) & (now < start)):
            bundle = sends.bundle[row]
            rooms = (used + net.bandwidth_gbs[bundle] <= net.capacity_gbs * (1 + 1e-12))[uses(net, bundle)]
            if bundle not in bundles and rooms.all():
                raise Wrong("idle")


def uses(net: CsrNetwork, bundle: int) -> Ints:
    return net.uses_idx[net.uses_ptr[bundle] : net.uses_ptr[bundle + 1]]


def network_of(topology: Topology) -> CsrNetwork:
    return csr_network(network(topology, range(topology.nranks)))


def random_sends(rng: random.Random, net: CsrNetwork, most: int = 40) -> Sends:
    """Return sends over random bundles; each waits for a few earlier ones, or is the next of a path."""
    count = rng.randint(1, most)
    bundle = np.array([rng.randrange(net.nbundles) for _ in range(count)])
    hold = np.array([rng.choice((1.0, 1.0, 2.0, 0.25, 7.0)) for _ in range(count)])
    if rng.random() < 0.5:
        hold *= np.array([rng.uniform(0.5, 1.5) for _ in range(count)])
    urgency = np.array([rng.choice((0.0, 1.0, 2.5, rng.random())) for _ in range(count)])
    pairs = [(i, i + 1) for i in range(count - 1) if rng.random() < 0.7]
    if rng.random() < 0.6:
        pairs = [(b, a) for a in range(1, count) for b in rng.sample(range(a), rng.randint(0, min(a, 3)))]
    before, after = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Sends(net, bundle, hold, urgency, before.copy(), after.copy())


@settings(max_examples=60, derandomize=True)
@given(SEEDS)
def test_no_bundle_is_idle_while_a_ready_send_could_use_it(seed: int) -> None:
    rng = random.Random(seed)
    sends = random_sends(rng, network_of(random_topology(rng)))
    start = sends.starts()
    check(sends, start)
    assert sends.starts(Runner(interpreted=False)).tobytes() == start.tobytes()


def test_the_check_notices_errors() -> None:
    """Check that small shifts make sends early, late, overlapping or over a limit."""
    faults = set()
    for seed in range(150):
        rng = random.Random(seed)
        sends = random_sends(rng, network_of(random_topology(rng)))
        start = sends.starts()
        row = rng.randrange(len(start))
        start[row] = max(0.0, start[row] + rng.choice((-0.2, 0.2)) * sends.hold_us[row])
        try:
            check(sends, start)
        except Wrong as wrong:
            faults.add(str(wrong))
    assert faults == {"early", "two at once", "over capacity", "idle"}


@settings(max_examples=100, derandomize=True)
@given(SEEDS)
def test_the_most_urgent_ready_send_goes_first(seed: int) -> None:
    """Check bundles that share nothing; of equally urgent sends, the one that was ready first goes first."""
    rng = random.Random(seed)
    sends = random_sends(rng, network_of(family("full:3")))
    few = np.array([float(rng.randrange(4)) for _ in sends.bundle])
    sends = replace(sends, urgency=few)
    start = sends.starts()
    ready = sends.ready(start)
    for i, j in itertools.permutations(range(len(start)), 2):
        if sends.bundle[i] == sends.bundle[j] and ready[j] < start[i] - 1e-6:
            waited = start[j] > start[i]
            assert not (waited and few[j] > few[i])
            assert not (waited and few[j] == few[i] and ready[j] < ready[i] - 1e-6)


@settings(max_examples=60, derandomize=True)
@given(SEEDS)
def test_paths_are_scheduled_equally_in_any_order_of_their_rows(seed: int) -> None:
    """Check that starts are equal for paths with consecutive rows, which are scheduled by path, and for other rows."""
    rng = random.Random(seed)
    net = network_of(random_topology(rng))
    sends = random_sends(rng, net)
    count = len(sends.bundle)
    begins = np.flatnonzero([rng.random() < 0.6 for _ in range(count - 1)])
    order = np.array(rng.sample(range(count), count))
    sends = replace(
        sends, before=begins, after=begins + 1, urgency=np.array(rng.sample(range(count), count), dtype=float)
    )
    place = np.argsort(order)
    shuffled = Sends(
        net, sends.bundle[order], sends.hold_us[order], sends.urgency[order], place[begins], place[begins + 1]
    )
    assert shuffled.starts()[place].tolist() == sends.starts().tolist()


def test_many_levels_of_urgency() -> None:
    """Check more urgencies than a bundle's lists tell apart: close ones may change places, distant ones do not."""
    net = network_of(family("ring:3"))
    count = 20_000
    rng = np.random.default_rng(0)
    urgency = rng.permutation(count).astype(float)
    none = np.zeros(0, dtype=np.int64)
    sends = Sends(net, np.zeros(count, dtype=np.int64), np.ones(count), urgency, none, none)
    start = sends.starts(Runner(interpreted=False))
    assert sorted(start) == list(range(count))
    off = start - (count - 1 - urgency)
    assert abs(off).max() <= count / 4096 + 1


def test_sends_that_wait_for_each_other_are_refused() -> None:
    net = network_of(family("ring:3"))
    bundle, hold = np.array([0, 1, 2]), np.ones(3)
    for before, after in (([0, 1], [1, 0]), ([0, 1, 2], [1, 2, 0]), ([1], [1])):
        with pytest.raises(ValueError, match="wait for each other"):
            Sends(net, bundle, hold, np.zeros(3), np.array(before), np.array(after)).starts()
    nothing = np.zeros(0, dtype=np.int64)
    assert len(Sends(net, nothing, np.zeros(0), np.zeros(0), nothing, nothing).starts()) == 0


@settings(max_examples=60, derandomize=True)
@given(SEEDS)
def test_trees_over_one_bundle_take_the_least_time(seed: int) -> None:
    """Check that longest chain first is best for equal sends.

    Each send waits for at most one other, and the latency is a whole number of holds. (1 | prec, p = 1, delay l | Cmax
    for forests: Bruno, Jones and So, 1980.)
    """
    rng = random.Random(seed)
    latency = rng.randint(0, 3)
    net = network_of(family(f"line:2,bw=1,alpha={2 * latency}"))
    count = rng.randint(1, 6)
    parent = [rng.randrange(-1, i) for i in range(count)]
    after = np.array([i for i in range(count) if parent[i] >= 0], dtype=np.int64)
    before = np.array([parent[i] for i in after], dtype=np.int64)
    sends = Sends(net, np.zeros(count, dtype=np.int64), np.full(count, 2.0), np.zeros(count), before, after)
    chain = urgencies(INTERPRETED, sends.lasts_us, before, after, np.arange(count))
    took = float((replace(sends, urgency=chain).starts() + sends.lasts_us).max())
    best = np.inf
    for order in itertools.permutations(range(count)):
        arrives, free = np.full(count, np.inf), 0.0
        for i in order:
            ready = arrives[parent[i]] if parent[i] >= 0 else 0.0
            free = max(free, ready) + 2.0
            arrives[i] = free + 2.0 * latency
        best = min(best, float(arrives.max()))
    assert took == best


def test_urgencies_are_the_longest_chains() -> None:
    lasts = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    before, after = np.array([0, 0, 1, 2]), np.array([1, 2, 3, 3])
    assert urgencies(INTERPRETED, lasts, before, after, np.array([0, 1, 1, 2, 0])).tolist() == [
        13.0,
        10.0,
        12.0,
        8.0,
        16.0,
    ]
