"""Plans whose chunks are unlike in their files: the files are right for all ranks, and are read as they were made."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emit.check.capacity import CAPACITY
from emit.compiler import lower
from emit.images import BufferImages, images_of, odd_part, unlike_widths
from emit.library.lowered import Lowered
from emit.library.programs import Programs
from emit.mscclpp import read
from emit.mscclpp.format import check_plan
from emit.mscclpp.images import whole_plan
from emit.mscclpp.plan import ExecutionPlan, Op
from emit.mscclpp.read import possible_widths, read_plan, shared_plan
from emit.mscclpp.timing import PlanPredictor
from emit.mscclpp.widths import Places, places_of
from synth.baselines import baseline
from synth.model.problem import make_problem
from synth.search.settings import TargetSettings
from tests.emit.mscclpp.plan_faults import with_changed_op
from topologies.costed import with_costs
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology

# Machines, ranks of each node, protocols and sizes of interest.
CASES = [("dgx-a100:3", 4, "LL", 1 << 16), ("dgx-a100:3", 2, "Simple", 1 << 18), ("dgx-h100:5", 2, "LL", None)]


@pytest.fixture(autouse=True)
def images_of_few_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs and plans of few ranks have translations, as those of many have."""
    monkeypatch.setattr(lower, "_IMAGES_FROM", 2)
    monkeypatch.setattr(read, "_LARGE", 0)


def _group(topology: Topology, each: int) -> list[int]:
    """Return the first so many ranks of each node of eight."""
    return [rank for rank in range(topology.nranks) if rank % 8 < each]


@cache
def _lowered(spec: str, each: int, protocol: str, size: int | None) -> list[Lowered]:
    """Return the written programs with unlike chunks of all-reduces that libraries would run."""
    topology = with_costs(load(spec))
    problem = make_problem(topology, "allreduce", _group(topology, each)).under(protocol)
    programs = Programs(problem, TargetSettings("mscclpp"), size=size)
    written = []
    for algorithm in {algorithm.engine: algorithm for algorithm in baseline(problem)}.values():
        lowered = programs.lower(algorithm)
        assert isinstance(lowered, Lowered)
        if lowered.program.widths:
            programs.complete(lowered)
            written.append(lowered)
    return written


def _plans(spec: str, each: int, protocol: str, size: int | None) -> list[ExecutionPlan]:
    """Return the plans of `_lowered`."""
    return [shared_plan(lowered.text) for lowered in _lowered(spec, each, protocol, size)]


@pytest.mark.parametrize(("spec", "each", "protocol", "size"), CASES)
def test_files_are_right_for_all_ranks_and_serve_powers_of_two(
    spec: str, each: int, protocol: str, size: int | None
) -> None:
    """Check the files by the check of all ranks, which knows nothing of images, and the sizes that they serve."""
    assert len(_lowered(spec, each, protocol, size)) >= 2
    for lowered in _lowered(spec, each, protocol, size):
        plan = read_plan(lowered.text)
        assert all(gpu.blocks for gpu in plan.gpus)
        report = check_plan(plan)
        assert report.ok
        assert report.judged
        assert (size or 1 << 30) % lowered.divides == 0
        assert lowered.divides == plan.alignment * plan.gpus[0].input_chunks
        assert lowered.serves(size or 1 << 20)


@pytest.mark.parametrize(("spec", "each", "protocol", "size"), CASES)
def test_a_file_is_read_as_the_plan_that_was_written(
    spec: str, each: int, protocol: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a reader who knows only the text finds the representatives and the widths, and the same time."""
    for lowered in _lowered(spec, each, protocol, size):
        written = shared_plan(lowered.text)
        with monkeypatch.context() as patch:
            patch.setattr(read, "_written", {})
            patch.setattr(read, "_recent", {})
            plan = shared_plan(lowered.text)
        assert plan.widths == written.widths
        assert plan.translations == written.translations
        assert whole_plan(plan) == read_plan(lowered.text)
        topology = with_costs(load(spec))
        group = _group(topology, each)
        times_us = [PlanPredictor(candidate, topology, group).time_us(1 << 24) for candidate in (plan, written)]
        assert times_us[0] == times_us[1]
        assert times_us[0] == pytest.approx(PlanPredictor(whole_plan(plan), topology, group).time_us(1 << 24), rel=0.25)


@pytest.mark.parametrize(("spec", "each", "protocol", "size"), CASES[:2])
def test_faults_are_found_with_representatives_and_with_all_ranks(
    spec: str, each: int, protocol: str, size: int | None
) -> None:
    """Check that both checks agree about plans with a planted fault, unless the fault leaves chunks without a place."""
    rng, nfound, nwithout_place = random.Random(f"{spec} {protocol}"), 0, 0
    for plan in _plans(spec, each, protocol, size):
        for _ in range(4):
            faulty = with_changed_op(plan, rng)
            report = check_plan(faulty)
            try:
                whole = whole_plan(faulty)
            except (InputError, IndexError):
                nwithout_place += 1
                continue
            assert check_plan(whole).ok == report.ok, [finding.message for finding in report.findings][:3]
            nfound += not report.ok
    assert nfound + nwithout_place


def test_scratch_with_data_of_blocks_that_are_unlike_is_refused() -> None:
    """Check a plan in which a message of another block arrives in scratch that holds a block's data already."""
    plan = next(plan for plan in _plans(*CASES[1]) if any(gpu.scratch_chunks for gpu in plan.gpus))
    places_of(plan)
    rank, gpu = next((rank, gpu) for rank, gpu in enumerate(plan.gpus) if gpu.blocks)
    block = next(block for block in gpu.blocks if any(_local_copies(block.ops)))
    at = next(n for n, op in enumerate(block.ops) if any(_local_copies([op])))
    op = block.ops[at]
    chunks, nblocks = plan.gpus[0].input_chunks, len(plan.widths)
    moved = [
        part._replace(first=(part.first + chunks // nblocks) % chunks) if part.at in ("i", "o") else part
        for part in op.dst
    ]
    other = replace(gpu, blocks=[replace(block, ops=[*block.ops, op._replace(dst=moved)])])
    gpus = [*plan.gpus]
    gpus[rank] = replace(other, blocks=[*gpu.blocks, *other.blocks])
    with pytest.raises(InputError, match="scratch with data of blocks"):
        places_of(replace(plan, gpus=gpus))


def _local_copies(ops: Sequence[Op]) -> list[Op]:
    """Return the operations that bring data from a rank's own scratch to its own buffers."""
    return [
        op
        for op in ops
        if op.dst
        and all(part.side == "L" and part.at in ("i", "o") for part in op.dst)
        and any(part.side == "L" and part.at == "s" for part in op.src)
    ]


@given(st.integers(1, 200), st.integers(0, 6))
def test_widths_add_up_and_differ_by_at_most_one(nblocks: int, doublings: int) -> None:
    """Check the widths of any number of blocks: a power of two of each block of a run, and the runs are equal."""
    runs = odd_part(nblocks)
    total = 1 << (runs - 1).bit_length() + doublings
    widths = unlike_widths(nblocks, total)
    assert len(widths) == nblocks
    assert sum(widths) * runs == total * nblocks
    assert min(widths) >= 1
    assert max(widths) - min(widths) <= 1


@given(st.data())
def test_places_in_the_file_are_apart_and_lead_back(data: st.DataObject) -> None:
    """Check that spans of the plan have places that do not overlap, and that each place is that of one span."""
    nnodes, chunks = data.draw(st.sampled_from([3, 5, 6, 7])), data.draw(st.integers(1, 4))
    images = images_of(((2, nnodes),), 2 * nnodes)
    widths = unlike_widths(nnodes, 8 * data.draw(st.sampled_from([1, 2, 4])))
    blocks = st.integers(-1, nnodes - 1)
    plain = np.array(data.draw(st.lists(blocks, min_size=1, max_size=6)))
    packets = np.array([-1] * len(plain) + data.draw(st.lists(blocks, min_size=1, max_size=6)))
    buffers = BufferImages(images, {"i": chunks, "o": chunks})
    scratch = {(rank, kind): held for rank in (0, 1) for kind, held in (("s", plain), ("p", packets))}
    places = Places(buffers, widths, scratch)
    rank = data.draw(st.integers(0, 2 * nnodes - 1))
    lengths = {"i": chunks * nnodes, "s": len(plain), "p": len(packets)}
    for kind, length in lengths.items():
        first = data.draw(st.integers(0, length - 1))
        size = data.draw(st.integers(1, length - first if kind != "i" else chunks - first % chunks))
        at, in_file = places.span(rank, rank, kind, first, size)
        assert places.span_of_plan(rank, kind, at, in_file) == (buffers.place(rank, kind, first), size)
        singles = [places.span(rank, rank, kind, chunk, 1) for chunk in range(first, first + size)]
        assert sum(width for _, width in singles) == in_file
        assert all(begin + width == after for (begin, width), (after, _) in pairwise(singles))
    plain_ends = places.span(rank, rank, "s", len(plain) - 1, 1)
    first_packet = places.span(rank, rank, "p", len(plain), 1)
    assert sum(plain_ends) <= 2 * first_packet[0]


def test_packets_before_plain_chunks_of_scratch_have_no_places() -> None:
    """Check that packets must lie behind plain chunks, since both are counted apart."""
    buffers = BufferImages(images_of(((2, 3),), 6), {"i": 1, "o": 1})
    scratch = {(rank, "s"): np.array([-1, -1, 0, 1]) for rank in (0, 1)}
    Places(buffers, (1, 1, 2), scratch | {(rank, "p"): np.array([-1, -1, 0]) for rank in (0, 1)})
    with pytest.raises(InputError, match="packets before"):
        Places(buffers, (1, 1, 2), scratch | {(rank, "p"): np.array([-1, 2, 0]) for rank in (0, 1)})


def test_a_put_of_more_sources_than_destinations_is_found() -> None:
    """Check that a text with such an operation is read and judged, though it has no representatives."""
    document = json.loads(_lowered(*CASES[1])[0].text)
    ops = [op for gpu in document["gpus"] for block in gpu["threadblocks"] for op in block["ops"]]
    put = next(op for op in ops if op["name"] == "put")
    put["src_buff"] *= 2
    assert {finding.kind for finding in check_plan(json.dumps(document)).findings} == {"inconsistent"}


def test_many_ranks_with_many_chunks_are_not_looked_at_for_unlike_chunks() -> None:
    """Check plans for which no widths are tried: of another collective, and of more chunks than can be checked."""
    plan = _plans(*CASES[1])[0]
    plan = replace(whole_plan(plan), translations=plan.translations)
    assert list(possible_widths(plan, 3))
    assert not list(possible_widths(replace(plan, collective="alltoall"), 3))
    nrepresentatives = len(images_of(plan.translations, len(plan.gpus)).representatives)
    large = [replace(gpu, scratch_chunks=CAPACITY.plan_cells // nrepresentatives) for gpu in plan.gpus]
    assert not list(possible_widths(replace(plan, gpus=large), 3))
