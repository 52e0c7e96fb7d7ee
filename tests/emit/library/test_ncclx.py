"""NCCLX's selection files say what NCCL's own tuner file says, are read back, and are refused where they are wrong."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emit.library.index import index_text, parse_index
from emit.library.selection.nccl_tuner import NO_END, Line, NcclTuning, model_lines
from emit.library.selection.ncclx import ANY, Rule, csv_text, json_text, parse_rules, rules_of
from synth.baselines.nccl.model import nccl_model
from tests.emit.library.made_indices import entry_row
from topologies.errors import InputError
from topologies.load import load

SPELT = {"ring": "ring", "tree": "tree", "NVLS": "nvls", "NVLSTree": "nvls_tree", "PAT": "pat"}
WHOLE = "allgather,*,ring,ll,4,*,*"


def first_match(rules: list[Rule], collective: str, size: int, nodes: int, ranks: int) -> NcclTuning | None:
    """Return what NCCLX takes: the first rule that matches bytes a rank, nodes and ranks a node."""
    asked = size // ranks, nodes, ranks // nodes
    for rule in rules:
        spans = rule.bytes_a_rank, rule.nodes, rule.local_ranks
        if rule.collective == collective and all(low <= x <= high for x, (low, high) in zip(asked, spans, strict=True)):
            return rule.tuning
    return None


def test_ncclx_takes_the_choice_of_the_model() -> None:
    topology, groups = load("dgx-h100:2"), [range(8), range(16)]
    rows = [
        entry_row(collective=collective, topology="dgx-h100:2", nranks=len(group), group=[*group],
                  communicator=[*group], file=f"msccl/{collective}{len(group)}.xml")
        for group in groups for collective in ("allreduce", "allgather")
    ]  # fmt: skip
    lines, _ = model_lines(parse_index(index_text(rows), "index.json", Path("lib")), topology)
    rules, draw = rules_of(lines), random.Random(2)
    assert parse_rules(csv_text(rules, "here"), "x", False) == parse_rules(json_text(rules), "x", True) == rules
    for group in groups:
        model, n = nccl_model(topology, group), len(group)
        for size in (n * round(2 ** draw.uniform(0, 36)) for _ in range(60)):
            choice = model.choose("allgather", size)
            expected = SPELT[choice.algorithm], choice.protocol.lower(), choice.channels
            assert first_match(rules, "allgather", size, model.communicator.nnodes, n) == expected


@given(st.sets(st.integers(1, 1 << 40), max_size=6), st.sampled_from([1, 2, 8]))
def test_files_are_read_back(starts: set[int], nodes: int) -> None:
    edges = [0, *sorted(starts)]
    highs = [edge - 1 for edge in edges[1:]] + [NO_END]
    tuning = NcclTuning("ring", "ll", 2)
    rules = rules_of([Line("allreduce", low, high, tuning, nodes, 16) for low, high in zip(edges, highs, strict=True)])
    assert parse_rules(csv_text(rules, "here"), "x", False) == rules
    assert parse_rules(json_text(rules), "x", True) == rules


def test_intervals_and_defaults() -> None:
    text = "allgather,[0,8),ring,ll\n allgather , 8 , tree , ll128 , -1 \nallgather,(8,],pat,simple,3,*,*,4096\n"
    rules = parse_rules(text, "x", False)
    assert [rule.bytes_a_rank for rule in rules] == [(0, 7), (8, 8), (9, NO_END)]
    assert [rule.tuning for rule in rules] == [("ring", "ll", -1), ("tree", "ll128", -1), ("pat", "simple", 3)]
    assert [rule.chunk_bytes for rule in rules] == [0, 0, 4096]
    (rule,) = parse_rules("reduce,*,ring,ll,1,(1,),[2,4]", "x", False)
    assert (rule.nodes, rule.local_ranks, rule.bytes_a_rank) == ((2, NO_END), (2, 4), ANY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x: holds no rule"),
        ("# only a comment", "x: holds no rule"),
        ("allgather,*,ring", "x: line 1: has 3 fields"),
        ("allgater,*,ring,ll", "x: line 1: collective: 'allgater' is not known"),
        ("allgather,*,rings,ll", "x: line 1: algorithm: 'rings' is not known"),
        ("allgather,*,ring,LL", "x: line 1: protocol: 'LL' is not known"),
        ("allgather,*,ring,ll,many", "x: line 1: channels: 'many' must be a whole number"),
        ("allgather,*,ring,ll,1,*,*,-5", "x: line 1: chunkSize: '-5' must be a whole number"),
        ("allgather,(2,1],ring,ll", "x: line 1: bytesPerRank: '(2,1]' is no interval"),
        ("allgather,[0,8,ring,ll", "x: line 1: "),
        ("allgather,*,ring,ll,1,two,*", "x: line 1: nNodes: 'two' is no interval"),
        ("allgather,*,ring,ll,0", "x: line 1: channels: '0' must be a whole number"),
        (f"{WHOLE},0,more", "x: line 1: has 9 fields"),
        (f"allgather,[{' ' * 9999},{' ' * 9999},ring,ll", "x: line 1: has "),
        (f"allgather{',' * 9999}", "x: line 1: has "),
        ("allgather,[0,9],ring,ll,1,2,*\nreduce,*,ring,ll", "x: line 1: no line serves sizes above 9"),
        (f"{WHOLE}\n{WHOLE}", "x: line 2: * overlaps *; the first is taken"),
        ("allgather,[0,8],ring,ll\nallgather,[8,),ring,ll128", "x: line 2: [8,) overlaps [0,8]"),
        ("allgather,[0,8],ring,ll\nallgather,[10,),ring,ll128", "x: line 2: no line serves sizes from 9 to 9"),
        ("allgather,[1,),ring,ll", "x: line 1: no line serves sizes from 0 to 0"),
        ("allgather,[0,9],ring,ll", "x: line 1: no line serves sizes above 9"),
    ],
)
def test_wrong_lines_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_rules(text, "x", False)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "x: is not {"),
        ({"rules": 5}, "x: is not {"),
        ({"rules": []}, "x: holds no rule"),
        ({"rules": [{"filter": {}}]}, "x: is not {"),
        ({"rules": [{"filter": [], "config": {}}]}, "x: rule 1: filter and config must be objects"),
        ({"rules": [{"filter": {"collective": ["a"]}, "config": {}}]}, "x: rule 1: its values must be text"),
        ({"rules": [{"filter": {"collective": "reduce"}, "config": {"algorithm": "ring"}}]}, "x: rule 1: protocol"),
    ],
)
def test_wrong_objects_are_refused(document: object, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_rules(json.dumps(document), "x", True)
    assert str(error.value).startswith(message)


def test_a_line_for_all_other_calls_is_right() -> None:
    rules = parse_rules("allreduce,[0,1024],ring,ll,-1,2,2\nallreduce,*,ring,simple,-1\n", "x", False)
    assert [first_match(rules, "allreduce", size, 2, 4) for size in (4096, 8192)] == [
        ("ring", "ll", -1), ("ring", "simple", -1),
    ]  # fmt: skip


def test_conditions_that_ncclx_does_not_know_are_refused() -> None:
    tuning = NcclTuning("ring", "ll", 2)
    for line in (
        Line("allreduce", 0, NO_END, tuning, -1, 8),
        Line("allreduce", 0, NO_END, tuning, 2, -1),
        Line("allreduce", 0, NO_END, tuning, 1, 8, registered=1),
    ):
        with pytest.raises(InputError, match="--for ncclx"):
            rules_of([line])
