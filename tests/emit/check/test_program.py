from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from emit.check.program import check
from emit.goal import Goal
from emit.program import Gpu, Program, Step, ThreadBlock
from tests.emit.small_programs import (
    RIGHT,
    allpairs_allreduce,
    alltoall,
    chain_broadcast,
    doubling_allgather,
    ring_allgather,
    ring_allreduce,
    with_block,
    with_gpu,
    with_step,
    with_steps,
)
from topologies.errors import InputError

RING = ring_allgather(4)
SUM = ring_allreduce(4)
PAIRS = allpairs_allreduce(4)
ALL = alltoall(4)


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_have_no_findings(name: str) -> None:
    report = check(RIGHT[name])
    assert report.findings == ()
    assert report.judged


def _swap_steps(program: Program, rank: int, tb: int, a: int, b: int) -> Program:
    steps = list(program.gpus[rank].threadblocks[tb].steps)
    steps[a], steps[b] = steps[b], steps[a]
    return with_steps(program, rank, tb, steps)


def _early_send() -> Program:
    """Return a ring all-reduce in which rank 0 sends its reduced block before it has received a summand."""
    p = _swap_steps(PAIRS, 0, 1, 1, 2)
    steps = [*p.gpus[0].threadblocks[0].steps]
    at = next(x for x, s in enumerate(steps) if s.dep_tb == 1)
    return with_step(p, 0, 0, at, dep_step=2)


def _drop_step(program: Program, rank: int, tb: int, at: int) -> Program:
    steps = list(program.gpus[rank].threadblocks[tb].steps)
    del steps[at]
    return with_steps(program, rank, tb, steps)


def _changed(program: Program, rank: int, tb: int, **changes: int) -> Program:
    return with_block(program, rank, tb, replace(program.gpus[rank].threadblocks[tb], **changes))


def _crossed() -> Program:
    """Return a program of two ranks that both receive before they send."""
    gpus = [
        Gpu(0, 2, 0, [ThreadBlock(1 - r, 1 - r, 0, [Step("r", "o", 0, "o", 1 - r, 1), Step("s", "o", r, "o", r, 1)])])
        for r in range(2)
    ]
    return Program("crossed", "allgather", "LL", 2, 2, True, False, gpus)


def _wait_circle() -> Program:
    """Return a program in which two threadblocks of rank 0 wait for each other."""
    p = with_step(ALL, 0, 0, 0, dep_tb=1, dep_step=0, has_dep=True)
    return with_step(p, 0, 1, 0, dep_tb=0, dep_step=0, has_dep=True)


def _second_sender() -> Program:
    gpu = ALL.gpus[0]
    extra = ThreadBlock(1, -1, 0, [Step("s", "i", 1, "o", 0, 1)])
    return with_gpu(ALL, 0, replace(gpu, threadblocks=[*gpu.threadblocks, extra]))


def _long_block(steps: int) -> Program:
    return with_steps(ALL, 0, 0, [Step("cpy", "i", 0, "o", 0, 1)] * steps)


FAULTS: dict[str, tuple[Callable[[], Program], str]] = {
    "sent the wrong chunk": (lambda: with_step(ALL, 0, 1, 0, src_off=0), "wrong result"),
    "received to the wrong place": (lambda: with_step(ALL, 2, 2, 0, dst_off=3), "race"),
    "own block not copied": (lambda: with_step(ALL, 3, 0, 0, src_off=0), "wrong result"),
    "input overwritten": (lambda: with_step(ALL, 3, 0, 0, dst_buf="i", dst_off=1), "race"),
    "reduced twice": (
        lambda: with_steps(PAIRS, 1, 0, [
            *PAIRS.gpus[1].threadblocks[0].steps[:-2],
            Step("re", "s", 2, "i", 1, 1), Step("re", "s", 2, "i", 1, 1, has_dep=True)]),
        "wrong result",
    ),
    "one slot reduced for another": (lambda: with_step(PAIRS, 1, 0, 3, src_off=0), "wrong result"),
    "not reduced but copied": (lambda: with_step(SUM, 2, 0, 1, op="rcs"), "wrong result"),
    "reduced where it should be copied": (lambda: with_step(SUM, 2, 0, 4, op="rrcs"), "wrong result"),
    "not stored": (lambda: with_step(SUM, 1, 0, 3, op="rrs"), "wrong result"),
    "read before written": (lambda: with_step(RING, 1, 0, 0, src_off=3), "read before write"),
    "scratch read before written": (
        lambda: with_gpu(ALL, 0, replace(ALL.gpus[0], s_chunks=1, threadblocks=[
            ThreadBlock(-1, -1, 0, [Step("cpy", "s", 0, "o", 0, 1)]), *ALL.gpus[0].threadblocks[1:]])),
        "read before write",
    ),
    "source beyond the buffer": (lambda: with_step(RING, 1, 0, 0, src_off=4), "overrun"),
    "destination beyond the buffer": (lambda: with_step(RING, 1, 0, 3, dst_off=7), "overrun"),
    "negative offset": (lambda: with_step(RING, 1, 0, 0, src_off=-1), "overrun"),
    "count beyond the buffer": (lambda: with_step(ALL, 0, 0, 0, count=5), "overrun"),
    "scratch too small": (lambda: with_gpu(PAIRS, 2, replace(PAIRS.gpus[2], s_chunks=2)), "overrun"),
    "send dropped": (lambda: _drop_step(PAIRS, 0, 1, 2), "unpaired"),
    "receive dropped": (lambda: _drop_step(RING, 2, 0, 3), "unpaired"),
    "peer of the send changed": (lambda: _changed(ALL, 0, 1, send=2), "unpaired"),
    "channel changed at one end": (lambda: _changed(ALL, 0, 1, channel=1), "unpaired"),
    "send without a peer": (lambda: with_step(ALL, 0, 0, 0, op="s"), "unpaired"),
    "itself as peer": (lambda: _changed(ALL, 0, 0, send=0), "unpaired"),
    "declared but not met": (lambda: _changed(ALL, 0, 0, recv=2, channel=1), "unpaired"),
    "peer out of range": (lambda: _changed(ALL, 0, 1, send=9), "unpaired"),
    "counts of the ends differ": (lambda: with_step(alltoall(4, 2), 0, 1, 0, count=1), "unequal counts"),
    "duplicate sender": (_second_sender, "duplicate connection"),
    "waits for no such tb": (lambda: with_step(ALL, 0, 0, 0, dep_tb=9, dep_step=0), "dangling dependency"),
    "waits for no such step": (lambda: with_step(ALL, 0, 0, 0, dep_tb=1, dep_step=1), "dangling dependency"),
    "waits for a silent step": (lambda: with_step(PAIRS, 0, 1, 1, has_dep=False), "dangling dependency"),
    "half a dependency": (lambda: with_step(ALL, 0, 0, 0, dep_tb=1), "dangling dependency"),
    "dependency dropped before send": (lambda: with_step(PAIRS, 0, 2, 2, dep_tb=-1, dep_step=-1), "race"),
    "dependency on too early a step": (
        lambda: with_step(with_step(PAIRS, 0, 0, 2, has_dep=True), 0, 2, 2, dep_step=2), "race"),
    "nop dropped": (lambda: with_steps(PAIRS, 3, 0, [
        PAIRS.gpus[3].threadblocks[0].steps[0], *PAIRS.gpus[3].threadblocks[0].steps[2:],
        Step("cpy", "s", 0, "s", 0, 1)]), "dangling dependency"),
    "copy onto its own shadow": (lambda: with_step(alltoall(4, 2), 0, 0, 0, src_buf="o", src_off=1), "race"),
    "both receive first": (_crossed, "deadlock"),
    "two wait for each other": (_wait_circle, "deadlock"),
    "waits for itself": (lambda: with_step(ALL, 0, 0, 0, dep_tb=0, dep_step=0, has_dep=True), "deadlock"),
    "sends what it has yet to wait for": (lambda: _early_send(), "deadlock"),
    "too many steps": (lambda: _long_block(65), "limit"),
    "offset too large": (lambda: with_step(ALL, 0, 1, 0, src_off=32768), "limit"),
    "too many channels": (lambda: _changed(ALL, 0, 0, channel=32), "limit"),
    "nop that moves": (lambda: with_step(PAIRS, 0, 0, 0, count=1), "inconsistent"),
    "copy of nothing": (lambda: with_step(ALL, 0, 0, 0, count=0), "inconsistent"),
    "nop that waits for nothing": (lambda: with_step(PAIRS, 0, 0, 0, dep_tb=-1, dep_step=-1), "inconsistent"),
    "nop before a step that waits for nothing": (
        lambda: with_step(PAIRS, 0, 0, 2, dep_tb=-1, dep_step=-1), "inconsistent"),
    "nop at the end": (lambda: with_steps(RING, 0, 0, [
        *RING.gpus[0].threadblocks[0].steps[:-1],
        replace(RING.gpus[0].threadblocks[0].steps[-1], has_dep=True),
        Step("nop", dep_tb=0, dep_step=3)]), "inconsistent"),
    "input of another size": (lambda: with_gpu(ALL, 0, replace(ALL.gpus[0], i_chunks=5)), "inconsistent"),
    "output of no use": (lambda: with_gpu(PAIRS, 0, replace(PAIRS.gpus[0], o_chunks=5)), "inconsistent"),
    "chunks that cannot be cut": (lambda: replace(RING, nchunks_per_loop=5), "inconsistent"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_reported(name: str) -> None:
    make, kind = FAULTS[name]
    report = check(make())
    assert kind in {f.kind for f in report.findings}
    for finding in report.findings:
        assert "\n" not in finding.message
    with pytest.raises(InputError, match="does not pass its check"):
        report.raise_if_wrong()


def test_wrong_result_states_place_content_and_expectation() -> None:
    faulty_program = with_steps(PAIRS, 1, 0, [
        *PAIRS.gpus[1].threadblocks[0].steps[:-1],
        replace(PAIRS.gpus[1].threadblocks[0].steps[-1], src_off=1),
    ])  # fmt: skip
    report = check(faulty_program)
    assert report.status == "wrong"
    messages = [f.message for f in report.findings if f.kind == "wrong result"]
    assert messages[0] == (
        "rank 0 tb 1 step 3: i[1] is left with contributions of ranks 0,1,2,2 to chunk 1; "
        "should hold contributions of ranks 0,1,2,3 to chunk 1 once each"
    )
    assert [(f.rank, f.cell) for f in report.findings if f.kind == "wrong result"] == [(r, ("i", 1)) for r in range(4)]


def test_deadlock_shows_its_cycle() -> None:
    report = check(RING, fifo_depth=1)
    assert report.status == "deadlock"
    (finding,) = report.findings
    assert finding.cycle == tuple((r, 0, 1) for r in range(4))
    assert "rank 3 tb 0 step 1 (rcs) waits for a free slot to rank 0 on channel 0" in finding.message


@pytest.mark.parametrize(("program", "least"), [(RING, 2), (SUM, 2), (PAIRS, 1), (ALL, 1)])
def test_least_fifo_depth(program: Program, least: int) -> None:
    for depth in range(1, 5):
        assert check(program, fifo_depth=depth).status == ("deadlock" if depth < least else "right")


def test_a_step_takes_a_slot_a_chunk_where_chunks_are_split() -> None:
    wide = doubling_allgather(8, "Simple")
    assert check(wide).status == "deadlock"
    unsplit_report = check(wide, split=False)
    assert unsplit_report.ok
    assert not unsplit_report.splits
    assert check(wide, fifo_depth=4).ok


def test_race_within_a_step_of_many_chunks_is_reported() -> None:
    """Check that an answer to chunk 0 races with the read of chunk 1, which it overwrites."""
    sender = [
        ThreadBlock(1, -1, 0, [Step("s", "i", 0, "i", 0, 2)]),
        ThreadBlock(-1, 1, 0, [Step("r", "i", 1, "i", 1, 2)]),
    ]
    answer = [ThreadBlock(0, 0, 0, [Step("rcs", "s", 0, "s", 0, 2)])]
    p = Program("x", "custom", "LL", 2, 3, True, False, [Gpu(3, 0, 0, sender), Gpu(3, 0, 2, answer)])
    report = check(p)
    assert [(f.kind, f.cell) for f in report.findings] == [("race", ("i", 1))]


def test_order_through_another_rank_is_not_a_race() -> None:
    """Check that an answer may overwrite chunks whose read it depends on through another rank."""
    sender = [
        ThreadBlock(1, -1, 0, [Step("s", "i", 0, "i", 0, 1)]),
        ThreadBlock(-1, 1, 0, [Step("r", "i", 0, "i", 0, 1)]),
    ]
    answer = [ThreadBlock(0, 0, 0, [Step("rrcs", "i", 0, "i", 0, 1)])]
    p = Program("x", "allreduce", "LL", 2, 1, True, False, [Gpu(1, 0, 0, sender), Gpu(1, 0, 0, answer)])
    assert check(p).ok


def test_both_forms_are_checked() -> None:
    p = chain_broadcast(3, 0)
    assert check(replace(p, inplace=True)).ok  # The copy onto itself changes nothing.
    both_forms = replace(ALL, inplace=True)
    report = check(both_forms)
    assert report.status == "wrong"
    assert all("in place: " in f.message and "out of place" not in f.message for f in report.findings)


def test_out_of_place_input_must_be_unchanged() -> None:
    steps = [*ALL.gpus[0].threadblocks[0].steps, Step("cpy", "o", 0, "i", 0, 1), Step("cpy", "i", 1, "i", 0, 1)]
    report = check(with_steps(ALL, 0, 0, steps))
    assert [f.cell for f in report.findings] == [("i", 0)]
    assert "the input must stay as it was" in report.findings[0].message


def test_custom_goal() -> None:
    """Check a custom goal with rank 0's chunk, which goes to rank 2 through rank 1."""
    gpus = [
        Gpu(1, 0, 0, [ThreadBlock(1, -1, 0, [Step("s", "i", 0, "s", 0, 1)])]),
        Gpu(0, 0, 1, [ThreadBlock(2, 0, 0, [Step("rcs", "s", 0, "s", 0, 1)])]),
        Gpu(0, 1, 0, [ThreadBlock(-1, 1, 0, [Step("r", "s", 0, "o", 0, 1)])]),
    ]
    p = Program("relay", "custom", "LL", 3, 1, False, True, gpus)
    right = Goal.from_arrays(3, ([0], ["i"], [0], [0], [0]), ([2], ["o"], [0], [0], [0]))
    assert check(p, right).ok
    wrong = Goal.from_arrays(3, ([0], ["i"], [0], [0], [0]), ([2, 2], ["o", "o"], [0, 0], [0, 1], [0, 0]))
    assert check(p, wrong).status == "wrong"
    unknown = check(p)
    assert unknown.ok
    assert not unknown.judged
    assert "no goal known" in unknown.notes[0]
    with pytest.raises(InputError, match="goal for 2 ranks"):
        check(p, Goal.from_arrays(2, ([0], ["i"], [0], [0], [0]), ([1], ["o"], [0], [0], [0])))


def test_contradictory_goals_are_refused() -> None:
    once = ([0], ["i"], [0], [0], [0])
    with pytest.raises(InputError, match="filled twice"):
        Goal.from_arrays(1, ([0, 0], ["i", "i"], [0, 0], [0, 0], [0, 1]), once)
    with pytest.raises(InputError, match="required twice"):
        Goal.from_arrays(1, once, ([0, 0], ["o", "o"], [0, 0], [0, 0], [0, 0]))
    with pytest.raises(InputError, match="unknown buffer"):
        Goal.from_arrays(1, once, ([0], ["x"], [0], [0], [0]))
    with pytest.raises(InputError, match="rank beyond 0"):
        Goal.from_arrays(1, once, ([1], ["o"], [0], [0], [0]))
    with pytest.raises(InputError, match="unequal length"):
        Goal.from_arrays(1, once, ([0], ["o"], [0, 1], [0], [0]))


def test_limits_by_target() -> None:
    assert check(_long_block(65), target="msccl").ok
    assert check(_long_block(65), target=None).ok
    assert [f.kind for f in check(RING, target="rccl").findings] == ["limit"] * 8
    with pytest.raises(InputError, match="target 'XX'"):
        check(RING, target="XX")
    chain = [Step("re", "s", 0, "i", 0, 1)] * 33  # One reader stops at 16.
    gpu = Gpu(1, 0, 1, [ThreadBlock(-1, -1, 0, [Step("cpy", "i", 0, "s", 0, 1), *chain])])
    p = Program("x", "custom", "LL", 1, 1, True, False, [gpu])
    assert ["consecutive re" in f.message for f in check(p).findings] == [True]


def test_many_findings_are_counted() -> None:
    p = alltoall(8)
    for rank in range(8):
        for tb in range(1, 15, 2):
            p = with_step(p, rank, tb, 0, src_off=rank)
    report = check(p)
    assert len(report.findings) == 20
    assert report.notes == ("36 more of kind 'wrong result'",)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="fifo_depth 0"):
        check(RING, fifo_depth=0)
    with pytest.raises(InputError, match="op of s, r"):
        check(with_step(RING, 0, 0, 0, op="send"))
    with pytest.raises(InputError, match=r"sensible size|at most"):
        check(with_step(RING, 0, 0, 0, count=1 << 80))
    with pytest.raises(InputError, match=r"moves .* chunks"):
        check(_many_moves(), target=None)
    for change in ({"protocol": "ll"}, {"collective": "x"}, {"nranks": 3}, {"root": 4}, {"max_bytes": -1}):
        with pytest.raises(InputError, match="must be"):
            replace(RING, **change)


def test_numbers_that_only_an_unsigned_integer_holds_are_refused() -> None:
    step = Step("cpy", "i", 0, "o", 0, 1, dep_tb=(1 << 64) - 1, dep_step=(1 << 64) - 1)
    program = Program("x", "custom", "LL", 1, 1, False, True, [Gpu(1, 1, 0, [ThreadBlock(-1, -1, 0, [step])])])
    with pytest.raises(InputError, match=rf"program dep_tb: {(1 << 64) - 1}; it must be at most"):
        check(program)


def _many_moves() -> Program:
    steps = [Step("cpy", "i", 0, "s", 0, 1 << 18)] * 5
    gpu = Gpu(1 << 18, 0, 1 << 18, [ThreadBlock(-1, -1, 0, steps)])
    return Program("x", "custom", "LL", 1, 1 << 18, True, False, [gpu])


def test_twenty_thousand_steps_are_checked() -> None:
    p = ring_allreduce(16, 40)
    assert p.nsteps > 19_000
    assert check(p, target=None).ok
