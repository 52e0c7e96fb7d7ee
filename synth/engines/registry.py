"""The registry of the engines, one row each.

A new engine is a module with the functions `accepts` and `solve`, and its row here. A row imports its module only when
the engine is used, so that the command line starts fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from topologies.errors import InputError, did_you_mean

if TYPE_CHECKING:  # The registry must import no engine's types when it is read.
    from synth.engines.request import Options, Outcome, Request
    from synth.model.problem import Problem

AUTO = "auto"


@dataclass(frozen=True)
class Engine:
    """A source of schedules.

    Attributes:
        name: Value of `--engine`.
        summary: A few words for `--help`.
        module: Module with the engine's two functions. accepts(problem, options) returns "" or the reason why the
            engine cannot work on the problem, as words that can stand in an error. solve(problem, request) returns an
            iterator over candidates, claims and progress, which ends when nothing is left to try.
        solvers: Solvers that the engine calls, in this order.
        processes: Solver processes that are worth starting before the question is read.
        constructive: Whether the engine answers at once. Constructive engines run before an engine that does not.
        asked: Whether `auto` includes the engine. A variant of another engine only runs when it is named.
        is_near: Whether its answers come so near to the bound that better bounds are searched while it works.
        form: Algorithm of the module that this engine stands for, passed to the module's functions as last argument;
            empty where the module is one engine.
    """

    name: str
    summary: str
    module: str
    solvers: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    constructive: bool = True
    asked: bool = True
    is_near: bool = False
    form: str = ""

    def accepts(self, problem: Problem, options: Options) -> str:
        """Return the reason why the engine cannot work on a problem, empty where it can."""
        return str(import_module(self.module).accepts(problem, options, *self._form))

    def solve(self, problem: Problem, request: Request) -> Iterator[Outcome]:
        """Yield the candidates, claims and progress of the engine."""
        outcomes: Iterator[Outcome] = import_module(self.module).solve(problem, request, *self._form)
        return outcomes

    @property
    def _form(self) -> tuple[str, ...]:
        return (self.form,) if self.form else ()


_CLOSED = "synth.engines.closed_forms"
_STEINER, _LNS = "synth.engines.steiner.search", "synth.engines.lns.search"
_KSYNC, _EXACT = "synth.engines.ksync.search", ("cpsat", "linear")
ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("route", "greedy routing for few ranks, at once", "synth.engines.greedy.search"),
        Engine("baseline", "algorithms that a vendor's library would run", "synth.engines.baselines"),
        Engine("switch", "reductions and multicasts in switches", "synth.engines.switch"),
        Engine("closed", "exchanges by formula: all of the next seven engines", _CLOSED),
        *(
            Engine(form, source, _CLOSED, asked=False, form=form)
            for form, source in (
                ("bucket", "rings along a grid's dimensions"),
                ("multiplying", "exchange between all ranks of a grid's line"),
                ("trivance", "exchange with the ranks on each side, in powers of three"),
                ("swing", "partners at alternating distances, for even tori"),
                ("bine", "binomial trees in base -2"),
                ("pat", "NCCL's parallel aggregated trees"),
                ("dissemination", "Bruck's partners at powers of two"),
            )
        ),
        Engine("one-shot", "allreduce in which every rank sums for itself, short messages", "synth.engines.one_shot"),
        Engine("two-hops", "broadcast and reduce where all ranks are linked", "synth.engines.two_hops"),
        Engine("levels", "schedules across nodes and inside them, composed", "synth.engines.levels.search"),
        Engine("trees", "spanning trees at the throughput optimum, pipelined", "synth.engines.trees.search"),
        Engine("steiner", "trees through relays at the throughput optimum, pipelined", _STEINER, is_near=True),
        Engine("flow", "routing and scheduling for any number of ranks", "synth.engines.flow.search", is_near=True),
        Engine("lns", "large neighbourhood search over routes and times", _LNS, is_near=True),
        Engine("ksync", "CP-SAT and Z3 in steps and rounds", _KSYNC, ("cpsat", "smt"), _EXACT, constructive=False),
        Engine("cpsat", "CP-SAT alone", _KSYNC, ("cpsat",), _EXACT, constructive=False, asked=False),
        Engine("smt", "Z3 alone", _KSYNC, ("smt",), _EXACT, constructive=False, asked=False),
        Engine("milp", "time slots", "synth.engines.time_slots", ("milp",), _EXACT, constructive=False),
    )
}


def register(engine: Engine) -> Engine:
    """Add a row to the registry, in place of a row of the same name."""
    ENGINES[engine.name] = engine
    return engine


def names() -> tuple[str, ...]:
    """Return all values of `--engine`."""
    return (AUTO, *ENGINES)


def summaries() -> str:
    """Return all names with their summaries, for `--help`."""
    return ", ".join([f"{AUTO} (every engine that can)", *(f"{e.name} ({e.summary})" for e in ENGINES.values())])


def engines_named(name: str) -> list[Engine]:
    """Return the engines that a value of `--engine` stands for.

    Raises:
        InputError: If the name is unknown; the message shows the nearest names.
    """
    if name == AUTO:
        return [engine for engine in ENGINES.values() if engine.asked]
    if name not in ENGINES:
        near = did_you_mean(name, names())
        hint = f" ({near})" if near else ""
        raise InputError(f"engine: {name!r} is not known{hint}; it is one of {', '.join(names())}")
    return [ENGINES[name]]


def processes(name: str) -> tuple[str, ...]:
    """Return the solver processes that are worth starting ahead for a value of `--engine`, none for an unknown one."""
    rows = engines_named(name) if name in names() else []
    return tuple(dict.fromkeys(process for engine in rows for process in engine.processes))
