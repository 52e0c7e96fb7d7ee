"""Searched schedules for the calls of a workload under placements: each request once, as many as there is time for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from synth.concurrent.result import ConcurrentResult
from synth.concurrent.search import plan
from synth.concurrent.union import Member
from synth.model.collective import Floats, Ints, named
from synth.model.deadline import now
from synth.parallelism.axes import process_groups
from synth.parallelism.estimate import Estimator, RequestTime
from synth.parallelism.program_plans import PROGRAMS, program_plans
from synth.parallelism.step_time import StepTime, step_time
from synth.parallelism.workload import Call, Workload
from synth.solvers.workers import Workers
from synth.timing.simulate import resource_loads_us
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy
from topologies.topology import Topology

MOST_ALWAYS = 128  # ranks up to which the best placement and the default order are searched whatever the budget


class Searches:
    """Searched plans of one ranking: each request once, as many as there is time for."""

    def __init__(self, estimator: Estimator, workload: Workload, budget: float, seed: int) -> None:
        self.estimator, self.workload, self.seed = estimator, workload, seed
        self.end, self.interrupted = now() + budget, False
        self.known: dict[tuple[str, int, bytes, int], ConcurrentResult] = {}
        self.plans: dict[tuple[int, bytes], ConcurrentResult] = {}
        self.number = {name: i for i, name in enumerate(estimator.net.resource_names)}

    def run(self, meshes: Sequence[Ints], progress: Callable[[str], None] | None) -> list[StepTime | None]:
        """The step under each mesh by the best plans for its calls; None where time was up, not for the first two."""
        calls = self.workload.calls
        wanted = [[_request_key(call, ranks) for call in calls] for ranks in meshes]
        found: list[StepTime | None] = []
        with ExitStack() as stack:
            workers = stack.enter_context(Workers())
            for at, (ranks, keys) in enumerate(zip(meshes, wanted, strict=True)):
                always = at < 2 and ranks.size <= MOST_ALWAYS and not self.interrupted
                for call, key in zip(calls, keys, strict=True):
                    left = len({other for row in wanted for other in row} - set(self.known))
                    if key in self.known or not (always or now() < self.end):
                        continue
                    if progress is not None:
                        progress(f"{call.name}: {left} searches left")
                    groups, share = process_groups(ranks, call.over), max(0.01, (self.end - now()) / left)
                    self.known[key] = plan_groups(
                        self.estimator.topology, call, groups, share, self.seed, workers, self.estimator.hierarchy
                    )
                    if self.known[key].ended == "interrupted":
                        self.end, self.interrupted, always = now(), True, False
                if not all(key in self.known for key in keys):
                    found.append(None)
                    continue
                self.plans.update(((i, ranks.tobytes()), self.known[key]) for i, key in enumerate(keys))
                made = [self.known[key] for key in keys]
                found.append(step_time(self.workload, list(map(self._time, made)), self.estimator, made))
        return found

    def _time(self, made: ConcurrentResult) -> RequestTime:
        busy: Floats = np.zeros(self.estimator.net.nresources)
        at = [self.number[name] for name in made.problem.network.resource_names]
        busy[at] = resource_loads_us(made.problem, made.at_size)
        return RequestTime(made.makespan_us, busy)


def _request_key(call: Call, ranks: Ints) -> tuple[str, int, bytes, int]:
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
    """Schedules for a call's groups at once, relays only where a group needs them; see `concurrent.plan`.

    All-reduces over several levels may be reduction programs. hierarchy: of the topology; None: the levels that it has.
    """
    collective, begun = named(call.collective, groups.shape[1], 1), now()
    members = [Member(tuple(map(int, group)), collective, float(call.size_bytes)) for group in groups]

    def planned(relays: str) -> ConcurrentResult:
        until = begun + PROGRAMS * budget
        first = list(program_plans(topology, members, relays=relays, hierarchy=hierarchy, until=until))
        return plan(
            topology, members, relays=relays, budget=budget, seed=seed, workers=workers, begun=begun, first=first
        )

    try:
        return planned("none")
    except InputError:
        begun = now()
        return planned("all")
