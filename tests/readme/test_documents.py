"""Tests that ARCHITECTURE.md, CONTRIBUTING.md and results/README.md name only existing files."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module

import pytest

from results.measuring.measure import ROOT
from synth.engines.registry import ENGINES

DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "results/README.md")
PACKAGES = "topologies|synth|emit|runtime|tests|results"
EXAMPLE_PATHS = {
    "results/scripts/NAME.py",
    "results/tables/NAME.md",
}  # Placeholders in instructions.


def named(text: str) -> set[str]:
    """Return paths in backticks and in blocks of commands, without the text after them."""
    paths = set(re.findall(rf"(?<![\w/.-])((?:{PACKAGES})/[\w./-]*\w)", text))
    return {p for p in paths if not p.startswith("tests/oracles") or "." in p} | set(
        re.findall(r"`([A-Z]+\.md|pyproject\.toml)`", text)
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    paths = named(text) - EXAMPLE_PATHS
    assert paths
    missing = sorted(path for path in paths if not (ROOT / path).exists())
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_modules_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for name in set(re.findall(r"-m (results\.scripts\.\w+)", text)) - {"results.scripts.NAME"}:
        assert (ROOT / (name.replace(".", "/") + ".py")).exists(), name


def test_names_beside_a_file_occur_in_it() -> None:
    """Check that the names in brackets after a file in ARCHITECTURE.md occur in that file."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    pairs = re.findall(r"`([\w/]+\.py)` \(((?:`[^`]+`(?:, )?)+)", text)
    pairs += [(path, f"`{name}`") for name, path in re.findall(r"`([A-Z]+)` in `([\w/]+\.py)`", text)]
    assert len(pairs) > 10
    for path, names in pairs:
        source = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)", names):
            assert re.search(rf"\b{name}\b", source), (path, name)


def test_every_script_and_table_is_listed() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "results" / "scripts").glob("[a-z]*.py"):
        assert f"results.scripts.{path.stem}" in text
    for path in (ROOT / "results" / "tables").glob("*.md"):
        assert f"tables/{path.name}" in text or path.name.startswith("gpu-")


def test_the_order_of_rooms_follows_the_import_contract() -> None:
    """Check that the page's line has every room of the linter's layers, in an order that they allow."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    line = next(part for part in text.splitlines() if part.startswith("model ←"))
    place = {room: i for i, rooms in enumerate(line.split(" ← ")) for room in rooms.split(", ")}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c.get("containers") == ["synth"])
    rooms = [re.findall(r"\w+", layer) for layer in layers]
    assert place.keys() == {room for layer in rooms for room in layer} - {"synthesis"}
    order = [max(place[room] for room in layer if room in place) for layer in rooms if set(layer) & place.keys()]
    assert order == sorted(order, reverse=True)


def test_the_example_question_is_registered() -> None:
    """Check that the rows that the page names have these names."""
    kind = import_module("synth.model.registry").COLLECTIVE_KINDS["allgather"]
    assert "allgatherintotensor" in kind.spellings


def test_the_site_searches_without_a_network() -> None:
    """Check that the plugin for pages in a folder gets its script from the site, which it would load from elsewhere."""
    settings = (ROOT / "docs/mkdocs.yml").read_text()
    assert re.search(r"^  - offline$", settings, re.MULTILINE)
    (scripts,) = re.findall(r"^  polyfills: \[(.*?)\]", settings, re.MULTILINE)
    assert "iframe-worker" in scripts  # By this name the plugin knows that it need not add its own.
    for script in scripts.split(", "):
        assert (ROOT / "docs/pages" / script).is_file()


def test_the_guide_on_reading_explains_every_column() -> None:
    source = (ROOT / "synth" / "app" / "present" / "table.py").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "pages" / "guides" / "reading.md").read_text(encoding="utf-8")
    titles = re.findall(r'\bColumn\("([^"]+)"', source)
    assert "slowdown" in titles
    assert [title for title in titles if f"\n| {title} |" not in guide] == []


def test_the_guide_has_one_row_for_each_engine() -> None:
    """Check that variants are named in the row of the engine that they are variants of."""
    text = (ROOT / "docs" / "pages" / "guides" / "engines.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)
    assert rows == list(dict.fromkeys(rows))
    assert set(rows) == {name for name, row in ENGINES.items() if row.in_auto}
    assert all(f"`{name}`" in text for name in ENGINES)


def test_no_document_has_marks_of_an_unfinished_merge() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")]
    assert len(documents) > 50
    for document in documents:
        assert not re.search(r"^(<<<<<<<|>>>>>>>) ", document.read_text(encoding="utf-8"), re.MULTILINE), document
