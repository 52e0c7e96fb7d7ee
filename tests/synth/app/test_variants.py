"""Sweeps: every combination of parameters once, answers that are proved, and nothing believed that a cache holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.app.clusters.task import Task, solve, unpacked
from synth.app.variants import Variant, VariantTime, make_sweep, make_variants, parse_parameter, unbeaten
from synth.storage.cache import Cache
from tests.synth.app.clusters.inline import Inline
from topologies.errors import InputError
from topologies.load import load

RING = load("ring:3")


def test_every_combination_of_values_is_a_variant() -> None:
    variants = make_variants("torus:{x}x{y}", {"x": ["2", "3"], "y": ["2", "4"]}, "x * 100 + ranks")
    assert [tuple(variant.values.values()) for variant in variants] == [("2", "2"), ("2", "4"), ("3", "2"), ("3", "4")]
    assert [variant.topology.nranks for variant in variants] == [4, 8, 6, 12]
    assert [variant.cost for variant in variants] == [204, 208, 306, 312]


def test_parameters_in_a_file_and_in_its_number_of_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("box.toml").write_text(
        'name = "box"\nranks = 2\n[[links]]\npairs = "0>1"\nboth = true\ngbs = {inside}\nalpha_us = 1\n'
        '[nic]\ncount = 2\ngbs = 10\nalpha_us = 2\nfabric = "rail"\n'
    )
    variants = make_variants("box.toml:{nodes}", {"inside": ["40", "80"], "nodes": ["1", "3"]})
    assert [variant.topology.nranks for variant in variants] == [2, 6, 2, 6]
    assert [float(variant.topology.bandwidth_gbs.max()) for variant in variants] == [40, 40, 80, 80]
    assert list(tmp_path.iterdir()) == [tmp_path / "box.toml"]


@pytest.mark.parametrize(
    ("topo", "vary", "text"),
    [
        ("ring:{n}", "n=3,x", "n=x: .*ring:x"),
        ("ring:8", "n=3", "stands nowhere"),
        ("ring:{n}", "m=3", "m: stands nowhere"),
        ("ring:{n}", "n", "must be NAME=VALUE"),
        ("ring:{n}", "n=", "1 to 60 characters"),
        ("ring:{n}", "n=3,3", "3 is listed twice"),
        ("ring:{n}", "m-n=3", "letters, digits"),
        ("ring:{ranks}", "ranks=3", "choose another name"),
        ("ring:{n},bw={bw}", "n=3", "{bw} has no values"),
        ("missing.toml", "n=3", "missing.toml: no such file"),
        ("ring:{n}", "n=" + ",".join(map(str, range(2, 1100))), "1098 variants"),
    ],
)
def test_wrong_parameters_are_refused(topo: str, vary: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        make_variants(topo, dict([parse_parameter(vary)]))


@pytest.mark.parametrize(
    ("formula", "text"),
    [("n*x", "no value"), ("0-n", "0 or more"), ("1/(n-3)", "divides"), ("m*2", "m is a text")],
)
def test_wrong_costs_are_refused(formula: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        make_variants("{m}:{n}", {"m": ["ring"], "n": ["3"]}, formula)


def test_a_value_with_braces_stays_as_it_is() -> None:
    with pytest.raises(InputError, match=r"b=\{a\}: .*"):
        make_variants("ring:{a},bw={b}", {"a": ["5"], "b": ["{a}"]})


def test_a_variant_without_an_answer_states_the_reason(tmp_path: Path) -> None:
    apart = tmp_path / "apart.toml"
    apart.write_text('name = "apart"\nranks = 2\n[[links]]\npairs = "0>1"\ngbs = {gbs}\nalpha_us = 1\n')
    sweep = make_sweep(make_variants(str(apart), {"gbs": ["1"]}), ["allgather"], [1 << 20], 1.0)
    sweep.run(Cache(tmp_path / "cache"), Inline(), lambda *_: None)
    assert [result.time_us for result in sweep.results()] == [None]
    assert sweep.results()[0].refused.startswith("rank 1 cannot reach rank 0")


def test_a_variant_without_a_schedule_names_the_failed_part_and_is_solved_again(tmp_path: Path) -> None:
    def failing(task: Task) -> bytes:
        empty = {"rows": [], "unfiled": [{"target": "none", "refused": "no file"}], "files": {}}
        return replace(unpacked(solve(task)), **empty, defects=["the files failed"]).packed()

    cache, reasons = Cache(tmp_path), []
    for work in (failing, solve):
        sweep = make_sweep(make_variants("ring:{n}", {"n": ["3"]}), ["allgather"], [1 << 20], 1.0)
        sweep.run(cache, Inline(work), lambda *_: None)
        reasons += [result.refused for result in sweep.results()]
    assert reasons == ["defect: the files failed; its answers are missing", ""]


@pytest.mark.parametrize(
    ("is_first_run", "cause"),
    [
        (False, "on this machine, which is busy or slow; try --budget "),
        (True, "in a first run, whose loops are not compiled yet; run synth warm-up once, or try --budget "),
    ],
)
def test_a_budget_that_is_too_short_is_named_as_the_user_states_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first_run: bool, cause: str
) -> None:
    monkeypatch.setattr("synth.search.budget.is_first_run", lambda: is_first_run)
    monkeypatch.setattr("synth.search.run.staged.StagedSearch._work", lambda _: None)
    sweep = make_sweep(make_variants("ring:{n}", {"n": ["3"]}), ["allgather"], [1 << 20], 5.0)
    sweep.run(Cache(tmp_path), Inline(), lambda *_: None)
    reason = sweep.results()[0].refused
    assert reason.startswith(f"budget 5s is too short for 3 ranks and 6 links {cause}")
    assert len(reason) <= 150


def test_an_interrupted_sweep_keeps_what_it_knows(tmp_path: Path) -> None:
    sweep = make_sweep(make_variants("ring:{n}", {"n": ["3", "4"]}), ["allgather"], [1 << 20], 1.0)

    def report(done: int, _: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    sweep.run(Cache(tmp_path), Inline(), report)
    assert sweep.interrupted
    assert len(sweep.results()) == 1


def test_equal_problems_are_solved_once_and_kept(tmp_path: Path) -> None:
    cache, pools = Cache(tmp_path), [Inline(), Inline()]
    variants = make_variants("ring:{n},bw={bw}", {"n": ["3", "4"], "bw": ["25", "25.0"]})
    results = []
    for pool in pools:
        sweep = make_sweep(variants, ["allgather"], [1 << 20], 1.0)
        sweep.run(cache, pool, lambda *_: None)
        results.append([(result.time_us, result.bound_us) for result in sweep.results()])
    assert [len(pool.solved) for pool in pools] == [2, 0]
    assert results[0] == results[1]
    for time_us, bound_us in results[0]:
        assert time_us is not None
        assert bound_us is not None
        assert bound_us <= time_us <= 1.1 * bound_us
    assert results[0][0] == results[0][1] != results[0][2]


def test_a_forged_answer_of_the_cache_is_solved_again(tmp_path: Path) -> None:
    cache, variants = Cache(tmp_path), make_variants("ring:{n}", {"n": ["3"]})
    first = make_sweep(variants, ["allgather"], [1 << 20], 1.0)
    first.run(cache, Inline(), lambda *_: None)
    key = first.results() and next(iter(share.task.key for share in first.shares if not isinstance(share, str)))
    answer = unpacked(cache.get(str(key)) or b"")
    for row in answer.unfiled:
        row["time_us"] /= 2  # type: ignore[index]
    cache.put(str(key), answer.packed())
    second, pool = make_sweep(variants, ["allgather"], [1 << 20], 1.0), Inline()
    second.run(cache, pool, lambda *_: None)
    assert len(pool.solved) == 1
    assert second.results() == first.results()


figures = st.tuples(st.none() | st.integers(1, 5), st.integers(0, 5), st.sampled_from(["allgather", "alltoall"]))


@given(st.lists(figures, max_size=12))
def test_the_unbeaten_are_those_that_nothing_dominates(rows: list[tuple[int | None, int, str]]) -> None:
    results = [
        VariantTime(Variant({}, RING, cost), collective, 1, None if time is None else float(time), 1.0)
        for time, cost, collective in rows
    ]
    best = unbeaten(results)
    for number, (time, cost, collective) in enumerate(rows):
        beaten = time is None or any(
            other_time is not None and other == collective and other_time <= time and other_cost <= cost
            and (other_time < time or other_cost < cost)
            for other_time, other_cost, other in rows
        )  # fmt: skip
        assert (number in best) != beaten
