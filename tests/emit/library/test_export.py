"""Tests of exported folders for other loaders: the files of one communicator and root, byte for byte, and no others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from emit.library.index import index_text, load_index
from emit.library.selection.export import export_folders
from emit.msccl.format import write_msccl
from runtime.algorithms.built_in import built_in
from tests.emit.library.made_indices import entry_row
from topologies.errors import InputError


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a library with an all-reduce that serves two groups, and broadcasts with two roots for one of them."""
    folder = tmp_path / "a library"
    (folder / "msccl").mkdir(parents=True)
    rows = [entry_row(protocol="Simple", isomorphic_groups=[[5, 4, 7, 6]])]
    rows += [
        entry_row(collective="broadcast", protocol="Simple", root=root, file=f"msccl/from{root}.xml") for root in (0, 2)
    ]
    for row in rows:
        root = 0 if row["root"] is None else row["group"].index(row["root"])
        name = "allpairs" if row["collective"] == "allreduce" else "tree"
        (folder / row["file"]).write_text(write_msccl(built_in(row["collective"], name, 4, root)))
    (folder / "index.json").write_bytes(index_text(rows))
    return folder


def test_a_folder_for_each_communicator_and_root(library: Path, tmp_path: Path) -> None:
    entries = load_index(library)
    written = export_folders(entries, "executor-nccl", tmp_path / "out")
    assert {folder.path.name for folder in written} == {"dgx1-0.2.4.6-root0", "dgx1-0.2.4.6-root2", "dgx1-5.4.7.6"}
    for folder in written:
        folder_index = load_index(folder.path)
        assert {entry.communicator for entry in folder_index} == {folder.communicator}
        assert len({entry.root for entry in folder_index if entry.root is not None}) < 2
        assert len(folder_index) == folder.files == len(list((folder.path / "msccl").iterdir()))
        for entry in folder_index:
            assert entry.path.read_bytes() == (library / entry.file).read_bytes()
        ran = subprocess.run(
            ["sh", "-euc", '. "$0"; echo "$MSCCL_ALGO_DIR"', str(folder.path / "env.sh")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ran.stdout.strip() == str(folder.path / "msccl")
        assert f"communicator: {','.join(map(str, folder.communicator))}" in (folder.path / "env.sh").read_text()
    second_export = export_folders(entries, "executor-nccl", tmp_path / "out", [(5, 4, 7, 6)])
    assert [folder.path.name for folder in second_export] == ["dgx1-5.4.7.6"]


def test_missing_files_are_not_exported(library: Path, tmp_path: Path) -> None:
    entries, out = load_index(library), tmp_path / "out"
    for target, groups, words in (
        ("rccl", [], "--for rccl: the library has no file for it; it has files for executor-nccl"),
        ("nccl", [], "it must be one of executor-nccl"),
        ("msccl++", [], "did you mean msccl or mscclpp?"),
        ("executor-nccl", [(4, 5, 6, 7)], "--group 4,5,6,7: the library has no file"),
    ):
        with pytest.raises(InputError) as error:
            export_folders(entries, target, out, groups)
        assert words in str(error.value)
    path = library / "msccl" / "from2.xml"
    good = path.read_text()
    for wrong in ("", good[:-20], good.replace('type="s"', 'type="r"', 1)):
        path.write_text(wrong)
        with pytest.raises(InputError, match=r"from2\.xml: .*see synth library check"):
            export_folders(entries, "executor-nccl", out)
    path.write_text(good)
    rows = json.loads((library / "index.json").read_bytes())["algorithms"]
    rows[0]["sha256"] = {"file": "0" * 64}
    (library / "index.json").write_bytes(index_text(rows))
    with pytest.raises(InputError, match=r"a\.xml: is not what its entry says"):
        export_folders(load_index(library), "executor-nccl", out)
    assert not out.exists()


def test_topologies_of_similar_names_have_folders_of_their_own(tmp_path: Path) -> None:
    rows = [
        entry_row(protocol="Simple", topology=topology, file=f"msccl/{number}.xml")
        for number, topology in enumerate(("a b", "a-b", "x/t", "y/t", "z"))
    ]
    (tmp_path / "msccl").mkdir()
    for row in rows:
        (tmp_path / row["file"]).write_text(write_msccl(built_in("allreduce", "allpairs", 4, 0)))
    (tmp_path / "index.json").write_bytes(index_text(rows))
    written = export_folders(load_index(tmp_path), "executor-nccl", tmp_path / "out")
    topologies = [entry.topology for folder in written for entry in load_index(folder.path)]
    assert sorted(topologies) == ["a b", "a-b", "x/t", "y/t", "z"]
    assert len({folder.path for folder in written}) == 5
    assert "z-0.2.4.6" in {folder.path.name for folder in written}
