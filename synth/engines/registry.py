"""The registry of the engines, one row each.

A new engine is a module with the functions of the protocol `Engine`, a function here that imports it, by which mypy
checks it, and its row. A row imports its module only when the engine is used, so that the command line starts fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from topologies.errors import InputError, right_name

if TYPE_CHECKING:  # The registry must import no engine's types when it is read.
    from synth.engines.request import Engine, Options, Outcome, Request
    from synth.model.problem import Problem

AUTO = "auto"


def _route() -> Engine:
    from synth.engines import route

    return route


def _baseline() -> Engine:
    from synth.engines import baselines

    return baselines


def _switch() -> Engine:
    from synth.engines import switch

    return switch


def _closed(form: str = "") -> Engine:
    """Return the engine of closed-form exchanges: with one named form only, or with all of them if `form` is empty."""
    from synth.engines.closed_forms import ClosedForms

    return ClosedForms(form)


def _one_shot() -> Engine:
    from synth.engines import one_shot

    return one_shot


def _balanced() -> Engine:
    """Import and return `balanced`, the module of the engine `balanced`."""
    from synth.engines import balanced

    return balanced


def _two_hops() -> Engine:
    from synth.engines import two_hops

    return two_hops


def _messages() -> Engine:
    from synth.engines.messages import search

    return search


def _skewed() -> Engine:
    from synth.engines.skewed import search

    return search


def _levels() -> Engine:
    from synth.engines.levels import search

    return search


def _rails() -> Engine:
    from synth.engines.rails import search

    return search


def _trees() -> Engine:
    from synth.engines.trees import search

    return search


def _steiner() -> Engine:
    from synth.engines.steiner import search

    return search


def _flow() -> Engine:
    from synth.engines.flow import search

    return search


def _lns() -> Engine:
    from synth.engines.lns import search

    return search


def _ksync() -> Engine:
    """Import and return the module that the engines `ksync`, `cpsat` and `smt` share."""
    from synth.engines.ksync import search

    return search


def _milp() -> Engine:
    """Import and return `time_slots`, the module of the engine `milp`."""
    from synth.engines import time_slots

    return time_slots


@dataclass(frozen=True)
class EngineRow:
    """A row of the registry: an engine, and what a search must know to call it.

    Attributes:
        name: Value of `--engine`.
        summary: A few words for `synth engines`.
        load: Imports the engine's module and returns it.
        solvers: Solvers that the engine calls, in this order.
        processes: Solver processes that are worth starting before the question is read.
        constructive: Whether the engine answers at once. Where the user names an engine that does not, the stages that
            are marked `as_first` run before it.
        in_auto: Whether `auto` includes the engine. A variant of another engine only runs when it is named.
        is_near: Whether its answers come so near to the bound that better bounds are searched while it works.
        cuts_unequally: Whether it can cut blocks with sizes of their own into chunks of about one size (see `in_chunks`
            in `synth.model.collective`). For other engines every block is cut into as many equal chunks.
        reverses: Whether it solves the reverse of a problem where that is likely to be better (`in_reverse`).
    """

    name: str
    summary: str
    load: Callable[[], Engine]
    solvers: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    constructive: bool = True
    in_auto: bool = True
    is_near: bool = False
    cuts_unequally: bool = False
    reverses: bool = False

    def accepts(self, problem: Problem, options: Options) -> str:
        """Import the engine, and return the reason why it cannot work on a problem, empty where it can."""
        return self.load().accepts(problem, options)

    def solve(self, problem: Problem, request: Request) -> Iterator[Outcome]:
        """Import the engine, and return the iterator over its candidates, claims and progress."""
        if not self.cuts_unequally and problem.collective.block is not None:
            problem = replace(problem, collective=replace(problem.collective, block=None))
        solve = self.load().solve
        if not self.reverses:
            return solve(problem, request)
        from synth.engines.in_reverse import solved

        return solved(solve, problem, request)


_EXACT = ("cpsat", "linear")
ENGINES: dict[str, EngineRow] = {
    row.name: row
    for row in (
        EngineRow("route", "a few passes of routing for few ranks, at once", _route, cuts_unequally=True),
        EngineRow("baseline", "algorithms that a vendor's library would run", _baseline),
        EngineRow("switch", "reductions and multicasts in switches", _switch),
        EngineRow("closed", "exchanges by formula: all of the next seven engines", _closed),
        *(
            EngineRow(form, summary, partial(_closed, form), in_auto=False)
            for form, summary in (
                ("bucket", "rings along a grid's dimensions"),
                ("multiplying", "exchange between all ranks of a grid's line"),
                ("trivance", "exchange with the ranks on each side, in powers of three"),
                ("swing", "partners at alternating distances, for even tori"),
                ("bine", "binomial trees in base -2"),
                ("pat", "NCCL's parallel aggregated trees"),
                ("dissemination", "Bruck's partners at powers of two"),
            )
        ),
        EngineRow("one-shot", "allreduce in which every rank sums for itself, short messages", _one_shot),
        EngineRow("balanced", "all-gather and reduce-scatter of unlike blocks, all ranks linked", _balanced),
        EngineRow("two-hops", "broadcast and reduce where all ranks are linked", _two_hops),
        EngineRow("messages", "few messages between nodes, where each costs a gap", _messages, cuts_unequally=True),
        EngineRow("skewed", "all-to-all of given sizes, balanced over NICs or links", _skewed),
        EngineRow(
            "levels", "schedules across nodes and inside them, composed", _levels, cuts_unequally=True, reverses=True
        ),
        EngineRow("rails", "schedules for nodes that are not alike, over their rails", _rails),
        EngineRow("trees", "spanning trees at the throughput optimum, pipelined", _trees),
        EngineRow(
            "steiner",
            "trees through relays at the throughput optimum, pipelined",
            _steiner,
            is_near=True,
            cuts_unequally=True,
        ),
        EngineRow(
            "flow",
            "routing and scheduling for any number of ranks",
            _flow,
            is_near=True,
            cuts_unequally=True,
            reverses=True,
        ),
        EngineRow("lns", "large neighbourhood search over routes and times", _lns, is_near=True, cuts_unequally=True),
        EngineRow("ksync", "CP-SAT and Z3 in steps and rounds", _ksync, ("cpsat", "smt"), _EXACT, constructive=False),
        EngineRow("cpsat", "CP-SAT alone", _ksync, ("cpsat",), _EXACT, constructive=False, in_auto=False),
        EngineRow("smt", "Z3 alone", _ksync, ("smt",), _EXACT, constructive=False, in_auto=False),
        EngineRow("milp", "time slots", _milp, ("linear",), _EXACT, constructive=False),
    )
}


def register(row: EngineRow) -> EngineRow:
    """Add a row to the end of the registry `ENGINES`, or replace the row of the same name, and return the row."""
    ENGINES[row.name] = row
    return row


def names() -> tuple[str, ...]:
    """Return all values of `--engine`: `auto`, then the names of all engines in the order of the registry."""
    return (AUTO, *ENGINES)


_SPELLINGS = {"cp-sat": "cpsat", "z3": "smt"}  # solvers as tables name them, by the names of their engines


def engines_named(name: str) -> list[EngineRow]:
    """Return the engines that a value of `--engine` stands for, in the order of the registry.

    `auto` stands for the engines that are marked `in_auto`; any other name stands for its one engine.

    Raises:
        InputError: If the name is unknown; the message shows the nearest names.
    """
    if name == AUTO:
        return [row for row in ENGINES.values() if row.in_auto]
    name = _SPELLINGS.get(name, name)
    if name not in ENGINES:
        raise InputError(f"engine: {name[:40]!r} is not known; {right_name(name, names(), 'synth engines')}")
    return [ENGINES[name]]


def processes(name: str) -> tuple[str, ...]:
    """Return the solver processes that are worth starting ahead for a value of `--engine`, each once.

    An unknown value has none.
    """
    rows = engines_named(name) if name in names() else []
    return tuple(dict.fromkeys(process for row in rows for process in row.processes))
