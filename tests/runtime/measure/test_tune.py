"""From measurements to a table: the fastest method is chosen at every size, and a wrong one never."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.algorithms.built_in import names
from runtime.measure.tune import (
    CHEAP_US,
    CONFIDENCE,
    GAIN,
    LEAST_PAIRS,
    Measurement,
    choose,
    describe_choice,
    format_choices,
    lost_pairs,
    lower_limit,
    parse_collectives,
    parse_sizes,
    parse_types,
    select_methods,
    table_rows,
)
from runtime.torch.choice import Chooser, Method
from runtime.torch.table import TableCall, load_table
from topologies.errors import InputError

GLOO = Method("gloo")
METHODS = [GLOO, *(Method("synth", name) for name in names("allreduce", 4))]


def measurement(
    method: Method, size: int, time_us: float, wrong: int = 0, kind: str = "float32", ranks: int = 4, gain: float = 0.0
) -> Measurement:
    """Build a measurement; `gain` is the gain of every pair of a sufficient comparison, 0 for no comparison."""
    gains = (gain,) * LEAST_PAIRS if gain else ()
    return Measurement("allreduce", tuple(range(ranks)), kind, size, method, "", time_us, wrong, gains)


gained = st.dictionaries(
    st.integers(1, 1 << 30), st.tuples(*(st.floats(0.1, 10) for _ in METHODS[1:])), min_size=1, max_size=6
)


def compared(measured: dict[int, tuple[float, ...]]) -> list[Measurement]:
    """Return measurements of Gloo in 100 µs at each size, and of our algorithms with the given gains."""
    return [measurement(GLOO, size, 100.0) for size in measured] + [
        measurement(method, size, 100 / gain, gain=gain)
        for size, gains in measured.items()
        for method, gain in zip(METHODS[1:], gains, strict=True)
    ]


@given(gained)
def test_rows_cover_the_measured_sizes_once_and_nothing_else(measured: dict[int, tuple[float, ...]]) -> None:
    listed = compared(measured)
    rows = table_rows(listed)
    assert (rows[0]["min_bytes"], rows[-1]["max_bytes"]) == (min(measured), max(measured))
    for before, after in pairwise(rows):
        assert after["min_bytes"] == before["max_bytes"] + 1
    for size in measured:
        (row,) = (r for r in rows if r["min_bytes"] <= size <= r["max_bytes"])
        winner = choose([m for m in listed if m.size_bytes == size])
        assert (row["backend"], row["algorithm"]) == winner.method


@given(gained)
def test_ours_serves_only_between_sizes_with_a_sure_gain(measured: dict[int, tuple[float, ...]]) -> None:
    listed = compared(measured)
    for row in table_rows(listed):
        assert ("gain" in row) == (row["backend"] == "synth")
        if row["backend"] == "synth":
            assert row["gain"]["at_least"] >= GAIN - 0.001  # The number is rounded.
            for border in (row["min_bytes"], row["max_bytes"]):
                near = (max(s for s in measured if s <= border), min(s for s in measured if s >= border))
                for size in near:
                    assert choose([m for m in listed if m.size_bytes == size]).method.backend == "synth"


@given(gained)
def test_ours_is_chosen_only_where_it_gains(measured: dict[int, tuple[float, ...]]) -> None:
    listed = compared(measured)
    for size, gains in measured.items():
        chosen = choose([m for m in listed if m.size_bytes == size])
        if chosen.method == GLOO:
            assert max(gains) < GAIN
        else:
            assert chosen.time_us == 100 / max(gains)


@pytest.mark.parametrize("pairs", [1, LEAST_PAIRS - 1, LEAST_PAIRS, 15])
def test_as_many_pairs_may_fall_short_as_the_sign_test_allows(pairs: int) -> None:
    may = lost_pairs(pairs)
    assert (may >= 0) == (pairs >= LEAST_PAIRS)
    tosses = Counter(map(sum, product((0, 1), repeat=pairs)))  # Tosses of a fair coin, by the number of heads.
    chance = [sum(tosses[side] for side in range(short + 1)) / 2**pairs for short in range(pairs + 1)]
    assert may < 0 or chance[may] <= 1 - CONFIDENCE
    assert chance[may + 1] > 1 - CONFIDENCE


@pytest.mark.parametrize("gain", [1.0, GAIN])
def test_equal_methods_are_distinguished_no_more_often_than_stated(gain: float) -> None:
    rng = random.Random(0)
    tries, pairs = 4000, 15
    false_gains = sum(
        lower_limit([gain * rng.lognormvariate(0.0, 0.3) for _ in range(pairs)]) > gain for _ in range(tries)
    )
    assert false_gains <= 1.3 * (1 - CONFIDENCE) * tries
    true_gains = sum(
        lower_limit([2.0 * rng.lognormvariate(0.0, 0.3) for _ in range(pairs)]) >= GAIN for _ in range(tries)
    )
    assert true_gains > 0.9 * tries


def test_three_tunings_in_noise_agree() -> None:
    """Check methods as fast as Gloo that are much faster at times by chance: no such time reaches a table."""
    rng = random.Random(1)
    for _ in range(3):
        listed = []
        for size in (4**k for k in range(1, 14)):
            gains = tuple(rng.lognormvariate(0.0, 0.5) for _ in range(15))
            listed += [measurement(GLOO, size, 100.0), replace(measurement(METHODS[1], size, 50.0), gains=gains)]
        assert [row["backend"] for row in table_rows(listed)] == ["gloo"]


def test_a_faster_method_that_is_not_chosen_has_a_reason() -> None:
    """Check that the row names the reason: too small a gain, no comparison, or wrong elements."""
    ring, allpairs = METHODS[1], METHODS[2]
    short = replace(measurement(ring, 64, 80.0), gains=(1.3, 1.2, 0.9, 1.01))
    unsure = replace(measurement(ring, 64, 80.0), gains=(1.3,) * 10 + (1.01,) * 5)
    gloo, untried = measurement(GLOO, 64, 100.0), measurement(allpairs, 64, 70.0)
    assert describe_choice(short, [gloo, short]) == (
        "gain 1.10; not chosen: 2 of 4 pairs of runs gained less than 1.05"
    )
    assert describe_choice(unsure, [gloo, unsure]) == (
        "gain 1.30, at least 1.01 with 99%; not chosen: 5 of 15 pairs of runs gained less than 1.05"
    )
    assert describe_choice(gloo, [gloo, unsure]) == ""
    assert describe_choice(untried, [gloo, short, untried]) == (
        "not chosen: only ring was compared with the wrapped back end in pairs of runs"
    )
    assert "not chosen: it was not compared" in describe_choice(untried, [gloo, untried])
    assert describe_choice(measurement(allpairs, 64, 100.0), [gloo, short]) == ""  # It is as slow as the chosen method.
    assert describe_choice(measurement(ring, 64, 1.0, wrong=3), [gloo]) == "3 elements wrong"
    sure = measurement(ring, 64, 80.0, gain=1.3)
    assert describe_choice(sure, [gloo, sure]) == "gain 1.30, at least 1.30 with 99%"
    assert "ring surely gains" in describe_choice(measurement(GLOO, 64, 79.0), [measurement(GLOO, 64, 79.0), sure])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(METHODS), st.floats(1, 1e4), st.lists(st.floats(0.5, 2), max_size=15), st.integers(0, 1)
        ),
        max_size=5,
    )
)
def test_no_row_is_faster_than_the_chosen_one_without_a_reason(
    drawn: list[tuple[Method, float, list[float], int]],
) -> None:
    listed = [measurement(GLOO, 64, 100.0)]
    listed += [
        replace(measurement(method, 64, time_us, wrong), gains=() if method == GLOO or wrong else tuple(gains))
        for method, time_us, gains, wrong in drawn
    ]
    chosen = choose(listed)
    for m in listed:
        if m.time_us < chosen.time_us and not (m.method == GLOO == chosen.method):
            assert "not chosen" in describe_choice(m, listed) or m.wrong or m.sure_gain >= GAIN


def test_a_wrong_method_is_never_chosen() -> None:
    ring = METHODS[1]
    assert choose([measurement(GLOO, 64, 9.0), measurement(ring, 64, 1.0, wrong=1, gain=9.0)]).method == GLOO
    assert choose([measurement(GLOO, 64, 9.0, wrong=1), measurement(ring, 64, 1.0, gain=9.0)]).method == ring
    with pytest.raises(InputError, match="64 bytes: the wrapped back end"):
        choose([measurement(GLOO, 64, 9.0, wrong=1), measurement(ring, 64, 1.0)])
    assert "ring" not in format_choices([measurement(GLOO, 64, 9.0), measurement(ring, 64, 1.0, wrong=1, gain=9.0)])


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    ring, pairs = METHODS[1], METHODS[2]
    measured = [
        measurement(GLOO, 1 << 10, 5.0),
        measurement(ring, 1 << 10, 9.0, gain=5 / 9),
        measurement(GLOO, 1 << 20, 99.0),
        measurement(pairs, 1 << 20, 9.0, gain=11.0),
        measurement(GLOO, 1 << 22, 99.0),
        measurement(pairs, 1 << 22, 33.0, gain=3.0),
    ]
    (tmp_path / "t.json").write_text(format_choices(measured))
    read = load_table(tmp_path / "t.json")
    assert [(row.backend, row.algorithm) for row in read] == [GLOO, pairs]
    written = json.loads((tmp_path / "t.json").read_text())
    assert written["rows"][1]["gain"] == {"median": 3.0, "at_least": 3.0, "confidence": CONFIDENCE}
    chooser = Chooser(table=tmp_path / "t.json")
    ran = [
        chooser.choose(TableCall("allreduce", size, "int32", (4, 5, 6, 7))).program
        for size in (0, 1 << 10, (1 << 20) - 1, 1 << 20, 1 << 21, 1 << 22, (1 << 22) + 1, 1 << 40)
    ]
    names_run = [program and program.name for program in ran]
    assert names_run == [None, None, None, "allpairs", "allpairs", "allpairs", None, None]
    assert [row["time_us"] for row in written["measured"]] == [m.time_us for m in measured]


def test_types_and_groups_are_in_the_row_only_if_there_is_more_than_one() -> None:
    (plain,) = table_rows([measurement(GLOO, 8, 1.0)])
    assert (plain["type"], plain["group"]) == (None, None)
    rows = table_rows([measurement(GLOO, 8, 1.0), measurement(GLOO, 8, 1.0, kind="int32")])
    assert [row["type"] for row in rows] == ["float32", "int32"]
    other_group = Measurement("allreduce", (4, 5, 6, 7), "float32", 8, GLOO, "", 1.0, 0)
    assert [row["group"] for row in table_rows([measurement(GLOO, 8, 1.0), other_group])] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert [row["group"] for row in table_rows([measurement(GLOO, 8, 1.0), measurement(GLOO, 8, 1.0, ranks=3)])] == [
        None,
        None,
    ]


times = st.dictionaries(
    st.integers(1, 1 << 30), st.tuples(*(st.floats(1, 1e6) for _ in METHODS)), min_size=1, max_size=6
)


@given(times)
def test_the_fastest_and_the_wrapped_back_end_stay_candidates(measured: dict[int, tuple[float, ...]]) -> None:
    listed = [
        measurement(method, size, t) for size, ts in measured.items() for method, t in zip(METHODS, ts, strict=True)
    ]
    methods = select_methods(METHODS, listed)
    assert GLOO in methods
    last = [m for m in listed if m.size_bytes == max(measured)]
    assert min(last, key=lambda m: m.time_us).method in methods
    for m in last:
        if m.time_us <= max(CHEAP_US, 2 * min(n.time_us for n in last)):
            assert m.method in methods


def test_methods_that_fall_back_further_are_left_out() -> None:
    ring, pairs, late = METHODS[1], METHODS[2], METHODS[3]
    ms = 1000.0
    table = {GLOO: (5, 10), ring: (5, 6), pairs: (20, 80), late: (100, 100.5)}
    listed = [
        measurement(method, size, took[at] * ms) for at, size in enumerate((1, 4)) for method, took in table.items()
    ]
    assert select_methods(METHODS, listed) == [GLOO, ring, late]
    assert select_methods(METHODS, listed[: len(table)]) == METHODS
    further = [*listed, *(measurement(method, 16, 20 * ms) for method in (GLOO, ring, late))]
    assert select_methods(METHODS, further) == [GLOO, ring, late]  # A method that was left out stays out.
    cheap = [replace(m, time_us=m.time_us / 100) for m in listed]
    assert select_methods(METHODS, cheap) == METHODS


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("1K:64K", [1024, 4096, 16384, 65536]), ("1K:8K:2", [1024, 2048, 4096, 8192]), ("4K,1K", [1024, 4096])],
)
def test_sizes(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text", ["", "8:4", "1K:", "1K:2K:1", "1K:2K:x", "1K:2K:nan", "1K:2K:3:4", "0:1K", "1K;2K", "1K,2048G"]
)
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--sizes"):
        parse_sizes(text)


def test_collectives_and_types() -> None:
    assert parse_collectives("all_reduce,AllGather,allreduce") == ["allreduce", "allgather"]
    assert len(parse_collectives("all")) == 9
    assert parse_collectives("alltoallv") == ["alltoallv"]
    for text in ("sendrecv", "allreduce,sendrecv", "allreduce,nothing"):
        with pytest.raises(InputError, match="--ops"):
            parse_collectives(text)
    assert parse_types("int32, float16") == ["int32", "float16"]
    with pytest.raises(InputError, match="'float'"):
        parse_types("float")
