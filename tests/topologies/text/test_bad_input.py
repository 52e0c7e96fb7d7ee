"""Whatever is wrong with the input, the answer is one line that says what, where and what would be right."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.errors import InputError
from topologies.load import MAX_FILE_BYTES, load, machines
from topologies.text.reader import from_toml
from topologies.text.writer import to_toml
from topologies.topology import Limit, Topology

GOOD = """name = "x"
ranks = 4
switches = ["s"]

[[links]]
from = "0-3"
to = "s"
both = true
gbs = 25
alpha_us = 0.7

[[limits]]
name = "root"
pairs = "0-1>s"
gbs = 30
"""
NIC = '\n[nic]\ncount = 2\ngbs = 10\nalpha_us = 2\nfabric = "one"\n'
MATRIX = 'name = "m"\nranks = 2\n[[links]]\nmatrix = {}\ngbs = 1\nalpha_us = 0\n'


def complaint(read: Callable[[], Topology]) -> str:
    """The InputError's message, "" where there is none; anything else goes through and fails the test."""
    try:
        read()
    except InputError as error:
        return str(error)
    return ""


def refused(text: str) -> str:
    with pytest.raises(InputError) as error:
        from_toml(text, "f.toml")
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 500
    assert line.startswith("f.toml")
    return line


def test_the_good_one_is_good() -> None:
    assert from_toml(GOOD + NIC, "f.toml").nlinks == 8


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "x"\n', "", "name: missing"),
        ('name = "x"', "name = 3", "f.toml:1: name: 3 is no text"),
        ('name = "x"', 'name = ""', "is no name"),
        ('name = "x"', 'name = "a\\nb"', "is no name"),
        ("ranks = 4", "", "ranks: missing"),
        ("ranks = 4", "ranks = 0", "f.toml:2: ranks: 0 is out of range; must be 1 to 1000000"),
        ("ranks = 4", "ranks = -1", "out of range"),
        ("ranks = 4", "ranks = 1000001", "out of range"),
        ("ranks = 4", "ranks = 4.0", "no whole number"),
        ("ranks = 4", "ranks = true", "no whole number"),
        ("ranks = 4", "ranks = 0x" + "f" * 9000, "more than 30 digits"),
        ("ranks = 4", "ranks = " + "9" * 9000, "f.toml"),
        ("ranks = 4", "rank = 4", "did you mean ranks"),
        ("ranks = 4", "ranks = 3", "f.toml:6: [[links]] number 1: from: rank 3 does not exist"),
        ('["s"]', '"s"', "is no array"),
        ('["s"]', "[1]", "holds 1"),
        ('["s"]', '["s", "s"]', "named twice"),
        ('["s"]', '["1s"]', "no switch name"),
        ('["s"]', '["s[3-1]"]', "counts down"),
        ('["s"]', '["s[0-999999999]"]', "at most"),
        ('["s"]', '["t"]', "'s' is no rank and no switch"),
        ("ranks = 4", "ranks = 4\nnodes = 3", "is no array"),
        ("ranks = 4", 'ranks = 4\nnodes = ["0-1"]', "rank 2 is in no node"),
        ("ranks = 4", 'ranks = 4\nnodes = ["0-2", "2-3"]', "earlier node"),
        ("ranks = 4", "ranks = 4\nalpha_assumed = 1", "neither true nor false"),
        ("ranks = 4", "ranks = 4\nsummary = []", "is no text"),
        ("gbs = 25", "gbs = 0", "f.toml:9: [[links]] number 1: gbs: 0 is out of range"),
        ("gbs = 25", "gbs = -3", "out of range"),
        ("gbs = 25", "gbs = nan", "out of range"),
        ("gbs = 25", "gbs = inf", "out of range"),
        ("gbs = 25", 'gbs = "25"', "is no number"),
        ("gbs = 25", "gbs = true", "is no number"),
        ("gbs = 25", "gb = 25", "did you mean gbs"),
        ("gbs = 25", "", "f.toml:5: [[links]] number 1: gbs: missing"),
        ("alpha_us = 0.7", "alpha_us = -0.7", "out of range"),
        ("alpha_us = 0.7", "alpha_us = nan", "out of range"),
        ("alpha_us = 0.7", "", "alpha_us: missing"),
        ("alpha_us = 0.7", "alpha_us = 1979-05-27", "is no number"),
        ("both = true", 'both = "yes"', "neither true nor false"),
        ('to = "s"', "", "give exactly one of"),
        ('to = "s"', 'to = "s"\npairs = "0>1"', "give exactly one of"),
        ('to = "s"', 'to = ""', "is no rank"),
        ('to = "s"', 'to = "0-3"', "already given"),
        ('from = "0-3"', 'from = "0,0"', "names a vertex twice"),
        ('from = "0-3"', 'from = "3-0"', "counts down"),
        ('from = "0-3"\nto = "s"', 'from = "2"\nto = "2"', "to itself"),
        ('from = "0-3"\nto = "s"', 'pairs = "0-1"', "is no pair"),
        ('from = "0-3"\nto = "s"', 'pairs = " "', "is empty"),
        ('from = "0-3"\nto = "s"', 'pairs = "0>s>1"', "is no rank"),
        (
            "[[limits]]",
            '[[links]]\npairs = "s>2"\ngbs = 1\nalpha_us = 1\n[[limits]]',
            "number 2: link s>2 was",
        ),
        ("0-1>s", "0>1", "0>1 is no link"),
        ('name = "root"', 'name = ""', "[[limits]] number 1: name"),
        ("gbs = 30", "gbs = 0", "[[limits]] number 1: gbs"),
        ("[[limits]]", "[limits]", "begin each with a line [[limits]]"),
        ("[[links]]", "[links]", "begin each with a line [[links]]"),
        ("[[links]]", "[links", "not TOML"),
        ('"0-3"', '"0-3', "not TOML"),
        ("ranks = 4", "ranks = 4\nranks = 4", "not TOML"),
    ],
)
def test_one_wrong_thing(old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in refused(GOOD.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("count = 2", "count = 3", "do not divide"),
        ("count = 2", "count = 0", "out of range"),
        ("count = 2", "", "count: missing"),
        ("count = 2", 'serves = ["0-1", "1-3"]', "a rank is on two NICs"),
        ("count = 2", "serves = []", "at least one"),
        ("count = 2", 'sends = ["0"]', "receives: missing"),
        ("count = 2", 'serves = ["0"]\nsends = ["1"]', "stands for both"),
        ("count = 2", 'count = 3\nserves = ["0"]', "does not agree"),
        ("count = 2", 'serves = ["9"]', "rank 9 does not exist"),
        ('"one"', '"two"', "must be"),
        ('"one"', "3", "must be"),
        ("gbs = 10", "gbs = 0", "[nic]: gbs: 0 is out of range"),
        ("alpha_us = 2", "", "[nic]: alpha_us: missing"),
        ("count", "counts", "did you mean count"),
        ("[nic]", "[[nic]]", "begin it with a line [nic]"),
    ],
)
def test_one_wrong_thing_about_nics(old: str, new: str, said: str) -> None:
    assert old in NIC
    assert said in refused(GOOD + NIC.replace(old, new, 1))


@pytest.mark.parametrize(
    "matrix",
    [
        "3", "[[0, 1]]", "[[0, 1], [1]]", "[[0, 1], 1]", "[[1, 0], [0, 0]]", "[[0, -1], [0, 0]]",
        "[[0, nan], [0, 0]]",
        '[[0, "1"], [0, 0]]', "[[0, true], [0, 0]]", "[[0, inf], [0, 0]]", "[[0, 1e-30], [0, 0]]",
        "[[0, 0x" + "f" * 999 + "], [0, 0]]",
    ],
)  # fmt: skip
def test_bad_matrices(matrix: str) -> None:
    assert "matrix" in refused(MATRIX.format(matrix))


def test_too_many_links_are_refused_before_they_are_made() -> None:
    text = (
        'name = "x"\nranks = 1000000\n[[links]]\nfrom = "0-999999"\nto = "0-999999"\ngbs = 1\nalpha_us = 0\n'
    )
    assert "too many links" in refused(text)


@pytest.mark.parametrize(
    "text", ["", "[" * 9000, "a = " + "[" * 9000, "\x00", "\ufeff", "x = 2020-13-45", "🤖"]
)
def test_no_topology_at_all(text: str) -> None:
    refused(text)


@pytest.mark.parametrize(
    "spec",
    [
        "", "dgx", "dgx1:", "dgx1:2", "dgx1:x", "dgx-a100:0", "dgx-a100:-1", "dgx-a100:2:2",
        "dgx-a100:9999999",
        "dgx-a100,bw=3", "ring", "ring:", "ring:0", "ring:1", "ring:-3", "ring:8x8", "ring:8.5",
        "ring:99999999",
        "full:100000", "hypercube:64", "hypercube:9999999", "fattree:3", "fattree:2x2", "fattree:0",
        "fattree:999999",
        "dragonfly:2", "torus:", "torus:2x", "torus:1000x1000x1000", "mesh:0x3", "ring:8,", "ring:8,bw",
        "ring:8,bw=",
        "ring:8,bw=0", "ring:8,bw=-1", "ring:8,bw=nan", "ring:8,bw=1e999", "ring:8,bw=1,bw=2",
        "ring:8,latency=1",
        "ring:8,alpha=inf", "ring:8,alpha=--1", "nothere.toml", "nothere.toml:2", "/", "a\0b.toml", "\n",
        "x" * 9000,
        "y" * 9000 + ".toml", "dgx1\n", "ring:٣",
    ],
)  # fmt: skip
def test_bad_specs(spec: str) -> None:
    with pytest.raises(InputError) as error:
        load(spec)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_near_names_are_offered() -> None:
    for wrong, right in (("dgx-a10", "dgx-a100"), ("tours:4x4", "torus"), ("ndv", "ndv2"), ("DGX1", "dgx1")):
        with pytest.raises(InputError, match=f"did you mean.*{right}"):
            load(wrong)


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "good.toml"
    good.write_text(GOOD + NIC)
    assert load(good).nranks == load(str(good)).nranks == 4
    assert load(f"{good}:3").nranks == 12
    assert load(f"{good}:3").name == "good.toml:3"
    good.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load(good).nlinks == 8
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b'name = "x"\n\xff')
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 1)
    for path, said in (
        (bad, "bad.toml:2: byte 0xff"),
        (pipe, "not a plain"),
        (huge, "16 MiB"),
        (tmp_path, "a directory"),
    ):
        with pytest.raises(InputError, match=said):
            load(path)
    good.write_text('name = "x"\nranks = =')
    with pytest.raises(InputError, match=r"good\.toml:2: not TOML"):
        load(good)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"link_src": [0, 0.5]}, "whole numbers"), ({"link_src": [0, 2]}, "0 to 1"),
        ({"link_src": [0, 0]}, "different"),
        ({"link_src": [-1, 1]}, "0 to 1"), ({"link_dst": [1]}, "equally long"),
        ({"link_src": [0], "link_dst": [1]}, "equ"),
        ({"alpha_us": [0, np.nan]}, "alpha_us"), ({"alpha_us": [0, -1]}, "alpha_us"),
        ({"bandwidth_gbs": [1, 0]}, "GB/s"),
        ({"bandwidth_gbs": [1, np.inf]}, "GB/s"), ({"bandwidth_gbs": ["a", "b"]}, "numbers"),
        ({"nranks": 0}, "1 to"),
        ({"nranks": 2.0}, "whole"), ({"name": ""}, "name"), ({"switches": ("a", "a")}, "two switches"),
        ({"switches": ("3",)}, "letter"), ({"link_src": [0, 0], "link_dst": [1, 1]}, "both go 0→1"),
        ({"nodes": [0]}, "nodes"),
        ({"nodes": [0, 5]}, "nodes"), ({"limits": (Limit("l", np.array([2]), 1.0),)}, "no link 2"),
        ({"limits": (Limit("l", np.array([0]), 0.0),)}, "GB/s"),
        ({"limits": (Limit("l", np.array([]), 1.0),)}, "no link"),
        ({"limits": (Limit("l", np.array([0]), 1.0), Limit("l", np.array([1]), 1.0))}, "two limits"),
    ],
)  # fmt: skip
def test_the_constructor_refuses(change: dict[str, object], said: str) -> None:
    parts: dict[str, object] = {
        "name": "x", "nranks": 2, "switches": (), "link_src": [0, 1], "link_dst": [1, 0], "alpha_us": [0, 0],
        "bandwidth_gbs": [1, 1],
    }  # fmt: skip
    with pytest.raises(InputError, match=said) as error:
        Topology(**{**parts, **change})  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_links_are_sorted_and_limits_follow() -> None:
    t = Topology(
        "x", 3, (), np.array([2, 0]), np.array([0, 1]), np.array([1.0, 2]), np.array([3.0, 4]),
        (Limit("l", np.array([0]), 1.0),),
    )  # fmt: skip
    assert t.link_src.tolist() == [0, 2]
    assert t.alpha_us.tolist() == [2, 1]
    assert t.limits[0].links.tolist() == [1]
    with pytest.raises(ValueError, match="read-only"):
        t.link_src[0] = 1
    assert t.vertex_name(2) == "2"
    with pytest.raises(InputError, match="no vertex 3"):
        t.vertex_name(3)


PIECES = [
    "0", "-1", "nan", "1e400", '""', '"s"', "[]", "{}", "true", "[[links]]", "[nic]", "pairs",
    "matrix = [[0]]", ">",
    "0-9", "9-0", '"0>1"', "\n", "'", '"""', "ranks = 2", "both = true", "999999999999", "[", "]", "=",
    "\x7f", "é", ".",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_mutated_text_never_breaks(seed: int) -> None:
    rng = random.Random(seed)
    names = machines()
    text = GOOD + NIC if rng.random() < 0.5 else to_toml(load(rng.choice(names)))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + rng.randint(1, 9) :]
        elif kind == 2:
            lines = text.split("\n")
            line = rng.randrange(len(lines))
            key, equals, _ = lines[line].partition("=")
            lines[line] = key + equals + " " + rng.choice(PIECES)
            text = "\n".join(lines)
        else:
            lines = text.split("\n")
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            text = "\n".join(lines)
    line = complaint(lambda: from_toml(text, "f.toml"))
    assert "\n" not in line
    assert len(line) < 600


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.text(max_size=40), st.from_regex(r"(ring|torus|fattree|dgx2|full|dragonfly):[0-9x,=a-z.]{0,12}")
    )
)
def test_any_spec_is_loaded_or_refused(spec: str) -> None:
    assert "\n" not in complaint(lambda: load(spec))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_topology_round_trips(data: st.DataObject) -> None:
    nranks = data.draw(st.integers(1, 12))
    switches = data.draw(
        st.lists(st.from_regex(r"[a-zA-Z][a-z0-9_.:/-]{0,3}", fullmatch=True), unique=True, max_size=5)
    )
    v = nranks + len(switches)
    pairs = [(a, b) for a in range(v) for b in range(v) if a != b]
    chosen = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else []
    figure = st.floats(1e-9, 1e9)
    count = len(chosen)
    few = data.draw(st.lists(figure, min_size=1, max_size=3))
    limits = tuple(
        Limit(
            f"limit {i}",
            np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1))),
            data.draw(figure),
        )
        for i in range(data.draw(st.integers(0, 3)) if count else 0)
    )
    t = Topology(
        "t", nranks, tuple(switches), np.array([a for a, _ in chosen], dtype=int),
        np.array([b for _, b in chosen], dtype=int),
        np.array([data.draw(st.sampled_from([0.0, *few])) for _ in chosen]),
        np.array([data.draw(st.sampled_from(few)) for _ in chosen]), limits,
        nodes=np.array(data.draw(st.lists(st.integers(0, nranks - 1), min_size=nranks, max_size=nranks))),
        summary=data.draw(st.text()), source=data.draw(st.text()),
    )  # fmt: skip
    text = to_toml(t)
    again = from_toml(text, "again")
    assert to_toml(again) == text
    for name in ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "nodes"):
        assert np.array_equal(getattr(t, name), getattr(again, name))
    assert [x.links.tolist() for x in t.limits] == [x.links.tolist() for x in again.limits]
    assert (t.switches, t.summary, t.source) == (again.switches, again.summary, again.source)
