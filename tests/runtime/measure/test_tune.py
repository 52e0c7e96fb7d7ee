"""From measurements to a table: what was fastest is what is chosen, at every size, and nothing wrong ever is."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.algorithms.built_in import names
from runtime.measure.tune import (
    GAIN,
    Measurement,
    choose_fastest,
    format_choices,
    parse_collectives,
    parse_sizes,
    parse_types,
    select_methods,
    table_rows,
)
from runtime.torch.choice import Call, Chooser, Method, load_table
from topologies.errors import InputError

GLOO = Method("gloo")
METHODS = [GLOO, *(Method("synth", name) for name in names("allreduce", 4))]


def one(
    method: Method, size: int, time_us: float, wrong: int = 0, kind: str = "float32", ranks: int = 4
) -> Measurement:
    return Measurement("allreduce", tuple(range(ranks)), kind, size, method, "", time_us, wrong)


times = st.dictionaries(
    st.integers(1, 1 << 30), st.tuples(*(st.floats(1, 1e6) for _ in METHODS)), min_size=1, max_size=6
)


@given(times)
def test_rows_cover_every_size_once_and_keep_what_was_best(measured: dict[int, tuple[float, ...]]) -> None:
    listed = [one(method, size, t) for size, ts in measured.items() for method, t in zip(METHODS, ts, strict=True)]
    made = table_rows(listed)
    assert made[0]["min_bytes"] == 0
    assert made[-1]["max_bytes"] is None
    for before, after in pairwise(made):
        assert after["min_bytes"] == before["max_bytes"] + 1
    for size in measured:
        (row,) = (r for r in made if r["min_bytes"] <= size and (r["max_bytes"] is None or size <= r["max_bytes"]))
        winner = choose_fastest([m for m in listed if m.size_bytes == size])
        assert (row["backend"], row["algorithm"]) == winner.method


@given(times)
def test_ours_is_chosen_only_where_it_gains(measured: dict[int, tuple[float, ...]]) -> None:
    for size, ts in measured.items():
        chosen = choose_fastest([one(method, size, t) for method, t in zip(METHODS, ts, strict=True)])
        if chosen.method == GLOO:
            assert ts[0] < GAIN * min(ts) or ts[0] == min(ts)
        else:
            assert chosen.time_us == min(ts)
            assert ts[0] >= GAIN * min(ts)


def test_what_was_wrong_is_never_chosen() -> None:
    ring = METHODS[1]
    assert choose_fastest([one(GLOO, 64, 9.0), one(ring, 64, 1.0, wrong=1)]).method == GLOO
    with pytest.raises(InputError, match="64 bytes: every method"):
        choose_fastest([one(ring, 64, 1.0, wrong=1)])
    assert "ring" not in format_choices([one(GLOO, 64, 9.0), one(ring, 64, 1.0, wrong=1)])


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    ring, pairs = METHODS[1], METHODS[2]
    measured = [
        one(GLOO, 1 << 10, 5.0),
        one(ring, 1 << 10, 9.0),
        one(GLOO, 1 << 20, 99.0),
        one(pairs, 1 << 20, 9.0),
    ]
    (tmp_path / "t.json").write_text(format_choices(measured))
    read = load_table(tmp_path / "t.json")
    assert [(row.backend, row.algorithm) for row in read] == [GLOO, pairs]
    chooser = Chooser(table=tmp_path / "t.json")
    ran = [
        chooser.choose(Call("allreduce", size, "int32", (4, 5, 6, 7))).program
        for size in (0, 1 << 15, (1 << 15) + 1, 1 << 40)
    ]
    assert [program and program.name for program in ran] == [None, None, "allpairs", "allpairs"]
    kept = json.loads((tmp_path / "t.json").read_text())["measured"]
    assert [row["time_us"] for row in kept] == [m.time_us for m in measured]


def test_types_and_groups_stand_in_the_row_only_where_several_were_measured() -> None:
    (plain,) = table_rows([one(GLOO, 8, 1.0)])
    assert (plain["type"], plain["group"]) == (None, None)
    made = table_rows([one(GLOO, 8, 1.0), one(GLOO, 8, 1.0, kind="int32")])
    assert [row["type"] for row in made] == ["float32", "int32"]
    other = Measurement("allreduce", (4, 5, 6, 7), "float32", 8, GLOO, "", 1.0, 0)
    assert [row["group"] for row in table_rows([one(GLOO, 8, 1.0), other])] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [row["group"] for row in table_rows([one(GLOO, 8, 1.0), one(GLOO, 8, 1.0, ranks=3)])] == [
        None,
        None,
    ]


@given(times)
def test_the_fastest_and_the_wrapped_back_end_stay_promising(measured: dict[int, tuple[float, ...]]) -> None:
    listed = [one(method, size, t) for size, ts in measured.items() for method, t in zip(METHODS, ts, strict=True)]
    kept = select_methods(METHODS, listed)
    assert GLOO in kept
    last = [m for m in listed if m.size_bytes == max(measured)]
    assert min(last, key=lambda m: m.time_us).method in kept
    for m in last:
        if m.time_us <= 2 * min(n.time_us for n in last):
            assert m.method in kept


def test_what_falls_back_further_is_left_out() -> None:
    ring, pairs, late = METHODS[1], METHODS[2], METHODS[3]
    listed = [one(GLOO, 1, 5.0), one(ring, 1, 5.0), one(pairs, 1, 20.0), one(late, 1, 100.0),
              one(GLOO, 4, 10.0), one(ring, 4, 6.0), one(pairs, 4, 80.0), one(late, 4, 100.5)]  # fmt: skip
    assert select_methods(METHODS, listed) == [GLOO, ring, late]
    assert select_methods(METHODS, listed[:4]) == METHODS


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("1K:64K", [1024, 4096, 16384, 65536]), ("1K:8K:2", [1024, 2048, 4096, 8192]), ("4K,1K", [1024, 4096])],
)
def test_sizes(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "8:4", "1K:", "1K:2K:1", "1K:2K:x", "1K:2K:nan", "1K:2K:3:4", "0:1K", "1K;2K"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--sizes"):
        parse_sizes(text)


def test_collectives_and_types() -> None:
    assert parse_collectives("all_reduce,AllGather,allreduce") == ["allreduce", "allgather"]
    assert len(parse_collectives("all")) == 8
    for text in ("sendrecv", "allreduce,sendrecv", "allreduce,nothing"):
        with pytest.raises(InputError, match="--ops"):
            parse_collectives(text)
    assert parse_types("int32, float16") == ["int32", "float16"]
    with pytest.raises(InputError, match="'float'"):
        parse_types("float")
