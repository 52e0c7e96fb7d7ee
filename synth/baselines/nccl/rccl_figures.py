"""The figures of RCCL's own cost model, which AMD fitted to machines that it knows by their topology.

Source: RCCL 2.21.5 (0cbce2a7, October 2024), src/graph/tuning.cc, topo.h and rome_models.cc. Times in µs. Pairs are for
tree and ring; each has the protocols LL, LL128, Simple.
"""

from __future__ import annotations

from typing import NamedTuple

VERSION = "2.21.5"
BASE_US = (12.0, 12.0, 17.0)  # by protocol, for trees and rings

# Share of an xGMI link's bandwidth that counts (36 of 50 GB/s, 48 of 64), by architecture.
XGMI = {"gfx90a": 36.0 / 50.0, "gfx940": 48.0 / 64.0, "gfx941": 48.0 / 64.0, "gfx942": 48.0 / 64.0}

Figures = tuple[tuple[float, float, float], tuple[float, float, float]]
Parts = tuple[str, str, str]


class RcclTuning(NamedTuple):
    """The figures of a machine.

    Attributes:
        xgmi_us: µs of a step over xGMI.
        network_us: µs of a step over the network.
        few: Share of the bandwidth of all rings, on at most two nodes.
        many: The share on more nodes.
        tree: By protocol, tenths of the bandwidth by power of two of the message from 64 bytes (a: ten); the last holds
            for all larger messages.
        ring: As `tree`, for rings between nodes.
    """

    xgmi_us: Figures
    network_us: Figures
    few: Figures
    many: Figures
    tree: Parts
    ring: Parts


TUNINGS = (
    RcclTuning(  # 0
        xgmi_us=((0.8, 1.4, 2.5), (0.8, 2.2, 3.6)),
        network_us=((11.8, 18.2, 20.8), (9.5, 19.8, 15.1)),
        few=((0.04, 0.22, 0.91), (0.04, 0.34, 1)),
        many=((0.04, 0.22, 0.95), (0.04, 0.34, 1)),
        tree=("121193412421332221111111111", "13a15a9aaa31455443322222222", "2a117241134368aaaa988888999"),
        ring=("111112423531553221111111111", "1111111113aaaaaa87544333333", "a82aa3a112215a88a9aaaaaaaaa"),
    ),
    RcclTuning(  # 1
        xgmi_us=((1.5, 1.5, 4.5), (1.5, 1.5, 4.5)),
        network_us=((33, 33, 15.8), (5.1, 5.1, 68.8)),
        few=((0.12, 1, 0.99), (0.12, 1, 1)),
        many=((0.15, 1, 0.42), (0.2, 1, 1)),
        tree=("5476aa541546aaaaa8654432111", "5476aa541546aaaaa8654432111", "1111134516aaa657aaaaaaa7533"),
        ring=("a5aa67aa2a97aaa998876553211", "a5aa67aa2a97aaa998876553211", "3a311137a21111111112359aaaa"),
    ),
    RcclTuning(  # 2
        xgmi_us=((1.5, 1.5, 4.5), (1.5, 1.5, 4.5)),
        network_us=((27.9, 27.9, 15.8), (12.1, 12.1, 68.8)),
        few=((0.07, 1, 0.99), (0.08, 1, 1)),
        many=((0.07, 1, 0.42), (0.08, 1, 1)),
        tree=("1433245116778a9765432222222", "1433245116778a9765432222222", "a1111235169879aaaaaaa799aaa"),
        ring=("1aaaaaaa4aaaa76543221111111", "1aaaaaaa4aaaa76543221111111", "11111111a221111124569aaaaaa"),
    ),
    RcclTuning(  # 3
        xgmi_us=((0.8, 0, 2.5), (0.8, 0, 3.6)),
        network_us=((12.5, 0, 22.4), (9.5, 0, 19.8)),
        few=((0.2, 0, 1.75), (0.2, 0, 1)),
        many=((0.2, 0, 0.96), (0.2, 0, 1)),
        tree=("111111aa2a9a646433333222222", "000000000000000000000000000", "aaaaaa1112a8aaaaaaaaa878977"),
        ring=("111113121442237543333222222", "000000000000000000000000000", "11111115a13111222347aaaaaaa"),
    ),
    RcclTuning(  # 4
        xgmi_us=((0.8, 1.4, 2.5), (0.8, 2.2, 3.6)),
        network_us=((32.2, 34.4, 47.6), (35.4, 87.8, 209.2)),
        few=((0.16, 1.09, 1.61), (0.15, 0.41, 1)),
        many=((0.16, 1.09, 1.08), (0.15, 0.41, 1)),
        tree=("11111111a112465111111111111", "1111111112112a5222222222222", "aaaaaaaa843311aa75656656667"),
        ring=("111111111112213111211111111", "45544442213aa785aaaaa985433", "111111111aa8517244679aaaaaa"),
    ),
    RcclTuning(  # 5
        xgmi_us=((0.9, 0, 2.3), (0.8, 0, 2.1)),
        network_us=((10.5, 0, 25), (9.5, 0, 320)),
        few=((0.06, 0, 0.11), (0.08, 0, 1)),
        many=((0.06, 0, 0.59), (0.08, 0, 1)),
        tree=("111111aaaaa6a9aa11111111111", "000000000000000000000000000", "1111111111111117aaaaaaaaaa8"),
        ring=("11111111111a2a4412211111111", "000000000000000000000000000", "111111111111111111111118aaa"),
    ),
)


# Numbers of xGMI links from each device to each device that it is linked to; the devices are in no order.
Wiring = tuple[tuple[int, ...], ...]
MESH: Wiring = ((1,) * 7,) * 8
HALF: Wiring = ((4, 2, 1),) * 4 + ((4, 1, 1),) * 4
PACKAGES: Wiring = ((4, 2, 1),) * 8 + ((4, 1, 1, 1),) * 8
QUADS: Wiring = ((1,) * 3,) * 16


class RcclMachine(NamedTuple):
    """A machine that RCCL knows.

    Attributes:
        wiring: Links of its devices.
        tuning: Index in TUNINGS.
        base_gbs: GB/s of all rings; 0: the GB/s that leave a device over xGMI.
        ll128: True if it has LL128.
    """

    wiring: Wiring
    tuning: int
    base_gbs: float = 0.0
    ll128: bool = False


# Keys: architecture (gfx94: MI300), devices of a node, NICs of a node (0: one node). The comments are names in
# rome_models.cc.
MACHINES = {
    ("gfx90a", 16, 0): RcclMachine(PACKAGES, 1),  # 56
    ("gfx90a", 16, 8): RcclMachine(PACKAGES, 4, 161.4, True),  # 59, 65
    ("gfx90a", 16, 16): RcclMachine(QUADS, 0),  # 68
    ("gfx90a", 8, 0): RcclMachine(HALF, 2),  # 66, 71
    ("gfx90a", 8, 4): RcclMachine(HALF, 2),  # 67, 72, 85
    ("gfx90a", 8, 8): RcclMachine(HALF, 3),  # 76
    ("gfx94", 8, 0): RcclMachine(MESH, 5),  # 79
    ("gfx94", 8, 8): RcclMachine(MESH, 5),  # 81
    ("gfx94", 8, 16): RcclMachine(MESH, 5),  # 84
}

# For an all-reduce of 8 MI300X, out of place, RCCL runs MSCCL files from its own folder (tools/msccl-algorithms, which
# RCCL removed in 2026): all send to all and back. From ALL_PAIRS_SIMPLE bytes they use Simple. From ALL_PAIRS_END bytes
# RCCL runs its own rings and trees.
ALL_PAIRS = "all-pairs"
ALL_PAIRS_SIMPLE, ALL_PAIRS_END = 1 << 19, (1 << 24) + 1
