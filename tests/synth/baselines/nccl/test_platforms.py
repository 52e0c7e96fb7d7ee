"""What AWS's plug-ins report to NCCL and choose instead of it: regions by hand, and consistent polygons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synth.baselines.nccl import figures as f
from synth.baselines.nccl import platforms
from synth.baselines.nccl.model import NcclModel, nccl_model
from topologies.load import load

MIB, GIB = 1 << 20, 1 << 30


def model_on(platform: str, spec: str) -> NcclModel:
    topology = replace(load(spec), platform=platform)
    return nccl_model(topology, range(topology.nranks))


@pytest.mark.parametrize(
    ("platform", "us"),
    [
        ("p4d.24xlarge", 75), ("p4de.24xlarge", 75), ("p3dn.24xlarge", 150), ("p5.48xlarge", 75), ("p5e.48xlarge", 75),
        ("p5en.48xlarge", 35), ("p6-b200.48xlarge", 35), ("p6e-gb200.36xlarge", 35), ("", 0), ("bm.gpu.h100.8", 0),
    ],
)  # fmt: skip
def test_a_nic_has_the_latency_of_the_plug_in(platform: str, us: float) -> None:
    assert platforms.net_latency_us(platform) == us


def test_every_step_between_nodes_takes_this_latency() -> None:
    """Check that a tree of two nodes crosses the network twice, under Simple with a flush each, and so does a ring."""
    plain, on_platform = model_on("", "dgx-a100:2"), model_on("p4de.24xlarge", "dgx-a100:2")
    for plain_choice, platform_choice in zip(
        plain.candidates("allreduce", MIB), on_platform.candidates("allreduce", MIB), strict=True
    ):
        flush = 2 if plain_choice.protocol == f.SIMPLE else 1
        plateau = 1.4 if (plain_choice.algorithm, plain_choice.protocol) == (f.RING, f.SIMPLE) else 1.0
        assert platform_choice.latency_us - plain_choice.latency_us == pytest.approx(2 * flush * 75 * plateau)
        assert platform_choice.algbw_gbs == plain_choice.algbw_gbs
    single_node = [model_on(p, "dgx-a100").choose("allreduce", MIB) for p in ("", "p4de.24xlarge")]
    assert single_node[0] == single_node[1]


@pytest.mark.parametrize(
    ("nodes", "size", "choice"),
    [
        (4, 1 << 10, (f.TREE, f.LL)),  # Up to 192 KiB for any number of ranks.
        (4, MIB, (f.TREE, f.LL128)),
        (4, 200 * MIB, (f.RING, f.LL128)),
        (4, 400 * MIB, (f.NVLS_TREE, f.SIMPLE)),  # 280 to 486 MiB with 32 ranks.
        (4, 600 * MIB, (f.RING, f.SIMPLE)),
        (16, 16 * GIB, (f.RING, f.SIMPLE)),
        (64, 16 * GIB, (f.NVLS_TREE, f.SIMPLE)),
    ],
)
def test_the_tuner_of_p5en_chooses_an_all_reduce_by_its_regions(nodes: int, size: int, choice: tuple[str, str]) -> None:
    assert platforms.tuned("p5en.48xlarge", 8 * nodes, nodes, "allreduce", size)[0] == choice


def test_the_tuner_leaves_two_nodes_and_other_machines_to_nccl() -> None:
    assert not platforms.tuned("p5en.48xlarge", 16, 2, "allreduce", MIB)
    assert not platforms.tuned("p4de.24xlarge", 64, 8, "allreduce", MIB)
    assert not platforms.tuned("p5en.48xlarge", 33, 8, "allreduce", MIB)
    assert not platforms.tuned("p5en.48xlarge", 64, 8, "broadcast", MIB)


def test_the_model_follows_the_tuner_even_where_another_choice_is_cheaper() -> None:
    model = model_on("p5en.48xlarge", "dgx-h200:4")
    sizes = [1 << k for k in range(10, 35)]
    choices = [model.choose("allreduce", size) for size in sizes]
    assert [(c.algorithm, c.protocol) for c in choices] == [
        platforms.tuned("p5en.48xlarge", 32, 4, "allreduce", size)[0] for size in sizes
    ]
    cheapest = [min(c.time_us for c in model.candidates("allreduce", size)) for size in sizes]
    assert any(c.time_us > least for c, least in zip(choices, cheapest, strict=True))


def test_regions_are_read_completely_and_overlap_only_at_their_edges() -> None:
    regions_of = platforms._regions()
    assert len(regions_of) == 23
    assert {a for regions in regions_of.values() for a, _, _ in regions} <= set(f.ALGORITHMS)
    assert {p for regions in regions_of.values() for _, p, _ in regions} == set(f.PROTOCOLS)
    seeds = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        at = float(seeds.uniform(10, 34)), float(seeds.uniform(4, 11))
        hits = [a for a, _, corners in regions_of["p5en", 8, "allreduce"] if platforms._holds(corners, at)]
        assert len(hits) <= 2  # The last two of its polygons overlap in a sliver.
        covered += bool(hits)
    assert covered > 295


def test_a_point_in_a_polygon_by_hand() -> None:
    square = ((0.0, 0.0), (4.0, 0.0), (4.0, 4.0), (0.0, 4.0))
    notch = (*square[:3], (2.0, 1.0), (0.0, 4.0))
    for corners, inside, outside in (
        (square, [(1.0, 1.0), (4.0, 2.0), (2.0, 0.0), (0.0, 0.0)], [(5.0, 2.0), (-1.0, 2.0), (2.0, 4.1)]),
        (notch, [(0.2, 2.0), (3.9, 2.0), (2.0, 0.5), (2.0, 1.0)], [(2.0, 2.0), (2.0, 3.9)]),
    ):
        assert all(platforms._holds(corners, at) for at in inside)
        assert not any(platforms._holds(corners, at) for at in outside)
