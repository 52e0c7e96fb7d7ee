"""Judge measured times of a vendor library: compare them with its usual times, the bound and our best file."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runtime.measure.nccl_tests import PrintedRow, PrintedRun
from synth.app.synthesis import Synthesis, synthesize
from synth.baselines.nccl.communicator import nics_of, nodes_of
from synth.baselines.nccl.figures import RING, TREE
from synth.baselines.nccl.fitted import PAIRS, fitted_model
from synth.baselines.nccl.model import LibraryChoice
from synth.model.registry import COLLECTIVE_KINDS
from synth.model.text import format_count, format_size, format_time
from topologies.costs import Costs
from topologies.errors import InputError, NotModelled
from topologies.topology import Topology

# Classes of message sizes, each with what decides its times, and the last sizes in bytes of all but the largest class.
_CLASS_NAMES = ("up to 64 KiB", "64 KiB to below 64 MiB", "from 64 MiB")
_CLASS_ENDS = (1 << 16, (1 << 26) - 1)
_NEAR = 0.03  # The difference of two shares up to which a share looks like a number of NICs.
_USUAL = 0.1  # Where no interval is known, the part by which a time may differ from the model's.
_PULL = 0.3  # The weight with which a fitted factor is pulled to 1; that of a row is 1.
_FIXED = 1e6  # The same for a factor that stays 1.
_FEWEST = 3  # The fewest rows of a protocol whose costs are fitted.
_FACTORS = 0.1, 10.0  # The least and the largest fitted factor.
_DEVICE = re.compile(r"\b(?:GB|A|B|H|L|V|MI)\d{2,3}[SX]?\b")  # Names of GPUs as nvidia-smi and amd-smi print them.
_TELLING = 0.3  # The part of the time of a row that latency, or the bytes, must have so that its factor is fitted.
_MOST_DATA = {"LL": 0.5, "LL128": 0.9375}  # Bytes of data per byte on the link that a protocol has at most.
_NO_SUMS = ("int8", "uint8")  # Types that NVSwitches cannot add.


@dataclass(frozen=True)
class JudgedRow:
    """A measured time beside what is known of its message size.

    Attributes:
        row: The measured times.
        usual: What the library chooses, with its usual time; None where it has no model of the question.
        bound_us: Proved bound in µs.
        ours_us: Time of our best file in µs; None where none is faster than what the library usually takes.
        ran: Algorithm and protocol that the log says it ran; None without such a line.
    """

    row: PrintedRow
    usual: LibraryChoice | None
    bound_us: float
    ours_us: float | None
    ran: tuple[str, str] | None

    @property
    def us(self) -> float:
        """Return the time that is judged, in µs: out of place."""
        return self.row.out_of_place_us

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """Return the ends of the usual times in µs: the library's known interval, or 10 % around its model's time.

        It is None if the library has no model of the question.
        """
        if self.usual is None:
            return None
        time_us = self.usual.time_us
        return self.usual.low_us or (1 - _USUAL) * time_us, self.usual.high_us or (1 + _USUAL) * time_us

    @property
    def verdict(self) -> str:
        """Return "wrong", "below the bound", "fast", "slow" or "usual"; "" if nothing is known of the size.

        The first that applies counts. Wrong results are "wrong". A time is "below the bound" if it is over 3 % less,
        since the bound counts costs that are fitted. The others compare the time with the library's usual times.
        """
        if self.row.wrong:
            return "wrong"
        if self.us < (1 - _NEAR) * self.bound_us:
            return "below the bound"
        if self.interval_us is None:
            return ""
        low_us, high_us = self.interval_us
        return "fast" if self.us < low_us else "slow" if self.us > high_us else "usual"


@dataclass(frozen=True)
class JudgedRun:
    """A run of nccl-tests beside what is known of its question.

    Attributes:
        run: The run.
        library: Name of the library whose usual times are compared.
        why_no_library: Why it has no model of the question; "" if it has one.
        topology: The topology.
        group: Ranks of the topology that take part.
        rows: The judged rows.
        is_cut_off: Whether the budget ended the search for our best files.
    """

    run: PrintedRun
    library: str
    why_no_library: str
    topology: Topology
    group: tuple[int, ...]
    rows: list[JudgedRow]
    is_cut_off: bool

    def findings(self) -> Iterator[str]:
        """Yield sentences on where the machine falls short of its kind, and on what else is noticed.

        They are about another device, CUDA graphs, wrong results and times below the bound, then each class of sizes
        (without such rows), then sizes whose algorithm or protocol is unusual. Classes without a usual time have no
        sentence.
        """
        named = [name for name in _DEVICE.findall(self.run.device) if name not in self.topology.summary]
        if named and _DEVICE.search(self.topology.summary):
            yield f"the text names {self.run.device}, and {self.topology.name} is {self.topology.summary}"
        if self.run.graph:
            yield "the calls ran as a CUDA graph, which starts some 2 to 5 µs sooner than the usual times count"
        wrong = [judged.row.size_bytes for judged in self.rows if judged.row.wrong]
        if wrong:
            yield f"wrong results: {format_count(len(wrong), 'size')}, the first {format_size(wrong[0])}"
        below = [judged.row.size_bytes for judged in self.rows if judged.verdict == "below the bound"]
        if below:
            sizes = (
                f"{format_count(len(below), 'size')} took less time than the bound, the first {format_size(below[0])}"
            )
            yield f"{sizes}: is it another machine, or better than its kind?"
        for name, last, next_last in zip(_CLASS_NAMES, (0, *_CLASS_ENDS), (*_CLASS_ENDS, math.inf), strict=True):
            rows = [judged for judged in self.rows if last < judged.row.size_bytes <= next_last]
            sound = [judged for judged in rows if judged.verdict not in ("below the bound", "wrong")]
            yield from self._of_class(sound, name)
        unusual = [
            judged
            for judged in self.rows
            if judged.ran and judged.usual and judged.ran != (judged.usual.algorithm, judged.usual.protocol)
        ]
        if unusual:
            first = unusual[0]
            ran, size = " ".join(first.ran or ()), format_size(first.row.size_bytes)
            sizes = f"{format_count(len(unusual), 'size')} did not run what {self.library} usually takes"
            yield f"{sizes}, the first {size}: {ran} instead of {first.usual}; is NCCL_ALGO or a tuner set?"

    def _of_class(self, rows: Sequence[JudgedRow], name: str) -> Iterator[str]:
        """Yield a sentence on the rows of one class of sizes; none if no row has a usual time.

        If over half of them are slow, it states the median share of the usual speed. If some are slow, it names the
        slowest.

        Args:
            rows: The rows, without wrong results and times below the bound.
            name: Name of the class.
        """
        compared = [(judged, judged.usual) for judged in rows if judged.usual is not None]
        if not compared:
            return
        share = statistics.median(usual.time_us / judged.us for judged, usual in compared)
        counts = Counter(judged.verdict for judged, _ in compared)
        if 2 * counts["slow"] <= len(compared):
            if counts["slow"]:
                slowest, usual = max(compared, key=lambda pair: pair[0].us / pair[1].time_us)
                sizes, size = format_count(len(compared), "size"), format_size(slowest.row.size_bytes)
                part = f"{usual.time_us / slowest.us:.0%} of the usual speed"
                yield f"{name}: {counts['slow']} of {sizes} slow, the slowest {size} ({part})"
                return
            word = "faster than usual" if 2 * counts["fast"] > len(compared) else "as fast as usual"
            yield f"{name}: {word} (median {share:.0%} of the usual speed)"
            return
        text = f"{name}: {share:.0%} of what {self.library} usually reaches on {self.topology.name}"
        if name != _CLASS_NAMES[-1]:
            more_us = statistics.median(judged.us - usual.time_us for judged, usual in compared)
            yield f"{text}; a call takes about {format_time(more_us)} more"
        else:
            yield text + self._like_nics(share)

    def _like_nics(self, share: float) -> str:
        """Return a clause on how many NICs of a node would explain a share of the usual speed of large messages.

        It is "" on one node, and if no number of NICs is within 3 % of the share.

        Args:
            share: Usual time / measured time.
        """
        part, nodes = nodes_of(self.topology, self.group)
        count = len(nics_of(self.topology, part, nodes[0])) if len(nodes) > 1 else 0
        nearest = min(range(1, count), key=lambda k: abs(k / count - share), default=0)
        if nearest and abs(nearest / count - share) <= _NEAR:
            return f"; looks like {nearest} of {count} NICs of a node"
        return ""


def judge(
    runs: Sequence[PrintedRun], topology: Topology, group: Sequence[int] | None, budget_s: float
) -> list[JudgedRun]:
    """Judge runs: search our best files and the bounds, and compute what the library usually takes.

    Each distinct question is searched once. All runs are checked before the first search.

    Args:
        runs: The runs, whose collectives are known.
        topology: The network that was measured.
        group: Ranks of the topology that took part; None for its first ranks.
        budget_s: Seconds of the search for each collective, group and root.

    Returns:
        The judged runs, in the order of `runs`.

    Raises:
        InputError: The topology has fewer ranks than took part, the group has another number of ranks, the root did not
            take part, or the collective is not one of ours.
    """
    queries = [_asked(run, topology, group) for run in runs]  # All are checked before the first search.
    answers = {
        query: synthesize(query[0], topology, query[1], root=query[2], budget=budget_s, target="auto")
        for query in dict.fromkeys(queries)
    }
    return [_judged(run, topology, answers[query], query[1]) for run, query in zip(runs, queries, strict=True)]


def _asked(run: PrintedRun, topology: Topology, group: Sequence[int] | None) -> tuple[str, tuple[int, ...], int | None]:
    """Return the collective, the ranks and the root of a run's question; the root is None if the collective has none.

    Raises:
        InputError: As for `judge`.
    """
    place = f"line {run.line}"
    if run.collective not in COLLECTIVE_KINDS:
        raise InputError(f"{place}: {run.collective} is not judged; it must be one of {', '.join(COLLECTIVE_KINDS)}")
    if group is not None and run.ranks and len(group) != run.ranks:
        raise InputError(f"{place}: {run.ranks} ranks took part, and --group names {len(group)}")
    if run.ranks > topology.nranks:
        enough = -(-run.ranks // topology.nranks)
        raise InputError(
            f"{place}: {run.ranks} ranks took part, and {topology.name} has {topology.nranks}; "
            + ("is it that machine?" if run.hosts == 1 else f"several nodes are {topology.name}:{enough}")
        )
    ranks = tuple(range(run.ranks or topology.nranks)) if group is None else tuple(group)
    if run.root >= len(ranks):
        raise InputError(f"{place}: the root is rank {run.root}, and {len(ranks)} ranks took part")
    is_rooted = COLLECTIVE_KINDS[run.collective].rooted and run.root >= 0
    return run.collective, ranks, ranks[run.root] if is_rooted else None


def _judged(run: PrintedRun, topology: Topology, answer: Synthesis, ranks: tuple[int, ...]) -> JudgedRun:
    """Return a run with what an answer and the library's model state about its sizes.

    Args:
        run: The run.
        topology: The network that was measured; with a gcn architecture the library is RCCL, otherwise NCCL.
        answer: The answer to the run's question.
        ranks: Ranks of the topology that took part.
    """
    library = "RCCL" if topology.gcn else "NCCL"
    choose = _chooser(answer, library, run)
    usual = {row.size_bytes: choose(row.size_bytes) for row in run.rows}
    why = next((str(choice) for choice in usual.values() if isinstance(choice, NotModelled)), "")
    rows = []
    for row in run.rows:
        size, choice = row.size_bytes, usual[row.size_bytes]
        bound_us, ours_us = answer.result.bound.at(size)[0], answer.result.fastest(size).time_us(size)
        library_choice = choice if isinstance(choice, LibraryChoice) else None
        gains = library_choice is None or ours_us < library_choice.time_us
        ours = ours_us if gains else None
        rows.append(JudgedRow(row, library_choice, bound_us, ours, run.ran.get(size)))
    return JudgedRun(run, library, why, topology, ranks, rows, answer.result.stop_reason == "budget")


def with_measured_costs(runs: Sequence[JudgedRun], topology: Topology) -> tuple[Topology, str]:
    """Return the topology with the costs of an executor that fit the measured times, and what was fitted as text.

    For each protocol of rings and trees that the library usually takes in the runs, two factors are fitted by least
    squares of relative errors: one for the starts and latencies, and one for the bytes. Both are pulled to 1 and lie in
    0.1..10. A factor is fitted only where it decides a good part of the times of three rows. Rows with wrong results or
    times below the bound do not count. Costs of other protocols, and of operations in switches (NVLS), stay. The
    topology's name gets the ending `-measured`.

    Args:
        runs: The judged runs.
        topology: The topology, which is not changed.

    Raises:
        InputError: The topology states no costs, or no protocol has three rows with a usual time.
    """
    if topology.costs is None:
        raise InputError(f"{topology.name} states no [costs], whose figures would be fitted")
    sound = [row for run in runs for row in run.rows if not row.row.wrong and row.verdict != "below the bound"]
    protocols = dict(topology.costs.protocols)
    factors_text: dict[str, str] = {}
    for name, protocol in protocols.items():
        choices = [(row.usual, row.us) for row in sound if row.usual and row.usual.protocol == name]
        choices = [(usual, us) for usual, us in choices if usual.algorithm in (RING, TREE, PAIRS)]
        if len(choices) < _FEWEST:
            continue
        parts_us = np.array([(usual.latency_us, usual.time_us - usual.latency_us) for usual, _ in choices])
        is_decisive = (parts_us >= _TELLING * parts_us.sum(axis=1, keepdims=True)).sum(axis=0) >= _FEWEST
        measured_us = np.array([us for _, us in choices])
        pulls = np.where(is_decisive, _PULL, _FIXED)
        shares = np.vstack([parts_us / measured_us[:, None], np.diag(pulls)])
        factors = np.linalg.lstsq(shares, np.array([*np.ones(len(choices)), *pulls]), rcond=None)[0]
        latency, work = np.clip(factors, *_FACTORS).tolist()
        most = _MOST_DATA.get(name, 1.0)
        protocols[name] = replace(
            protocol,
            start_us=latency * protocol.start_us,
            latency_us={kind: latency * us for kind, us in protocol.latency_us.items()},
            efficiency={kind: min(most, share / work) for kind, share in protocol.efficiency.items()},
        )
        factors_text[name] = f"{name} (latency × {latency:.2f}, bytes × {work:.2f})"
    if not factors_text:
        raise InputError(f"no costs can be fitted: {_FEWEST} sizes are needed that run as rings or trees; measure more")
    device = next((run.run.device for run in runs if run.run.device), topology.name)
    source = f"measured here by nccl-tests ({device}), as factors of: {topology.costs.source}"
    unfitted = ", ".join(name for name in protocols if name not in factors_text)
    summary = f"fitted: {', '.join(factors_text.values())}" + (f"; as before: {unfitted}" if unfitted else "")
    return replace(topology, name=f"{topology.name}-measured", costs=Costs(protocols, source)), summary


def _chooser(answer: Synthesis, library: str, run: PrintedRun) -> Callable[[int], LibraryChoice | NotModelled]:
    """Return a function from a message size in bytes to what a library chooses for it, with its usual time.

    The function returns, and does not raise, a NotModelled if the library's model does not cover the size.

    Args:
        answer: The answer to the run's question.
        library: "NCCL" or "RCCL".
        run: The run, whose collective and type of elements count for NCCL.
    """
    problem = answer.result.problem
    if library != "NCCL":
        return lambda size: answer.result.library(library, size)

    try:
        model = fitted_model(problem.topology, problem.group)
    except NotModelled as reason:
        why = reason
        return lambda _: why

    def choose(size: int) -> LibraryChoice | NotModelled:
        """Return NCCL's choice for the run's type of elements, or why its model does not cover the size in bytes."""
        try:
            return model.choose(run.collective, size, run.type not in _NO_SUMS)
        except NotModelled as reason:
            return reason

    return choose
