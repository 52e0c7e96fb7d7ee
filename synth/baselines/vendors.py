"""The libraries with whose choice and time every answer is compared, one row a library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from synth.baselines import mscclpp
from synth.baselines.nccl import figures, rccl, rccl_figures
from synth.baselines.nccl.fitted import fitted_model
from synth.baselines.nccl.model import LibraryChoice
from topologies.errors import NotModelled
from topologies.topology import Topology

MEASURED = "measured"  # What the source of costs begins with if they are measured on one machine.


class Model(Protocol):
    """A model of what a library chooses for a group of ranks."""

    def choose(self, collective: str, size_bytes: float) -> LibraryChoice:
        """Return the library's choice for a message of `size_bytes` in all; for allgather what a rank ends with.

        Raises:
            NotModelled: The model does not cover the collective.
        """


class VendorLibrary(NamedTuple):
    """A library of collectives.

    Attributes:
        name: Name that its makers use.
        version: Version of the modelled source.
        own_clock: True if its times come from a cost model of its own, which counts protocols and starts. False: they
            come from this package's figures, with costs on or off as in the answer.
        model: Builds the library's model from a topology and a group of its ranks; times in µs, bandwidths in GB/s. It
            raises NotModelled.
    """

    name: str
    version: str
    own_clock: bool
    model: Callable[[Topology, Sequence[int]], Model]


def _nccl(topology: Topology, group: Sequence[int]) -> Model:
    """Return NCCL's model with fitted times, for a group of ranks of a topology.

    Raises:
        NotModelled: As `fitted_model` raises it; or costs are on whose source says that they are measured on one
            machine.
    """
    if topology.protocol and topology.costs is not None and topology.costs.source.startswith(MEASURED):
        raise NotModelled("NCCL's times are those of usual machines, and the costs in use are measured on one machine")
    return fitted_model(topology, group)


LIBRARIES = {
    library.name: library
    for library in (
        VendorLibrary("NCCL", figures.VERSION, True, _nccl),
        VendorLibrary("RCCL", rccl_figures.VERSION, True, rccl.rccl_model),
        VendorLibrary("MSCCL++", mscclpp.VERSION, False, mscclpp.mscclpp_model),
    )
}
