"""The Python face of the product: state a question, search for its answer, look at it and save it.

Like the command line, this module may import every room; no room imports it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from emit.library.programs import executor_for
from emit.library.saving.save import save
from emit.targets import TARGETS
from synth.app.present.table import table
from synth.engines.flow.quotients import quotient_question
from synth.engines.registry import engines_named, processes
from synth.engines.request import Options
from synth.model.collective import Collective
from synth.model.deadline import now
from synth.model.numbers import as_flag, as_folder, as_seconds, as_text, as_texts, whole, whole_numbers
from synth.model.problem import Problem, make_problem, parse_ranks
from synth.model.registry import parse_name
from synth.model.schedule import Schedule
from synth.model.sizes import parse_size
from synth.search.budget import check_budget
from synth.search.protocols import search_protocols
from synth.search.result import Report, SearchResult
from synth.search.search import search
from synth.search.settings import ANY_TARGET, NONE, TargetSettings
from synth.search.statement import statement
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.costed import figures_of
from topologies.costs import Costs
from topologies.errors import InputError, did_you_mean
from topologies.faults.apply import apply_faults
from topologies.faults.notation import dead_ranks, live_ranks, relay_ranks
from topologies.graphs import from_networkx, is_graph
from topologies.load import NO_COSTS, apply_costs, load
from topologies.topology import Topology, without_switch_ops


@dataclass(eq=False)
class Synthesis:
    """The answer to a question: one algorithm for each range of message sizes, each replayed, with proved bounds.

    Attributes:
        found: The search result, with the times of schedules or of a target's programs; after `save`, with the times of
            the written files.
        settings: The settings of the question's target; `save` names another target.
    """

    found: SearchResult
    settings: TargetSettings = ANY_TARGET

    def __post_init__(self) -> None:
        self._searched = self.found  # Every call of `save` starts from it.

    @property
    def algorithms(self) -> list[dict[str, Any]]:
        """Return one dictionary for each algorithm, with the keys that `statement.row` documents."""
        return list(statement(self.found)["algorithms"])

    @property
    def gap(self) -> float:
        """Return the largest time / bound over the algorithms, each at the size for which its row is shown."""
        return max(float(row["gap"]) for row in self.algorithms)

    def algorithm(self, size_bytes: int | str) -> Algorithm:
        """Return the algorithm that serves a message size.

        Args:
            size_bytes: Size of the message, as a number of bytes or as text such as `64K`.

        Raises:
            InputError: The argument is no size.
        """
        return self.found.fastest(_size(size_bytes, "size_bytes")).algorithm

    def schedule(self, size_bytes: int | str) -> Schedule:
        """Return the schedule that serves a message size, with the times of messages of this size.

        Args:
            size_bytes: Size of the message, as a number of bytes or as text such as `64K`.

        Raises:
            InputError: The argument is no size.
        """
        size = _size(size_bytes, "size_bytes")
        return self.algorithm(size).timed(size)

    def table(self) -> str:
        """Return the table that the command line prints."""
        return table(statement(self.found), self.found.problem.topology.nranks)

    def save(
        self, folder: str | Path, target: str = "auto", *, proof: bool = False, replace: bool = False
    ) -> list[Path]:
        """Write the files as `emit.library.saving.save.save` does, and return their paths.

        From then on `found` is what was written: algorithms that the search had no time to lower are lowered now, and
        have the times of their programs.

        Args:
            folder: The library's folder.
            target: Name of an executor, or "auto" for the first that can express the question.
            proof: Whether to write schedules and proofs of the bounds as well.
            replace: Whether to replace the files that the library has for the question, even faster ones.

        Raises:
            InputError: The target or the folder cannot take the files.
        """
        folder, target = as_folder(folder, "folder"), as_text(target, "target")
        proof, replace = as_flag(proof, "proof"), as_flag(replace, "replace")
        settings = dataclasses.replace(self.settings, name=target)
        executor_for(self.found.problem, settings)  # Raise before anything is written.
        written = save(self._searched, folder, settings, proof=proof, anew=replace)
        self.found = written.found
        if written.refused and target != "auto":
            raise InputError(written.refused)
        return written.paths


_HURT_SHARE = 2 / 3  # of the budget, for the network with dead and slow parts


class Question(NamedTuple):
    """A problem with one chunk a block, with pinned shape, budget and target.

    Attributes:
        problem: The problem on the topology, with its dead and slow parts.
        options: What is pinned, the budget and the seed.
        healthy: The same problem without dead and slow parts; None if there are no such parts.
        settings: The target and its limits.
        unsaid: Why the problem's switches only forward although the topology's can do more; "" if they do all they can.
    """

    problem: Problem
    options: Options
    healthy: Problem | None = None
    settings: TargetSettings = TargetSettings(NONE)
    unsaid: str = ""


def make_question(
    collective: str | Collective,
    topo: str | Path | Topology,
    group: Sequence[int] | str | None = None,
    *,
    relay: Sequence[int] | str = "none",
    without: Sequence[str] = (),
    degrade: Sequence[str] = (),
    root: int | None = None,
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
    costs: str | Path | Costs = NO_COSTS,
    switch_ops: bool = True,
    begun: float | None = None,
) -> Question:
    """Build a question from the arguments of `synthesize`, without answering it.

    The argument `begun` is the time of `synth.model.deadline.now` from which the budget counts; None stands for now.

    Raises:
        InputError: An argument cannot be right; the message is one line.
    """
    shape_arguments = {"chunks": chunks, "steps": steps, "rounds": rounds}
    shape = {name: None if value is None else whole(value, name) for name, value in shape_arguments.items()}
    budget_s = as_seconds(budget, "budget")
    size = None if size is None else _size(size, "size")
    begun = now() if begun is None else begun
    options = Options(
        size, **shape, engine=as_text(engine, "engine"), budget_s=budget_s, seed=whole(seed, "seed"), begun=begun
    )
    options.check()
    root = None if root is None else whole(root, "root")
    engines_named(engine)  # Raise for an unknown engine.
    if not isinstance(collective, Collective):
        as_text(collective, "collective")
    if is_graph(topo):
        topo = from_networkx(topo)
    if not isinstance(topo, Topology | Path):
        as_text(topo, "topo")
    healthy = apply_costs(topo if isinstance(topo, Topology) else load(topo), costs)
    check_budget(healthy, 0, budget_s)
    without, degrade = as_texts(without, "without"), as_texts(degrade, "degrade")
    if not as_flag(switch_ops, "switch_ops"):
        healthy = without_switch_ops(healthy)
    topology = apply_faults(healthy, without, degrade)
    group = None if group is None else _ranks(group, "group", healthy)
    relay = relay if isinstance(relay, str) and relay in ("none", "all") else _ranks(relay, "relay", healthy)
    dead = dead_ranks(healthy, without)
    members = list(live_ranks(healthy, dead, group, "group"))
    outsiders = relay_ranks(healthy, dead, relay, members)

    def stated(variant: Topology) -> Problem:
        """Return the problem on a topology, or its quotient where nothing that a quotient cannot express is pinned."""
        plain = isinstance(collective, str) and (steps, rounds, root) == (None, None, None)
        plain = plain and not variant.protocol  # A bound covers only one protocol of a quotient.
        quotient = (
            quotient_question(variant, parse_name(str(collective)), members, outsiders, chunks) if plain else None
        )
        return quotient or make_problem(variant, collective, members, outsiders, root=root)

    problem = stated(topology)
    if chunks is not None:
        problem.with_chunks(chunks)  # Raise for an impossible number of chunks.
    sms = None if sms is None else whole(sms, "sms")
    if sms is not None and sms < 1:
        raise InputError(f"sms {sms}: is not possible; it must be 1 or more")
    scratch_limit = None if scratch_limit is None else _size(scratch_limit, "scratch_limit")
    settings = TargetSettings(as_text(target, "target"), sms, as_flag(groups_overlap, "groups_overlap"), scratch_limit)
    hurt = topology is not healthy
    # Raise if the target cannot express the question.
    executor = executor_for(problem, settings)
    unsaid = ""
    if topology.switch_ops and (figures := figures_of(topology)) is not None and figures.switch_ops is None:
        unsaid = "the costs do not cover multicast and reduction in switches (--costs none allows them)"
    if problem.network.hyperlinks is not None and executor is not None and not executor.target.switch_ops:
        able = " or ".join([*(name for name, executor_target in TARGETS.items() if executor_target.switch_ops), NONE])
        missing = f"multicast and reduction in switches (--target {able} allows them)"
        unsaid = f"{executor.target.name}'s files cannot express {missing}"
        healthy = without_switch_ops(healthy)
        problem = stated(without_switch_ops(topology))
    if unsaid and engine == "switch":
        raise InputError(f"--engine switch: {unsaid}")
    healthy_problem = stated(healthy) if hurt else None
    return Question(problem, options, healthy_problem, settings, unsaid)


def find_answer(question: Question, workers: Workers, progress: Report | None = None) -> SearchResult:
    """Find the answer; with dead or slow parts also the answer on the healthy network, to state what they cost.

    The healthy network's search gets a third of the budget. It is left out where no time remains for an answer.
    """

    def searched(problem: Problem, options: Options) -> SearchResult:
        """Run the search of one problem with its executor, over all protocols where the topology has several."""
        executor = executor_for(problem, question.settings, question.options.size)
        search_function = search_protocols if problem.protocols else search
        result = search_function(problem, options, workers, progress, executor=executor)
        result.unsaid = question.unsaid
        return result

    options = question.options
    if question.healthy is None:
        return searched(question.problem, options)
    result = searched(question.problem, dataclasses.replace(options, budget_s=_HURT_SHARE * options.budget_s))
    if result.ended != "interrupted":
        try:
            result.healthy = searched(question.healthy, options)
            result.ended = "interrupted" if result.healthy.ended == "interrupted" else result.ended
        except KeyboardInterrupt:  # The cost of dead and slow parts remains unknown.
            result.ended = "interrupted"
        except InputError:  # No time is left, and the cost remains unknown.
            result.ended = result.ended or "budget"
    return result


def synthesize(
    collective: str | Collective,
    topo: str | Path | Topology,
    group: Sequence[int] | None = None,
    *,
    progress: Report | None = None,
    workers: Workers | None = None,
    **options: Any,
) -> Synthesis:
    """Find the best algorithms of a collective on a topology.

    Args:
        collective: A name (torch's spellings too) or a Collective.
        topo: A machine, a family, a file, a Topology, or a graph of networkx (see `topologies.graphs`).
        group: Ranks that take part, in order, or text as on the command line (`0,2,4-7`); None for all ranks.
        progress: Function that is called with a text on the current attempt and with the best algorithm so far.
        workers: Running solver processes to use instead of new ones.
        **options: Further options, by keyword:

            - relay: Ranks outside the group that may forward: "none", "all" or ranks.
            - without, degrade: Dead and slow parts (see `topologies.faults.apply`); the answer then also has the
              healthy network's.
            - root: Rank of the root of a rooted collective; the group's first rank when None.
            - size: Bytes, or text such as `64K`; with it the answer is the one best algorithm, without it the frontier
              over all sizes.
            - chunks, steps, rounds: The pinned shape in the k-synchronous model.
            - engine: A name that `--engine` takes.
            - budget: Seconds, or text such as `5m`.
            - seed: Seed of the solvers.
            - target: The executor whose programs are the answer (a key of `emit.targets.TARGETS`; auto: the first that
              can express the question); none: schedules.
            - sms: Threadblocks that a rank's program may have. None stands for the SMs of its device without
              `emit.targets.RESERVED_SMS`, and for any number where the topology does not state them.
            - groups_overlap: Whether ranks are in several groups at a time, which MSCCL++'s packets (LL) do not
              support.
            - scratch_limit: Bytes of scratch memory a rank that the executor may allocate before it serves a call;
              `emit.targets.SCRATCH_LIMIT` when None.
            - costs: The executor's costs: those that the machine states ("machine"), those of a file's [costs], or
              Costs; "none" stands for α and bandwidth only.
            - switch_ops: Whether switches may multicast and reduce. They do so only where the topology has such
              switches, the target can express it, and the costs, if they are on, include it.

    Raises:
        InputError: An argument cannot be right; the message is one line.
    """
    names = list(inspect.signature(make_question).parameters)[3:-1]
    for name in options:
        if name not in names:
            raise InputError(
                f"{name}: is no option; {did_you_mean(name, names) or 'it must be one of ' + ', '.join(names)}"
            )
    if progress is not None and not callable(progress):
        raise InputError(
            f"progress: a {type(progress).__name__} cannot be called; it must be a function of two arguments"
        )
    if not isinstance(workers, Workers | None):
        raise InputError(f"workers: a {type(workers).__name__} is none; it must be synth.solvers.workers.Workers()")
    question = make_question(collective, topo, group, **options)
    if workers is not None:
        return Synthesis(find_answer(question, workers, progress), question.settings)
    with Workers(processes(question.options.engine)) as own_workers:
        return Synthesis(find_answer(question, own_workers, progress), question.settings)


def _size(value: Any, argument: str) -> int:
    """Return the bytes of a size that is a number or text; raise InputError with the argument's name if wrong."""
    return parse_size(value if isinstance(value, str) else str(whole(value, argument)), argument)


def _ranks(value: Any, argument: str, topology: Topology) -> tuple[int, ...]:
    """Return the ranks of a list, or of text such as `0,2,4-7`; raise InputError with the argument's name if wrong."""
    if isinstance(value, str):
        return parse_ranks(value, argument, topology.nranks)
    return whole_numbers(value, argument)
