"""The libraries beside which every answer stands, a row each: what they would run themselves, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from synth.baselines import mscclpp
from synth.baselines.nccl import figures, rccl, rccl_figures
from synth.baselines.nccl.model import Choice, nccl_model
from topologies.topology import Topology


class Model(Protocol):
    """What a library takes for a group of ranks."""

    def choose(self, collective: str, size_bytes: float) -> Choice:
        """What it would take; size_bytes: of the whole message. Raises NotModelled."""


class Library(NamedTuple):
    """A library of collectives.

    Attributes:
        name, version: as its makers call it.
        own_clock: whether its times are by a cost model of its own, which counts protocols and starts; else they are
            by this package's figures, costs on or off as in the answer.
        model: of a topology and a group of its ranks what it would take, in µs and GB/s; raises NotModelled.
    """

    name: str
    version: str
    own_clock: bool
    model: Callable[[Topology, Sequence[int]], Model]


LIBRARIES = {
    one.name: one
    for one in (
        Library("NCCL", figures.VERSION, True, nccl_model),
        Library("RCCL", rccl_figures.VERSION, True, rccl.rccl_model),
        Library("MSCCL++", mscclpp.VERSION, False, mscclpp.mscclpp_model),
    )
}
