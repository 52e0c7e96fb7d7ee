"""Tests of a plan's time: that of its program where no signal delays it, else a time worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emit.mscclpp import timing
from emit.mscclpp.format import draft, write_plan
from emit.mscclpp.read import read_plan
from emit.mscclpp.timing import PlanPredictor
from emit.targets import TARGETS
from emit.timing.predict import Predictor
from tests.emit.mscclpp import test_foreign_plans as foreign
from tests.emit.small_programs import RIGHT, alltoall, ring_allgather, with_step
from topologies.costed import with_costs, with_protocol
from topologies.errors import InputError
from topologies.load import load
from topologies.network import network
from topologies.topology import Topology

ALPHA_US, GBS = 0.7, 50.0
PLAN_PROGRAMS = {name: p for name, p in RIGHT.items() if p.collective not in ("gather", "scatter")}
SIZES = (0, 1 << 10, 1 << 20)


def rails() -> Topology:
    """Return two ranks joined by two switches, with a link of GBS and ALPHA_US through each, both ways."""
    src, dst = np.array([(u, s) for u in range(2) for s in (2, 3)] + [(s, u) for u in range(2) for s in (2, 3)]).T
    return Topology("rails", 2, ("a", "b"), src, dst, np.full(8, ALPHA_US / 2), np.full(8, GBS))


def wired(nranks: int, *links: tuple[int, int]) -> Topology:
    """Return a topology of these links, each of GBS and ALPHA_US."""
    src, dst = (np.array(side) for side in zip(*links, strict=True))
    same = np.ones(len(links))
    return Topology("wired", nranks, (), src, dst, ALPHA_US * same, GBS * same)


def planned(program: Any, **how: Any) -> PlanPredictor:
    topology = load(f"full:{max(2, program.nranks)}")
    return PlanPredictor(read_plan(write_plan(program, **how)), topology)


@pytest.mark.parametrize("name", PLAN_PROGRAMS)
@pytest.mark.parametrize("inplace", [True, False])
def test_packets_take_the_time_of_the_program(name: str, inplace: bool) -> None:
    """Check that packets, which carry their own flags, cause no waits beyond those of the program."""
    program = replace(PLAN_PROGRAMS[name], protocol="LL")
    expected = Predictor(program, load(f"full:{max(2, program.nranks)}"), fifo_depth=1 << 20).times_us(SIZES)
    for nodes in (None, [2 * rank // program.nranks for rank in range(program.nranks)]):
        assert planned(program, inplace=inplace, nodes=nodes).times_us(SIZES) == pytest.approx(expected)


# All-reduces whose addends pass through scratch: who gets a result knows that it is used up.
AT_ONCE = ("ring_allreduce", "allpairs_allreduce", "allpairs_allreduce_wide")


@pytest.mark.parametrize("name", PLAN_PROGRAMS)
def test_puts_wait_for_the_first_signal(name: str) -> None:
    """Check that signals add at most one α before the first put, and one after the last put of a port channel."""
    program = replace(PLAN_PROGRAMS[name], protocol="Simple")
    least = Predictor(program, load(f"full:{max(2, program.nranks)}"), fifo_depth=1 << 20).times_us(SIZES)
    inside = planned(program).times_us(SIZES)
    between = planned(program, nodes=[2 * rank // program.nranks for rank in range(program.nranks)]).times_us(SIZES)
    for times, words in ((inside, 1), (between, 2)):
        assert (times >= least - 1e-9).all()
        assert (times <= least + words * ALPHA_US + 1e-9).all()
    waits_us = 0.0 if name in AT_ONCE else ALPHA_US
    assert (inside >= least + waits_us - 1e-9).all()
    assert (inside <= least + waits_us + 1e-9).all() or waits_us


# (number of α, number of chunk times) of each path; the longest path counts.
WORKED_OUT: dict[str, list[tuple[int, float]]] = {
    "gets": [(3, 1.0)],  # The hello, the get's round trip, and the last signal.
    "remote sums": [(3, 2.0)],
    "packets": [(2, 2.0)],
    "grouped": [(2, 1.5), (1, 2.0)],  # The second half is sent while the first is in flight, if the link is free.
    "ports": [(3, 1.0)],
    "flushed ports": [(3, 1.0)],  # The flush waits for what has left, which the answer to it waits for anyway.
}


@pytest.mark.parametrize("name", WORKED_OUT)
def test_times_worked_out_by_hand(name: str) -> None:
    predictor = PlanPredictor(read_plan(json.dumps(foreign.RIGHT[name]())), load("full:2"))
    for size in SIZES:
        hold_us = size / 2 / GBS / 1e3
        expected = max(alphas * ALPHA_US + chunks * hold_us for alphas, chunks in WORKED_OUT[name])
        assert predictor.time_us(size) == pytest.approx(expected)


@pytest.mark.parametrize("followed", [40_000, 200])
@pytest.mark.parametrize("iterations", [1, 2, 3, 31, 500])
def test_a_pipeline_has_as_many_iterations_as_its_message_has_units(
    iterations: int, followed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a plan whose iterations each end with a signal, also where not all of its iterations are followed."""
    monkeypatch.setattr(timing, "_FOLLOWED_OPS", followed)
    plan = foreign.two_stages()
    unit_bytes = plan["gpus"][0]["threadblocks"][0]["ops"][0]["iter_context"]["unit_size"]
    size = 2 * iterations * unit_bytes
    predictor = PlanPredictor(read_plan(json.dumps(plan)), load("full:2"))
    assert predictor.time_us(size) == pytest.approx((1 + iterations) * ALPHA_US + size / 2 / GBS / 1e3)


def _told_by_another() -> foreign.Json:
    """Return an all-gather in which a threadblock signals what another one has put, then that it has got the other."""
    gpus = []
    for r in range(2):
        put = [foreign.op("put", [foreign.L("o", r)], [foreign.R(0, r)], "memory"), foreign.NOP]
        first = [*foreign.hello(), *put, {"name": "sem_release", "semaphore_ids": [0]}]
        told = [foreign.NOP, foreign.on("signal"), foreign.on("wait")]
        second = [{"name": "sem_acquire", "semaphore_ids": [0]}, *told, *told]
        rank_json = foreign.gpu(r, (1, 2, 0), [first, second], "o", channels=2)
        gpus.append(rank_json | {"semaphores": [{"init_value": 0}]})
    return foreign.plan("allgather", gpus)


@pytest.mark.parametrize(
    ("plan_json", "group", "flags", "told"),
    [(foreign.ports, (0, 8), 1, 1), (foreign.RIGHT["gets"], (0, 1), 2, 1), (_told_by_another, (0, 1), 1, 2)],
)
def test_signals_that_tell_of_no_data_are_flags(
    plan_json: Callable[[], foreign.Json], group: tuple[int, int], flags: int, told: int
) -> None:
    """Check hellos and confirmations, which take LL's α under costs, and signals of data, which take Simple's.

    Hellos over the network take no time, since NCCL's latencies include its own. Where a threadblock signals for
    another one, all its signals may tell of that one's data.
    """
    topology = with_costs(load("dgx-h100:2"))
    simple, packets = (network(with_protocol(topology, name), group) for name in ("Simple", "LL"))
    predictor = PlanPredictor(read_plan(json.dumps(plan_json())), topology, group)
    hold_us = (1 << 20) / 2 / float(simple.bandwidth_gbs[0]) / 1e3
    expected = simple.start_us + flags * packets.alpha_us[0] + told * simple.alpha_us[0]
    assert packets.alpha_us[0] < simple.alpha_us[0] / 2
    assert predictor.time_us(0) == pytest.approx(expected)
    assert predictor.time_us(1 << 20) >= expected + hold_us


@pytest.mark.parametrize(("plan_json", "group", "is_full"), [
    (foreign.ports, (0, 8), True), (foreign.RIGHT["gets"], (0, 1), False),
])  # fmt: skip
def test_only_nics_fill_links_that_are_wider_than_a_threadblock(
    plan_json: Callable[[], foreign.Json], group: tuple[int, int], *, is_full: bool
) -> None:
    """Check that what goes over a network has the link's bandwidth, since no threadblock moves it."""
    topology = with_costs(load("dgx-h100:2"))
    predictor = PlanPredictor(read_plan(json.dumps(plan_json())), topology, group)
    gbs = float(network(with_protocol(topology, "Simple"), group).bandwidth_gbs[0])
    took_us = predictor.time_us(64 << 20) - predictor.time_us(0)
    assert (took_us == pytest.approx((32 << 20) / gbs / 1e3)) == is_full


def test_a_flush_lasts_until_the_data_has_arrived() -> None:
    """Check that a signal after a flush leaves when the data is there, and otherwise together with the data."""
    plan_json, hold_us = foreign.ports(), (1 << 20) / 2 / GBS / 1e3
    for name, latencies in (("pws", 2), ("pwsf", 3)):
        for gpu in plan_json["gpus"]:
            (block,) = gpu["threadblocks"]
            put = next(op for op in block["ops"] if op["name"].startswith("pws")) | {"name": name}
            told = [foreign.on(word, "port") for word in ("signal", "wait", "wait")]
            block["ops"] = [*foreign.hello("port"), put, foreign.NOP, *told]
        predictor = PlanPredictor(read_plan(json.dumps(plan_json)), wired(2, (0, 1), (1, 0)))
        assert predictor.time_us(1 << 20) == pytest.approx(latencies * ALPHA_US + hold_us)


def test_a_multicast_without_a_switch_is_not_timed() -> None:
    assert foreign.RIGHT.keys() == WORKED_OUT.keys() | {"multicast", "multicast of packets", "two stages"}
    for make_plan, lack in ((foreign.multicast, "reduces over"), (foreign.multicast_packets, "multicasts to")):
        with pytest.raises(InputError, match=f"cannot be timed: no switch of the topology {lack} ranks 0, 1,"):
            PlanPredictor(read_plan(json.dumps(make_plan())), load("full:2"))


def test_threadblocks_share_a_link() -> None:
    """Check that two threadblocks on one link take twice the time, and that two parallel links carry both at once."""
    plan_json = foreign.plan("allgather", [foreign.gpu(r, (2, 4, 0), [
        [*foreign.hello(), foreign.op("put", [foreign.L("o", 2 * r + b)], [foreign.R(0, 2 * r + b)], "memory"),
         foreign.NOP, foreign.on("signal"), foreign.on("wait")]
        for b in range(2)], "o", channels=2) for r in range(2)])  # fmt: skip
    one_link = wired(2, (0, 1), (1, 0))
    two_links = rails()
    plan, hold_us = read_plan(json.dumps(plan_json)), (1 << 20) / 4 / GBS / 1e3
    assert PlanPredictor(plan, one_link).time_us(1 << 20) == pytest.approx(2 * ALPHA_US + 2 * hold_us)
    assert PlanPredictor(plan, two_links).time_us(1 << 20) == pytest.approx(2 * ALPHA_US + hold_us)


def test_a_barrier_is_waited_for() -> None:
    """Check that threadblock 1 goes on when threadblock 0 has put."""
    barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}

    def blocks(r: int) -> list[list[dict[str, Any]]]:
        put = [foreign.op("put", [foreign.L("o", 2 * r + b)], [foreign.R(0, 2 * r + b)], "memory") for b in range(2)]
        end = [foreign.NOP, foreign.on("signal"), foreign.on("wait")]
        return [[*foreign.hello(), put[0], barrier, *end], [*foreign.hello(), barrier, put[1], *end]]

    plan_json = foreign.plan("allgather", [foreign.gpu(r, (2, 4, 0), blocks(r), "o", channels=2) for r in range(2)])
    both_ways = rails()
    time_us = PlanPredictor(read_plan(json.dumps(plan_json)), both_ways).time_us(1 << 20)
    assert time_us == pytest.approx(2 * ALPHA_US + 2 * (1 << 20) / 4 / GBS / 1e3)


def test_a_network_of_one_way_links() -> None:
    """Check that signals return where data cannot."""
    ring = wired(3, (0, 1), (1, 2), (2, 0))
    simple = read_plan(write_plan(ring_allgather(3)))
    assert PlanPredictor(simple, ring).time_us(0) == pytest.approx(3 * ALPHA_US)
    with pytest.raises(InputError, match="to which wired has no link"):
        PlanPredictor(read_plan(write_plan(alltoall(3))), ring)


@pytest.mark.parametrize(
    ("plant_fault", "message"),
    [
        (
            lambda plan_json: plan_json["gpus"][0]["threadblocks"][0]["ops"].pop(1),
            "cannot be timed: stops before its end",
        ),
        (lambda plan_json: plan_json["gpus"][0]["threadblocks"][0]["ops"][1].update(channel_ids=[7]), "dangling id"),
        (lambda plan_json: plan_json["gpus"].pop(), "cannot be timed"),
    ],
)
def test_plans_that_cannot_be_timed(plant_fault: Callable[[Any], Any], message: str) -> None:
    plan_json = foreign.gets()
    plant_fault(plan_json)
    with pytest.raises(InputError, match=message):
        PlanPredictor(read_plan(json.dumps(plan_json)), load("full:2"))


def test_places() -> None:
    plan = read_plan(write_plan(ring_allgather(4)))
    assert PlanPredictor(plan, load("dgx1"), (0, 1, 2, 3)).group == (0, 1, 2, 3)
    for group, words in (((0, 1), "group has 2 ranks, the program 4"), (None, "full:2 has 2")):
        with pytest.raises(InputError, match=words):
            PlanPredictor(plan, load("full:2"), group)


@pytest.mark.parametrize("name", PLAN_PROGRAMS)
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_draft_has_the_time_of_its_text(name: str, protocol: str) -> None:
    program = replace(PLAN_PROGRAMS[name], protocol=protocol, name="draft")
    nodes, topology = [rank % 2 for rank in range(program.nranks)], load(f"full:{max(2, program.nranks)}")
    plan_draft = draft(program, None, TARGETS["mscclpp"], nodes, [])
    written = PlanPredictor(read_plan(plan_draft.text()), topology, range(program.nranks))
    drafted = plan_draft.predictor(topology, range(program.nranks))
    assert list(drafted.times_us(SIZES)) == list(written.times_us(SIZES))
    assert plan_draft.text() == write_plan(program, nodes=nodes)


def test_wrong_draft_is_not_written() -> None:
    """Check that a draft of a wrong program, which is made without a check, is refused when its text is asked for."""
    wrong = with_step(alltoall(3), 0, 1, 0, src_off=0)
    plan_draft = draft(wrong, None, TARGETS["mscclpp"], [0, 0, 0], [])
    with pytest.raises(InputError, match="wrong result"):
        plan_draft.text()
