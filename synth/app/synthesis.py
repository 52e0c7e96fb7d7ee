"""The Python face of the product: state a question, search for its answer, look at it and save it.

Like the command line, this module may import every room; no room imports it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from emit.library.programs import executor_for
from emit.library.saving.save import save
from synth.app import documents
from synth.app.arguments import QuestionArguments
from synth.app.figures import draw_network, draw_times, matplotlib_module
from synth.app.present.layout import LEAST_WIDTH
from synth.app.present.table import table
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
from synth.search.statement import statement
from synth.solvers.workers import Workers
from synth.storage.columns import replaced
from synth.symmetry.quotient import expanded
from synth.verify.algorithm import Algorithm
from topologies.costs import Costs
from topologies.errors import InputError
from topologies.topology import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from synth.app.arguments import Sizes


class AlgorithmRow(dict[str, Any]):
    """A dictionary of an algorithm and its range of sizes, which `print` shows as one line."""

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
            of the written files.
        settings: The settings of the question's target; `save` names another target.
    """

    result: SearchResult
    settings: TargetSettings = ANY_TARGET

    def __post_init__(self) -> None:
        self._searched = self.result  # Every call of `save` starts from it.

    @property
    def algorithms(self) -> list[dict[str, Any]]:
        """Return one dictionary for each algorithm and its range of sizes, with the keys of `statement` and its `row`.

        A range that is left to a vendor library is one of them. The list is computed at every call.
        """
        return [AlgorithmRow(row) for row in statement(self.result)["algorithms"]]

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
        """Return the search as plain values: what `--json` prints of it, with the keys that `statement` documents."""
        return documents.stamp("search", statement(self.result))

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

        For a size that no range contains, it is the algorithm that `SearchResult.fastest` takes.

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
            reason = self.result.impossible or "no algorithm of the pinned shape was found in time"
            raise InputError(f"there is no algorithm: {reason}")

    @taking('answer.schedule("1M")')
    def schedule(self, size_bytes: int | str) -> Schedule:
        """Return the schedule that serves a message size, with the times of messages of this size.

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
            own_us |= {size: time_us for size, time_us, _ in row["curve"] if row["min_bytes"] <= size <= last}
            own_us[row["shown_bytes"]] = row["time_us"]
        sizes = sorted({*(1 << e for e in EXPONENTS), *own_us})
        curves = {"synth": dict(sorted(own_us.items()))}
        for name in LIBRARIES:
            choices = {size: result.library(name, size) for size in sizes}
            curve = {size: choice.time_us for size, choice in choices.items() if isinstance(choice, LibraryChoice)}
            curves |= {f"{name}'s model": curve} if curve else {}
        return draw_times(curves, {size: result.bound.at(size)[0] for size in sizes}, ax)

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

    def table(self, width: int | None = LEAST_WIDTH) -> str:
        """Return the table that the command line prints, as text.

        Args:
            width: Most characters of a line: only the most important columns that fit are shown; None for all columns.

        Raises:
            InputError: The width is no whole number of 1 or more.
        """
        width = None if width is None else whole(width, "width")
        if width is not None and width < 1:
            raise InputError(f"width {width}: is not possible; it must be 1 or more, or None for all columns")
        more = "table(width=None)", "; the attribute algorithms holds all figures"
        return table(statement(self.result), self.result.problem.topology.nranks, width, more=more)

    @taking('answer.save("out")')
    def save(
        self, folder: str | Path, target: str = "auto", *, proof: bool = False, replace: bool = False
    ) -> list[Path]:
        """Write the files of the answer to a library, as `emit.library.saving.save.save` does, and return their paths.

        From then on `result` is what was written: algorithms that the search had no time to lower are lowered now, and
        have the times of their programs. Every call starts from the search's own result.

        Args:
            folder: The library's folder.
            target: Name of an executor, or "auto" for that of the machine, or else the first that can express the
                question. With "none" there are schedules only, and no index, which lists files of executors.
            proof: Whether to write schedules and proofs of the bounds as well.
            replace: Whether to replace the files that the library has for the question, even faster ones.

        Raises:
            InputError: The target or the folder cannot take the files. If a named target can hold no program of the
                answer, the error comes after other files, such as schedules, were written.
        """
        folder, target = as_folder(folder, "folder"), as_text(target, "target")
        proof, replace = as_flag(proof, "proof"), as_flag(replace, "replace")
        settings = dataclasses.replace(self.settings, name=target)
        executor_for(self.result.problem, settings)  # Raise before anything is written.
        written = save(self._searched, folder, settings, proof=proof, anew=replace)
        self.result = written.result
        if written.refused and target != "auto":
            raise InputError(written.refused)
        return written.paths


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
        topo: A machine, a family, a file, a Topology, or a graph of networkx (see `topologies.graphs`).
        group: Ranks that take part, in order, or text as on the command line (`0,2,4-7`); None for all ranks.
        relay: Ranks outside the group that may forward: "none", "all" or ranks.
        without: Dead parts, such as "link:0-1" or "rank:3"; the healthy network is searched too, for comparison.
        degrade: Slow parts, such as "link:0-1=50%"; the healthy network is searched too.
        root: Rank of the root of a rooted collective; None for the group's first rank.
        sizes: Bytes of the blocks of allgatherv, reducescatterv, gatherv and scatterv: one number for each rank; of
            alltoallv: k rows of k numbers. Or text such as "1M,0,3M", or a file.
        size: Bytes, or text such as "64K", for the one best algorithm; None for the best at every size.
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
        InputError: An argument cannot be right; the message is one line. For a keyword that does not exist it is an
            UnknownKeyword, which is a TypeError too, as is WrongArguments for a missing one.
    """
    arguments = QuestionArguments(
        collective, topo, group, relay=relay, without=without, degrade=degrade, root=root, sizes=sizes, size=size,
        chunks=chunks, steps=steps, rounds=rounds, engine=engine, budget=budget, seed=seed, target=target, sms=sms,
        groups_overlap=groups_overlap, scratch_limit=scratch_limit, costs=costs, switch_ops=switch_ops,
    )  # fmt: skip
    if progress is not None and not callable(progress):
        raise InputError(
            f"progress: a {type(progress).__name__} cannot be called; it must be a function of two arguments"
        )
    if not isinstance(workers, Workers | None):
        raise InputError(f"workers: a {type(workers).__name__} is none; it must be synth.solvers.workers.Workers()")
    question = make_question(arguments)
    with Workers(processes(question.options.engine)) if workers is None else nullcontext(workers) as running_workers:
        return Synthesis(find_answer(question, running_workers, progress), question.settings)
