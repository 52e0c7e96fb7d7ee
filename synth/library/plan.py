"""What a build has to do: the questions of a cluster, and the distinct problems among them under symmetry.

Groups whose networks are the same, rank by rank, share files. Groups whose networks are the same in another order of
their ranks share the search: its schedules are relabelled, replayed and lowered for each order. A problem is solved in
an order that follows from its network (`synth.symmetry.canonical`), so that its answer does not depend on which of its
groups came first, and is known again in another cluster.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from emit.targets import TARGETS
from synth.baselines.nccl.communicator import communicator
from synth.library.cluster import Cluster, Group
from synth.library.task import Task
from synth.model.problem import make_problem
from synth.model.registry import AHEAD, KINDS, NEXT, ROOT
from synth.storage.cache import engines_version
from synth.symmetry.canonical import canonical_order, network_form
from topologies.costed import protocols_of
from topologies.costs import ANY
from topologies.errors import InputError, NotModelled
from topologies.network import Network, network
from topologies.topology import Topology, without_switch_ops

WORKS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0)  # budget classes: seconds of work that engines count
_USED = 0.8  # of the budget, by what it is estimated
_LIMIT = 10.0  # times its estimate, after which the clock ends a problem
_LEAST_LIMIT_S = 60.0
# What a problem takes, as measured on one core of a server of 2020: seconds, and bytes of a process
_STARTED_S, _SEARCHED, _LINKED_S, _FILED_S, _RELABELLED = 0.5, 3.0, 2e-4, 4e-3, 0.5
_PROCESS_BYTES, _LINK_BYTES = 240 << 20, 110_000  # the latter: all targets, 128 ranks


# what questions with the same files have: collective, network, the root's place, targets
Same = tuple[str, bytes, int | None, tuple[str, ...]]


@dataclass(frozen=True)
class Question:
    """A collective of one group; root: a rank of it, None where the collective has none."""

    collective: str
    group: tuple[int, ...]
    root: int | None = None


@dataclass(eq=False)
class Share:
    """Questions that the same files answer, the first of them in whose name they stand.

    Attributes:
        questions: of one collective, their networks the same rank by rank.
        task: what makes the files: the search itself, or the relabelling of what `source` found.
        source: the search of which this is a relabelling; None: it is the search.
    """

    questions: list[Question]
    task: Task
    source: Task | None = None

    @property
    def first(self) -> Question:
        """In whose name the files stand."""
        return self.questions[0]


@dataclass(eq=False)
class Plan:
    """All shares of a cluster, and the distinct searches; `cores`: processes that there are.

    `impossible`: questions that have no answer, and why.
    """

    cluster: Cluster
    shares: list[Share]
    cores: int
    impossible: list[tuple[Question, str]] = field(default_factory=list)

    @cached_property
    def searches(self) -> list[Task]:
        """Each distinct problem once."""
        tasks = (share.source or share.task for share in self.shares)
        return list({task.key: task for task in tasks}.values())

    @property
    def questions(self) -> int:
        """How many there are; one counts once where targets that can say what switches do have their own answer."""
        return len({one for share in self.shares for one in share.questions}) + len(self.impossible)

    def tasks(self) -> Iterator[Task]:
        """All that is to be done, searches before what is relabelled."""
        yield from self.searches
        yield from (share.task for share in self.shares if share.source is not None)

    def seconds(self, done: set[str] = frozenset()) -> float:  # type: ignore[assignment]
        """What is estimated for all tasks but those done (keys), on all cores."""
        return sum(estimated_s(task) for task in self.tasks() if task.key not in done) / self.cores

    def memory_bytes(self) -> float:
        """What is estimated for the largest tasks at once, and for who hands them out."""
        each = sorted((_PROCESS_BYTES + _LINK_BYTES * len(t.group) ** 2 for t in self.searches), reverse=True)
        return _PROCESS_BYTES + sum(each[: self.cores])


def estimated_s(task: Task) -> float:
    """Seconds of one core that a task is estimated to take."""
    pairs, kind = (len(task.group) + len(task.relays)) ** 2, KINDS[task.collective]
    whole = 2.0 if kind.in_shares or ROOT in (kind.before, kind.after) else 1.0
    filed_s = _FILED_S * max(1, len(task.targets)) * pairs * 8 * whole if len(task.group) <= 64 else 0.0
    if task.order:
        return _STARTED_S + _RELABELLED * filed_s
    return _STARTED_S + _SEARCHED * whole * task.work_s + _LINKED_S * pairs * 8 * whole + filed_s


def make_plan(cluster: Cluster, cores: int, work_s: float | None = None) -> Plan:
    """Find the distinct problems of a cluster, and how long each may take so that all fit its budget.

    work_s: the budget class in place of that.

    Raises InputError where no question has an answer.
    """
    plan = _planned(cluster, cores)
    if not plan.shares:
        question, why = plan.impossible[0]
        raise InputError(f"groups: no question has an answer; {question.collective}: {why}")
    if work_s is not None:
        return _with_work(plan, work_s)
    distinct = {id(t): t for s in plan.shares for t in (s.source, s.task) if t is not None}.values()
    for one_s in reversed(WORKS_S):
        whole_s = sum(estimated_s(replace(task, work_s=one_s)) for task in distinct) / cores
        if whole_s <= _USED * cluster.budget_s:
            break
    return _with_work(plan, one_s)


def _planned(cluster: Cluster, cores: int) -> Plan:
    """The plan without budget and keys.

    Where switches' operations are asked for, groups that have some get answers of two networks: with them, for the
    targets whose files can say them, and without, for the others.
    """
    plain = without_switch_ops(cluster.topology)
    if not cluster.switch_ops:
        return _Planner(cluster, plain, dict.fromkeys(cluster.groups, cluster.targets)).plan(cores)
    able = tuple(name for name in cluster.targets if TARGETS[name].switch_ops)
    others = tuple(name for name in cluster.targets if name not in able)
    within = {one for one in cluster.groups if _network(cluster.topology, cluster, one.ranks).hyperlinks is not None}
    rest = {one: others if one in within else cluster.targets for one in cluster.groups}
    if not others:
        rest = {one: targets for one, targets in rest.items() if one not in within}
    first = _Planner(cluster, cluster.topology, {one: able for one in cluster.groups if one in within}).plan(cores)
    second = _Planner(cluster, plain, rest).plan(cores)
    impossible = dict([*second.impossible, *first.impossible])
    return Plan(cluster, [*first.shares, *second.shares], cores, list(impossible.items()))


def _network(topology: Topology, cluster: Cluster, group: tuple[int, ...]) -> Network:
    """Of a group and its relays."""
    return network(topology, (*group, *cluster.relays_of(group)), len(group))


def _with_work(plan: Plan, work_s: float) -> Plan:
    """The same plan with tasks of a budget class, and their keys."""
    made: dict[int, Task] = {}
    forms: dict[tuple[int, ...], str] = {}

    def timed(task: Task) -> Task:
        if id(task) not in made:
            one = replace(task, work_s=work_s)
            limit_s = max(_LEAST_LIMIT_S, _LIMIT * estimated_s(one))
            if task.group not in forms:
                forms[task.group] = _form(task.topology, task.group, task.relays).hex()
            made[id(task)] = replace(one, limit_s=limit_s, key=task_key(one, forms[task.group]))
        return made[id(task)]

    shares = []
    for share in plan.shares:
        source = None if share.source is None else timed(share.source)
        shares.append(Share(share.questions, timed(share.task), source))
    return Plan(plan.cluster, shares, plan.cores, plan.impossible)


def task_key(task: Task, form: str) -> str:
    """What tells a task's answer from others: the problem, not the names of its ranks, and how it is answered.

    form: of its network, in hexadecimal.
    """
    about = {
        "network": form,
        "collective": task.collective,
        "root": None if task.root is None else task.group.index(task.root),
        "order": task.order,
        "relays": len(task.relays),
        "costs": repr(task.topology.costs) if task.topology.protocol else "",
        "sizes": [task.low, task.high],
        "targets": task.targets,
        "device": [task.topology.sms, task.topology.compute_capability, bool(task.topology.link_kind.any())],
        "seed": task.seed,
        "work_s": task.work_s,
        "engines": engines_version(),
    }
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:40]


def _form(topology: Topology, group: tuple[int, ...], relays: tuple[int, ...] = ()) -> bytes:
    """Of all that answers of a group follow from but names: its network, and what libraries' models see of it.

    With costs on, of the networks of all their protocols.
    """
    ranks = (*group, *relays)
    names = protocols_of(topology) if topology.protocol == ANY else [topology.protocol]
    each = [network(replace(topology, protocol=name), ranks, len(group)) for name in names]
    forms = [network_form(net, topology.nodes[list(ranks)]) for net in each]
    try:
        seen = repr(communicator(topology, group))
    except NotModelled:
        seen = ""
    # what else has a model goes by nodes, which the kinds of all links say
    kinds = topology.link_kind.tobytes() if not seen and (topology.gcn or topology.compute_capability) else b""
    return hashlib.sha256(repr([*zip(names, forms, strict=True), seen, topology.gcn, kinds]).encode()).digest()


def _why_apart(topology: Topology, ranks: tuple[int, ...], relays: tuple[int, ...]) -> str:
    """Why ranks cannot reach each other among themselves and relays; empty where they can."""
    try:
        make_problem(topology, "broadcast", ranks, relays)
        make_problem(topology, "reduce", ranks, relays)
    except InputError as error:
        return str(error)
    return ""


class _Planner:
    """Groups by the form of their network, in their own order and in a canonical one.

    topology: with or without what its switches do. asked: the groups, and the targets that each is answered for.
    """

    def __init__(self, cluster: Cluster, topology: Topology, asked: Mapping[Group, tuple[str, ...]]) -> None:
        self.cluster, self.topology = cluster, topology
        self.targets_of = {one.ranks: targets for one, targets in asked.items()}
        self.form_of: dict[tuple[int, ...], bytes] = {}
        self.order_of: dict[tuple[bytes, int | None], tuple[int, ...]] = {}
        self.refused: dict[bytes, str] = {}  # why ranks cannot reach each other, empty where they can
        for group in self.targets_of:
            relays = cluster.relays_of(group)
            form = self.form_of[group] = _form(self.topology, group, relays)
            if form not in self.refused:
                self.refused[form] = _why_apart(self.topology, group, relays)

    def plan(self, cores: int) -> Plan:
        """The plan, its tasks without keys yet."""
        shares: dict[Same, Share] = {}
        every: list[Share] = []
        sources: dict[Same, Task] = {}
        impossible: list[tuple[Question, str]] = []
        for name in self.cluster.collectives:
            for group in self.targets_of:
                for root in self._roots(name, group):
                    question = Question(name, group, root)
                    if self.refused[self.form_of[group]]:
                        impossible.append((question, self.refused[self.form_of[group]]))
                        continue
                    place = None if root is None else group.index(root)
                    what = name, self.form_of[group], place, self.targets_of[group]
                    if what in shares and not shares[what].task.relays:  # whose files are for one group each
                        shares[what].questions.append(question)
                    else:
                        every.append(self._share(question, place, sources))
                        shares[what] = every[-1]
        return Plan(self.cluster, every, cores, impossible)

    def _roots(self, name: str, group: tuple[int, ...]) -> Sequence[int | None]:
        if not KINDS[name].rooted:
            return (None,)
        return group if self.cluster.all_roots else group[:1]

    def _share(self, question: Question, place: int | None, sources: dict[Same, Task]) -> Share:
        group, kind = question.group, KINDS[question.collective]
        order = tuple(range(len(group)))
        # of those the order of ranks says what is asked; schedules are relabelled for one protocol, and no relays
        asked_so = {kind.before, kind.after} & {NEXT, AHEAD}
        if not (asked_so or self.topology.protocol or self.cluster.relays_of(group)):
            order = self._order(group, place)
        ranks, targets = tuple(group[i] for i in order), self.targets_of[group]
        task = self._task(question, ranks)
        if ranks == group:
            sources.setdefault((question.collective, self.form_of[group], place, targets), task)
            return Share([question], task)
        solved = None if place is None else 0
        source = sources.setdefault((question.collective, _form(self.topology, ranks), solved, targets), task)
        there = index_of(ranks)
        return Share([question], self._task(question, group, tuple(there[rank] for rank in group)), source)

    def _task(self, question: Question, ranks: tuple[int, ...], order: tuple[int, ...] = ()) -> Task:
        c, targets = self.cluster, self.targets_of[question.group]
        return Task(
            "", self.topology, question.collective, ranks, question.root, c.low, c.high, targets, c.seed, 0.0, 0.0,
            None, order, c.relays_of(ranks),
        )  # fmt: skip

    def _order(self, group: tuple[int, ...], place: int | None) -> tuple[int, ...]:
        known = self.form_of[group], place
        if known not in self.order_of:
            net, nodes = network(self.topology, group), self.topology.nodes[list(group)]
            self.order_of[known] = tuple(canonical_order(net, nodes, place).tolist())
        return self.order_of[known]


def index_of(ranks: Sequence[int]) -> dict[int, int]:
    """Where each rank stands."""
    return {rank: place for place, rank in enumerate(ranks)}
