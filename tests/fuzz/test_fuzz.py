"""Tests that every reader refuses hostile files in one line; results/scripts/fuzz.py is the long version."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from synth.model.sizes import read_sizes
from synth.storage.problem import _PATH_BYTES, _estimate_network
from tests.fuzz.nasty import MIB, NASTY
from tests.fuzz.trying import FORMATS, Outcome, folder_for, hostile, no_files, place, tried
from tests.topologies.few_paths import fabrics, few_paths
from topologies.errors import InputError
from topologies.load import load
from topologies.network import network
from topologies.paths import Paths
from topologies.text.fields import MOST_DOTS, parse_toml

EACH = 60
SMALL = 200_000  # Bytes; files made by hand up to this size are quick.
COMMANDS = "other commands"


def put(name: str, data: object, inside: Path) -> Outcome:
    form = FORMATS[name]
    path, size = place(form, folder_for(form, inside), data)  # type: ignore[arg-type]
    return tried(form, path, size)


@pytest.mark.parametrize("name", FORMATS)
def test_valid_files_are_read(name: str, tmp_path: Path) -> None:
    for seed in FORMATS[name].seeds():
        outcome = put(name, seed, tmp_path)
        assert outcome.status == "accepted", outcome


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    folder = folder_for(form, tmp_path)
    statuses = set()
    for number in range(EACH // 5 if COMMANDS in name else EACH):
        path, size = place(form, folder, hostile(form, number, seed=1))
        outcome = tried(form, path, size)
        assert outcome.status != "failed", (number, outcome)
        statuses.add(outcome.status)
    assert statuses == {"accepted", "refused"}


@pytest.mark.parametrize("name", FORMATS)
def test_paths_that_are_no_files_are_refused(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    folder = folder_for(form, tmp_path)
    for kind, make in no_files().items():
        path, size = place(form, folder, make)
        outcome = tried(form, path, size)
        assert outcome.status == "refused", (kind, outcome)


@pytest.mark.parametrize("name", NASTY)
def test_nasty_files_are_refused_or_read_at_small_cost(name: str, tmp_path: Path) -> None:
    for description, make in NASTY[name].items():
        # The largest files, whose names state their size, are for the long run.
        if "MiB" in description or description in LONG:
            continue
        data = make()
        if len(data) > SMALL * 10:
            continue
        outcome = put(name, data, tmp_path)
        assert outcome.status != "failed", (description, outcome)


LONG = {
    "a million ranks in a star", "every pair of 3000", "every pair, again and again", "limits over every pair",
    "every pair of a million", "two million switches", "as large as may be", "a root to be sought among 4096",
    "one NIC's ranks many times", "as many ranks behind a switch as may be",
    "an all-to-all behind a switch as large as may be", "an all-gather in as many chunks as may be", "too large",
    "a broadcast to a million",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "description", "message"),
    [
        ("topology TOML", "a key of 40000 dots", "a key of more than 8 dots"),
        ("topology TOML", "one range many times", "names a vertex twice"),
        ("topology TOML", "a million NICs", "1 to 1000"),
        ("pattern TOML", "as many entries as may be", "at most 5000000"),
        ("pattern TOML", "many chunks", "at most 5000000"),
        ("schedule", "an all-to-all of 6000 ranks", "states a problem of about"),
        ("schedule", "an all-reduce in 9 million chunks", "states a problem of about"),
        ("schedule", "a folded all-to-all", "states a problem of about"),
        ("schedule", "a topology of a million ranks", "cannot reach rank 0"),
        ("MSCCL XML", "billion laughs", "an XML declaration"),
        ("MSCCL XML", "external entity", "declarations and entities are refused"),
        ("MSCCL XML", "a million chunks on 4096 ranks", "at most 1048576 cells"),
    ],
)
def test_small_files_that_need_much_are_refused_with_the_reason(
    name: str, description: str, message: str, tmp_path: Path
) -> None:
    outcome = put(name, NASTY[name][description](), tmp_path)
    assert outcome.status == "refused"
    assert message in outcome.words


@pytest.mark.parametrize(
    "spec", ["star:9", "fattree:4", "dragonfly:3x2x2", "dgx-h100:3", "full:7", "torus:3x3", "dgx2"]
)
def test_the_memory_estimate_is_an_upper_bound(spec: str) -> None:
    """Check that the memory estimate of a network is not too low."""
    topology = load(spec)
    for members in (range(topology.nranks), range(0, topology.nranks, 2)):
        links = network(topology, tuple(members)).nlinks
        assert _estimate_network(topology, tuple(members), Paths.LEVELS, 1 << 30) >= links * _PATH_BYTES


@pytest.mark.parametrize("paths", Paths)
def test_the_memory_estimate_counts_the_paths_that_are_links(paths: Paths) -> None:
    for topology in fabrics().values():
        members = tuple(range(topology.nranks))
        with few_paths():
            links = network(topology, members, paths=paths).nlinks
            estimate = _estimate_network(topology, members, paths, 1 << 30)
            assert estimate >= links * _PATH_BYTES
            assert (estimate < _estimate_network(topology, members, paths, 0)) == (paths is not Paths.ALL)


def test_rows_beyond_the_largest_matrix_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "sizes.csv"
    for text in ("1\n" * 5000, "1 " * 5000, f"[[{'1,' * 5000}1]]", f"[{'[],' * 5000}[]]"):
        path.write_text(text)
        with pytest.raises(InputError, match="at most 4096"):
            read_sizes(path)


def test_a_failing_reader_is_recognized(tmp_path: Path) -> None:
    """Check that every way of failing is recognized, with a reader for each."""
    path = tmp_path / "file"
    path.touch()

    def outcome(read: object) -> Outcome:
        from dataclasses import replace

        return tried(replace(FORMATS["size matrix"], read=read), path, 0)  # type: ignore[arg-type]

    def raises(error: BaseException) -> object:
        def read(_: Path) -> None:
            raise error

        return read

    assert outcome(lambda _: None).status == "accepted"
    assert outcome(raises(InputError("one line"))).status == "refused"
    for error in (
        ValueError("x"), RecursionError(), MemoryError(), KeyError("a"), SystemExit(3), InputError(""),
        InputError("x" * 5000), InputError("that does not fit in memory"),
    ):  # fmt: skip
        assert outcome(raises(error)).status == "failed", error


def test_toml_that_needs_too_much_is_refused() -> None:
    deep = ".".join("a" * (MOST_DOTS + 2))
    for text, message in (
        (f"{deep} = 1", "f.toml:1: a key of more than"),
        (f"x = 1\n[{deep}]\n", "f.toml:2: a key of more than"),
        ('"a" . ' * (MOST_DOTS + 1) + "a = 1", "f.toml:1: a key of more than"),
        ("[[a]]\n" * MIB, "too many tables"),
        ("a = [" + "1," * (3 * MIB) + "]", "too many tables, keys and values"),
        ("a = " + "[" * 5000, "nested too deeply"),
    ):
        with pytest.raises(InputError) as error:
            parse_toml(text, "f.toml", "write less")
        assert message in str(error.value)
        assert len(str(error.value).splitlines()) == 1
    document = parse_toml(f"note = 'see {'.'.join('ab' * 4)}'\n{'.'.join('a' * MOST_DOTS)} = 1.5", "f.toml", "")
    assert set(document.values) == {"note", "a"}


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """Check that a pipe without a writer is refused at once."""
    from emit.msccl.read import read_msccl

    os.mkfifo(tmp_path / "pipe.xml")
    with pytest.raises(InputError, match="not a plain file"):
        read_msccl(tmp_path / "pipe.xml")
