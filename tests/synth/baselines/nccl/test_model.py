"""NCCL's own cost model: channels as NCCL prints them, times by its formulas, and the cases that it does not model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from synth.baselines.nccl import figures as f
from synth.baselines.nccl.channels import find_channels
from synth.baselines.nccl.communicator import NcclNic, NcclNode, communicator, nics_of, nodes_of
from synth.baselines.nccl.model import COLLECTIVES, NcclModel, nccl_model
from topologies.errors import NotModelled
from topologies.load import load, load_machine
from topologies.machines import machines
from topologies.topology import Topology

MIB, GIB = 1 << 20, 1 << 30
RAIL_PAIRS = [0, 1, 8, 9]


def model(spec: str, group: list[int] | None = None) -> NcclModel:
    topology = load(spec)
    return nccl_model(topology, group if group is not None else range(topology.nranks))


@pytest.mark.parametrize(
    ("spec", "ring", "running"),
    [
        ("dgx1", (6, 20.0), 12),  # "Channel 11/12" in NCCL's logs of a DGX-1.
        ("dgx-a100", (12, 20.0), 24),  # "Channel 23/24", NVIDIA/nccl-tests issue 100.
        ("dgx-h100", (12, 30.0), 24),
        ("dgx-a100:2", (8, 24.0), 16),  # "192 GB/s", NVIDIA/nccl issue 1576.
        ("dgx-h100:2", (8, 45.0), 16),
        ("ndv2:2", (1, 12.0), 2),
    ],
)
def test_there_are_as_many_channels_as_in_nccl(spec: str, ring: tuple[int, float], running: int) -> None:
    nccl = model(spec)
    graph = nccl.graphs[f.RING]
    assert (graph.channels, graph.intra_gbs) == ring
    assert nccl.channels == running


@pytest.mark.parametrize("machine", [name for name in machines() if load_machine(name).nics is not None])
def test_a_node_has_as_many_nics_in_any_cluster(machine: str) -> None:
    """Check that what the NICs of other nodes receive, and how many nodes there are, adds no NIC."""
    stated = load_machine(machine).nics
    assert stated is not None
    for count in (2, 3, 5):
        cluster = load(f"{machine}:{count}")
        part, nodes = nodes_of(cluster, range(cluster.nranks))
        for members in nodes:
            nics = nics_of(cluster, part, members)
            assert sum(nic.gbs for nic in nics) == pytest.approx(stated.gbs * len(stated.sends))


def test_no_link_and_no_nic_is_over_its_bandwidth() -> None:
    """Check that the channels in and out of every GPU and NIC fit into its counted bandwidth, on any machine."""
    for capability in (70, 80, 90, 100):
        for gpus in (2, 3, 4, 8, 16):
            for switched in (80.0, 240.0, 370.8, 721.8):
                for nics in ((), tuple(NcclNic(gbs, (i % gpus,)) for i, gbs in enumerate((25.0, 50.0, 12.5)))):
                    node = NcclNode(gpus, switched, nics=nics)
                    for pattern in (f.RING, f.TREE, f.NVLS):
                        channels = find_channels(node, pattern, capability, bool(nics))
                        slack = gpus / (gpus - 1) if pattern != f.RING or nics else 1.0
                        assert channels.channels * channels.intra_gbs <= switched * slack * (1 + 1e-6)
                        carried = sum(nic.gbs for nic in nics)
                        assert not nics or channels.channels * channels.inter_gbs <= carried * (1 + 1e-6)


def test_ring_of_eight_a100_by_hand() -> None:
    """Check 14 steps of 3.4 µs after 8.4 µs, and 240 GB/s on the wire, of which 8/14 counts."""
    choice = model("dgx-a100").choose("allreduce", GIB)
    assert (choice.algorithm, choice.protocol, choice.channels) == (f.RING, f.SIMPLE, 24)
    assert choice.latency_us == pytest.approx(8.4 + 14 * 3.4)
    assert choice.time_us == pytest.approx(8.4 + 14 * 3.4 + GIB / (240e3 * 8 / 14))


def test_switch_reduces_on_eight_h100_by_hand() -> None:
    """Check eight heads of 40 GB/s, 85 % of it, 7/8 of the channels, two operations at once."""
    choice = model("dgx-h100").choose("allreduce", GIB)
    assert choice.algorithm == f.NVLS
    assert choice.time_us == pytest.approx(25.0 + GIB / (8 * 40e3 * 0.85 * 7 / 8 * 2 * 8 / 14))
    assert model("dgx-a100").choose("allreduce", GIB).algorithm == f.RING


def test_one_gpu_a_node_by_hand() -> None:
    """Check one ring over each GPU's NIC; network latencies are a tree's, and PAT has no more steps than a tree."""
    nccl = model("dgx-a100:4", [0, 8, 16, 24])
    ring = {c.protocol: c for c in nccl.candidates("allgather", 1024) if c.algorithm == f.RING}
    assert ring[f.LL].latency_us == pytest.approx(6.6 + 3 * 5.0)
    pat = next(c for c in nccl.candidates("allgather", MIB) if c.algorithm == f.PAT)
    assert pat.latency_us == pytest.approx(8.0 + 2 * 14 / 3.5 + 4 * 2.8)
    assert not [c for c in model("dgx-a100:4").candidates("allgather", MIB) if c.algorithm == f.PAT]


@pytest.mark.parametrize("group", [[0, 1], [2, 5, 7], [0, 8], RAIL_PAIRS, [0, 1, 2, 8], list(range(16))])
def test_groups_of_every_kind(group: list[int]) -> None:
    for machine in ("dgx-a100:2", "dgx-h100:2"):
        nccl = model(machine, group)
        assert nccl.communicator.nranks == len(group)
        again = model(machine, group[::-1])
        for collective in COLLECTIVES:
            sizes = [1, 1000, 1024, MIB, GIB, GIB + 1]
            for size in sizes:
                choices = nccl.candidates(collective, size)
                best = nccl.choose(collective, size)
                assert best.time_us == min(c.time_us for c in choices)
                assert 1 <= best.channels <= f.MOST_CHANNELS
                assert all(math.isfinite(c.time_us) and c.time_us >= c.latency_us > 0 for c in choices)
                assert again.choose(collective, size) == best


def test_protocols_go_from_few_bytes_to_many() -> None:
    """Check the order LL, LL128, Simple."""
    nccl = model("dgx-a100")
    used = [nccl.choose("allreduce", 1 << k).protocol for k in range(6, 34)]
    assert [p for p, before in zip(used, ["", *used], strict=False) if p != before] == list(f.PROTOCOLS)


def test_racks_under_switches_are_one_node() -> None:
    assert model("gb200-nvl72").communicator.nnodes == 1
    assert model("dgx-h100:3").communicator.sizes == (8, 8, 8)
    assert [len(nic.gpus) for nic in communicator(load("ndv2:2"), [3, 4, 12]).kinds[0].nics] == [0]


def test_shared_nic_counts_once() -> None:
    topology = load("dgx-h100:2")
    lone_ring = nccl_model(topology, [0, 8]).graphs[f.RING]
    assert lone_ring.channels * lone_ring.inter_gbs <= 50
    assert nccl_model(topology, RAIL_PAIRS).graphs[f.RING].channels == 2 * lone_ring.channels


@pytest.mark.parametrize(
    ("spec", "group", "collective", "why"),
    [
        ("mi300x", [0, 1], "allreduce", "compute capability"),
        ("torus:4x4", [0, 1], "allreduce", "compute capability"),
        ("dgx1", [0, 5], "allreduce", "no ring"),
        ("dgx-a100", [3], "allreduce", "one rank"),
        ("dgx-a100", [0, 1], "alltoall", "grouped send and receive"),
        ("dgx-a100", [0, 1], "gather", "no cost model for gather"),
    ],
)
def test_an_unmodelled_case_has_a_reason(spec: str, group: list[int], collective: str, why: str) -> None:
    with pytest.raises(NotModelled, match=why):
        nccl_model(load(spec), group).choose(collective, MIB)


def test_links_of_unknown_kind_are_not_guessed() -> None:
    topology = load("dgx-a100")
    unknown = replace(topology, link_kind=np.zeros(topology.nlinks, dtype=np.int64))
    with pytest.raises(NotModelled, match="0→nvswitch is NVLink or PCIe"):
        nccl_model(unknown, range(8))


def pcie_box(gpus: int, shared_gbs: float) -> Topology:
    """Build a node of GPUs under one PCIe switch."""
    up = np.arange(gpus)
    switch = np.full(gpus, gpus)
    return Topology(
        "box",
        gpus,
        ("plx",),
        np.concatenate([up, switch]),
        np.concatenate([switch, up]),
        np.full(2 * gpus, 0.5),
        np.full(2 * gpus, shared_gbs),
        compute_capability=80,
        link_kind=np.full(2 * gpus, 2),
    )


def test_rings_over_pcie_take_turns_on_its_links() -> None:
    nccl = nccl_model(pcie_box(4, 31.508), range(4))
    ring = nccl.graphs[f.RING]
    assert not ring.nvlink
    assert ring.channels * ring.intra_gbs == 24.0  # Of sixteen lanes of the fourth generation.
    choices = nccl.candidates("allreduce", MIB)
    assert {c.protocol for c in choices} == {f.LL, f.SIMPLE}  # PCIe may tear stores of 128 bytes.
    slower = nccl_model(pcie_box(4, 15.754), range(4)).choose("allreduce", GIB)
    assert slower.time_us == pytest.approx(2 * nccl.choose("allreduce", GIB).time_us, rel=0.05)


def test_large_nodes_have_a_result_or_a_reason() -> None:
    """Check that no search runs deep or long, however large a node is."""
    for gpus in (128, 129, 2000):
        ring = np.arange(gpus)
        line = Topology(
            "line",
            gpus,
            (),
            np.concatenate([ring, ring]),
            np.concatenate([(ring + 1) % gpus, (ring - 1) % gpus]),
            np.full(2 * gpus, 0.5),
            np.full(2 * gpus, 50.0),
            compute_capability=80,
            link_kind=np.full(2 * gpus, 1),
        )
        if gpus > 128:
            with pytest.raises(NotModelled, match="128 at most"):
                nccl_model(line, range(gpus))
        else:
            # Two in each direction, each of 20 of 40 GB/s.
            assert nccl_model(line, range(gpus)).graphs[f.RING].channels == 4
