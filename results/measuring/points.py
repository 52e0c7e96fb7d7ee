"""Points (C,S,R) of a Pareto set, read from what `synth --json` prints, with what is proved of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Shape = tuple[int, int, int]
# What a claim's part may be: the whole, an all-reduce in one go, or each half of one done in two.
WHOLE, ONE_GO, HALF = "", "sums exchanged", "each half"


@dataclass(frozen=True)
class Point:
    """Chunks, steps, rounds, and what is proved of them."""

    shape: Shape
    proof: str = ""

    @property
    def steps(self) -> int:
        return self.shape[1]

    @property
    def ratio(self) -> Fraction:
        """Rounds a chunk."""
        return Fraction(self.shape[2], self.shape[0])

    def beats(self, other: Point) -> bool:
        """As few steps and as few rounds a chunk, and fewer of one of them."""
        return (
            self.steps <= other.steps
            and self.ratio <= other.ratio
            and (self.steps, self.ratio) != (other.steps, other.ratio)
        )


def words(shape: Shape) -> str:
    return f"({','.join(map(str, shape))})"


def proof_words(claim: dict[str, Any]) -> str:
    """What a claim of `k_synchronous` says of its point."""
    if claim["proved"]:
        return f"fewest rounds a chunk in {claim['steps']} steps {claim['proof']}"
    return f"not proved; {claim['steps']} steps need at least {claim['least_rounds_a_chunk']} rounds a chunk"


def points(said: dict[str, Any]) -> list[Point]:
    """The Pareto set in (steps, rounds a chunk): what the claims found and what the algorithms shown come to."""
    ranks = len(said["group"])
    found = []
    for claim in said["k_synchronous"]:
        if not claim["rounds"]:
            continue
        shape, note = (claim["chunks"], claim["steps"], claim["rounds"]), ""
        if claim["part"] not in (WHOLE, ONE_GO, HALF):
            raise ValueError(f"a claim about the part {claim['part']!r}, which is not known here")
        if claim["part"] == HALF:  # its chunk is a rank's share
            shape, note = (
                (shape[0] * ranks, shape[1] * 2, shape[2] * 2),
                "as reducescatter and allgather, each: ",
            )
        found.append(Point(shape, note + proof_words(claim)))
    proved = {point.shape for point in found}
    for row in said["algorithms"]:
        shape = (row["chunks"], row["steps"], row["rounds"])
        if shape not in proved:
            found.append(Point(shape, f"constructed ({row['engine']}), nothing proved in this model"))
    return pareto(found)


def pareto(found: Sequence[Point]) -> list[Point]:
    """The points that no other beats, one for each (steps, rounds a chunk), by rising steps."""
    kept: dict[tuple[int, Fraction], Point] = {}
    for point in found:
        if not any(other.beats(point) for other in found):
            kept.setdefault((point.steps, point.ratio), point)
    return sorted(kept.values(), key=lambda p: p.steps)


def mark(published: Shape, found: Iterable[Point]) -> str:
    """Whether a set has a published point (same), one that beats it (better), or neither (not reached)."""
    there, ours = Point(published), list(found)
    if any((p.steps, p.ratio) == (there.steps, there.ratio) for p in ours):
        return "same"
    better = [p for p in ours if p.beats(there)]
    return f"better: {words(better[0].shape)}" if better else "not reached"
