"""Tests of a program's predicted time: worked out by hand, on chosen ranks, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from emit.program import Gpu, Program, Step, ThreadBlock
from emit.timing.predict import Predictor
from synth.model.problem import make_problem
from tests.emit.small_programs import (
    RIGHT,
    alltoall,
    chain_broadcast,
    direct_gather,
    ring_allgather,
    ring_allreduce,
    with_step,
)
from topologies.costed import with_costs
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Limit, Topology

SIZES = (1.0, 4096.0, 1e6, 1e9)
ALPHA, GBS = 0.7, 50.0  # Of the families' links.
SEEDS = st.integers(0, 2**32)
MANY = 1 << 40  # So many FIFO slots that no sender waits.


def us(size: float, gbs: float = GBS) -> float:
    return size / gbs / 1e3


def one_sender(nchunks: int, protocol: str = "Simple", count: int = 1) -> Program:
    """Return a program in which rank 0 sends `nchunks` chunks to rank 1, `count` a step."""
    starts = range(0, nchunks, count)
    sends = [Step("s", "i", at, "o", at, count) for at in starts]
    gets = [Step("r", "i", at, "o", at, count) for at in starts]
    return Program("one", "custom", protocol, 2, nchunks, False, True, [
        Gpu(nchunks, 0, 0, [ThreadBlock(1, -1, 0, sends)]), Gpu(0, nchunks, 0, [ThreadBlock(-1, 0, 0, gets)]),
    ])  # fmt: skip


# --- by hand


@pytest.mark.parametrize("size", SIZES)
def test_one_transfer(size: float) -> None:
    moves = Predictor(one_sender(1), load("line:2")).transfers(size)
    assert moves.start_us.tolist() == [0.0]
    assert moves.end_us.tolist() == [pytest.approx(us(size))]
    assert moves.arrive_us.tolist() == moves.received_us.tolist() == [pytest.approx(us(size) + ALPHA)]
    assert Predictor(one_sender(1), load("line:2")).time_us(size) == pytest.approx(us(size) + ALPHA)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n", [2, 3, 8])
def test_rings(n: int, size: float) -> None:
    hop = us(size / n) + ALPHA
    ring = load(f"ring:{n}")
    assert Predictor(ring_allgather(n), ring).time_us(size) == pytest.approx((n - 1) * hop)
    assert Predictor(ring_allreduce(n), ring).time_us(size) == pytest.approx(2 * (n - 1) * hop)


@pytest.mark.parametrize("depth", [1, 2, 8])
@pytest.mark.parametrize("size", SIZES)
def test_a_sender_waits_for_a_free_slot(depth: int, size: float) -> None:
    lasts = us(size / 20)
    ends: list[float] = []
    for k in range(20):
        free = ends[k - depth] + ALPHA if k >= depth else 0.0
        ends.append(max(ends[-1] if ends else 0.0, free) + lasts)
    predictor = Predictor(one_sender(20), load("line:2"), fifo_depth=depth)
    assert predictor.time_us(size) == pytest.approx(ends[-1] + ALPHA)
    assert predictor.transfers(size).end_us.tolist() == pytest.approx(ends)


def test_protocols_have_their_slots() -> None:
    line = load("line:2")
    for protocol, depth in (("Simple", 2), ("LL", 8), ("LL128", 8)):
        program = one_sender(20, protocol)
        assert Predictor(program, line).time_us(1e3) == Predictor(program, line, None, depth).time_us(1e3)
    assert Predictor(one_sender(20), line).time_us(1e3) > Predictor(one_sender(20, "LL"), line).time_us(1e3)


def test_a_step_of_several_chunks_is_one_transmission() -> None:
    line = load("line:2")
    assert Predictor(one_sender(20, count=20), line).time_us(1e6) == pytest.approx(us(1e6) + ALPHA)
    assert len(Predictor(one_sender(20, count=5), line).transfers(1e6)) == 4


@pytest.mark.parametrize("chunks", [1, 2, 7])
def test_a_forwarded_chunk_must_have_arrived(chunks: int) -> None:
    program, size = chain_broadcast(5, 0, chunks), 1e6
    hop = us(size / chunks) + ALPHA
    predictor = Predictor(program, load("line:5"), fifo_depth=MANY)
    assert predictor.time_us(size) == pytest.approx(4 * hop + (chunks - 1) * us(size / chunks))


@pytest.mark.parametrize("size", SIZES)
def test_a_step_waits_for_its_dependency_and_its_threadblock(size: float) -> None:
    """Check a receive and a send of rank 1, which wait for each other or run at the same time."""
    get, send = Step("r", "i", 0, "o", 0, 1, has_dep=True), Step("s", "i", 0, "o", 0, 1)
    awaited = replace(send, dep_tb=0, dep_step=0)
    nop = Step("nop", dep_tb=0, dep_step=0)
    parallel_us, sequential_us = us(size) + ALPHA, 2 * (us(size) + ALPHA)
    for blocks, expected_us in (
        ([ThreadBlock(-1, 0, 0, [get]), ThreadBlock(2, -1, 0, [send])], parallel_us),
        ([ThreadBlock(-1, 0, 0, [get]), ThreadBlock(2, -1, 0, [awaited])], sequential_us),
        ([ThreadBlock(-1, 0, 0, [get]), ThreadBlock(2, -1, 0, [nop, send])], sequential_us),
        ([ThreadBlock(2, 0, 0, [get, send])], sequential_us),
        ([ThreadBlock(2, 0, 0, [send, get])], parallel_us),
    ):
        first = Gpu(1, 1, 0, [ThreadBlock(1, -1, 0, [send])])
        last = Gpu(1, 1, 0, [ThreadBlock(-1, 1, 0, [get])])
        program = Program("waits", "custom", "LL", 3, 1, False, True, [first, Gpu(1, 1, 0, blocks), last])
        assert Predictor(program, load("line:3")).time_us(size) == pytest.approx(expected_us)


def test_a_port_and_a_limit_are_shared() -> None:
    """Check that a switch port carries one send at a time, and a limit of two links carries two."""
    switch = load("dgx-a100")
    out = 300.0
    assert Predictor(alltoall(8), switch).time_us(1e9) == pytest.approx(7 * us(1e9 / 8, out), rel=1e-3)
    src, dst = np.array([(i, j) for i in range(4) for j in range(4) if i != j]).T
    wires = (src, dst, np.full(12, ALPHA), np.full(12, GBS))
    leaving = tuple(Limit(f"nic{i}", np.flatnonzero(src == i), 2 * GBS) for i in range(4))
    topology = Topology("nics", 4, (), *wires, leaving)
    assert Predictor(alltoall(4), topology).time_us(1e6) == pytest.approx(2 * us(1e6 / 4) + ALPHA)


def test_copies_take_no_time() -> None:
    program = replace(one_sender(1), gpus=[
        Gpu(1, 1, 0, [ThreadBlock(-1, -1, 0, [Step("cpy", "i", 0, "o", 0, 1)])]), Gpu(0, 0, 0, []),
    ])  # fmt: skip
    for predictor in (
        Predictor(program, load("line:2")),
        Predictor(replace(program, nranks=1, gpus=program.gpus[:1]), load("line:2"), (1,)),
        Predictor(replace(program, nranks=1, gpus=program.gpus[1:]), load("line:2")),
    ):
        assert (predictor.time_us(1e9), len(predictor.transfers(1e9))) == (0.0, 0)


def test_message_sizes_follow_nccl_tests() -> None:
    """Check the bytes of a chunk from the collective's blocks; a gather's buffer holds all ranks' blocks."""
    full = load("full:4")
    for program, chunks in (
        (ring_allgather(4), 4),
        (ring_allreduce(4, 2), 8),
        (alltoall(4, 2), 8),
        (chain_broadcast(4, 0, 3), 3),
        (direct_gather(4, 1), 8),
    ):
        predictor = Predictor(program, full)
        assert predictor.chunk_bytes(1e6) == 1e6 / chunks
        problem = make_problem(full, program.collective).with_chunks(1)
        share = float(problem.collective.fraction[0])
        assert predictor.chunk_bytes(1.0) * round(share * chunks) == pytest.approx(share)


# --- where it runs


def test_ranks_follow_the_group() -> None:
    cube, ring = load("dgx1"), ring_allgather(4)
    slow, fast = Predictor(ring, cube, (0, 1, 3, 2)), Predictor(ring, cube, (0, 3, 2, 1))
    assert slow.group == (0, 1, 3, 2)
    links = {(int(cube.link_src[i]), int(cube.link_dst[i])): i for i in range(cube.nlinks)}
    for predictor in (slow, fast):
        g = predictor.group
        wires = [links[g[i], g[(i + 1) % 4]] for i in range(4)]
        rates = cube.bandwidth_gbs[wires]
        # Every chunk crosses the slowest link, and each rank sends one at a time.
        assert predictor.time_us(1e9) >= 3 * us(1e9 / 4, float(rates.min())) * (1 - 1e-9)


def test_channels_are_distributed_over_equal_links() -> None:
    """Check that two channels use two equal links, and not a third, narrower one."""
    src, dst, rate = [], [], []
    for switch, gbs in ((2, 25.0), (3, 25.0), (4, 5.0)):
        for rank in (0, 1):
            src += [rank, switch]
            dst += [switch, rank]
            rate += [gbs, gbs]
    rails = Topology("rails", 2, ("a", "b", "c"), src, dst, np.full(12, 0.5), rate)
    block = [ThreadBlock(1, -1, c, [Step("s", "i", c, "o", c, 1)]) for c in range(4)]
    back = [ThreadBlock(-1, 0, c, [Step("r", "i", c, "o", c, 1)]) for c in range(4)]
    program = Program("four", "custom", "LL", 2, 4, False, True, [Gpu(4, 0, 0, block), Gpu(0, 4, 0, back)])
    predictor = Predictor(program, rails)
    assert predictor.time_us(1e6) == pytest.approx(us(1e6 / 2, 25.0) + 1.0)
    links = predictor.transfers(1e6).link
    assert set(predictor.network.bandwidth_gbs[links].tolist()) == {25.0}
    assert sorted(np.unique(links, return_counts=True)[1].tolist()) == [2, 2]


def test_programs_that_cannot_be_timed_are_refused() -> None:
    ring = ring_allgather(4)
    full = load("full:4")
    for words, program, topology, group, depth in (
        ("program has 4 ranks, ring:3 has 3", ring, load("ring:3"), None, None),
        ("group has 3 ranks, the program 4", ring, full, (0, 1, 2), None),
        ("9 is not in full:4", ring, full, (0, 1, 2, 9), None),
        ("1 is given twice", ring, full, (0, 1, 1, 2), None),
        ("fifo_depth 0", ring, full, None, 0),
        ("rank 3 sends to rank 0, to which line:4 has no link", ring, load("line:4"), None, None),
        ("no link, where they are ranks 1 and 3", ring, load("line:4"), (0, 1, 3, 2), None),
        ("unpaired", with_step(ring, 0, 0, 3, op="cpy"), full, None, None),
        ("unequal counts", with_step(ring, 0, 0, 0, count=2), full, None, None),
        ("dangling dependency", with_step(ring, 0, 0, 1, dep_tb=7, dep_step=0), full, None, None),
    ):
        with pytest.raises(InputError, match=words) as refused:
            Predictor(program, topology, group, depth)
        assert "\n" not in str(refused.value)
    none = with_step(with_step(one_sender(1), 0, 0, 0, count=0), 1, 0, 0, count=0)
    with pytest.raises(InputError, match="rank 0 tb 0 step 0: count 0; it must be 1 or more"):
        Predictor(none, full)
    vast = with_step(with_step(one_sender(1), 0, 0, 0, count=1 << 39), 1, 0, 0, count=1 << 39)
    assert Predictor(vast, full).time_us(1.0) > 1e6


def test_a_deadlock_is_reported() -> None:
    with pytest.raises(InputError, match=r"deadlock at 1 FIFO slot: rank 0 tb 0 step \d \(rcs\) waits for"):
        Predictor(ring_allgather(4), load("ring:4"), fifo_depth=1).time_us(1e6)
    ring = with_step(ring_allreduce(4), 2, 0, 3, dep_tb=0, dep_step=5)
    ring = with_step(ring, 2, 0, 5, has_dep=True)
    with pytest.raises(InputError, match=r"deadlock .*rank 2 tb 0 step 3 .* waits for tb 0 step 5"):
        Predictor(ring, load("ring:4")).times_us([1e6])


def test_a_program_with_a_wrong_result_has_a_time() -> None:
    ring = ring_allgather(4)
    for wrong in (
        with_step(ring, 1, 0, 1, src_off=3, dst_off=3),
        with_step(ring, 1, 0, 1, dst_off=99),
        replace(ring, gpus=[replace(gpu, o_chunks=1) for gpu in ring.gpus]),
    ):
        assert Predictor(wrong, load("ring:4")).time_us(1e6) == Predictor(ring, load("ring:4")).time_us(1e6)


def test_transfers_state_places_of_steps() -> None:
    program = RIGHT["ring_allreduce"]
    moves = Predictor(program, load("ring:4")).transfers(1e6)
    for i in range(len(moves)):
        rank, tb, at = moves.sender[i].tolist()
        assert program.gpus[rank].threadblocks[tb].send == moves.dst[i]
        assert program.gpus[rank].threadblocks[tb].steps[at].count == moves.count[i]
        rank, tb, at = moves.receiver[i].tolist()
        assert program.gpus[rank].threadblocks[tb].steps[at].op in ("r", "rcs", "rrc", "rrs", "rrcs")
        assert program.gpus[rank].threadblocks[tb].recv == moves.src[i]
        assert program.gpus[rank].threadblocks[tb].channel == moves.channel[i]


def test_concurrent_programs_of_several_protocols_take_the_same_time_in_any_order() -> None:
    topology = with_costs(load("dgx-h100"))
    ranks, positions, chunk_bytes = [0, 1, 2, 3], [np.array([0, 1]), np.array([2, 3])], [1e6, 1e6]

    def concurrent_us(*protocols: str) -> float:
        timed = [Predictor(ring_allgather(2, protocol), topology, [0, 1]) for protocol in protocols]
        return Predictor.concurrent_us(timed, positions, chunk_bytes, topology, ranks)

    assert concurrent_us("LL", "LL") != concurrent_us("Simple", "Simple")
    for protocols in (("LL", "Simple"), ("Simple", "LL")):
        assert concurrent_us(*protocols) == concurrent_us("LL", "LL")
