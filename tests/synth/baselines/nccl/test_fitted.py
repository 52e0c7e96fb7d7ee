"""NCCL's fitted times: beside measured ones, beside the source's choice, and in the costs that machines state."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from synth.baselines.nccl import figures as f
from synth.baselines.nccl import fitted as fit
from synth.baselines.nccl.model import LibraryChoice, nccl_model
from synth.baselines.nccl.platforms import net_latency_us
from synth.bounds.prove import prove
from synth.model.problem import make_problem
from topologies.costed import with_costs
from topologies.errors import NotModelled
from topologies.load import load
from topologies.machines import machines

# Machine, collective, GPUs, bytes, µs: 60 rows of the 1686 that `results.scripts.nccl_fit` fits, drawn with a seed.
# Published by NVIDIA's aiconfigurator (state of 2026-08-21).
MEASURED = (
    ("dgx-a100", "allgather", 2, 262144, 13.57),
    ("dgx-a100", "allgather", 2, 2097152, 38.1),
    ("dgx-a100", "allgather", 2, 8388608, 59.72),
    ("dgx-a100", "allgather", 2, 134217728, 496.4),
    ("dgx-a100", "allgather", 4, 1024, 10.77),
    ("dgx-a100", "allgather", 4, 4096, 11.02),
    ("dgx-a100", "allgather", 4, 67108864, 325.4),
    ("dgx-a100", "allgather", 8, 2097152, 33.45),
    ("dgx-a100", "allreduce", 2, 268435456, 1430.1),
    ("dgx-a100", "allreduce", 4, 262144, 18.15),
    ("dgx-a100", "allreduce", 4, 67108864, 544.3),
    ("dgx-a100", "allreduce", 8, 2048, 21.53),
    ("dgx-a100", "allreduce", 8, 32768, 25.96),
    ("dgx-a100", "alltoall", 2, 4096, 11.09),
    ("dgx-a100", "alltoall", 2, 1048576, 22.79),
    ("dgx-a100", "alltoall", 4, 2048, 12.44),
    ("dgx-a100", "alltoall", 4, 268435456, 1070.6),
    ("dgx-a100", "reducescatter", 4, 512, 10.75),
    ("dgx-a100", "reducescatter", 8, 1024, 15.25),
    ("dgx-a100", "reducescatter", 8, 1048576, 23.43),
    ("dgx-h200", "allgather", 2, 1048576, 11.28),
    ("dgx-h200", "allgather", 2, 2097152, 16.46),
    ("dgx-h200", "allgather", 2, 16777216, 54.0),
    ("dgx-h200", "allgather", 2, 67108864, 156.38),
    ("dgx-h200", "allgather", 4, 2048, 7.23),
    ("dgx-h200", "allgather", 4, 524288, 10.64),
    ("dgx-h200", "allgather", 8, 8388608, 44.56),
    ("dgx-h200", "allgather", 8, 16777216, 66.52),
    ("dgx-h200", "allgather", 8, 268435456, 722.1),
    ("dgx-h200", "allreduce", 4, 67108864, 323.27),
    ("dgx-h200", "allreduce", 8, 4096, 16.04),
    ("dgx-h200", "alltoall", 2, 16777216, 50.79),
    ("dgx-h200", "alltoall", 2, 134217728, 247.12),
    ("dgx-h200", "alltoall", 4, 512, 11.06),
    ("dgx-h200", "alltoall", 4, 2048, 12.61),
    ("dgx-h200", "alltoall", 4, 4194304, 22.92),
    ("dgx-h200", "alltoall", 4, 8388608, 36.08),
    ("dgx-h200", "reducescatter", 4, 1024, 7.11),
    ("dgx-h200", "reducescatter", 8, 1048576, 14.55),
    ("dgx-h200", "reducescatter", 8, 134217728, 375.59),
    ("gb200-nvl72", "allgather", 2, 33554432, 53.17),
    ("gb200-nvl72", "allgather", 4, 4096, 11.9),
    ("gb200-nvl72", "allgather", 4, 16384, 12.62),
    ("gb200-nvl72", "allgather", 4, 262144, 13.46),
    ("gb200-nvl72", "allgather", 4, 4194304, 25.27),
    ("gb200-nvl72", "allgather", 4, 16777216, 58.89),
    ("gb200-nvl72", "allreduce", 2, 8192, 11.09),
    ("gb200-nvl72", "allreduce", 2, 32768, 11.17),
    ("gb200-nvl72", "allreduce", 4, 1048576, 19.6),
    ("gb200-nvl72", "allreduce", 4, 16777216, 99.07),
    ("gb200-nvl72", "alltoall", 2, 1048576, 17.71),
    ("gb200-nvl72", "alltoall", 4, 2048, 10.7),
    ("gb200-nvl72", "reducescatter", 2, 2097152, 15.16),
    ("gb200-nvl72", "reducescatter", 2, 8388608, 27.75),
    ("gb200-nvl72", "reducescatter", 2, 33554432, 54.01),
    ("gb200-nvl72", "reducescatter", 2, 67108864, 98.28),
    ("gb200-nvl72", "reducescatter", 2, 134217728, 184.31),
    ("gb200-nvl72", "reducescatter", 2, 536870912, 649.19),
    ("gb200-nvl72", "reducescatter", 4, 1024, 11.73),
    ("gb200-nvl72", "reducescatter", 4, 33554432, 71.15),
)


def ratio(figures: fit.Fitted, row: tuple[str, str, int, int, float]) -> tuple[float, LibraryChoice]:
    """Return measured over modelled time of a row, and the modelled choice."""
    machine, collective, gpus, size, us = row
    choice = fit.FittedModel(nccl_model(load(machine), range(gpus)), figures).choose(collective, size)
    return us / choice.time_us, choice


def test_measured_times_are_near_and_mostly_inside_their_intervals() -> None:
    ratios = np.array([ratio(fit.fitted(), row)[0] for row in MEASURED])
    errors = np.abs(ratios - 1)
    assert np.median(errors) <= 0.10
    assert np.quantile(errors, 0.9) <= 0.25
    choices = [ratio(fit.fitted(), row)[1] for row in MEASURED]
    inside = [choice.low_us <= row[-1] <= choice.high_us for choice, row in zip(choices, MEASURED, strict=True)]
    assert 0.7 <= sum(inside) / len(inside) <= 0.95


def test_figures_of_another_generation_are_seen() -> None:
    """Check that the test above would see it if generations were mixed up."""
    figures = fit.fitted()
    turned = dict(zip(figures.fits, [*list(figures.fits.values())[1:], figures.fits[fit.AMPERE]], strict=True))
    wrong = [abs(ratio(replace(figures, fits=turned), row)[0] - 1) for row in MEASURED]
    assert np.median(wrong) > 0.10


@pytest.mark.parametrize("spec", ["dgx1", "dgx-a100", "dgx-h100:2", "gb200-nvl72", "l40s-1root", "p5.48xlarge:4"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast"])
def test_the_choice_is_the_sources(spec: str, collective: str) -> None:
    topology = load(spec)
    source, model = nccl_model(topology, range(topology.nranks)), fit.fitted_model(topology, range(topology.nranks))
    for size in (1, 1 << 10, 1 << 16, 1 << 20, 1 << 30):
        own, fitted = source.choose(collective, size), model.choose(collective, size)
        assert (own.algorithm, own.protocol, own.channels) == (fitted.algorithm, fitted.protocol, fitted.channels)
        assert fitted.source_us == own.time_us
        assert 0 < fitted.low_us <= 1.01 * fitted.time_us < 1.02 * fitted.high_us
        assert fitted.time_us == pytest.approx(fitted.latency_us + size / (1000 * fitted.algbw_gbs))


def test_types_that_switches_cannot_add_take_a_ring() -> None:
    model = fit.fitted_model(load("dgx-h200"), range(8))
    choices = [model.choose("allreduce", 1 << 28, sums) for sums in (True, False)]
    assert [choice.algorithm for choice in choices] == [f.NVLS, f.RING]


def test_an_all_to_all_is_timed_in_one_node_only() -> None:
    small, large = (
        fit.fitted_model(load("dgx-h100"), range(8)).choose("alltoall", size) for size in (1 << 10, 1 << 28)
    )
    assert (small.protocol, large.protocol) == (f.LL, f.SIMPLE)
    assert small.time_us < large.time_us
    with pytest.raises(NotModelled, match="grouped send and receive"):
        fit.fitted_model(load("dgx-h100:2"), range(16)).choose("alltoall", 1 << 20)


@pytest.mark.parametrize("name", machines())
def test_machines_of_nvidia_state_the_fitted_costs(name: str) -> None:
    """Check that what a machine's file states follows from the fitted figures, with three digits."""
    topology = load(name)
    costs, figures = topology.costs, fit.fitted()
    if costs is None or not costs.source.startswith("NCCL"):
        assert not topology.compute_capability or costs is None
        return
    assert "fitted" in costs.source
    fits = figures.fits[fit.generation_of(topology.compute_capability)]
    for number, (name_of_protocol, network) in enumerate(figures.network.items()):
        if name_of_protocol not in costs.protocols:
            continue
        stated, own = costs.protocols[name_of_protocol], fits[name_of_protocol]
        ring_us = {place: f.STEP_US[place][f.RING][number] for place in ("nvlink", "pcie", "network")}
        flush_us = (2 if name_of_protocol == f.SIMPLE else 1) * figures.stated * net_latency_us(topology.platform)
        latency_us = {
            "nvlink": own.step_us,
            "pcie": ring_us["pcie"] * own.step_us / ring_us["nvlink"],
            "network": ring_us["network"] * network.step_us + flush_us,
        }
        assert stated.start_us == pytest.approx(own.start_us, rel=0.01)
        for place, us in stated.latency_us.items():
            assert us == pytest.approx(latency_us[place], rel=0.01)


def test_intervals_and_figures_are_sound() -> None:
    figures = fit.fitted()
    for kinds in (*figures.fits.values(), figures.network):
        for own in kinds.values():
            assert all(value >= 0 and not math.isnan(value) for value in own)
    assert all(0.5 < spread.low <= 1.0 <= spread.high < 2 for spread in figures.spreads.values())


@pytest.mark.parametrize("spec", ["dgx1", "dgx-h100", "l40s-2root", "ndv2:3", "dgx2:2", "p4d.24xlarge:2"])
def test_nccl_is_not_faster_than_any_algorithm_can_be(spec: str) -> None:
    """Check that no modelled time is below what is proved of every algorithm on the same network."""
    topology = load(spec)
    nccl = fit.fitted_model(topology, range(topology.nranks))
    for collective in ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall"):
        bound = prove(make_problem(with_costs(topology), collective), max_flow=False)
        for size in (1 << 20, 1 << 28):
            try:
                choice = nccl.choose(collective, size)
            except NotModelled:
                assert collective == "alltoall"
                continue
            assert choice.time_us >= bound.at(size)[0], (collective, size, choice)
