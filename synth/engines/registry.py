"""The engines: one row each. Adding one is a file with `accepts` and `solve`, and its row here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from synth.engines import library
from synth.engines.flow import search as flow
from synth.engines.greedy import search as greedy
from synth.engines.ksync import search as ksync
from synth.engines.request import Options, Outcome, Request
from synth.engines.time_slots import search as time_slots
from synth.model.problem import Problem
from topologies.errors import InputError

__all__ = ["AUTO", "ENGINES", "Engine", "Solve", "chosen", "names", "register", "summaries"]

AUTO = "auto"

Solve = Callable[[Problem, Request], Iterator[Outcome]]


@dataclass(frozen=True)
class Engine:
    """A way to look for schedules.

    Attributes:
        name: what `--engine` takes.
        summary: one line for people.
        accepts: (problem, options) → "" or why it cannot work on them, in words that can stand in an error.
        solve: yields candidates, claims and progress; ends when it has nothing left to try.
        solvers: the solver processes that are worth starting ahead for it.
        constructive: whether it answers at once; one that does not has others answer before it.
        asked: whether `auto` asks it; a variant of another engine is for those who name it.
    """

    name: str
    summary: str
    accepts: Callable[[Problem, Options], str]
    solve: Solve
    solvers: tuple[str, ...] = ()
    constructive: bool = True
    asked: bool = True


ENGINES: dict[str, Engine] = {}


def register(engine: Engine) -> Engine:
    """Add a row; a name that stands there is replaced."""
    ENGINES[engine.name] = engine
    return engine


def names() -> tuple[str, ...]:
    """All that `--engine` takes."""
    return (AUTO, *ENGINES)


def summaries() -> str:
    """All names with their summaries, for `--help`."""
    rows = [f"{AUTO} (all that can)", *(f"{e.name} ({e.summary})" for e in ENGINES.values())]
    return "; ".join(rows)


def chosen(name: str) -> list[Engine]:
    """The engines that a name of `--engine` stands for.

    Raises:
        InputError: unknown, with the nearest names.
    """
    if name == AUTO:
        return [engine for engine in ENGINES.values() if engine.asked]
    if name not in ENGINES:
        near = difflib.get_close_matches(name, names(), n=2, cutoff=0.5)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise InputError(f"engine: {name!r} is not known{hint}; it is one of {', '.join(names())}")
    return [ENGINES[name]]


register(Engine("route", "constructive, for few ranks, at once", greedy.accepts, greedy.solve))
register(Engine("baseline", "what a library would run", library.accepts, library.solve))
register(Engine("flow", "routing and scheduling for any number of ranks", flow.accepts, flow.solve))
register(
    Engine(
        "ksync",
        "CP-SAT and Z3 in the k-synchronous model",
        ksync.accepts,
        partial(ksync.solve, solvers=("cpsat", "smt")),
        ("cpsat", "linear"),
        constructive=False,
    )
)
for _name, _words in (("cpsat", "CP-SAT alone"), ("smt", "Z3 alone")):
    register(
        Engine(
            _name,
            _words,
            ksync.accepts,
            partial(ksync.solve, solvers=(_name,)),
            ("cpsat", "linear"),
            constructive=False,
            asked=False,
        )
    )
register(
    Engine(
        "milp",
        "time slots, by HiGHS or CBC",
        time_slots.accepts,
        time_slots.solve,
        ("cpsat", "linear"),
        constructive=False,
    )
)
