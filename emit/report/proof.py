"""The proof of a bound in words, for people."""

from __future__ import annotations

import math

from synth.bounds.prove import OPTIMAL
from synth.bounds.witness import Witness
from synth.model.problem import Problem
from synth.present.text import format_size, format_time
from synth.storage.check import Checked

_RANKS = 16  # that a sentence names


def explain_proof(problem: Problem, checked: Checked, size_bytes: float, taken_us: float) -> list[str]:
    """The proof for a reader who knows networks and not this program; empty without one. Time in µs."""
    witness, bound_us = checked.witness, checked.bound_us
    if witness is None or bound_us is None:
        return []
    size = format_size(math.ceil(size_bytes))
    lines = [
        f"No algorithm for this question on this network takes less than {format_time(bound_us)} at {size},"
        " in the model below.",
        _explain_witness(problem, witness),
        _explain_sum(witness, size_bytes, size),
    ]
    gap = taken_us / bound_us
    how = ": it is optimal at this size."
    if gap > OPTIMAL:
        how = f", {gap:.3f} times that: no other can be more than {(1 - 1 / gap) * 100:.2g} % faster."
    lines.append(f"This algorithm takes {format_time(taken_us)}{how}")
    others = [w for w in checked.limits if w is not witness]
    if others:
        lines.append(f"At other sizes another limit may be the higher: {'; '.join(w.text for w in others[:6])}.")
    return lines


def _explain_sum(witness: Witness, size_bytes: float, size: str) -> str:
    parts = [f"{witness.base_us:.4g} µs of latency"] if witness.base_us > 0 else []
    if witness.per_byte_us > 0:
        parts.append(f"{witness.per_byte_us * 1e6:.4g} µs for every MB (10⁶ bytes) of the message's {size}")
    cap = "" if math.isinf(witness.cap_us) else f", and at most {witness.cap_us:.4g} µs"
    return f"That is {' plus '.join(parts) if parts else 'no time at all'}{cap}: {witness.at(size_bytes):.6g} µs."


def _explain_witness(problem: Problem, witness: Witness) -> str:
    ranks = problem.ranks
    names = _names([ranks[r] for r in witness.ranks if r < len(ranks)])
    if witness.kind == "path":
        a, b = (ranks[r] for r in witness.ranks)
        return f"Something that only rank {a} has must get to rank {b}, and no path between them has less latency."
    if witness.kind == "cut":
        return (
            f"What must leave ranks {names} goes over the links that lead out of them, and these have only so much"
            f" capacity together ({witness.text})."
        )
    if witness.kind == "parts":
        k = len(witness.parts)
        return (
            f"Cut the ranks into {k} parts. To sum a byte of all of them and give the sum back, it must be sent between"
            f" parts at least 2 · ({k} − 1) = {2 * (k - 1)} times: every part but one must send, and every part but"
            f" one must receive. All links between parts have only so much capacity together ({witness.text})."
        )
    if witness.kind == "direct":
        return (
            "Either everything comes in one hop, and then one resource is loaded with all that has no other direct"
            f" path; or something takes two hops, and their latency is spent ({witness.text})."
        )
    if witness.kind == "lengths":
        return (
            f"Give every link a length ({witness.text}). However it is routed, every byte uses up at least the length"
            " of its shortest path, and in a microsecond the links offer only so much of capacity × length."
            " What must be used up, over what is offered, is time that nobody can save."
        )
    if witness.kind == "arrivals":
        return f"Everything that ranks {names} want and lack must come in over the links that lead into them."
    return f"Everything that ranks {names} hold and others want must leave over the links that lead out of them."


def _names(ranks: list[int]) -> str:
    if len(ranks) > _RANKS:
        return f"{', '.join(map(str, ranks[: _RANKS - 1]))} … ({len(ranks)} of them)"
    return ", ".join(map(str, ranks))
