"""The figures of NCCL's own cost model, which its authors fitted to real machines.

Source: NCCL 2.30.7 (June 2026), src/graph/tuning.cc, search.cc, topo.h and src/include/{comm,device}.h. Bandwidths in
GB/s, times in µs. Rows of a generation: Volta, Ampere, Hopper, Blackwell; columns: 1, 2, more nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

VERSION = "2.30"
LL, LL128, SIMPLE = PROTOCOLS = ("LL", "LL128", "Simple")
RING, TREE, NVLS, NVLS_TREE, PAT = ALGORITHMS = ("ring", "tree", "NVLS", "NVLSTree", "PAT")
LEAST_CAPABILITY = 50  # lowest compute capability that the model covers

MOST_CHANNELS = 64
MOST_SEARCHED = 32  # channels of a search; each becomes two
MOST_HEADS = 32  # GPUs that NVLS serves directly
NVLS_CHANNELS_HOPPER, NVLS_CHANNELS_BLACKWELL, NVLS_CHANNELS_BLACKWELL_NODE = 16, 32, 24
CAPABILITY_HOPPER, CAPABILITY_BLACKWELL = 90, 100

PCIE_GBS = 12.0  # sixteen lanes of the third generation; a ring up to this rate has half the threads
PCIE = PCIE_GBS / (16 * 8 * 128 / 130 / 8)  # share of a PCIe link's bandwidth that counts


class Generation(NamedTuple):
    """The figures of a generation of GPUs; tuples of three are for 1, 2 and more nodes.

    Attributes:
        nvlink: Share of an NVLink's bandwidth that counts.
        intra_gbs: GB/s that are tried for a channel in a node.
        inter_gbs: GB/s that are tried for a channel between nodes.
        ll_gbs: Most GB/s of all channels under LL.
        ring_ll128_gbs: Most GB/s of each channel of a ring under LL128.
        tree_ll128_gbs: Most GB/s of each channel of a tree under LL128.
        tree_gbs: Most GB/s of each channel of a tree.
        nvls_tree_gbs: Most GB/s of each channel of NVLSTree.
        nvls: Share of a link's bandwidth that a reducing and multicasting switch reaches.
    """

    nvlink: float
    intra_gbs: tuple[float, ...]
    inter_gbs: tuple[float, ...]
    ll_gbs: tuple[float, float, float]
    ring_ll128_gbs: float
    tree_ll128_gbs: tuple[float, float, float]
    tree_gbs: tuple[float, float, float]
    nvls_tree_gbs: tuple[float, float, float]
    nvls: float


_BEFORE_HOPPER = (
    (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0),
    (48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12),
)
_VOLTA = Generation(
    20.0 / 25, *_BEFORE_HOPPER, (39.0, 39.0, 20.4), 20.0, (20.0,) * 3, (26.5, 18.5, 10.0), (26.5, 18.5, 10.0), 0.0
)
_AMPERE = Generation(
    20.0 / 25, *_BEFORE_HOPPER, (87.7, 22.5, 19.0), 20.0, (20.0,) * 3, (24.0, 23.6, 17.8), (24.0, 23.6, 17.8), 0.0
)
_HOPPER = Generation(
    20.6 / 25,
    (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24, 0.12),
    (141.0, 45.0, 35.0),
    36.7,
    (36.7, 36.7, 29.0),
    (38.7, 41.4, 36.0),
    (0.0, 57.7, 45.5),
    0.85,
)
_BLACKWELL = Generation(
    40.1 / 50,
    (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
    (
        96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24,
        0.12,
    ),
    (282.0, 90.0, 70.0),
    40.0,
    (55.6, 31.67, 20.0),
    (70.0, 42.8, 24.0),
    (0.0, 96.0, 80.0),
    0.74,
)  # fmt: skip


def generation(capability: int) -> Generation:
    """Return the figures of a compute capability.

    They are Blackwell's from 100 on, Hopper's from 90, Ampere's from 80, else Volta's. Capability 86 has Ampere's with
    a lower share of its NVLinks.
    """
    if capability >= CAPABILITY_BLACKWELL:
        return _BLACKWELL
    if capability >= CAPABILITY_HOPPER:
        return _HOPPER
    if capability == 86:  # NCCL counts its NVLinks lower than any.
        return _AMPERE._replace(nvlink=12.0 / 14.0625)
    return _AMPERE if capability >= 80 else _VOLTA


# LL over all channels between nodes depends on the CPU: Volta's row serves for Intel, Ampere's for AMD.
LL_BETWEEN_NODES_GBS = {"": _VOLTA.ll_gbs, "amd": _AMPERE.ll_gbs}
NET_POST_US = {"": 1.0, "amd": 2.0}  # µs that a step over the network costs a CPU; three times that under Simple


class Latencies(NamedTuple):
    """The times of a call that do not depend on its bytes.

    Attributes:
        base_us: µs before the first step, by algorithm and protocol.
        step_us: µs of a step by where it leads (nvlink, pcie, network), algorithm and protocol.
        stated: Part of the latency that a cloud's plug-in states for its NICs which a step really takes.
    """

    base_us: Mapping[str, tuple[float, float, float]]
    step_us: Mapping[str, Mapping[str, tuple[float, float, float]]]
    stated: float = 1.0


# Times in µs by protocol.
BASE_US = {
    TREE: (6.8, 14.0, 8.4),
    RING: (6.6, 14.0, 8.4),
    NVLS: (0.0, 0.0, 0.0),
    NVLS_TREE: (0.0, 0.0, 0.0),
    PAT: (8.0, 8.0, 8.0),
}
STEP_US = {
    "nvlink": {
        TREE: (0.6, 1.25, 4.0), RING: (0.6, 1.9, 3.4), NVLS: (0, 0, 25.0), NVLS_TREE: (0, 0, 25.0), PAT: (0, 0, 4.0),
    },
    "pcie": {
        TREE: (1.0, 1.9, 4.0), RING: (1.0, 2.5, 5.7), NVLS: (0, 0, 0), NVLS_TREE: (0, 0, 0), PAT: (0, 0, 4.0),
    },
    "network": {
        TREE: (5.0, 8.5, 14.0), RING: (2.7, 4.0, 14.0), NVLS: (0, 0, 18.0), NVLS_TREE: (0, 0, 20.9), PAT: (0, 0, 14.0),
    },
}  # fmt: skip
SOURCE = Latencies(BASE_US, STEP_US)

# Factors of a tree's bandwidth by protocol and power of two of the message, from 64 bytes.
TREE_CORRECTION = {
    LL: (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    LL128: (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    SIMPLE: (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
}  # fmt: skip

THREADS = {LL: 512, LL128: 640, SIMPLE: 512}  # threads of a block
THREAD_BYTES = {LL: 8, LL128: 8, SIMPLE: 64}  # least bytes a thread; times the ranks for a ring's LL
