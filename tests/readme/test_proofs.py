"""Tests that the guide on reading explains every form of text that names what proves a bound."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

import synth
from synth.bounds.prove import prove
from synth.model.problem import make_problem
from tests.readme.blocks import README
from topologies.load import load

ROOT = README.parent
RANKS = re.compile(r"\{[^{}`]*\}|\ball \d+ ranks\b")
NUMBER = re.compile(r"\b\d[\d.]*(?:e[+-]?\d+)?\b")
PLACE = re.compile(r"(?<=^path )\S+→\S+(?=,)|(?<=^one hop or two: ).*(?=, [^,]* GB/s$)")


def explained() -> str:
    """Return the part of the guide that explains proofs."""
    guide = (ROOT / "docs" / "pages" / "guides" / "reading.md").read_text(encoding="utf-8")
    return guide.partition("## What proves a bound")[2].partition("\n## ")[0]


def form_of(text: str) -> str:
    """Return a text of a proof with S for a set of ranks, P for a pair or a resource, and N for a number."""
    own = re.sub(r"^(LL|LL128|Simple): ", "", text)
    return NUMBER.sub("N", PLACE.sub("P", RANKS.sub("S", own)))


def forms() -> set[str]:
    """Return the forms of the texts in backquotes that the guide explains."""
    return {form_of(quoted) for quoted in re.findall(r"`([^`]+)`", explained())}


def written_words() -> Iterator[str]:
    """Yield the fixed words of each text that a search for bounds writes, with all alternatives, from the sources."""
    for path in sorted((ROOT / "synth" / "bounds").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_text = (
                (isinstance(node, ast.keyword) and node.arg == "text")
                or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "text")
                or (isinstance(node, ast.Call) and ast.unparse(node.func) == "_claim" and len(node.args) == 2)
                or (isinstance(node, ast.FunctionDef) and node.name == "_text")
            )
            for part in ast.walk(node) if is_text else ():
                if isinstance(part, ast.JoinedStr | ast.Constant) and not ast.unparse(part).startswith('"""'):
                    pieces = part.values if isinstance(part, ast.JoinedStr) else [part]
                    constants = [piece.value for piece in pieces if isinstance(piece, ast.Constant)]
                    yield from (
                        word.strip(" ,:{}") for word in constants if isinstance(word, str) and len(word.split()) < 9
                    )


def test_the_guide_has_the_words_of_every_text() -> None:
    words = {word for word in written_words() if re.search("[a-z]{3}", word)}
    assert {"µs before the end", "windows of time up to", "link lengths, every port alike", "inward"} <= words
    assert sorted(word for word in words if word not in explained()) == []


def test_a_form_without_an_explanation_is_noticed() -> None:
    assert form_of("LL: cut {3, 4}, 25 GB/s, after 0 µs, 2.5e+03 µs before the end") in forms()
    assert form_of("cut {3}, 25 GB/s, before the start") not in forms()


@pytest.mark.parametrize(
    ("topo", "collective"),
    [("dgx1", "allreduce"), ("ring:6", "broadcast"), ("dgx-a100:2", "alltoall"), ("mesh:4x4", "allgather")],
)
def test_texts_of_bounds_have_explained_forms(topo: str, collective: str) -> None:
    problem = make_problem(load(topo), collective)
    witnesses = [witness for size in (None, 1 << 10, 1 << 20) for witness in prove(problem, size_bytes=size).witnesses]
    assert {form_of(witness.text) for witness in witnesses} <= forms()


def test_proofs_of_answers_have_explained_forms() -> None:
    """Check the whole proof of each row, with costs, as --wide and --json show it."""
    answer = synth.synthesize("allreduce", "dgx-a100", group=[0, 2, 4, 6], engine="route", budget=3)
    for row in answer.algorithms:
        proof = re.sub(r"^(bandwidth-|latency-)?optimal: ", "", row["proof"])
        assert form_of(proof) in forms()
