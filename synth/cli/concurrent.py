"""`--groups` of the commands that search: several groups planned together on the links they share."""

from __future__ import annotations

import json
import re
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topologies.errors import InputError

if TYPE_CHECKING:
    from synth.concurrent.plan import Several
    from synth.model.collective import Collective
    from synth.search.result import Progress

__all__ = ["refuse_without_groups", "run_several", "saved"]

_ALONE = {  # options of a single group, and what there is instead
    "group": "the groups are all named in --groups",
    "root": "a group's first rank is its root",
    "steps": "the k-synchronous model is for one group",
    "rounds": "the k-synchronous model is for one group",
}


def refuse_without_groups(group_sizes: str | None, objective: str | None) -> None:
    """Raises InputError for options that say nothing without `--groups`."""
    for option, value in (("--group-sizes", group_sizes), ("--objective", objective)):
        if value is not None:
            raise InputError(f"{option}: is for several groups; name them with --groups, as in 0-7;8-15")


def run_several(
    collective: str | Collective,
    topo: str,
    groups: str,
    *,
    group_sizes: str | None,
    objective: str | None,
    relay: str,
    without: Sequence[str],
    degrade: Sequence[str],
    size: str | None,
    engine: str,
    budget_s: float,
    target: str,
    out: str,
    proof: bool,
    as_json: bool,
    progress: Progress | None,
    begun: float,
    chunks: int | None = None,
    seed: int = 0,
    **single: Any,
) -> None:
    """Answer the command; `single` holds options that go with one group only, which must not be given.

    Raises:
        InputError: anything that cannot be.
    """
    for name, why in _ALONE.items():
        if single.get(name) is not None:
            raise InputError(f"--{name}: does not go with --groups; {why}")
    if target != "auto":
        raise InputError(
            f"--target {target}: does not go with --groups; their schedule is one file, NAME.synth, for all"
        )
    from synth.concurrent.notation import parse_members
    from synth.concurrent.plan import plan
    from synth.model.problem import parse_ranks
    from topologies.faults.apply import dead_ranks
    from topologies.load import load

    topology = load(topo)
    members = parse_members(
        groups, collective, topology, dead=dead_ranks(topology, without), size=size, sizes=group_sizes
    )
    found = plan(
        topology,
        members,
        relays=relay if relay in ("none", "all") else parse_ranks(relay, "--relay", topology.nranks),
        without=without,
        degrade=degrade,
        objective="makespan" if objective is None else objective,
        chunks=chunks,
        engine=engine,
        budget=budget_s,
        seed=seed,
        progress=progress,
    )
    _report(found, out, proof, as_json, begun)


def _report(found: Several, out: str, proof: bool, as_json: bool, begun: float) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")
    paths = saved(found, out, proof=proof)
    if as_json:
        said = found.statement()
        for path in paths:
            key = "proof_file" if path.name.endswith(".proof.json") else "schedule"
            said.setdefault(key, str(path))
            said.setdefault("files", []).append(str(path))
        click.echo(json.dumps(said, ensure_ascii=False, indent=1))
    else:
        closing = [f"replayed and right → {', '.join(map(str, paths))}"]
        if found.ended == "interrupted":
            closing.append("interrupted: the best so far")
        elif found.ended == "budget":
            closing.append("the budget ended: the best so far")
        closing.append(f"{time.monotonic() - begun:.1f} s")
        click.echo(found.table() + "\n\n" + "   ".join(closing))
    if found.ended == "interrupted":
        raise SystemExit(130)


def saved(found: Several, folder: str | Path, *, proof: bool = False) -> list[Path]:
    """Write the union's schedule (schedules/NAME.synth) and, with `proof`, what proves its bound beside it.

    Where a group's own bound is higher than the union's, that group's part of the schedule and the proof of its
    bound are written too (NAME-groupN.synth, NAME-groupN.proof.json).

    Raises:
        InputError: the folder cannot be written.
    """
    from emit.library.index import SCHEDULES
    from emit.library.write import writing
    from synth.concurrent.isolated import parts_alone
    from synth.storage.proof import save_proof
    from synth.storage.schedule_file import save_schedule, write_schedule
    from synth.timing.simulate import time_us, timed
    from synth.verify.replay import replay

    name = f"{SCHEDULES}/{_stem(found)}"
    size = found.size_bytes
    with writing(folder) as library:
        path = save_schedule(library.place(f"{name}.synth"), found.algorithm, size)
        if not proof:
            return library.commit()
        problem, beside = found.asked.problem, library.place(f"{name}.proof.json")
        save_proof(path, problem, found.bound.witnesses, size, found.makespan_us, beside)
        group = found.decisive[2]
        if group is not None:
            own = found.alone[group]
            at_size = timed(problem, found.algorithm.schedule, size)
            ((problem, part),) = parts_alone(found.asked, at_size, [group])
            replay(problem, part)  # at the union's times
            path = library.place(f"{name}-group{group}.synth")
            write_schedule(path, problem, part, found.algorithm.engine)
            beside = library.place(f"{name}-group{group}.proof.json")
            save_proof(path, problem, own.bound.witnesses, part.size_bytes, time_us(problem, part), beside)
        return library.commit()


def _stem(found: Several) -> str:
    """A file's name without its ending: what is asked, shortened, and the shape."""
    asked = found.asked
    plain = [
        re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
        for name in (asked.problem.collective.name, Path(asked.problem.topology.name).name)
    ]
    question = repr(
        [(m.ranks, m.collective.name, float(m.size_bytes)) for m in asked.members]
        + [found.relay, found.objective]
    )
    shape = found.algorithm
    return "-".join(
        [
            *plain,
            f"{len(asked.members)}groups",
            f"{zlib.crc32(question.encode()):08x}",
            f"{shape.steps}step",
            f"{len(shape.schedule)}sends",
        ]
    )
