"""Costs that are planted in a simulated executor are found again, and predict what they did not see."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from emit.program import Step
from emit.timing.predict import Predictor
from runtime.algorithms.built_in import built_in
from runtime.bench import measure
from runtime.host.executor import HostExecutor
from runtime.measure.calibrate import Calibration, calibrate, measure_machine
from runtime.measure.fits import (
    AGREE,
    ENOUGH,
    MESSAGES,
    MOST,
    MOST_BYTES,
    NOISE,
    SMALL_BYTES,
    Measured,
    Meter,
    NoisePolicy,
    Timer,
    each_direction,
    repeated_least,
    worst_within,
)
from runtime.measure.probes import Probe
from topologies.costed import with_costs
from topologies.costs import Costs, Protocol
from topologies.errors import InputError
from topologies.load import load
from topologies.text.reader import from_toml
from topologies.text.writer import to_toml
from topologies.topology import Topology

WIRED = """
name = "two-nodes"
ranks = 4
nodes = ["0-1", "2-3"]

[[links]]
pairs = "0>1 2>3"
both = true
gbs = 100
alpha_us = 0.5
kind = "nvlink"

[[links]]
pairs = "0>2 1>3"
both = true
gbs = 10
alpha_us = 3
kind = "network"
"""
# the fastest protocol carries all that links state, so that figures can be compared one by one
RIGHT_ON = ("nvlink", "network")
PLANTED = {
    "LL": Protocol(
        5.0, math.inf, {"nvlink": 0.5, "network": 2.5}, {"nvlink": 0.3, "network": 0.45}, {"network": 0.8}
    ),
    "LL128": Protocol(
        11.0, 45.0, {"nvlink": 1.7, "network": 4.0}, {"nvlink": 0.9, "network": 0.8}, {"nvlink": 0.2}, links=RIGHT_ON
    ),
    "Simple": Protocol(7.0, 50.0, {"nvlink": 3.0, "network": 12.0}, {}, {"nvlink": 0.4, "network": 2.0}),
}  # fmt: skip
NEAR = 0.04  # that a figure may be from what was planted: the message back is one in MESSAGES, and may go beside others


def wired() -> Topology:
    return from_toml(WIRED, "two-nodes.toml")


def one_protocol(more: str = "", threadblock_gbs: float = math.inf) -> Topology:
    return replace(from_toml(WIRED + more, "one.toml"), costs=Costs({"Simple": Protocol(1.0, threadblock_gbs)}))


def simulated(planted: Topology) -> Timer:
    """An executor's clock: what each probe takes on a machine that costs what was planted."""
    predictors: dict[Probe, Predictor] = {}
    known: dict[tuple[Probe, int], float] = {}

    def timer(probe: Probe, size_bytes: int) -> float:
        if probe not in predictors:
            predictors[probe] = Predictor(probe.program, planted)
        if (probe, size_bytes) not in known:
            known[probe, size_bytes] = predictors[probe].time_us(size_bytes)
        return known[probe, size_bytes]

    return timer


def measured(planted: Topology, before: Topology, noise: Callable[[float], float] = lambda us: us) -> Calibration:
    timer = simulated(planted)
    meter = Meter(lambda probe, size: noise(timer(probe, size)), before.nranks)
    return measure_machine(meter, before, lambda *_: None)


@pytest.fixture(scope="module")
def found() -> Costs:
    """What is found of a machine with the planted costs."""
    made = calibrate(wired(), measured(with_costs(wired(), Costs(PLANTED)), wired()), "here")
    assert made.costs is not None
    assert made.bandwidth_gbs == pytest.approx(wired().bandwidth_gbs, rel=NEAR)
    # α is that of the protocol with least latency
    assert set(made.alpha_us.tolist()) == {0.5, 2.5}
    return made.costs


def check_found(costs: Costs, near: float) -> None:
    assert list(costs.protocols) == list(PLANTED)
    for name, one in costs.protocols.items():
        planted = PLANTED[name]
        assert one.start_us == pytest.approx(planted.start_us, rel=near)
        assert one.threadblock_gbs == pytest.approx(planted.threadblock_gbs, rel=near)
        for kind in ("nvlink", "network"):
            assert one.latency_us[kind] == pytest.approx(planted.latency_us[kind], rel=near)
            assert one.efficiency[kind] == pytest.approx(planted.efficiency.get(kind, 1.0), rel=near)
            assert one.gap_us.get(kind, 0.0) == pytest.approx(planted.gap_us.get(kind, 0.0), rel=near)


def test_planted_costs_are_found_and_written_with_their_origin(found: Costs) -> None:
    check_found(found, NEAR)
    again = from_toml(to_toml(replace(wired(), costs=found)), "again.toml").costs
    assert again == found
    assert again is not None
    assert again.source == "here"
    for name, one in again.protocols.items():
        assert one.note.startswith("measured, known within: start_us 0%")
        assert ("none is stated" in one.note) == (name == "LL")


def test_twice_as_much_of_one_protocol_is_found_and_moves_no_other() -> None:
    plain, one = wired(), PLANTED["LL128"]
    changed = replace(
        one,
        start_us=2 * one.start_us,
        latency_us={kind: 2 * us for kind, us in one.latency_us.items()},
        gap_us={"nvlink": 0.6},
    )
    costs = Costs({**PLANTED, "LL128": changed})
    found = calibrate(plain, measured(with_costs(plain, costs), plain), "here").costs
    assert found is not None
    there = found.protocols["LL128"]
    assert there.start_us == pytest.approx(changed.start_us, rel=NEAR)
    assert there.latency_us == pytest.approx(changed.latency_us, rel=NEAR)
    assert there.gap_us == pytest.approx(changed.gap_us, rel=NEAR)
    check_found(Costs({**found.protocols, "LL128": one}), NEAR)


def check_predicts(on: tuple[Topology, Topology], ranks: tuple[int, ...]) -> None:
    """Times of rings under every protocol on the planted machine and on the one that was found."""
    program = built_in("allreduce", "ring", len(ranks))
    for protocol in PLANTED:
        each = [Predictor(replace(program, protocol=protocol), one, ranks) for one in on]
        for size in (1 << 12, 1 << 20, 1 << 28):
            there, here = (one.time_us(size) for one in each)
            assert here == pytest.approx(there, rel=NEAR), (protocol, size)


def test_what_is_found_predicts_programs_that_were_not_measured(found: Costs) -> None:
    check_predicts((with_costs(wired(), Costs(PLANTED)), with_costs(wired(), found)), (0, 1, 3, 2))


@pytest.mark.slow
def test_what_is_found_of_a_dgx_predicts_programs_that_were_not_measured() -> None:
    plain = load("dgx-a100")
    planted = with_costs(plain)
    check_predicts((planted, with_costs(calibrate(plain, measured(planted, plain), "here"))), tuple(range(8)))


def test_noise_that_only_makes_longer_moves_little() -> None:
    plain, rng = wired(), random.Random(0)

    def noise(us: float) -> float:
        return us * (1 + 0.01 * rng.random() + 20 * rng.random() * (rng.random() < 0.4))

    made = calibrate(plain, measured(with_costs(plain, Costs(PLANTED)), plain, noise), "here")
    assert made.costs is not None
    for name, one in made.costs.protocols.items():
        assert one.latency_us == pytest.approx(PLANTED[name].latency_us, rel=0.15)
        assert one.start_us == pytest.approx(PLANTED[name].start_us, rel=0.15)
        assert one.threadblock_gbs == pytest.approx(PLANTED[name].threadblock_gbs, rel=0.15)


def test_a_machine_that_never_repeats_is_refused() -> None:
    plain, growing = wired(), count(1)
    with pytest.raises(InputError, match="less busy"):
        measured(with_costs(plain, Costs(PLANTED)), plain, lambda us: us * 2.0 ** (next(growing) % 50))


def test_a_link_slower_one_way_is_found_so() -> None:
    slow = one_protocol()
    at = (slow.link_src == 0) & (slow.link_dst == 1)
    slow = replace(slow, bandwidth_gbs=np.where(at, 25.0, slow.bandwidth_gbs))
    found = measured(with_costs(slow), one_protocol()).links
    assert found[0, 1].gbs == pytest.approx(25.0, rel=0.01)
    assert found[1, 0].gbs == pytest.approx(100.0, rel=0.01)
    there, back = each_direction(*((MESSAGES + 1) / (MESSAGES / x + 1 / y) for x, y in ((3.0, 40.0), (40.0, 3.0))))
    assert (there, back) == pytest.approx((3.0, 40.0))


def test_limits_are_what_their_pairs_carry_together() -> None:
    shared = one_protocol('\n[[limits]]\nname = "nic"\npairs = "0>2 1>3"\ngbs = 15\n', 2.5)
    assert measured(with_costs(shared), shared).shared_gbs == pytest.approx({"nic": 15.0}, rel=NEAR)


def test_what_a_topology_says_of_protocols_stays() -> None:
    only = Costs({"LL128": PLANTED["LL128"], "Simple": PLANTED["Simple"]}, "its data sheet")
    before = replace(wired(), costs=only)
    found = calibrate(before, measured(with_costs(wired(), Costs(PLANTED)), before), "here").costs
    assert found is not None
    assert list(found.protocols) == ["LL128", "Simple"]
    assert found.protocols["LL128"].links == ("nvlink", "network")
    assert "not measured: links" in found.protocols["LL128"].note
    none = replace(wired(), costs=Costs({"Simple": Protocol(links=("nvlink",))}))
    with pytest.raises(InputError, match="links of kind network: the topology's costs allow no protocol"):
        measured(with_costs(wired(), Costs(PLANTED)), none)


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
def test_probes_run_and_leave_what_was_sent(protocol: str) -> None:
    for probe in (
        Probe(2, ((0, 1),), protocol, rounds=3),
        Probe(3, ((2, 0),), protocol, blocks=3, messages=5),
        Probe(4, ((0, 1), (1, 0), (0, 2)), protocol, blocks=2, messages=2, rounds=2),
    ):
        executor = HostExecutor(probe.program, probe.goal, threads=2)
        row = measure(probe.program, probe.goal, SMALL_BYTES, executor)
        assert row.wrong == 0


def test_a_probe_that_sends_something_else_back_is_seen() -> None:
    probe = Probe(2, ((0, 1),), messages=1)
    a, b = probe.program.gpus
    other = [replace(block, steps=[block.steps[0], Step("s", "i", 0, count=1)]) for block in b.threadblocks]
    broken = replace(probe.program, gpus=[a, replace(b, threadblocks=other)])
    assert measure(broken, probe.goal, SMALL_BYTES, HostExecutor(broken, probe.goal)).wrong > 0


def test_a_time_is_the_least_that_repeats() -> None:
    """Whatever else runs adds to a time; six times out of ten it does, up to twenty times as much."""
    rng = random.Random(0)
    for _ in range(200):
        found = repeated_least(lambda: 50.0 * (1 + 0.02 * rng.random() + 20 * rng.random() * (rng.random() < 0.6)), [])
        assert found.spread <= ENOUGH
        assert 50.0 <= found.value <= 50.0 * (1 + 2 * ENOUGH)


def test_a_time_that_never_repeats_is_refused() -> None:
    doubling = count()
    found = repeated_least(lambda: 2.0 ** next(doubling), [])
    assert (found.value, found.spread, next(doubling)) == (1.0, 2.0 ** (AGREE - 1) - 1, MOST)
    policy = NoisePolicy()
    policy.check_repeated("link 0→1: α", Measured(1.0, NOISE, found.unrest))
    policy.check_repeated("link 0→1: α", Measured(0.0, math.inf, ENOUGH))
    with pytest.raises(InputError, match=r"link 2→3: α: does not repeat.*give --accept-noise"):
        policy.check_repeated("link 2→3: α", found)
    assert policy.remarks == []


def test_an_accepted_time_that_never_repeats_leaves_one_remark() -> None:
    policy = NoisePolicy(accept=True)
    policy.check_repeated("link 0→1: α", Measured(1.0, NOISE, 3.0))
    for _ in range(2):
        policy.check_repeated("link 2→3: α", Measured(1.0, 3.0, 3.0))
    assert policy.remarks == ["link 2→3: α: does not repeat, the least 3 times that were measured lie 300% apart"]


def test_times_that_agree_are_not_measured_again_but_for_closer_ones() -> None:
    given, times = iter((1.05, 1.0, 1.08, 1.004, 1.002, 1.3)), list[float]()
    assert repeated_least(lambda: next(given), times).spread == pytest.approx(0.08)
    assert repeated_least(lambda: next(given), times).spread == pytest.approx(0.08)
    assert repeated_least(lambda: next(given), times, 0.01).spread == pytest.approx(0.004)
    assert next(given) == 1.3


START_DOMINATED = Costs({"Simple": Protocol(300.0, latency_us={"other": 3.0})})


def two_ranks(costs: Costs) -> Topology:
    """Slow enough that what takes long is few bytes."""
    plain = load("full:2")
    return with_costs(replace(plain, bandwidth_gbs=np.full(plain.nlinks, 0.01)), costs)


@pytest.mark.parametrize(("start_us", "near"), [(300.0, 0.15), (3000.0, 0.4)])
def test_a_call_that_takes_long_to_start_hides_no_latency(start_us: float, near: float) -> None:
    """Times repeat within 8 %, which is eight latencies of a step, or eighty; and it is not refused."""
    planted = two_ranks(Costs({"Simple": Protocol(start_us, latency_us={"other": 3.0})}))
    for seed in range(5):
        rng = random.Random(seed)
        found = measured(planted, planted, lambda us: us * (1 + 0.08 * rng.random()))  # noqa: B023 - called in here
        for link in found.links.values():
            assert link.alpha_us == pytest.approx(3.0, rel=near)
            assert link.alpha_spread <= NOISE
        assert found.costs["Simple"]["other"].start_us.value == pytest.approx(start_us, rel=0.15)


def test_messages_grow_until_they_take_longer_than_a_call_takes_to_start() -> None:
    times: dict[int, float] = {}

    def timer(probe: Probe, size: int) -> float:
        times[size] = 1e5 + size * (probe.messages + 1) / 10
        return times[size]

    assert Meter(timer, 2).rate([(0, 1)], "Simple", 1).value == pytest.approx(0.01)
    assert times[max(times)] >= 2 * times[max(times) // 4]


def test_times_that_agree_too_little_for_what_they_differ_by_are_measured_more_closely() -> None:
    """8 % is enough for a time, and more than a hundred rounds of a thousandth of a call's start each."""
    done: dict[Probe, int] = {}

    def timer(probe: Probe, _: int) -> float:
        done[probe] = done.get(probe, 0) + 1
        return (3000.0 + 6.0 * probe.rounds) * (1.08, 1.04, 1.0)[min(done[probe], 3) - 1]

    latency, start = Meter(timer, 2).latency_and_start((0, 1), "Simple", math.inf)
    assert (latency.value, latency.spread) == (pytest.approx(3.0), 0.0)
    assert start.value == pytest.approx(3000.0)


def test_a_machine_that_is_busy_at_first_is_measured_again() -> None:
    """The first measurements of a latency never repeat; those after them do."""
    planted = two_ranks(START_DOMINATED)
    timer, done = simulated(planted), dict[Probe, int]()

    def busy_at_first(probe: Probe, size: int) -> float:
        done[probe] = done.get(probe, 0) + 1
        busy = probe.messages == 1 and done[probe] <= MOST
        return timer(probe, size) * (2.0 ** (done[probe] % MOST + 1) if busy else 1.0)

    found = measure_machine(Meter(busy_at_first, 2), planted, lambda *_: None)
    assert found.links[0, 1].alpha_us == pytest.approx(3.0, rel=0.01)


def test_what_is_not_seen_is_said_so() -> None:
    """A machine on which only bytes take time, and a call; then one on which a call takes none to start."""
    plain = two_ranks(START_DOMINATED)
    found = measure_machine(
        Meter(lambda probe, size: 1000.0 + (probe.messages == MESSAGES) * probe.blocks * size, 2),
        plain,
        lambda *_: None,
    )
    one = found.costs["Simple"]["other"]
    assert [figure.within for figure in (one.start_us, one.latency_us, one.gap_us)] == ["0%", "not seen", "not seen"]
    made = calibrate(plain, found, "here").costs
    assert made is not None
    assert "start_us 0%, latency_us not seen, gap_us not seen, efficiency 0%" in made.protocols["Simple"].note
    latency, start = Meter(lambda probe, _: 2.0 * probe.rounds, 2).latency_and_start((0, 1), "Simple", math.inf)
    assert (latency, start.within) == (Measured(1.0), "not seen")
    assert Measured(1.0, math.inf).within == "not known"
    assert worst_within([Measured(1.0, 0.1), Measured(0.0, math.inf), Measured(2.0, 0.3)]) == "30% where seen"


def test_messages_that_take_no_longer_when_larger_are_refused() -> None:
    with pytest.raises(InputError, match=r"take no longer than of.*give --accept-noise"):
        measure_machine(Meter(lambda *_: 20_000.0, 2), two_ranks(START_DOMINATED), lambda *_: None)


def test_accepted_messages_that_take_no_longer_when_larger_count_with_their_whole_time() -> None:
    """The rate of a machine that takes 20 ms for a run of any size is at least what the largest messages move."""
    meter = Meter(lambda *_: 20_000.0, 2, accept_noise=True)
    rate = meter.rate([(0, 1)], "Simple", 1)
    assert rate == Measured(MOST_BYTES * (MESSAGES + 1) / 20_000.0 / 1e3, math.inf, 0.0)
    assert meter.noise.remarks == [
        f"link 0→1: bandwidth under Simple, 1 threadblock: messages of {MOST_BYTES} bytes take no longer"
        f" than of {MOST_BYTES // 4} bytes (2e+04 µs and 2e+04 µs)"
    ]


def test_an_accepted_noisy_machine_has_figures_that_a_topology_can_hold() -> None:
    plain, runs = wired(), count()
    timer = simulated(with_costs(plain, Costs(PLANTED)))
    noisy = Meter(lambda probe, size: timer(probe, size) * 2.0 ** (next(runs) % 50), 4, accept_noise=True)
    calibration = measure_machine(noisy, plain, lambda *_: None)
    assert any("does not repeat" in remark for remark in calibration.noise)
    written = from_toml(to_toml(calibrate(plain, calibration, "here"), remarks=calibration.noise), "noisy.toml")
    assert (written.bandwidth_gbs > 0).all()


def test_what_is_measured_is_told_in_both_phases() -> None:
    told: list[tuple[str, int, int]] = []
    planted = two_ranks(START_DOMINATED)
    measure_machine(Meter(simulated(planted), 2), planted, lambda *row: told.append(row))
    assert told == [("protocols by kind of link", 1, 1), ("links", 1, 2), ("links", 2, 2)]


def test_a_limit_is_measured_by_a_protocol_that_its_slowest_links_allow() -> None:
    simple = Protocol(1.0, efficiency={"nvlink": 0.5})
    only = Costs({"LL128": Protocol(1.0, links=("nvlink",)), "Simple": simple})
    mixed = from_toml(WIRED + '\n[[limits]]\nname = "mixed"\npairs = "0>1 0>2"\ngbs = 8\n', "mixed.toml")
    seen: list[Probe] = []
    timer = simulated(with_costs(mixed, Costs({"LL128": Protocol(1.0), "Simple": simple})))

    def watched(probe: Probe, size: int) -> float:
        seen.append(probe)
        return timer(probe, size)

    found = measure_machine(Meter(watched, 4), replace(mixed, costs=only), lambda *_: None)
    assert {probe.protocol for probe in seen if len(probe.pairs) > 1} == {"Simple"}
    assert found.shared_gbs == pytest.approx({"mixed": 8.0}, rel=NEAR)
