"""Tests that wrong text is refused in one line with the place and what would be right."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topologies.topology_texts import GOOD, NIC, complaint
from topologies.errors import InputError
from topologies.load import load, load_machine
from topologies.machines import machines
from topologies.text.reader import from_toml, read_machine
from topologies.text.writer import to_toml

MATRIX = 'name = "m"\nranks = 2\n[[links]]\nmatrix = {}\ngbs = 1\nalpha_us = 0\n'


def refused(text: str) -> str:
    with pytest.raises(InputError) as error:
        from_toml(text, "f.toml")
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 500
    assert line.startswith("f.toml")
    return line


def test_the_right_text_is_read() -> None:
    assert from_toml(GOOD + NIC, "f.toml").nlinks == 8


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "x"\n', "", "name: missing"),
        ('name = "x"', "name = 3", "f.toml:1: name: 3 is no text"),
        ('name = "x"', 'name = ""', "is no name"),
        ('name = "x"', 'name = "a\\nb"', "is no name"),
        ("ranks = 4", "", "ranks: missing"),
        ("ranks = 4", "ranks = 0", "f.toml:2: ranks: 0 is out of range; it must be 1 to 1000000"),
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
        ("ranks = 4", "ranks = 4\nsms = 0", "f.toml:3: sms: 0 is out of range; it must be 1 to 4096"),
        ("ranks = 4", "ranks = 4\nsms = 1.5", "no whole number"),
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
        ('to = "s"', "", "must have exactly one of"),
        ('to = "s"', 'to = "s"\npairs = "0>1"', "must have exactly one of"),
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
        ("[[limits]]", "[limits]", "each begun by a line [[limits]]"),
        ("[[links]]", "[links]", "each begun by a line [[links]]"),
        ("[[links]]", "[links", "not TOML"),
        ('"0-3"', '"0-3', "not TOML"),
        ("ranks = 4", "ranks = 4\nranks = 4", "each name must stand once"),
        ("gbs = 30", "gbs = fast", "a text must stand in quotes"),
    ],
)
def test_one_wrong_line(old: str, new: str, message: str) -> None:
    assert old in GOOD
    assert message in refused(GOOD.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
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
        ("[nic]", "[[nic]]", "begun by a line [nic]"),
    ],
)
def test_one_wrong_line_about_nics(old: str, new: str, message: str) -> None:
    assert old in NIC
    assert message in refused(GOOD + NIC.replace(old, new, 1))


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


def test_too_many_links_are_refused_early() -> None:
    text = 'name = "x"\nranks = 1000000\n[[links]]\nfrom = "0-999999"\nto = "0-999999"\ngbs = 1\nalpha_us = 0\n'
    assert "too many links" in refused(text)


@pytest.mark.parametrize("text", ["", "[" * 9000, "a = " + "[" * 9000, "\x00", "\ufeff", "x = 2020-13-45", "🤖"])
def test_texts_that_are_no_topologies(text: str) -> None:
    refused(text)


PIECES = [
    "0", "-1", "nan", "1e400", '""', '"s"', "[]", "{}", "true", "[[links]]", "[nic]", "pairs",
    "matrix = [[0]]", ">",
    "0-9", "9-0", '"0>1"', "\n", "'", '"""', "ranks = 2", "both = true", "999999999999", "[", "]", "=",
    "\x7f", "é", ".",
]  # fmt: skip


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_mutated_text_is_read_or_refused(seed: int) -> None:
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


def test_a_base_states_what_a_file_does_not() -> None:
    """Check that tables are completed key by key, and that other values replace the base's."""
    text = 'name = "mine"\nbase = "dgx-h100"\n[nic]\ngbs = 25\n[costs.LL]\nstart_us = 1\n'
    machine, base = read_machine(text, "mine.toml"), load_machine("dgx-h100")
    assert machine.topology.name == "mine"
    assert machine.topology.nlinks == base.topology.nlinks
    assert machine.nics is not None
    assert base.nics is not None
    assert (machine.nics.gbs, len(machine.nics.sends)) == (25, len(base.nics.sends))
    protocols = [m.topology.costs.protocols for m in (machine, base) if m.topology.costs is not None]
    assert protocols[0]["LL"] == replace(protocols[1]["LL"], start_us=1)
    assert protocols[0]["Simple"] == protocols[1]["Simple"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('base = "dgx-h101"', "f.toml:2: base: 'dgx-h101' is no machine of the package; did you mean dgx-h100"),
        ('base = "../x.toml"', "f.toml:2: base: '../x.toml' is no machine of the package; it must be one of a2-"),
        ("base = 1", "f.toml:2: base: 1 is no text"),
        ('base = "dgx-h100"\nranks = 3', "f.toml: [[links]] number 1: from: rank 7 does not exist; it must be 0 to 2"),
    ],
)
def test_a_wrong_base(lines: str, message: str) -> None:
    assert message in refused(f'name = "x"\n{lines}\n')
