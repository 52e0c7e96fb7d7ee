"""Check stored answers from the files alone: replay a schedule at its times, and recompute its proof."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from synth.bounds.witness import Witness, decisive
from synth.storage.proof import EQUAL, Proof, check_beside, check_proof, digest, load_proof, proof_path
from synth.storage.schedule_file import StoredSchedule
from synth.timing.simulate import time_us
from synth.verify.replay import replay
from topologies.costs import ANY
from topologies.errors import ProofRefused, ScheduleRefused


@dataclass(frozen=True)
class ScheduleCheck:
    """The result of the check of a schedule file and its proof.

    Attributes:
        wrong: Why the schedule or its proof is refused; empty where both are right.
        proof: The proof as its file states it; None without one.
        bound_us: The bound in µs that is proved at the file's size; None without a proof, or where `wrong` is set.
        witness: The witness that proves this bound; None as for `bound_us`.
        limits: All witnesses of the proof, each recomputed; they hold at every size. Empty where `bound_us` is None.
    """

    wrong: str = ""
    proof: Proof | None = None
    bound_us: float | None = None
    witness: Witness | None = None
    limits: tuple[Witness, ...] = ()

    def bound_at(self, size_bytes: float) -> float | None:
        """Return the bound in µs at another message size in bytes; None without a proof that is right."""
        return decisive(self.limits, size_bytes).at(size_bytes) if self.limits else None


def check_stored(
    path: str | Path, stored: StoredSchedule, proof: str | Path | None = None, proof_name: str = ""
) -> ScheduleCheck:
    """Check a schedule by replaying it, and recompute its proof if there is one.

    What is wrong with the schedule or the proof is in the result and not raised. A quotient was checked when the file
    was read.

    Args:
        path: The schedule file.
        stored: The content of that file, as `load_schedule` returns it.
        proof: The proof's file; None for the one next to the schedule's file, if there is one.
        proof_name: The proof's name in the refusal; the name of its file when empty.

    Raises:
        InputError: The proof or, with a proof, the schedule's file cannot be read, or the whole problem does not fit in
            memory.
    """
    proof_file = proof_path(path) if proof is None else Path(proof)
    stated = load_proof(proof_file) if proof is not None or os.path.exists(proof_file) else None
    try:
        replay(stored.problem, stored.schedule)
        duration_us = time_us(stored.problem, stored.schedule)
        if not math.isclose(duration_us, stored.claimed_us, rel_tol=EQUAL):
            raise ScheduleRefused(f"claims {stored.claimed_us!r} µs, it takes {duration_us!r}")
    except ScheduleRefused as error:
        return ScheduleCheck(f"the schedule is refused: {error}", stated)
    if stated is None:
        return ScheduleCheck()
    try:
        check_beside(stated, digest(path), stored.claimed_us)
        # The proof for a quotient problem may be about the whole problem.
        problem = stored.bounded_problem if stated.question.get("fold") is None else stored.problem
        if "costs" in stated.question and problem.topology.protocol:  # The bound holds under every protocol.
            problem = problem.under(ANY)
        bound_us, witness = check_proof(problem, stated, stored.schedule.size_bytes)
        if bound_us > stored.claimed_us * (1 + EQUAL):
            raise ProofRefused(f"proves {bound_us!r} µs for a schedule that takes {stored.claimed_us!r}")
    except ProofRefused as error:
        return ScheduleCheck(f"the proof {proof_name or proof_file.name} is refused: {error}", stated)
    return ScheduleCheck("", stated, bound_us, witness, stated.witnesses)
