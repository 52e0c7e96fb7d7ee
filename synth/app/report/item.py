"""One algorithm as a report shows it: figures in words, times by message size, and the proof of its bound in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from synth.bounds.prove import OPTIMAL
from synth.bounds.witness import Witness
from synth.bounds.witnesses.parts import Parts
from synth.model.problem import Problem
from synth.model.text import format_gap, format_size, format_time
from synth.storage.check import ScheduleCheck

EXPONENTS = range(10, 31)  # message sizes of curves: 1 KiB to 1 GiB
_RANKS = 16  # ranks that a sentence names

_INWARD = (  # the sentence of a cut around most ranks
    "What must come to ranks {names} goes over the links that lead to them, and these have only so much capacity"
    " together ({text})."
)
_WITNESSES = {  # sentences by kind of witness
    "path": "Something that only rank {ranks[0]} has must get to rank {ranks[1]}, and no path between them has less"
    " latency.",
    "cut": "What must leave ranks {names} goes over the links that lead out of them, and these have only so much"
    " capacity together ({text}).",
    "parts": "Cut the ranks into {parts} parts. To sum a byte of all of them and give the sum back, it must be sent"
    " between parts at least 2 · ({parts} − 1) = {least} times: every part but one must send, and every part but one"
    " must receive. All links between parts have only so much capacity together ({text}). Where steps inside the parts"
    " count, a send carries one rank's data only before the first of them, and serves one rank only after the last.",
    "direct": "Either everything comes in one hop, and then one resource is loaded with all that has no other direct"
    " path; or something takes two hops, and their latency is spent ({text}).",
    "two-steps": "Before the first latency is over, every rank has only its own data. So the sums of almost all bytes"
    " come to a rank after one latency and a second one before the end ({text}). To get all contributions at once,"
    " ports would have to carry each of them.",
    "contributions": "What comes early to the ranks around rank {names} has come from few ranks, and so brings few"
    " contributions to each byte of a sum. To get all of them, either many such messages must come, or fewer that come"
    " late ({text}).",
    "lengths": "Give every link a length ({text}). However it is routed, every byte uses up at least the length of its"
    " shortest path, and in a microsecond the links offer only so much of capacity × length. What must be used up, over"
    " what is offered, is time that nobody can save.",
    "messages": "With a gap after each message, rank {names} cannot get data from all nodes, or bring its own to them.",
    "knowledge": "A message between nodes has a gap, and brings no more than its sender has by then. So the nodes"
    " cannot all get what they lack any sooner ({text}).",
    "entering": "What ranks {names} need of other nodes comes in messages with gaps. Few large messages come sooner,"
    " but the last of them must then be copied to all these ranks ({text}).",
    "leaving": "What ranks {names} add to sums of other nodes leaves in messages with gaps. Few large messages take"
    " less time, but before the first of them leaves it must be gathered from all these ranks ({text}).",
    "from-afar": "Most links into rank {names} lead from ranks near it. What comes from far away is at these ranks only"
    " after a while, and until then only the other links can carry it ({text}).",
    "to-afar": "What rank {names} sends far away over ranks near it must leave a while before the end, and after that"
    " only its other links can carry it ({text}).",
    "arrivals": "Everything that ranks {names} want and lack must come in over the links that lead into them.",
    "departures": "Everything that ranks {names} hold and others want must leave over the links that lead out of them.",
}

Points = tuple[tuple[float, float], ...]  # (bytes, µs), ascending
Fact = tuple[str, str, str]  # label, figure, remark


@dataclass(frozen=True)
class ItemTiming:
    """An algorithm's times on a topology, and its bound, proved or stated.

    Attributes:
        topology_name: Name of the topology, or None.
        size_bytes: Message size in bytes of `time_us` and `bound_us`.
        time_us: Time in µs, or None.
        bound_us: Bound in µs, or None.
        curve: Times at further sizes.
        bound: Bounds at further sizes.
        proof: Sentences that prove the bound; empty if it is only stated.
        vendors: Times of vendor libraries by size, by the library's name.
    """

    topology_name: str | None
    size_bytes: float = 0.0
    time_us: float | None = None
    bound_us: float | None = None
    curve: Points = ()
    bound: Points = ()
    proof: tuple[str, ...] = ()
    vendors: Mapping[str, Points] = field(default_factory=dict)

    @property
    def marks(self) -> Points:
        """Return the known time as one point (bytes, µs); () if no time is known."""
        return () if self.time_us is None else ((self.size_bytes, self.time_us),)

    @property
    def stated(self) -> Points:
        """Return the bound as one point (bytes, µs) if a file states it without a proof; otherwise ()."""
        return () if self.proof or not self.bound_us else ((self.size_bytes, self.bound_us),)

    @property
    def gap(self) -> float | None:
        """Return time / bound; None if either is unknown."""
        return None if self.time_us is None or not self.bound_us else self.time_us / self.bound_us

    @property
    def optimal(self) -> bool:
        """Return True if there is a proof, and the time equals the bound up to rounding."""
        return bool(self.proof) and self.gap is not None and self.gap <= OPTIMAL


@dataclass(frozen=True)
class Item:
    """An algorithm as the page shows it.

    Attributes:
        name: Name on the page.
        collective: Name of the collective.
        comparison_key: Equal, together with collective and topology, for algorithms that may be compared.
        subtitle: Line below the title.
        timing: Times and bound.
        view: Data that the script draws.
        facts: Figures of the algorithm.
        verdict: Result of the check in words: "optimal" if the time is proved to be the best.
        no_proof: Text that replaces a missing proof.
        wrong: Reason why it is refused, or empty.
        notes: Remarks.
        serves: Message sizes that it serves, in words.
    """

    name: str
    collective: str
    comparison_key: tuple[object, ...]
    subtitle: str
    timing: ItemTiming
    view: dict[str, Any]
    facts: tuple[Fact, ...]
    verdict: str
    no_proof: str
    wrong: str = ""
    notes: tuple[str, ...] = ()
    serves: str = ""

    @property
    def title(self) -> str:
        """Return the collective and the topology, as `allreduce on dgx1`; only the collective without a topology."""
        return self.collective + ("" if self.timing.topology_name is None else f" on {self.timing.topology_name}")

    @property
    def question(self) -> tuple[object, ...]:
        """Return a key that is equal for algorithms that may be compared: collective, topology and `comparison_key`."""
        return self.collective, self.timing.topology_name, *self.comparison_key


def proved_timing(
    problem: Problem, checked: ScheduleCheck, size_bytes: float, taken_us: float, curve: Points, sizes: Iterable[float]
) -> ItemTiming:
    """Return the timing of an algorithm with the bounds that `checked` proves, and its proof in sentences.

    Args:
        problem: The problem.
        checked: The checked proof; without a bound in it, the timing has neither bounds nor proof.
        size_bytes: Message size in bytes.
        taken_us: Time in µs at this size.
        curve: Times (bytes, µs) at further sizes.
        sizes: Sizes in bytes for which bounds are stated; where there is no bound, the size is left out.
    """
    bound = tuple((size, bound_us) for size in sizes if (bound_us := checked.bound_at(size)) is not None)
    proof = tuple(explain_proof(problem, checked, size_bytes, taken_us))
    return ItemTiming(problem.topology.name, size_bytes, taken_us, checked.bound_us, curve, bound, proof)


def explain_proof(problem: Problem, checked: ScheduleCheck, size_bytes: float, taken_us: float) -> list[str]:
    """Return the proof in sentences for a reader who knows networks but not this program; [] without a proof.

    At most six limits other than the decisive one are named.

    Args:
        problem: The problem.
        checked: The checked proof.
        size_bytes: Message size in bytes.
        taken_us: Time of the algorithm in µs at this size.
    """
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
        how = f", {format_gap(gap)} times that: no other can be more than {(1 - 1 / gap) * 100:.2g} % faster."
    lines.append(f"This algorithm takes {format_time(taken_us)}{how}")
    further_limits = [w for w in checked.limits if w is not witness]
    if further_limits:
        texts = dict.fromkeys(w.text for w in further_limits[:6])
        lines.append(f"At other sizes another limit may be the higher: {'; '.join(texts)}.")
    return lines


def _explain_sum(witness: Witness, size_bytes: float, size: str) -> str:
    """Return the sentences that add up a witness's limit in µs from its latency, its time per byte and its cap.

    Args:
        witness: The witness.
        size_bytes: Message size in bytes.
        size: The same size in words.
    """
    parts = [f"latency takes {witness.base_us:.4g} µs"] if witness.base_us > 0 else []
    if witness.per_byte_us > 0:
        parts.append(f"each MB (10⁶ bytes) of the message takes {witness.per_byte_us * 1e6:.4g} µs")
    terms = " and ".join(parts) if parts else "nothing takes time"
    uncapped_us, cap_us = witness.base_us + witness.per_byte_us * size_bytes, witness.cap_us
    total = f"By this argument {terms}: {uncapped_us:.6g} µs for {size}."
    if cap_us < uncapped_us:
        total += f" But it proves at most {cap_us:.6g} µs, whatever the size."
    return total


def _explain_witness(problem: Problem, witness: Witness) -> str:
    """Return the sentence that explains why the witness is a limit; its own text for a kind without an explanation.

    Ranks are named by their numbers in the topology; of over 16 ranks the first 15, and how many there are.
    """
    members: tuple[int, ...] = getattr(witness, "ranks", ())
    words, nranks = _WITNESSES.get(witness.kind, "{text}."), problem.network.nranks
    if witness.kind == "cut" and 2 * len(members) > nranks:  # Then the text names the others, which are fewer.
        words, members = _INWARD, tuple(sorted({*range(nranks)} - {*members}))
    ranks = [problem.ranks[r] for r in members if r < problem.nranks]
    names = ", ".join(map(str, ranks))
    if len(ranks) > _RANKS:
        names = f"{', '.join(map(str, ranks[: _RANKS - 1]))} … ({len(ranks)} of them)"
    k = len(witness.parts) if isinstance(witness, Parts) else 0
    return words.format(text=witness.text, names=names, ranks=ranks, parts=k, least=2 * (k - 1))
