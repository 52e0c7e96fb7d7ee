"""A reference solver: SCCL's encoding (Cai et al., PPoPP 2021, section 3), written again from the paper in Z3.

    python -m results.measuring.sccl_like allgather dgx1 --chunks 6 --steps 3 --rounds 7

It shares nothing with synth, the machines included, so that its verdicts check synth's. The variables are the paper's:
for every chunk and rank an integer, the step by which the rank has the chunk; for every chunk and link a boolean, true
if the chunk is sent over the link; for every step its rounds. The rounds are counted by a boolean for each one after
the first, because integers, as in the paper, were at least five times slower. Every step and set of links has a
bandwidth constraint. The encoding leaves out nothing that the paper describes and adds nothing: no pruning by distance
and no symmetry. A schedule is replayed before the verdict is `sat`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

Pair = tuple[int, int]
COLLECTIVES = ("allgather", "alltoall", "broadcast", "gather")

# NVLinks between the GPUs of a DGX-1, pairs of single and of double links (SCCL, figure 2).
_DGX1_SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))
_DGX1_DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))


@dataclass(frozen=True)
class Machine:
    """A network of ranks.

    Attributes:
        nranks: Number of ranks.
        links: Directed links.
        bandwidth: Sets of links, each with the number of chunks that it carries a round.
    """

    nranks: int
    links: tuple[Pair, ...]
    bandwidth: tuple[tuple[tuple[Pair, ...], int], ...]


@dataclass(frozen=True)
class Demand:
    """The chunks of a collective.

    Attributes:
        before: The rank that has each chunk before.
        after: The ranks that must have each chunk after.
    """

    before: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Outcome:
    """The verdict on a question.

    Attributes:
        status: `sat`, `unsat` or `unknown`.
        sends: Sends of a schedule (chunk, link, step), if `sat`.
        rounds: Rounds of each step, if `sat`.
    """

    status: str
    sends: tuple[tuple[int, Pair, int], ...] = ()
    rounds: tuple[int, ...] = ()


def machine(name: str) -> Machine:
    """Return a machine by name.

    Args:
        name: `dgx1`, `ring:N`, `full:N`, or `hub:N`, in which every rank has one port in and one port out to all
            others.
    """
    kind, _, number = name.partition(":")
    n = int(number) if number else 8
    if kind == "dgx1":
        weights = dict.fromkeys(_DGX1_SINGLE, 1) | dict.fromkeys(_DGX1_DOUBLE, 2)
    elif kind == "ring":
        weights = {(i, (i + 1) % n): 1 for i in range(n)}
    elif kind in ("full", "hub"):
        weights = {(i, j): 1 for i in range(n) for j in range(i)}
    else:
        raise SystemExit(f"sccl_like: unknown machine {name!r}; use dgx1, ring:N, full:N or hub:N")
    weight_of_link = {**weights, **{(v, u): w for (u, v), w in weights.items()}}
    links = tuple(sorted(weight_of_link))
    if kind == "hub":
        ports = [tuple(p for p in links if p[end] == rank) for end in (0, 1) for rank in range(n)]
        return Machine(n, links, tuple((port_links, 1) for port_links in ports))
    return Machine(n, links, tuple(((link,), weight_of_link[link]) for link in links))


def demand(collective: str, nranks: int, chunks: int) -> Demand:
    """Return the demand of a collective.

    Args:
        collective: One of COLLECTIVES. The root is rank 0.
        nranks: Number of ranks.
        chunks: Chunks of a rank (allgather, gather), of a pair of ranks (alltoall) or of the buffer (broadcast).
    """
    everyone = tuple(range(nranks))
    before: list[int] = []
    after: list[tuple[int, ...]] = []
    for source in range(1 if collective == "broadcast" else nranks):
        goals = [(rank,) for rank in everyone] if collective == "alltoall" else [everyone]
        goals = [(0,)] if collective == "gather" else goals
        for goal in goals:
            before += [source] * chunks
            after += [goal] * chunks
    return Demand(tuple(before), tuple(after))


def solve(network: Machine, requirement: Demand, steps: int, rounds: int, limit_s: float) -> Outcome:
    """Decide whether the demand can be met in a number of steps and rounds."""
    import z3

    solver = z3.Solver()
    solver.set("timeout", int(limit_s * 1000))
    nchunks, ranks = len(requirement.before), range(network.nranks)
    time = [[z3.Int(f"time_{c}_{n}") for n in ranks] for c in range(nchunks)]
    send = [{link: z3.Bool(f"send_{c}_{link[0]}_{link[1]}") for link in network.links} for c in range(nchunks)]
    further = [[z3.Bool(f"round_{s}_{k}") for k in range(rounds - steps)] for s in range(steps)]
    for c in range(nchunks):
        for n in ranks:
            arrivals = [send[c][link] for link in network.links if link[1] == n]
            if n == requirement.before[c]:
                solver.add(time[c][n] == 0)
                solver.add(z3.Not(z3.Or(arrivals)))
                continue
            solver.add(time[c][n] >= 1, time[c][n] <= steps + 1)
            if n in requirement.after[c]:
                solver.add(time[c][n] <= steps)
            solver.add(z3.AtMost(*arrivals, 1))
            solver.add(z3.Implies(time[c][n] <= steps, z3.Or(arrivals)))
        for (source, target), sent in send[c].items():
            solver.add(z3.Implies(sent, time[c][source] < time[c][target]))
    for step in range(steps):
        for links, carries in network.bandwidth:
            busy = [(z3.And(send[c][link], time[c][link[1]] == step + 1), 1) for c in range(nchunks) for link in links]
            unused = [(z3.Not(extra), carries) for extra in further[step]]
            solver.add(z3.PbLe(busy + unused, carries * (1 + len(unused))))
    solver.add(z3.PbEq([(extra, 1) for row in further for extra in row], rounds - steps))
    answer = solver.check()
    if answer != z3.sat:
        return Outcome("unsat" if answer == z3.unsat else "unknown")
    model = solver.model()
    arrives = [[model.eval(t, model_completion=True).as_long() for t in row] for row in time]
    sends = tuple(
        (c, link, arrives[c][link[1]] - 1)
        for c in range(nchunks)
        for link, sent in send[c].items()
        if z3.is_true(model.eval(sent)) and arrives[c][link[1]] <= steps
    )
    return Outcome("sat", sends, tuple(1 + sum(z3.is_true(model.eval(extra)) for extra in row) for row in further))


def wrong(network: Machine, requirement: Demand, steps: int, rounds: int, outcome: Outcome) -> str:
    """Return what is wrong with a schedule, or "" if it is right; this replay knows nothing of the encoding."""
    if len(outcome.rounds) != steps or sum(outcome.rounds) != rounds or min(outcome.rounds) < 1:
        return f"the rounds {outcome.rounds} do not add up to {rounds} in {steps} steps"
    holders = [{rank} for rank in requirement.before]
    for step in range(steps):
        now = [(chunk, link) for chunk, link, at in outcome.sends if at == step]
        for chunk, (source, _) in now:
            if source not in holders[chunk]:
                return f"step {step}: rank {source} sends chunk {chunk}, which it does not hold"
        for links, carries in network.bandwidth:
            load = sum(link in links for _, link in now)
            if load > carries * outcome.rounds[step]:
                return f"step {step}: {load} chunks over {links}, which carry {carries} a round"
        for chunk, (_, target) in now:
            holders[chunk].add(target)
    for chunk, goals in enumerate(requirement.after):
        if not holders[chunk].issuperset(goals):
            return f"chunk {chunk} does not reach the ranks {sorted(set(goals) - holders[chunk])}"
    return ""


def decide(collective: str, name: str, chunks: int, steps: int, rounds: int, limit_s: float = 150.0) -> str:
    """Return `sat`, `unsat` or `unknown`.

    Raises:
        ArithmeticError: If a schedule that Z3 returns is wrong.
    """
    network = machine(name)
    requirement = demand(collective, network.nranks, chunks)
    outcome = solve(network, requirement, steps, rounds, limit_s)
    fault = wrong(network, requirement, steps, rounds, outcome) if outcome.status == "sat" else ""
    if fault:
        raise ArithmeticError(fault)
    return outcome.status


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the verdict on one question."""
    parser = argparse.ArgumentParser(description="SCCL's encoding in Z3")
    parser.add_argument("collective", nargs="?", default="allgather", choices=COLLECTIVES)
    parser.add_argument("machine", nargs="?", default="dgx1", help="dgx1, ring:N, full:N, hub:N")
    for option, example in (("--chunks", 2), ("--steps", 2), ("--rounds", 3)):
        parser.add_argument(option, type=int, default=example)
    parser.add_argument("--limit", type=float, default=150.0, help="seconds")
    options = parser.parse_args(arguments)
    print(decide(options.collective, options.machine, options.chunks, options.steps, options.rounds, options.limit))


if __name__ == "__main__":
    main()
