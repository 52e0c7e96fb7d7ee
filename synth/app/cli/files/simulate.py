"""The command `simulate`, which predicts the time of an MSCCL XML or execution plan on a topology by message size."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import click

from emit.findings import Verdict
from emit.formats import format_of
from emit.library.networks import Networks
from emit.library.selection.lookup import entry_beside
from emit.program import Program
from emit.timing.predict import Predictor
from emit.timing.timed import TimedProgram
from emit.timing.trace import chrome_trace
from synth.app.cli.files.plan_scripts import PLAN_SOURCE, name_of
from synth.app.cli.options import costs_option, json_option, print_json
from synth.app.cli.programs import (
    as_executors_see,
    check_ending,
    check_not_source,
    named_problem,
    read_program,
    write_text,
)
from synth.app.cli.size_ranges import DEFAULT_SIZES, parse_sweep
from synth.app.present.layout import say_fitted
from synth.bounds.prove import OPTIMAL, prove
from synth.model.problem import describe_alpha, parse_ranks
from synth.model.registry import find_kind
from synth.model.text import format_count, format_gap, format_served, format_size, format_table, format_time
from topologies.errors import InputError
from topologies.load import apply_costs, load
from topologies.text.files import origin_of

_MANY = 16  # ranks that are listed


@click.command("simulate")
@click.argument("file", type=PLAN_SOURCE)
@click.option("--topo", metavar="T", help="Use this topology. Default: that of the library's index beside the file.")
@click.option(
    "--group",
    metavar="RANKS",
    help="Run the file's ranks on these ranks, as 0,2,4-7. Default: those of the index beside it, or the first.",
)
@click.option(
    "--sizes",
    "--size",
    default=DEFAULT_SIZES,
    metavar="LOW:HIGH:Nx",
    help=f"Predict at sizes from LOW to HIGH, each N times the last, or at a list as 4K,1M. Default: {DEFAULT_SIZES}.",
)
@click.option("--depth", type=int, metavar="N", help="Use N FIFO slots. Default: the protocol's.")
@click.option(
    "--trace", metavar="OUT.json", help="Write an MSCCL XML's predicted run at one size as a trace for Perfetto."
)
@costs_option
@json_option
def simulate(
    file: str,
    topo: str | None,
    group: str | None,
    sizes: str,
    depth: int | None,
    trace: str | None,
    costs: str,
    as_json: bool,
) -> None:
    """Predict the time of an MSCCL XML or an execution plan (JSON) on a topology.

    The file is verified first. Exit code 0: right, or its name does not say what is right; 1: wrong or deadlock;
    2: not readable, or not for this topology.

    \b
    synth simulate out/msccl/FILE.xml --topo dgx-a100 --group 0,2,4,6
    synth simulate out/msccl/FILE.xml --topo ring:4 --sizes 1M --trace run.json
    """
    swept_sizes = parse_sweep(sizes)
    if trace is not None:
        check_ending(trace, ".json", "a trace")
        check_not_source(trace, file)
        if len(swept_sizes) != 1:
            raise InputError(f"--trace: there are {len(swept_sizes)} sizes; it must be one, as with --sizes 1M")
    entry = entry_beside(file)
    beside = Networks().of(entry) if topo is None and entry is not None else None
    if topo is None and beside is None:
        format_of(file)  # A missing file is refused as such.
        raise InputError(
            "--topo: is missing, and no index beside the file names a known network; give it, as --topo dgx-a100"
        )
    topology = apply_costs(beside or load(str(topo)), costs)
    members = None if group is None else parse_ranks(group, "--group", topology.nranks)
    if group is None and entry is not None and entry.topology == topology.name:
        members = entry.communicator
    program, _, verdict = read_program(file, depth, needs_steps=False)
    status = "not judged" if verdict.exit_code == 2 else verdict.status
    cautions = [line for line in verdict.lines if line.startswith("caution: ")]
    document: dict[str, Any] = {"file": name_of(file), "status": status, "why": _why(verdict), "cautions": cautions}
    try:
        form = format_of(file)
        topology = as_executors_see(topology, form.name, entry)
        timed = (
            form.predictor(file, program, topology, members)
            if depth is None
            else Predictor(program, topology, members, depth)
        )
        if trace is not None and not isinstance(timed, Predictor):
            raise InputError(f"--trace: {origin_of(file)} is a plan; it must be a program (MSCCL XML)")
        document |= _times(program, timed, swept_sizes, verdict.status == "right")
        if trace is not None and isinstance(timed, Predictor):
            write_text(trace, chrome_trace(timed, swept_sizes[0]))
            document["trace"] = trace
    except InputError as error:
        # For a file that is right, the topology or the group is wrong.
        if verdict.exit_code != 1:
            raise
        document["untimed"] = str(error)
    if as_json:
        print_json("simulate", document)
    else:
        say_fitted(*_lines(document))
    raise SystemExit(1 if verdict.exit_code == 1 else 0)


def _why(verdict: Verdict) -> str:
    """Return the first line of a right file's verdict, which describes the file; otherwise the verdict's reason."""
    return "; ".join(verdict.lines[:1]) if verdict.status == "right" else verdict.reason or verdict.lines[0]


def _times(
    program: Program,
    predictor: TimedProgram,
    sizes: list[int],
    is_right: bool,
) -> dict[str, Any]:
    """Return the question and a row for each size; only a right program is compared with the bound.

    Args:
        program: The program.
        predictor: What predicts its times on a topology.
        sizes: Message sizes in bytes.
        is_right: Whether the program was checked and is right.

    Returns:
        A dictionary of plain values on the question and the program, and sizes, a row for each size: bytes, time_us,
        algbw_gbs and busbw_gbs (None if unknown or the time is 0), bound_us and gap (None without a bound), proof (text
        or ""), and served (whether the program is for the size).

    Raises:
        InputError: The program cannot be timed.
    """
    topology, group = predictor.topology, predictor.group
    problem = named_problem(topology, program.collective, group, group[program.root])
    times = predictor.times_us(sizes)
    bound = prove(problem) if problem is not None and is_right else None
    factor = find_kind(program.collective).bus_factor(program.nranks)
    rows = []
    for size, time in zip(sizes, times.tolist(), strict=True):
        row: dict[str, Any] = {
            "bytes": size,
            "time_us": time,
            "algbw_gbs": size / time / 1e3 if time else None,
            "busbw_gbs": size / time / 1e3 * factor if time and factor is not None else None,
            "bound_us": None,
            "gap": None,
            "proof": "",
            "served": size >= program.min_bytes and (not program.max_bytes or size <= program.max_bytes),
        }
        if bound is not None and time and bound.at(size)[0] > 0:
            row["bound_us"], witness = bound.at(size)
            row["gap"] = max(1.0, time / row["bound_us"])
            row["proof"] = ("optimal: " if row["gap"] <= OPTIMAL else "") + witness.text
        rows.append(row)
    return {
        "collective": program.collective,
        "topology": topology.name,
        "group": list(group),
        "root": group[program.root] if problem and problem.collective.kind.rooted else None,
        "protocol": program.protocol,
        "fifo_depth": predictor.fifo_depth,
        "steps": predictor.nsteps,
        "threadblocks": predictor.nthreadblocks,
        "channels": predictor.nchannels,
        "min_bytes": program.min_bytes,
        "max_bytes": program.max_bytes or None,
        "summary": topology.summary,
        "alpha": "" if problem is None else describe_alpha(problem),
        "sizes": rows,
    }


def _lines(document: dict[str, Any]) -> list[str]:
    """Return the lines of the report: verdict, cautions, heading, table, proofs and remarks.

    If there are no times, a line on why replaces all that follows the cautions.

    Args:
        document: The statement that `--json` prints.
    """
    why = document["why"].removeprefix(f"{document['status']}: ")
    lines = [f"{origin_of(document['file'])}: {document['status']}: {why}", *document["cautions"]]
    if "untimed" in document:
        return [*lines, f"no time: {document['untimed']}"]
    lines.append(_heading(document))
    counts = [format_count(document[f"{thing}s"], thing) for thing in ("threadblock", "channel")]
    lines += [", ".join([document["protocol"], *counts]), "", *_table(document["sizes"]), *_proofs(document["sizes"])]
    if not all(row["served"] for row in document["sizes"]):
        served = format_served(document["min_bytes"], document["max_bytes"])
        lines += ["", f"* outside the sizes that the file is for: {served}"]
    if "trace" in document:
        lines += ["", f"trace → {document['trace']}"]
    return lines


def _heading(document: dict[str, Any]) -> str:
    """Return the heading: collective, topology, ranks, root if there is one, and what is known of the topology.

    Of over 16 ranks the first 16 are named; if they are 0, 1, …, only their number is.
    """
    group = document["group"]
    names = ",".join(map(str, group[:_MANY])) + (",…" if len(group) > _MANY else "")
    members = f"ranks {names}" if len(group) <= _MANY or group != list(range(len(group))) else f"{len(group)} ranks"
    root = "" if document["root"] is None else f", root {document['root']}"
    about = ", ".join(word for word in (document["summary"], document["alpha"]) if word)
    summary = f" ({about})" if about else ""
    return f"{document['collective']} · {document['topology']} · {members}{root}{summary}"


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table of sizes, the titles first; `*` marks sizes that the file does not serve."""
    titles: tuple[str, ...] = ("message size", "predicted", "algbw GB/s", "busbw GB/s", "bound", "gap")
    table: list[tuple[str, ...]] = [
        (
            format_size(row["bytes"]) + ("" if row["served"] else " *"),
            format_time(row["time_us"]),
            _figure(row["algbw_gbs"]),
            _figure(row["busbw_gbs"]),
            "–" if row["bound_us"] is None else format_time(row["bound_us"]),
            "–" if row["gap"] is None else format_gap(row["gap"]),
        )
        for row in rows
    ]
    if all(row["bound_us"] is None for row in rows):  # Nothing says what a custom program must do.
        titles, table = titles[:-2], [cells[:-2] for cells in table]
    return format_table([titles, *table], (0,))


def _proofs(rows: list[dict[str, Any]]) -> list[str]:
    """Return an empty line and lines on what proves the bounds, one for each run of sizes with the same proof.

    Without proofs the result is [].
    """
    lines = []
    for proof, run in groupby(rows, key=lambda row: row["proof"]):
        sizes = [format_size(row["bytes"]) for row in run]
        ends = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        lines += [f"bound at {ends}: {proof}"] if proof else []
    return ["", *lines] if lines else []


def _figure(value: float | None) -> str:
    """Return a number with two decimals; "–" for None."""
    return "–" if value is None else f"{value:.2f}"
