"""The time of what NCCL chooses, by figures that are fitted to measured times.

NCCL's own cost model ranks its algorithms well, but its times are up to two times too short. Here the choice is that of
`model`, from NCCL's source, and the time is computed by figures of `fitted.toml`, which `results.scripts.nccl_fit`
fits to measured times. A time has three parts: what a call takes without bytes, what the channels take for the bytes,
and what copies inside a device take.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from synth.baselines.nccl import figures as f
from synth.baselines.nccl.model import NO_RING, LibraryChoice, NcclModel, nccl_model, steps_of
from topologies.errors import NotModelled
from topologies.topology import Topology

FILE = Path(__file__).with_name("fitted.toml")
PAIRS = "pairs"  # Grouped send and receive calls, which nccl-tests' all-to-all consists of.
PAIRS_LL_BYTES = 1 << 15  # The most bytes between two ranks of an all-to-all that are sent under LL.
NVLS_FILL_BYTES = 1 << 25  # The bytes from which the buffers of all channels of NVLS are full.
LARGE_BYTES = 1 << 26  # The message size from which bandwidth alone decides times between nodes.
NETWORK_LARGE = "Network, from 64 MiB"
NETWORK, AMPERE, HOPPER, BLACKWELL = "Network", "Ampere", "Hopper", "Blackwell"


class Fit(NamedTuple):
    """The fitted figures of one protocol.

    Attributes:
        start_us: µs of a call before its first step.
        step_us: µs of a step over NVLink, or of one more peer of an all-to-all.
        share: Part of the bandwidth of NCCL's own cost model that all channels together reach.
        channel_gbs: GB/s of one channel at most.
        copy_gbs: GB/s at which a rank copies its own part of the message, or NVLS fills its buffers.
    """

    start_us: float
    step_us: float = 0.0
    share: float = 1.0
    channel_gbs: float = math.inf
    copy_gbs: float = math.inf


class ErrorInterval(NamedTuple):
    """The interval that holds four of five measured times, as factors of the modelled time.

    Attributes:
        low: Factor below which one of ten measured times lies.
        high: Factor above which one of ten measured times lies.
    """

    low: float
    high: float


@dataclass(frozen=True)
class Fitted:
    """All fitted figures.

    Attributes:
        fits: Figures by generation of GPUs, then by kind: a protocol of rings and trees, NVLS, or PAIRS and a protocol.
        network: Figures between nodes by protocol, of which `start_us` adds to the start in a node, `step_us` is a
            factor of the source's step over the network, and `share` is the part of the source's bandwidth.
        stated: Part of the latency that a cloud's plug-in states for its NICs which a step really takes.
        spreads: Intervals by kind for one node; those of NETWORK and of NETWORK_LARGE, from LARGE_BYTES on, serve
            several nodes, and nodes without NVLink, which were not measured.
    """

    fits: Mapping[str, Mapping[str, Fit]]
    network: Mapping[str, Fit]
    stated: float
    spreads: Mapping[str, ErrorInterval]


@cache
def fitted() -> Fitted:
    """Read the fitted figures that are part of the package; they are read once in a process."""
    with FILE.open("rb") as file:
        tables = tomllib.load(file)
    generations = {
        name: {kind: Fit(**figures) for kind, figures in tables[name].items()} for name in (AMPERE, HOPPER, BLACKWELL)
    }
    network = {kind: Fit(**figures) for kind, figures in tables[NETWORK].items()}
    spreads = {kind: ErrorInterval(*ends) for kind, ends in tables["spreads"].items()}
    return Fitted(generations, network, tables["stated"], spreads)


def generation_of(capability: int) -> str:
    """Return the name of the generation whose fitted figures serve a compute capability.

    It is Blackwell from 100 on, Hopper from 90, and else Ampere. Volta was not measured. Ampere's figures serve it,
    whose NVLinks and channels have the same rates.
    """
    if capability >= f.CAPABILITY_BLACKWELL:
        return BLACKWELL
    return HOPPER if capability >= f.CAPABILITY_HOPPER else AMPERE


@dataclass(frozen=True)
class FittedModel:
    """NCCL's choice by its source, and the time of that choice by fitted figures.

    Attributes:
        source: The cost model of NCCL's source.
        figures: The fitted figures.
    """

    source: NcclModel
    figures: Fitted

    def choose(self, collective: str, size_bytes: float, switch_sums: bool = True) -> LibraryChoice:
        """Return NCCL's choice with its fitted time, and with the interval of measured times.

        Args:
            collective: A collective of NCCL's cost model, or alltoall on one node with NVLink switches.
            size_bytes: Bytes of the whole message; for allgather the bytes that a rank ends with.
            switch_sums: Whether switches can add the type of the elements; they cannot add integers of 8 bits.

        Raises:
            NotModelled: The model has no such collective, or finds nothing for it.
        """
        comm = self.source.communicator
        if collective == "alltoall" and comm.nnodes == 1:
            if not comm.kinds[0].switched_gbs:  # Then pairs differ in what links them, which the figures do not know.
                raise NotModelled("NCCL's all-to-all is modelled on GPUs with NVLink switches only")
            return self._pairs(size_bytes)
        return self.timed(collective, size_bytes, self.source.choose(collective, size_bytes, switch_sums))

    def timed(self, collective: str, size_bytes: float, choice: LibraryChoice) -> LibraryChoice:
        """Return a choice of the source's model with its fitted time instead of the source's.

        Its time, latency and bandwidth become the fitted ones, `low_us` and `high_us` the interval of measured times,
        and `source_us` the time that it had. A latency that the source's model stretched is stretched as much.

        Args:
            collective: A collective of NCCL's cost model.
            size_bytes: Bytes of the whole message; for allgather the bytes that a rank ends with.
            choice: The choice, as the source's model made it for this message.
        """
        comm, algorithm, protocol = self.source.communicator, choice.algorithm, choice.protocol
        source_us = self.source.latency_us(collective, algorithm, protocol)
        stretch = choice.latency_us / source_us if source_us else 1.0
        # NCCL counts one step for a broadcast over a ring whose channels are alike, though its data pass all ranks.
        passing = {"broadcast": "allgather", "reduce": "reducescatter"}.get(collective, collective)
        start_us = stretch * self.source.latency_us(passing, algorithm, protocol, self._latencies)
        start_us += self.figures.network[protocol].start_us if comm.nnodes > 1 else 0.0
        kind = f.NVLS if algorithm in (f.NVLS, f.NVLS_TREE) else protocol
        fit = self._fits[kind]
        share = fit.share if comm.nnodes == 1 else self.figures.network[protocol].share
        moving_us = size_bytes / (1000 * choice.algbw_gbs * share)
        if kind == f.NVLS:
            copying_us = min(size_bytes, NVLS_FILL_BYTES) / (1000 * fit.copy_gbs)
        else:
            ring_bytes = size_bytes * steps_of(collective, comm.nranks) / comm.nranks
            moving_us = max(moving_us, ring_bytes / (1000 * choice.channels * fit.channel_gbs))
            copying_us = size_bytes / comm.nranks / (1000 * fit.copy_gbs)
        return self._finished(choice, size_bytes, start_us, moving_us + copying_us, kind)

    def _pairs(self, size_bytes: float) -> LibraryChoice:
        """Return the choice and fitted time of an all-to-all in one node, where each rank sends directly to all others.

        The protocol is LL if a rank sends at most 32 KiB to each rank (`size_bytes` / ranks), else Simple. `channels`
        is 0, because their number is not known.
        """
        n, candidates = self.source.communicator.nranks, self.source.candidates("allgather", size_bytes)
        rings = [choice for choice in candidates if (choice.algorithm, choice.protocol) == (f.RING, f.SIMPLE)]
        if not rings:
            raise NotModelled(NO_RING)
        (ring,) = rings
        protocol = f.LL if size_bytes / n <= PAIRS_LL_BYTES else f.SIMPLE
        kind = f"{PAIRS} {protocol}"
        fit = self._fits[kind]
        start_us = fit.start_us + (n - 1) * fit.step_us
        links_us, channel_us = size_bytes / (ring.algbw_gbs * fit.share), size_bytes / (n * fit.channel_gbs)
        moving_us, copying_us = max(links_us, channel_us) / 1000, size_bytes / (1000 * n * fit.copy_gbs)
        choice = replace(ring, algorithm=PAIRS, protocol=protocol, channels=0)
        return self._finished(choice, size_bytes, start_us, moving_us + copying_us, kind)

    def _finished(
        self, choice: LibraryChoice, size_bytes: float, start_us: float, bytes_us: float, kind: str
    ) -> LibraryChoice:
        """Return a choice with its time, start_us + bytes_us, and with the interval of its kind.

        Args:
            choice: The choice; its time is that of the source's model.
            size_bytes: Bytes of the whole message.
            start_us: Time in µs of a message without bytes.
            bytes_us: Time in µs for the bytes; if it is 0, the choice's bandwidth stays.
            kind: Kind whose interval counts for one node with NVLink. For other groups it is the network's, by the
                size.
        """
        measured = self.source.communicator.nnodes == 1 and self._on_nvlink
        unmeasured = NETWORK if size_bytes < LARGE_BYTES else NETWORK_LARGE
        spread = self.figures.spreads[kind if measured else unmeasured]
        time_us = start_us + bytes_us
        return replace(
            choice,
            time_us=time_us,
            latency_us=start_us,
            algbw_gbs=size_bytes / (1000 * bytes_us) if bytes_us else choice.algbw_gbs,
            low_us=spread.low * time_us,
            high_us=spread.high * time_us,
            source_us=choice.time_us if choice.algorithm != PAIRS else 0.0,
        )

    @property
    def _fits(self) -> Mapping[str, Fit]:
        """Return the figures of the generation of the GPUs, by kind."""
        return self.figures.fits[generation_of(self.source.communicator.capability)]

    @property
    def _on_nvlink(self) -> bool:
        """Return whether rings stay on NVLink in the nodes; there must be a ring."""
        return self.source.graphs[f.RING].nvlink

    @cached_property
    def _latencies(self) -> f.Latencies:
        """Return the source's latencies, multiplied by fitted over source's latency of a ring over NVLink.

        Factors are by protocol. Steps over PCIe have the factors of NVLink, steps over the network fitted ones of their
        own. The step over NVLink of NVLS and NVLSTree under Simple is the fitted start of NVLS.
        """
        network, fits = self.figures.network, [self._fits[protocol] for protocol in f.PROTOCOLS]
        ring_us, inside_us = f.BASE_US[f.RING], f.STEP_US["nvlink"][f.RING]
        starts = [fit.start_us / us for fit, us in zip(fits, ring_us, strict=True)]
        steps = {
            "nvlink": [fit.step_us / us for fit, us in zip(fits, inside_us, strict=True)],
            "network": [network[protocol].step_us for protocol in f.PROTOCOLS],
        }
        steps["pcie"] = steps["nvlink"]

        def scaled(times: Sequence[float], factors: Sequence[float]) -> tuple[float, float, float]:
            """Return times in µs × factors, for the three protocols."""
            first, second, third = (us * factor for us, factor in zip(times, factors, strict=True))
            return first, second, third

        base_us = {algorithm: scaled(times, starts) for algorithm, times in f.BASE_US.items()}
        step_us = {
            place: {algorithm: scaled(times, steps[place]) for algorithm, times in of_place.items()}
            for place, of_place in f.STEP_US.items()
        }
        nvls_us = (0.0, 0.0, self._fits[f.NVLS].start_us)
        step_us["nvlink"] |= {f.NVLS: nvls_us, f.NVLS_TREE: nvls_us}
        return f.Latencies(base_us, step_us, self.figures.stated)


def fitted_model(topology: Topology, group: Sequence[int]) -> FittedModel:
    """Return the fitted model of NCCL for a group of ranks of a topology.

    Raises:
        NotModelled: As `nccl_model` raises it.
    """
    return FittedModel(nccl_model(topology, group), fitted())
