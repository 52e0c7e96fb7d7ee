"""Tests that any dump is read or refused in one line, and that a machine keeps its links in the text form."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import pytest

from tests.topologies.importers.simulators import FILES, NETGRAPH, STAR
from tests.topologies.importers.test_by_hand import CASES
from tests.topologies.importers.test_topograph import AS_JSON, MODEL, SLURM
from topologies.clusters import Machine
from topologies.errors import InputError
from topologies.importers import format_of
from topologies.text.reader import read_machine
from topologies.text.writer import to_toml

DUMPS = [*(case.dump for case in CASES), *(json.dumps(document) for document in AS_JSON), SLURM, MODEL, *FILES]
MUTATIONS = 8  # Of each dump.
ODD = ["", "X", "NV99", "-1", "9" * 30, "1e308", "NaN", "GPU0", "XGMI", "\x00", "é", "<", "&", "[", "{", '"', "\t", "="]


def read(text: str) -> Machine:
    return format_of(text).machine(text, "dump")


def is_handled(text: str, reader: Callable[[str], Machine] = read) -> bool:
    """Return whether the text was read; any end other than a refusal in one line is an error."""
    try:
        machine = reader(text)
    except InputError as error:
        message = str(error)
        assert message.isprintable(), message
        assert len(message) < 1000
        return False
    topology = machine.topology
    reread = read_machine(to_toml(topology, machine.nics, machine.remarks), "again").topology
    assert (reread.nranks, reread.nlinks, len(reread.limits)) == (
        topology.nranks,
        topology.nlinks,
        len(topology.limits),
    )
    return True


def mutated(text: str, chance: random.Random) -> str:
    """Return the text cut off, with lines repeated, removed or exchanged, or with another word or number."""
    lines = text.split("\n")
    source_line, target_line = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.randrange(6)
    if kind == 0:
        return text[: chance.randrange(len(text))]
    if kind == 1:
        lines.insert(target_line, lines[source_line])
    elif kind == 2:
        del lines[source_line]
    elif kind == 3:
        lines[source_line], lines[target_line] = lines[target_line], lines[source_line]
    if kind < 4:
        return "\n".join(lines)
    word = chance.choice(list(re.finditer(r"[0-9]+|\w+" if kind == 4 else r"[\w.]+", text)))
    return text[: word.start()] + chance.choice(ODD) * chance.choice([1, 1, 50]) + text[word.end() :]


def test_mutated_dumps() -> None:
    chance = random.Random(13)
    results = [is_handled(mutated(dump, chance)) for dump in DUMPS for _ in range(MUTATIONS)]
    assert 0.05 < sum(results) / len(results) < 0.7  # Some dumps are read and some are refused.


def test_the_check_reports_faulty_readers() -> None:
    def fails(_: str) -> Machine:
        raise ValueError("a reader's own")

    def tells_too_much(_: str) -> Machine:
        raise InputError("x" * 2000)

    for reader, error in ((fails, ValueError), (tells_too_much, AssertionError)):
        with pytest.raises(error):
            is_handled("x", reader)


BOMB = '<!DOCTYPE a [<!ENTITY a0 "x">' + "".join(f'<!ENTITY a{i} "&a{i - 1};&a{i - 1};">' for i in range(1, 40)) + "]>"


# Each blueprint has two of the next, so that the first has 2^14 of the last.
NESTED_BLUEPRINTS = "blueprints:\n" + "".join(
    f"  b{i}: {{nodes: {{x: {{blueprint: b{i + 1}}}, y: {{blueprint: b{i + 1}}}}}}}\n" for i in range(14)
)
NESTED_BLUEPRINTS += "  b14: {nodes: {z: {count: 1000}}}\nnetwork:\n  nodes: {r: {blueprint: b0}}\n  links: []\n"


@pytest.mark.parametrize(
    "text",
    [
        "a" * (1 << 20),
        " \n" * (1 << 17),
        "#\n" * (1 << 17) + "x",
        "GPU0 " * (1 << 16),
        "\t" + "\t".join(f"GPU{i}" for i in range(5000)) + "\nGPU0\tX\n",
        BOMB + "<system>&a39;</system>",
        "<system>" + "<pci>" * (1 << 16),
        "<system><cpu>" + '<pci class="0x030200"/>' * 5000 + "</cpu></system>",
        "<system>" + '<cpu><pci class="0x030200"/></cpu>' * 1100 + "</system>",
        "SwitchName=s Nodes=n[0-199999]\nSwitchName=t Nodes=m[0-199999]\n",
        "SwitchName=s Nodes=" + "n[0-99999]," * 100,
        "SwitchName=s Nodes=" + "[" * (1 << 16),
        "[" * (1 << 17),
        '[{"gpu": 0, "links": [{"gpu": 9999, "link_type": "XGMI"}]}]',
        "LINK TYPE TABLE:\n" + " ".join(map(str, range(400))) + "\n" + "0 " + "XGMI " * 400,
        "".join(map(chr, range(1, 256))),
        "1000000000 8 1 1 1000000000 H100\n" + "9 " * (1 << 16),
        STAR.replace("5 1 4", "1000000 1 2000000"),
        STAR + "0 1 1Gbps 1us 0\n" * (1 << 14),
        "topology: [Ring]\nnpus_count: [999999999]\nbandwidth: [1]\nlatency: [1]\n",
        "topology: " + "[" * 4000 + "\nnpus_count: [2]\n",
        "a: &a [x, x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20))
        + "npus_count: *u\n",
        NESTED_BLUEPRINTS,
        NETGRAPH.replace("^spine/", ".*.*.*.*.*x"),
        "network:\n  nodes: {a: {count: 400}}\n  links:\n" + "    - {source: a, target: a}\n" * 2000,
        "network:\n  nodes: {a: {count: 90000}}\n  links:\n"
        + "".join(f"    - {{source: .*{i}.*x, target: a}}\n" for i in range(2000)),
        "network:\n  nodes: {a: {count: 90000}}\n  links:\n" + "    - {source: a, target: a}\n",
        '{"gpus_per_node": 1000, "name": "x", "alpha": 1, "links": ' + "[" * 60 + "]" * 60 + "}",
    ],
    ids=range(28),
)
def test_bombs_are_refused(text: str) -> None:
    assert not is_handled(text)
