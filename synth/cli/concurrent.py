"""`--groups` of the commands that search: concurrent groups on the links that they share."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from emit.library.index import SCHEDULES
from emit.library.write import writing
from synth.cli.answer import check_writable, clear_progress, collective_of, ending, progress_line
from synth.cli.options import Asked, print_json
from synth.concurrent.isolated import isolated_parts
from synth.concurrent.notation import parse_members
from synth.concurrent.plan import ConcurrentResult, plan
from synth.concurrent.statement import statement
from synth.model.problem import parse_ranks
from synth.present.table import concurrent_table
from synth.solvers.workers import Workers
from synth.storage.proof import save_proof
from synth.storage.schedule_file import save_schedule, write_schedule
from synth.timing.simulate import time_us, timed
from synth.verify.replay import replay
from topologies.errors import InputError
from topologies.faults.ranks import dead_ranks
from topologies.load import load

_SINGLE = {  # options of a single group, and what there is instead
    "group": "the groups are all named in --groups",
    "root": "a group's first rank is its root",
    "steps": "the k-synchronous model is for one group",
    "rounds": "the k-synchronous model is for one group",
}


def answer(name: str, file: str | None, asked: Asked, workers: Workers) -> Callable[[], None]:
    """Plan concurrent groups; as `synth.cli.answer.answer`. InputError for options that go with one group only."""
    check_writable(Path(asked.out))
    collective = collective_of(name, file)
    for option, why in _SINGLE.items():
        if getattr(asked, option) is not None:
            raise InputError(f"--{option}: does not go with --groups; {why}")
    if asked.target != "auto":
        raise InputError(
            f"--target {asked.target}: does not go with --groups; their schedule is one file, NAME.synth, for all"
        )
    topology = load(asked.topo)
    members = parse_members(
        str(asked.groups),
        collective,
        topology,
        dead=dead_ranks(topology, asked.without),
        size=asked.size,
        sizes=asked.group_sizes,
    )
    found = plan(
        topology,
        members,
        relays=asked.relay if asked.relay in ("none", "all") else parse_ranks(asked.relay, "--relay", topology.nranks),
        without=asked.without,
        degrade=asked.degrade,
        objective="makespan" if asked.objective is None else asked.objective,
        chunks=asked.chunks,
        engine=asked.engine,
        budget=asked.budget,
        seed=asked.seed,
        workers=workers,
        progress=progress_line(asked.begun),
    )
    return partial(_report, found, asked)


def _report(found: ConcurrentResult, asked: Asked) -> None:
    clear_progress()
    paths = saved(found, asked.out, proof=asked.proof)
    document = statement(found)
    if asked.as_json:
        for path in paths:
            key = "proof_file" if path.name.endswith(".proof.json") else "schedule"
            document.setdefault(key, str(path))
            document.setdefault("files", []).append(str(path))
        print_json(document)
    else:
        closing = [f"replayed and right → {', '.join(map(str, paths))}", *ending(found.ended, asked.begun)]
        labels = [member.label for member in found.problem.members]
        click.echo(concurrent_table(document, labels, found.problem.topology.nranks) + "\n\n" + "   ".join(closing))
    if found.ended == "interrupted":
        raise SystemExit(130)


def saved(found: ConcurrentResult, folder: str | Path, *, proof: bool = False) -> list[Path]:
    """Write the union's schedule (schedules/NAME.synth) and, with `proof`, what proves its bound beside it.

    Where a group's own bound is higher than the union's, that group's part of the schedule and the proof of its bound
    are written too (NAME-groupN.synth, NAME-groupN.proof.json). InputError: the folder cannot be written.
    """
    name = f"{SCHEDULES}/{_stem(found)}"
    size = found.size_bytes
    with writing(folder) as library:
        path = save_schedule(library.place(f"{name}.synth"), found.algorithm, size)
        if not proof:
            return library.commit()
        beside = library.place(f"{name}.proof.json")
        save_proof(path, found.problem, found.bound.witnesses, size, found.makespan_us, beside)
        group = found.decisive[2]
        if group is not None:
            own = found.isolated[group]
            at_size = timed(found.problem, found.algorithm.schedule, size)
            ((problem, part),) = isolated_parts(found.problem, at_size, [group])
            replay(problem, part)  # at the union's times
            path = library.place(f"{name}-group{group}.synth")
            write_schedule(path, problem, part, found.algorithm.engine)
            beside = library.place(f"{name}-group{group}.proof.json")
            save_proof(path, problem, own.bound.witnesses, part.size_bytes, time_us(problem, part), beside)
        return library.commit()


def _stem(found: ConcurrentResult) -> str:
    """A file's name without its ending: what is asked, shortened, and the shape."""
    asked = found.problem
    plain = [re.sub(r"[^A-Za-z0-9_.-]+", "-", name) for name in (asked.collective.name, Path(asked.topology.name).name)]
    question = repr(
        [(m.ranks, m.collective.name, float(m.size_bytes)) for m in asked.members] + [found.relay, found.objective]
    )
    hashed = f"{zlib.crc32(question.encode()):08x}"
    shape = f"{found.algorithm.steps}step-{len(found.algorithm.schedule)}sends"
    return "-".join([*plain, f"{len(asked.members)}groups", hashed, shape])
