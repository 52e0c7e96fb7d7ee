"""Schedules of a network that changes: phases that were replayed one by one, and data that fits from phase to phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from synth.model.collective import Collective, every_cut, one_shot
from synth.reconfiguration.routing import StatePhase
from synth.reconfiguration.states import ChangingNetwork
from synth.verify.algorithm import Algorithm
from topologies.errors import VerificationError


@dataclass(frozen=True, eq=False)
class ChangingSchedule:
    """A schedule over states: it exists only if each phase is right, and if all phases give the collective's result.

    Attributes:
        network: The network, whose times of changes do not count for the check.
        collective: The collective in blocks (see `synth.reconfiguration.routing.in_blocks`).
        phases: The phases in their order.
        algorithms: The algorithm of each phase. Its constructor has replayed it on its own.

    Raises:
        VerificationError: A phase's algorithm is of another problem, a rank does not hold what a phase takes from it, a
            contribution counts twice, or the result is not that of the collective.
    """

    network: ChangingNetwork
    collective: Collective
    phases: tuple[StatePhase, ...]
    algorithms: tuple[Algorithm, ...]

    def __post_init__(self) -> None:
        if len(self.phases) != len(self.algorithms):
            raise VerificationError(
                f"phases: {len(self.phases)}, but {len(self.algorithms)} algorithms; each needs one"
            )
        contributions = _held_at_first(self.collective)
        whole = [_all_of(self.collective, block) for block in range(self.collective.nchunks)]
        for number, (phase, algorithm) in enumerate(zip(self.phases, self.algorithms, strict=True)):
            where = f"phase {number}"
            _check_algorithm(where, self.network, phase, algorithm)
            contributions.update(_arrivals(where, self.collective, phase, contributions))
        for rank, block in self.collective.post.tolist():
            if contributions.get((rank, block)) != whole[block]:
                raise VerificationError(f"rank {rank}: does not have block {block} after the last phase; it must")

    @property
    def states(self) -> tuple[int, ...]:
        """Return the states in which the phases are, without repetition of neighbours."""
        states = [phase.state for phase in self.phases]
        return tuple(state for place, state in enumerate(states) if place == 0 or states[place - 1] != state)

    def sending_us(self, size_bytes: float) -> float:
        """Return the time of all phases in µs for messages of a size, without the changes."""
        return sum(algorithm.time_us(size_bytes) for algorithm in self.algorithms)


def _held_at_first(collective: Collective) -> dict[tuple[int, int], int]:
    """Return the contributions that a rank holds before, as bits of the ranks that made them, by (rank, block).

    A block that is no sum has one contribution, bit 0, whichever rank holds it.
    """
    rows = collective.pre.tolist()
    return {(rank, block): 1 << rank if collective.reduces[block] else 1 for rank, block in rows}


def _all_of(collective: Collective, block: int) -> int:
    """Return the contributions that a result of a block must have."""
    if not collective.reduces[block]:
        return 1
    return sum(1 << rank for rank in np.flatnonzero(collective.holds[block]).tolist())


def _check_algorithm(where: str, network: ChangingNetwork, phase: StatePhase, algorithm: Algorithm) -> None:
    """Check that an algorithm solves a phase, on all ranks of its state, with its chunks cut into equal parts.

    Raises:
        VerificationError: It does not.
    """
    problem, collective = algorithm.problem, phase.collective
    if not 0 <= phase.state < len(network.states) or problem.topology is not network.states[phase.state]:
        raise VerificationError(f"{where}: its algorithm is for another network; it must be for its state")
    if problem.ranks != tuple(range(network.nranks)) or len(problem.group) != network.nranks:
        raise VerificationError(f"{where}: its algorithm has other ranks; it must have all in their order")
    if problem.quotient is not None:
        raise VerificationError(f"{where}: its algorithm is a quotient's; it must have all sends")
    parts = max(1, problem.collective.chunks // collective.chunks)
    whole = one_shot(collective) if problem.collective.is_one_shot else collective
    if not any(cut.equals(problem.collective) for cut in every_cut(whole, parts)):
        raise VerificationError(f"{where}: its algorithm solves another collective; it must solve the phase's")


def _arrivals(
    where: str, collective: Collective, phase: StatePhase, contributions: dict[tuple[int, int], int]
) -> dict[tuple[int, int], int]:
    """Return what ranks hold after a phase that they did not hold before, as contributions by (rank, block).

    Args:
        where: The phase, for errors.
        collective: The whole collective in blocks.
        phase: The phase.
        contributions: Contributions that ranks hold before it.

    Raises:
        VerificationError: The chunks are not the blocks that they should hold, or their sums do not fit.
    """
    transfer, arrived = phase.collective, dict[tuple[int, int], int]()
    if len(phase.blocks) != transfer.nchunks:
        raise VerificationError(
            f"{where}: names blocks of {len(phase.blocks)} of {transfer.nchunks} chunks; it must of all"
        )
    for chunk, blocks in enumerate(phase.blocks):
        if not np.isclose(transfer.fraction[chunk], collective.fraction[list(blocks)].sum(), rtol=1e-9, atol=0):
            raise VerificationError(f"{where}: chunk {chunk} has another size than its blocks; it must have theirs")
        holders, goals = (np.flatnonzero(flags[chunk]).tolist() for flags in (transfer.holds, transfer.wants))
        for block in blocks:
            values = [contributions.get((rank, block), 0) for rank in holders]
            value = _value(f"{where}: chunk {chunk}: block {block}", values, bool(transfer.reduces[chunk]))
            for rank in goals:
                if arrived.setdefault((rank, block), value) != value:
                    raise VerificationError(f"{where}: rank {rank} gets two values of block {block}; it must get one")
    return {key: value for key, value in arrived.items() if value | contributions.get(key, 0) == value}


def _value(where: str, values: Sequence[int], reduces: bool) -> int:
    """Return the contributions of what a chunk brings of a block, from those of its holders.

    Raises:
        VerificationError: A holder has nothing, holders of a copy differ, or a sum counts a contribution twice.
    """
    if not all(values):
        raise VerificationError(f"{where} is taken from a rank that does not hold it; it must be from one that does")
    if not reduces:
        if len(set(values)) > 1:
            raise VerificationError(f"{where} is taken from ranks that hold different sums; they must hold the same")
        return values[0]
    total = 0
    for value in values:
        if total & value:
            raise VerificationError(f"{where} counts a contribution twice; it must count each once")
        total |= value
    return total
