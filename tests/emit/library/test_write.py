"""Tests of writing a library: files appear, stay and are removed, and never by halves."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.formats import verify_file
from emit.library.entry import INDEX, IndexEntry
from emit.library.index import load_index
from emit.library.programs import Programs
from emit.library.run_by import run_by
from emit.library.saving import write
from emit.library.saving.save import save, stem_of_problem, stems
from emit.library.saving.write import LibraryHeldError, existing_entries, writing
from emit.library.selection.call import LibraryCall
from emit.library.selection.lookup import choose
from emit.targets import TARGETS
from synth import synthesize
from synth.model.deadline import now
from synth.model.problem import make_problem
from synth.search.result import SearchResult
from synth.search.settings import TargetSettings
from tests.emit.library.made_indices import Row, asked_of, entry_row
from tests.hang import HANG_S
from topologies.errors import InputError
from topologies.load import load


def put(folder: Path, *rows: Row) -> list[Path]:
    """Add entries to a library, with every file that they name."""
    with writing(folder) as library:
        for row in rows:
            for name in (row["file"], row["schedule"], row["proof_file"]):
                if name is not None:
                    library.write(name, asked_of(row).encode())
        return library.commit([IndexEntry.of(row, folder) for row in rows])


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def row_of(number: int, name: str, *, schedule: bool = False, proof: bool = False) -> Row:
    """Return an entry of one of a few questions."""
    target = ("executor-nccl", "rccl")[number % 2]
    place = TARGETS[target]
    return entry_row(
        collective=("allgather", "allreduce", "alltoall")[number // 2 % 3],
        target=target,
        file=f"{place.folder}/{name}{place.suffix}",
        schedule=f"schedules/{name}.synth" if schedule or proof else None,
        proof_file=f"schedules/{name}.proof.json" if proof else None,
    )


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=6))
def test_a_library_holds_its_last_answers_and_no_more(
    tmp_path_factory: pytest.TempPathFactory, answers: list[tuple[int, str, bool, bool]]
) -> None:
    """Check that a library holds only each question's last answer and the files that its index names."""
    folder = tmp_path_factory.mktemp("library")
    last: dict[int, Row] = {}
    for time_us, (number, name, schedule, proof) in enumerate(answers):
        row = row_of(number, f"{name}{number // 2}", schedule=schedule, proof=proof) | {"time_us": time_us}
        assert put(folder, row)[-1] == folder / INDEX
        if row["schedule"] and not row["proof_file"]:  # The other executor's proof was for another schedule.
            for last_row in last.values():
                if last_row["schedule"] == row["schedule"]:
                    last_row["proof_file"] = None
        last[number] = row
        entries = load_index(folder)
        assert [{k: v for k, v in e.row.items() if k != "sha256"} for e in entries] == list(last.values())
        for entry in entries:
            for key, path in (("file", entry.file), ("schedule", entry.schedule), ("proof_file", entry.proof_file)):
                if path is not None:
                    assert entry.stated_digest(key) == hashlib.sha256((folder / path).read_bytes()).hexdigest()
        named = {name for e in entries for name in (e.file, e.schedule, e.proof_file) if name is not None}
        assert set(files(folder)) == {INDEX, *named}


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Keep a library locked as another process does."""
    folder.mkdir(exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def test_a_locked_library_is_refused_in_time_and_unchanged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the wait for another writer ends with an error that says so."""
    monkeypatch.setattr(logging.getLogger("synth.library"), "propagate", True)  # A command may have run before.
    put(tmp_path / "lib", row_of(0, "a"))
    before = files(tmp_path / "lib")
    soon = now() + 0.5
    wrong = r"lib: another process is writing to it; wait until it ends"
    with held(tmp_path / "lib"), pytest.raises(LibraryHeldError, match=wrong), writing(tmp_path / "lib", until=soon):
        pytest.fail("it is held")
    (line,) = set(caplog.messages)  # Each may be captured by two handlers.
    assert "lib: waiting up to 0." in line
    assert files(tmp_path / "lib") == before
    put(tmp_path / "lib", row_of(1, "b"))  # The refused entry has left no file.


@pytest.mark.parametrize("name", ["lib", "lib/", "lib/../lib", "."])
def test_an_answer_is_written_beside_a_locked_library(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("synth.library"), "propagate", True)  # A command may have run before.
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path / "lib" if name == "." else tmp_path)
    for number in (2, 3):
        with held(Path(name)), writing(name, until=now(), elsewhere=True) as library:
            library.write("msccl/a.xml", b"answer")
            placed = library.commit([IndexEntry.of(row_of(0, "a"), tmp_path)])
        assert placed == [library.folder / "msccl/a.xml", library.folder / INDEX]
        assert files(tmp_path / f"lib-{number}").keys() == {"msccl/a.xml", INDEX}
        (line,) = set(caplog.messages)  # Each may be captured by two handlers.
        caplog.clear()
        assert "is held by another process; the answer is written to" in line
        assert str(library.folder) in line
    assert files(tmp_path / "lib") == {}


def test_a_library_that_is_unlocked_in_time_is_written(tmp_path: Path) -> None:
    with held(tmp_path / "lib") as handle:
        threading.Timer(0.4, fcntl.flock, (handle, fcntl.LOCK_UN)).start()
        with writing(tmp_path / "lib", until=now() + HANG_S, elsewhere=True) as library:
            assert library.folder == tmp_path / "lib"


def test_a_short_deadline_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_stops_waiting", False)
    threading.Timer(0.3, write.stop_waiting).start()
    latest = now() + HANG_S
    with held(tmp_path / "lib"), writing(tmp_path / "lib", until=latest, elsewhere=True) as library:
        assert library.folder == tmp_path / "lib-2"
    assert now() < latest


def test_foreign_files_are_kept(tmp_path: Path) -> None:
    put(tmp_path, row_of(0, "a"))
    for name in ("mine.txt", "msccl/mine.xml"):
        (tmp_path / name).write_text("mine")
    put(tmp_path, row_of(0, "b"))
    assert set(files(tmp_path)) == {INDEX, "mine.txt", "msccl/mine.xml", "msccl/b.xml"}


def test_a_schedule_without_a_proof_removes_the_older_proof(tmp_path: Path) -> None:
    """Check that an older proof is removed, also from another executor's entry."""
    put(tmp_path, row_of(0, "a", proof=True))
    with writing(tmp_path) as library:
        library.write("schedules/a.synth", b"another")
        assert library.commit() == [tmp_path / "schedules/a.synth", tmp_path / INDEX]
    assert set(files(tmp_path)) == {INDEX, "msccl/a.xml", "schedules/a.synth"}
    assert load_index(tmp_path)[0].proof_file is None
    assert load_index(tmp_path)[0].schedule == "schedules/a.synth"


@pytest.mark.parametrize("at", range(4))
def test_the_index_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Check that the index is the old or the new one, with all its files, when any move fails."""
    put(tmp_path, row_of(0, "a", proof=True))
    before, moves, move = files(tmp_path), 0, os.replace

    def failing(source: Path, target: Path) -> None:
        nonlocal moves
        moves += 1
        if moves > at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        move(source, target)

    monkeypatch.setattr(os, "replace", failing)
    row = row_of(0, "b", proof=True)
    with pytest.raises(InputError, match=r"cannot be written .Input/output error"):
        put(tmp_path, row)
    after = files(tmp_path)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {row[key] for key in ("file", "schedule", "proof_file")[:at]}
    monkeypatch.undo()
    put(tmp_path, row)
    assert set(files(tmp_path)) == {INDEX, "msccl/b.xml", "schedules/b.synth", "schedules/b.proof.json"}


def test_a_killed_search_leaves_nothing(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), writing(tmp_path / "out") as library:
        library.write("msccl/a.xml", b"half")
        raise KeyboardInterrupt
    assert not (tmp_path / "out").exists()


def test_a_new_folder_is_removed_under_no_writer_that_waits(tmp_path: Path) -> None:
    for number in range(10):
        folder = tmp_path / f"new{number}" / "out"
        other_writer = threading.Thread(target=put, args=(folder, row_of(0, "a")))
        with suppress(KeyboardInterrupt), writing(folder):
            other_writer.start()
            other_writer.join(0.01 * number)
            raise KeyboardInterrupt
        other_writer.join()
        assert len(load_index(folder)) == 1


@pytest.mark.parametrize("moment", ["while it is made", "before it is opened"])
def test_a_folder_that_another_writer_removes_is_made_again(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the orders of two writers in which the other one removes the folder that it made for nothing."""
    folder, make, open_file = tmp_path / "out", os.mkdir, os.open
    moments = [moment]

    def remove_at(current: str) -> None:
        """Remove the folder as the other writer does, if it is the time for that and was not done yet."""
        if moments == [current]:
            moments.clear()
            folder.rmdir()

    def make_folder(path: Path, *mode: int) -> None:
        """Make a folder beside the other writer, which has made this one already."""
        if path == folder and moments and not folder.exists():
            make(folder)
        try:
            make(path, *mode)
        except FileExistsError:
            remove_at("while it is made")
            raise

    def open_folder(path: Path, *flags: int, **options: int) -> int:
        """Open a file beside the other writer."""
        if path == folder:
            remove_at("before it is opened")
        return open_file(path, *flags, **options)

    monkeypatch.setattr(os, "mkdir", make_folder)
    monkeypatch.setattr(os, "open", open_folder)
    put(folder, row_of(0, "a"))
    assert not moments
    assert len(load_index(folder)) == 1


def test_a_file_in_the_place_of_a_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match=r"out: cannot be written \(File exists\)"):
        put(tmp_path / "out", row_of(0, "a"))


def test_unreadable_entries_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="both serve"):
        put(tmp_path, row_of(0, "a"), row_of(0, "b"))
    with pytest.raises(InputError, match="printable"):
        put(tmp_path, row_of(0, "a") | {"topology": "a\nb"})
    assert list(tmp_path.iterdir()) == []


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    begin = threading.Barrier(4)
    rows = [row_of(number, f"file{number}") for number in range(4)]

    def write(row: Row) -> None:
        begin.wait()
        put(tmp_path, row)

    threads = [threading.Thread(target=write, args=(row,)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry.file for entry in load_index(tmp_path)} == {row["file"] for row in rows}


@pytest.mark.parametrize("text", ["", '{"mine": 1}', '{"format": "synth-index-1", "algorithms": []}'])
def test_a_foreign_index_is_unchanged(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    for attempt in (lambda: put(tmp_path, row_of(0, "a")), lambda: existing_entries(tmp_path)):
        with pytest.raises(InputError, match=r"index\.json: is damaged or not .*another folder") as error:
            attempt()
        assert len(str(error.value).splitlines()) == 1
    assert files(tmp_path) == {INDEX: text.encode()}


def test_every_executor_has_a_folder_of_its_own() -> None:
    assert len({place.folder for place in TARGETS.values()}) == len(TARGETS)


def search_result(topology_name: str = "ring:4") -> SearchResult:
    topology = replace(load("ring:4"), name=topology_name)
    return synthesize("allgather", topology, engine="route").result


@pytest.mark.parametrize(("group", "name"), [(range(3), "0.1.2"), (range(0, 15), "15ranks-"), (range(16), "all16")])
def test_names_of_many_ranks_are_short(group: Sequence[int], name: str) -> None:
    """Check that a line of a terminal holds a file's name, which tells orders of ranks apart."""
    problem, reversed_problem = (
        make_problem(load("torus:4x4"), "reducescatter", ranks) for ranks in (tuple(group), tuple(group)[::-1])
    )
    stem = stem_of_problem(problem)
    assert stem.startswith(f"reducescatter-torus-4x4-{name}")
    assert len(stem) <= len("reducescatter-torus-4x4-") + 16
    assert stem != stem_of_problem(reversed_problem)


def test_equal_file_names_are_made_distinct(tmp_path: Path) -> None:
    """Check two topologies whose names differ only in characters that no file name can hold."""
    first_result, second_result = (
        run_by(answer, Programs(answer.problem)) for answer in (search_result("a b"), search_result("a-b"))
    )
    assert stems(first_result) == stems(second_result)
    for result in (first_result, second_result, first_result, second_result):
        save(result, tmp_path, TargetSettings("executor-nccl"), proof=True)
    entries = load_index(tmp_path)
    assert {entry.topology for entry in entries} == {"a b", "a-b"}
    assert all(entry.path.is_file() for entry in entries)
    assert len(entries) == 2 * (len(first_result.ranges) + len(second_result.ranges))  # Two forms.


def test_a_library_for_several_executors(tmp_path: Path) -> None:
    answer = search_result()
    served = {target: run_by(answer, Programs(answer.problem, TargetSettings(target))) for target in TARGETS}
    for target in TARGETS:
        save(served[target], tmp_path, TargetSettings(target), proof=target == "rccl")
    entries = load_index(tmp_path)
    for target in TARGETS:
        folder = tmp_path / TARGETS[target].folder
        own = {entry.path for entry in entries if entry.target == target}
        assert own == set(folder.iterdir()) == {p for p in folder.iterdir() if p.suffix == TARGETS[target].suffix}
        assert len(own) == 2 * len(served[target].ranges)  # Two forms.
        for size in (0, 1 << 10, 1 << 20, 1 << 40):
            entry = choose(entries, LibraryCall("all_gather", 4, (0, 1, 2, 3), True, target=target), size)
            beyond = target == "mscclpp" and size == 1 << 40  # Offsets have 32 bits.
            assert (entry is None) == beyond
            if entry is None:
                continue
            if entry.path.suffix == ".xml":
                assert verify_file(entry.path).status == "right"
            assert (entry.proof_file is not None) == (target == "rccl")
    with pytest.raises(InputError, match="give target"):
        choose(entries, LibraryCall("all_gather", 4, (0, 1, 2, 3), True), 0)
