"""Costs that are planted in a simulated executor are recovered, and predict programs that were not measured."""

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
# The fastest protocol carries all that links state, so that the costs can be compared one by one.
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
NEAR = 0.04  # Largest relative error of a recovered cost: the message back is one of MESSAGES, and may overlap others.


def wired() -> Topology:
    return from_toml(WIRED, "two-nodes.toml")


def one_protocol(more: str = "", threadblock_gbs: float = math.inf) -> Topology:
    return replace(from_toml(WIRED + more, "one.toml"), costs=Costs({"Simple": Protocol(1.0, threadblock_gbs)}))


def simulated(planted: Topology) -> Timer:
    """Return an executor's clock: the time of each probe on a machine with the planted costs."""
    predictors: dict[Probe, Predictor] = {}
    known_us: dict[tuple[Probe, int], float] = {}

    def timer(probe: Probe, size_bytes: int) -> float:
        if probe not in predictors:
            predictors[probe] = Predictor(probe.program, planted)
        if (probe, size_bytes) not in known_us:
            known_us[probe, size_bytes] = predictors[probe].time_us(size_bytes)
        return known_us[probe, size_bytes]

    return timer


def measured(planted: Topology, before: Topology, noise: Callable[[float], float] = lambda us: us) -> Calibration:
    timer = simulated(planted)
    meter = Meter(lambda probe, size: noise(timer(probe, size)), before.nranks)
    return measure_machine(meter, before, lambda *_: None)


@pytest.fixture(scope="module")
def recovered() -> Costs:
    """Return the costs that are recovered of a machine with the planted costs."""
    calibrated = calibrate(wired(), measured(with_costs(wired(), Costs(PLANTED)), wired()), "here")
    assert calibrated.costs is not None
    assert calibrated.bandwidth_gbs == pytest.approx(wired().bandwidth_gbs, rel=NEAR)
    # α is that of the protocol with the least latency.
    assert set(calibrated.alpha_us.tolist()) == {0.5, 2.5}
    return calibrated.costs


def check_recovered(costs: Costs, near: float) -> None:
    assert list(costs.protocols) == list(PLANTED)
    for name, costs_of_protocol in costs.protocols.items():
        planted = PLANTED[name]
        assert costs_of_protocol.start_us == pytest.approx(planted.start_us, rel=near)
        assert costs_of_protocol.threadblock_gbs == pytest.approx(planted.threadblock_gbs, rel=near)
        for kind in ("nvlink", "network"):
            assert costs_of_protocol.latency_us[kind] == pytest.approx(planted.latency_us[kind], rel=near)
            assert costs_of_protocol.efficiency[kind] == pytest.approx(planted.efficiency.get(kind, 1.0), rel=near)
            assert costs_of_protocol.gap_us.get(kind, 0.0) == pytest.approx(planted.gap_us.get(kind, 0.0), rel=near)


def test_planted_costs_are_recovered_and_written_with_their_origin(recovered: Costs) -> None:
    check_recovered(recovered, NEAR)
    again = from_toml(to_toml(replace(wired(), costs=recovered)), "again.toml").costs
    assert again == recovered
    assert again is not None
    assert again.source == "here"
    for name, costs_of_protocol in again.protocols.items():
        assert costs_of_protocol.note.startswith("measured, known within: start_us 0%")
        assert ("none is stated" in costs_of_protocol.note) == (name == "LL")


def test_a_doubled_cost_of_one_protocol_is_recovered_and_changes_no_other() -> None:
    plain, doubled = wired(), PLANTED["LL128"]
    changed = replace(
        doubled,
        start_us=2 * doubled.start_us,
        latency_us={kind: 2 * us for kind, us in doubled.latency_us.items()},
        gap_us={"nvlink": 0.6},
    )
    costs = Costs({**PLANTED, "LL128": changed})
    recovered_costs = calibrate(plain, measured(with_costs(plain, costs), plain), "here").costs
    assert recovered_costs is not None
    recovered_doubled = recovered_costs.protocols["LL128"]
    assert recovered_doubled.start_us == pytest.approx(changed.start_us, rel=NEAR)
    assert recovered_doubled.latency_us == pytest.approx(changed.latency_us, rel=NEAR)
    assert recovered_doubled.gap_us == pytest.approx(changed.gap_us, rel=NEAR)
    check_recovered(Costs({**recovered_costs.protocols, "LL128": doubled}), NEAR)


def check_predicts(on: tuple[Topology, Topology], ranks: tuple[int, ...]) -> None:
    """Check times of rings under every protocol, on the planted machine and on the recovered one."""
    program = built_in("allreduce", "ring", len(ranks))
    for protocol in PLANTED:
        predictors = [Predictor(replace(program, protocol=protocol), topology, ranks) for topology in on]
        for size in (1 << 12, 1 << 20, 1 << 28):
            planted_us, recovered_us = (predictor.time_us(size) for predictor in predictors)
            assert recovered_us == pytest.approx(planted_us, rel=NEAR), (protocol, size)


def test_recovered_costs_predict_programs_that_were_not_measured(recovered: Costs) -> None:
    check_predicts((with_costs(wired(), Costs(PLANTED)), with_costs(wired(), recovered)), (0, 1, 3, 2))


@pytest.mark.slow
def test_recovered_costs_of_a_dgx_predict_programs_that_were_not_measured() -> None:
    plain = load("dgx-a100")
    planted = with_costs(plain)
    check_predicts((planted, with_costs(calibrate(plain, measured(planted, plain), "here"))), tuple(range(8)))


def test_noise_that_only_lengthens_times_changes_little() -> None:
    plain, rng = wired(), random.Random(0)

    def noise(us: float) -> float:
        return us * (1 + 0.01 * rng.random() + 20 * rng.random() * (rng.random() < 0.4))

    calibrated = calibrate(plain, measured(with_costs(plain, Costs(PLANTED)), plain, noise), "here")
    assert calibrated.costs is not None
    for name, costs_of_protocol in calibrated.costs.protocols.items():
        assert costs_of_protocol.latency_us == pytest.approx(PLANTED[name].latency_us, rel=0.15)
        assert costs_of_protocol.start_us == pytest.approx(PLANTED[name].start_us, rel=0.15)
        assert costs_of_protocol.threadblock_gbs == pytest.approx(PLANTED[name].threadblock_gbs, rel=0.15)


def test_a_machine_that_never_repeats_is_refused() -> None:
    plain, growing = wired(), count(1)
    with pytest.raises(InputError, match="less busy"):
        measured(with_costs(plain, Costs(PLANTED)), plain, lambda us: us * 2.0 ** (next(growing) % 50))


def test_a_link_that_is_slower_in_one_direction_is_recovered() -> None:
    slow = one_protocol()
    at = (slow.link_src == 0) & (slow.link_dst == 1)
    slow = replace(slow, bandwidth_gbs=np.where(at, 25.0, slow.bandwidth_gbs))
    measured_links = measured(with_costs(slow), one_protocol()).links
    assert measured_links[0, 1].gbs == pytest.approx(25.0, rel=0.01)
    assert measured_links[1, 0].gbs == pytest.approx(100.0, rel=0.01)
    forward, back = each_direction(*((MESSAGES + 1) / (MESSAGES / x + 1 / y) for x, y in ((3.0, 40.0), (40.0, 3.0))))
    assert (forward, back) == pytest.approx((3.0, 40.0))


def test_limits_are_the_joint_bandwidth_of_their_pairs() -> None:
    shared = one_protocol('\n[[limits]]\nname = "nic"\npairs = "0>2 1>3"\ngbs = 15\n', 2.5)
    assert measured(with_costs(shared), shared).shared_gbs == pytest.approx({"nic": 15.0}, rel=NEAR)


def test_protocols_that_a_topology_states_stay() -> None:
    only = Costs({"LL128": PLANTED["LL128"], "Simple": PLANTED["Simple"]}, "its data sheet")
    before = replace(wired(), costs=only)
    recovered_costs = calibrate(before, measured(with_costs(wired(), Costs(PLANTED)), before), "here").costs
    assert recovered_costs is not None
    assert list(recovered_costs.protocols) == ["LL128", "Simple"]
    assert recovered_costs.protocols["LL128"].links == ("nvlink", "network")
    assert "not measured: links" in recovered_costs.protocols["LL128"].note
    none = replace(wired(), costs=Costs({"Simple": Protocol(links=("nvlink",))}))
    with pytest.raises(InputError, match="links of kind network: the topology's costs allow no protocol"):
        measured(with_costs(wired(), Costs(PLANTED)), none)


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
def test_probes_run_and_send_the_right_data(protocol: str) -> None:
    for probe in (
        Probe(2, ((0, 1),), protocol, rounds=3),
        Probe(3, ((2, 0),), protocol, blocks=3, messages=5),
        Probe(4, ((0, 1), (1, 0), (0, 2)), protocol, blocks=2, messages=2, rounds=2),
    ):
        executor = HostExecutor(probe.program, probe.goal, threads=2)
        row = measure(probe.program, probe.goal, SMALL_BYTES, executor)
        assert row.wrong == 0


def test_a_probe_that_sends_other_data_back_is_noticed() -> None:
    probe = Probe(2, ((0, 1),), messages=1)
    a, b = probe.program.gpus
    wrong_blocks = [replace(block, steps=[block.steps[0], Step("s", "i", 0, count=1)]) for block in b.threadblocks]
    broken = replace(probe.program, gpus=[a, replace(b, threadblocks=wrong_blocks)])
    assert measure(broken, probe.goal, SMALL_BYTES, HostExecutor(broken, probe.goal)).wrong > 0


def test_a_time_is_the_least_repeated_one() -> None:
    """Check times to which other processes add: six times out of ten, up to twenty times as much."""
    rng = random.Random(0)
    for _ in range(200):
        repeated = repeated_least(
            lambda: 50.0 * (1 + 0.02 * rng.random() + 20 * rng.random() * (rng.random() < 0.6)), []
        )
        assert repeated.spread <= ENOUGH
        assert 50.0 <= repeated.value <= 50.0 * (1 + 2 * ENOUGH)


def test_a_time_that_never_repeats_is_refused() -> None:
    doubling = count()
    repeated = repeated_least(lambda: 2.0 ** next(doubling), [])
    assert (repeated.value, repeated.spread, next(doubling)) == (1.0, 2.0 ** (AGREE - 1) - 1, MOST)
    policy = NoisePolicy()
    policy.check_repeated("link 0→1: α", Measured(1.0, NOISE, repeated.unrest))
    policy.check_repeated("link 0→1: α", Measured(0.0, math.inf, ENOUGH))
    with pytest.raises(InputError, match=r"link 2→3: α: does not repeat.*give --accept-noise"):
        policy.check_repeated("link 2→3: α", repeated)
    assert policy.remarks == []


def test_an_accepted_time_that_never_repeats_leaves_one_remark() -> None:
    policy = NoisePolicy(accept=True)
    policy.check_repeated("link 0→1: α", Measured(1.0, NOISE, 3.0))
    for _ in range(2):
        policy.check_repeated("link 2→3: α", Measured(1.0, 3.0, 3.0))
    assert policy.remarks == ["link 2→3: α: does not repeat, the least 3 times that were measured lie 300% apart"]


def test_times_that_agree_are_not_measured_again_except_closer_ones() -> None:
    values, times = iter((1.05, 1.0, 1.08, 1.004, 1.002, 1.3)), list[float]()
    assert repeated_least(lambda: next(values), times).spread == pytest.approx(0.08)
    assert repeated_least(lambda: next(values), times).spread == pytest.approx(0.08)
    assert repeated_least(lambda: next(values), times, 0.01).spread == pytest.approx(0.004)
    assert next(values) == 1.3


START_DOMINATED = Costs({"Simple": Protocol(300.0, latency_us={"other": 3.0})})


def two_ranks(costs: Costs) -> Topology:
    """Build two ranks with links so slow that long messages are small."""
    plain = load("full:2")
    return with_costs(replace(plain, bandwidth_gbs=np.full(plain.nlinks, 0.01)), costs)


@pytest.mark.parametrize(("start_us", "near"), [(300.0, 0.15), (3000.0, 0.4)])
def test_a_long_start_of_a_call_hides_no_latency(start_us: float, near: float) -> None:
    """Check that times which repeat within 8 % (eight or eighty latencies of a step) are not refused."""
    planted = two_ranks(Costs({"Simple": Protocol(start_us, latency_us={"other": 3.0})}))
    for seed in range(5):
        rng = random.Random(seed)
        calibration = measured(planted, planted, lambda us: us * (1 + 0.08 * rng.random()))  # noqa: B023 - called in here
        for link in calibration.links.values():
            assert link.alpha_us == pytest.approx(3.0, rel=near)
            assert link.alpha_spread <= NOISE
        assert calibration.costs["Simple"]["other"].start_us.value == pytest.approx(start_us, rel=0.15)


def test_messages_grow_until_they_take_longer_than_the_start_of_a_call() -> None:
    times: dict[int, float] = {}

    def timer(probe: Probe, size: int) -> float:
        times[size] = 1e5 + size * (probe.messages + 1) / 10
        return times[size]

    assert Meter(timer, 2).rate([(0, 1)], "Simple", 1).value == pytest.approx(0.01)
    assert times[max(times)] >= 2 * times[max(times) // 4]


def test_times_that_agree_too_little_for_their_difference_are_measured_more_closely() -> None:
    """Check that 8 % is enough for one time, but not for the difference of a hundred short rounds."""
    runs: dict[Probe, int] = {}

    def timer(probe: Probe, _: int) -> float:
        runs[probe] = runs.get(probe, 0) + 1
        return (3000.0 + 6.0 * probe.rounds) * (1.08, 1.04, 1.0)[min(runs[probe], 3) - 1]

    latency, start = Meter(timer, 2).latency_and_start((0, 1), "Simple", math.inf)
    assert (latency.value, latency.spread) == (pytest.approx(3.0), 0.0)
    assert start.value == pytest.approx(3000.0)


def test_a_machine_that_is_busy_at_first_is_measured_again() -> None:
    """Check a latency whose first measurements never repeat, while later ones do."""
    planted = two_ranks(START_DOMINATED)
    timer, runs = simulated(planted), dict[Probe, int]()

    def busy_at_first(probe: Probe, size: int) -> float:
        runs[probe] = runs.get(probe, 0) + 1
        busy = probe.messages == 1 and runs[probe] <= MOST
        return timer(probe, size) * (2.0 ** (runs[probe] % MOST + 1) if busy else 1.0)

    calibration = measure_machine(Meter(busy_at_first, 2), planted, lambda *_: None)
    assert calibration.links[0, 1].alpha_us == pytest.approx(3.0, rel=0.01)


def test_a_cost_that_is_not_seen_is_reported_as_such() -> None:
    """Check a machine on which only bytes and the call take time, and one on which a call starts at once."""
    plain = two_ranks(START_DOMINATED)
    calibration = measure_machine(
        Meter(lambda probe, size: 1000.0 + (probe.messages == MESSAGES) * probe.blocks * size, 2),
        plain,
        lambda *_: None,
    )
    costs_of_kind = calibration.costs["Simple"]["other"]
    assert [figure.within for figure in (costs_of_kind.start_us, costs_of_kind.latency_us, costs_of_kind.gap_us)] == [
        "0%",
        "not seen",
        "not seen",
    ]
    recovered_costs = calibrate(plain, calibration, "here").costs
    assert recovered_costs is not None
    assert (
        "start_us 0%, latency_us not seen, gap_us not seen, efficiency 0%" in recovered_costs.protocols["Simple"].note
    )
    latency, start = Meter(lambda probe, _: 2.0 * probe.rounds, 2).latency_and_start((0, 1), "Simple", math.inf)
    assert (latency, start.within) == (Measured(1.0), "not seen")
    assert Measured(1.0, math.inf).within == "not known"
    assert worst_within([Measured(1.0, 0.1), Measured(0.0, math.inf), Measured(2.0, 0.3)]) == "30% where seen"


def test_messages_whose_time_does_not_grow_are_refused() -> None:
    with pytest.raises(InputError, match=r"take no longer than of.*give --accept-noise"):
        measure_machine(Meter(lambda *_: 20_000.0, 2), two_ranks(START_DOMINATED), lambda *_: None)


def test_accepted_messages_whose_time_does_not_grow_count_with_their_whole_time() -> None:
    """Check that a machine that takes 20 ms for any size has at least the rate of the largest messages."""
    meter = Meter(lambda *_: 20_000.0, 2, accept_noise=True)
    rate = meter.rate([(0, 1)], "Simple", 1)
    assert rate == Measured(MOST_BYTES * (MESSAGES + 1) / 20_000.0 / 1e3, math.inf, 0.0)
    assert meter.noise.remarks == [
        f"link 0→1: bandwidth under Simple, 1 threadblock: messages of {MOST_BYTES} bytes take no longer"
        f" than of {MOST_BYTES // 4} bytes (2e+04 µs and 2e+04 µs)"
    ]


def test_an_accepted_noisy_machine_has_costs_that_a_topology_can_hold() -> None:
    plain, runs = wired(), count()
    timer = simulated(with_costs(plain, Costs(PLANTED)))
    noisy = Meter(lambda probe, size: timer(probe, size) * 2.0 ** (next(runs) % 50), 4, accept_noise=True)
    calibration = measure_machine(noisy, plain, lambda *_: None)
    assert any("does not repeat" in remark for remark in calibration.noise)
    written = from_toml(to_toml(calibrate(plain, calibration, "here"), remarks=calibration.noise), "noisy.toml")
    assert (written.bandwidth_gbs > 0).all()


def test_progress_is_reported_in_both_phases() -> None:
    progress: list[tuple[str, int, int]] = []
    planted = two_ranks(START_DOMINATED)
    measure_machine(Meter(simulated(planted), 2), planted, lambda *row: progress.append(row))
    assert progress == [("protocols by kind of link", 1, 1), ("links", 1, 2), ("links", 2, 2)]


def test_a_limit_is_measured_with_a_protocol_that_its_slowest_links_allow() -> None:
    simple = Protocol(1.0, efficiency={"nvlink": 0.5})
    only = Costs({"LL128": Protocol(1.0, links=("nvlink",)), "Simple": simple})
    mixed = from_toml(WIRED + '\n[[limits]]\nname = "mixed"\npairs = "0>1 0>2"\ngbs = 8\n', "mixed.toml")
    probes: list[Probe] = []
    timer = simulated(with_costs(mixed, Costs({"LL128": Protocol(1.0), "Simple": simple})))

    def watched(probe: Probe, size: int) -> float:
        probes.append(probe)
        return timer(probe, size)

    calibration = measure_machine(Meter(watched, 4), replace(mixed, costs=only), lambda *_: None)
    assert {probe.protocol for probe in probes if len(probe.pairs) > 1} == {"Simple"}
    assert calibration.shared_gbs == pytest.approx({"mixed": 8.0}, rel=NEAR)
