"""Give random small networks to every engine and bound, and report exceptions, wrong schedules and refuted bounds.

    python -m results.scripts.random_networks [--count N] [--seed N] [--minutes M] [--one NUMBER]

makes random_networks.md. A network has 2 to 5 ranks, directed links whose latencies and bandwidths may be far apart,
limits, and switches that may multicast and reduce. Each engine is called directly, so that no search contains its
errors.
"""

from __future__ import annotations

import argparse
import random
import time
import traceback
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice

from results.measuring.measure import grid, page, write
from synth.bounds.prove import Bound, prove
from synth.engines.registry import ENGINES, EngineRow
from synth.engines.request import Candidate, Options, Request
from synth.model.deadline import TimeUp, limited, now
from synth.model.problem import Problem, make_problem
from synth.search.run.runner import compiled_interrupts
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.symmetry.quotient import expand
from synth.verify.algorithm import Algorithm
from tests.random_problems import ROOTED, random_collective, random_topology
from tests.synth.engines.knowledge import BestTimes
from topologies.errors import InputError
from topologies.topology import SwitchOps, Topology

_LEAST_S, _EXACT_S = 0.1, 2.0  # Seconds of a constructive engine, and of an engine with solvers.
_MOST_ANSWERS = 8  # Limit of an engine's answers to one question.
_EXACT_EVERY = 25  # Each so many questions, engines with solvers are called.
_SEARCH_EVERY = 10  # Each so many questions, a whole search is run.
_ROUNDING = 1e-7
_FIGURES = (1e-9, 1e-3, 0.1, 1.0, 1 / 3, 25.0, 300.0, 1e4, 1e9)


def stretched(rng: random.Random, topology: Topology) -> Topology:
    """Return a topology with latencies and bandwidths that may be far apart, and switches that multicast and reduce."""
    gbs, alpha = topology.bandwidth_gbs, topology.alpha_us
    if rng.random() < 0.3:
        gbs = gbs * [rng.choice(_FIGURES) for _ in gbs]
    if rng.random() < 0.3:
        alpha = alpha * [rng.choice(_FIGURES) for _ in alpha]
    shares = [rng.choice((0.2, 0.5, 1.0)) for _ in topology.limits]
    limits = tuple(
        replace(limit, bandwidth_gbs=float(gbs[limit.links].sum()) * share)
        for limit, share in zip(topology.limits, shares, strict=True)
    )
    capable = [name for name in topology.switches if rng.random() < 0.7]
    ops = tuple(SwitchOps(name, rng.choice((0.0, 1.0)), rng.choice((0.5, 1.0))) for name in capable)
    return replace(topology, bandwidth_gbs=gbs, alpha_us=alpha, limits=limits, switch_ops=ops)


def drawn(seed: int, number: int) -> tuple[Problem, int | None]:
    """Return the question of a number, and its message size in bytes; None for all sizes.

    Raises:
        InputError: If the draw is no valid question.
    """
    rng = random.Random(f"{seed}:{number}")
    topology = stretched(rng, random_topology(rng, 5))
    group = rng.sample(range(topology.nranks), rng.randint(2, topology.nranks))
    outsiders = [rank for rank in range(topology.nranks) if rank not in group]
    collective = random_collective(rng, len(group), None)
    root = rng.choice(group) if collective in ROOTED else None
    size = rng.choice((None, 1, 1 << 10, 1 << 20, 1 << 30, 1 << 50))
    return make_problem(topology, collective, group, outsiders, root=root), size


def ask(engine: EngineRow, problem: Problem, size: int | None, bound: Bound, workers: Workers) -> int:
    """Return the number of schedules that an engine yields; -1 if it does not accept the problem.

    Each schedule is replayed and compared with the bound. Errors of the engine are raised as they are.

    Raises:
        AssertionError: If a schedule is faster than the bound.
    """
    options, answers = Options(size, budget_s=_LEAST_S if engine.constructive else _EXACT_S), 0
    if engine.accepts(problem, options):
        return -1
    sizes = (1 << 30, 1 << 10) if size is None else (size,)
    known_answers = BestTimes({})
    request = Request(options, sizes, now() + options.budget_s, workers, known_answers, bound, solvers=engine.solvers)
    with suppress(TimeUp, InputError), compiled_interrupts():
        for answer in limited(
            now() + 2 * options.budget_s, partial(list, islice(engine.solve(problem, request), _MOST_ANSWERS))
        ):
            if not isinstance(answer, Candidate | Algorithm):
                continue
            answered_problem, schedule = answer.problem, answer.schedule
            if isinstance(answer, Candidate) and answered_problem.quotient is not None and problem.quotient is None:
                answered_problem, schedule = expand(answered_problem, schedule)
            algorithm = Algorithm(answered_problem, schedule, answer.engine)
            answers += 1
            for size_bytes in sizes:
                if algorithm.time_us(size_bytes) < bound.at(size_bytes)[0] * (1 - _ROUNDING):
                    raise AssertionError(
                        f"{algorithm.time_us(size_bytes)} µs at {size_bytes} bytes is below the bound of"
                        f" {bound.at(size_bytes)[0]} µs"
                    )
    return answers


def main() -> None:
    """Ask all questions, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--one", type=int)
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    failures: dict[str, str] = {}
    questions = 0
    with Workers(("cpsat", "linear")) as workers:
        for number in range(options.count) if options.one is None else (options.one,):
            if time.monotonic() > until:
                break
            with suppress(InputError):
                problem, size = drawn(options.seed, number)
                questions += 1
                bound = Bound(())
                try:
                    bound = prove(problem)
                except Exception as error:
                    note("bounds", number, error, counts, failures)
                    continue
                for engine in ENGINES.values():
                    if not engine.constructive and number % _EXACT_EVERY:
                        continue
                    try:
                        answers = ask(engine, problem, size, bound, workers)
                        counts[engine.name]["called" if answers >= 0 else "not accepted"] += 1
                        counts[engine.name]["schedules"] += max(0, answers)
                    except Exception as error:
                        note(engine.name, number, error, counts, failures)
                if number % _SEARCH_EVERY == 0:
                    try:
                        result = search(problem, Options(size, budget_s=_EXACT_S), workers)
                        counts["the whole search"]["called"] += 1
                        counts["the whole search"]["schedules"] += len(result.ranges)
                        for defect in result.defects:
                            note("the whole search", number, RuntimeError(defect.line), counts, failures)
                    except InputError:
                        counts["the whole search"]["not accepted"] += 1
                    except Exception as error:
                        note("the whole search", number, error, counts, failures)
    columns = ("called", "not accepted", "schedules", "failures")
    rows = [(name, *(str(count[column]) for column in columns)) for name, count in counts.items()]
    about = (
        f"{questions} questions (seed {options.seed}) are about random directed networks of 2 to 5 ranks with limits,"
        " switches that multicast and reduce, and figures up to 18 powers of ten apart. Every schedule was replayed"
        f" and compared with the bound. Engines with solvers were called for every {_EXACT_EVERY}th question, the"
        f" whole search for every {_SEARCH_EVERY}th. The questions are a sample: `--minutes` limits the time in which"
        " they are drawn."
    )
    failure_lines = (
        "\n".join(f"- {line}" for line in failures.values()) or "No exception, no wrong schedule, no refuted bound."
    )
    if options.one is None:
        write(
            __file__, page(__file__, "Random small networks", [about, grid(("engine", *columns), rows), failure_lines])
        )
    print(failure_lines)


def note(
    part: str, number: int, error: Exception, counts: dict[str, Counter[str]], failures: dict[str, str]
) -> None:  # fmt: skip
    """Count a failure, and keep the first of each kind with its question."""
    counts[part]["failures"] += 1
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    place = "" if frame is None else f" in {frame.filename.rpartition('/')[2]}:{frame.lineno}"
    kind = f"{part}: {type(error).__name__}{place}"
    if kind not in failures:
        failures[kind] = f"{kind}, first in question {number}: {' '.join(str(error).split())[:200]}"
        print(failures[kind], flush=True)


if __name__ == "__main__":
    main()
