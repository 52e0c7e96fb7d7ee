"""Files for calls of other sizes: each block holds the call's, the fastest file is taken, and faults are found."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import synth
from emit.compiler.lower import goal_columns
from emit.library.checking.check import check_library
from emit.library.entry import INDEX, IndexEntry
from emit.library.index import load_index
from emit.library.library_file import states_goal
from emit.library.lowered import exact_scale
from emit.library.selection.call import LibraryCall
from emit.library.selection.selector import Selector
from emit.msccl.read import read_msccl
from runtime.bench import Settings, measure
from runtime.host.executor import HostExecutor
from synth.model.common_chunk import common_chunk
from synth.model.problem import make_problem
from synth.solvers.workers import Workers
from topologies.errors import InputError
from topologies.load import load

TALL = [[0, 1, 1], [4, 0, 1], [4, 1, 0]]  # Rank 0 receives more than any rank sends.
WIDE = [[0, 4, 4], [1, 0, 1], [1, 1, 0]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("padded")
    with Workers(()) as no_workers:
        for sizes in (TALL, WIDE):
            answer = synth.synthesize(
                "alltoallv", "full:3", sizes=sizes, budget=10, engine="skewed", target="msccl", workers=no_workers
            )
            answer.save(folder, "msccl")
    return folder


def call_of(blocks: object, element_bytes: int = 4, **fields: object) -> LibraryCall:
    sizes = np.array(blocks).ravel().tolist()
    return LibraryCall("alltoallv", 3, None, False, element_bytes=element_bytes, sizes=sizes)._replace(**fields)


def test_figures_hold_where_ranks_receive_more_than_they_send(library: Path) -> None:
    report = check_library(library, load_index(library))
    assert not report.wrong
    assert "time_us" not in report.unproved


@given(cells=st.integers(1, 4096), sent=st.integers(1, 4096))
def test_the_last_bits_of_a_scale_do_not_count(cells: int, sent: int) -> None:
    scale = cells / sent
    for other in (scale, math.nextafter(scale, 0), math.nextafter(scale, math.inf), scale * (1 + 1e-15)):
        assert exact_scale(other) == scale
    assert exact_scale(scale * (1 + 1e-6)) != scale


@settings(max_examples=60)
@given(blocks=st.lists(st.integers(0, 1 << 24), min_size=9, max_size=9), element_bytes=st.sampled_from([1, 2, 4]))
def test_each_block_holds_that_of_the_call(library: Path, blocks: list[int], element_bytes: int) -> None:
    table = np.array(blocks).reshape(3, 3) * element_bytes
    np.fill_diagonal(table, 0)
    choice = Selector(load_index(library)).choose_padded(call_of(table, element_bytes))
    assert choice is not None
    assert (choice.blocks >= table).all()
    assert not (choice.blocks % element_bytes).any()
    assert choice.entry.serves(choice.size_bytes, element_bytes)
    assert max(choice.blocks.sum(axis=0).max(), choice.blocks.sum(axis=1).max()) == choice.size_bytes
    # A byte less for each cell would be too little, except where elements must be whole.
    cells = choice.blocks // np.gcd.reduce(choice.blocks.ravel())
    unit = choice.entry.unit(element_bytes)
    smaller = (choice.size_bytes - unit) // max(cells.sum(axis=0).max(), cells.sum(axis=1).max()) * cells
    assert (smaller < table).any() or choice.size_bytes - unit < max(choice.entry.min_bytes, 1)


@pytest.mark.parametrize("own", [TALL, WIDE])
def test_a_call_of_its_own_proportions_has_no_padding_and_runs(library: Path, own: list[list[int]]) -> None:
    blocks = np.array(own) * 7 * (1 << 14)
    choice = Selector(load_index(library)).choose_padded(call_of(blocks))
    assert choice is not None
    assert np.array_equal(choice.blocks, blocks)
    assert choice.entry.sizes == tuple(np.array(own).ravel().tolist())
    program, goal = read_msccl(choice.entry.path), choice.entry.goal()
    executor = HostExecutor(program, goal)
    row = measure(program, goal, choice.size_bytes, executor, Settings(iterations=1, warmup=0))
    assert row.wrong == 0


def test_times_are_those_of_the_curve(library: Path) -> None:
    selector = Selector(load_index(library))
    for own in (TALL, WIDE):
        table = np.array(own)
        for exponent in (10, 20, 27):
            shown_bytes = 1 << exponent
            blocks = (table * shown_bytes) // int(max(table.sum(axis=0).max(), table.sum(axis=1).max()))
            choice = selector.choose_padded(call_of(blocks, 1))
            assert choice is not None
            [time_us] = [us for size, us, _ in choice.entry.curve if size == shown_bytes]
            assert choice.time_us == pytest.approx(time_us, rel=0.02)


def test_the_fastest_is_taken_and_calls_beyond_all_files_fall_back(library: Path, tmp_path: Path) -> None:
    entries = [entry.restated(max_bytes=1 << 20) for entry in load_index(library) if entry.min_bytes == 0]
    entries = [entry.restated(max_bytes=min(entry.max_bytes or 1 << 20, 1 << 20)) for entry in entries]
    selector = Selector(entries)
    small, large = np.array(TALL) * 1024, np.array(TALL) * (1 << 20)
    assert selector.choose_padded(call_of(small)) is not None
    assert selector.choose_padded(call_of(large)) is None
    assert selector.choose_padded(call_of(small, inplace=True)) is None
    assert selector.choose_padded(call_of(small, topology="ring:3")) is None
    assert selector.choose_padded(call_of(small, ranks=[0, 1, 2])) is not None
    assert selector.choose_padded(call_of(small, ranks=[1, 0, 2])) is None
    assert not any(tmp_path.iterdir())


def test_what_a_rank_sends_to_itself_is_ignored_and_rows_are_as_good_as_a_flat_list(library: Path) -> None:
    selector = Selector(load_index(library))
    blocks = np.array(TALL) * 4096
    expected = selector.choose_padded(call_of(blocks))
    assert expected is not None
    local = blocks + np.diag([1 << 30, 0, 5])
    for sizes in (local, local.tolist(), list(local), local.ravel().tolist(), local.ravel()):
        choice = selector.choose_padded(LibraryCall("alltoallv", 3, None, False, element_bytes=4, sizes=sizes))
        assert choice is not None
        assert (choice.entry, choice.size_bytes) == (expected.entry, expected.size_bytes)
    for sizes in (blocks, blocks.tolist()):  # The same rows ask `choose` for the proportions.
        entry = selector.choose(LibraryCall("alltoallv", 3, None, False, element_bytes=4, sizes=sizes), 8 << 20)
        assert entry is not None
        assert entry.sizes == tuple(np.array(TALL).ravel().tolist())


def test_a_choice_is_shown_in_one_line(library: Path) -> None:
    choice = Selector(load_index(library)).choose_padded(call_of(np.array(TALL) * 4096))
    assert choice is not None
    assert choice.entry.file in repr(choice)
    assert len(repr(choice)) < 300


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_a_goal_in_finer_cells_is_the_questions_and_one_of_other_proportions_is_not(library: Path, parts: int) -> None:
    uneven = np.array([[0.0, 7, 3], [4, 0, 5], [2, 6, 0]])
    problem, other = (make_problem(load("full:3"), "alltoallv", sizes=sizes) for sizes in (uneven, uneven.T))
    goal = goal_columns(common_chunk(problem.collective).finer(parts).cells)
    entry = load_index(library)[0]
    stated = type(entry).of(entry.row | {"chunks": 1, "goal": {"nranks": 3, **goal}}, library)
    assert states_goal(stated, problem)
    assert not states_goal(stated, other)
    goal["required"] = [column[1:] for column in goal["required"]]
    less = type(entry).of(entry.row | {"chunks": 1, "goal": {"nranks": 3, **goal}}, library)
    assert not states_goal(less, problem)


def test_a_goal_with_smaller_blocks_gives_larger_messages(library: Path) -> None:
    entries = [entry for entry in load_index(library) if entry.sizes == tuple(np.array(TALL).ravel().tolist())]
    blocks = np.array(TALL) * 4096
    whole = Selector(entries).choose_padded(call_of(blocks))
    assert whole is not None
    index = json.loads((library / INDEX).read_text())
    row = next(row for row in index["algorithms"] if row["file"] == whole.entry.file)
    required = row["goal"]["required"]
    lost = next(
        number
        for number, (rank, source) in enumerate(zip(required[0], required[3], strict=True))
        if (rank, source) == (0, 1)
    )
    row["goal"]["required"] = [[*column[:lost], *column[lost + 1 :]] for column in required]
    cut = type(whole.entry).of(row, library)
    choice = Selector([cut]).choose_padded(call_of(blocks))
    assert choice is None or ((choice.blocks >= blocks).all() and choice.size_bytes > whole.size_bytes)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"sizes": [1, 2]}, "one for each pair of the 3 ranks"),
        ({"sizes": [-1] * 9}, "one for each pair of the 3 ranks"),
        ({"sizes": [1 << 50] * 9}, "one for each pair of the 3 ranks"),
        ({"sizes": [1.5] * 9}, "sizes"),
        ({"collective": "allgatherv"}, "allgatherv: has no size for every pair of ranks"),
        ({"collective": "nothing"}, "nothing"),
        ({"element_bytes": 0}, "element_bytes 0"),
        ({"ranks": [0, 0, 1]}, "different ranks"),
    ],
)
def test_impossible_calls_are_refused(library: Path, fields: dict[str, object], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        Selector(load_index(library)).choose_padded(call_of(TALL, **fields))


def test_a_size_that_no_file_divides_has_a_file_for_its_neighbours(tmp_path: Path) -> None:
    with Workers(()) as no_workers:
        answer = synth.synthesize(
            "alltoallv",
            "full:3",
            sizes=TALL,
            size=8008,
            budget=10,
            engine="skewed",
            target="mscclpp",
            workers=no_workers,
        )  # Plans take multiples of 128 bytes.
    answer.save(tmp_path, "mscclpp")
    [entry] = [entry for entry in load_index(tmp_path) if not entry.inplace]
    assert (entry.min_bytes, entry.max_bytes, entry.divides) == (7936, 8064, 128)
    assert entry.min_bytes < 8008 < entry.max_bytes


def test_blocks_lie_side_by_side_and_arrive_in_the_order_in_which_they_left(library: Path) -> None:
    for entry in load_index(library):
        stated = entry.row["goal"]
        left = {
            (source, chunk): (rank, place) for rank, _, place, source, chunk in zip(*stated["initial"], strict=True)
        }
        required = zip(*stated["required"], strict=True)
        moved = [(rank, place, *left[source, chunk]) for rank, _, place, source, chunk in required]
        for rank in range(3):
            received = sorted((place, source, own) for goal, place, source, own in moved if goal == rank)
            sent = sorted((own, goal) for goal, _, source, own in moved if source == rank)
            assert [place for place, *_ in received] == list(range(len(received)))
            assert [own for own, _ in sent] == list(range(len(sent)))
            assert [goal for _, goal in sent] == sorted(goal for _, goal in sent)
            assert [cell[1:] for cell in received] == sorted(cell[1:] for cell in received)


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("sizes", [1, 1, 1], "sizes has 3 numbers; it must have 9, one for each pair of ranks"),
        ("curve", [[8, 1.0, 1.0], [8, 2.0, 1.0]], "of different bytes"),
    ],
)
def test_hostile_entries_are_refused_in_one_line(library: Path, field: str, value: object, fault: str) -> None:
    row = json.loads((library / INDEX).read_text())["algorithms"][0]
    with pytest.raises(InputError, match=fault):
        Selector([IndexEntry.of(row | {field: value}, library)]).choose_padded(call_of(np.array(TALL) * 4096))


def test_a_falling_curve_does_not_reach_below_its_last_point(library: Path) -> None:
    row = json.loads((library / INDEX).read_text())["algorithms"][0]
    entry = IndexEntry.of(row | {"curve": [[8, 9.0, 1.0], [16, 2.0, 1.0]]}, library)
    choice = Selector([entry]).choose_padded(call_of(np.array(TALL) * 4096))
    assert choice is None or choice.time_us == 2.0
