"""The choices of MSCCL++ by size, timed by hand; and the row of every library, which answers or states why not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synth.baselines import mscclpp
from synth.baselines.mscclpp import ALL_GATHER, NVLS, NVLS_PACKETS, ONE_SHOT, TWO_SHOT, mscclpp_model
from synth.baselines.nccl.model import LibraryChoice
from synth.baselines.vendors import LIBRARIES
from topologies.costed import with_costs
from topologies.costs import LINK_KINDS
from topologies.errors import NotModelled
from topologies.load import load
from topologies.machines import machines

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("spec", "choices"),
    [
        ("mi300x", [(16 * KIB, ONE_SHOT, "packets"), (MIB, TWO_SHOT, "packets"), (GIB, TWO_SHOT, "Simple")]),
        ("dgx-a100", [(16 * KIB, ONE_SHOT, "packets"), (MIB, TWO_SHOT, "packets"), (GIB, TWO_SHOT, "Simple")]),
        (
            "dgx-h100",
            [(16 * KIB, ONE_SHOT, "packets"), (32 * KIB, NVLS_PACKETS, "packets"), (MIB, TWO_SHOT, "packets"),
             (GIB, NVLS, "Simple")],
        ),
        (
            "gb200-nvl72",
            [(32 * KIB, NVLS_PACKETS, "packets"), (2 * MIB, TWO_SHOT, "packets"), (GIB, TWO_SHOT, "Simple")],
        ),
    ],
)  # fmt: skip
def test_an_algorithm_serves_up_to_its_size(spec: str, choices: list[tuple[int, str, str]]) -> None:
    topology = load(spec)
    model = mscclpp_model(topology, range(min(8, topology.nranks)))
    for (most, algorithm, protocol), (_, after, then) in zip(choices, [*choices[1:], choices[-1]], strict=True):
        assert [(c.algorithm, c.protocol) for c in (model.choose("allreduce", size) for size in (most, most + 1))] == [
            (algorithm, protocol), (after, then),
        ]  # fmt: skip
    assert model.choose("allgather", MIB).algorithm == ALL_GATHER


def test_times_by_hand() -> None:
    """Check MI300X (64 GB/s for each pair, 0.7 µs) and H100 (a port of 450 GB/s, 0.7 µs through the switch)."""
    mi300x, h100 = (mscclpp_model(load(spec), range(8)) for spec in ("mi300x", "dgx-h100"))
    assert mi300x.choose("allreduce", KIB).time_us == pytest.approx(0.7 + KIB / 64e3)
    assert mi300x.choose("allreduce", GIB).time_us == pytest.approx(1.4 + 2 * GIB / 8 / 64e3)
    assert mi300x.choose("allgather", GIB).time_us == pytest.approx(0.7 + GIB / 8 / 64e3)
    assert h100.choose("allreduce", KIB).time_us == pytest.approx(0.7 + 7 * KIB / 450e3)
    assert h100.choose("allreduce", 32 * KIB).time_us == pytest.approx(0.7 + 8 * 32 * KIB / 450e3)
    assert h100.choose("allreduce", GIB).time_us == pytest.approx(1.4 + 1.125 * GIB / 450e3)


def test_costs_are_counted_where_they_are_on() -> None:
    """Check packets, which are LL: half the bytes are flags, and a step takes as long as a step of LL."""
    topology = with_costs(load("dgx-h100"))
    assert topology.costs is not None
    ll, simple = (topology.costs.protocols[name] for name in ("LL", "Simple"))
    model = mscclpp_model(topology, range(8))
    small, large = model.choose("allreduce", KIB), model.choose("allreduce", GIB)
    assert small.latency_us == pytest.approx(ll.start_us + ll.latency_us["nvlink"])
    assert small.algbw_gbs == pytest.approx(450 * ll.efficiency["nvlink"] / 7)
    assert simple.switch_ops is not None
    assert large.latency_us == pytest.approx(simple.start_us + 2 * simple.switch_ops.latency_us)
    assert large.algbw_gbs == pytest.approx(450 * simple.switch_ops.efficiency / 1.125)


def test_mscclpp_does_not_run_where_switches_only_forward() -> None:
    h100 = replace(load("dgx-h100"), switch_ops=())
    with pytest.raises(NotModelled, match="not in this answer's network"):
        mscclpp_model(h100, range(8))
    plain = replace(h100, link_kind=np.full(h100.nlinks, LINK_KINDS.index("pcie")))  # Neither NVLink nor NVSwitch.
    assert mscclpp_model(plain, range(8)).choose("allreduce", GIB).algorithm == TWO_SHOT


@pytest.mark.parametrize(
    ("spec", "group", "collective", "why"),
    [
        ("torus:2x2", [0, 1], "allreduce", "neither compute_capability nor gcn"),
        ("dgx-h100", [3], "allreduce", "one rank"),
        ("gb200-nvl72", list(range(9)), "allreduce", "8 ranks of a node at most"),
        ("dgx-h100:2", [0, 8], "allreduce", "leaves groups of several nodes"),
        ("dgx1", list(range(8)), "allreduce", "not all devices are linked"),
        ("mi300x", [0, 1], "broadcast", "no algorithm of its own for broadcast"),
    ],
)
def test_mscclpp_gives_a_reason_where_it_has_no_algorithm(
    spec: str, group: list[int], collective: str, why: str
) -> None:
    with pytest.raises(NotModelled, match=why):
        mscclpp_model(load(spec), group).choose(collective, MIB)


def test_every_library_answers_for_its_machines_or_refuses() -> None:
    modelled = dict.fromkeys(LIBRARIES, 0)
    for spec in machines():
        topology = load(spec)
        for name, library in LIBRARIES.items():
            try:
                choice = library.model(topology, range(topology.nranks)).choose("allreduce", MIB)
            except NotModelled:
                continue
            modelled[name] += 1
            assert isinstance(choice, LibraryChoice)
            assert choice.time_us > choice.latency_us > 0
            assert (name == "RCCL") <= bool(topology.gcn)
            assert (name == "NCCL") <= bool(topology.compute_capability)
    assert min(modelled.values()) >= 2
    assert LIBRARIES["MSCCL++"].version == mscclpp.VERSION
