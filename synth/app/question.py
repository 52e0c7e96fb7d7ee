"""Build a question from the arguments of the command line or of Python, which are checked here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from emit.library.programs import executor_for
from emit.targets import TARGETS
from synth.app.arguments import QuestionArguments
from synth.engines.flow.quotients import quotient_question
from synth.engines.registry import engines_named
from synth.engines.request import Options
from synth.engines.skewed.plan import SizesPlanner
from synth.engines.skewed.prepare import prepare
from synth.model.collective import Collective, Floats
from synth.model.deadline import now
from synth.model.numbers import as_flag, as_seconds, as_text, as_texts, taking, whole, whole_numbers
from synth.model.problem import Problem, make_problem, parse_ranks
from synth.model.registry import find_kind, parse_name
from synth.model.sizes import parse_size_list, read_size_list, read_sizes, size_in_bytes
from synth.search.budget import check_budget
from synth.search.question import Question
from synth.search.settings import NONE, TargetSettings
from topologies.costed import costs_omit_switch_ops, with_protocol, with_protocols
from topologies.costs import Costs
from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.faults.notation import dead_ranks, live_ranks, relay_ranks
from topologies.graphs import from_networkx, is_graph
from topologies.load import apply_costs, load
from topologies.text.fields import shown
from topologies.topology import Topology, without_switch_ops


def make_question(arguments: QuestionArguments) -> Question:
    """Return the question that arguments state, without answering it.

    If the target's files cannot express operations of switches, or the costs do not cover them, the question is for
    switches that only forward, and it states why. With dead or slow parts it also has the problem on the healthy
    network: of the same group if the arguments name it (or the sizes of its blocks), otherwise of all ranks.

    Raises:
        InputError: An argument cannot be right, or the target cannot express the question; the message is one line.
    """
    options = _options(arguments)
    settings, root = target_settings(arguments), None if arguments.root is None else whole(arguments.root, "root")
    name = arguments.collective
    if root is not None and isinstance(name, str) and not find_kind(parse_name(name)).rooted:
        raise InputError(f"root: {parse_name(name)} has no root; leave it out")
    healthy = healthy_topology(arguments)
    check_budget(healthy, 0, options.budget_s)
    without = as_texts(arguments.without, "without")
    topology = apply_faults(healthy, without, as_texts(arguments.degrade, "degrade"))
    dead, relay = dead_ranks(healthy, without), arguments.relay
    sizes = block_sizes(arguments)
    group = _group(arguments, healthy.nranks)
    if not isinstance(relay, str) or relay not in ("none", "all"):
        relay = listed_ranks(arguments, "relay", healthy.nranks)
    members = list(live_ranks(healthy, dead, group, "group"))
    relays = relay_ranks(healthy, dead, relay, members)
    check_budget(healthy, 0, options.budget_s, len(members) + len(relays))

    is_group_stated = group is not None or sizes is not None or isinstance(name, Collective)
    all_members = members if is_group_stated else list(range(healthy.nranks))

    def problem_on(variant: Topology, members: list[int] = members, relays: list[int] = relays) -> Problem:
        """Return the problem on a topology, or its quotient if it has one that can express what is pinned.

        Args:
            variant: The topology.
            members: Ranks that take part; by default those that are alive.
            relays: Ranks that forward; by default those that are alive.
        """
        quotient, is_plain = None, (options.steps, options.rounds, root) == (None, None, None)
        if isinstance(name, str) and is_plain:
            quotient = quotient_question(variant, parse_name(name), members, relays, options.chunks)
        return quotient or make_problem(variant, name, members, relays, root=root, sizes=sizes)

    problem = problem_on(topology)
    if options.chunks is not None:
        problem.with_chunks(options.chunks)  # Raise for an impossible number of chunks.
    why_switches_forward, is_hurt = "", topology is not healthy
    if costs_omit_switch_ops(topology):
        why_switches_forward = "the costs do not cover multicast and reduction in switches (--costs none allows them)"
    executor = executor_for(problem, settings)  # Raise if the target cannot express the question.
    if executor is not None and (own_protocols := executor.target.own_protocols(problem.protocols)):
        # What the executor lacks is no part of its costs, so that bounds do not count it either.
        healthy, topology = (with_protocols(variant, own_protocols) for variant in (healthy, topology))
        problem = problem.on(with_protocols(problem.topology, own_protocols))
    if problem.network.hyperlinks is not None and executor is not None and not executor.target.switch_ops:
        able = " or ".join([*(name for name, target in TARGETS.items() if target.switch_ops), NONE])
        missing = f"multicast and reduction in switches (--target {able} allows them)"
        why_switches_forward = f"{executor.target.name}'s files cannot express {missing}"
        healthy = without_switch_ops(healthy)
        problem = problem_on(without_switch_ops(topology))
    if why_switches_forward and options.engine == "switch":
        raise InputError(f"--engine switch: {why_switches_forward}")
    undamaged = problem_on(healthy, all_members, relay_ranks(healthy, (), relay, all_members)) if is_hurt else None
    return Question(problem, options, settings, undamaged, why_switches_forward)


def block_sizes(arguments: QuestionArguments) -> Floats | None:
    """Return the bytes of the blocks that arguments state, shape (k,), or (k, k) for alltoallv; None without sizes.

    Text with a comma is a list of sizes, except for alltoallv; other text names a file. Whether numbers are possible
    sizes, and as many as there are ranks, is not checked.

    Raises:
        InputError: The collective has blocks of one size, or brings its own sizes; the file cannot be read; or a size
            in text is none.
    """
    sizes, label = arguments.sizes, arguments.name("sizes")
    if sizes is None:
        return None
    if isinstance(arguments.collective, Collective):
        raise InputError(f"{label}: a Collective has its own sizes; leave them out")
    kind = find_kind(parse_name(arguments.collective))
    if isinstance(sizes, str) and "," in sizes and not kind.by_pair:
        table = parse_size_list(sizes, label).astype(float)
        if not table.any():
            raise InputError(f"{label} {shown(sizes)}: every size is 0; at least one rank must have data")
        return table
    if isinstance(sizes, str) and "," in sizes and not Path(sizes).exists():
        raise InputError(f"{label}: {shown(sizes)} is one row; {kind.name} needs k rows of k sizes, in a file")
    if isinstance(sizes, str | Path):
        return (read_sizes if kind.by_pair else read_size_list)(sizes).astype(float)
    try:
        return np.asarray(sizes, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{label}: is no table of numbers; it must be the bytes of each block") from None


@taking('synth.alltoallv_planner("dgx-h100:2")')
def alltoallv_planner(
    topo: str | Path | Topology, group: Sequence[int] | str | None = None, *,
    costs: str | Path | Costs = "none", protocol: str = "Simple",
) -> SizesPlanner:  # fmt: skip
    """Prepare plans of all-to-alls whose sizes change at every call, as those of mixtures of experts.

    `plan(sizes)` of the result then takes a matrix of bytes and returns sends with their times, and a proved bound,
    within microseconds to milliseconds.

    Args:
        topo: A machine, a family, a file, a Topology, or a graph of networkx.
        group: Ranks that take part, in order, or text such as `0,2,4-7`; None for all ranks.
        costs: An executor's costs, as `synthesize` takes them; "none" for α and bandwidth only.
        protocol: Protocol whose costs count, where costs are on.

    Raises:
        InputError: An argument cannot be right, or no planner takes the group: it has too many ranks, or its network
            is of neither kind that the guide on patterns lists.
    """
    arguments = QuestionArguments("alltoallv", topo, group, costs=costs)
    topology = with_protocol(healthy_topology(arguments), as_text(protocol, "protocol"))
    return prepare(topology, _group(arguments, topology.nranks))


def target_settings(arguments: QuestionArguments) -> TargetSettings:
    """Return the settings of the target that arguments state; whether the target exists is not checked.

    Raises:
        InputError: A value has a wrong type, or is no size or no possible number.
    """
    sms, scratch_limit = None if arguments.sms is None else whole(arguments.sms, "sms"), arguments.scratch_limit
    if sms is not None and sms < 1:
        raise InputError(f"sms {sms}: is not possible; it must be 1 or more")
    return TargetSettings(
        as_text(arguments.target, "target"),
        sms,
        as_flag(arguments.groups_overlap, "groups_overlap"),
        None if scratch_limit is None else size_in_bytes(scratch_limit, arguments.name("scratch_limit")),
    )


def _group(arguments: QuestionArguments, nranks: int) -> tuple[int, ...] | None:
    """Return the group's ranks in the order written, as `listed_ranks` does; None for all ranks of the topology.

    Raises:
        InputError: The group is neither a list nor text, or is a set, which has no order.
    """
    is_whole = arguments.group is None or (isinstance(arguments.group, str) and arguments.group == "all")
    return None if is_whole else listed_ranks(arguments, "group", nranks)


def listed_ranks(arguments: QuestionArguments, argument: str, nranks: int) -> tuple[int, ...]:
    """Return the ranks of an argument that is a list, or text such as `0,2,4-7`, in the order written.

    Whether the numbers of a list are ranks of the topology is not checked.

    Args:
        arguments: The arguments.
        argument: Name of the argument.
        nranks: Number of ranks of the topology.

    Raises:
        InputError: The argument is neither.
    """
    value = getattr(arguments, argument)
    if isinstance(value, str):
        return parse_ranks(value, arguments.name(argument), nranks)
    return whole_numbers(value, argument)


def _options(arguments: QuestionArguments) -> Options:
    """Return what is pinned, the budget and the seed of a search; the budget counts from now if no time is stated.

    Raises:
        InputError: A value cannot be right, or the engine is unknown.
    """
    pinned = {name: getattr(arguments, name) for name in ("chunks", "steps", "rounds")}
    options = Options(
        None if arguments.size is None else size_in_bytes(arguments.size, arguments.name("size")),
        **{name: None if value is None else whole(value, name) for name, value in pinned.items()},
        engine=as_text(arguments.engine, "engine"),
        budget_s=as_seconds(arguments.budget, "budget"),
        seed=whole(arguments.seed, "seed"),
        begun=now() if arguments.begun is None else arguments.begun,
    )
    options.check()
    engines_named(options.engine)  # Raise for an unknown engine.
    return options


def healthy_topology(arguments: QuestionArguments) -> Topology:
    """Return the topology with its costs, before parts are dead or slow.

    If `switch_ops` is False, its switches only forward.

    Raises:
        InputError: The topology or the costs cannot be read, or an argument has a wrong type.
    """
    if not isinstance(arguments.collective, Collective):
        as_text(arguments.collective, "collective")
    topo = from_networkx(arguments.topo) if is_graph(arguments.topo) else arguments.topo
    if not isinstance(topo, Topology | Path | str):
        right = "a name such as ring:8, a file, a Topology or a graph of networkx"
        raise InputError(f"topo: {shown(topo)} is no network; it must be {right}")
    topology = apply_costs(topo if isinstance(topo, Topology) else load(topo), arguments.costs)
    return topology if as_flag(arguments.switch_ops, "switch_ops") else without_switch_ops(topology)
