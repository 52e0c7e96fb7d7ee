"""RCCL's own cost model: its choices by hand, and the cases that it does not model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from synth.baselines.nccl import figures as f
from synth.baselines.nccl import rccl_figures as r
from synth.baselines.nccl.rccl import COLLECTIVES, RcclModel, rccl_model
from topologies.clusters import Machine, Nics, join
from topologies.costs import LINK_KINDS
from topologies.errors import NotModelled
from topologies.faults.apply import apply_faults
from topologies.load import load
from topologies.topology import Topology

MIB, GIB = 1 << 20, 1 << 30


def joined(spec: str, nnodes: int, nics: int) -> Topology:
    """Build nodes with a number of NICs each, spread evenly over the devices."""
    topology = load(spec)
    sets = tuple(np.split(np.arange(topology.nranks), nics))
    return join(Machine(topology, Nics(sets, sets, 25.0, 2.6, True, nics)), nnodes, spec)


def model(spec: str, group: list[int] | None = None, gcn: str = "") -> RcclModel:
    name, _, nnodes = spec.partition(":")
    topology = joined(name, int(nnodes), 8) if nnodes else load(name)
    topology = replace(topology, gcn=gcn) if gcn else topology
    return rccl_model(topology, group if group is not None else range(topology.nranks))


def test_large_all_reduce_of_eight_mi300x_by_hand() -> None:
    """Check seven links of 48 GB/s, and 14 steps of 2.1 µs after 17 µs."""
    choice = model("mi300x").choose("allreduce", GIB)
    assert (choice.algorithm, choice.protocol) == (f.RING, f.SIMPLE)
    assert choice.time_us == pytest.approx(17 + 14 * 2.1 + GIB / (7 * 48e3 * 8 / 14))


def test_broadcast_of_eight_mi300x_by_hand() -> None:
    """Check the latency of one step, and LL at 0.08 of the rings' bandwidth, times 1.65 where one rank has all data."""
    choices = {c.protocol: c for c in model("mi300x").candidates("broadcast", MIB)}
    assert choices[f.SIMPLE].time_us == pytest.approx(17 + 2.1 + MIB / 336e3)
    assert choices[f.LL].time_us == pytest.approx(12 + 0.8 + MIB / (336e3 * 0.08 * 1.65))


@pytest.mark.parametrize(
    ("size", "protocol", "us"),
    [
        (1 << 10, f.LL, 12 + 2 * 0.8 + 1024 * 2 * 14 / 8 / 336e3),
        ((1 << 19) - 1, f.LL, 12 + 2 * 0.8 + ((1 << 19) - 1) * 2 * 14 / 8 / 336e3),
        (1 << 19, f.SIMPLE, 17 + 2 * 2.1 + (1 << 19) * 14 / 8 / 336e3),
        (16 * MIB, f.SIMPLE, 17 + 2 * 2.1 + 16 * MIB * 14 / 8 / 336e3),
    ],
)
def test_small_all_reduce_of_eight_mi300x_is_direct(size: int, protocol: str, us: float) -> None:
    choice = model("mi300x").choose("allreduce", size)
    assert (choice.algorithm, choice.protocol, str(choice)) == (r.ALL_PAIRS, protocol, f"{r.ALL_PAIRS} {protocol}")
    assert choice.time_us == pytest.approx(us)
    assert model("mi300x").choose("allreduce", 16 * MIB + 1).algorithm == f.RING


def test_two_nodes_of_mi250_by_hand() -> None:
    """Check 8 NICs: tuning 4, 161.4 GB/s; a tree of LL at 0.16 of it, of LL128 at 1.09, at 1 KiB a tenth of it."""
    choices = {(c.algorithm, c.protocol): c for c in model("mi250:2").candidates("allreduce", 1 << 10)}
    tree = choices[f.TREE, f.LL]
    assert tree.latency_us == pytest.approx(12 + 2 * (15 * 0.8 + 32.2))
    assert tree.algbw_gbs == pytest.approx(161.4 * 0.16 * 0.1 / 2)
    ring = choices[f.RING, f.SIMPLE]
    assert ring.latency_us == pytest.approx(17 + (62 - 4) * 6 + 4 * 209.2)
    assert {p for _, p in choices} == {f.LL, f.LL128, f.SIMPLE}


@pytest.mark.parametrize("spec", ["mi300x", "mi250", "mi250:2", "mi250:3"])
def test_every_collective_and_size_has_a_time_that_does_not_fall_much(spec: str) -> None:
    rccl = model(spec)
    for collective in COLLECTIVES:
        for size in (1, 63, 1024, MIB, GIB + 1, 1 << 45):
            choices = rccl.candidates(collective, size)
            best = rccl.choose(collective, size)
            assert all(math.isfinite(c.time_us) and c.time_us >= c.latency_us > 0 for c in choices)
            if best.algorithm != r.ALL_PAIRS:
                assert best.time_us == min(c.time_us for c in choices)
            assert best.algbw_gbs <= rccl.bus_gbs * 2  # No factor of its tables is over two.


def test_corrections_have_a_value_for_every_power_of_two() -> None:
    for tuning in r.TUNINGS:
        assert {len(parts) for parts in (*tuning.tree, *tuning.ring)} == {27}
        assert all(0 <= int(digit, 11) <= 10 for parts in (*tuning.tree, *tuning.ring) for digit in parts)
    assert {machine.tuning for machine in r.MACHINES.values()} <= set(range(len(r.TUNINGS)))


@pytest.mark.parametrize(
    ("spec", "group", "gcn", "collective", "why"),
    [
        ("dgx-h100", None, "", "allreduce", "states no AMD architecture"),
        ("mi300x", [0, 1], "", "allreduce", "parts of a node"),
        ("mi250:2", [*range(16), 16], "", "allreduce", "parts of a node"),
        ("mi300x", [0], "", "allreduce", "one rank"),
        ("mi300x", None, "gfx906", "allreduce", "8 gfx906 and 0 NICs"),
        ("mi250", None, "gfx942", "allreduce", "16 gfx942 and 0 NICs"),
        ("mi250:2", list(range(16)), "gfx942", "allreduce", "16 gfx942 and 0 NICs"),
        ("mi300x", None, "", "alltoall", "grouped send and receive"),
        ("mi300x", None, "", "gather", "no cost model for gather"),
    ],
)
def test_an_unmodelled_case_has_a_reason(
    spec: str, group: list[int] | None, gcn: str, collective: str, why: str
) -> None:
    with pytest.raises(NotModelled, match=why):
        model(spec, group, gcn).choose(collective, MIB)


def linked(gbs: dict[tuple[int, int], float], nranks: int, gcn: str) -> Topology:
    """Build devices with links in both directions."""
    pairs = np.array([pair for a, b in gbs for pair in ((a, b), (b, a))])
    rates = np.repeat(list(gbs.values()), 2)
    return Topology("box", nranks, (), pairs[:, 0], pairs[:, 1], np.full(len(pairs), 0.7), rates, gcn=gcn)


RING_OF_8 = {(i, (i + 1) % 8): 64.0 for i in range(8)}
RING_OF_16 = {(i, (i + 1) % 16): 175.0 for i in range(16)}  # A die has the same outgoing bandwidth as on MI250.


@pytest.mark.parametrize(
    "topology",
    [
        apply_faults(load("mi300x"), ["link:0-1"], []),
        apply_faults(load("mi300x"), ["link:0>1"], []),
        apply_faults(load("mi300x"), [], ["link:0-1=50%"]),
        apply_faults(load("mi300x"), [], ["link:0>1=80%"]),
        apply_faults(load("mi250"), ["link:0-8"], []),
        apply_faults(load("mi250"), [], ["link:0-1=50%"]),
        linked(RING_OF_8, 8, "gfx942"),
        linked(RING_OF_16, 16, "gfx90a"),
        load("mi250:2"),  # 16 NICs, which RCCL knows for quads only.
        apply_faults(joined("mi300x", 2, 8), ["link:8-9"], []),
    ],
    ids=lambda topology: topology.name[-40:],
)
def test_rings_are_known_only_for_nodes_wired_as_written(topology: Topology) -> None:
    with pytest.raises(NotModelled, match="for a node with this wiring"):
        rccl_model(topology, range(topology.nranks))


def test_nodes_are_recognised_by_their_wiring_at_any_bandwidth() -> None:
    for spec in ("mi300x", "mi250"):
        topology = load(spec)
        rng = np.random.default_rng(1)
        measured = replace(topology, bandwidth_gbs=topology.bandwidth_gbs * rng.uniform(0.76, 0.84, topology.nlinks))
        assert rccl_model(measured, range(topology.nranks)).bus_gbs == pytest.approx(0.8 * model(spec).bus_gbs, rel=0.1)
    quads = {(4 * q + a, 4 * q + b): 50.0 for q in range(4) for a in range(4) for b in range(a)}
    across = {(4 * q, (4 * q + 4) % 16): 20.0 for q in range(4)}  # Over PCIe, which is no xGMI.
    box = linked(quads | across, 16, "gfx90a")
    pcie = replace(box, link_kind=np.where(box.bandwidth_gbs == 20, LINK_KINDS.index("pcie"), 0))
    sets = tuple(np.arange(16).reshape(16, 1))
    two = join(Machine(pcie, Nics(sets, sets, 25.0, 2.6, True, 16)), 2, "quads:2")
    assert rccl_model(two, range(32)).bus_gbs == pytest.approx(3 * 36)


def test_written_wirings_have_each_link_at_both_ends() -> None:
    for (_, devices, _), machine in r.MACHINES.items():
        assert len(machine.wiring) == devices
        assert sum(map(len, machine.wiring)) % 2 == 0
