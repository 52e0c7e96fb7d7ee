"""The Python face of the product: state a question, search for its answer, look at it and save it.

Like the command line, this module may import every room; no room imports it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

from emit.compiler.lower import forms
from emit.library.programs import executor_for
from emit.library.saving.save import Saved, save
from synth.app import documents
from synth.app.arguments import QuestionArguments
from synth.app.figures import draw_network, draw_times, matplotlib_module
from synth.app.present.layout import LEAST_WIDTH, wrapped
from synth.app.present.table import heading, table
from synth.app.question import make_question
from synth.app.report.item import EXPONENTS
from synth.app.sends import SendTable, load_pandas
from synth.baselines.nccl.model import LibraryChoice
from synth.baselines.vendors import LIBRARIES
from synth.engines.registry import processes
from synth.model.collective import Collective
from synth.model.numbers import as_flag, as_folder, as_text, taking, whole
from synth.model.schedule import Schedule
from synth.model.sizes import size_in_bytes
from synth.model.text import format_count, format_gap, format_served, format_size, format_time
from synth.search.question import Question
from synth.search.result import Report, SearchResult
from synth.search.search import search
from synth.search.settings import ANY_TARGET, NONE, TargetSettings
from synth.search.statement import next_minute, statement, with_ranges
from synth.solvers.workers import Workers
from synth.storage.columns import replaced
from synth.symmetry.quotient import expanded
from synth.verify.algorithm import Algorithm
from topologies.costs import Costs
from topologies.errors import InputError
from topologies.text.fields import shown
from topologies.topology import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from synth.app.arguments import Sizes


class AlgorithmRow(TypedDict):
    """An algorithm and the range of message sizes that it serves, as `algorithms` and `--json` state it.

    Sizes are in bytes and times in µs. `print` shows a row in one line.

    Attributes:
        file: Path of the executor's file; None where there is none, as before `save`.
        schedule: Path of the stored schedule; missing where none was written.
        proof_file: Path of the proof; missing where none was written.
        kept: Whether the library had the file before.
        refused: Why the executor can hold no program; "" if it can, or if none was asked for.
        steps: Steps in the k-synchronous model; None where the algorithm has no such shape, as `rounds` and `chunks`.
        rounds: Rounds in the k-synchronous model.
        chunks: Chunks a block.
        sends: Number of sends; None for a vendor library's own algorithm.
        engine: Name of the engine, or of the vendor library to which the range is left.
        switch_ops: Whether switches multicast or reduce in it.
        min_bytes: Smallest message that it serves.
        max_bytes: Largest message that it serves; None where there is no end.
        shown_bytes: The message size of the figures from `time_us` to `vs_healthy_range`.
        time_us: Predicted time.
        bound_us: Proved bound: nothing is faster.
        gap: time / bound, at least 1.
        optimal: Whether the time is proved optimal.
        proof: What proves the bound, in words.
        vs_baseline: Time of the best baseline / this time; None where there is no baseline.
        libraries: By name, what a vendor library would run there: algorithm, protocol, channels, time_us, vs (its time
            / this time), vs_low, vs_high and source_us.
        vs_healthy: This time / that on the healthy network; None where no part is dead or slow.
        vs_healthy_range: Least and greatest ratio that the optimal times can have; None where no part is dead or slow.
        worst: The size in the range with the largest gap: bytes, time_us, bound_us, gap.
        curve: Lists [bytes, time, bound] over all sizes, bytes ascending.
    """

    file: str | None
    schedule: NotRequired[str]
    proof_file: NotRequired[str]
    kept: bool
    refused: str
    steps: int | None
    rounds: int | None
    chunks: int | None
    sends: int | None
    engine: str
    switch_ops: bool
    min_bytes: int
    max_bytes: int | None
    shown_bytes: int
    time_us: float
    bound_us: float
    gap: float
    optimal: bool
    proof: str
    vs_baseline: float | None
    libraries: dict[str, dict[str, Any]]
    vs_healthy: float | None
    vs_healthy_range: list[float] | None
    worst: dict[str, float]
    curve: list[list[float]]


class _PrintedRow(dict[str, Any]):
    """An `AlgorithmRow` that `print` shows as one line."""

    def __str__(self) -> str:
        """Return the sizes, the time, the gap with what proves it, the engine and the shape in one line."""
        shape = [format_count(self[name], name[:-1]) for name in ("steps", "rounds", "chunks") if self[name]]
        time = f"{format_time(self['time_us'])} at {format_size(self['shown_bytes'])}"
        proof = f"gap {format_gap(self['gap'])} ({self['proof']})"
        sizes = format_served(self["min_bytes"], self["max_bytes"])
        return ", ".join([f"{sizes}: {time}", proof, f"engine {self['engine'] or '–'}", *shape])


@dataclass(eq=False)
class Synthesis:
    """The answer to a question: one algorithm for each range of message sizes, each replayed, with proved bounds.

    Attributes:
        result: The search result, with the times of schedules or of a target's programs; after `save`, with the times
            of the written files, which may serve other ranges of sizes.
        settings: The settings of the question's target; `save` names another target.
    """

    result: SearchResult
    settings: TargetSettings = ANY_TARGET

    def __post_init__(self) -> None:
        self._searched = self.result  # Every call of `save` starts from it.
        self._written: Saved | None = None

    @property
    def algorithms(self) -> list[AlgorithmRow]:
        """Return one dictionary for each algorithm and its range of sizes (see `AlgorithmRow`).

        A range that is left to a vendor library is one of them. After `save` the rows are those that the library has
        for the question, with their files. The list is computed at every call.
        """
        return [cast("AlgorithmRow", _PrintedRow(row)) for row in self.to_dict()["algorithms"]]

    @property
    def interrupted(self) -> bool:
        """Return whether Ctrl-C ended the search, so that this is the best answer until then."""
        return self.result.stop_reason == "interrupted"

    @property
    def gap(self) -> float:
        """Return the largest time / bound over all sizes that the algorithms serve; infinity without an algorithm."""
        return max((float(row["worst"]["gap"]) for row in self.algorithms), default=math.inf)

    @property
    def shown_gap(self) -> float:
        """Return the largest time / bound of the algorithms, each at its shown size; infinity without an algorithm."""
        return max((float(row["gap"]) for row in self.algorithms), default=math.inf)

    def __repr__(self) -> str:
        """Return the question, the number of algorithms and the largest gap in one line."""
        problem, count = self.result.problem, len(self.result.ranges)
        answer = f"{format_count(count, 'algorithm')}, largest gap {format_gap(self.gap)}" if count else "no algorithm"
        question = f"{problem.collective.name} on {len(problem.group)} ranks of {problem.topology.name}"
        return f"<Synthesis of {question}: {answer}>"

    def _repr_html_(self) -> str:
        """Return the table for a notebook as HTML, with a drawing of the times by size if matplotlib is installed."""
        try:
            figure_class = matplotlib_module("figure").Figure
        except InputError:
            drawing = ""
        else:
            svg = StringIO()
            if self.result.ranges:
                figure = figure_class(figsize=(6, 4), layout="constrained")
                self.plot_frontier(figure.subplots())
                figure.savefig(svg, format="svg")
            drawing = "".join(svg.getvalue().partition("<svg")[1:])
        return f"<pre>{escape(self.table())}</pre>{drawing}"

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values, as `--json` prints it: a document of `json_schema("search")`.

        Before `save` no row has a file, and `unsaved` says so.
        """
        return documents.stamp("search", search_document(self._written or self.result))

    def to_pandas(self) -> DataFrame:
        """Return the algorithms as a pandas data frame, one row each, with the keys of `algorithms` as columns.

        Raises:
            InputError: pandas is not installed.
        """
        frame: DataFrame = load_pandas().DataFrame(self.algorithms)
        return frame

    @taking('answer.algorithm("1M")')
    def algorithm(self, size_bytes: int | str) -> Algorithm:
        """Return the algorithm that serves a message size.

        For a size that no range contains, it is the fastest of all.

        Args:
            size_bytes: Size of the message, as a number of bytes or as text such as `64K`.

        Raises:
            InputError: The argument is no size, or the search has no algorithm.
        """
        size = size_in_bytes(size_bytes, "size_bytes")
        self._check_answered()
        return self.result.fastest(size).algorithm

    def _check_answered(self) -> None:
        """Raise InputError if the search has no algorithm; the message states why."""
        if not self.result.ranges:
            raise InputError(f"there is no algorithm: {self._why_none}")

    @property
    def _why_none(self) -> str:
        """Return why the search has no algorithm, in words."""
        ended = self.result.stop_reason
        endings = {"budget": "none was found within the budget", "interrupted": "the search was interrupted"}
        return self.result.impossible or endings.get(ended, "the engines ended without one, and nothing is proved")

    @taking('answer.schedule("1M")')
    def schedule(self, size_bytes: int | str) -> Schedule:
        """Return the schedule that serves a message size, with the times of messages of this size.

        Its columns are read-only; `np.array` copies them.

        Args:
            size_bytes: Size of the message, as a number of bytes or as text such as `64K`.

        Raises:
            InputError: The argument is no size, or the search has no algorithm.
        """
        size = size_in_bytes(size_bytes, "size_bytes")
        return self.algorithm(size).timed(size)

    @taking('answer.sends("1M")')
    def sends(self, size_bytes: int | str) -> SendTable:
        """Return the sends of the schedule that serves a message size, as columns with the ranks of the topology.

        Of a quotient's schedule all sends of the network are returned.

        Args:
            size_bytes: Size of the message, as a number of bytes or as text such as `64K`.

        Raises:
            InputError: The argument is no size, the search has no algorithm, or all sends of the network do not fit in
                memory.
        """
        algorithm, schedule = self.algorithm(size_bytes), self.schedule(size_bytes)
        return SendTable(*expanded(algorithm.problem, schedule), engine=algorithm.engine)

    @taking("answer.plot_frontier()")
    def plot_frontier(self, ax: Axes | None = None) -> Axes:
        """Draw the times, the bound and the times of vendor libraries by message size, and return the axes.

        Sizes that are left to a vendor library have no time of ours, nor have algorithms of very many sends.

        Args:
            ax: Axes of matplotlib to draw on; None for new ones.

        Raises:
            InputError: matplotlib is not installed, or the search found no algorithm.
        """
        self._check_answered()
        result, own_us = self.result, dict[int, float]()
        for row in self.algorithms:
            if row["sends"] is None:
                continue
            last = row["max_bytes"] or math.inf
            own_us |= {int(size): time_us for size, time_us, _ in row["curve"] if row["min_bytes"] <= size <= last}
            own_us[row["shown_bytes"]] = row["time_us"]
        sizes = sorted({*(1 << e for e in EXPONENTS), *own_us})
        curves = {"synth": dict(sorted(own_us.items()))}
        for name in LIBRARIES:
            choices = {size: result.library(name, size) for size in sizes}
            curve = {size: choice.time_us for size, choice in choices.items() if isinstance(choice, LibraryChoice)}
            curves |= {f"{name}'s model": curve} if curve else {}
        return draw_times(curves, {size: result.bound.at(size)[0] for size in sizes}, ax)

    @taking('answer.plot_timeline("1M")')
    def plot_timeline(self, size_bytes: int | str, ax: Axes | None = None) -> Axes:
        """Draw when each pair of ranks is in use for a message of a size, and return the axes.

        Args:
            size_bytes: Size of the message, as a number of bytes or as text such as `64K`.
            ax: Axes of matplotlib to draw on; None for new ones.

        Raises:
            InputError: The argument is no size, matplotlib is not installed, the search found no algorithm, or all
                sends of the network do not fit in memory.
        """
        return self.sends(size_bytes).plot_timeline(ax)

    @taking('answer.plot_network("1M")')
    def plot_network(self, size_bytes: int | str, ax: Axes | None = None) -> Axes:
        """Draw the network with the share of the time in which each link is in use, and return the axes.

        Args:
            size_bytes: Size of the message, as a number of bytes or as text such as `64K`.
            ax: Axes of matplotlib to draw on; None for new ones.

        Raises:
            InputError: The argument is no size, matplotlib is not installed, the search found no algorithm, switches
                multicast or reduce in the schedule, or the network has too many links.
        """
        return draw_network(self.algorithm(size_bytes).problem, self.schedule(size_bytes), ax)

    @taking('answer.report("answer.html")')
    def report(self, path: str | Path) -> Path:
        """Write the HTML page that `synth report` makes of the schedules and their proofs, and return its path.

        The page shows what the search returned, even after `save`. An existing file is replaced.

        Args:
            path: The page's file, such as `answer.html`.

        Raises:
            InputError: The file cannot be written, the search has no algorithm, or switches multicast or reduce in a
                schedule.
        """
        from synth.app.report.page import report  # It loads parts of SciPy, which searches do without.

        page_path = as_folder(path, "path")
        self._check_answered()
        with TemporaryDirectory() as folder:
            save(self._searched, Path(folder), TargetSettings(NONE), proof=True)
            page = report(folder)
        with replaced(page_path) as file:
            file.write(page.html.encode())
        return page_path

    @taking("answer.table(width=120)")
    def table(self, width: int | None = LEAST_WIDTH) -> str:
        """Return the table that the command line prints, as text; without an algorithm, the reason under its heading.

        Args:
            width: Most characters of a line: only the most important columns that fit are shown; None for all columns.

        Raises:
            InputError: The width is no whole number of 1 or more.
        """
        width = None if width is None else whole(width, "width")
        if width is not None and width < 1:
            raise InputError(f"width {width}: is not possible; it must be 1 or more, or None for all columns")
        more = "table(width=None)", "; the attribute algorithms holds all figures"
        document, nranks = self.to_dict(), self.result.problem.topology.nranks
        if not self.result.ranges:
            return "\n".join(wrapped([heading(document, nranks), "", f"no algorithm: {self._why_none}"], width))
        return table(document, nranks, width, more=more)

    @taking('answer.save("out")')
    def save(
        self, folder: str | Path, target: str = "auto", *, proof: bool = False, replace: bool = False
    ) -> list[Path]:
        """Write the files of the answer to a library, as the command line does with `--out`, and return their paths.

        An existing file for the question stays at every size at which it is no slower. From then on `result` and
        `algorithms` are what was written: algorithms that the search had no time to lower are lowered now and have the
        times of their programs, and sizes may be left to a vendor library. So there may be other rows than before.
        Every call starts from the search's own result.

        Args:
            folder: The library's folder.
            target: Name of an executor, or "auto" for that of the machine, or else the first that can express the
                question. With "none" there are schedules only, and no index, which lists files of executors.
            proof: Whether to write schedules and proofs of the bounds as well.
            replace: Whether to replace the files that the library has for the question, even faster ones.

        Raises:
            InputError: The search has no algorithm, or the target or the folder cannot take the files. If a named
                target can hold no program of the answer, the error comes after other files, such as schedules, were
                written.
        """
        self._check_answered()
        folder, target = as_folder(folder, "folder"), as_text(target, "target")
        proof, replace = as_flag(proof, "proof"), as_flag(replace, "replace")
        settings = dataclasses.replace(self.settings, name=target)
        executor_for(self.result.problem, settings)  # Raise before anything is written.
        written = save(self._searched, folder, settings, proof=proof, anew=replace)
        self.result, self._written = written.result, written
        if written.refused and target != "auto":
            raise InputError(written.refused)
        return written.paths


def search_document(answer: SearchResult | Saved) -> dict[str, Any]:
    """Return the document of a search, which `--json` prints and `to_dict` returns, without its stamp.

    Args:
        answer: The search, or the search as it was written. The rows of the latter are those that the library now has.

    Returns:
        The keys of `statement`, and inplace (whether `algorithms` serve calls in place), other_form (rows of the other
        form of calls, if there are any), unsaved (why there is no file, or ""), remarks and cached. Each row also has
        file, None without one, kept, and perhaps schedule and proof_file.
    """
    written = None if isinstance(answer, SearchResult) else answer
    result = answer if isinstance(answer, SearchResult) else answer.result
    document = statement(result)
    if written is None:
        own_rows = with_ranges(result, document["algorithms"])
        document["algorithms"] = [{"file": None, "kept": False} | row for row in own_rows]
    for key, form in () if written is None else (("algorithms", written), ("other_form", written.other_form)):
        if form is not None:
            named_files = [{kind: str(path) for kind, path in files.items()} for files in form.files]
            ranged = with_ranges(form.result, form.rows)
            document[key] = [{"file": None} | row | files for row, files in zip(ranged, named_files, strict=True)]
    rows = [*document["algorithms"], *document.get("other_form", ())]
    document["next_minute"] = next_minute(result, rows)
    document["out_of_reach"] = [schedule for schedule in document["out_of_reach"] if not _is_reached(schedule, rows)]
    document["inplace"] = forms(result.problem)[0]
    unsaved = "the answer was not saved" if written is None else written.refused
    return document | {"unsaved": unsaved, "remarks": list(written.remarks if written else ()), "cached": False}


def _is_reached(schedule: dict[str, Any], rows: Iterable[dict[str, Any]]) -> bool:
    """Return whether a file that the library had already is as fast as a schedule that has no file, at its size."""
    size = schedule["bytes"]
    times_us = [
        time_us
        for row in rows
        if row["kept"] and row["min_bytes"] <= size and (row["max_bytes"] is None or size <= row["max_bytes"])
        for at, time_us in [(row["shown_bytes"], row["time_us"]), *((at, us) for at, us, _ in row["curve"])]
        if at == size
    ]
    return bool(min(times_us, default=math.inf) <= schedule["time_us"])


_HURT_SHARE = 2 / 3  # of the budget, for the network with dead and slow parts


def find_answer(
    question: Question, workers: Workers, progress: Report | None = None, known_healthy: SearchResult | None = None
) -> SearchResult:
    """Return the answer of a question; with dead or slow parts also that of the healthy network, to state their cost.

    With such parts, the question's own search gets two thirds of the budget, and the healthy network's the rest; if
    that is known already, the question's own search gets all. An interruption of the latter, or no time for it, leaves
    the cost unknown and is stated in `stop_reason`.

    Args:
        question: The question.
        workers: Solver processes.
        progress: Receives what is tried and the best algorithm so far.
        known_healthy: Answer for the question's healthy network, if it is known already.

    Raises:
        InputError: The engine or the target does not accept the question, or the budget is too short.
        KeyboardInterrupt: Ctrl-C came before there was an answer.
    """
    options, healthy = question.options, question.healthy
    executor = executor_for(question.problem, question.settings, options.size)
    own_options = options
    if healthy is not None and known_healthy is None:
        own_options = dataclasses.replace(options, budget_s=_HURT_SHARE * options.budget_s, stated_s=options.budget_s)
    result = search(question.problem, own_options, workers, progress, executor=executor)
    result.why_switches_forward = question.why_switches_forward
    result.healthy = known_healthy
    if healthy is not None and known_healthy is None and result.stop_reason != "interrupted":
        try:
            executor = executor_for(healthy, question.settings, options.size)
            result.healthy = search(healthy, options, workers, progress, executor=executor)
            result.stop_reason = "interrupted" if result.healthy.stop_reason == "interrupted" else result.stop_reason
        except KeyboardInterrupt:  # The cost of dead and slow parts remains unknown.
            result.stop_reason = "interrupted"
        except InputError:  # No time is left, and the cost remains unknown.
            result.stop_reason = result.stop_reason or "budget"
    return result


@taking('synth.synthesize("allreduce", "dgx-a100", size="1M")')
def synthesize(  # It has a parameter for each option of a question, so that editors and type checkers know them.
    collective: str | Collective,
    topo: str | Path | Topology,
    group: Sequence[int] | str | None = None,
    *,
    relay: Sequence[int] | str = "none",
    without: Sequence[str] = (),
    degrade: Sequence[str] = (),
    root: int | None = None,
    sizes: Sizes | None = None,
    size: int | str | None = None,
    chunks: int | None = None,
    steps: int | None = None,
    rounds: int | None = None,
    engine: str = "auto",
    budget: float | str = 30.0,
    seed: int = 0,
    target: str = NONE,
    sms: int | None = None,
    groups_overlap: bool = False,
    scratch_limit: int | str | None = None,
    costs: str | Path | Costs = "auto",
    switch_ops: bool = True,
    progress: Report | None = None,
    workers: Workers | None = None,
) -> Synthesis:
    """Find the best algorithms of a collective on a topology.

    Args:
        collective: A name (torch's spellings too), or a Collective, as `read_pattern` returns it for a pattern's file.
        topo: A machine, a family, a file, a Topology, or a graph of networkx with links as edges (gbs, alpha_us).
        group: Ranks that take part, in order, or text as on the command line (`0,2,4-7`); None for all ranks.
        relay: Ranks outside the group that may forward: "none", "all" or ranks.
        without: Dead parts, such as "link:0-1" or "rank:3"; the healthy network is searched too, for comparison.
        degrade: Slow parts, such as "link:0-1=50%"; the healthy network is searched too.
        root: Rank of the root of a rooted collective; None for the group's first rank.
        sizes: Bytes of the blocks of allgatherv, reducescatterv, gatherv and scatterv: one number for each rank; of
            alltoallv: k rows of k numbers. Or text such as "1M,0,3M", or a file.
        size: Message size for the one best algorithm: bytes of the larger of the fullest send and the fullest receive
            buffer of any rank, or text such as "64K"; None for the best at every size.
        chunks: Chunks of a block; None for any number.
        steps: Steps in the k-synchronous model; None for any number.
        rounds: Rounds in the k-synchronous model; None for any number.
        engine: Name of an engine (`synth engines` lists them), or "auto".
        budget: Seconds, or text such as "5m".
        seed: Seed of the solvers.
        target: Name of the executor whose programs are the answer, or "auto" for that of the machine; "none" for
            schedules.
        sms: Threadblocks that a rank's program may have; None for the SMs of its device, less a few.
        groups_overlap: Whether ranks are in several groups at a time, which MSCCL++'s packets (LL) do not support.
        scratch_limit: Bytes of scratch memory that an executor may allocate before a call; None for its usual limit.
        costs: An executor's costs: "auto" (the machine's, if it states any), "machine", "none", a file or Costs.
        switch_ops: Whether switches may multicast and reduce, where the topology, the target and the costs allow it.
        progress: Function that is called with a text on the current attempt and with the best algorithm so far.
        workers: Running solver processes to use instead of new ones.

    Raises:
        InputError: An argument cannot be right; the message is one line. For a keyword that does not exist and for a
            missing argument it is a TypeError too.
        KeyboardInterrupt: Ctrl-C came before there was an answer. If it comes later, the answer is the best until
            then, and its attribute `interrupted` is True.
    """
    arguments = QuestionArguments(
        collective, topo, group, relay=relay, without=without, degrade=degrade, root=root, sizes=sizes, size=size,
        chunks=chunks, steps=steps, rounds=rounds, engine=engine, budget=budget, seed=seed, target=target, sms=sms,
        groups_overlap=groups_overlap, scratch_limit=scratch_limit, costs=costs, switch_ops=switch_ops,
    )  # fmt: skip
    if progress is not None and not callable(progress):
        raise InputError(f"progress: {shown(progress)} cannot be called; it must be a function of two arguments")
    if not isinstance(workers, Workers | None):
        raise InputError(f"workers: {shown(workers)} has no solvers; it must be a synth.solvers.workers.Workers")
    question = make_question(arguments)
    with Workers(processes(question.options.engine)) if workers is None else nullcontext(workers) as running_workers:
        return Synthesis(find_answer(question, running_workers, progress), question.settings)
