"""`synth place-experts`: the table, JSON, the file for serving engines, and refusals in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from synth.model.collective import Ints
from synth.model.deadline import check_deadline
from synth.parallelism.experts.check import check_placement
from synth.parallelism.experts.search import placements
from synth.parallelism.experts.traffic import ExpertRouting
from tests.synth.app.cli.calling import Call

ASKED = ("place-experts", "counts.json", "--topo", "dgx-h100:2")


@pytest.fixture
def counts(working_folder: Path) -> np.ndarray:
    draw = np.random.default_rng(0)
    table = np.stack([draw.permutation(1000 // np.arange(1, 49)), np.zeros(48, dtype=int)])
    (working_folder / "counts.json").write_text(json.dumps(table.tolist()))
    return table


def test_the_table_and_the_file(synth: Call, counts: np.ndarray, working_folder: Path) -> None:
    answer = synth(*ASKED, "-o", "experts.json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("dgx-h100:2 · 2 layers · 48 experts on 16 ranks of 2 nodes, 4 slots each\n")
    assert "EPLB" in answer.out
    assert "  gap  " in answer.out
    loaded = json.loads((working_folder / "experts.json").read_text())
    assert list(loaded) == ["physical_to_logical_map"]
    for row in loaded["physical_to_logical_map"]:
        check_placement(np.array(row).reshape(16, 4), 16, 4, counts.shape[1])
    again = synth(*ASKED, "-o", "two.json")
    assert again.out.replace("two", "experts") == answer.out
    assert (working_folder / "two.json").read_bytes() == (working_folder / "experts.json").read_bytes()


def test_json_states_all(synth: Call, counts: np.ndarray) -> None:
    document = json.loads(synth(*ASKED, "--slots", "5", "--combine-bytes", "7K", "--json").out)
    assert (document["slots"], document["experts"], len(document["layers"])) == (5, 48, 2)
    assert (document["dispatch_bytes"], document["combine_bytes"]) == (14336, 7168)
    assert np.array(document["physical_to_logical_map"]).shape == (2, 80)
    first, empty = document["layers"]
    assert first["gap"] == pytest.approx(first["time_us"] / first["bound_us"])
    assert first["gap"] >= 1 - 1e-9
    assert (empty["time_us"], empty["bound_us"], empty["gap"], empty["proof"]) == (0, 0, 1, "")
    assert document["total"]["time_us"] == pytest.approx(first["time_us"])
    assert counts.sum() > 0


def test_copies_scale_the_time_and_sources_count(synth: Call, counts: np.ndarray, working_folder: Path) -> None:
    def times(*options: str) -> float:
        return float(json.loads(synth(*ASKED, *options, "--json").out)["total"]["time_us"])

    assert times("--copies", "200000") / times("--copies", "100000") == pytest.approx(2, rel=0.01)
    table = np.zeros((1, 16, 48))
    table[0, np.arange(48) % 16, np.arange(48)] = counts[0]  # Each expert is wanted by one rank only.
    (working_folder / "counts.json").write_text(json.dumps(table.tolist()))
    assert json.loads(synth(*ASKED, "--imbalance", "100", "--json").out)["total"]["between_nodes"] < 0.05


def test_whole_tokens(synth: Call, working_folder: Path) -> None:
    draw = np.random.default_rng(0)
    tokens = np.stack([draw.permutation(32)[:4] for _ in range(64)])[None]
    np.save(working_folder / "tokens.npy", tokens)
    counts = np.bincount(tokens.ravel(), minlength=32)[None]
    (working_folder / "counts.json").write_text(json.dumps(counts.tolist()))
    whole = json.loads(synth("place-experts", "tokens.npy", "--tokens", "32", *ASKED[2:], "--json").out)
    copies = json.loads(synth(*ASKED, "--json").out)
    assert whole["experts"] == copies["experts"] == 32
    assert whole["eplb"]["total"]["between_nodes"] < copies["eplb"]["total"]["between_nodes"]
    assert whole["eplb"]["total"]["imbalance"] == copies["eplb"]["total"]["imbalance"]


def test_groups_of_experts_choose_the_policy_of_eplb(synth: Call, counts: np.ndarray) -> None:
    assert counts.size
    by_nodes = json.loads(synth(*ASKED, "--expert-groups", "4", "--json").out)
    globally = json.loads(synth(*ASKED, "--json").out)
    assert by_nodes["eplb"]["total"]["between_nodes"] == pytest.approx(0.5)
    assert globally["eplb"]["total"]["between_nodes"] < 0.5
    assert by_nodes["total"] == globally["total"]


def test_after_an_interruption_the_file_is_written(
    synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = np.random.default_rng(0).integers(1, 1000, (3, 16))
    counts[2] = [10**6] + [1] * 15  # EPLB has its heavy expert twice on a rank.
    (working_folder / "counts.json").write_text(json.dumps(counts.tolist()))
    whole = json.loads(synth(*ASKED, "--slots", "2", "--json").out)

    def interrupted(routing: ExpertRouting, layer: int, slots: int, imbalance: float) -> Iterator[Ints]:
        if layer == 1:
            raise KeyboardInterrupt
        return placements(routing, layer, slots, imbalance)

    monkeypatch.setattr("synth.parallelism.experts.placement.placements", interrupted)
    answer = synth(*ASKED, "--slots", "2", "-o", "experts.json")
    assert answer.code == 130
    assert "no time was left for 2 of 3 layers, which have EPLB's placement" in answer.flat
    loaded = json.loads((working_folder / "experts.json").read_text())["physical_to_logical_map"]
    for row in loaded:
        check_placement(np.array(row).reshape(16, 2), 16, 2, 16)
    document = json.loads(synth(*ASKED, "--slots", "2", "--json").out)
    assert (document["unsearched"], whole["unsearched"]) == (2, 0)
    assert document["layers"][0] == whole["layers"][0]
    for layer, eplb in zip(document["layers"][1:], document["eplb"]["layers"][1:], strict=True):
        assert layer["time_us"] <= eplb["time_us"] * (1 + 1e-9)
        assert (layer["bound_us"], layer["gap"]) == (0, None)
    assert document["total"]["bound_us"] <= document["total"]["time_us"]


def test_a_budget_ends_the_search_and_the_answer_says_so(
    synth: Call, counts: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that cut layers keep their best placement with a bound, that others have none, and the exit code is 0."""

    def endless(routing: ExpertRouting, layer: int, slots: int, imbalance: float) -> Iterator[Ints]:
        for experts in placements(routing, 0, slots, imbalance):
            while layer == 1:
                check_deadline()
            yield experts
        while True:
            check_deadline()

    assert json.loads(synth(*ASKED, "--budget", "1h", "--json").out) == json.loads(synth(*ASKED, "--json").out)
    assert counts.shape[0] == 2
    monkeypatch.setattr("synth.parallelism.experts.placement.placements", endless)
    answer = synth(*ASKED, "--budget", "0.5s")
    assert (answer.code, answer.err) == (0, "")
    assert "the budget ended the search of 1 of 2 layers" in answer.flat
    assert "no time was left for 1 of 2 layers" in answer.flat
    document = json.loads(synth(*ASKED, "--budget", "0.5s", "--json").out)
    assert (document["cut_short"], document["unsearched"]) == (1, 1)
    assert document["layers"][0]["bound_us"] > 0


def test_the_table_states_which_layers_it_shows_and_has_unique_titles(synth: Call, working_folder: Path) -> None:
    counts = np.random.default_rng(0).integers(1, 1000, (8, 16))
    (working_folder / "counts.json").write_text(json.dumps(counts.tolist()))
    answer = synth(*ASKED, "--slots", "2", "--wide")
    assert "shown: 6 of 8 layers, the slowest; --json has all" in answer.flat
    assert len(re.findall("^layer ", answer.out, re.MULTILINE)) == 6
    titles = re.split("  +", answer.out.splitlines()[2].strip())
    assert len(set(titles)) == len(titles) == 7
    narrow = synth(*ASKED, "--slots", "2")
    missing = re.search("--wide also shows (.*)", narrow.flat)
    assert missing
    assert set(missing[1].split(", ")) <= set(titles)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--slots", "2"), "--slots: 2 for 48 experts on 16 ranks; it must be 3 to 48"),
        (("--slots", "49"), "--slots: 49 .*it must be 3 to 48"),
        (("--budget", "0"), "--budget 0: must be more than 0"),
        (("--imbalance", "0.5"), "--imbalance: 0.5 is out of range"),
        (("--expert-groups", "5"), "--expert-groups: 5 do not divide 48 experts; it must be a divisor of 48"),
        (("--tokens", "48"), "it must be whole numbers of shape .layers, tokens, experts of a token."),
        (("--topo", "ring:4"), "have no link"),
        (("--group", "0"), "--group: has 1 rank"),
        (("-o", "counts.json"), "is the file that it would be made from"),
    ],
)
def test_refusals(synth: Call, counts: np.ndarray, options: tuple[str, str], text: str) -> None:
    assert counts.size
    words = [word for word in ASKED if "--topo" not in options or word not in ("--topo", "dgx-h100:2")]
    answer = synth(*words, *options)
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert re.search(text, answer.err), answer.err
