"""An executor's costs in the clocks, the replay and the bounds, by hand and against each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emit.program import Gpu, Program, Step, ThreadBlock
from emit.timing.predict import Predictor
from synth.bounds.check import check
from synth.bounds.prove import prove
from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.timing.simulate import time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from topologies.costed import with_costs, with_protocol
from topologies.costs import Costs, Protocol
from topologies.errors import BadWitness, ScheduleRefused
from topologies.families import family
from topologies.load import load
from topologies.topology import Topology

_KIB = 1024
_COSTS = Costs(
    {
        "LL": Protocol(2.0, latency_us={"other": 0.25}, efficiency={"other": 0.5}),
        "Simple": Protocol(5.0, 4.0, latency_us={"other": 3.0}, gap_us={"other": 1.5}),
    }
)


def _line(protocol: str, chunks: int = 2) -> Problem:
    """Return a problem that sends rank 0's chunks to rank 1, over a link of 8 GB/s and 1 µs."""
    topology = with_protocol(with_costs(family("line:2,bw=8,alpha=1"), _COSTS), protocol)
    return make_problem(topology, "broadcast", chunks=chunks)


def _sent(problem: Problem) -> Schedule:
    count = problem.collective.nchunks
    link = int(np.flatnonzero(problem.network.src == 0)[0])
    return untimed(np.arange(count), np.full(count, link), np.arange(count), np.zeros(count, dtype=bool))


def test_a_schedule_has_the_start_the_gap_and_the_costs_of_its_protocol() -> None:
    """Check two chunks of 8,000 bytes: LL takes 2 µs each at half the bandwidth, Simple 1 µs each and a gap."""
    ll, simple = _line("LL"), _line("Simple")
    schedule = timed(ll, _sent(ll), 16_000)
    assert schedule.start_us.tolist() == [2, 4]
    assert time_us(ll, schedule) == 6.25
    schedule = timed(simple, _sent(simple), 16_000)
    assert schedule.start_us.tolist() == [5, 7.5]  # The gap keeps the link busy.
    assert time_us(simple, schedule) == 11.5  # The gap is not part of the arrival.
    replay(simple, schedule)


def test_the_replay_notices_times_without_costs() -> None:
    simple = _line("Simple")
    without = make_problem(family("line:2,bw=8,alpha=3"), "broadcast", chunks=2)
    schedule = timed(without, _sent(without), 16_000)
    with pytest.raises(ScheduleRefused, match="the call's start takes 5 µs"):
        replay(simple, schedule)
    later = replace(schedule, start_us=schedule.start_us + 5, end_us=schedule.end_us + 5)
    with pytest.raises(ScheduleRefused, match="on link 0→1 at once"):
        replay(simple, later)


def _program(blocks: int, protocol: str = "Simple") -> Program:
    """Return a program in which each of a number of threadblocks sends a chunk from rank 0 to rank 1."""
    gpus = []
    for rank in (0, 1):
        op = "s" if rank == 0 else "r"
        where = {"src_buf": "i", "src_off": 0, "dst_buf": "o", "dst_off": 0, "count": 1}
        tbs = [
            ThreadBlock(
                send=1 if rank == 0 else -1,
                recv=-1 if rank == 0 else 0,
                channel=tb,
                steps=[Step(op, **where | {"src_off": tb, "dst_off": tb})],
            )
            for tb in range(blocks)
        ]
        gpus.append(Gpu(blocks, blocks, 0, tbs))
    return Program(
        name="x", collective="broadcast", protocol=protocol, nranks=2, nchunks_per_loop=blocks, inplace=False,
        outofplace=True, gpus=gpus,
    )  # fmt: skip


def _pair() -> Topology:
    return with_costs(family("line:2,bw=8,alpha=1"), _COSTS)


def test_a_threadblock_has_its_own_bandwidth_and_more_of_them_fill_a_link() -> None:
    pair = _pair()
    of_one_block, two, many = (Predictor(_program(n), pair).time_us(16_000) for n in (1, 2, 5))
    assert of_one_block == pytest.approx(5 + 16_000 / 4e3 + 3)  # 4 of 8 GB/s.
    assert two == pytest.approx(5 + 16_000 / 8e3 + 3)
    # Messages alternate on a link, so that five threadblocks share it as evenly as two; there is a gap between
    # messages.
    assert 5 + 2 + 3 <= many <= 5 + 2 * 1.1 + 3 * 1.5 + 3
    assert Predictor(_program(1, "LL"), pair).time_us(16_000) == pytest.approx(2 + 16_000 / 4e3 + 0.25)


def test_a_program_without_costs_takes_its_bare_time() -> None:
    plain = family("line:2,bw=8,alpha=1")
    for blocks in (1, 3):
        assert Predictor(_program(blocks), plain).time_us(16_000) == 1 + 16_000 / 8e3


def test_a_gap_delays_messages_of_the_same_port() -> None:
    """Check two messages from one port to two ranks: the second leaves a gap later, as from one NIC."""
    costs = Costs({"Simple": Protocol(gap_us={"other": 10})})
    topology = with_protocol(with_costs(family("star:3,bw=1,alpha=0"), costs), "Simple")
    problem = make_problem(topology, "scatter")
    links = [int(np.flatnonzero((problem.network.src == 0) & (problem.network.dst == d))[0]) for d in (1, 2)]
    schedule = untimed(np.array([1, 2]), np.array(links), np.zeros(2, dtype=np.int64), np.zeros(2, dtype=bool))
    assert timed(problem, schedule, 3000).start_us.tolist() == [0, 11]


@pytest.mark.parametrize("spec", ["dgx1", "dgx-a100", "ndv2:2"])
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_a_bound_over_protocols_holds_for_each_and_is_checked(spec: str, collective: str) -> None:
    problem = make_problem(with_costs(load(spec)), collective)
    bound = prove(problem, max_flow=False)
    for name in problem.protocols:
        own = prove(problem.under(name), max_flow=False)
        for size in (_KIB, 1 << 20, 1 << 30):
            assert bound.at(size)[0] <= own.at(size)[0] * (1 + 1e-9)
    least = {
        size: min(prove(problem.under(n), max_flow=False).at(size)[0] for n in problem.protocols)
        for size in (9, 1 << 30)
    }
    for size, us in least.items():
        assert bound.at(size)[0] == pytest.approx(us)
    for witness in bound.witnesses:
        check(problem, witness)
    starts = {name: problem.under(name).network.start_us for name in problem.protocols}
    assert bound.at(0)[0] > min(starts.values()) > 0


def test_a_witness_of_another_protocol_proves_less() -> None:
    problem = make_problem(with_costs(load("dgx-a100")), "allgather")
    bound = prove(problem, max_flow=False)
    slow = next(w for w in bound.witnesses if w.protocol == "LL" and w.per_byte_us > 0)
    with pytest.raises(BadWitness, match="claims"):
        check(problem, replace(slow, protocol="Simple"))
    with pytest.raises(BadWitness, match="the protocol is 'LL256'; the problem has LL or LL128 or Simple"):
        check(problem, replace(slow, protocol="LL256"))


def test_algorithms_are_timed_under_a_protocol() -> None:
    simple = _line("Simple")
    algorithm = Algorithm(simple, _sent(simple), "hand")
    assert algorithm.time_us(16_000) == 11.5
    assert prove(simple).at(16_000)[0] <= 11.5
