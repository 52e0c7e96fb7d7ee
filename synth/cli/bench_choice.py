"""What `synth bench` runs at a message size, and what is known of it: predicted time and bound."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from emit.formats import verify_program
from emit.goal import Goal
from emit.library.index import Entry, load_index
from emit.library.lookup import entry_beside, goal_beside
from emit.program import Program
from emit.targets import TARGETS
from emit.timing.predict import Predictor
from synth.bounds.prove import Bound, prove
from synth.model.problem import make_problem, parse_ranks
from synth.model.registry import find_kind, parse_name
from synth.storage.schedule_file import load_schedule
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology


@dataclass(eq=False)
class Chosen:
    """A file that is to run. entry: what its library's index says of it, None where there is none."""

    name: str
    program: Program
    goal: Goal | None
    entry: Entry | None

    def communicator(self, topology: Topology) -> tuple[int, ...] | None:
        """The topology's rank of each of the program's, None: the first ones."""
        if self.entry is not None and self.entry.topology == topology.name:
            return self.entry.communicator
        return None

    def made_for(self) -> Topology | None:
        """The network that the file was made for: its schedule's, else the known one of this name."""

        if self.entry is None:
            return None
        with suppress(InputError):
            if self.entry.schedule is None:
                return load(self.entry.topology)
            return load_schedule(self.entry.folder / self.entry.schedule).problem.topology
        return None


class Known:
    """Predicted time and bound of a chosen file on a network, reckoned once and then asked for sizes.

    asked: the user named this network. Raises InputError where it is, and the program cannot run there.
    """

    def __init__(self, chosen: Chosen, topology: Topology | None, asked: bool = False) -> None:
        self._predictor: Predictor | None = None
        self._bound: Bound | None = None
        if topology is None:
            return

        with suppress(*(() if asked else (InputError,))):
            self._predictor = Predictor(chosen.program, topology, chosen.communicator(topology))
        with suppress(InputError):
            self._bound = _bound(chosen, topology)

    def predicted_us(self, size_bytes: int) -> float | None:
        """The program's time there, None where not known."""
        if self._predictor is None:
            return None
        try:
            return self._predictor.time_us(size_bytes)
        except InputError:
            return None

    def bound_us(self, size_bytes: int) -> float | None:
        """What no algorithm can beat there, None where not known."""
        if self._bound is None or not self._bound.witnesses:
            return None
        found, _ = self._bound.at(size_bytes)
        return found if found > 0 else None


def _bound(chosen: Chosen, topology: Topology) -> Bound | None:
    """Of what the file answers, where its name says what that is."""

    program, entry = chosen.program, chosen.entry
    collective, ranks = program.collective, tuple(range(program.nranks))
    relays: tuple[int, ...] = ()
    root: int | None = program.root if find_kind(collective).rooted else None
    if entry is not None and entry.topology == topology.name:
        collective, ranks, relays, root = entry.collective, entry.group, entry.relays, entry.root
    if not find_kind(collective).by_name or len(ranks) < 2:
        return None
    return prove(make_problem(topology, collective, ranks, relays=relays, root=root))


def chooser(path: Path, collective: str | None, group: str | None) -> Callable[[int], Chosen | None]:
    """What runs at a message size: the file itself, or a library's.

    Raises InputError for a file or library that cannot be read, or more than one question's algorithms.
    """
    if not path.is_dir() and path.name != "index.json":
        if collective is not None or group is not None:
            raise InputError("--collective, --group: choose from a library; this is one file")
        one = Chosen(path.stem, *_read(path), entry_beside(path))
        return lambda _: one

    entries = load_index(path)
    if collective is not None:
        entries = [e for e in entries if e.collective == parse_name(collective)]
    if group is not None:
        entries = [e for e in entries if e.group == parse_ranks(group, "--group", 1 << 20)]
    readers = {TARGETS[e.target].reader for e in entries if not TARGETS[e.target].runs_here}
    entries = [e for e in entries if TARGETS[e.target].runs_here]
    if readers and not entries:
        raise InputError(f"{path}: holds only files for {', '.join(sorted(readers))}; it must hold MSCCL XML")
    questions = sorted({_question(e) for e in entries})
    if len(questions) != 1:
        asked = (
            "--collective and --group: must be one of"
            if questions
            else "--collective, --group: there are only"
        )
        there = questions or sorted({_question(e) for e in load_index(path)})
        raise InputError(f"{path}: {asked} {'; '.join(there[:6])}{'; …' if len(there) > 6 else ''}")
    known: dict[str, Chosen] = {}

    def choose(size: int) -> Chosen | None:
        for entry in entries:
            if entry.serves(size):
                if entry.file not in known:
                    known[entry.file] = Chosen(entry.path.stem, *_read(entry.path), entry)
                return known[entry.file]
        return None

    return choose


def _question(entry: Entry) -> str:
    group = ",".join(map(str, entry.group))
    return f"{entry.collective} on {entry.topology} --group {group} for {entry.target}"


def _read(path: Path) -> tuple[Program, Goal | None]:

    goal = goal_beside(path)
    verdict = verify_program(path, goal)
    if verdict.program is None:
        raise InputError(f"not readable: {'; '.join(verdict.lines)}")
    return verdict.program, goal
