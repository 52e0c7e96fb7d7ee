"""One algorithm as a report shows it: figures in words, times by message size, and the proof of its bound in words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from synth.bounds.prove import OPTIMAL
from synth.bounds.witness import Witness
from synth.model.problem import Problem
from synth.present.text import format_size, format_time
from synth.storage.check import Checked

EXPONENTS = range(10, 31)  # message sizes of curves: 1 KiB to 1 GiB
_RANKS = 16  # that a sentence names

_WITNESSES = {  # by kind
    "path": "Something that only rank {ranks[0]} has must get to rank {ranks[1]}, and no path between them has less"
    " latency.",
    "cut": "What must leave ranks {names} goes over the links that lead out of them, and these have only so much"
    " capacity together ({text}).",
    "parts": "Cut the ranks into {parts} parts. To sum a byte of all of them and give the sum back, it must be sent"
    " between parts at least 2 · ({parts} − 1) = {least} times: every part but one must send, and every part but one"
    " must receive. All links between parts have only so much capacity together ({text}).",
    "direct": "Either everything comes in one hop, and then one resource is loaded with all that has no other direct"
    " path; or something takes two hops, and their latency is spent ({text}).",
    "lengths": "Give every link a length ({text}). However it is routed, every byte uses up at least the length of its"
    " shortest path, and in a microsecond the links offer only so much of capacity × length. What must be used up, over"
    " what is offered, is time that nobody can save.",
    "arrivals": "Everything that ranks {names} want and lack must come in over the links that lead into them.",
    "departures": "Everything that ranks {names} hold and others want must leave over the links that lead out of them.",
}

Points = tuple[tuple[float, float], ...]  # (bytes, µs), ascending
Fact = tuple[str, str, str]  # what, figure, remark


@dataclass(frozen=True)
class Timing:
    """What is known of an algorithm's time on the topology `on`, and of its bound, proved (`proof` says how) or stated.

    time_us, bound_us: at size_bytes.  curve, bound: at further sizes.
    """

    on: str | None
    size_bytes: float = 0.0
    time_us: float | None = None
    bound_us: float | None = None
    curve: Points = ()
    bound: Points = ()
    proof: tuple[str, ...] = ()

    @property
    def marks(self) -> Points:
        """The time where it is known without a prediction at further sizes."""
        return () if self.time_us is None else ((self.size_bytes, self.time_us),)

    @property
    def stated(self) -> Points:
        """The bound where a file states it without a proof."""
        return () if self.proof or not self.bound_us else ((self.size_bytes, self.bound_us),)

    @property
    def gap(self) -> float | None:
        """Time / bound."""
        return None if self.time_us is None or not self.bound_us else self.time_us / self.bound_us

    @property
    def optimal(self) -> bool:
        """Proved here: it takes as long as the bound."""
        return bool(self.proof) and self.gap is not None and self.gap <= OPTIMAL


@dataclass(frozen=True)
class Item:
    """One algorithm as the page shows it.

    asked: with collective and topology equal for algorithms that may be compared.  view: what the script draws.
    wrong: why it is refused, or empty.  no_proof: what stands in the place of a proof.
    """

    name: str
    collective: str
    asked: tuple[object, ...]
    subtitle: str
    timing: Timing
    view: dict[str, Any]
    facts: tuple[Fact, ...]
    verdict: str
    no_proof: str
    wrong: str = ""
    notes: tuple[str, ...] = ()
    serves: str = ""

    @property
    def title(self) -> str:
        """Collective and topology."""
        return self.collective + ("" if self.timing.on is None else f" on {self.timing.on}")

    @property
    def question(self) -> tuple[object, ...]:
        """Equal for algorithms that may be compared."""
        return self.collective, self.timing.on, *self.asked


def proved_timing(
    problem: Problem, checked: Checked, size_bytes: float, taken_us: float, curve: Points, sizes: Iterable[float]
) -> Timing:
    """The timing of what takes `taken_us` at `size_bytes`, with what `checked` proves, at further sizes too."""
    bound = tuple((size, bound_us) for size in sizes if (bound_us := checked.bound_at(size)) is not None)
    proof = tuple(explain_proof(problem, checked, size_bytes, taken_us))
    return Timing(problem.topology.name, size_bytes, taken_us, checked.bound_us, curve, bound, proof)


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
    ranks = [problem.ranks[r] for r in witness.ranks if r < problem.nranks]
    names = ", ".join(map(str, ranks))
    if len(ranks) > _RANKS:
        names = f"{', '.join(map(str, ranks[: _RANKS - 1]))} … ({len(ranks)} of them)"
    k = len(witness.parts)
    words = _WITNESSES.get(witness.kind, "{text}.")
    return words.format(text=witness.text, names=names, ranks=ranks, parts=k, least=2 * (k - 1))
