"""Search for a bound over all sequences of states: witnesses about the relaxed network of each set of states."""

from __future__ import annotations

from synth.bounds.prove import Bound, prove, tighten
from synth.model.deadline import now
from synth.reconfiguration.states import ChangingNetwork, subsets
from synth.reconfiguration.witness import ChangesBound, SetClaim, relaxed_problem
from synth.solvers.workers import Workers

_MOST_SETS = 32  # Sets of one size that are looked at one by one; of more, the set of all states stands for all.


def find_bound(
    network: ChangingNetwork, collective: str, root: int, size_bytes: int, workers: Workers, budget_s: float
) -> ChangesBound:
    """Return a bound that holds for every schedule over any sequence of states (see `synth.reconfiguration.witness`).

    The set of all states and the states alone come first. If the time is over, the set of all states stands for the
    sets that were not looked at.

    Args:
        network: The network.
        collective: Name of the collective.
        root: Its root.
        size_bytes: Message size in bytes at which the bound counts.
        workers: Solver processes.
        budget_s: Seconds for linear programs, and for sets of more than one state.
    """
    count = len(network.states)
    deadline = now() + budget_s
    sets = [subsets(network, changes + 1) for changes in range(count)]
    order = [
        tuple(range(count)),
        *sets[0],
        *(chosen for of_size in sets[1:] if len(of_size) <= _MOST_SETS for chosen in of_size),
    ]
    claims: dict[tuple[int, ...], SetClaim] = {}
    order = list(dict.fromkeys(order))
    for place, chosen in enumerate(order):
        if place <= len(sets[0]) or now() < deadline:
            until = now() + max(0.0, deadline - now()) / (len(order) - place)
            claims[chosen] = _claim(network, collective, root, chosen, size_bytes, workers, until)
    whole = order[0]
    return ChangesBound(
        collective,
        root,
        tuple(tuple(dict.fromkeys(claims.get(chosen, claims[whole]) for chosen in of_size)) for of_size in sets),
    )


def _claim(
    network: ChangingNetwork,
    collective: str,
    root: int,
    chosen: tuple[int, ...],
    size_bytes: int,
    workers: Workers,
    until: float,
) -> SetClaim:
    """Return what is proved of the schedules over a set of states; linear programs end about at `until`."""
    problem = relaxed_problem(network, collective, root, chosen)
    if problem is None:
        return SetClaim(chosen, ())
    bound: Bound = prove(problem, size_bytes=size_bytes)
    for better in tighten(problem, bound, None, size_bytes, float("inf"), workers, until):
        bound = better
    return SetClaim(chosen, bound.witnesses)
