"""`--costs`: an executor's costs are part of times, bounds, files and proofs, and `synth prove` checks all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synth.app.synthesis import Synthesis, synthesize
from synth.bounds.prove import prove
from synth.model.problem import make_problem
from synth.search.statement import statement
from synth.storage.columns import write_columns
from synth.storage.proof import digest
from synth.storage.schedule_file import load_schedule
from tests.synth.app.cli.calling import Call
from topologies.costed import with_costs
from topologies.load import load

_NODE = """
name = "pair"
ranks = 4
switches = ["hub"]
links = [{from = "0-3", to = "hub", both = true, gbs = 100, alpha_us = 0.5, kind = "nvlink"}]
"""
_COSTS = """
[costs]
source = "measured by hand"
[costs.LL]
start_us = 2
latency_us = {nvlink = 0.5}
efficiency = {nvlink = 0.25}
[costs.Simple]
start_us = 8
threadblock_gbs = 20
latency_us = {nvlink = 3}
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Synthesis]:
    folder = tmp_path_factory.mktemp("costs")
    (folder / "pair.toml").write_text(_NODE + _COSTS)
    result = synthesize("allgather", folder / "pair.toml", costs="machine", engine="baseline", budget=40, target="auto")
    result.save(folder / "out", proof=True)
    return folder, result


def test_the_answer_is_of_protocols_and_names_its_model(answer: tuple[Path, Synthesis]) -> None:
    folder, synthesis = answer
    document = statement(synthesis.result)
    assert document["alpha"] == "costs of LL Simple: measured by hand"
    bound = prove(make_problem(with_costs(load(folder / "pair.toml")), "allgather"))
    rows = {row["protocol"]: row for row in json.loads((folder / "out" / "index.json").read_text())["algorithms"]}
    assert rows.keys() == {"LL", "Simple"}  # By size.
    assert rows["LL"]["max_bytes"] < rows["Simple"]["max_bytes"] if rows["Simple"]["max_bytes"] else True
    for row in document["algorithms"]:
        assert row["time_us"] >= bound.at(row["shown_bytes"])[0] * (1 - 1e-9)
    assert {row["costs"]["source"] for row in rows.values()} == {"measured by hand"}
    # One threadblock for a peer moves 60 of 100 GB/s, so the program has more.
    assert rows["Simple"]["threadblocks"] > 6
    assert rows["Simple"]["gap"] < 1.03


def test_prove_uses_the_costs_and_nothing_else(answer: tuple[Path, Synthesis], synth: Call, tmp_path: Path) -> None:
    folder, _ = answer
    for path in sorted((folder / "out" / "schedules").glob("*.synth")):
        assert synth("prove", str(path)).code == 0
    proof = next((folder / "out" / "schedules").glob("*.proof.json"))
    path = proof.with_name(proof.name.replace(".proof.json", ".synth"))
    stated = json.loads(proof.read_text())
    assert stated["question"]["costs"] == {"protocols": ["LL", "Simple"], "source": "measured by hand"}
    own_copy = tmp_path / path.name
    own_copy.write_bytes(path.read_bytes())
    beside = tmp_path / proof.name

    def refused(document: dict[str, Any], message: str) -> None:
        beside.write_text(json.dumps(document))
        answered = synth("prove", str(own_copy))
        assert answered.code == 1
        assert message in answered.out + answered.err

    without = [w for w in stated["witnesses"] if w["protocol"] != "LL"]
    refused(stated | {"witnesses": without}, "there is none for protocol LL")
    bare = [{k: v for k, v in w.items() if k != "protocol"} for w in stated["witnesses"]]
    refused(stated | {"witnesses": stated["witnesses"] + bare[:1]}, "claims")
    swapped = [w | {"protocol": {"LL": "Simple", "Simple": "LL"}[w["protocol"]]} for w in stated["witnesses"]]
    refused(stated | {"witnesses": swapped}, "claims")
    other_question = stated["question"] | {"costs": {"protocols": ["LL"], "source": "measured by hand"}}
    refused(stated | {"question": other_question}, "question: 'costs'")


def test_a_file_whose_protocol_is_changed_is_refused(
    answer: tuple[Path, Synthesis], synth: Call, tmp_path: Path
) -> None:
    folder, _ = answer
    for path in sorted((folder / "out" / "schedules").glob("*.synth")):
        stored = load_schedule(path)
        header = dict(stored.header)
        own = header["protocol"]
        header["protocol"] = {"LL": "Simple", "Simple": "LL"}[own]
        s = stored.schedule
        columns = {name: getattr(s, name) for name in ("chunk", "link", "step", "reduces", "start_us")}
        write_columns(tmp_path / path.name, header, columns)
        answered = synth("prove", str(tmp_path / path.name))
        assert answered.code == 1, answered.out
        assert digest(tmp_path / path.name) != digest(path)


def test_costs_of_a_file(synth: Call, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(_COSTS.replace("nvlink", "other"))
    arguments = (
        "--topo",
        "ring:4",
        "--engine",
        "baseline",
        "--target",
        "none",
        "--budget",
        "40s",
        "--out",
        str(tmp_path),
    )
    answered = synth("allgather", *arguments, "--costs", str(tmp_path / "own.toml"), "--json")
    assert answered.code == 0
    document = json.loads(answered.out)
    assert document["alpha"] == "costs of LL Simple: measured by hand"
    assert min(row["bound_us"] for row in document["algorithms"]) > 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--costs", "machine"), "'ring:4': states no [costs]; it must be a machine that does, or a file"),
        (("--costs", "nothing.toml"), "nothing.toml: no such file; it must be a .toml file with [costs]"),
        (("--costs", "machine", "--groups", "0-1;2-3", "--size", "1M"), "'ring:4': states no [costs]"),
    ],
)
def test_refusals(synth: Call, more: tuple[str, ...], message: str, tmp_path: Path) -> None:
    answered = synth("allgather", "--topo", "ring:4", *more, "--out", str(tmp_path))
    assert answered.code == 2
    assert message in answered.err
    assert answered.err.count("\n") == 1


def test_a_file_is_timed_with_its_protocols_costs(answer: tuple[Path, Synthesis], synth: Call) -> None:
    folder, _ = answer
    rows = json.loads((folder / "out" / "index.json").read_text())["algorithms"]
    for row in rows:
        arguments = ("simulate", str(folder / "out" / row["file"]), "--topo", str(folder / "pair.toml"), "--json")
        size = row["shown_bytes"]
        with_them = json.loads(synth(*arguments, "--costs", "machine", "--sizes", str(size)).out)
        assert with_them["sizes"][0]["time_us"] == pytest.approx(row["time_us"])
        assert with_them["sizes"][0]["gap"] == pytest.approx(row["gap"])
        without = json.loads(synth(*arguments, "--costs", "none", "--sizes", str(size)).out)
        assert without["sizes"][0]["time_us"] < row["time_us"]
        assert "measured by hand" in with_them["alpha"]


def test_bounds_count_the_protocols_that_the_executor_has(synth: Call, working_folder: Path) -> None:
    question = (
        "allgather",
        "--topo",
        "dgx-a100",
        "--group",
        "0-3",
        "--size",
        "256K",
        "--engine",
        "baseline",
        "--proof",
    )
    names = {"mscclpp": ["LL", "Simple"], "executor-nccl": ["LL", "LL128", "Simple"]}
    for target, protocols in names.items():
        assert synth(*question, "--target", target, "--out", target, "--budget", "8s").code == 0
        rows = json.loads((working_folder / target / "index.json").read_text())["algorithms"]
        assert [row["costs"]["protocols"] for row in rows] == [protocols] * len(rows)
        assert synth("library", "check", target).code == 0
        for path in (working_folder / target / "schedules").glob("*.synth"):
            assert synth("prove", path).code == 0
    # An entry cannot drop a protocol that its executor has, for a higher bound.
    for target, protocols in names.items():
        for row in (document := json.loads((working_folder / target / "index.json").read_text()))["algorithms"]:
            row["costs"]["protocols"] = protocols[:-1]
        (working_folder / target / "index.json").write_text(json.dumps(document))
        assert "2 files not proved" in synth("library", "check", target).out
