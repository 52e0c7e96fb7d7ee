"""Points (C, S, R) of a Pareto set, read from the output of `synth --json`, with the proof of each point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Shape = tuple[int, int, int]
# Part of a claim: the whole collective, a direct all-reduce, or each phase of a split all-reduce.
WHOLE, DIRECT, PHASE = "", "direct all-reduce", "each phase"


@dataclass(frozen=True)
class Point:
    """A point of a Pareto set and what is proved of it.

    Attributes:
        shape: Chunks a rank, steps and rounds (C, S, R).
        proof: What is proved of the point, in words.
    """

    shape: Shape
    proof: str = ""

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return self.shape[1]

    @property
    def ratio(self) -> Fraction:
        """Return the number of rounds a chunk."""
        return Fraction(self.shape[2], self.shape[0])

    def beats(self, rival: Point) -> bool:
        """Return True if this point has no more steps and no more rounds a chunk than another, and less of one."""
        return (
            self.steps <= rival.steps
            and self.ratio <= rival.ratio
            and (self.steps, self.ratio) != (rival.steps, rival.ratio)
        )


def words(shape: Shape) -> str:
    """Format a point as `(C,S,R)`."""
    return f"({','.join(map(str, shape))})"


def proof_words(claim: dict[str, Any]) -> str:
    """Describe in words what a claim of `k_synchronous` proves of its point."""
    if claim["proved"]:
        return f"fewest rounds a chunk in {claim['steps']} steps {claim['proof']}"
    return f"not proved; {claim['steps']} steps need at least {claim['least_rounds_a_chunk']} rounds a chunk"


def points(answer: dict[str, Any]) -> list[Point]:
    """Return the Pareto set in (steps, rounds a chunk) of all claims and algorithms of an answer.

    Args:
        answer: The parsed output of `synth --json`.

    Raises:
        ValueError: If a claim is about a part of an all-reduce that this function does not know.
    """
    ranks = len(answer["group"])
    candidates = []
    for claim in answer["k_synchronous"]:
        if not claim["rounds"]:
            continue
        shape, note = (claim["chunks"], claim["steps"], claim["rounds"]), ""
        if claim["part"] not in (WHOLE, DIRECT, PHASE):
            raise ValueError(
                f"a claim is about the unknown part {claim['part']!r}; add it to results/measuring/points.py"
            )
        if claim["part"] == PHASE:  # A chunk of a phase is a rank's share of the buffer.
            shape, note = (
                (shape[0] * ranks, shape[1] * 2, shape[2] * 2),
                "reducescatter and allgather, each: ",
            )
        candidates.append(Point(shape, note + proof_words(claim)))
    proved = {point.shape for point in candidates}
    for row in answer["algorithms"]:
        shape = (row["chunks"], row["steps"], row["rounds"])
        if shape not in proved:
            candidates.append(Point(shape, f"constructed by engine {row['engine']}; nothing is proved in this model"))
    return pareto(candidates)


def pareto(candidates: Sequence[Point]) -> list[Point]:
    """Return the points that no other point beats, one for each (steps, rounds a chunk), by rising steps."""
    best_points: dict[tuple[int, Fraction], Point] = {}
    for point in candidates:
        if not any(rival.beats(point) for rival in candidates):
            best_points.setdefault((point.steps, point.ratio), point)
    return sorted(best_points.values(), key=lambda p: p.steps)


def mark(published: Shape, candidates: Iterable[Point]) -> str:
    """Return "same" or "better: …" if a set reaches or beats a published point, else "not reached"."""
    target, ours = Point(published), list(candidates)
    if any((p.steps, p.ratio) == (target.steps, target.ratio) for p in ours):
        return "same"
    better = [p for p in ours if p.beats(target)]
    return f"better: {words(better[0].shape)}" if better else "not reached"
