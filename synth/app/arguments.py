"""The arguments of a question as users state them; this module loads fast, so that solvers' processes start early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from synth.search.settings import NONE

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from synth.model.collective import Collective
    from topologies.costs import Costs
    from topologies.topology import Topology

    Sizes = (
        str | Path | Sequence[float] | Sequence[Sequence[float]] | NDArray[Any]
    )  # sizes of blocks, as users state them


@dataclass(frozen=True, eq=False)
class QuestionArguments:
    """The arguments of a question on the command line or in Python, not checked yet (see `synth.app.question`).

    Attributes:
        collective: A name (torch's spellings too) or a Collective.
        topo: A machine, a family, a file, a Topology, or a graph of networkx (see `topologies.graphs`).
        group: Ranks that take part, in order, or text such as `0,2,4-7`; None for all ranks.
        relay: Ranks outside the group that may forward: "none", "all" or ranks.
        without: Dead parts (see `topologies.faults.apply`); the answer then also has the healthy network's.
        degrade: Slow parts; the answer then also has the healthy network's.
        root: Rank of the root of a rooted collective; None for the group's first rank.
        sizes: Bytes of the blocks, for the name of a collective whose blocks have sizes of their own: one number for
            each rank (for alltoallv, rows of them), text such as `1M,0,3M`, or a file.
        size: Bytes, or text such as `64K`, for the one best algorithm; None for the frontier over all sizes.
        chunks: Chunks of a block; None for any number.
        steps: Steps in the k-synchronous model; None for any number.
        rounds: Rounds in the k-synchronous model; None for any number.
        engine: A name that `--engine` takes.
        budget: Seconds, or text such as `5m`.
        seed: Seed of the solvers.
        target: The executor whose programs are the answer (a key of `emit.targets.TARGETS`; auto: that of the
            machine, or else the first that can express the question); none: schedules.
        sms: Threadblocks that a rank's program may have. None stands for the SMs of its device without
            `emit.targets.RESERVED_SMS`, and for any number where the topology does not state them.
        groups_overlap: Whether ranks are in several groups at a time, which MSCCL++'s packets (LL) do not support.
        scratch_limit: Bytes of scratch memory a rank that the executor may allocate before it serves a call; None for
            `emit.targets.SCRATCH_LIMIT`.
        costs: The executor's costs: those that the machine states, if it states any ("auto") or else as an error
            ("machine"), those of a file's [costs], or Costs; "none" stands for α and bandwidth only.
        switch_ops: Whether switches may multicast and reduce. They do so only where the topology has such switches, the
            target can express it, and the costs, if they are on, include it.
        begun: Time of `synth.model.deadline.now` from which the budget counts; None for now.
        are_options: Whether messages name arguments as options of the command line, such as `--scratch-limit`.
    """

    collective: str | Collective
    topo: str | Path | Topology
    group: Sequence[int] | str | None = None
    _: KW_ONLY
    relay: Sequence[int] | str = "none"
    without: Sequence[str] = ()
    degrade: Sequence[str] = ()
    root: int | None = None
    sizes: Sizes | None = None
    size: int | str | None = None
    chunks: int | None = None
    steps: int | None = None
    rounds: int | None = None
    engine: str = "auto"
    budget: float | str = 30.0
    seed: int = 0
    target: str = NONE
    sms: int | None = None
    groups_overlap: bool = False
    scratch_limit: int | str | None = None
    costs: str | Path | Costs = "auto"
    switch_ops: bool = True
    begun: float | None = None
    are_options: bool = False

    def name(self, argument: str) -> str:
        """Return how messages name an argument: `--scratch-limit` if `are_options`, otherwise `scratch_limit`."""
        return f"--{argument.replace('_', '-')}" if self.are_options else argument
