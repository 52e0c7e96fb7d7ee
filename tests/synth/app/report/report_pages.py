"""Parsed pages: their elements, what they would fetch, and schedules to make pages of."""

from __future__ import annotations

import base64
import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from synth.bounds.prove import prove
from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.model.schedule import untimed
from synth.storage.proof import save_proof
from synth.storage.schedule_file import load_schedule, write_schedule
from synth.symmetry.quotient import quotient_problem
from synth.timing.simulate import timed
from synth.verify.replay import replay
from tests.random_problems import answered
from topologies.load import load
from topologies.topology import Topology

NOTHING = (
    '<algo name="x" proto="LL" nchannels="1" nchunksperloop="1" ngpus="2" coll="custom" inplace="0">\n'
    + "".join(f'<gpu id="{rank}" i_chunks="1" o_chunks="1" s_chunks="0">\n</gpu>\n' for rank in range(2))
    + "</algo>\n"
)
VOID = frozenset({"meta", "input", "br", "link", "img", "hr"})
FETCHES = (
    "src",
    "href",
    "srcset",
    "data",
    "action",
    "poster",
    "background",
    "xlink:href",
    "formaction",
    "ping",
)


class Elements(HTMLParser):
    """All elements of a page with their attributes; parsing raises AssertionError if one is not closed in its place."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.result: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), (tag, names)
        self.result.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.result.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, (self.open[-3:], tag)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def text_of(self, tag: str) -> str:
        return " ".join(text for name, text in self.texts if name == tag)


def fetched(html: str) -> list[str]:
    """Return everything that a browser would fetch from elsewhere: all references but those into the page itself."""
    page = Elements(html)
    references = [
        str(value)
        for _, attributes in page.result
        for name, value in attributes.items()
        if name in FETCHES and not str(value).startswith("#")
    ]
    styles = [page.text_of("style"), *(str(a["style"]) for _, a in page.result if a.get("style"))]
    for style in styles:
        references += re.findall(r"@import[^;]*|url\([^)]*\)", style)
    code = page.text_of("script")
    references += re.findall(
        r"https?://[^\s\"'`]+|\b(?:fetch|XMLHttpRequest|WebSocket|importScripts|import)\s*\(", code
    )
    references += [tag for tag, _ in page.result if tag in ("link", "img", "iframe", "object", "embed", "base")]
    return references


def page_data(html: str) -> dict[str, Any]:
    """Return the figures in a page; raise AssertionError unless there is exactly one script of them."""
    scripts = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert len(scripts) == 1
    data: dict[str, Any] = json.loads(scripts[0])
    return data


def opened(table: dict[str, object]) -> np.ndarray:
    """Decode a page's table of shares, shape (rows, bins)."""
    kinds = np.frombuffer(base64.b64decode(str(table["data"])), dtype=np.uint8).reshape(-1, int(str(table["bins"])))
    return kinds[np.array(table["row"], dtype=np.int64)] / 255


def stored(folder: Path, problem: Problem, size_bytes: float = 1 << 20, proof: bool = False) -> Path:
    """Write a schedule file of the constructive engine's answer, with its proof if `proof`."""
    schedule = timed(problem, answered(problem, 1e6), size_bytes)
    replay(problem, schedule)
    path = write_schedule(
        folder / f"{problem.collective.name}-{random.Random(1).random()}.synth", problem, schedule, "route"
    )
    if proof:
        again = load_schedule(path)
        save_proof(path, again.bounded_problem, prove(again.bounded_problem).witnesses, size_bytes, again.claimed_us)
    return path


def straight(folder: Path, spec: str, size_bytes: float = 1 << 20) -> Path:
    """Write an all-to-all on a torus or a full mesh as the file of a quotient: dimension by dimension, upwards."""
    problem = quotient_problem(load(spec), "alltoall")
    assert problem is not None
    net, k = problem.network, problem.collective.nranks
    order = np.lexsort((net.dst, net.src))
    pair = (net.src * k + net.dst)[order]
    rows: list[tuple[int, int, int]] = []
    dims = [int(n) for n in spec.split(":")[1].split("x")]
    for chunk, goal in enumerate(range(k)):
        for step, (a, b) in enumerate(_legs(goal, dims if len(dims) > 1 else [])):
            rows.append((step, chunk, int(order[np.searchsorted(pair, a * k + b)])))
    rows.sort()
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    schedule = timed(problem, untimed(columns[1], columns[2], columns[0], np.zeros(len(rows), dtype=bool)), size_bytes)
    return write_schedule(folder / f"{spec.replace(':', '-')}.synth", problem, schedule, "straight")


def _legs(goal: int, dims: list[int]) -> list[tuple[int, int]]:
    """Return the links from rank 0 to `goal`."""
    if not dims:
        return [(0, goal)] if goal else []
    legs, at, stride = [], 0, 1
    for extent in reversed(dims):
        digit = goal // stride % extent
        up = 1 if digit <= extent // 2 else -1
        while at // stride % extent != digit:
            after = at + ((at // stride + up) % extent - at // stride % extent) * stride
            legs.append((at, after))
            at = after
        stride *= extent
    return legs


def spread(folder: Path, topology: Topology, size_bytes: float = 1 << 20) -> Path:
    """Write the quotient of an allgather: every representative's block along a tree of shortest paths."""
    problem = quotient_problem(topology, "allgather")
    assert problem is not None
    net = problem.network
    rows: list[tuple[int, int, int]] = []
    for owner, chunk in problem.collective.pre.tolist():
        depth, last = {owner: 0}, [owner]
        while last:
            reached = []
            for link in np.flatnonzero(np.isin(net.src, last)).tolist():
                a, b = int(net.src[link]), int(net.dst[link])
                if b not in depth:
                    depth[b] = depth[a] + 1
                    rows.append((depth[a], chunk, link))
                    reached.append(b)
            last = reached
    rows.sort()
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    schedule = timed(problem, untimed(columns[1], columns[2], columns[0], np.zeros(len(rows), dtype=bool)), size_bytes)
    replay(problem, schedule)
    return write_schedule(folder / "spread.synth", problem, schedule, "spread")


def rows_of(ptr: Ints | list[int], i: int) -> range:
    return range(int(ptr[i]), int(ptr[i + 1]))
