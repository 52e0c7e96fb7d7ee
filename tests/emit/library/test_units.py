"""Tests of programs whose steps move their data unit by unit, which plans say as pipelines."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emit.library.lowered import Lowered
from emit.library.programs import Programs
from emit.library.restored import restored_program
from emit.library.saving.save import file_of
from emit.library.units import cut_in_proportion, merged_routes
from emit.mscclpp import timing
from emit.mscclpp.as_program import program_of
from emit.mscclpp.format import check_plan
from emit.mscclpp.memory import memory_of
from emit.mscclpp.plan import MAX_OPS, op_count
from emit.mscclpp.read import read_plan
from emit.mscclpp.timing import PlanPredictor
from emit.targets import divisor
from synth.baselines import baseline
from synth.bounds.prove import prove
from synth.model.problem import Problem, make_problem
from synth.model.schedule import untimed
from synth.search.offer import Offer
from synth.search.result import SearchResult
from synth.search.settings import TargetSettings
from synth.verify.algorithm import Algorithm
from tests.oracles.plan_results import ends_right
from topologies.costed import with_costs
from topologies.load import load

Json = dict[str, Any]
SIZE = 64 << 20
RANKS = (0, 3, 5, 6, 7)


def along(problem: Problem, chunks: int, hops: list[tuple[int, int]], sums: int) -> Algorithm:
    """Return the algorithm that sends chunk after chunk over some hops, of which the first `sums` add to a sum."""
    whole = problem.with_chunks(chunks)
    link = {(int(a), int(b)): n for n, (a, b) in enumerate(zip(whole.network.src, whole.network.dst, strict=True))}
    rows = sorted((c + at, c, link[hop], at < sums) for c in range(chunks) for at, hop in enumerate(hops))
    step, chunk, links, reduces = np.array(rows).T
    return Algorithm(whole, untimed(chunk, links, step, reduces.astype(bool)), "chain")


def chain(problem: Problem, chunks: int) -> Algorithm:
    """Return the broadcast, reduction or all-reduce along the ranks of a group: sums first, then copies back."""
    last = len(RANKS) - 1
    down = [(r, r - 1) for r in range(last, 0, -1)] if problem.collective.reducing else []
    up = [(r, r + 1) for r in range(last)] if problem.collective.name != "reduce" else []
    return along(problem, chunks, down + up, len(down))


def question(collective: str) -> Problem:
    return make_problem(with_costs(load("dgx-a100")), collective, RANKS).under("Simple")


@cache
def _lowered(collective: str, chunks: int, inplace: bool) -> Lowered:
    """Return the program of a chain, which tests share."""
    problem = question(collective)
    programs = Programs(problem, TargetSettings("mscclpp"), size=SIZE, inplace=inplace)
    lowered = programs.lower(chain(problem, chunks))
    programs.complete(lowered)
    return lowered


def lowered_in_units(collective: str, chunks: int = 64, inplace: bool = True) -> tuple[Lowered, Json]:
    """Return the program of a chain, with its plan, which the test may change."""
    lowered = _lowered(collective, chunks, inplace)
    return lowered, json.loads(lowered.text)


def pipelines(plan: Json) -> Iterator[Json]:
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            yield from (op for op in block["ops"] if op["name"] == "pipeline")


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("collective", ["broadcast", "reduce", "allreduce"])
def test_chains_become_pipelines_that_end_right(collective: str, inplace: bool) -> None:
    """Check plans with the executor's own semantics, and with launches on an independent executor."""
    lowered, plan = lowered_in_units(collective, inplace=inplace)
    assert lowered.repetition.unit > 0
    assert list(pipelines(plan))
    assert plan["inplace"] == inplace
    assert check_plan(lowered.text).ok
    assert all(ends_right(plan, seed, last=seed % len(RANKS)) for seed in range(2))
    blocks = [block.ops for gpu in read_plan(lowered.text).gpus for block in gpu.blocks]
    assert max(op_count(ops) for ops in blocks) <= MAX_OPS


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_chain_is_as_fast_as_its_schedule_and_never_faster_than_possible(collective: str) -> None:
    """Check the time of a plan of few threadblocks, in which so many chunks one by one would not fit."""
    problem = question(collective)
    lowered, plan = lowered_in_units(collective, 128)
    schedule_us, bound_us = chain(problem, 128).time_us(SIZE), prove(problem, max_flow=False).at(SIZE)[0]
    assert bound_us <= lowered.time_us(SIZE) <= 1.05 * schedule_us
    assert max(len(gpu["threadblocks"]) for gpu in plan["gpus"]) < 32


def test_times_of_more_iterations_than_are_followed_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered, _ = lowered_in_units("broadcast")
    plan = read_plan(lowered.text)

    def time_us(followed: int, size: int) -> float:
        """Return the time of the plan at a size if about so many operations of all iterations are followed."""
        monkeypatch.setattr(timing, "_FOLLOWED_OPS", followed)
        return PlanPredictor(plan, with_costs(load("dgx-a100")), RANKS).time_us(size)

    bound = prove(question("broadcast"), max_flow=False)
    for size in (SIZE, 4 * SIZE, 64 * SIZE):
        assert time_us(10 * plan.nops, size) >= bound.at(size)[0]
    assert time_us(10 * plan.nops, SIZE) == pytest.approx(time_us(1000 * plan.nops, SIZE), rel=0.03)


def test_chunks_are_merged_only_where_many_go_the_same_way() -> None:
    problem = question("broadcast")
    merged = merged_routes(chain(problem, 64))
    assert merged is not None
    assert (merged.chunks, len(merged.schedule)) == (1, len(RANKS) - 1)
    assert merged_routes(chain(problem, 2)) is None
    for candidate in baseline(make_problem(load("dgx1"), "allgather")):
        assert merged_routes(candidate) is None  # Its buffers are several blocks.


def test_chunks_that_share_a_link_with_others_are_not_merged() -> None:
    """Check a chain of 48 chunks, the last 12 of which the root also sends to all."""
    algorithm = two_ways(lambda source, target: source == 0 < target)
    assert merged_routes(algorithm) is None


def test_merged_chunks_are_cut_in_proportion() -> None:
    """Check that chunks of 3 : 1 remain about that, in as many cells as are allowed."""
    merged = merged_routes(two_ways(lambda *pair: pair in ((0, 4), (4, 3), (3, 2), (2, 1))))
    assert merged is not None
    assert sorted(merged.problem.collective.fraction) == pytest.approx([0.25, 0.75])
    common = cut_in_proportion(merged, [8, 64, 128])
    assert sorted(common.count.tolist()) == [16, 48]
    assert common.cells.chunks == 64


def two_ways(second: Callable[[int, int], bool]) -> Algorithm:
    """Return a broadcast of 36 chunks along a chain, and of 12 over the links (source, target) that are `second`."""
    problem = question("broadcast")
    algorithm, net = chain(problem, 48), problem.network
    ends = list(zip(net.src.tolist(), net.dst.tolist(), strict=True))
    at = {pair: step for step, pair in enumerate(((0, 4), (4, 3), (3, 2), (2, 1)))}
    extra = [(at.get(pair, 0), c, n) for c in range(36, 48) for n, pair in enumerate(ends) if second(*pair)]
    schedule = algorithm.schedule.take(algorithm.schedule.chunk < 36)
    columns = (schedule.step, schedule.chunk, schedule.link)
    rows = sorted([*zip(*(column.tolist() for column in columns), strict=True), *extra])
    step, chunk, link = np.array(rows).T
    return Algorithm(algorithm.problem, untimed(chunk, link, step), "two ways")


def _without(name: str) -> Any:
    """Return a function that removes the first operation of a name from a pipeline."""

    def change(pipeline: Json) -> bool:
        at = next((n for n, op in enumerate(pipeline["ops"]) if op["name"] == name), None)
        if at is not None:
            del pipeline["ops"][at]
        return at is not None

    return change


def _longer(pipeline: Json) -> bool:
    """Let a pipeline run for one chunk more than its operations have."""
    pipeline["iter_context"]["num_chunks"] += 1
    return True


FAULTS = {
    "no wait": _without("wait"),
    "no signal": _without("signal"),
    "no nop": _without("nop"),
    "another number of iterations": _longer,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_in_pipelines_are_found(fault: str) -> None:
    _, plan = lowered_in_units("reduce")
    places = [n for n, _ in enumerate(pipelines(plan))]
    planted = 0
    for n in random.Random(fault).sample(places, min(8, len(places))):
        faulty = deepcopy(plan)
        if FAULTS[fault](list(pipelines(faulty))[n]):
            planted += 1
            assert not check_plan(json.dumps(faulty)).ok
    assert planted


def test_pipelines_of_other_lengths_have_other_numbers_of_iterations_in_a_check() -> None:
    """Check that pipelines which differ at some message size differ in the check, whose iterations are few."""
    lowered, plan = lowered_in_units("broadcast")
    chunks = [pipeline["iter_context"]["num_chunks"] for pipeline in pipelines(plan)]
    for n, pipeline in enumerate(list(pipelines(plan))[:3]):
        pipeline["iter_context"]["num_chunks"] = max(chunks) + 1 + n
    read = read_plan(json.dumps(plan))
    memory = memory_of(read, None)
    iterations = {(unit, count): -(-count * memory.units // cells) for (unit, count), cells in memory.iteration.items()}
    assert min(iterations.values()) >= 2
    assert max(Counter(iterations.values()).values()) == 1
    assert lowered.largest is not None


def test_a_plan_takes_no_message_of_more_iterations_than_the_executor_counts() -> None:
    _, plan = lowered_in_units("broadcast")
    for pipeline in pipelines(plan):
        pipeline["iter_context"]["unit_size"] = 16
    report = check_plan(json.dumps(plan))
    assert [f.kind for f in report.findings] == ["limit"]
    assert "iterations 16 bits" in report.findings[0].message


def test_a_program_says_its_units_when_it_is_written_again() -> None:
    """Check that the plan of the program itself, for messages of its size only, is the plan of its draft."""
    problem = question("reduce")
    programs = Programs(problem, TargetSettings("mscclpp"), size=SIZE)
    lowered = programs.lower(chain(problem, 64))
    again = read_plan(programs.text(replace(lowered.program, min_bytes=SIZE, max_bytes=SIZE), lowered.goal))
    programs.complete(lowered)
    plan = read_plan(lowered.text)
    assert [gpu.blocks for gpu in again.gpus] == [gpu.blocks for gpu in plan.gpus]
    assert lowered.largest == plan.max_bytes


def test_a_plan_that_its_pipelines_divide_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    """Check the chunks of its file, of which the program has more, and its time and sizes once it is restored."""
    problem = question("broadcast")
    programs, algorithm = Programs(problem, TargetSettings("mscclpp"), size=SIZE), chain(problem, 64)
    lowered = programs.lower(algorithm)
    result = SearchResult(problem, ranges=[Offer(algorithm, lowered, SIZE, SIZE, SIZE)], bound=prove(problem))
    file = file_of(result, result.ranges[0], "chain", programs)
    (tmp_path / "mscclpp").mkdir()
    (tmp_path / file.entry.file).write_text(file.text)
    entry = replace(file.entry, folder=tmp_path)
    program = program_of(read_plan(file.text))
    assert program.file_chunks < program.nchunks_per_loop
    assert divisor(program, programs.target) == entry.divides == lowered.divides
    restored = restored_program(entry, algorithm, programs)
    assert (restored.scale, restored.divides) == (lowered.scale, lowered.divides)
    assert restored.served(SIZE, SIZE) == lowered.served(SIZE, SIZE)
    assert restored.time_us(SIZE) == pytest.approx(lowered.time_us(SIZE))


def test_a_plan_beside_no_other_takes_its_own_time() -> None:
    """Check that process groups at the same time count the iterations that messages of their size have."""
    lowered, _ = lowered_in_units("broadcast")
    predictor, topology = lowered.predictor, with_costs(load("dgx-a100"))
    assert isinstance(predictor, PlanPredictor)
    places, chunk_bytes = np.arange(len(RANKS)), predictor.chunk_bytes(SIZE)
    together_us = PlanPredictor.concurrent_us([predictor], [places], [chunk_bytes], topology, RANKS)
    assert together_us == pytest.approx(lowered.time_us(SIZE), rel=0.1)
