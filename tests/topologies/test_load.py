"""Tests that a topology's name is loaded, or refused in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topologies.topology_texts import GOOD, NIC, complaint, same
from topologies.clusters import Machine, Nics
from topologies.errors import InputError
from topologies.importers import MAX_FILE_BYTES, TOPOLOGY_FORMATS, TopologyFormat
from topologies.load import load
from topologies.topology import Topology


def test_loading_is_repeatable(any_spec: str) -> None:
    assert same(load(any_spec), load(any_spec))
    assert load(any_spec).name == any_spec


@pytest.mark.parametrize(
    "spec",
    [
        "", "dgx", "dgx1:", "dgx1:2", "dgx1:x", "dgx-a100:0", "dgx-a100:-1", "dgx-a100:2:2",
        "dgx-a100:9999999",
        "dgx-a100,bw=3", "ring", "ring:", "ring:0", "ring:1", "ring:-3", "ring:8x8", "ring:8.5",
        "ring:99999999",
        "full:100000", "hypercube:64", "hypercube:9999999", "fattree:3", "fattree:2x2", "fattree:0",
        "fattree:999999",
        "dragonfly:2", "torus:", "torus:2x", "torus:1000x1000x1000", "mesh:0x3", "ring:8,", "ring:8,bw",
        "ring:8,bw=",
        "ring:8,bw=0", "ring:8,bw=-1", "ring:8,bw=nan", "ring:8,bw=1e999", "ring:8,bw=1,bw=2",
        "ring:8,latency=1",
        "ring:8,alpha=inf", "ring:8,alpha=--1", "nothere.toml", "nothere.toml:2", "/", "a\0b.toml", "\n",
        "x" * 9000,
        "y" * 9000 + ".toml", "dgx1\n", "ring:٣",
    ],
)  # fmt: skip
def test_bad_specs(spec: str) -> None:
    with pytest.raises(InputError) as error:
        load(spec)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_near_names_are_offered() -> None:
    for wrong, right in (
        ("dgx-a10", "dgx-a100"),
        ("tours:4x4", "torus"),
        ("ndv", "ndv2"),
        ("DGX1", "dgx1"),
        ("h100:4", "dgx-h100:4"),
        ("rng:4", "ring:4"),
    ):
        with pytest.raises(InputError, match=f"did you mean.*{right}"):
            load(wrong)


def test_files_are_loaded_or_refused(tmp_path: Path) -> None:
    good = tmp_path / "good.toml"
    good.write_text(GOOD + NIC)
    assert load(good).nranks == load(str(good)).nranks == 4
    assert load(f"{good}:3").nranks == 12
    assert load(f"{good}:3").name == "good.toml:3"
    good.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load(good).nlinks == 8
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b'name = "x"\n\xff')
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 1)
    for path, message in (
        (bad, "bad.toml:2: byte 0xff"),
        (pipe, "not a plain"),
        (huge, "16 MiB"),
        (tmp_path, "a directory"),
    ):
        with pytest.raises(InputError, match=message):
            load(path)
    good.write_text('name = "x"\nranks = =')
    with pytest.raises(InputError, match=r"good\.toml:2: not TOML"):
        load(good)


@settings(max_examples=75)
@given(st.one_of(st.text(max_size=40), st.from_regex(r"(ring|torus|fattree|dgx2|full|dragonfly):[0-9x,=a-z.]{0,12}")))
def test_any_spec_is_loaded_or_refused(spec: str) -> None:
    assert "\n" not in complaint(lambda: load(spec))


def read_toy(text: str, origin: str) -> Machine:
    """Read a chain whose number of ranks is the second word."""
    _, count = text.split()
    if not count.isdecimal():
        raise InputError(f"{origin}:1: {count!r} must be a number")
    n = int(count)
    ranks = np.arange(n - 1)
    topology = Topology("toy", n, (), ranks, ranks + 1, np.ones(n - 1), np.ones(n - 1))
    return Machine(topology, Nics((np.array([n - 1]),), (np.array([0]),), 1.0, 1.0, True, 1))


@pytest.fixture
def _toy_format() -> Iterator[None]:
    row = TopologyFormat("toy", ".toy", lambda text: text.startswith("toy "), read_toy)
    TOPOLOGY_FORMATS.insert(0, row)
    yield
    TOPOLOGY_FORMATS.remove(row)


@pytest.mark.usefixtures("_toy_format")
def test_a_format_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "chain.toy"
    path.write_text("toy 3\n")
    assert load(path).nranks == load(str(path)).nranks == 3
    assert (load(f"{path}:2").nranks, load(f"{path}:2").switches) == (6, ("fabric",))
    told_by_content = tmp_path / "chain.toml"
    told_by_content.write_text("toy 4\n")
    assert load(told_by_content).name == "toy"
    path.write_text("toy x\n")
    with pytest.raises(InputError, match=r"chain\.toy:1: 'x' must be a number"):
        load(path)
    with pytest.raises(InputError, match=r"a file.s name must have an ending, as my\.toml"):
        load("zzzzzz")


def test_names_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a file's suffix makes a name a file, and that folders and absent files are named as such."""
    networkx = pytest.importorskip("networkx")
    monkeypatch.chdir(tmp_path)
    networkx.write_gml(networkx.cycle_graph(5), "cycle.gml")
    (tmp_path / "folder").mkdir()
    assert load("cycle.gml").nranks == 5
    for spec, message in (("folder", "is a folder; it must be a file"), ("absent.md", "no such file, and no network")):
        with pytest.raises(InputError, match=message):
            load(spec)
