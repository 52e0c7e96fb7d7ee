"""Plans for failures: ranks agree on them between two calls, and training goes on after a link has been cut."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from emit.library.overlay import FAULT, FAULTS, LibraryFault
from emit.library.saving.add import Addition, add
from emit.msccl.read import read_msccl
from emit.targets import TARGETS
from results.measuring import shaped
from results.measuring.measure import run, synth
from runtime.algorithms.built_in import built_in
from runtime.torch.choice import Chooser
from runtime.torch.table import TableCall
from tests.runtime.torch.ranks import run_ranks
from topologies.errors import InputError

RANKS = 4
HEALTHY, HURT = "healthy", "hurt"  # Parts of the names of programs, as in `tests.runtime.torch.switched`.
LINK = "link:0-1"
without_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: make torch runs this")


def state_fault(library: Path) -> Path:
    """Write that a library has answers for the loss of a link, and return their folder."""
    folder = library / FAULTS / "link-0-1"
    folder.mkdir(parents=True, exist_ok=True)
    touched = frozenset({("allreduce", None, tuple(range(RANKS)))})
    (folder / FAULT).write_bytes(LibraryFault((LINK,), "full:4", frozenset(), touched).text())
    return folder


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a library with an answer for a failure, and of a table of the healthy network."""
    library = tmp_path / "library"
    for folder, algorithm, name in ((library, "ring", HEALTHY), (state_fault(library), "allpairs", HURT)):
        program = replace(built_in("allreduce", algorithm, RANKS), name=name)
        add([Addition(program, None, TARGETS["executor-nccl"])], folder)
    stem = next(entry.file for entry in Chooser(library=library).entries).removesuffix(".xml").split("/")[-1]
    row = {"collective": "allreduce", "ranks": RANKS, "min_bytes": 4096, "backend": "synth", "algorithm": stem}
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"format": "synth-choice-1", "machine": platform.node(), "rows": [row]}))
    return {"SYNTH_LIBRARY": str(library), "SYNTH_TABLE": str(table)}


def test_answers_for_a_failure_take_the_place_of_the_tables_algorithm(variables: dict[str, str]) -> None:
    large, small = (TableCall("allreduce", size, "float32", tuple(range(RANKS))) for size in (80_000, 400))
    for without, name, reason in (((), HEALTHY, "by the table"), ((LINK,), HURT, "for the failure")):
        chooser = Chooser.of_environment(variables, without)
        choice = chooser.choose(large)
        assert choice.program is not None
        assert name in choice.program.name
        assert choice.reason == reason
        assert chooser.choose(small).program is None
    with pytest.raises(InputError, match=r"has no answers for it; it must be one that .* wrote: link:0-1"):
        Chooser.of_environment(variables, ("link:0-2",))
    with pytest.raises(InputError, match="SYNTH_LIBRARY must be a library's folder"):
        Chooser.of_environment({}, (LINK,))


@without_torch
def test_all_ranks_switch_between_two_calls_or_none_does(variables: dict[str, str], tmp_path: Path) -> None:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SYNTH_")}
    results = [tmp_path / str(rank) for rank in range(RANKS)]
    command = ["tests.runtime.torch.switched", "checks"]
    ran = run_ranks(command, f"file://{tmp_path / 'store'}", results, plain | variables)
    assert [code for code, _ in ran] == [0] * RANKS, "\n".join(text for _, text in ran)
    for result in results:
        seen: dict[str, Any] = json.loads(result.read_text())
        assert seen["healthy"] == ["gloo", HEALTHY] * 2
        assert (seen["agreed"], seen["repaired"]) == ([LINK], [])
        assert seen["hurt"] == ["gloo", HURT] * 3
        assert seen["persistent"] == [HEALTHY, HURT]
        assert seen["still hurt"] == ["gloo", HURT]
        assert seen["again"] == ["gloo", HEALTHY] * 3
        assert "has no answers for it" in seen["two"] or "cannot use" in seen["two"]
        assert "it must be fewer" in seen["long"]


@without_torch
@pytest.mark.slow
@pytest.mark.skipif(bool(shaped.missing()), reason="needs root, ip and tc")
def test_training_goes_on_after_a_link_has_been_cut(tmp_path: Path) -> None:
    library = tmp_path / "library"
    hurt = state_fault(library)
    for folder, options in ((library, ()), (hurt, ("--without", LINK))):
        made = run(synth("allreduce", "--topo", "full:4", "--budget", "10s", *options, "--out", folder))
        assert made.code == 0, made.err
    for path in hurt.rglob("*.xml"):  # The plan for the failure does not use the link.
        program = read_msccl(path)
        used = {(rank, block.send) for rank, gpu in enumerate(program.gpus) for block in gpu.threadblocks}
        assert not used & {(0, 1), (1, 0)}
    links: shaped.Links = {(a, b): 100 for a in range(RANKS) for b in range(a + 1, RANKS)}
    with shaped.built(RANKS, links) as spaces:
        words: list[object] = [sys.executable, "-m", "tests.runtime.torch.switched", "training", tmp_path]
        ranks = shaped.started(spaces, words, {"SYNTH_BACKEND": "synth", "SYNTH_LIBRARY": str(library)})
        while not (tmp_path / "ready").exists() and all(rank.poll() is None for rank in ranks):
            time.sleep(0.05)
        shaped.cut(spaces, links, (0, 1))
        (tmp_path / "cut").touch()
        shaped.wait_for(ranks)
    steps = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert len({len(of_rank) for of_rank in steps}) == 1
    assert all([step["failed"] for step in of_rank][-10:] == [[LINK]] * 10 for of_rank in steps)
    assert steps[0][-1]["loss"] < steps[0][4]["loss"] < steps[0][0]["loss"]
    names = {path.stem for path in hurt.rglob("*.xml")}
    assert any(name in text for text in steps[0][-1]["served"] for name in names)
