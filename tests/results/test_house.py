"""The page about the house, on tiny trees and tiny questions."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from results.measuring.measure import ROOT
from results.measuring.questions import (
    BETTER,
    EQUAL,
    MESSAGES,
    QUESTIONS,
    SAME_GAPS,
    WORSE,
    Recorded,
    compare,
    record,
)
from results.measuring.revisions import Ran, checkout
from results.measuring.structure import House, components, cycles, longest_chain
from results.scripts import house

LONG_BODY = "\n".join(["    x = 1"] * 61)
TREE = {
    "synth/__init__.py": "",
    "synth/face.py": "import synth.low.one\n",
    "synth/low/__init__.py": "",
    "synth/low/one.py": "from __future__ import annotations\nimport os\n",
    "synth/low/two.py": "def f():\n    import json  # slow\n    from synth.high.three import g\n    return g\n",
    "synth/high/__init__.py": "",
    "synth/high/three.py": f"from synth.low import one, two\ndef g():\n{LONG_BODY}\n# why\ndef h():\n{LONG_BODY}\n",
    "emit/page.html": "a\nb\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> House:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(tmp_path)


def test_structure_of_a_tree(tree: House) -> None:
    assert tree.side_by_side == ["synth.face"]
    assert [(d.module, d.line, d.reason) for d in tree.deferred] == [
        ("synth.low.two", 2, True),
        ("synth.low.two", 3, True),
    ]
    assert tree.importers["synth.low.one"] == {"synth.face", "synth.high.three"}
    assert tree.single_importer == ["synth.high.three", "synth.low.two"]
    assert [(f.name, f.lines, f.reason) for f in tree.long_functions] == [("g", 62, False), ("h", 62, True)]
    assert tree.lines["emit"] == 2
    assert tree.rooms() == {"low": {"high"}, "high": {"low"}}
    assert house.against(tree.rooms(), [{"high"}, {"low"}]) == [("low", "high")]
    assert cycles(tree.module_graph()) == [["synth.high.three", "synth.low.two"]]
    text = house.structure(tree, tree, [{"high"}, {"low"}])
    assert "| modules side by side in `synth/` | 1 | 1 |" in text
    assert "`synth.high.three.g` 62 (no reason)" in text


def test_chains_count_a_cycle_as_one_floor() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "e": {"d"}}
    assert longest_chain(graph) == ["a", "b+c", "d"]
    assert components(graph)[0] == ["d"]


def test_this_house() -> None:
    """What must hold from now on: the figures of the page, but for lines."""
    today = House(ROOT)
    assert set(today.side_by_side) <= {"synth.synthesis"}
    assert len(longest_chain(today.rooms())) <= 10
    assert not cycles(today.module_graph())
    assert {room for layer in house.order() for room in layer} >= today.rooms().keys()


def ran(out: str = "", code: int = 0, err: str = "") -> Ran:
    return Ran(0.1, 0.1, code, out, err)


TABLE = "message size  steps  gap  proof\nall sizes         2  {}  cut\n"
ONE = Recorded((("a", ran(TABLE.format("1.500"))),), {"f": "0"})


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (ONE, EQUAL),
        (Recorded((("a", ran(TABLE.format("1.200"))),), {"f": "1"}), BETTER),
        (Recorded((("a", ran(TABLE.format("1.501"))),), {"f": "0"}), WORSE),
        (replace(ONE, files={"f": "1"}), SAME_GAPS),
        (Recorded((("a", ran(TABLE.format("1.500"), code=1)),), {"f": "0"}), WORSE),
    ],
)
def test_verdicts(after: Recorded, verdict: str) -> None:
    assert compare("q", ONE, after).verdict == verdict


def test_refusals_in_other_words() -> None:
    one, two = (Recorded((("a", ran(code=2, err=err)),)) for err in ("would be 1", "must be 1"))
    assert compare("q", one, two).verdict == MESSAGES


def test_enough_questions() -> None:
    assert len(QUESTIONS) >= 60
    assert len(house.sample()) > 40


def test_a_question_is_asked_of_both(tmp_path: Path) -> None:
    commands = QUESTIONS["topo"][:1]
    one, two = (record(ROOT, tmp_path / side, commands) for side in ("one", "two"))
    found = compare("topo", one, two)
    assert found.verdict == EQUAL
    assert "dgx1" in one.commands[0][1].out
    assert "1 questions, 1 commands" in house.answers([found])


def test_a_checkout_comes_and_goes(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        name = ["-c", "user.name=n", "-c", "user.email=e@x"]
        subprocess.run(["git", "-C", str(tmp_path), *name, *words], check=True, capture_output=True)

    git("init")
    (tmp_path / "a").write_text("a")
    git("add", "a")
    git("commit", "-m", "a")
    with checkout("HEAD", tmp_path) as path:
        assert (path / "a").read_text() == "a"
    assert not path.exists()
    with pytest.raises(SystemExit, match="revision nosuch"), checkout("nosuch", tmp_path):
        pass
