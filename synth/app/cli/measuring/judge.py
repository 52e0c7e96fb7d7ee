"""The command `judge`: is a machine as fast as its kind usually is?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from runtime.measure.nccl_tests import MOST_BYTES, PrintedRun, read_runs
from synth.app.cli.options import costs_option, json_option, print_json, topo_option, wide_option
from synth.app.cli.programs import check_ending, check_not_source, write_text
from synth.app.figures import draw_times, matplotlib_module, save_figure
from synth.app.judging import JudgedRow, JudgedRun, judge, with_measured_costs
from synth.app.present.layout import Column, fitted, say, terminal_width
from synth.model.numbers import parse_seconds
from synth.model.problem import parse_ranks
from synth.model.registry import parse_name
from synth.model.text import format_count, format_ranks, format_short_size, format_time
from synth.storage.columns import check_replaceable
from topologies.errors import InputError
from topologies.load import apply_costs, load
from topologies.text.files import read_text
from topologies.text.writer import to_toml

_PICTURES = (".svg", ".png", ".pdf")


@click.command("judge")
@click.argument("file", metavar="FILE", type=click.Path())
@topo_option
@click.option("--group", metavar="RANKS", help="State which ranks took part. Default: the first ones.")
@click.option("--collective", metavar="NAME", help="State the collective, where the text does not name it.")
@click.option("--budget", default="5s", metavar="TIME", help="Search our best file for so long. Default: 5s.")
@click.option(
    "--out", metavar="OUT.toml", help="Also write the topology with costs that fit the measured times, for --topo."
)
@click.option("--plot", metavar="OUT.svg", help="Also draw the times by message size (.svg, .png or .pdf).")
@costs_option
@wide_option
@json_option
def judge_command(
    file: str,
    topo: str,
    group: str | None,
    collective: str | None,
    budget: str,
    out: str | None,
    plot: str | None,
    costs: str,
    wide: bool,
    as_json: bool,
) -> None:
    """Judge what nccl-tests or rccl-tests printed: is the machine as fast as its kind usually is?

    FILE has the output as it was pasted, with one run or several; - reads standard input. Exit code 0: judged; 1: some
    results are wrong; 2: not readable.

    \b
    synth judge run.txt --topo dgx-h100
    """
    if plot is not None and not plot.endswith(_PICTURES):
        raise InputError(f"--plot {plot}: is no picture's name; it must end in {', '.join(_PICTURES)}")
    if plot is not None:
        check_replaceable(plot)
    if out is not None:
        check_ending(out, ".toml", "a topology")
        check_not_source(out, file)
        check_replaceable(out)
    budget_s = parse_seconds(budget, "--budget")
    topology = apply_costs(load(topo), costs)
    members = None if group is None else parse_ranks(group, "--group", topology.nranks)
    stated = None if collective is None else parse_name(collective)
    runs = [_named(run, stated, file) for run in read_runs(_text(file), file)]
    try:
        judged = judge(runs, topology, members, budget_s)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    if plot is not None:
        _draw(judged, plot)
    if as_json:
        print_json("judge", {"topology": topology.name, "runs": [as_object(run) for run in judged]})
    width = None if wide else terminal_width()
    for number, judged_run in enumerate(judged if not as_json else ()):
        if number:
            click.echo()
        _print(judged_run, width)
    if out is not None:
        measured, summary = with_measured_costs(judged, topology)
        write_text(out, to_toml(measured))
        if not as_json:
            say([f"wrote {out}, for --topo; {summary}"], width)
    if any(row.verdict == "wrong" for run in judged for row in run.rows):
        raise SystemExit(1)


def _text(file: str) -> str:
    """Return the text of a file, or of standard input for "-", in which bytes that are no UTF-8 are replaced.

    Raises:
        InputError: It cannot be read or is too long, or the name is empty.
    """
    if not file:
        raise InputError("FILE: '' is no name; it must be a file with what nccl-tests printed, or - for standard input")
    if file != "-":
        return read_text(file, "what nccl-tests printed", MOST_BYTES)
    raw = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise InputError(f"-: has more than {MOST_BYTES >> 20} MiB; give the tables of nccl-tests only")
    return raw.decode("utf-8", errors="replace")


def _named(run: PrintedRun, stated: str | None, file: str) -> PrintedRun:
    """Return a run with its collective: the one that its text names, else the one that the user states.

    Args:
        run: The run.
        stated: The collective that the user states, or None.
        file: Name of the file, for messages.

    Raises:
        InputError: There is neither, or they differ.
    """
    if stated and run.collective and stated != run.collective:
        raise InputError(f"{file}: line {run.line}: is a run of {run.collective}, and --collective says {stated}")
    if not run.collective and not stated:
        perhaps = " (alltoall or allgather?)" if run.operation in ("", "none") else ""
        raise InputError(f"{file}: line {run.line}: the text does not name the collective{perhaps}; give --collective")
    return replace(run, collective=run.collective or stated or "")


def _print(judged: JudgedRun, width: int | None) -> None:
    """Print a run: its heading, its table, the findings and remarks, and which columns have no room.

    Args:
        judged: The run.
        width: Most characters of a line; None for any number, with all columns.
    """
    run, rows = judged.run, judged.rows
    nodes = f" on {format_count(run.hosts, 'host')}" if run.hosts > 1 else ""
    device = f", {run.device}" if run.device else ""
    ranks = format_ranks(judged.group)
    say([f"{run.collective} · {judged.topology.name} · ranks {ranks} · {run.type}{device}{nodes}"], width)
    has_usual, has_run = any(row.usual for row in rows), any(row.ran for row in rows)
    columns = [
        Column("message size", [format_short_size(judged_row.row.size_bytes) for judged_row in rows]),
        Column("measured", [format_time(judged_row.us) for judged_row in rows]),
    ]
    if has_usual:
        columns.append(Column(f"{judged.library} usually", [_usual(judged_row) for judged_row in rows]))
        columns.append(Column("speed", [_speed(judged_row) for judged_row in rows]))
    columns += [
        Column("bound", [format_time(judged_row.bound_us) for judged_row in rows], 2),
        Column("our best", [_ours(judged_row) for judged_row in rows], 1),
        Column("in place", [_in_place(judged_row) for judged_row in rows], 5),
    ]
    if has_usual:
        columns.append(Column("usual choice", [str(row.usual or "–") for row in rows], 4, left=True))
    if has_run:
        columns.append(Column("ran", [" ".join(row.ran or "–") for row in rows], 3, left=True))
    columns.append(Column("", [judged_row.verdict for judged_row in rows], left=True))
    lines, left_out = fitted(columns, width)
    click.echo("\n".join(["", *lines, ""]))
    remarks = list(judged.findings())
    if judged.why_no_library:
        remarks.append(f"what {judged.library} usually takes is not known: {judged.why_no_library}")
    if has_usual:
        measured = any(row.usual is not None and row.usual.low_us for row in rows)
        interval = "the interval holds four of five published runs" if measured else "its cost model's ± 10 %"
        remarks.append(f"speed: the usual time / the measured; {judged.library} usually: {interval}")
        if any(row.ours_us is None for row in rows):
            remarks.append(f"our best: – where {judged.library} is faster")
    if judged.is_cut_off:
        remarks.append("our best: the budget ended the search; a longer --budget may find faster ones")
    say(remarks, width)
    if left_out:
        say([f"--wide also shows {', '.join(left_out)}"], width)


def _usual(judged: JudgedRow) -> str:
    """Return the usual time and its interval as text, such as `5 µs (4.5 µs–5.5 µs)`; "–" if it is not known."""
    if judged.usual is None or judged.interval_us is None:
        return "–"
    low_us, high_us = judged.interval_us
    return f"{format_time(judged.usual.time_us)} ({format_time(low_us)}–{format_time(high_us)})"


def _speed(judged: JudgedRow) -> str:
    """Return the usual time / the measured time as a whole percentage; "–" if it is not known."""
    return "–" if judged.usual is None else f"{judged.usual.time_us / judged.us:.0%}"


def _ours(judged: JudgedRow) -> str:
    """Return the time of our best file as text; "–" if the library is as fast or faster."""
    return "–" if judged.ours_us is None else format_time(judged.ours_us)


def _in_place(judged: JudgedRow) -> str:
    """Return the measured time of calls in place as text; "–" if there is none."""
    return "–" if judged.row.in_place_us is None else format_time(judged.row.in_place_us)


def as_object(judged: JudgedRun) -> dict[str, Any]:
    """Return a judged run as a JSON object.

    Returns:
        A dictionary: collective, group (ranks of the topology), hosts (their number), device, type, library (whose
        usual times count), not_modelled (why it has none, or ""), rows (see `_row_object`) and findings (sentences).
    """
    run = judged.run
    return {
        "collective": run.collective,
        "group": list(judged.group),
        "hosts": run.hosts,
        "device": run.device,
        "type": run.type,
        "library": judged.library,
        "not_modelled": judged.why_no_library,
        "rows": [_row_object(judged_row) for judged_row in judged.rows],
        "findings": list(judged.findings()),
    }


def _row_object(judged: JudgedRow) -> dict[str, Any]:
    """Return a judged row as a JSON object; times are in µs, and None if unknown.

    Returns:
        A dictionary: size_bytes, out_of_place_us, in_place_us, wrong, usual_us with usual_low_us and usual_high_us,
        usual_choice and ran (algorithm and protocol as text, or None), bound_us, ours_us and verdict.
    """
    usual, (low_us, high_us) = judged.usual, judged.interval_us or (None, None)
    return {
        "size_bytes": judged.row.size_bytes,
        "out_of_place_us": judged.row.out_of_place_us,
        "in_place_us": judged.row.in_place_us,
        "wrong": judged.row.wrong,
        "usual_us": None if usual is None else usual.time_us,
        "usual_low_us": low_us,
        "usual_high_us": high_us,
        "usual_choice": None if usual is None else str(usual),
        "ran": None if judged.ran is None else " ".join(judged.ran),
        "bound_us": judged.bound_us,
        "ours_us": judged.ours_us,
        "verdict": judged.verdict,
    }


def _draw(judged: Sequence[JudgedRun], path: str) -> None:
    """Draw the measured, usual and best times of each run by message size, and write the picture to a file.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    figure = matplotlib_module("figure").Figure(figsize=(6, 4 * len(judged)), layout="constrained")
    for axes, run in zip(figure.subplots(len(judged), squeeze=False)[:, 0], judged, strict=True):
        rows = {row.row.size_bytes: row for row in run.rows}
        usual_us = {size: row.usual.time_us for size, row in rows.items() if row.usual is not None}
        curves = {"measured": {size: row.us for size, row in rows.items()}}
        curves |= {f"{run.library} usually": usual_us} if usual_us else {}
        curves |= {"our best": {size: row.ours_us for size, row in rows.items() if row.ours_us is not None}}
        draw_times(curves, {size: row.bound_us for size, row in rows.items()}, axes)
        axes.set_title(f"{run.run.collective}, {run.topology.name}")
    save_figure(figure, path)
