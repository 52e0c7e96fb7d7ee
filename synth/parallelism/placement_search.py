"""Searched schedules for a workload's calls under placements: each request once, as many as the budget allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from synth.concurrent.result import ConcurrentResult
from synth.concurrent.search import plan
from synth.concurrent.union import Member
from synth.model.collective import Floats, Ints, named
from synth.model.deadline import now
from synth.model.text import format_count
from synth.parallelism.axes import process_groups
from synth.parallelism.estimate import Estimator, RequestTime
from synth.parallelism.reduction.program_plans import PROGRAMS, program_plans
from synth.parallelism.step_time import StepTime, step_time
from synth.parallelism.workload import Call, Workload
from synth.solvers.workers import Workers
from synth.timing.simulate import resource_loads_us
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy
from topologies.topology import Topology

MOST_ALWAYS = 128  # Ranks up to which the best placement and the default order are always searched.


class Searches:
    """The searched plans of one ranking, each request searched once while there is time.

    Attributes:
        estimator: Estimates on the topology.
        workload: The calls of the step.
        seed: Seed of the searches.
        end: Time of `now` at which the budget ends.
        interrupted: True after Ctrl-C.
        known: Results by request.
        plans: Results by the call's position and the bytes of the placement's mesh.
        number: Position of every resource in the network, by name.
    """

    def __init__(self, estimator: Estimator, workload: Workload, budget: float, seed: int) -> None:
        self.estimator, self.workload, self.seed = estimator, workload, seed
        self.end, self.interrupted = now() + budget, False
        self.known: dict[tuple[str, int, bytes, int], ConcurrentResult] = {}
        self.plans: dict[tuple[int, bytes], ConcurrentResult] = {}
        self.number = {name: i for i, name in enumerate(estimator.net.resource_names)}

    def run(self, meshes: Sequence[Ints], progress: Callable[[str], None] | None) -> list[StepTime | None]:
        """Search the calls under each mesh, in turn, and return the step's time under each.

        A time is None if the budget ended before all calls of the mesh had a plan. The first two meshes of up to
        `MOST_ALWAYS` ranks are searched even after the budget, unless Ctrl-C came. `known`, `plans` and `interrupted`
        are updated.

        Args:
            meshes: The rank at each coordinate of the axes, for each placement.
            progress: Function that gets a text before each search.

        Raises:
            InputError: A call cannot be planned for its groups.
            KeyboardInterrupt: Ctrl-C came outside of a search, or before it had an answer.
        """
        calls = self.workload.calls
        request_keys = [[_request_key(call, ranks) for call in calls] for ranks in meshes]
        step_times: list[StepTime | None] = []
        with ExitStack() as stack:
            workers = stack.enter_context(Workers())
            for position, (ranks, keys) in enumerate(zip(meshes, request_keys, strict=True)):
                always = position < 2 and ranks.size <= MOST_ALWAYS and not self.interrupted
                for call, key in zip(calls, keys, strict=True):
                    remaining = len({other_key for row in request_keys for other_key in row} - set(self.known))
                    if key in self.known or not (always or now() < self.end):
                        continue
                    if progress is not None:
                        progress(f"{call.name}: {format_count(remaining, 'search', 'searches')} left")
                    groups, share = process_groups(ranks, call.over), max(0.01, (self.end - now()) / remaining)
                    self.known[key] = plan_groups(
                        self.estimator.topology, call, groups, share, self.seed, workers, self.estimator.hierarchy
                    )
                    if self.known[key].stop_reason == "interrupted":
                        self.end, self.interrupted, always = now(), True, False
                if not all(key in self.known for key in keys):
                    step_times.append(None)
                    continue
                self.plans.update(((i, ranks.tobytes()), self.known[key]) for i, key in enumerate(keys))
                results = [self.known[key] for key in keys]
                step_times.append(step_time(self.workload, list(map(self._time, results)), self.estimator, results))
        return step_times

    def _time(self, result: ConcurrentResult) -> RequestTime:
        """Return the time of a result and the busy times of the network's resources."""
        busy: Floats = np.zeros(self.estimator.net.nresources)
        positions = [self.number[name] for name in result.problem.network.resource_names]
        busy[positions] = resource_loads_us(result.problem, result.at_size)
        return RequestTime(result.makespan_us, busy)


def _request_key(call: Call, ranks: Ints) -> tuple[str, int, bytes, int]:
    """Return the key of a call's request under a mesh: requests with equal keys have the same groups and size."""
    groups = process_groups(ranks, call.over)
    return call.collective, call.size_bytes, groups.tobytes(), groups.shape[1]


def plan_groups(
    topology: Topology,
    call: Call,
    groups: Ints,
    budget: float,
    seed: int = 0,
    workers: Workers | None = None,
    hierarchy: Hierarchy | None = None,
) -> ConcurrentResult:
    """Find a plan for a call's groups at the same time, with relays only where a group needs them.

    See `concurrent.plan`. All-reduces over more than one level may be reduction programs. The plan is for one run of
    the call; its `relay` is "none", or "all" if some group's ranks do not reach each other without relays.

    Args:
        topology: The topology.
        call: The call.
        groups: Ranks, int64 (groups, ranks of a group).
        budget: Seconds for the search, more than 0; the search with relays has as many again.
        seed: Seed of the search.
        workers: Solver processes to use; None: new ones.
        hierarchy: Levels of the topology; None: the levels that are found in it.

    Raises:
        InputError: The ranks of a group cannot reach each other even with relays, or the question is wrong otherwise.
        KeyboardInterrupt: Ctrl-C came before there was a plan; later it is the plan's `stop_reason`.
    """
    collective, begun = named(call.collective, groups.shape[1], 1), now()
    members = [Member(tuple(map(int, group)), collective, float(call.size_bytes)) for group in groups]

    def planned(relays: str) -> ConcurrentResult:
        """Find a plan with these relays."""
        until = begun + PROGRAMS * budget
        programs = list(program_plans(topology, members, relays=relays, hierarchy=hierarchy, until=until))
        return plan(
            topology, members, relays=relays, budget=budget, seed=seed, workers=workers, begun=begun, first=programs
        )

    try:
        return planned("none")
    except InputError:
        begun = now()
        return planned("all")
