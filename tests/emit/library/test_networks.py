"""Tests of the networks that a library keeps: it can be checked without the user's file, and none is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from emit.library.checking.check import check_library
from emit.library.index import load_index
from emit.library.networks import Networks, kept_file
from emit.library.saving.save import save
from synth.app.synthesis import synthesize
from synth.search.settings import TargetSettings
from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.load import load
from topologies.text.reader import from_toml
from topologies.topology import Topology

_ODD = 'name = "odd"\nranks = 3\n[[links]]\nfrom = "0-2"\nto = "0-2"\ngbs = {gbs}\nalpha_us = 1.5\n'


def odd(gbs: float = 25) -> Topology:
    return from_toml(_ODD.format(gbs=gbs), "odd.toml")


def save_odd(folder: Path, topology: Topology) -> None:
    result = synthesize("allgather", topology, engine="baseline", target="executor-nccl").result
    save(result, folder, TargetSettings("executor-nccl"))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    save_odd(tmp_path, odd())
    return tmp_path


def wrong(folder: Path) -> list[tuple[str, str]]:
    return check_library(folder, load_index(folder)).wrong


def test_a_network_of_ones_own_is_kept_and_used(library: Path) -> None:
    (entry, *_) = load_index(library)
    kept = Networks().of(entry)
    assert kept is not None
    assert (kept.name, kept.nranks) == ("odd", 3)
    assert kept.bandwidth_gbs.tolist() == odd().bandwidth_gbs.tolist()
    report = check_library(library, load_index(library))
    assert report.wrong == []
    assert not any("not known" in reason for reason in report.unproved)
    assert any("the library keeps" in remark for remark in report.remarks)
    given = check_library(library, load_index(library), odd())
    assert not given.remarks


def test_the_network_with_a_dead_link_is_kept_too(tmp_path: Path) -> None:
    save_odd(tmp_path, apply_faults(load("full:3"), ["link:0-1"], []))
    assert [path.name for path in (tmp_path / "topologies").iterdir()] == ["full-3-without-link-0-1.toml"]
    assert wrong(tmp_path) == []


@pytest.mark.parametrize("name", ["ring:4", "torus:3x3,bw=25", "dgx1", "dgx-a100:2"])
def test_networks_that_have_a_name_are_not_kept(name: str) -> None:
    assert kept_file(load(name)) is None


def no_toml(path: Path) -> None:
    path.write_text("name = ")


def too_few_ranks(path: Path) -> None:
    path.write_text(_ODD.format(gbs=25).replace("ranks = 3", "ranks = 2").replace("0-2", "0-1"))


def faster(path: Path) -> None:
    path.write_text(_ODD.format(gbs=50))


def another_name(path: Path) -> None:
    path.write_text(_ODD.format(gbs=25).replace('"odd"', '"even"'))


def link_elsewhere(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere.toml")
    path.symlink_to(path.parent.parent / "elsewhere.toml")


@pytest.mark.parametrize("plant", [no_toml, too_few_ranks, faster, another_name, link_elsewhere])
def test_a_wrong_kept_network_is_reported(library: Path, plant: Callable[[Path], None]) -> None:
    plant(library / "topologies" / "odd.toml")
    assert wrong(library)


def test_a_kept_file_never_stands_for_a_name_of_the_package(library: Path) -> None:
    path = library / "topologies" / "ring-4.toml"
    path.write_text(_ODD.format(gbs=9).replace('"odd"', '"ring:4"'))
    ring = Networks(library=library).named("ring:4")
    assert ring is not None
    assert ring.bandwidth_gbs.tolist() == load("ring:4").bandwidth_gbs.tolist()


def test_no_network_is_read_outside_the_library(library: Path) -> None:
    inner = library / "faults" / "inner"
    inner.mkdir(parents=True)
    assert Networks(library=inner).named("odd") is None
    (inner / "fault.json").write_text(json.dumps({"format": "synth-fault-1"}))
    assert Networks(library=inner).named("odd") is not None
    assert Networks(library=library).named("../../odd") is None


def test_a_kept_network_is_written_again_only_if_it_changed(library: Path) -> None:
    path = library / "topologies" / "odd.toml"
    before = path.stat().st_ino
    save_odd(library, odd())
    assert path.stat().st_ino == before
    save_odd(library, odd(gbs=30))
    assert "gbs = 30" in path.read_text()


def test_a_link_in_place_of_the_folder_is_refused(library: Path) -> None:
    (library / "topologies").rename(library / "elsewhere")
    (library / "topologies").symlink_to("elsewhere")
    with pytest.raises(InputError, match="symbolic link"):
        wrong(library)
