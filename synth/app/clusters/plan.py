"""The plan of a build: the questions of a cluster, and the distinct problems among them under symmetry.

Groups whose networks are the same, rank by rank, share files. Groups whose networks are the same in another order of
their ranks share the search: its schedules are relabelled, replayed and lowered for each order. A problem is solved in
an order that follows from its network (`synth.symmetry.canonical`). So its answer does not depend on which of its
groups came first, and the cache has it for other clusters too.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from emit.targets import TARGETS
from synth.app.clusters.cluster import Cluster, ClusterGroup, targets_of
from synth.app.clusters.processes import processors
from synth.app.clusters.task import FEW_RANKS, Task
from synth.baselines.nccl.communicator import communicator
from synth.model.problem import make_problem
from synth.model.registry import AHEAD, COLLECTIVE_KINDS, EVERY, NEXT, ROOT
from synth.storage.cache import engines_version
from synth.symmetry.canonical import canonical_order, network_form
from topologies.costed import protocols_of, with_protocols
from topologies.costs import ANY
from topologies.errors import InputError, NotModelled
from topologies.network import Network, network
from topologies.topology import Topology, without_switch_ops

WORKS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0)  # budget classes: seconds of work that engines count
_USED = 0.6  # part of the budget that the estimates may fill, so that most problems end before they must hurry
_LIMIT = 30.0  # multiple of its estimate after which the clock ends a problem, also beside other load
_LEAST_LIMIT_S = 60.0
# Seconds on one core of a server of 2020, as measured at the smallest budget class, for one protocol. `Whole` means
# all-reduce, its like, broadcast and reduce. They are factor · ranks ** exponent, and some for each rank. Ranks with
# the same link between every two of them take less, as their schedules are short.
_WHOLE_S, _WHOLE_RANKS, _WHOLE_RANK_S, _RANK_S = 0.05, 1.7, 0.18, 0.15
_UNIFORM_WHOLE_S, _UNIFORM_S, _UNIFORM_RANKS = 0.025, 0.012, 2.0
_WITHOUT_COSTS, _COMPLETE = 0.45, 0.35  # The part of this without costs, and where links join every two ranks.
_ONE_SIZE = 0.4  # The part of this for one message size.
_SEARCH = 0.15  # The part of this without any file; each target adds the rest.
# Exponents of the budget class, since larger ones lower more sends: of ranks in one node, and of others with more ranks
# than are always lowered in full.
_GROWTH, _GROWTH_WITHOUT_COSTS, _GROWTH_OF_MANY = 0.25, 0.15, 0.55
_UNEQUAL_NODES = 1.6  # The time over this if nodes have unequal numbers of ranks, which are no images of each other.
_WHOLE_WORK, _WORK = 1.6, 0.5  # The part of the counted work that problems use on average.
_STARTED_S, _LINKED_S, _RELABELLED = 0.1, 1e-4, 0.5
_BEGUN_S = 1.5  # The command itself and the start of its processes.
COMPILING_S = 30.0  # About the most that compiling loops adds where none are on disk.
_MOST_UNIFORM = 1024  # vertices of a topology up to which a look at a group's links takes milliseconds
_PROCESS_BYTES, _LINK_BYTES = 240 << 20, 110_000  # The second is per pair of ranks, with all targets and 128 ranks.


# Questions with the same files agree in collective, network, the root's place and targets.
Same = tuple[str, bytes, int | None, tuple[str, ...]]


@dataclass(frozen=True)
class BuildQuestion:
    """A collective of one group.

    Attributes:
        collective: Name of the collective.
        group: Ranks of the topology, in order.
        root: A rank of the group; None if the collective has no root.
    """

    collective: str
    group: tuple[int, ...]
    root: int | None = None


@dataclass(eq=False)
class BuildShare:
    """Questions that the same files answer; the files have the name of the first question.

    Attributes:
        questions: Questions of one collective, whose networks are the same rank by rank.
        task: The task that makes the files: the search itself, or the relabelling of the answer of `source`.
        source: The search whose answer is relabelled; None if the task is the search.
    """

    questions: list[BuildQuestion]
    task: Task
    source: Task | None = None

    @property
    def first(self) -> BuildQuestion:
        """Return the question whose name the files have."""
        return self.questions[0]


@dataclass(eq=False)
class BuildPlan:
    """All shares of a cluster.

    Attributes:
        cluster: The cluster.
        shares: The shares.
        cores: Number of processes that solve tasks.
        impossible: Questions that have no answer, and why.
    """

    cluster: Cluster
    shares: list[BuildShare]
    cores: int
    impossible: list[tuple[BuildQuestion, str]] = field(default_factory=list)

    @cached_property
    def searches(self) -> list[Task]:
        """Return each distinct problem to be searched once, in the order of the shares; computed at the first call.

        Tasks with equal keys are the same problem, so that the plan's tasks must have keys.
        """
        tasks = (share.source or share.task for share in self.shares)
        return list({task.key: task for task in tasks}.values())

    @property
    def questions(self) -> int:
        """Return the number of questions.

        A question counts once even if it has two answers: one for targets that can express operations of switches, and
        one for the others.
        """
        return len({question for share in self.shares for question in share.questions}) + len(self.impossible)

    def tasks(self) -> Iterator[Task]:
        """Yield all tasks: each distinct search once, then the relabelling of each share that has one."""
        yield from self.searches
        yield from (share.task for share in self.shares if share.source is not None)

    def seconds(self, done: set[str] = frozenset()) -> float:  # type: ignore[assignment]
        """Return the estimated seconds of the build on a quiet machine, with compiled loops on disk.

        Args:
            done: Keys of tasks that do not count.
        """
        return spread_s([estimated_s(task) for task in self.tasks() if task.key not in done], self.cores)

    def loaded_seconds(self, load: float, done: set[str] = frozenset()) -> float:  # type: ignore[assignment]
        """Return the estimated seconds of the build beside other processes that go on.

        Args:
            load: Number of other processes that want a core.
            done: Keys of tasks that do not count.
        """
        wanted = load + min(self.cores, len(self.searches))
        return self.seconds(done) * max(1.0, wanted / max(self.cores, processors()))

    def memory_bytes(self) -> float:
        """Return the estimated bytes of the process that hands out tasks and of the `cores` largest searches."""
        task_bytes = sorted(
            (_PROCESS_BYTES + _LINK_BYTES * len(task.group) ** 2 for task in self.searches), reverse=True
        )
        return _PROCESS_BYTES + sum(task_bytes[: self.cores])


def spread_s(seconds: Sequence[float], cores: int) -> float:
    """Return the seconds until all tasks have ended on so many cores, the longest begun first; 0 without tasks.

    Args:
        seconds: Seconds of each task on one core.
        cores: Number of cores.
    """
    if not seconds:
        return 0.0
    free_at_s = [0.0] * min(cores, len(seconds))
    for task_s in sorted(seconds, reverse=True):
        heapq.heapreplace(free_at_s, free_at_s[0] + task_s)
    return _BEGUN_S + max(free_at_s)


def estimated_s(task: Task) -> float:
    """Return the estimated seconds of a task on one core.

    They grow with its `work_s`, ranks, protocols and targets. Where all pairs of ranks have the same link, engines end
    before their work is done, and only broadcasts and reductions to a root get longer programs from more work. For a
    relabelling, which has an `order`, the search does not count.
    """
    ranks, kind = len(task.group) + len(task.relays), COLLECTIVE_KINDS[task.collective]
    is_whole, has_costs = kind.in_shares or {kind.before, kind.after} == {ROOT, EVERY}, task.topology.costs is not None
    is_rooted, is_uniform = ROOT in (kind.before, kind.after), _is_uniform(task.topology, task.group, task.relays)
    work_s = WORKS_S[0] if is_uniform else task.work_s
    class_s: float
    if is_uniform:
        class_s = (_UNIFORM_WHOLE_S if is_whole else _UNIFORM_S) * ranks**_UNIFORM_RANKS
    else:
        class_s = _WHOLE_S * ranks**_WHOLE_RANKS + _WHOLE_RANK_S * ranks if is_whole else _RANK_S * ranks
    class_s *= len(protocols_of(task.topology)) if has_costs else _WITHOUT_COSTS
    class_s *= _COMPLETE if _is_complete(task.topology) else 1.0
    class_s *= _ONE_SIZE if task.low == task.high else 1.0
    if len(set(np.unique(task.topology.nodes[list(task.group)], return_counts=True)[1].tolist())) > 1:
        class_s *= _UNEQUAL_NODES
    growth = _GROWTH_OF_MANY if ranks > FEW_RANKS else _GROWTH
    growth = growth if has_costs else _GROWTH_WITHOUT_COSTS
    class_s *= ((task.work_s if is_rooted else work_s) / WORKS_S[0]) ** growth
    filed_s = (1.0 - _SEARCH) * class_s * len(task.targets)
    if task.order:
        return _STARTED_S + _RELABELLED * filed_s
    worked_s = (_WHOLE_WORK if is_whole else _WORK) * work_s
    linked_s = _LINKED_S * ranks**2 * 8 * (2.0 if is_whole else 1.0)
    return _STARTED_S + _SEARCH * class_s + filed_s + worked_s + linked_s


@lru_cache(maxsize=8)
def _is_complete(topology: Topology) -> bool:
    """Return whether links join every two ranks, without switches; the latest 8 answers are kept."""
    pairs = topology.nranks * (topology.nranks - 1)
    return topology.nvertices == topology.nranks and topology.nlinks >= pairs > 0


@lru_cache(maxsize=4096)
def _is_uniform(topology: Topology, group: tuple[int, ...], relays: tuple[int, ...]) -> bool:
    """Return whether one link joins each ordered pair of ranks, all with the same figures, as through one switch."""
    if relays or topology.nvertices > _MOST_UNIFORM:
        return False
    net = network(topology, group)
    pairs, figures = net.nranks * (net.nranks - 1), (net.alpha_us, net.bandwidth_gbs)
    return net.nlinks == pairs > 0 and all(float(np.ptp(values)) == 0 for values in figures)


def make_plan(cluster: Cluster, cores: int, work_s: float | None = None) -> BuildPlan:
    """Return the plan of a cluster: its distinct problems, and how long each may take so that all fit the budget.

    Args:
        cluster: The cluster.
        cores: Number of processes that solve tasks.
        work_s: The budget class, in seconds of counted work for each problem. None for the largest of `WORKS_S` with
            which the estimate is at most 80 % of the budget, or else the smallest.

    Raises:
        InputError: No question has an answer.
    """
    plan = _plan_without_budget(cluster, cores)
    if not plan.shares:
        question, why = plan.impossible[0]
        raise InputError(f"groups: no question has an answer; {question.collective}: {why}")
    if work_s is not None:
        return _with_work(plan, work_s)
    distinct = {
        id(distinct_task): distinct_task
        for share in plan.shares
        for distinct_task in (share.source, share.task)
        if distinct_task is not None
    }.values()
    for class_s in reversed(WORKS_S):
        whole_s = spread_s([estimated_s(replace(task, work_s=class_s)) for task in distinct], cores)
        if whole_s <= _USED * cluster.budget_s:
            break
    return _with_work(plan, class_s)


def _plan_without_budget(cluster: Cluster, cores: int) -> BuildPlan:
    """Return the plan of a cluster; its tasks have neither budget nor keys yet.

    If operations of switches are asked for, groups that have such switches get answers of two networks: with these
    operations, for the targets whose files can express them, and without, for the other targets.
    """
    plain = without_switch_ops(cluster.topology)
    if not cluster.switch_ops:
        return _Planner(cluster, plain, dict.fromkeys(cluster.groups)).plan(cores)
    switch_groups = {
        group for group in cluster.groups if _network(cluster.topology, cluster, group.ranks).hyperlinks is not None
    }
    switch_plan = _Planner(
        cluster, cluster.topology, {group: True for group in cluster.groups if group in switch_groups}
    ).plan(cores)
    plain_plan = _Planner(
        cluster, plain, {group: False if group in switch_groups else None for group in cluster.groups}
    ).plan(cores)
    impossible = dict([*plain_plan.impossible, *switch_plan.impossible])
    return BuildPlan(cluster, [*switch_plan.shares, *plain_plan.shares], cores, list(impossible.items()))


def _network(topology: Topology, cluster: Cluster, group: tuple[int, ...]) -> Network:
    """Return the network of a group and its relays."""
    return network(topology, (*group, *cluster.relays_of(group)), len(group))


def _with_work(plan: BuildPlan, work_s: float) -> BuildPlan:
    """Return a plan with new tasks: with a budget class, a time limit and their keys.

    Args:
        plan: The plan, which is not changed.
        work_s: The budget class, in seconds of counted work for each task.
    """
    finished: dict[int, Task] = {}
    forms: dict[tuple[Topology, tuple[int, ...]], str] = {}

    def timed(task: Task) -> Task:
        """Return a task with its budget, its time limit and its key; the same object for the same task."""
        if id(task) not in finished:
            budgeted = replace(task, work_s=work_s)
            limit_s = max(_LEAST_LIMIT_S, _LIMIT * estimated_s(budgeted))
            network_key = task.topology, task.group
            if network_key not in forms:
                forms[network_key] = _form(task.topology, task.group, task.relays).hex()
            finished[id(task)] = replace(budgeted, limit_s=limit_s, key=task_key(budgeted, forms[network_key]))
        return finished[id(task)]

    shares = []
    for share in plan.shares:
        source = None if share.source is None else timed(share.source)
        shares.append(BuildShare(share.questions, timed(share.task), source))
    return BuildPlan(plan.cluster, shares, plan.cores, plan.impossible)


def task_key(task: Task, form: str) -> str:
    """Return the key, 40 hexadecimal digits, that tells a task's answer from others.

    It covers the problem, without the names of its ranks, the settings of its search, and the versions of the engines.

    Args:
        task: The task.
        form: Form of the group's network, in hexadecimal.
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


@lru_cache(maxsize=8)
def _form(topology: Topology, group: tuple[int, ...], relays: tuple[int, ...] = ()) -> bytes:
    """Return a digest (32 bytes) of all that a group's answers depend on but names.

    That is the network of the group and its relays, and what the models of vendor libraries use. With costs on, the
    networks of all protocols count. The latest 8 are kept, as a sweep asks for one network at every size.
    """
    ranks = (*group, *relays)
    names = protocols_of(topology) if topology.protocol == ANY else [topology.protocol]
    networks = [network(replace(topology, protocol=name), ranks, len(group)) for name in names]
    forms = [network_form(net, topology.nodes[list(ranks)]) for net in networks]
    try:
        nccl_view = repr(communicator(topology, group))
    except NotModelled:
        nccl_view = ""
    # Other modelled libraries use the nodes, which follow from the kinds of all links.
    kinds = topology.link_kind.tobytes() if not nccl_view and (topology.gcn or topology.compute_capability) else b""
    return hashlib.sha256(repr([*zip(names, forms, strict=True), nccl_view, topology.gcn, kinds]).encode()).digest()


def _why_apart(topology: Topology, ranks: tuple[int, ...], relays: tuple[int, ...]) -> str:
    """Return why ranks cannot reach each other through themselves and relays, in both directions; "" if they can."""
    try:
        make_problem(topology, "broadcast", ranks, relays)
        make_problem(topology, "reduce", ranks, relays)
    except InputError as error:
        return str(error)
    return ""


class _Planner:
    """The planner of a cluster's shares, which knows each group's network in its own order and in a canonical one.

    Attributes:
        topology: The topology, with or without the operations of its switches.
        in_switches: Whether each group is answered for the targets that can express operations of switches (True), for
            the others (False), or for all (None).
        form_of: Digest of each group's network.
        order_of: Canonical order of ranks, by the form of the network and the root's place.
        refused: Why ranks cannot reach each other, by the form of the network; "" if they can.
        topology_of: The topology with the costs of targets, by the names of these.
    """

    def __init__(self, cluster: Cluster, topology: Topology, in_switches: Mapping[ClusterGroup, bool | None]) -> None:
        self.cluster, self.topology = cluster, topology
        self.in_switches = {group_key.ranks: wanted for group_key, wanted in in_switches.items()}
        self.form_of: dict[tuple[int, ...], bytes] = {}
        self.order_of: dict[tuple[bytes, int | None], tuple[int, ...]] = {}
        self.refused: dict[bytes, str] = {}
        self.topology_of: dict[tuple[str, ...], Topology] = {}
        for group in self.in_switches:
            relays = cluster.relays_of(group)
            form = self.form_of[group] = _form(self.topology, group, relays)
            if form not in self.refused:
                self.refused[form] = _why_apart(self.topology, group, relays)

    def plan(self, cores: int) -> BuildPlan:
        """Return the plan of all collectives and groups; its tasks have neither budget nor keys yet.

        Groups with the same network share files, unless they have relays. Groups whose ranks cannot reach each other
        are `impossible`. A collective that has no answer for a group's targets is left out.

        Args:
            cores: Number of processes that solve tasks.
        """
        shares: dict[Same, BuildShare] = {}
        all_shares: list[BuildShare] = []
        sources: dict[Same, Task] = {}
        impossible: list[tuple[BuildQuestion, str]] = []
        for name in self.cluster.collectives:
            for group in self.in_switches:
                if (targets := self._targets(name, group)) is None:
                    continue
                for root in self._roots(name, group):
                    question = BuildQuestion(name, group, root)
                    if self.refused[self.form_of[group]]:
                        impossible.append((question, self.refused[self.form_of[group]]))
                        continue
                    place = None if root is None else group.index(root)
                    sameness = name, self.form_of[group], place, targets
                    if (
                        sameness in shares and not shares[sameness].task.relays
                    ):  # With relays, files serve only one group.
                        shares[sameness].questions.append(question)
                    else:
                        all_shares.append(self._share(question, place, targets, sources))
                        shares[sameness] = all_shares[-1]
        return BuildPlan(self.cluster, all_shares, cores, impossible)

    def _roots(self, name: str, group: tuple[int, ...]) -> Sequence[int | None]:
        """Return the roots of a collective on a group: all its ranks or the first; (None,) if it has no root."""
        if not COLLECTIVE_KINDS[name].rooted:
            return (None,)
        return group if self.cluster.all_roots else group[:1]

    def _targets(self, collective: str, group: tuple[int, ...]) -> tuple[str, ...] | None:
        """Return the targets for which a group's collective is answered, () for schedules only; None for no answer.

        By `in_switches`, only targets that can express operations of switches count, or only the others, or all.
        """
        targets, wanted = targets_of(collective, self.cluster.targets, self.cluster.healthy), self.in_switches[group]
        if wanted is None or (wanted and not targets):
            return targets
        return tuple(name for name in targets if TARGETS[name].switch_ops == wanted) or None

    def _share(
        self, question: BuildQuestion, place: int | None, targets: tuple[str, ...], sources: dict[Same, Task]
    ) -> BuildShare:
        """Return a new share of a question: a search, or the relabelling of a search.

        If the canonical order of its ranks is another than the group's, the share is the relabelling of a search in
        that order. Every search is added to `sources`, unless an equal one is in it.

        Args:
            question: The question.
            place: Index of the root in the group; None without a root.
            targets: Targets of the answer.
            sources: Searches by collective, network, the root's index and targets; changed in place.
        """
        group, kind = question.group, COLLECTIVE_KINDS[question.collective]
        order = tuple(range(len(group)))
        # For some collectives the order of ranks is part of the question. Schedules are relabelled for one protocol and
        # without relays only.
        order_matters = {kind.before, kind.after} & {NEXT, AHEAD}
        if not (order_matters or self.topology.protocol or self.cluster.relays_of(group)):
            order = self._order(group, place)
        ranks = tuple(group[i] for i in order)
        task = self._task(question, ranks, targets)
        if ranks == group:
            sources.setdefault((question.collective, self.form_of[group], place, targets), task)
            return BuildShare([question], task)
        solved_place = None if place is None else 0
        source = sources.setdefault((question.collective, _form(self.topology, ranks), solved_place, targets), task)
        place_of_rank = {rank: place for place, rank in enumerate(ranks)}
        solved_order = tuple(place_of_rank[rank] for rank in group)
        return BuildShare([question], self._task(question, group, targets, solved_order), source)

    def _task(
        self, question: BuildQuestion, ranks: tuple[int, ...], targets: tuple[str, ...], order: tuple[int, ...] = ()
    ) -> Task:
        """Return the task of a question, without budget and key.

        Args:
            question: The question.
            ranks: The group's ranks in the order in which they are solved.
            targets: Targets of the answer.
            order: Local rank of the known answer for each rank; () for a search.
        """
        c = self.cluster
        return Task(
            "", self._with_costs_of(targets), question.collective, ranks, question.root, c.low, c.high, targets, c.seed,
            0.0, 0.0, None, order, c.relays_of(ranks),
        )  # fmt: skip

    def _with_costs_of(self, targets: tuple[str, ...]) -> Topology:
        """Return the topology with the costs of the protocols that at least one of the targets has.

        What no target has is no part of an answer's costs, so that its bound does not count it either. Without targets,
        or where they have none of the protocols, all count.
        """
        if targets not in self.topology_of:
            names = protocols_of(self.topology)
            own_names = {name for target in targets for name in TARGETS[target].own_protocols(names)}
            self.topology_of[targets] = with_protocols(self.topology, own_names) if own_names else self.topology
        return self.topology_of[targets]

    def _order(self, group: tuple[int, ...], place: int | None) -> tuple[int, ...]:
        """Return the canonical order of a group's ranks, as indices in the group; equal networks share one order.

        Args:
            group: The group.
            place: Index of the root in the group, which comes first in the order; None without a root.
        """
        form_and_place = self.form_of[group], place
        if form_and_place not in self.order_of:
            net, nodes = network(self.topology, group), self.topology.nodes[list(group)]
            self.order_of[form_and_place] = tuple(canonical_order(net, nodes, place).tolist())
        return self.order_of[form_and_place]
