"""Tests of programs as execution plans: plans pass the check and random runs of them end right."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.check.program import check
from emit.compiler.lower import lower
from emit.goal import Goal, goal_for
from emit.mscclpp.format import check_plan, write_plan
from emit.mscclpp.plan import MAX_CHANNELS, MAX_OPS, plan_text
from emit.mscclpp.read import read_plan
from emit.program import Gpu, Program, Step, ThreadBlock
from synth.baselines import baseline
from synth.model.problem import make_problem
from tests.combinations import every_other
from tests.emit.small_programs import (
    RIGHT,
    allpairs_allreduce,
    alltoall,
    chain_broadcast,
    chain_reduce,
    direct_gather,
    direct_scatter,
    ring_allgather,
    ring_allreduce,
    ring_reducescatter,
    with_step,
    with_steps,
)
from tests.oracles.plan_offsets import overflowing
from tests.oracles.plan_results import ends_right
from topologies.errors import InputError
from topologies.load import load

PLAN_PROGRAMS = {name: p for name, p in RIGHT.items() if p.collective not in ("gather", "scatter")}
FORMS = [(True, None), (False, None), (True, "two"), (False, "two")]


def halves(n: int) -> list[int]:
    return [2 * rank // n for rank in range(n)]


@pytest.mark.parametrize(("name", "protocol"), every_other(list(PLAN_PROGRAMS), ["Simple", "LL", "LL128"]))
def test_every_form_passes_the_check(name: str, protocol: str) -> None:
    program = replace(PLAN_PROGRAMS[name], protocol=protocol)
    for inplace, two_nodes in FORMS:
        nodes = halves(program.nranks) if two_nodes else None
        text = write_plan(program, nodes=nodes, inplace=inplace)
        report = check_plan(text, root=program.root)
        assert (report.findings, report.notes, report.judged) == ((), (), True)
        plan = read_plan(text)
        assert plan.inplace is inplace
        assert plan.packets is (protocol == "LL")
        assert plan_text(plan) == text == write_plan(program, nodes=nodes, inplace=inplace)
        node_of_rank = nodes or [0] * program.nranks
        for rank, gpu in enumerate(plan.gpus):
            assert gpu.input_chunks > 0
            assert gpu.output_chunks > 0
            assert all(node_of_rank[peer] == node_of_rank[rank] for peer in gpu.peers["memory"])
            assert all(node_of_rank[peer] != node_of_rank[rank] for peer in gpu.peers["port"])
            assert all(len(block.ops) <= MAX_OPS for block in gpu.blocks)
            assert all(len(ids) <= MAX_CHANNELS for block in gpu.blocks for ids in block.channels.values())


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize("name", [n for n, p in PLAN_PROGRAMS.items() if p.collective not in ("broadcast", "reduce")])
def test_random_runs_of_plans_end_right(name: str, protocol: str) -> None:
    program = replace(PLAN_PROGRAMS[name], protocol=protocol)
    for seed, (inplace, cut) in enumerate(FORMS):
        nodes = halves(program.nranks) if cut else None
        assert ends_right(json.loads(write_plan(program, nodes=nodes, inplace=inplace)), seed)


@settings(max_examples=25)
@given(
    st.sampled_from([ring_allreduce, ring_allgather, allpairs_allreduce, alltoall, ring_reducescatter]),
    st.integers(2, 6),
    st.sampled_from(["Simple", "LL"]),
    st.booleans(),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
    st.integers(0, 1 << 20),
)
def test_any_ranks_on_any_nodes(
    make_program: Any, n: int, protocol: str, inplace: bool, nodes: list[int], seed: int
) -> None:
    program = replace(make_program(n), protocol=protocol)
    text = write_plan(program, nodes=nodes[:n], inplace=inplace)
    assert ends_right(json.loads(text), seed)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 12])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "alltoall"])
def test_lowered_schedules_as_plans(collective: str, n: int) -> None:
    algorithm = baseline(make_problem(load(f"ring:{n}" if n > 2 else "full:2"), collective))[0]
    forms = [("Simple", True), ("LL", False), ("Simple", False), ("LL", True)]
    for protocol, inplace in forms if n < 8 else forms[:2] if n == 8 else forms[collective == "allgather" :][:1]:
        program, goal = lower(algorithm, "lowered", protocol)
        plan = read_plan(write_plan(program, goal, inplace=inplace, nodes=halves(n)))
        assert (len(plan.gpus), plan.collective, plan.inplace) == (n, collective, inplace)


def test_a_pattern_without_a_name_of_its_own() -> None:
    algorithm = baseline(make_problem(load("ring:4"), "alltonext"))[0]
    program, goal = lower(algorithm, "lowered")
    assert goal is not None
    text = write_plan(program, goal, nodes=halves(4))
    assert check_plan(text, goal).judged
    assert not check_plan(text).judged
    # The check uses the goal, and requires that inputs stay.
    other_goal = Goal.from_arrays(4, ([0], ["i"], [0], [0], [0]), ([3], ["o"], [0], [0], [0]))
    assert "wrong result" in {f.kind for f in check_plan(text, other_goal).findings}


def test_last_puts_flush_their_ports() -> None:
    """Check that senders do not wait for confirmations, and that a put without its flush is found."""
    text = write_plan(alltoall(4), inplace=False, nodes=halves(4))
    blocks = [block for gpu in json.loads(text)["gpus"] for block in gpu["threadblocks"]]
    senders = [block["ops"] for block in blocks if any(op["name"] == "pwsf" for op in block["ops"])]
    assert len(senders) == 4 * 2  # Each rank sends to two ranks of the other node.
    assert all([op["name"] for op in ops].index("pwsf") == len(ops) - 1 for ops in senders)
    assert not any("still reads" in note for note in check_plan(text).notes)
    assert any("still reads" in note for note in check_plan(text.replace("pwsf", "pws")).notes)


def test_a_chain_of_sixteen_chunks_is_received_in_one_threadblock() -> None:
    """Check that a rank gets what fits into one threadblock on one channel: two channels would send at a time."""
    plan = read_plan(write_plan(replace(chain_broadcast(3, 0, 16), protocol="Simple"), nodes=[0, 1, 2]))
    waits = [sum(op.name == "wait" for op in block.ops) for block in plan.gpus[2].blocks]
    assert max(waits) >= 16
    assert check_plan(plan).ok


def test_long_threadblocks_are_split() -> None:
    """Check that the parts of a long threadblock are split only where they are full, or nearly."""
    program = ring_allreduce(16, 1, "Simple")
    longest = max(len(tb.steps) for gpu in program.gpus for tb in gpu.threadblocks)
    plan = read_plan(write_plan(program))
    assert longest * 3 > MAX_OPS  # A step needs a wait, a move, a signal and nops.
    for gpu, before in zip(plan.gpus, program.gpus, strict=True):
        assert len(gpu.blocks) > len(before.threadblocks)
        assert len(gpu.blocks) <= sum(len(block.ops) for block in gpu.blocks) / (MAX_OPS / 2)


@pytest.mark.parametrize("nodes", [None, halves(16)])
def test_parts_of_a_split_threadblock_share_its_channels(nodes: list[int] | None) -> None:
    """Check that messages of a threadblock stay in one order: with a channel for each part they would overtake."""
    program = ring_allreduce(16, 1, "Simple")
    connections = {(rank, tb.send, tb.channel) for rank, gpu in enumerate(program.gpus) for tb in gpu.threadblocks}
    plan = read_plan(write_plan(program, nodes=nodes))
    ends = sum(len(peers) for gpu in plan.gpus for peers in gpu.peers.values())
    assert ends == 2 * len(connections)


@pytest.mark.parametrize("name", ["sem_acquire", "sem_release", "nop"])
def test_parts_that_are_not_ordered_are_found(name: str) -> None:
    """Check that parts may share channels only because each waits for all threads of the one before."""
    plan = read_plan(write_plan(ring_allreduce(16, 1, "Simple")))
    part = next(block for block in plan.gpus[0].blocks if block.ops[0].name == "sem_acquire")
    released = next(block for block in plan.gpus[0].blocks if block.ops[-1].name == "sem_release")
    if name == "sem_release":  # The release comes before what it tells of.
        released.ops[:] = [released.ops[-1], *released.ops[:-1]]
    else:
        part.ops.remove(next(op for op in part.ops if op.name == name))
    assert not check_plan(plan).ok


def test_packets_need_no_signals_if_all_ranks_exchange() -> None:
    names = {
        op.name for gpu in read_plan(write_plan(ring_allreduce(4, 1, "LL"))).gpus for b in gpu.blocks for op in b.ops
    }
    assert names.isdisjoint({"signal", "wait", "put"})
    # The root of a broadcast receives nothing, so it could run two calls ahead and overwrite unread packets.
    plan = read_plan(write_plan(chain_broadcast(4, 0, 1)))
    assert "wait" in {op.name for b in plan.gpus[0].blocks for op in b.ops}


def test_sums_of_many_are_one_operation() -> None:
    """Check that all received chunks are summed by one operation, and packets without unpacking them."""
    for protocol, name in (("Simple", "re"), ("LL", "repkt")):
        plan = read_plan(write_plan(allpairs_allreduce(4, protocol=protocol)))
        for gpu in plan.gpus:
            sums = [op for block in gpu.blocks for op in block.ops if op.name in ("re", "repkt")]
            assert [(op.name, len(op.src)) for op in sums] == [(name, 4)]
            unpacked = [op for block in gpu.blocks for op in block.ops if op.name == "upkt"]
            assert len(unpacked) == (3 if protocol == "LL" else 0)  # The other ranks' results.


def test_packets_are_unpacked_for_a_second_use() -> None:
    """Check packets that rank 1 uses both for a sum and, after it, for sending the sum."""
    steps = {
        0: [Step("s", "i", 0, "s", 0, 1), Step("s", "i", 0, "s", 1, 1), Step("r", "i", 0, "o", 0, 1)],
        1: [
            Step("r", "i", 0, "s", 0, 1),
            Step("cpy", "i", 0, "o", 0, 1),
            Step("re", "s", 0, "o", 0, 1),
            Step("rrc", "s", 0, "s", 1, 1),
            Step("s", "o", 0, "o", 0, 1),
        ],
    }
    gpus = [Gpu(1, 1, 2, [ThreadBlock(1 - r, 1 - r, 0, steps[r])]) for r in range(2)]
    program = Program("x", "allreduce", "LL", 2, 1, False, True, gpus)
    assert check(program, target=None).ok
    text = write_plan(program)
    assert "upkt" in {op.name for block in read_plan(text).gpus[1].blocks for op in block.ops}
    assert ends_right(json.loads(text), 1)


@pytest.mark.parametrize("seed", range(3))
def test_right_random_programs_become_right_plans(seed: int) -> None:
    """Check that programs that pass their check become right plans, however they reuse their buffers."""
    rng = random.Random(seed)
    right_programs = 0
    for _ in range(50):
        program = _changed(PLAN_PROGRAMS[rng.choice(sorted(PLAN_PROGRAMS))], rng)
        if check(program, target=None, fifo_depth=1 << 20, split=False).ok:
            right_programs += 1
            program = replace(program, protocol=rng.choice(("Simple", "LL")))
            text = write_plan(program, nodes=[rng.randrange(2) for _ in program.gpus], inplace=rng.random() < 0.5)
            if program.collective not in ("broadcast", "reduce"):
                assert ends_right(json.loads(text), seed)
    assert right_programs >= 5


def _changed(program: Program, rng: random.Random) -> Program:
    """Apply up to three changes: exchange steps, drop dependencies, or move buffers and offsets."""
    program = replace(program, gpus=[replace(gpu, s_chunks=gpu.s_chunks + 2) for gpu in program.gpus])
    for _ in range(rng.randint(1, 3)):
        places = [(r, t, x) for r, t, x, _ in program.steps()]
        r, t, x = rng.choice(places)
        steps = list(program.gpus[r].threadblocks[t].steps)
        change_kind = rng.randrange(4)
        if change_kind == 0:
            second = rng.randrange(len(steps))
            steps[x], steps[second] = steps[second], steps[x]
            program = with_steps(program, r, t, steps)
        elif change_kind == 1:
            program = with_step(program, r, t, x, dep_tb=-1, dep_step=-1)
        else:
            side = "src" if change_kind == 2 else "dst"
            program = with_step(program, r, t, x, **{f"{side}_buf": "s", f"{side}_off": rng.randrange(2)})
    return program


def test_scratch_slots_are_reused() -> None:
    program = ring_allreduce(4, 1, "Simple")
    rounds = replace(program, gpus=[_repeated(gpu, 6) for gpu in program.gpus])
    chunks = [read_plan(write_plan(p)).gpus[0].scratch_chunks for p in (program, rounds)]
    received = sum(step.op.startswith("rr") for _, _, _, step in rounds.steps()) // 4
    assert 0 < chunks[0] <= chunks[1] < received


def _repeated(gpu: Gpu, times: int) -> Gpu:
    """Add rounds to an all-reduce that sum received chunks into scratch that no step reads."""
    block = gpu.threadblocks[0]
    further_steps: list[Step] = []
    for _ in range(times):
        further_steps += [Step("s", "i", 0, "i", 0, 1), Step("rrc", "i", 0, "s", 0, 1)]
    return replace(gpu, s_chunks=1, threadblocks=[replace(block, steps=[*block.steps, *further_steps])])


def test_a_message_to_a_busy_place_goes_through_scratch() -> None:
    """Check two sends into one cell, whose first content is used before the second arrives."""
    first = [Step("s", "i", 0, "o", 0, 1), Step("s", "i", 1, "o", 0, 1)]
    second = [Step("r", "i", 0, "o", 0, 1), Step("cpy", "o", 0, "o", 1, 1), Step("r", "i", 1, "o", 0, 1)]
    gpus = [Gpu(2, 2, 0, [ThreadBlock(1, -1, 0, first)]), Gpu(2, 2, 0, [ThreadBlock(-1, 0, 0, second)])]
    program = Program("twice", "custom", "Simple", 2, 2, False, True, gpus)
    goal = Goal.from_arrays(
        2,
        ([0, 0, 1, 1], ["i"] * 4, [0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 0, 1]),
        ([1, 1], ["o", "o"], [0, 1], [0, 0], [1, 0]),
    )
    assert check(program, goal, target=None).ok
    text = write_plan(program, goal)
    assert read_plan(text).gpus[1].scratch_chunks == 1
    faulty_plan = json.loads(text)
    for op in faulty_plan["gpus"][0]["threadblocks"][0]["ops"]:  # Put the second chunk directly to its place.
        for part in op.get("dst_buff", ()):
            part.update(buffer_id=0, index=0)
    assert "race" in {f.kind for f in check_plan(json.dumps(faulty_plan), goal).findings}


def test_a_program_for_both_kinds_of_call() -> None:
    """Check a program that serves both forms, since it copies its own block."""
    n = 3
    gpus = []
    for r in range(n):
        blocks = [ThreadBlock(-1, -1, 0, [Step("cpy", "i", 0, "o", r, 1)])]
        for p in range(n):
            if p != r:
                blocks.append(ThreadBlock(p, -1, 0, [Step("s", "i", 0, "o", r, 1)]))
                blocks.append(ThreadBlock(-1, p, 0, [Step("r", "i", 0, "o", p, 1)]))
        gpus.append(Gpu(1, n, 0, blocks))
    program = Program("both", "allgather", "Simple", n, n, True, True, gpus)
    for inplace in (False, True):
        text = write_plan(program, inplace=inplace)
        assert read_plan(text).inplace is inplace
        assert check_plan(text).ok
    assert read_plan(write_plan(program)).inplace


def test_sizes_and_limits_of_messages() -> None:
    plan = read_plan(write_plan(replace(alltoall(3), min_bytes=512, max_bytes=4096)))
    assert (plan.min_bytes, plan.max_bytes) == (512, 4096)
    for protocol in ("Simple", "LL"):
        plan = json.loads(write_plan(replace(alltoall(3), protocol=protocol)))
        most = plan["max_message_size"]
        assert overflowing(plan, most, 1 << 40) == []
        assert overflowing(plan | {"max_message_size": 1 << 36}, 2 * most, 1 << 40) != []
    huge = read_plan(write_plan(replace(alltoall(3), min_bytes=3 << 30, max_bytes=8 << 30)))
    assert (huge.min_bytes, huge.max_bytes) == ((1 << 31) - 1, (1 << 32) - 16)  # The first is read as an int.
    with pytest.raises(InputError, match="32 bits up to"):
        write_plan(replace(alltoall(3), min_bytes=5 << 30))


def test_ranks_without_input_or_output_get_equal_buffers() -> None:
    """Check a relay, whose buffers are like those of the other ranks although it uses none of them."""
    ends = [[Step("s", "i", 0, "s", 0, 1)], [Step("r", "i", 0, "o", 0, 1)]]
    over = [
        [Step("r", "i", 0, "s", 0, 1), Step("s", "s", 0, "o", 0, 1)],
        [Step("r", "i", 0, "s", 1, 1), Step("s", "s", 1, "o", 0, 1)],
    ]
    gpus = [
        Gpu(1, 1, 0, [ThreadBlock(1, -1, 0, ends[0]), ThreadBlock(-1, 1, 0, ends[1])]),
        Gpu(0, 0, 2, [ThreadBlock(2, 0, 0, over[0]), ThreadBlock(0, 2, 0, over[1])]),
        Gpu(1, 1, 0, [ThreadBlock(1, -1, 0, ends[0]), ThreadBlock(-1, 1, 0, ends[1])]),
    ]
    rows = {
        "initial": ([0, 2], ["i", "i"], [0, 0], [0, 2], [0, 0]),
        "required": ([0, 2], ["o", "o"], [0, 0], [2, 0], [0, 0]),
    }
    goal = Goal.from_arrays(3, rows["initial"], rows["required"])
    for protocol in ("Simple", "LL"):
        program = Program("x", "custom", protocol, 3, 1, False, True, gpus)
        text = write_plan(program, goal, nodes=[0, 0, 1])
        assert check_plan(text, goal).ok
        plan = json.loads(text)
        assert {(gpu["input_chunks"], gpu["output_chunks"]) for gpu in plan["gpus"]} == {(1, 1)}
        assert all(ends_right(plan, seed, goal=rows) for seed in range(3))


REFUSED = {
    "gather": (lambda: write_plan(direct_gather(3, 0)), "cannot do gather"),
    "scatter": (lambda: write_plan(direct_scatter(3, 0)), "cannot do scatter"),
    "maximum": (lambda: write_plan(replace(chain_reduce(3, 0), redop="max")), "always sums"),
    "nodes": (lambda: write_plan(alltoall(3), nodes=[0, 1]), "nodes of 2 ranks"),
    "wrong": (lambda: write_plan(with_step(alltoall(3), 0, 1, 0, src_off=0)), "wrong result"),
    "too small": (lambda: write_plan(replace(alltoall(3), max_bytes=40)), "takes 48 or more"),
    "no goal": (lambda: write_plan(replace(alltoall(3), collective="custom")), "no goal of its own"),
    "other form": (
        lambda: write_plan(alltoall(3), goal_for("alltoall", 3, 3, False), inplace=True),
        "it must be the same form",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_programs_that_no_plan_holds_are_refused(case: str) -> None:
    write, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as error:
        write()
    assert "\n" not in str(error.value)


def test_the_root_is_found() -> None:
    text = write_plan(chain_broadcast(4, 2))
    assert check_plan(text).root == 2
    assert not check_plan(text, root=1).ok
    assert not check_plan(text, root=0).ok


def test_many_random_orders_of_one_plan() -> None:
    plan = json.loads(write_plan(allpairs_allreduce(4, protocol="Simple"), nodes=[0, 0, 1, 1], inplace=False))
    rng = random.Random(7)
    assert all(ends_right(plan, rng.randrange(1 << 30)) for _ in range(20))
