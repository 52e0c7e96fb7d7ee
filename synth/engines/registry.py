"""The engines: one row each. Adding one is a file with `accepts` and `solve`, and its row here.

The rows load no engine before it is asked, so that the command line can read them at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from topologies.errors import InputError, did_you_mean

if TYPE_CHECKING:  # the rows stand before what they are asked with
    from synth.engines.request import Options, Outcome, Request
    from synth.model.problem import Problem

AUTO = "auto"


@dataclass(frozen=True)
class Engine:
    """A source of schedules.

    Attributes:
        name: what `--engine` takes.
        summary: a few words for people.
        module: where its functions are: accepts(problem, options) → "" or why it cannot work on them, in words that
            can stand in an error; solve(problem, request) → an iterator over what it finds and proves, which ends
            when nothing is left to try.
        solvers: that it asks, in this order.
        processes: solver processes that are worth starting before the question is read.
        constructive: whether it answers at once; one that does not has others answer before it.
        asked: whether `auto` asks it; a variant of another engine is for those who name it.
        is_near: Whether its answers come so near to the bound that better bounds are searched while it works.
        form: which of the module's algorithms it is, handed on as a last argument; empty: the module is one engine.
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
        """Why the engine cannot work on a problem; empty where it can."""
        return str(import_module(self.module).accepts(problem, options, *self._form))

    def solve(self, problem: Problem, request: Request) -> Iterator[Outcome]:
        """What the engine finds and proves."""
        found: Iterator[Outcome] = import_module(self.module).solve(problem, request, *self._form)
        return found

    @property
    def _form(self) -> tuple[str, ...]:
        return (self.form,) if self.form else ()


_CLOSED = "synth.engines.closed_forms"
_STEINER, _LNS = "synth.engines.steiner.search", "synth.engines.lns.search"
_KSYNC, _EXACT = "synth.engines.ksync.search", ("cpsat", "linear")
ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("route", "constructive, for few ranks, at once", "synth.engines.greedy.search"),
        Engine("baseline", "what a library would run", "synth.engines.library"),
        Engine("switch", "reductions and multicasts in switches", "synth.engines.switch"),
        Engine("closed", "exchanges by formula: the next seven", _CLOSED),
        *(
            Engine(form, source, _CLOSED, asked=False, form=form)
            for form, source in (
                ("bucket", "rings along a grid's dimensions"),
                ("multiplying", "all of a grid's line exchange"),
                ("trivance", "both neighbours joined, in powers of three"),
                ("swing", "partners at swinging distances, for even tori"),
                ("bine", "binomial trees in base -2"),
                ("pat", "NCCL's parallel aggregated trees"),
                ("dissemination", "Bruck's partners at powers of two"),
            )
        ),
        Engine("one-shot", "allreduce with a sum for every rank, short messages", "synth.engines.one_shot"),
        Engine("two-hops", "broadcast and reduce where all ranks are linked", "synth.engines.two_hops"),
        Engine("levels", "across nodes and inside them, composed and overlapped", "synth.engines.levels.search"),
        Engine("trees", "spanning trees at the throughput optimum, pipelined", "synth.engines.trees.search"),
        Engine("steiner", "trees through relays at the throughput optimum, pipelined", _STEINER, is_near=True),
        Engine("flow", "routing and scheduling for any number of ranks", "synth.engines.flow.search", is_near=True),
        Engine("lns", "large neighbourhood search, routes and times together", _LNS, is_near=True),
        Engine("ksync", "CP-SAT and Z3 in steps and rounds", _KSYNC, ("cpsat", "smt"), _EXACT, constructive=False),
        Engine("cpsat", "CP-SAT alone", _KSYNC, ("cpsat",), _EXACT, constructive=False, asked=False),
        Engine("smt", "Z3 alone", _KSYNC, ("smt",), _EXACT, constructive=False, asked=False),
        Engine("milp", "time slots", "synth.engines.time_slots", ("milp",), _EXACT, constructive=False),
    )
}


def register(engine: Engine) -> Engine:
    """Add a row; a name that stands there is replaced."""
    ENGINES[engine.name] = engine
    return engine


def names() -> tuple[str, ...]:
    """All that `--engine` takes."""
    return (AUTO, *ENGINES)


def summaries() -> str:
    """All names with their summaries, for `--help`."""
    return ", ".join([f"{AUTO} (all that can)", *(f"{e.name} ({e.summary})" for e in ENGINES.values())])


def chosen(name: str) -> list[Engine]:
    """The engines that a name of `--engine` stands for.

    Raises:
        InputError: unknown, with the nearest names.
    """
    if name == AUTO:
        return [engine for engine in ENGINES.values() if engine.asked]
    if name not in ENGINES:
        near = did_you_mean(name, names())
        hint = f" ({near})" if near else ""
        raise InputError(f"engine: {name!r} is not known{hint}; it is one of {', '.join(names())}")
    return [ENGINES[name]]


def processes(name: str) -> tuple[str, ...]:
    """The solver processes that are worth starting ahead for a name of `--engine`; none for one that is not known."""
    rows = chosen(name) if name in names() else []
    return tuple(dict.fromkeys(process for engine in rows for process in engine.processes))
