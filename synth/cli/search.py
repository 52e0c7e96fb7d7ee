"""The commands that search: one a collective, and `pattern` for the user's own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topologies.errors import InputError

if TYPE_CHECKING:
    from synth.search.result import Found
    from synth.synthesis import Saved
    from synth.verify.algorithm import Algorithm

_COLLECTIVES = {
    "allreduce": "Every rank gets the sum of all buffers.",
    "allgather": "Every rank gets all blocks.",
    "reducescatter": "Every rank gets its block of the sum.",
    "alltoall": "Every rank sends a block of its own to every other.",
    "alltoallv": "All-to-all with a size of its own for every pair (--sizes).",
    "broadcast": "The root's buffer goes to all.",
    "reduce": "The root gets the sum of all buffers.",
    "scatter": "Every rank gets its block from the root.",
    "gather": "The root gets every rank's block.",
    "sendrecv": "Every rank sends its buffer to the next, the last to the first.",
    "alltonext": "Every rank but the last sends its buffer to the next.",
}


def _asking(command: Callable[..., None]) -> Callable[..., None]:
    """Options that all searches share."""
    options = [
        click.option(
            "--topo", required=True, metavar="T", help="Machine, machine:N, family (torus:4x4) or FILE.toml."
        ),
        click.option(
            "--group", metavar="RANKS", help="Ordered ranks that take part, as 0,2,4-7. Default: all."
        ),
        click.option("--relay", default="none", metavar="none|all|RANKS", help="Outsiders that may forward."),
        click.option(
            "--groups",
            metavar="LIST",
            help="Several groups planned together: 0-7;8-15, tp=8, or allgather@64M:8-15 for one of them.",
        ),
        click.option("--group-sizes", metavar="LIST", help="With --groups: message sizes, one a group."),
        click.option("--objective", metavar="NAME", help="With --groups: makespan (default) or fair."),
        click.option(
            "--without",
            multiple=True,
            metavar="PART",
            help="Dead parts: link:0-1, link:0>1, rank:17, switch:NAME.",
        ),
        click.option(
            "--degrade",
            multiple=True,
            metavar="PART=%",
            help="Slow parts: link:0-1=50%, rank:3=25%, limit:NAME=50%.",
        ),
        click.option("--size", metavar="BYTES", help="One message size (64K, 1M) instead of all."),
        click.option("--chunks", type=int, metavar="C", help="Chunks a block."),
        click.option("--steps", type=int, metavar="S", help="Steps (k-synchronous model)."),
        click.option("--rounds", type=int, metavar="R", help="Rounds of all steps together."),
        click.option("--engine", default="auto", metavar="E", help="auto, flow, route, cpsat, smt or milp."),
        click.option("--budget", default="30s", metavar="TIME", help="Time for the search: 30s, 500ms, 5m."),
        click.option("--seed", type=int, default=0, metavar="N", help="Seed of the solvers."),
        click.option("--out", default="out", metavar="DIR", help="Folder for the files. Default: out."),
        click.option(
            "--target",
            default="auto",
            metavar="NAME",
            help="executor-nccl, rccl, msccl, mscclpp; auto: the first XML that can.",
        ),
        click.option(
            "--proof",
            is_flag=True,
            help="Also write the schedule and what proves its bound, for synth prove.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _collective_command(name: str, words: str) -> click.Command:
    example = {
        "alltoallv": "synth alltoallv --topo dgx1 --sizes sizes.csv",
    }.get(name, f"synth {name} --topo dgx-a100 --group 0,2,4,6")
    rooted = name in ("broadcast", "reduce", "scatter", "gather")
    if rooted:
        example += " --root 2"

    def run(root: int | None = None, sizes: str | None = None, **asked: Any) -> None:
        _synthesize(lambda: _named(name, sizes), root, **asked)

    run.__doc__ = f"{words}\n\n    \b\n    {example}\n    "
    command = _asking(run)
    if rooted:
        command = click.option("--root", type=int, metavar="RANK", help="Default: the group's first.")(
            command
        )
    if name == "alltoallv":
        command = click.option(
            "--sizes", required=True, metavar="FILE", help="Matrix of bytes, CSV or JSON."
        )(command)
    return click.command(name)(command)


def _named(name: str, sizes: str | None) -> Any:
    if sizes is None:
        return name
    from synth.model.collective import alltoallv
    from synth.model.pattern import read_sizes

    return alltoallv(read_sizes(sizes).astype(float))


@click.command("pattern")
@click.argument("file")
@_asking
def _pattern(file: str, **asked: Any) -> None:
    """A pattern of your own: who holds which chunk before and after.

    \b
    synth pattern halo.toml --topo mesh:2x2
    """
    from synth.model.pattern import read_pattern

    _synthesize(lambda: read_pattern(file), None, **asked)


def _seconds(text: str) -> float:
    for unit, factor in (("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)):
        if text.endswith(unit):
            number = text[: len(text) - len(unit)]
            try:
                value = float(number) * factor
            except ValueError:
                break
            if not 0 < value < 1e7:
                raise InputError(f"--budget {text}: must be more than 0 seconds, as in 30s")
            return value
    raise InputError(f"--budget {text!r}: is not a time; write it as in 30s, 500ms or 5m")


def _synthesize(
    collective: Callable[[], Any],
    root: int | None,
    topo: str,
    group: str | None,
    relay: str,
    without: tuple[str, ...],
    degrade: tuple[str, ...],
    size: str | None,
    budget: str,
    engine: str,
    out: str,
    target: str,
    proof: bool,
    as_json: bool,
    groups: str | None,
    group_sizes: str | None,
    objective: str | None,
    **pinned: Any,
) -> None:
    begun = time.monotonic()
    seconds = _seconds(budget)
    if not out:
        raise InputError("--out: is empty; give the name of a folder")
    from synth.cli.concurrent import refuse_without_groups, run_several

    if groups is not None:
        _writable(Path(out))
        run_several(
            collective(), topo, groups, group_sizes=group_sizes, objective=objective, group=group, root=root,
            relay=relay, without=without, degrade=degrade, size=size, engine=engine, budget_s=seconds,
            target=target, out=out, proof=proof, as_json=as_json, begun=begun,
            progress=_Progress(begun) if sys.stderr.isatty() else None, **pinned,
        )  # fmt: skip
        return
    refuse_without_groups(group_sizes, objective)
    from emit.library.index import PLACES
    from synth.solvers.workers import Workers

    if target not in ("auto", *PLACES):
        raise InputError(f"--target {target!r}: is not known; it is auto or one of {', '.join(PLACES)}")
    # the solvers load while the question is read
    with Workers(("cpsat", "linear") if engine not in ("route", "flow") else ()) as workers:
        from emit.library.write import target_for
        from synth.model.pattern import parse_size
        from synth.model.problem import parse_ranks
        from synth.synthesis import answered, ask
        from topologies.load import load

        topology = load(topo)
        question = ask(
            collective(),
            topology,
            None if group is None else parse_ranks(group, "--group", topology.nranks),
            relay=relay if relay in ("none", "all") else parse_ranks(relay, "--relay", topology.nranks),
            without=without,
            degrade=degrade,
            root=root,
            size=None if size is None else parse_size(size, "--size"),
            engine=engine,
            budget=seconds,
            **pinned,
        )
        if target != "auto":
            target_for(question.problem, target)
        _writable(Path(out))
        found = answered(question, workers, _Progress(begun) if sys.stderr.isatty() else None)
    _report(found, out, target, proof, as_json, begun)


def _writable(folder: Path) -> None:
    """Say that the files cannot be written before the search and not after it."""
    import tempfile

    from emit.library.write import standing

    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder}: is a file; it must be a folder")
    standing(folder)
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written ({error.strerror or error})") from None
    finally:
        for made in missing:
            if made.is_dir():
                made.rmdir()


class _Progress:
    """One line on a terminal: what is tried, and the best so far."""

    def __init__(self, begun: float) -> None:
        self.begun = begun

    def __call__(self, text: str, best: Algorithm | None) -> None:
        so_far = (
            ""
            if best is None
            else f" · so far {best.steps} steps, {best.rounds} rounds, {best.chunks} chunks"
        )
        sys.stderr.write(f"\r\x1b[2K{time.monotonic() - self.begun:5.1f} s  {text}{so_far}")
        sys.stderr.flush()


def _report(found: Found, out: str, target: str, proof: bool, as_json: bool, begun: float) -> None:
    from synth.present.statement import statement
    from synth.present.table import heading, table
    from synth.synthesis import Saved, saved

    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")
    said = statement(found)
    written = saved(found, out, target, proof=proof) if found.ranges else Saved([], [])
    for entry, files in zip(said["algorithms"], written.files, strict=True):
        entry |= {kind: str(path) for kind, path in files.items()}
    said["unsaved"] = written.refused
    if as_json:
        click.echo(json.dumps(said, ensure_ascii=False, indent=1))
    else:
        if found.ranges:
            click.echo(table(found))
        else:
            click.echo(
                heading(found, said) + "\n\n" + (found.impossible or "nothing found within the budget")
            )
        click.echo("\n" + _closing(found, written, begun))
    if found.ended == "interrupted":
        raise SystemExit(130)
    if not found.ranges:
        raise SystemExit(1)


def _closing(found: Found, written: Saved, begun: float) -> str:
    count = len(found.ranges)
    parts = []
    if count:
        parts.append(f"{count} algorithm{'s' if count > 1 else ''}, replayed and right")
    if written.paths:
        parts[-1] += " → " + ", ".join(str(p) for p in written.paths)
    if written.refused:
        parts.append(f"no MSCCL file: {written.refused}")
    if found.ended == "interrupted":
        parts.append("interrupted: the best so far")
    elif found.ended == "budget":
        parts.append("the budget ended: the best so far")
    parts.append(f"{time.monotonic() - begun:.1f} s")
    return "   ".join(parts)


def commands() -> list[click.Command]:
    """All of them, in the order of the help page."""
    return [*(_collective_command(name, words) for name, words in _COLLECTIVES.items()), _pattern]
