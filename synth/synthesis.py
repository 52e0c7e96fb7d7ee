"""The Python face of the product: ask, look, save. Like the command line it sees all rooms; nothing imports it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from emit.library.programs import NONE, executor_for
from emit.library.save import save
from emit.targets import TARGETS
from synth.engines.flow.quotients import quotient_question
from synth.engines.registry import chosen, processes
from synth.engines.request import Options
from synth.model.collective import Collective
from synth.model.deadline import now
from synth.model.numbers import as_flag, as_folder, as_seconds, as_text, as_texts, whole, whole_numbers
from synth.model.problem import Problem, make_problem, parse_ranks
from synth.model.registry import parse_name
from synth.model.schedule import Schedule
from synth.model.sizes import parse_size
from synth.present.statement import statement
from synth.present.table import table
from synth.search.budget import check_budget
from synth.search.protocols import search_protocols
from synth.search.result import Report, SearchResult
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.costed import figures_of
from topologies.costs import Costs
from topologies.errors import InputError, did_you_mean
from topologies.faults.apply import degraded
from topologies.faults.notation import dead_ranks, live_ranks, relay_ranks
from topologies.graphs import from_networkx, is_graph
from topologies.load import NO_COSTS, load, put_costs
from topologies.topology import Topology, without_switch_ops


@dataclass(eq=False)
class Synthesis:
    """The answer to a question: algorithms by size, each replayed and right, with bounds.

    found: what was found, with the times of schedules or of a target's programs; once saved those of what was written.
    """

    found: SearchResult
    sms: int | None = None  # as it was asked for
    groups_overlap: bool = False  # likewise
    scratch_limit: int | None = None  # likewise

    def __post_init__(self) -> None:
        self._searched = self.found  # of which each target's files are made

    @property
    def algorithms(self) -> list[dict[str, Any]]:
        """One object an algorithm, as documented at `statement.row`."""
        return list(statement(self.found)["algorithms"])

    @property
    def gap(self) -> float:
        """The largest time / bound over the algorithms, each at the size it is shown for."""
        return max(float(row["gap"]) for row in self.algorithms)

    def algorithm(self, size_bytes: int | str) -> Algorithm:
        """The algorithm that serves a message size, as bytes or `64K`. Raises InputError where that is no size."""
        return self.found.fastest(_size(size_bytes, "size_bytes")).algorithm

    def schedule(self, size_bytes: int | str) -> Schedule:
        """Its schedule, with the times of messages of this size."""
        size = _size(size_bytes, "size_bytes")
        return self.algorithm(size).timed(size)

    def table(self) -> str:
        """What the command line prints."""
        return table(statement(self.found), self.found.problem.topology.nranks)

    def save(
        self, folder: str | Path, target: str = "auto", *, proof: bool = False, replace: bool = False
    ) -> list[Path]:
        """Write the files, as `emit.library.save` does; InputError where the target or the folder cannot take them.

        replace: what the library has for the question gives way, also where it is faster. From then on the answer is
        what was written: what there was no time to lower is lowered now, and has the times of its program.
        """
        folder, target = as_folder(folder, "folder"), as_text(target, "target")
        proof, replace = as_flag(proof, "proof"), as_flag(replace, "replace")
        # what the target cannot express is said before anything is written
        executor_for(self.found.problem, target, self.sms, self.groups_overlap, self.scratch_limit)
        written = save(
            self._searched,
            folder,
            target,
            sms=self.sms,
            groups_overlap=self.groups_overlap,
            scratch_limit=self.scratch_limit,
            proof=proof,
            anew=replace,
        )
        self.found = written.found
        if written.refused and target != "auto":
            raise InputError(written.refused)
        return written.paths


_HURT_SHARE = 2 / 3  # of the budget, before the healthy network is looked at


class Question(NamedTuple):
    """A problem (one chunk a block), what is pinned, and the same problem on the healthy network, if it is hurt."""

    problem: Problem
    options: Options
    healthy: Problem | None = None
    target: str = NONE
    sms: int | None = None
    groups_overlap: bool = False
    scratch_limit: int | None = None
    unsaid: str = ""  # why the problem's switches only forward though the topology's can do more


def ask(
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
    """State a question without answering it; arguments and errors as those of `synthesize`.

    begun: of `synth.model.deadline.now`, since when the budget counts; None: since now.
    """
    pinned = {"chunks": chunks, "steps": steps, "rounds": rounds}
    shape = {name: None if value is None else whole(value, name) for name, value in pinned.items()}
    budget_s = as_seconds(budget, "budget")
    size = None if size is None else _size(size, "size")
    begun = now() if begun is None else begun
    options = Options(
        size, **shape, engine=as_text(engine, "engine"), budget_s=budget_s, seed=whole(seed, "seed"), begun=begun
    )
    options.check()
    root = None if root is None else whole(root, "root")
    chosen(engine)  # whether there is such an engine is said now
    if not isinstance(collective, Collective):
        as_text(collective, "collective")
    if is_graph(topo):
        topo = from_networkx(topo)
    if not isinstance(topo, Topology | Path):
        as_text(topo, "topo")
    healthy = put_costs(topo if isinstance(topo, Topology) else load(topo), costs)
    check_budget(healthy, 0, budget_s)
    without, degrade = as_texts(without, "without"), as_texts(degrade, "degrade")
    if not as_flag(switch_ops, "switch_ops"):
        healthy = without_switch_ops(healthy)
    topology = degraded(healthy, without, degrade)
    group = None if group is None else _ranks(group, "group", healthy)
    relay = relay if isinstance(relay, str) and relay in ("none", "all") else _ranks(relay, "relay", healthy)
    dead = dead_ranks(healthy, without)
    members = list(live_ranks(healthy, dead, group, "group"))
    outsiders = relay_ranks(healthy, dead, relay, members)

    def stated(where: Topology) -> Problem:
        plain = isinstance(collective, str) and (steps, rounds, root) == (None, None, None)
        plain = plain and not where.protocol  # of a quotient's protocols there is no one bound
        small = quotient_question(where, parse_name(str(collective)), members, outsiders, chunks) if plain else None
        return small or make_problem(where, collective, members, outsiders, root=root)

    problem = stated(topology)
    if chunks is not None:
        problem.with_chunks(chunks)  # whether so many are possible is said now
    sms = None if sms is None else whole(sms, "sms")
    if sms is not None and sms < 1:
        raise InputError(f"sms {sms}: is not possible; it must be 1 or more")
    scratch_limit = None if scratch_limit is None else _size(scratch_limit, "scratch_limit")
    groups_overlap = as_flag(groups_overlap, "groups_overlap")
    target = as_text(target, "target")
    hurt = topology is not healthy
    # whether it can express the question is said now
    executor = executor_for(problem, target, sms, groups_overlap, scratch_limit)
    unsaid = ""
    if topology.switch_ops and (figures := figures_of(topology)) is not None and figures.switch_ops is None:
        unsaid = "no costs of what switches multicast and reduce are stated (with it: --costs none)"
    if problem.network.hyperlinks is not None and executor is not None and not executor.target.switch_ops:
        able = " or ".join([*(name for name, one in TARGETS.items() if one.switch_ops), NONE])
        what = f"what switches multicast and reduce (with it: --target {able})"
        unsaid = f"{executor.target.name}'s files cannot say {what}"
        healthy = without_switch_ops(healthy)
        problem = stated(without_switch_ops(topology))
    if unsaid and engine == "switch":
        raise InputError(f"--engine switch: {unsaid}")
    sick = stated(healthy) if hurt else None
    return Question(problem, options, sick, target, sms, groups_overlap, scratch_limit, unsaid)


def answered(question: Question, workers: Workers, progress: Report | None = None) -> SearchResult:
    """Search, and for a network with dead or slow parts also the healthy one, to say what they cost.

    That one has a third of the budget; it is left out where no time is left for an answer.
    """

    def searched(problem: Problem, options: Options) -> SearchResult:
        q = question
        executor = executor_for(problem, q.target, q.sms, q.groups_overlap, q.scratch_limit, size=q.options.size)
        by = search_protocols if problem.protocols else search
        found = by(problem, options, workers, progress, executor=executor)
        found.unsaid = q.unsaid
        return found

    options = question.options
    if question.healthy is None:
        return searched(question.problem, options)
    found = searched(question.problem, replace(options, budget_s=_HURT_SHARE * options.budget_s))
    if found.ended != "interrupted":
        try:
            found.healthy = searched(question.healthy, options)
            found.ended = "interrupted" if found.healthy.ended == "interrupted" else found.ended
        except KeyboardInterrupt:  # before there was anything; what dead and slow parts cost is not known then
            found.ended = "interrupted"
        except InputError:  # no time; likewise
            found.ended = found.ended or "budget"
    return found


def synthesize(
    collective: str | Collective,
    topo: str | Path | Topology,
    group: Sequence[int] | None = None,
    *,
    progress: Report | None = None,
    workers: Workers | None = None,
    **options: Any,
) -> Synthesis:
    """Search for algorithms. Raises InputError for anything that cannot be, in one line.

    Args:
        collective: a name (torch's spellings too) or a Collective.
        topo: a machine, a family, a file, a Topology, or a graph of networkx (see `topologies.graphs`).
        group: ranks that take part, in order, or text as on the command line (`0,2,4-7`); all when None.
        progress: called with what is tried and the best so far.
        workers: solver processes to use again.
        options: relay: outsiders that may forward, "none", "all" or ranks. without, degrade: dead and slow parts (see
            `topologies.faults.apply`); the answer then also has the healthy network's. root: rank of the root for
            rooted collectives; the group's first when None. size: bytes, or `64K`; with it the one best algorithm,
            without it the frontier over all sizes. chunks, steps, rounds: pin the shape (k-synchronous model).
            engine: a name that `--engine` takes. budget: seconds, or `5m`. seed: of the solvers.
            target: the executor whose programs the answer is made of (a key of `emit.targets.TARGETS`; auto: the first
            that can express it); none: schedules. sms: threadblocks that a rank's program may have; the SMs of its
            device but for `emit.targets.RESERVED_SMS` when None, any number where the topology does not state them.
            groups_overlap: ranks are in several groups at a time, which MSCCL++'s packets (LL) do not bear.
            scratch_limit: bytes of scratch a rank that the executor may allocate before it serves anything;
            `emit.targets.SCRATCH_LIMIT` when None. costs: of an executor: those that the machine states ("machine"), of
            a file's [costs], or Costs; "none": α and bandwidth alone. switch_ops: whether switches may multicast and
            reduce where the topology says that they can, the target can say it, and costs that are on say what it
            costs.
    """
    known = list(inspect.signature(ask).parameters)[3:-1]
    for name in options:
        if name not in known:
            raise InputError(
                f"{name}: is no option; {did_you_mean(name, known) or 'it must be one of ' + ', '.join(known)}"
            )
    if progress is not None and not callable(progress):
        raise InputError(
            f"progress: a {type(progress).__name__} cannot be called; it must be a function of two arguments"
        )
    if not isinstance(workers, Workers | None):
        raise InputError(f"workers: a {type(workers).__name__} is none; it must be synth.solvers.workers.Workers()")
    question = ask(collective, topo, group, **options)
    if workers is not None:
        return Synthesis(
            answered(question, workers, progress), question.sms, question.groups_overlap, question.scratch_limit
        )
    with Workers(processes(question.options.engine)) as own:
        return Synthesis(
            answered(question, own, progress), question.sms, question.groups_overlap, question.scratch_limit
        )


def _size(value: Any, what: str) -> int:
    """Bytes of a size as a number or as text."""
    return parse_size(value if isinstance(value, str) else str(whole(value, what)), what)


def _ranks(value: Any, what: str, topology: Topology) -> tuple[int, ...]:
    """Ranks of a list, or of text such as `0,2,4-7`."""
    if isinstance(value, str):
        return parse_ranks(value, what, topology.nranks)
    return whole_numbers(value, what)
