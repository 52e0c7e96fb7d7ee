"""The figures of a report against independent computations from the same schedules."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.app.report.layout import place_vertices
from synth.app.report.lineage import sample_chunks, trace_schedule
from synth.app.report.schedule import schedule_view
from synth.app.report.shares import pack_table, shares_of_time
from synth.engines.messages.nodes import nodes_of
from synth.engines.messages.plans import MessagesForm, moving
from synth.model.collective import Ints
from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule
from synth.storage.schedule_file import StoredSchedule, load_schedule, save_schedule
from synth.timing.simulate import timed
from synth.verify.algorithm import Algorithm
from tests.random_problems import answered, random_problem
from tests.synth.app.report.report_pages import opened, rows_of, spread, stored, straight
from topologies.costed import with_costs
from topologies.load import load
from topologies.topology import Topology

LINKED = (
    "mesh:4x4", "torus:3x4", "torus:9x9", "mesh:3x3x3", "hypercube:7", "full:5", "star:6", "fattree:4", "dgx-a100:2",
    "dragonfly:3x2x2", "ring:200", "dgx1", "line:2",
)  # fmt: skip


@given(st.integers(0, 10**6), st.integers(1, 12))
@settings(max_examples=60)
def test_shares_of_time(seed: int, nbins: int) -> None:
    """Check shares of time against the overlap of every interval with every bin."""
    rng = np.random.default_rng(seed)
    n, nrows, span = int(rng.integers(0, 30)), int(rng.integers(1, 5)), float(rng.choice([1e-3, 1.0, 7e6]))
    row = rng.integers(0, nrows, n)
    ends = np.sort(rng.choice([*rng.random(6), 0.0, 1.0, 0.5], (n, 2)), axis=1) * span
    shares = shares_of_time(row, ends[:, 0], ends[:, 1], nrows, nbins, span)
    edges = np.linspace(0, span, nbins + 1)
    expected = np.zeros((nrows, nbins))
    for r, (a, b) in zip(row.tolist(), ends.tolist(), strict=True):
        expected[r] += np.clip(np.minimum(b, edges[1:]) - np.maximum(a, edges[:-1]), 0, None) / (span / nbins)
    assert shares == pytest.approx(expected, abs=1e-9)


def test_a_table_keeps_its_rows() -> None:
    shares = np.random.default_rng(1).choice([0.0, 0.25, 1.0], (40, 3))
    packed = pack_table(shares)
    assert np.abs(opened(packed) - shares).max() <= 0.5 / 255
    assert len(packed["row"]) == 40


def answer(seed: int, folder: Path) -> StoredSchedule:
    rng = random.Random(seed)
    problem = random_problem(rng, folder)
    return load_schedule(stored(folder, problem, rng.choice((1.0, 4096.0, 1e9))))


def whole(known_schedule: StoredSchedule) -> tuple[Problem, Schedule]:
    return known_schedule.expanded()


def check_loads(known_schedule: StoredSchedule, view: dict[str, object]) -> None:
    """Check loads of links and resources, by time and in total, against every send of the whole schedule."""
    problem, schedule = whole(known_schedule)
    net, net_view, span = problem.network, view["network"], float(str(view["span"]))
    assert isinstance(net_view, dict)
    sizes = problem.collective.chunk_bytes(schedule.size_bytes)
    bytes_of: Counter[str] = Counter()
    for chunk, link in zip(schedule.chunk.tolist(), schedule.link.tolist(), strict=True):
        for resource in net.uses(link).tolist():
            bytes_of[net.resource_names[resource]] += float(sizes[chunk])
    capacity = dict(zip(net.resource_names, net.capacity_gbs.tolist(), strict=True))
    shown = {}
    names = net_view["names"]
    for u, v, load_ in zip(net_view["u"], net_view["v"], net_view["load"], strict=True):
        shown[f"{names[u]}→{names[v]}"] = load_
    shown |= {limit["name"]: limit["load"] for limit in net_view["limits"]}
    assert set(shown) == set(capacity)
    for name, load_ in shown.items():
        assert load_ == pytest.approx(bytes_of[name] / 1e3 / capacity[name] / span, rel=1e-6, abs=1e-9)
    now = opened(net_view["now"])
    assert now.mean(axis=1) == pytest.approx(np.array(net_view["load"]), abs=0.5 / 255 + 1e-6)


def check_lineage(problem: Problem, schedule: Schedule) -> None:
    """Check that every arriving contribution is listed once, and that every hop begins after its data has arrived."""
    trace, net, collective = trace_schedule(problem, schedule), problem.network, problem.collective
    before = {(c, r) for r, c in collective.pre.tolist()}
    arrives = schedule.end_us + net.alpha_us[schedule.link]
    contributions: dict[tuple[int, int], Counter[int]] = {(c, r): Counter([r]) for c, r in before}
    value: list[Counter[int]] = [Counter() for _ in range(len(schedule))]
    slack = 1e-9 * max(1.0, float(arrives.max(initial=0.0)))
    for row in np.lexsort((arrives, schedule.step)).tolist():
        chunk, link = int(schedule.chunk[row]), int(schedule.link[row])
        source = int(net.src[link])
        if trace.own[row]:
            assert (chunk, source) in before
            value[row][source] += 1
        for place in rows_of(trace.ptr, row):
            parent = int(trace.rows[place])
            assert int(schedule.chunk[parent]) == chunk
            assert int(net.dst[schedule.link[parent]]) == source
            assert arrives[parent] <= schedule.start_us[row] + slack
            assert trace.hop[parent] < trace.hop[row]
            value[row] += value[parent]
        assert value[row], row
        if not collective.reduces[chunk]:
            assert value[row].total() == 1
    order = np.lexsort((arrives, schedule.reduces, schedule.step))
    for row in order.tolist():
        cell = (int(schedule.chunk[row]), int(net.dst[schedule.link[row]]))
        if schedule.reduces[row]:
            contributions[cell] = contributions.get(cell, Counter()) + value[row]
        elif collective.reduces[cell[0]] or cell not in contributions:
            contributions[cell] = value[row]
    for rank, chunk in collective.post.tolist():
        if collective.reduces[chunk]:
            assert contributions[chunk, rank] == Counter(r for c, r in before if c == chunk)
        else:
            assert contributions[chunk, rank].total() == 1


@given(st.integers(0, 10**6))
@settings(max_examples=25)
def test_any_schedule(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    known_schedule = answer(seed, tmp_path_factory.mktemp("any"))
    problem, schedule = known_schedule.problem, known_schedule.schedule
    view = schedule_view(known_schedule, 10**6)
    check_loads(known_schedule, view)
    check_lineage(problem, schedule)
    sends, net = view["sends"], problem.network
    assert sends["shown"] == sends["total"] == len(schedule)
    links = sends["links"]
    assert [links["src"][x] for x in sends["link"]] == net.src[schedule.link].tolist()
    assert [links["dst"][x] for x in sends["link"]] == net.dst[schedule.link].tolist()
    assert [view["chunks"]["id"][x] for x in sends["chunk"]] == schedule.chunk.tolist()
    assert sends["start"] == pytest.approx(schedule.start_us.tolist(), rel=1e-6)
    assert sends["end"] == pytest.approx(schedule.end_us.tolist(), rel=1e-6)
    assert sends["reduces"] == schedule.reduces.astype(int).tolist()
    if len(schedule) and view["span"] > 0:
        # At the end everything has arrived, and a row is in use as long as its sends last.
        assert (opened(view["ranks"]["got"])[:, -1] == 1).all()
        assert sum(view["rows"]["load"]) == pytest.approx(
            float((schedule.end_us - schedule.start_us).sum()) / view["span"], rel=1e-5, abs=1e-9
        )
    for edges, link in zip(links["path"], np.unique(schedule.link).tolist(), strict=True):
        ends = [(view["network"]["u"][e], view["network"]["v"][e]) for e in edges]
        assert sum(u == net.src[link] for u, _ in ends) == sum(v == net.dst[link] for _, v in ends) == 1


def two_kinds() -> Topology:
    """Build a ring of eight with a slower link from every even rank to the next even rank, so that parities differ."""
    ring = [(r, (r + offset) % 8, 20.0) for r in range(8) for offset in (1, 7)]
    links = sorted([*ring, *((r, (r + 2) % 8, 10.0) for r in range(0, 8, 2))])
    src, dst, gbs = (np.array(column) for column in zip(*links, strict=True))
    return Topology("two kinds", 8, (), src, dst, np.full(len(src), 0.7), gbs)


@pytest.mark.parametrize("spec", ["torus:4x4", "full:9", "two kinds"])
def test_a_schedule_of_a_quotient_is_shown_as_the_whole(tmp_path: Path, spec: str) -> None:
    known_schedule = load_schedule(spread(tmp_path, two_kinds()) if spec == "two kinds" else straight(tmp_path, spec))
    assert known_schedule.orbit == {"torus:4x4": 16, "full:9": 9, "two kinds": 4}[spec]
    view = schedule_view(known_schedule, 10**6)
    check_loads(known_schedule, view)
    problem, schedule = known_schedule.expanded()
    assert view["sends"]["total"] == len(schedule) == view["sends"]["stored"] * known_schedule.orbit
    arrived = schedule.end_us + problem.network.alpha_us[schedule.link]
    got = opened(view["ranks"]["got"])
    nbins = got.shape[1]
    missing = {(c, r) for r, c in problem.collective.post.tolist()} - {
        (c, r) for r, c in problem.collective.pre.tolist()
    }
    for bin_ in (0, nbins // 4, nbins // 3, nbins // 2, 3 * nbins // 4, nbins - 1):
        chunks_at: Counter[int] = Counter()
        for chunk, link, when in zip(schedule.chunk.tolist(), schedule.link.tolist(), arrived.tolist(), strict=True):
            rank = int(problem.network.dst[link])
            chunks_at[rank] += (chunk, rank) in missing and when <= (bin_ + 1) * view["span"] / nbins * (1 + 1e-6)
        for rank in range(problem.nranks):
            many = sum(r == rank for _, r in missing)
            assert got[rank, bin_] == pytest.approx(chunks_at[rank] / many, abs=0.5 / 255 + 1e-6)


def test_the_sends_of_a_message_hold_their_link_once(tmp_path: Path) -> None:
    problem = make_problem(with_costs(load("dgx-h100:2")), "alltoall").under("LL")
    nodes = nodes_of(problem.network)
    assert nodes is not None
    schedule = moving(nodes, problem.collective, MessagesForm(2, 8)).schedule(1)
    path = save_schedule(tmp_path / "a.synth", Algorithm(problem, schedule, "test"), 1 << 20)
    known_schedule = load_schedule(path)
    assert known_schedule.schedule.joined.any()
    check_loads(known_schedule, schedule_view(known_schedule, 10**6))


def test_a_figure_of_another_schedule_is_refused() -> None:
    """Check that the checks above refuse a schedule without one send, and one with a send that is too late."""
    problem = make_problem(load("ring:4"), "allreduce")
    schedule = timed(problem, answered(problem, 1e6), 1e6)
    check_lineage(problem, schedule)
    with pytest.raises((AssertionError, KeyError)):
        check_lineage(problem, schedule.take(np.arange(len(schedule)) != 3))
    late = schedule.take(np.arange(len(schedule)))
    late.start_us[:] -= 1.0
    with pytest.raises(AssertionError):
        check_lineage(problem, late)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=300), st.integers(1, 400))
@settings(max_examples=80)
def test_a_sample_of_chunks_is_bounded(chunks: list[int], most: int) -> None:
    column: Ints = np.array(chunks, dtype=np.int64)
    chosen = sample_chunks(column, 41, most)
    kept_sends = int(np.isin(column, chosen).sum())
    count = Counter(chunks)
    assert len(set(chosen.tolist())) == len(chosen) >= 1
    assert set(chosen.tolist()) <= set(chunks)
    assert kept_sends <= most or len(chosen) == 1
    if len(chunks) <= most:
        assert kept_sends == len(chunks)
    else:
        assert kept_sends + max(count.values()) > most or kept_sends == len(chunks)


def test_a_large_schedule_is_shown_in_part_and_counted_whole(tmp_path: Path) -> None:
    known_schedule = load_schedule(stored(tmp_path, make_problem(load("full:6"), "alltoall", chunks=4)))
    small, large = schedule_view(known_schedule, 30), schedule_view(known_schedule, 10**6)
    assert small["sends"]["shown"] <= 30 < large["sends"]["shown"] == len(known_schedule.schedule)
    assert small["sends"]["total"] == len(known_schedule.schedule)
    assert small["network"] == large["network"]
    assert small["ranks"] == large["ranks"]
    # Rows whose sends are not listed are drawn as a heat map of the same load.
    assert large["rows"]["heat"] is None
    assert opened(small["rows"]["heat"]).mean(axis=1) == pytest.approx(np.array(large["rows"]["load"]), abs=0.5 / 255)


@pytest.mark.parametrize("spec", LINKED)
def test_every_vertex_has_a_place_of_its_own(spec: str) -> None:
    topology = load(spec)
    ends = np.column_stack([topology.link_src, topology.link_dst])
    at = place_vertices(spec, topology.nranks, range(topology.nranks), topology.nodes, len(topology.switches), ends)
    assert len(at.x) == len(at.y) == topology.nvertices
    assert set(at.stub[:, 0].tolist()) <= set(range(len(ends)))
    apart = np.hypot(at.x[:, None] - at.x, at.y[:, None] - at.y)
    np.fill_diagonal(apart, np.inf)
    assert apart.min() > 0.3 * at.spacing
    assert np.isfinite(apart[~np.eye(len(apart), dtype=bool)]).all()


def test_ranks_of_a_chassis_are_near_each_other() -> None:
    for nodes in ([0] * 8 + [1] * 8 + [2] * 8, [5, 7, 5, 7, 9], [0, 1]):
        chassis = np.array(nodes)
        at = place_vertices("", len(nodes), range(len(nodes)), chassis, 0, np.zeros((0, 2), dtype=np.int64))
        apart = np.hypot(at.x[:, None] - at.x, at.y[:, None] - at.y)
        same = chassis[:, None] == chassis
        assert apart[~same].min() >= 1.0
        centres = {own: (at.x[chassis == own].mean(), at.y[chassis == own].mean()) for own in set(nodes)}
        for rank, own in enumerate(nodes):
            away = {other: np.hypot(at.x[rank] - x, at.y[rank] - y) for other, (x, y) in centres.items()}
            assert min(away, key=away.__getitem__) == own
        np.fill_diagonal(apart, np.inf)
        assert apart.min() > 0.3 * at.spacing
