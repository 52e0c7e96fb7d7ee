"""`synth library env`: variables that a shell takes, and what the users of each executor must know."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from emit.library.index import index_text
from emit.targets import MSCCL_FILES, TARGETS
from tests.emit.library.made_indices import entry_row
from tests.synth.app.cli.calling import Call


def library(folder: Path, *rows: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.json").write_bytes(index_text(rows))
    return folder


def files(target: str, number: int, **changes: Any) -> list[dict[str, Any]]:
    row = TARGETS[target]
    return [
        entry_row(target=target, file=f"{row.folder}/f{n}{row.suffix}", min_bytes=n, max_bytes=n, **changes)
        for n in range(number)
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_a_shell_takes_it(target: str, synth: Call, working_folder: Path) -> None:
    folder = library(working_folder / "a folder's", *files(target, 2))
    answer = synth("library", "env", folder, "--target", target)
    assert (answer.code, answer.err) == (0, "")
    shell = subprocess.run(["sh", "-eu"], input=answer.out + "env\n", capture_output=True, text=True, check=True)
    variables = {part.partition("=")[0] for part in TARGETS[target].load.split() if "=" in part}
    got = dict(line.split("=", 1) for line in shell.stdout.splitlines() if "=" in line)
    assert variables <= got.keys() - os.environ.keys()
    for name in variables:
        for path in got[name].split(":"):
            assert not path.startswith("/") or Path(path).parent in (folder, folder / TARGETS[target].folder)
    assert TARGETS[target].state in answer.out
    assert all(remark in answer.out.replace("\n#  ", "") for remark in TARGETS[target].remarks)


def test_a_list_has_the_files_that_are_loaded(synth: Call, working_folder: Path) -> None:
    folder = library(working_folder / "out", *files("msccl", MSCCL_FILES + 2))
    environment = json.loads(synth("library", "env", folder, "--json").out)["environments"][0]
    assert len(environment["variables"]["MSCCL_XML_FILES"].split(":")) == MSCCL_FILES
    assert environment["variables"]["NCCL_ALGO"] == "MSCCL,RING,TREE"
    assert environment["remarks"][-1] == "left out of MSCCL_XML_FILES: f4.xml, f5.xml"


def test_groups_that_a_reader_takes_for_one(synth: Call, working_folder: Path) -> None:
    other_files = [row | {"file": row["file"].replace("/f", "/g")} for row in files("rccl", 1, group=[1, 3, 5, 7],
             communicator=[1, 3, 5, 7])]  # fmt: skip
    mixed = library(working_folder / "out", *files("rccl", 1), *other_files)
    assert (
        "# WARNING: allreduce on dgx1 group 0,2,4,6 and allreduce on dgx1 group 1,3,5,7"
        in synth("library", "env", mixed).out
    )
    other_files[0]["collective"] = "allgather"
    assert (
        "WARNING" not in synth("library", "env", library(working_folder / "out", *files("rccl", 1), *other_files)).out
    )
    assert "g0" not in synth("library", "env", mixed, "--collective", "allreduce").out


def test_refusals(synth: Call, working_folder: Path) -> None:
    folder = library(working_folder / "out", *files("msccl", 1))
    for arguments, message in (
        ((working_folder / "no",), "no such file; it must be a library's index.json"),
        ((folder, "--target", "rccl"), "--target rccl: the library has no file for it; it has files for msccl"),
        ((folder, "--target", "x"), "target 'x': is not known"),
        ((folder, "--collective", "alltoall"), "holds no file for alltoall"),
        ((folder, "--collective", "x"), "x"),
        ((library(working_folder / "empty"),), "holds no file; it must be a library with such a file"),
        ((library(working_folder / "a:b", *files("msccl", 1)),), "the library must be at a path without one"),
    ):
        assert message in synth("library", "env", *arguments).refusal


def test_plans_of_a_library(synth: Call, working_folder: Path) -> None:
    """Check the plans of a library.

    There are no packets for ranks of overlapping groups; sizes end where offsets do; a name that occurs twice is a
    fault.
    """
    arguments = (
        "broadcast",
        "--topo",
        "ring:4",
        "--engine",
        "baseline",
        "--target",
        "mscclpp",
        "--budget",
        "20s",
        "--out",
    )
    assert synth(*arguments, "both").code == synth(*arguments, "simple", "--groups-overlap").code == 0
    two_protocols, simple = (
        json.loads((working_folder / name / "index.json").read_text())["algorithms"] for name in ("both", "simple")
    )
    assert {entry["protocol"] for entry in two_protocols} == {"LL", "Simple"}
    assert {entry["protocol"] for entry in simple} == {"Simple"}
    for entries in (two_protocols, simple):
        assert min(entry["min_bytes"] for entry in entries) == 0
        assert 1 << 30 < max(entry["max_bytes"] for entry in entries) < 1 << 32
    paths = [working_folder / "both" / entry["file"] for entry in two_protocols]
    plans = [json.loads(path.read_text()) for path in paths]
    assert len({plan["name"] for plan in plans}) == len(plans) > 1
    assert synth("verify", paths[0]).code == 0
    paths[0].write_text(json.dumps(plans[0] | {"name": plans[1]["name"]}))
    answer = synth("verify", paths[0])
    assert answer.code == 1
    assert f"is that of {two_protocols[1]['file']} too" in answer.flat
    assert "--target mscclpp" in synth(*arguments[:3], "--groups-overlap").refusal
    assert "--target mscclpp" in synth(*arguments[:3], "--groups", "0-1;2-3", "--groups-overlap").refusal
