"""The check of what is stored: a schedule replayed at its times, its proof worked out again, from the files alone."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from synth.bounds.witness import Witness, decisive
from synth.storage.proof import EQUAL, Proof, check_beside, check_proof, digest, load_proof, proof_path
from synth.storage.schedule_file import Stored
from synth.timing.simulate import time_us
from synth.verify.replay import replay
from topologies.costs import ANY
from topologies.errors import ProofRefused, ScheduleRefused


@dataclass(frozen=True)
class Checked:
    """What a check came to.

    Attributes:
        wrong: why the schedule or its proof is refused; empty where both are right.
        proof: the proof as its file states it; None without one.
        bound_us, witness: what is proved at the file's size, and by what; None without a proof.
        limits: all of the proof's witnesses, each worked out again; they hold at every size.
    """

    wrong: str = ""
    proof: Proof | None = None
    bound_us: float | None = None
    witness: Witness | None = None
    limits: tuple[Witness, ...] = ()

    def bound_at(self, size_bytes: float) -> float | None:
        """The bound at another size in µs."""
        return decisive(self.limits, size_bytes).at(size_bytes) if self.limits else None


def check_stored(path: str | Path, stored: Stored, proof: str | Path | None = None, proof_name: str = "") -> Checked:
    """Replay a schedule and work out its proof again, where there is one.

    A quotient was checked when the file was read.

    Args:
        path, stored: the schedule file, and what `load_schedule` made of it.
        proof: the proof's file; the one beside the schedule's when None, if there is one.
        proof_name: the proof as the refusal names it.

    Raises InputError: the proof cannot be read.
    """
    beside = proof_path(path) if proof is None else Path(proof)
    stated = load_proof(beside) if proof is not None or os.path.exists(beside) else None
    try:
        replay(stored.problem, stored.schedule)
        taken = time_us(stored.problem, stored.schedule)
        if not math.isclose(taken, stored.claimed_us, rel_tol=EQUAL):
            raise ScheduleRefused(f"claims {stored.claimed_us!r} µs, it takes {taken!r}")
    except ScheduleRefused as error:
        return Checked(f"the schedule is refused: {error}", stated)
    if stated is None:
        return Checked()
    try:
        check_beside(stated, digest(path), stored.claimed_us)
        # of a quotient problem a proof may speak of the whole
        problem = stored.asked if stated.question.get("fold") is None else stored.problem
        if "costs" in stated.question and problem.quotient is None:  # a bound holds whatever the protocol
            problem = problem.under(ANY)
        bound_us, witness = check_proof(problem, stated, stored.schedule.size_bytes)
        if bound_us > stored.claimed_us * (1 + EQUAL):
            raise ProofRefused(f"proves {bound_us!r} µs for a schedule that takes {stored.claimed_us!r}")
    except ProofRefused as error:
        return Checked(f"the proof {proof_name or beside.name} is refused: {error}", stated)
    return Checked("", stated, bound_us, witness, stated.witnesses)
