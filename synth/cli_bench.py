"""The command `bench`: runs executors' files on this machine and prints nccl-tests' table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topologies.errors import InputError

if TYPE_CHECKING:
    from emit.goal import Goal
    from emit.program import Program
    from runtime.bench import Half, Row

_HEAD = "\n".join(
    (
        f"#{'':>46}{'out-of-place':^35}{'in-place':^35}",
        f"#{'size':>12}{'count':>12}{'type':>10}{'redop':>7}{'root':>5}"
        + f"{'time':>11}{'algbw':>8}{'busbw':>8}{'#wrong':>8}" * 2
        + f"{'predicted':>11}  algorithm",
        f"#{'(B)':>12}{'(elements)':>12}{'':22}"
        + f"{'(us)':>11}{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}" * 2
        + f"{'(us)':>11}",
    )
)


@click.command("bench")
@click.argument("path")
@click.option(
    "--backend", type=click.Choice(["host"]), default="host", help="What runs it. host: threads of this CPU."
)
@click.option("-b", "--minbytes", default="1M", metavar="SIZE", help="Smallest message. Default: 1M.")
@click.option("-e", "--maxbytes", metavar="SIZE", help="Largest message. Default: the smallest.")
@click.option("-f", "--stepfactor", type=float, default=2.0, metavar="X", help="Each size X times the last.")
@click.option("-i", "--stepbytes", metavar="SIZE", help="Each size so much more than the last.")
@click.option(
    "-d", "--datatype", default="float", metavar="TYPE", help="float, half, bfloat16, double, int32, int64."
)
@click.option("-o", "--op", default="sum", metavar="OP", help="sum, prod, max, min or avg.")
@click.option(
    "-n", "--iters", type=click.IntRange(1), default=5, metavar="N", help="Runs that count. Default: 5."
)
@click.option(
    "-w", "--warmup-iters", type=click.IntRange(0), default=1, metavar="N", help="Runs before. Default: 1."
)
@click.option("--collective", metavar="NAME", help="Of a library: which collective. Default: the only one.")
@click.option("--group", metavar="RANKS", help="Of a library: which group. Default: the only one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(
    path: str,
    backend: str,
    minbytes: str,
    maxbytes: str | None,
    stepfactor: float,
    stepbytes: str | None,
    datatype: str,
    op: str,
    iters: int,
    warmup_iters: int,
    collective: str | None,
    group: str | None,
    as_json: bool,
) -> None:
    """Run an MSCCL XML, or a library's file for each size, and measure it as nccl-tests does.

    Exit code 0: every element right; 1: some wrong; 2: it cannot be run.

    \b
    synth bench out/msccl/FILE.xml -b 8 -e 64M -f 4
    """
    from runtime.bench import measured, sizes
    from runtime.numbers import reducer, type_named
    from synth.pattern import parse_size

    low = parse_size(minbytes, "--minbytes")
    high = parse_size(maxbytes, "--maxbytes") if maxbytes else low
    step = parse_size(stepbytes, "--stepbytes") if stepbytes else 0
    asked = list(sizes(low, high, stepfactor, step))
    type_named(datatype), reducer(op, "float")  # refused before the head of the table
    choose = _chooser(Path(path), collective, group)
    rows: list[dict[str, Any]] = []
    wrong = 0
    if not as_json:
        click.echo(_HEAD)
    for size in asked:
        found = choose(size)
        if found is None:
            click.echo(f"# no algorithm of {path} serves {size} bytes", err=True)
            continue
        name, program, goal, predict = found
        row = measured(program, goal, size, datatype, op, iterations=iters, warmup=warmup_iters)
        predicted = predict(row.size_bytes) if predict is not None else None
        wrong += row.wrong
        rows.append(_said(row, name, backend, predicted))
        if not as_json:
            click.echo(_line(row, name, predicted))
    if not rows:
        raise InputError(f"{path}: no algorithm serves any of the sizes")
    if as_json:
        click.echo(json.dumps({"rows": rows, "wrong": wrong}, indent=1))
    else:
        click.echo(f"# {backend}: {'every element right' if not wrong else f'{wrong} elements wrong'}")
    if wrong:
        raise SystemExit(1)


Chosen = tuple[str, "Program", "Goal | None", "Callable[[float], float] | None"]


def _chooser(path: Path, collective: str | None, group: str | None) -> Callable[[int], Chosen | None]:
    """What runs at a message size."""
    if not path.is_dir() and path.name != "index.json":
        if collective is not None or group is not None:
            raise InputError("--collective, --group: choose from a library; this is one file")
        one = _read(path)
        return lambda _: (path.stem, *one, None)
    from emit.index import load_index
    from synth.collective import parse_name
    from synth.problem import parse_ranks

    entries = load_index(path)
    if collective is not None:
        entries = [e for e in entries if e.collective == parse_name(collective)]
    if group is not None:
        entries = [e for e in entries if e.group == parse_ranks(group, "--group", 1 << 20)]
    plans = [e for e in entries if e.path.suffix != ".xml"]
    entries = [e for e in entries if e.path.suffix == ".xml"]
    if plans and not entries:
        raise InputError(
            f"{path}: holds execution plans only, which are for MSCCL++'s executor; would hold MSCCL XML"
        )
    questions = sorted({str((e.collective, e.topology, e.group, e.target)) for e in entries})
    if len(questions) != 1:
        told = "; ".join(questions[:4]) or "none"
        raise InputError(
            f"{path}: would be one question's algorithms, give --collective or --group; there are {told}"
        )
    known: dict[str, Chosen] = {}

    def choose(size: int) -> Chosen | None:
        for entry in entries:
            if entry.serves(size):
                if entry.file not in known:
                    program, goal = _read(entry.path)
                    known[entry.file] = (entry.path.stem, program, goal, _predictor(program, entry))
                return known[entry.file]
        return None

    return choose


def _predictor(program: Program, entry: Any) -> Callable[[float], float] | None:
    """The program's time on the network that it was made for, where that is a known one."""
    from emit.predict import Predictor
    from topologies.load import load

    try:
        return Predictor(program, load(entry.topology), entry.communicator).time_us
    except InputError:
        return None


def _read(path: Path) -> tuple[Program, Goal | None]:
    from emit.index import goal_beside
    from emit.msccl import verify_file

    goal = goal_beside(path)
    verdict = verify_file(path, goal)
    if verdict.program is None:
        raise InputError(f"not readable: {'; '.join(verdict.lines)}")
    return verdict.program, goal


def _line(row: Row, name: str, predicted: float | None) -> str:
    def side(half: Half | None) -> str:
        if half is None:
            return f"{'N/A':>11}{'N/A':>8}{'N/A':>8}{'N/A':>8}"
        return f"{half.time_us:>11.1f}{row.algbw(half):>8.2f}{row.busbw(half):>8.2f}{half.wrong:>8}"

    last = f"{predicted:>11.1f}" if predicted is not None else f"{'–':>11}"
    redop = row.op if row.reduces else "none"
    return (
        f" {row.size_bytes:>12}{row.count:>12}{row.kind:>10}{redop:>7}{row.root:>5}"
        f"{side(row.apart)}{side(row.inplace)}{last}  {name}"
    )


def _said(row: Row, name: str, backend: str, predicted: float | None) -> dict[str, Any]:
    def side(half: Half | None) -> dict[str, Any] | None:
        if half is None:
            return None
        return {
            "time_us": half.time_us,
            "algbw_gbs": row.algbw(half),
            "busbw_gbs": row.busbw(half),
            "wrong": half.wrong,
        }

    return {
        "algorithm": name,
        "backend": backend,
        "size_bytes": row.size_bytes,
        "count": row.count,
        "type": row.kind,
        "redop": row.op if row.reduces else "none",
        "root": row.root,
        "out_of_place": side(row.apart),
        "in_place": side(row.inplace),
        "predicted_us": predicted,
    }
