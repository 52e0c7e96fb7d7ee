"""Programs of representatives: their images are right programs, as fast as the model says, on all ranks."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from emit.check.program import check
from emit.compiler import lower
from emit.compiler.cuts import wide_cut
from emit.compiler.instances import side_by_side
from emit.compiler.ir import instructions_of
from emit.compiler.lower import Lowering, forms, keeping_cells
from emit.images import Images, block_of_chunks, moves_together, whole_program
from emit.library.programs import Programs
from emit.msccl.format import write_msccl
from emit.program import Program
from emit.targets import USUAL_LIMITS, target_named
from emit.timing.predict import Predictor
from synth.baselines import baseline
from synth.model.common_chunk import cut_blocks
from synth.model.deadline import limited
from synth.model.problem import make_problem
from synth.search.settings import TargetSettings
from synth.symmetry.invariance import invariant_under
from synth.symmetry.quotient import quotient_problem
from synth.verify.algorithm import Algorithm
from tests.synth.symmetry.quotients import answer
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology

GROUPS = [((1, 8),), ((1, 2), (2, 4)), ((4, 3),), ((1, 4), (4, 3)), ((2, 2), (4, 3))]


@pytest.mark.parametrize("translations", GROUPS)
def test_images_form_a_group(translations: tuple[tuple[int, int], ...]) -> None:
    """Check inverses, products and the frame of a representative against the images of single ranks."""
    n = 24 if translations[-1] == (4, 3) else 8
    images = Images(translations, n)
    for element in range(images.order):
        moved = images.moved(element)
        assert sorted(moved.tolist()) == list(range(n))
        np.testing.assert_array_equal(images.moved(images.inverse(element))[moved], np.arange(n))
        product = images.composed(element)
        for other in range(images.order):
            np.testing.assert_array_equal(images.moved(int(product[other])), moved[images.moved(other)])
    for source in range(n):
        assert images.moved(int(images.element[source]))[images.representative[source]] == source
        for target in range(n):
            own_source, own_target = images.connection(source, target)
            back = images.moved(int(images.element[source]))
            assert (back[own_source], back[own_target]) == (source, target)
            assert images.connection(*images.reverse(source, target)) == images.connection(target, source)


CASES = [
    (spec, name)
    for spec, names in (
        ("full:8", ("allgather", "alltoall")),
        ("dgx-h100:2", ("reducescatter", "alltoall")),
        ("hypercube:3", ("reducescatter", "alltoall")),
        ("ring:8", ("allgather", "allreduce")),
        ("torus:4x3", ("reducescatter", "allreduce")),
    )
    for name in names
]


@pytest.fixture(autouse=True)
def images_of_few_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs of few ranks have translations, as those of many have."""
    monkeypatch.setattr(lower, "_IMAGES_FROM", 2)


@cache
def _programs(spec: str, name: str) -> list[tuple[Program, Topology]]:
    """Return programs with translations of algorithms that libraries would run, in both forms of calls."""
    problem = make_problem(load(spec), name)
    programs = []
    for algorithm in baseline(problem)[:4]:
        for inplace, limits in zip(forms(problem), (USUAL_LIMITS, target_named("rccl").limits), strict=False):
            lowering = Lowering(algorithm, name, limits, inplace=inplace, by_images=True)
            if lowering.translations:
                programs.append((lowering.program(min_bytes=1 << 20, max_bytes=1 << 20), problem.topology))
    return programs


@pytest.mark.parametrize(("spec", "name"), CASES)
def test_images_of_a_program_are_right(spec: str, name: str) -> None:
    """Check that the check of the representatives and the check of all ranks find nothing, and that times agree."""
    for program, topology in _programs(spec, name):
        assert sum(bool(gpu.threadblocks) for gpu in program.gpus) * 2 <= program.nranks
        whole = whole_program(program)
        assert not whole.translations
        assert whole.nsteps % program.nsteps == 0
        assert check(program, target=None).ok
        assert check(whole, target=None).ok
        assert Predictor(program, topology).time_us(1 << 20) <= 1.5 * Predictor(whole, topology).time_us(1 << 20)


def test_concurrent_programs_with_images_run_on_all_ranks() -> None:
    for program, topology in _programs("ring:8", "allgather"):
        whole = Predictor(whole_program(program), topology)
        ranks, chunk_bytes = np.arange(8), whole.chunk_bytes(1 << 20)
        predictor = Predictor(program, topology)
        concurrent_us = Predictor.concurrent_us([predictor], [ranks], [chunk_bytes], topology, ranks.tolist())
        assert concurrent_us == pytest.approx(whole.time_us(1 << 20))


def test_instances_of_a_program_are_right() -> None:
    """Check that the images of several instances are right programs: blocks of ranks stay blocks of ranks."""
    repeated = 0
    for spec, name in CASES:
        for program, _ in _programs(spec, name):
            instances = replace(instructions_of(program, None, False), instances=2, interleaved=None)
            with suppress(InputError):  # The limits may not hold so many.
                double = side_by_side(program, instances, USUAL_LIMITS)
                for candidate in (double, whole_program(double)):
                    report = check(candidate, target=None)
                    assert report.ok, (spec, name, report.findings[:1])
                repeated += 1
    assert repeated >= 9


def test_translatable_cases_have_images() -> None:
    """Check that most of the cases are cases."""
    assert sum(bool(_programs(spec, name)) for spec, name in CASES) >= 7


def _faulty(program: Program, rng: random.Random) -> Program:
    """Return a program with one changed step of a representative."""
    gpus = list(program.gpus)
    rank = rng.choice([rank for rank, gpu in enumerate(gpus) if any(tb.steps for tb in gpu.threadblocks)])
    blocks = list(gpus[rank].threadblocks)
    at = rng.choice([at for at, tb in enumerate(blocks) if tb.steps])
    steps = list(blocks[at].steps)
    n = rng.randrange(len(steps))
    fault = rng.choice(("drop", "swap", "wait", "src", "dst", "peer", "op"))
    if fault == "drop":
        del steps[n]
    elif fault == "swap" and len(steps) > 1:
        m = rng.randrange(len(steps))
        steps[n], steps[m] = steps[m], steps[n]
    elif fault == "wait":
        steps[n] = replace(steps[n], dep_tb=-1, dep_step=-1)
    elif fault == "src":
        steps[n] = replace(steps[n], src_off=max(0, steps[n].src_off + rng.choice((-1, 1))))
    elif fault == "dst":
        steps[n] = replace(steps[n], dst_off=max(0, steps[n].dst_off + rng.choice((-1, 1))))
    elif fault == "op" and steps[n].op in ("r", "rrc"):
        steps[n] = replace(steps[n], op={"r": "rrc", "rrc": "r"}[steps[n].op])
    block = replace(blocks[at], steps=steps)
    if fault == "peer":
        block = replace(block, recv=-1 if block.recv < 0 else (block.recv + 1) % program.nranks)
    blocks[at] = block
    gpus[rank] = replace(gpus[rank], threadblocks=blocks)
    return replace(program, gpus=gpus)


@pytest.mark.parametrize(("spec", "name"), CASES)
def test_checks_of_representatives_and_of_all_ranks_agree(spec: str, name: str) -> None:
    """Check that both checks find the same kinds of faults in programs with a planted fault."""
    rng, found = random.Random(f"{spec} {name}"), 0
    for program, _ in _programs(spec, name):
        for _ in range(6):
            faulty = _faulty(program, rng)
            try:
                whole = whole_program(faulty)
            except InputError:
                with pytest.raises(InputError):
                    check(faulty, target=None)
                continue
            reports = [check(candidate, target=None) for candidate in (faulty, whole)]
            kinds = [{finding.kind for finding in report.findings} for report in reports]
            # With a race, what else is found depends on the order of execution that the check follows.
            if not all("race" in found_kinds for found_kinds in kinds):
                assert kinds[0] == kinds[1], [f.message for report in reports for f in report.findings][:4]
            assert reports[0].splits == reports[1].splits
            found += not reports[0].ok
    assert found or not _programs(spec, name)


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize(("ranks", "cells", "kept"), [(6, 8, (3, 2)), (6, 16, (3, 2)), (8, 12, (2, 4)), (6, 7, None)])
def test_blocks_of_unlike_cells_have_images(
    ranks: int, cells: int, kept: tuple[int, int] | None, inplace: bool
) -> None:
    """Check programs whose ranks sum unlike numbers of cells, with faults, as rank by rank and as images."""
    problem = make_problem(load(f"full:{ranks}"), "allreduce")
    algorithm = next(a for a in baseline(problem) if invariant_under(a.problem, a.schedule) == ((1, ranks),))
    common = wide_cut(algorithm, [cells], 1)
    assert len(set(common.count.tolist())) == 2
    lowering = Lowering(algorithm, "allreduce", common=common, by_images=True, inplace=inplace)
    assert lowering.translations == (() if kept is None else (kept,))
    program = lowering.program(min_bytes=1 << 20, max_bytes=1 << 20)
    assert bool(program.translations) == (kept is not None)
    assert check(program, target=None).ok
    assert check(whole_program(program), target=None).ok
    rng = random.Random(f"{ranks} {cells}")
    refused = 0
    for _ in range(8):
        faulty = _faulty(program, rng)
        with suppress(InputError):
            reports = [check(candidate, target=None) for candidate in (faulty, whole_program(faulty))]
            assert reports[0].ok == reports[1].ok
            refused += not reports[0].ok
    assert refused


def test_groups_of_unlike_numbers_of_cells_have_no_images() -> None:
    """Check that translations which keep cells, but whose groups of ranks have unlike numbers of them, are left out."""
    problem = make_problem(load("full:4"), "allreduce", chunks=4)
    collective = problem.collective
    assert keeping_cells(problem, ((1, 2),), cut_blocks(collective, [1, 1, 2, 2]), in_equal_groups=True) == ()
    assert keeping_cells(problem, ((1, 2), (2, 2)), cut_blocks(collective, [1, 2, 1, 2]), in_equal_groups=True) == (
        (2, 2),
    )
    assert keeping_cells(problem, ((1, 2),), cut_blocks(collective, [2, 2, 2, 2]), in_equal_groups=True) == ((1, 2),)


def test_spans_that_images_tear_apart_are_refused() -> None:
    """Check that a step over blocks of two ranks has no image, if translations move each block by itself."""
    assert block_of_chunks(((1, 8),), 8, 16) == 2
    assert block_of_chunks(((4, 2),), 8, 16) == 8
    assert block_of_chunks(((1, 8),), 8, 17) == 0  # Chunks that are no whole blocks keep their order.
    assert moves_together(2, 2, 2)
    assert not moves_together(2, 2, 3)
    assert moves_together(8, 0, 8)
    assert not moves_together(8, 6, 4)
    assert moves_together(0, 6, 4)
    program, _ = next((p, t) for p, t in _programs("full:8", "allgather") if p.translations[0][0] == 1)
    gpu = program.gpus[0]
    block = gpu.threadblocks[0]
    wide = [replace(step, count=3) for step in block.steps]
    gpus = [replace(gpu, threadblocks=[replace(block, steps=wide), *gpu.threadblocks[1:]]), *program.gpus[1:]]
    with pytest.raises(InputError, match="no image"):
        whole_program(replace(program, gpus=gpus))


@pytest.mark.parametrize(
    ("spec", "name"), [("torus:4x4", "allgather"), ("torus:4x4", "allreduce"), ("full:16", "alltoall")]
)
def test_schedules_of_quotients_are_lowered(spec: str, name: str) -> None:
    """Check that the schedule of a quotient problem becomes a right program of representatives and of all ranks."""
    quotient = quotient_problem(load(spec), name)
    assert quotient is not None
    algorithm = Algorithm(quotient, answer(quotient), "flow")
    with pytest.raises(InputError, match="all 16 ranks would be too large"):
        Lowering(algorithm, name)
    for inplace in forms(quotient):
        program = Lowering(algorithm, name, inplace=inplace, by_images=True).program(min_bytes=1 << 20)
        assert program.translations
        whole = whole_program(program)
        assert check(program).ok
        assert check(whole).ok
        if not (inplace and name == "alltoall"):  # Executors of MSCCL XML have no such form.
            assert write_msccl(program) == write_msccl(whole)


def test_deadlines_that_depend_on_the_work_can_be_looked_at_while_it_is_estimated() -> None:
    """Check that the estimate of an algorithm's work may be asked for while it is computed."""
    problem = make_problem(load("full:16"), "allgather")
    algorithm = next(algorithm for algorithm in baseline(problem) if algorithm.engine == "direct")
    programs = Programs(problem, TargetSettings("mscclpp"))
    seen: list[int] = []

    def deadline_s() -> float:
        """Return a deadline that depends on the estimate."""
        seen.append(programs.sends(algorithm))
        return math.inf

    sends = limited(deadline_s, lambda: programs.sends(algorithm))
    assert 0 < sends < len(algorithm.schedule)
    assert seen
