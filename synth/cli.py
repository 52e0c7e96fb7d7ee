"""The command line: the one room that sees all others. Bad input is one line on stderr and exit code 2."""

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
    from synth.algorithm import Algorithm
    from synth.search import Found

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


class _Commands(click.Group):
    """Takes torch's spellings of collectives too, and suggests near names."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        from synth.collective import parse_name

        try:
            return super().get_command(ctx, parse_name(cmd_name))
        except InputError:
            return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        import difflib

        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            near = difflib.get_close_matches(name.lower(), self.list_commands(ctx), n=2, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise InputError(f"command {name[:60]!r} is not known{hint} See synth --help")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - in the order of the file
        return list(self.commands)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="synth-collectives", prog_name="synth")
def cli() -> None:
    """Find, prove and write algorithms for collectives on a given network.

    \b
    synth allreduce --topo dgx-a100 --group 0,2,4,6
    synth topo list
    synth verify out/FILE.xml
    """


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
        click.option("--size", metavar="BYTES", help="One message size (64K, 1M) instead of all."),
        click.option("--chunks", type=int, metavar="C", help="Chunks a block."),
        click.option("--steps", type=int, metavar="S", help="Steps (k-synchronous model)."),
        click.option("--rounds", type=int, metavar="R", help="Rounds of all steps together."),
        click.option("--engine", default="auto", metavar="E", help="auto, route, cpsat, smt or milp."),
        click.option("--budget", default="30s", metavar="TIME", help="Time for the search: 30s, 500ms, 5m."),
        click.option("--seed", type=int, default=0, metavar="N", help="Seed of the solvers."),
        click.option("--out", default="out", metavar="DIR", help="Folder for the files. Default: out."),
        click.option(
            "--target",
            default="auto",
            metavar="NAME",
            help="executor-nccl, rccl, msccl; auto: the first that can.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _collective_command(name: str, words: str) -> None:
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
    cli.command(name)(command)


def _named(name: str, sizes: str | None) -> Any:
    if sizes is None:
        return name
    from synth.collective import alltoallv
    from synth.pattern import read_sizes

    return alltoallv(read_sizes(sizes).astype(float))


for _name, _words in _COLLECTIVES.items():
    _collective_command(_name, _words)


@cli.command("pattern")
@click.argument("file")
@_asking
def _pattern(file: str, **asked: Any) -> None:
    """A pattern of your own: who holds which chunk before and after.

    \b
    synth pattern halo.toml --topo mesh:2x2
    """
    from synth.pattern import read_pattern

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
    size: str | None,
    chunks: int | None,
    steps: int | None,
    rounds: int | None,
    engine: str,
    budget: str,
    seed: int,
    out: str,
    target: str,
    as_json: bool,
) -> None:
    begun = time.monotonic()
    seconds = _seconds(budget)
    if not out:
        raise InputError("--out: is empty; give the name of a folder")
    from emit.limits import TARGETS
    from synth.engines.workers import Workers

    if target not in ("auto", *TARGETS):
        raise InputError(f"--target {target!r}: is not known; it is auto or one of {', '.join(TARGETS)}")
    # the solvers load while the question is read
    with Workers(("cpsat", "linear") if engine != "route" else ()) as workers:
        from emit.library_files import target_for
        from synth.pattern import parse_size
        from synth.problem import parse_ranks
        from synth.search import search
        from synth.synthesis import ask
        from topologies.load import load

        topology = load(topo)
        problem, options = ask(
            collective(),
            topology,
            None if group is None else parse_ranks(group, "--group", topology.nranks),
            relay=relay if relay in ("none", "all") else parse_ranks(relay, "--relay", topology.nranks),
            root=root,
            size=None if size is None else parse_size(size, "--size"),
            chunks=chunks,
            steps=steps,
            rounds=rounds,
            engine=engine,
            budget=seconds,
            seed=seed,
        )
        if target != "auto":
            target_for(problem, target)
        _writable(Path(out))
        found = search(problem, options, workers, _Progress(begun) if sys.stderr.isatty() else None)
    _report(found, out, target, as_json, begun)


def _writable(folder: Path) -> None:
    """Say that the files cannot be written before the search and not after it."""
    import tempfile

    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder}: is a file; it must be a folder")
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


def _report(found: Found, out: str, target: str, as_json: bool, begun: float) -> None:
    from emit.library_files import save
    from synth.statement import statement
    from synth.table import heading, table

    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")
    said = statement(found)
    unsaved = ""
    paths: list[Path] = []
    if found.ranges:
        try:
            paths = save(found, out, target)
        except InputError as error:
            if not str(error).startswith("--out"):
                unsaved = str(error)
            else:
                raise
    for entry, path in zip(said["algorithms"], paths, strict=False):
        entry["file"] = str(path)
    said["unsaved"] = unsaved
    if as_json:
        click.echo(json.dumps(said, ensure_ascii=False, indent=1))
    else:
        if found.ranges:
            click.echo(table(found))
        else:
            click.echo(
                heading(found, said) + "\n\n" + (found.impossible or "nothing found within the budget")
            )
        click.echo("\n" + _closing(found, paths, unsaved, begun))
    if found.ended == "interrupted":
        raise SystemExit(130)
    if not found.ranges:
        raise SystemExit(1)


def _closing(found: Found, paths: list[Path], unsaved: str, begun: float) -> str:
    count = len(found.ranges)
    parts = []
    if count:
        parts.append(f"{count} algorithm{'s' if count > 1 else ''}, replayed and right")
    if paths:
        parts[-1] += " → " + ", ".join(str(p) for p in paths)
    if unsaved:
        parts.append(f"no file: {unsaved}")
    if found.ended == "interrupted":
        parts.append("interrupted: the best so far")
    elif found.ended == "budget":
        parts.append("the budget ended: the best so far")
    parts.append(f"{time.monotonic() - begun:.1f} s")
    return "   ".join(parts)


@cli.command("verify")
@click.argument("file")
@click.option("--depth", type=int, metavar="N", help="FIFO slots. Default: the protocol's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def _verify(file: str, depth: int | None, as_json: bool) -> None:
    """Replay an MSCCL XML, ours or another's: right, wrong, deadlock or not readable.

    Exit code 0 right, 1 wrong or deadlock, 2 not readable.

    \b
    synth verify out/FILE.xml
    """
    from emit.library_files import goal_beside
    from emit.msccl import verify_file

    if depth is not None and depth < 1:
        raise InputError(f"--depth {depth}: must be 1 or more")
    verdict = verify_file(file, goal_beside(Path(file)), depth)
    if as_json:
        findings = [
            {"kind": f.kind, "message": f.message, "rank": f.rank, "tb": f.tb, "step": f.step}
            for f in verdict.findings
        ]
        click.echo(
            json.dumps(
                {"file": file, "status": verdict.status, "lines": list(verdict.lines), "findings": findings},
                ensure_ascii=False,
                indent=1,
            )
        )
    elif verdict.status == "not readable":
        raise InputError(f"not readable: {'; '.join(verdict.lines)}")
    else:
        click.echo(f"{file}: {verdict.status}")
        for line in verdict.lines:
            click.echo(f"  {line}")
    raise SystemExit(verdict.exit_code)


@cli.group("topo")
def _topo() -> None:
    """Topologies: list, show, check.

    \b
    synth topo show dgx-a100
    """


@_topo.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def _topo_list(as_json: bool) -> None:
    """Machines and families.

    \b
    synth topo list
    """
    from topologies.families import FAMILIES
    from topologies.load import load, machines

    found = {name: load(name).summary for name in machines()}
    if as_json:
        click.echo(json.dumps({"machines": found, "families": list(FAMILIES)}, ensure_ascii=False, indent=1))
        return
    width = max(map(len, found))
    for name, summary in found.items():
        click.echo(f"{name.ljust(width)}  {summary}")
    click.echo(f"families: {', '.join(FAMILIES)} (as in torus:4x4,bw=50,alpha=0.7)")
    click.echo("several nodes: machine:N, as in dgx-a100:4; your own: FILE.toml")


@_topo.command("show")
@click.argument("topology")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def _topo_show(topology: str, as_json: bool) -> None:
    """A topology in the text form that --topo FILE.toml takes.

    \b
    synth topo show dgx1 > my.toml
    """
    from topologies.load import load
    from topologies.topology import to_toml

    found = load(topology)
    click.echo(
        json.dumps(_described(found), ensure_ascii=False, indent=1)
        if as_json
        else to_toml(found).rstrip("\n")
    )


@_topo.command("check")
@click.argument("topology")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def _topo_check(topology: str, as_json: bool) -> None:
    """Whether a topology can be read, and what it comes to.

    \b
    synth topo check my.toml
    """
    from topologies.load import load

    said = _described(load(topology))
    if as_json:
        click.echo(json.dumps(said, ensure_ascii=False, indent=1))
        return
    click.echo(f"{said['topology']}: {said['summary'] or 'no summary'}")
    click.echo(
        f"  {said['ranks']} ranks, {said['switches']} switches, {said['links']} links, {said['limits']} limits"
    )
    click.echo(
        f"  out of a rank {said['out_gbs']} GB/s, α {said['alpha_us']} µs{' assumed' if said['alpha_assumed'] else ''}"
    )
    click.echo(
        "  every rank reaches every other"
        if said["connected"]
        else "  not connected: some ranks cannot reach others"
    )


def _described(topology: Any) -> dict[str, Any]:
    import numpy as np

    from synth.problem import hops

    n = topology.nranks
    leaving = np.bincount(topology.link_src, weights=topology.bandwidth_gbs, minlength=topology.nvertices)[:n]
    distance = hops(topology.nvertices, topology.link_src, topology.link_dst)[:n, :n]
    return {
        "topology": topology.name,
        "summary": topology.summary,
        "ranks": n,
        "switches": len(topology.switches),
        "links": topology.nlinks,
        "limits": len(topology.limits),
        "out_gbs": _span(leaving),
        "alpha_us": _span(topology.alpha_us),
        "alpha_assumed": topology.alpha_assumed,
        "connected": bool((distance < topology.nvertices).all()),
        "source": topology.source,
    }


def _span(values: Any) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def main() -> None:
    """Entry point of the command `synth`."""
    try:
        cli.main(standalone_mode=False)
    except InputError as error:
        click.echo(f"synth: {error}", err=True)
        raise SystemExit(2) from None
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        raise SystemExit(0) from None
    except click.ClickException as error:
        click.echo(f"synth: {error.format_message()}".replace("\n", " "), err=True)
        raise SystemExit(2) from None
    except (KeyboardInterrupt, click.Abort):
        click.echo("synth: interrupted before there was an answer", err=True)
        raise SystemExit(130) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
