"""Search for schedules that say when a network changes: sequences of states first, then the phases of the best ones.

Sequences are extended by one state at a time (`_ranked_sequences`): the least time between any two ranks through a
sequence is the min-plus product of the states' tables. The most promising sequences of every length are routed
(`synth.reconfiguration.routing`), and the engines of the usual search solve their phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, zip_longest
from pathlib import Path

import numpy as np

from synth.engines.request import Options
from synth.model.collective import Collective, Floats
from synth.model.deadline import now
from synth.model.defects import Defect, collected
from synth.model.numbers import as_seconds, as_text, taking, whole
from synth.model.problem import make_problem
from synth.model.sizes import size_in_bytes
from synth.model.text import format_count, format_gap, format_size, format_time
from synth.reconfiguration.bound import find_bound
from synth.reconfiguration.routing import (
    HOP,
    RoutedSequence,
    StatePhase,
    distances,
    estimated_us,
    exchange,
    in_blocks,
    link_prices,
    pair_needs,
    reversed_links,
    route,
    trees_of,
)
from synth.reconfiguration.schedule import ChangingSchedule
from synth.reconfiguration.states import ChangingNetwork, read_states
from synth.reconfiguration.witness import ChangesBound, ClaimLimits
from synth.search.budget import BudgetTooShort
from synth.search.plans import ISOLATED, SINGLE
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.symmetry.quotient import expanded
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.text.fields import shown

_Sequence = tuple[tuple[int, ...], Floats]  # States in their order, and the price of a message [from, to] through them.
_LEAST_S = 0.2  # Seconds that are worth another search of a phase.


@dataclass(frozen=True)
class ChangesTuning:
    """Limits of the search.

    Attributes:
        most_states: Most states of a sequence.
        width: Sequences of each length that are made longer, twice: by what they join, and by the time of their moves.
        orders: Sequences with the same states in another order that are kept.
        estimated: Sequences of each length that join all ranks and whose times are estimated.
        routed: Sequences of each length that are routed.
        exchanges: Sets of states that are tried for the exchange of sums of whole parts.
        routing_share: Share of the budget for routing them.
        single_share: Share of the budget for schedules without a change.
        bound_share: Share of the budget for the bound.
        better_share: Share of the budget for another search of the phases of the best schedules.
        phase_s: Seconds for the first search of a phase, at least.
    """

    most_states: int = 8
    width: int = 12
    orders: int = 2
    estimated: int = 48
    routed: int = 8
    exchanges: int = 2000
    routing_share: float = 0.15
    single_share: float = 0.3
    bound_share: float = 0.2
    better_share: float = 0.15
    phase_s: float = 1.0


@dataclass(frozen=True, repr=False)
class Choice:
    """The schedule for one time of changes, with its bound.

    Attributes:
        network: The network with its times of changes.
        schedule: The fastest schedule.
        time_us: Its time in µs, with the changes.
        bound_us: Time in µs that no schedule over any sequence of states can beat.
        limits: What proves the bound.
        single: The fastest schedule that stays in one state; None if no state joins all ranks.
        single_us: Its time in µs, with the change from `start`; None without one.
    """

    network: ChangingNetwork
    schedule: ChangingSchedule
    time_us: float
    bound_us: float
    limits: ClaimLimits
    single: ChangingSchedule | None
    single_us: float | None

    def __repr__(self) -> str:
        """Return the number of changes, the time and the bound in one line."""
        times = f"{format_time(self.time_us)}, bound {format_time(self.bound_us)}, gap {format_gap(self.gap)}"
        return f"<Choice: {format_count(self.changes, 'change')}, {times}>"

    @property
    def changes(self) -> int:
        """Return the number of changes."""
        return self.network.changes(self.schedule.states)

    @property
    def gap(self) -> float:
        """Return time / bound."""
        return self.time_us / self.bound_us


@dataclass(eq=False, repr=False)
class ChangesSearch:
    """The schedules and the bound of a collective on a network that changes, for any time of changes.

    Attributes:
        network: The network.
        collective: The collective in blocks.
        size_bytes: Message size in bytes.
        schedules: The schedules so far.
        bound: What is proved.
        interrupted: Whether Ctrl-C ended the search.
        defects: Parts of synth that failed, so that their answers are missing.
    """

    network: ChangingNetwork
    collective: Collective
    size_bytes: int
    schedules: list[ChangingSchedule] = field(default_factory=list)
    bound: ChangesBound | None = None
    interrupted: bool = False
    defects: tuple[Defect, ...] = ()

    def __repr__(self) -> str:
        """Return the collective, the size and the number of schedules in one line."""
        question = f"{self.collective.name}, {format_size(self.size_bytes)}"
        return f"<ChangesSearch of {question}: {format_count(len(self.schedules), 'schedule')}>"

    def choose(self, delta_us: float | None = None) -> Choice:
        """Return the fastest schedule if all changes take `delta_us` µs, or the network's own times if it is None.

        Raises:
            InputError: The time is negative or too long.
            KeyboardInterrupt: Ctrl-C came before there was a schedule or a bound.
        """
        network = self.network if delta_us is None else self.network.with_delta(delta_us)
        if not self.schedules or self.bound is None:
            raise KeyboardInterrupt
        fastest = self.fastest(network)
        singles = [schedule for schedule in self.schedules if len(schedule.states) == 1]
        single = self.fastest(network, singles) if singles else None
        times_us = [None if schedule is None else self.time_us(network, schedule) for schedule in (fastest, single)]
        assert times_us[0] is not None
        return Choice(network, fastest, times_us[0], *self.bound.at(network, self.size_bytes), single, times_us[1])

    def time_us(self, network: ChangingNetwork, schedule: ChangingSchedule) -> float:
        """Return the time of a schedule in µs, with its changes, which take their time in `network`."""
        return schedule.sending_us(self.size_bytes) + network.changing_us(schedule.states)

    def fastest(
        self, network: ChangingNetwork, schedules: Sequence[ChangingSchedule] | None = None
    ) -> ChangingSchedule:
        """Return the fastest of some schedules, by default of all, of equal ones that with the fewest changes."""
        return min(
            self.schedules if schedules is None else schedules,
            key=lambda schedule: (self.time_us(network, schedule), network.changes(schedule.states)),
        )


@taking('synth.search_changes("ring:8 + axes:2x2x2", "alltoall", "1M")')
def search_changes(  # It takes the spellings of `synthesize`, and those of earlier versions.
    network: ChangingNetwork | str | Path,
    collective: str,
    size: int | str | None = None,
    root: int | None = None,
    budget: float | str = 30.0,
    deltas_us: Sequence[float] = (),
    progress: Callable[[str], None] | None = None,
    tuning: ChangesTuning = ChangesTuning(),
    *,
    size_bytes: int | str | None = None,
    budget_s: float | str | None = None,
) -> ChangesSearch:
    """Return schedules that say when the network changes, none slower than the best in a single state, and their bound.

    All ranks take part. The best schedules for each number of changes are kept, so that `ChangesSearch.choose` answers
    for any time of changes.

    Args:
        network: The network, or what `read_states` takes.
        collective: Name of a collective with equal blocks.
        size: Message size in bytes, or text such as "1M".
        root: The root, for a collective that has one; None for rank 0.
        budget: Seconds for the search, or text such as "5m".
        deltas_us: Times of changes in µs at which the bound counts; empty for the network's own.
        progress: Receives what is tried; None for no reports.
        tuning: Limits of the search.
        size_bytes: The same as `size`, which need not be given then.
        budget_s: The same as `budget`.

    Raises:
        InputError: An argument is wrong or missing, no sequence of states joins the ranks, or the time is short.
    """
    network = read_states(network) if isinstance(network, str | Path) else network
    if not isinstance(network, ChangingNetwork):
        raise InputError(
            f"network: {shown(network)} is no network that changes; it must be what read_states takes or returns"
        )
    spellings = {"size": size, "size_bytes": size_bytes}
    sizes = [(name, value) for name, value in spellings.items() if value is not None]
    if len(sizes) != 1:
        raise InputError('size: must be given once, in bytes or as text such as "1M" (size_bytes is the same)')
    ((size_name, value),) = sizes
    size_bytes = size_in_bytes(value, size_name)
    budget_s = as_seconds(budget, "budget") if budget_s is None else as_seconds(budget_s, "budget_s")
    Options(size=size_bytes, budget_s=budget_s).check()
    root = 0 if root is None else whole(root, "root")
    blocks = in_blocks(as_text(collective, "collective"), network.nranks, root)
    if root and not blocks.kind.rooted:
        raise InputError(f"root: {blocks.name} has no root; leave it out")
    result = ChangesSearch(network, blocks, size_bytes)
    report = (lambda _: None) if progress is None else progress
    networks = [network.with_delta(delta_us, "deltas_us") for delta_us in deltas_us] or [network]
    begun = now()
    with Workers() as workers, collected() as defects:
        solver = _PhaseSolver(network, size_bytes, workers)
        try:
            _search_schedules(result, networks, solver, root, budget_s, report, tuning)
        except KeyboardInterrupt:
            solver.interrupted = True
        result.interrupted = solver.interrupted
        if not result.schedules and not result.interrupted:
            raise InputError(
                f"{blocks.name}: no sequence of at most {tuning.most_states} states joins the ranks; add a state"
            )
        report("bound over all sequences of states")
        spare_s = 0.0 if result.interrupted else max(begun + budget_s - now(), tuning.bound_share * budget_s)
        try:
            result.bound = find_bound(networks, blocks.name, blocks.root, size_bytes, workers, spare_s)
        except KeyboardInterrupt:
            result.interrupted = True
            result.bound = find_bound(networks, blocks.name, blocks.root, size_bytes, workers, 0.0)
    result.defects = tuple(defects.values())
    return result


def _search_schedules(
    result: ChangesSearch,
    networks: Sequence[ChangingNetwork],
    solver: _PhaseSolver,
    root: int,
    budget_s: float,
    progress: Callable[[str], None],
    tuning: ChangesTuning,
) -> None:
    """Add schedules: those without a change, then those of sequences of states, then better ones of the best.

    Args:
        result: The search, to which the schedules are added.
        networks: The network with each time of changes.
        solver: Solves the phases.
        root: The root.
        budget_s: Seconds of the whole search.
        progress: Receives what is tried.
        tuning: Limits of the search.

    Raises:
        BudgetTooShort: There is no schedule in time.
    """
    network, blocks, begun = result.network, result.collective, now()
    _search_single_states(result, solver, root, tuning.single_share * budget_s, progress)
    routing_until = now() + tuning.routing_share * budget_s
    sequences = _routed_sequences(network, blocks, result.size_bytes, tuning, routing_until)
    until = begun + (1 - tuning.bound_share - tuning.better_share) * budget_s
    for place, routed in enumerate(_by_promise(networks, sequences)):
        # However short the budget, the most promising sequence is solved.
        if solver.interrupted or (place and now() > until and result.schedules):
            break
        progress(" → ".join(network.states[phase.state].name for phase in routed.phases))
        phase_s = max(tuning.phase_s, (until - now()) / len(routed.phases))
        try:
            result.schedules.append(_solved(network, blocks, routed.phases, solver, phase_s))
        except BudgetTooShort:
            if not result.schedules:
                raise
    _improve(result, networks, solver, begun + (1 - tuning.bound_share) * budget_s, progress)


@dataclass(eq=False)
class _PhaseSolver:
    """Solves phases by the usual search, each only once with the same plan.

    Attributes:
        network: The network.
        size_bytes: Message size in bytes.
        workers: Solver processes.
        fastest: The best algorithm of each phase so far, by its contents.
        interrupted: Whether Ctrl-C came during a search.
    """

    network: ChangingNetwork
    size_bytes: int
    workers: Workers
    fastest: dict[tuple[int, bytes], Algorithm] = field(default_factory=dict)
    interrupted: bool = False

    def solve(self, phase: StatePhase, budget_s: float, thorough: bool = False) -> Algorithm:
        """Return the fastest algorithm of a phase so far; search first if it is new, or if `thorough` is set.

        A quick search with no more than `_LEAST_S` seconds waits for its first answer.

        Raises:
            InputError: The state does not join what the phase must join, or the budget is too short.
        """
        goal = phase.collective
        key = phase.state, b"|".join(a.tobytes() for a in (goal.pre, goal.post, goal.fraction, goal.reduces))
        earlier = self.fastest.get(key)
        if earlier is not None and not thorough:
            return earlier
        if thorough and earlier is None:
            earlier = self.solve(phase, _LEAST_S)  # This search waits for its first answer.
        problem = make_problem(self.network.states[phase.state], goal)
        options = Options(size=self.size_bytes, budget_s=budget_s)
        quick = replace(ISOLATED, work_s=min(0.5, budget_s / 2), patient=budget_s <= _LEAST_S)
        plan = SINGLE if thorough else quick
        try:
            searched = search(problem, options, self.workers, plan=plan)
        except BudgetTooShort:
            if earlier is None:
                raise
            return earlier
        self.interrupted |= searched.stop_reason == "interrupted"
        answer = searched.fastest(self.size_bytes).algorithm
        if answer.problem.quotient is not None:
            answer = Algorithm(*expanded(answer.problem, answer.schedule), answer.engine, "", answer.size_bytes)
        if earlier is None or answer.time_us(self.size_bytes) < earlier.time_us(self.size_bytes):
            self.fastest[key] = answer
        return self.fastest[key]


def _search_single_states(
    result: ChangesSearch, solver: _PhaseSolver, root: int, budget_s: float, progress: Callable[[str], None]
) -> None:
    """Add the best schedule without a change of every state that joins all ranks."""
    network, blocks = result.network, result.collective
    able = []
    for number, state in enumerate(network.states):
        try:
            problem = make_problem(state, blocks.name, root=root if blocks.kind.rooted else None)
        except InputError:  # The state does not join all ranks.
            continue
        parts = blocks.nchunks // problem.collective.nchunks
        of_chunks = tuple(tuple(range(c * parts, (c + 1) * parts)) for c in range(problem.collective.nchunks))
        able.append(StatePhase(number, problem.collective, of_chunks))
    for phase in able:
        if solver.interrupted:
            break
        progress(f"only {network.states[phase.state].name}")
        algorithm = solver.solve(phase, budget_s / len(able), thorough=True)
        result.schedules.append(ChangingSchedule(network, blocks, (phase,), (algorithm,)))


def _routed_sequences(
    network: ChangingNetwork, blocks: Collective, size_bytes: int, tuning: ChangesTuning, until: float
) -> list[RoutedSequence]:
    """Return promising sequences of at least two states in phases; routing ends about at `until`."""
    by_length = _ranked_sequences(network, blocks, size_bytes, tuning, until)
    routed: list[RoutedSequence | None] = []
    # The best of each length, then the second best of each, and so on.
    for sequence in (sequence for row in zip_longest(*by_length) for sequence in row if sequence is not None):
        if routed and now() > until:
            break
        answer = route(network, blocks, sequence, size_bytes)
        if answer is None and blocks.kind.in_shares:
            # Over links of one direction the states that spread may not gather in reverse; there and back, they do.
            answer = route(network, blocks, (*sequence, *sequence[-2::-1]), size_bytes)
        routed.append(answer)
    if blocks.kind.in_shares:
        routed += [
            exchange(network, blocks, sequence, size_bytes, own_sums)
            for sequence in _sets(network, tuning)
            for own_sums in (False, True)
        ]
    candidates = [answer for answer in routed if answer is not None and len(answer.phases) > 1]
    return list({_shape_of(answer): answer for answer in candidates}.values())


def _ranked_sequences(
    network: ChangingNetwork, blocks: Collective, size_bytes: int, tuning: ChangesTuning, until: float
) -> list[list[tuple[int, ...]]]:
    """Return for each length from two states on the best sequences that join all ranks, by an estimate of their times.

    It is a beam search: sequences of each length are made longer if they join much, or if they may become fast. A table
    of each has the least price of a message [from, to]. Estimates end about at `until`.
    """
    needs = pair_needs(blocks, from_roots=True)
    needed = needs > 0
    trees, own_states = trees_of(blocks), network.states
    if all(tree.gathers for tree in trees):  # From a root the links of its tree are followed backwards.
        own_states = tuple(map(reversed_links, own_states))
    prices = [link_prices(state, float(needs.sum()), size_bytes) for state in own_states]
    hop_us = min(float(price.min(initial=np.inf)) for price in prices) * HOP
    paths = [distances(state, price + hop_us) for state, price in zip(own_states, prices, strict=True)]
    tables = [lengths for lengths, _ in paths]
    copies = any(len(tree.leaves) > 1 for tree in trees)
    nearest = np.minimum.reduce(tables)
    for _ in range(network.nranks.bit_length()):
        nearest = _min_plus(nearest, nearest)  # No sequence joins two ranks by less.

    def rank(entry: _Sequence) -> tuple[float, int]:
        """Return the sort key of a sequence: the time of all moves at best, with its changes."""
        sequence, table = entry
        moves = np.where(np.isfinite(table), table, nearest)[needed]
        return float((needs[needed] * moves).sum()) + network.changing_us(sequence), int(np.isinf(table[needed]).sum())

    beam: list[_Sequence] = [((number,), table) for number, table in enumerate(tables)]
    by_length: list[list[tuple[int, ...]]] = []
    for _ in range(1, tuning.most_states):
        longer = [
            ((*sequence, number), _min_plus(table, tables[number]))
            for sequence, table in beam
            for number in range(len(tables))
            if number != sequence[-1]
        ]
        ranked = _of_each_set(sorted(longer, key=rank), tuning.orders)
        complete = [sequence for sequence, table in ranked if np.isfinite(table[needed]).all()][: tuning.estimated]
        joining = sorted(ranked, key=lambda entry: rank(entry)[::-1])
        beam = list({entry[0]: entry for entry in (*joining[: tuning.width], *ranked[: tuning.width])}.values())
        times_us: dict[tuple[int, ...], float] = {}
        for sequence in complete:
            if times_us and now() > until:
                break
            states = [own_states[number] for number in sequence]
            own_us = estimated_us(states, [paths[number] for number in sequence], needs, size_bytes, copies)
            times_us[sequence] = own_us + network.changing_us(sequence)
        by_length.append(sorted(times_us, key=times_us.__getitem__)[: tuning.routed])
    return by_length


def _sets(network: ChangingNetwork, tuning: ChangesTuning) -> Iterator[tuple[int, ...]]:
    """Yield sets of two and more states, small ones first, as long as there are not too many."""
    numbers = range(len(network.states))
    sets = (chosen for size in range(2, tuning.most_states + 1) for chosen in combinations(numbers, size))
    return islice(sets, tuning.exchanges)


def _shape_of(routed: RoutedSequence) -> tuple[tuple[int, bytes], ...]:
    """Return what distinguishes a sequence in phases from others."""
    return tuple((phase.state, phase.collective.post.tobytes()) for phase in routed.phases)


def _of_each_set(ranked: Sequence[_Sequence], most: int) -> list[_Sequence]:
    """Return the first `most` sequences with the same states in any order, for each such set, in the given order."""
    counts: Counter[tuple[int, ...]] = Counter()
    first_of_each = []
    for entry in ranked:
        states = tuple(sorted(entry[0]))
        counts[states] += 1
        if counts[states] <= most:
            first_of_each.append(entry)
    return first_of_each


def _by_promise(networks: Sequence[ChangingNetwork], sequences: Sequence[RoutedSequence]) -> list[RoutedSequence]:
    """Return sequences in the order in which to solve them: the best for each time of changes, then the next best.

    Args:
        networks: The network with each time of changes.
        sequences: The sequences in phases.
    """
    orders = []
    for network in networks:
        times_us = [
            answer.estimate_us + network.changing_us([phase.state for phase in answer.phases]) for answer in sequences
        ]
        orders.append(np.argsort(times_us, kind="stable").tolist())
    numbers = dict.fromkeys(number for row in zip(*orders, strict=True) for number in row)
    return [sequences[number] for number in numbers]


def _min_plus(first: Floats, second: Floats) -> Floats:
    """Return the least first[from, via] + second[via, to] over all ranks between; shape (ranks, ranks)."""
    result = np.full_like(first, np.inf)
    for via in range(len(first)):
        np.minimum(result, first[:, via, None] + second[None, via, :], out=result)
    return result


def _solved(
    network: ChangingNetwork, blocks: Collective, phases: tuple[StatePhase, ...], solver: _PhaseSolver, phase_s: float
) -> ChangingSchedule:
    """Return the schedule of phases, which are solved, by their best algorithms so far, and checked."""
    return ChangingSchedule(network, blocks, phases, tuple(solver.solve(phase, phase_s) for phase in phases))


def _improve(
    result: ChangesSearch,
    networks: Sequence[ChangingNetwork],
    solver: _PhaseSolver,
    until: float,
    progress: Callable[[str], None],
) -> None:
    """Search the phases of the best schedule for each time of changes again, more thoroughly, until a time."""
    best = [result.fastest(network) for network in networks if result.schedules]
    schedules = [schedule for schedule in dict.fromkeys(best) if len(schedule.phases) > 1]
    phases = [phase for schedule in schedules for phase in schedule.phases]
    for place, phase in enumerate(phases):
        left_s = (until - now()) / (len(phases) - place)
        if left_s < _LEAST_S or solver.interrupted:
            break
        progress(f"phase {place + 1} of {len(phases)} again")
        solver.solve(phase, left_s, thorough=True)
    for schedule in schedules:
        result.schedules.append(_solved(result.network, result.collective, schedule.phases, solver, _LEAST_S))
