"""The page about a ranking of placements: every rank once for each axis, coloured groups, bars to scale, refusals."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from synth.app.present.placement import placement_statement
from synth.app.report.placement import find_placement, placement_page
from synth.parallelism.axes import parse_axes
from synth.parallelism.placement import rank_placements
from synth.parallelism.workload import Call, Workload
from topologies.errors import InputError
from topologies.levels.hierarchy import find_levels
from topologies.load import load

STEP = Workload((Call("<tp>", "allreduce", (1,), 64 << 20), Call("dp", "reducescatter", (0,), 64 << 20)))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    topology = load("mi250")
    levels = find_levels(topology)
    ranking = rank_placements(topology, levels, parse_axes("dp=4,tp=4", levels), STEP, top=0)
    return dict(json.loads(json.dumps(placement_statement(ranking))))


class Reader(HTMLParser):
    """A parser that checks the order of tags, and keeps the text and attributes of devices and bars."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.devices: list[list[tuple[int, str]]] = []
        self.widths: list[float] = []
        self.hue = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link"):
            self.open.append(tag)
        style = dict(attrs).get("style") or ""
        if tag == "figure":
            self.devices.append([])
        self.hue = style if tag == "i" and style.startswith("--h:") else ""
        if style.startswith("width:"):
            self.widths.append(float(style[6:-1]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.hue:
            self.devices[-1].append((int(data), self.hue))
            self.hue = ""


def test_a_drawing_has_every_rank_once_in_the_colour_of_its_group(document: dict[str, Any]) -> None:
    html = placement_page(document, "x")
    reader = Reader()
    reader.feed(html)
    assert not reader.open
    assert len(reader.devices) == 2
    for axis, devices in zip(("dp", "tp"), reader.devices, strict=True):
        assert [rank for rank, _ in devices] == document["ranks"]
        hue = dict(devices)
        groups = document["placements"][0]["groups"][axis]
        assert all(len({hue[rank] for rank in group}) == 1 for group in groups)
        assert len({hue[group[0]] for group in groups}) == len(groups)
    assert "<tp>" not in html
    assert "&lt;tp&gt;" in html
    assert not re.search(r"<script|https?://|url\(", html)


def test_bars_are_to_scale(document: dict[str, Any]) -> None:
    reader = Reader()
    reader.feed(placement_page(document, "x"))
    times = [row["time_us"] for row in document["placements"]]
    assert reader.widths[-len(times) :] == pytest.approx([100 * time / max(times) for time in times], abs=0.06)
    best = document["placements"][0]
    assert max(best["level_us"]) == pytest.approx(best["busy_us"])


def test_a_ranking_is_found_in_a_file_and_a_folder(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    path.write_text(json.dumps(document))
    assert find_placement(path) == find_placement(tmp_path) == document
    path.write_text('{"format": "other"}')
    assert find_placement(tmp_path) is None


@pytest.mark.parametrize("change", ["placements", "levels", "order", "groups", "level_us", "default"])
def test_an_incomplete_ranking_is_refused(document: dict[str, Any], change: str) -> None:
    wrong = copy.deepcopy(document)
    if change == "order":
        wrong["placements"][0]["order"][0] = 99
    elif change == "default":
        wrong["default"] = 999
    elif change == "levels":
        wrong["levels"]["gpu"] = 3
    elif change == "placements":
        del wrong["placements"]
    else:
        del wrong["placements"][0][change]
    with pytest.raises(InputError, match=r"^x: is not a complete ranking"):
        placement_page(wrong, "x")
