"""Schedule files: a schedule is read back to the last bit, and equal schedules are written in equal bytes."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.baselines import baseline
from synth.engines.route import quick_schedule
from synth.model.collective import named, uneven
from synth.model.pattern import read_pattern
from synth.model.problem import make_problem
from synth.storage.columns import replace_all, write_columns
from synth.storage.schedule_file import load_schedule, save_schedule, write_schedule
from synth.symmetry.quotient import quotient_problem
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from tests.random_problems import NAMED, ROOTED, random_problem
from tests.synth.storage.stored_files import written
from tests.topologies.few_paths import fabrics, few_paths
from topologies.errors import InputError
from topologies.load import load
from topologies.text.writer import to_toml


@settings(max_examples=25, derandomize=True)
@given(st.integers(0, 2**32))
def test_a_written_schedule_is_read_back(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("files")
    written(folder, random_problem(rng, folder), rng.choice((1.0, 3e5, float(1 << 30))))


@pytest.mark.parametrize("name", NAMED)
def test_named_collectives_are_kept_by_name(tmp_path: Path, name: str) -> None:
    problem = make_problem(load("dgx1"), name, [4, 5, 6, 7], chunks=3, root=5 if name in ROOTED else None)
    stored = load_schedule(written(tmp_path, problem))
    assert stored.as_named
    with np.load(tmp_path / "a.synth") as file:
        assert sorted(file.files) == sorted(["header.json", "chunk", "link", "step", "reduces", "start_us"])


def test_all_other_collectives_are_stored_in_full(tmp_path: Path) -> None:
    """Check relays, groups, unequal sizes, patterns, and a pattern with a collective's name."""
    topology = load("line:4")
    (tmp_path / "p.toml").write_text(
        'name = "mine"\nranks = 3\n[[chunk]]\nfrom = [0, 2]\nto = [1]\nweight = 0.1\ncount = 2\n'
        '[[chunk]]\nfrom = "all"\nto = [0]\nreduce = true\nof = [1, 2]\n'
    )
    moved = replace(named("alltoall", 3, 1), in_index=named("alltoall", 3, 1).in_index[::-1].copy())
    for collective in (
        read_pattern(tmp_path / "p.toml"),
        uneven("alltoallv", [[0, 3, 1], [7, 0, 0], [1, 1, 0.3]]),
        moved,
        replace(named("allgather", 3, 1), name="allgather-like"),
    ):
        problem = make_problem(topology, collective, [3, 0, 2], [1])
        if collective.name == "mine":  # Its two parts are separate, since the engine only copies.
            problem = make_problem(topology, replace(collective, reduces=collective.reduces & False), [3, 0, 2], [1])
        # Sizes of blocks are stated beside the columns, and then the name defines what is asked.
        for stored in (written(tmp_path, problem), written(tmp_path, problem.with_chunks(2))):
            assert load_schedule(stored).as_named == bool(collective.sizes)


@pytest.mark.parametrize("name", ["alltoall", "allgather"])
@pytest.mark.parametrize("chunks", [1, 2])
def test_quotients_are_stored_as_quotients(tmp_path: Path, name: str, chunks: int) -> None:
    problem = quotient_problem(load("torus:3x4"), name, chunks)
    assert problem is not None
    stored = load_schedule(written(tmp_path, problem))
    assert (stored.as_named, stored.orbit) == (True, 12)
    asked_problem, (whole, sends) = stored.bounded_problem, stored.expanded()
    replay(whole, sends)
    assert len(sends) == 12 * len(stored.schedule)
    assert (whole.quotient, asked_problem.quotient, asked_problem.collective.chunks, whole.collective.chunks) == (
        None,
        None,
        1,
        chunks,
    )
    assert asked_problem.network.resource_names == make_problem(load("torus:3x4"), name).network.resource_names


def test_quotients_of_sums_are_stored_as_quotients(tmp_path: Path) -> None:
    problem = quotient_problem(load("ring:4"), "allreduce", 2)
    assert problem is not None
    stored = load_schedule(written(tmp_path, problem))
    assert (stored.as_named, stored.bounded_problem.collective.nchunks) == (True, 1)
    replay(*stored.expanded())


def test_a_problem_that_a_file_cannot_hold_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, make_problem(load("ring:4"), "allgather"))
    plain = load_schedule(path)
    quotient = quotient_problem(load("ring:4"), "allgather")
    assert quotient is not None
    moved = replace(quotient, collective=replace(quotient.collective, out_index=quotient.collective.out_index + 1))
    unsayable = replace(plain.problem, topology=replace(plain.problem.topology, name="a\tb"))
    for problem, message in ((moved, "is not the quotient of the named collective"), (unsayable, "name")):
        with pytest.raises(InputError, match=message):
            write_schedule(tmp_path / "b.synth", problem, plain.schedule.take(np.arange(3)), "route")
    monkeypatch.setattr("synth.storage.problem.to_toml", lambda _: to_toml(load("ring:4,bw=51")))
    with pytest.raises(InputError, match="not the same when written as text"):
        write_schedule(tmp_path / "b.synth", plain.problem, plain.schedule, "route")
    assert not (tmp_path / "b.synth").exists()


def test_saved_at_a_size(tmp_path: Path) -> None:
    problem = make_problem(load("ring:4"), "allgather")
    algorithm = Algorithm(problem, quick_schedule(problem, 1e6), "route")
    for size in (1, 1 << 20, float(1 << 40)):
        stored = load_schedule(save_schedule(tmp_path / "a.synth", algorithm, size))
        assert stored.claimed_us == algorithm.time_us(size)
        assert stored.schedule.size_bytes == size
        assert stored.header["engine"] == "route"
        replay(stored.problem, stored.schedule)
    with pytest.raises(InputError, match="no message size"):
        save_schedule(tmp_path / "a.synth", algorithm, 1e30)


def test_columns_are_as_narrow_as_they_can_be(tmp_path: Path) -> None:
    header: dict[str, Any] = {}
    columns = {
        "a": np.array([0, 127]), "b": np.array([-1, 128]), "c": np.array([40_000]), "d": np.array([1 << 40]),
        "e": np.zeros(0, dtype=np.int64), "f": np.array([True]), "g": np.array([0.5], dtype=np.float32),
    }  # fmt: skip
    write_columns(tmp_path / "x.synth", header, columns)
    with np.load(tmp_path / "x.synth") as file:
        kinds = [file[name].dtype.str for name in columns]
        assert all(np.array_equal(file[name], column) for name, column in columns.items())
    assert kinds == ["|i1", "<i2", "<i4", "<i8", "|i1", "|b1", "<f8"]


def test_the_old_file_stays_until_the_new_file_is_complete(tmp_path: Path) -> None:
    path = written(tmp_path, make_problem(load("ring:4"), "allgather"))
    before, stored = path.read_bytes(), load_schedule(path)
    endless = replace(stored.schedule, end_us=stored.schedule.end_us + np.inf)
    with pytest.raises(ValueError, match="JSON"):
        write_schedule(path, stored.problem, endless, "route")
    assert path.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"a.synth", "again.synth"}
    for bad in (tmp_path / "none" / "a.synth", tmp_path, tmp_path / "a\0b.synth"):
        with pytest.raises(InputError, match="cannot be written"):
            write_schedule(bad, stored.problem, stored.schedule, "route")
    assert {p.name for p in tmp_path.iterdir()} == {"a.synth", "again.synth"}


def test_no_file_of_several_is_replaced_before_all_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        synced.append(len(synced))
        if len(synced) == 2:
            raise OSError(28, "No space left on device")

    synced: list[int] = []
    paths = [tmp_path / name for name in "ab"]
    paths[0].write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"b: cannot be written \(No space"):
        replace_all([(path, b"new") for path in paths])
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


def test_files_of_large_networks_state_how_many_paths_are_links(tmp_path: Path) -> None:
    """Check that rows are not read as those of other links."""
    with few_paths():
        problem = make_problem(fabrics()["planes"], "allgather")
        algorithm = next(iter(baseline(problem)))
        path = save_schedule(tmp_path / "a.synth", algorithm, 1 << 20)
        assert load_schedule(path).problem.network.nlinks == problem.network.nlinks
    with pytest.raises(InputError, match=f"links: {problem.network.nlinks} links were listed when it was written"):
        load_schedule(path)
    path = save_schedule(tmp_path / "b.synth", next(iter(baseline(make_problem(fabrics()["planes"], "allgather")))), 1)
    with few_paths(), pytest.raises(InputError, match="links: 0 links were listed"):
        load_schedule(path)
