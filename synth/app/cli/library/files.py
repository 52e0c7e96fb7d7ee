"""The commands about a library's files: `synth library check` and `synth library export`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from emit.library.checking.check import check_library
from emit.library.checking.fault_check import check_fault
from emit.library.checking.report import LibraryReport, is_harmless
from emit.library.entry import INDEX
from emit.library.index import load_index
from emit.library.networks import Networks
from emit.library.overlay import FAULT, FAULTS, load_as_one, load_library
from emit.library.selection.export import export_folders, load_line
from emit.library.selection.nccl_tuner import Line, measured_lines, model_lines, text_of
from emit.library.selection.ncclx import Rule, csv_text, json_text, parse_rules, read_rules, rules_of
from emit.library.selection.table import HEADER, table_bytes
from emit.targets import TARGETS
from synth.app.cli.options import json_option, print_json
from synth.app.cli.programs import write_into
from synth.app.cli.progress import Count, counting
from synth.app.clusters.placing import unfiled_schedules
from synth.app.present.layout import say_fitted
from synth.baselines.nccl.figures import VERSION
from synth.model.numbers import as_folder
from synth.model.problem import parse_ranks
from synth.model.text import format_count, format_listed
from topologies.errors import InputError
from topologies.load import load
from topologies.text.files import check_below, origin_of
from topologies.topology import Topology

TABLE, TUNER, NCCLX = "table", "nccl-tuner", "ncclx"
_RANKS = 1 << 20  # ranks that a group may name
_SHOWN = 40  # folders that are listed


@click.command("check")
@click.argument("folder", metavar="LIB")
@click.option("--topo", metavar="T", help="Use this network for files whose topology has no known name.")
@json_option
def check(folder: str, topo: str | None, as_json: bool) -> None:
    """Check each file, schedule and proof of a library from its bytes, and what the index says of them.

    Programs are replayed and timed, schedules are replayed, and bounds are proved again. LIB may also be a selection
    file of NCCLX (ncclx_tuner.csv or ncclx_tuner.json). Exit code 0: all right; 1: something is wrong; 2: not readable.

    \b
    synth library check lib
    """
    if folder.endswith((".csv", "tuner.json")) and not Path(folder).is_dir():
        if topo is not None or as_json:
            raise InputError("--topo and --json: are for libraries, not for a selection file; leave them out")
        say_fitted(f"{origin_of(folder)}: {format_count(len(read_rules(folder)), 'rule')}: all right")
        return
    topology = None if topo is None else load(topo)
    library_folder = as_folder(folder, "LIB")
    library_folder = library_folder if library_folder.is_dir() else library_folder.parent
    with counting("checking") as progress:
        report = _check_folder(library_folder, folder, topology, progress)
    if as_json:
        wrong = [{"file": name, "why": why} for name, why in report.wrong]
        counts = {"files": report.files, "schedules": report.schedules, "proofs": report.proofs}
        not_proved = {property_name: sorted(names) for property_name, names in sorted(report.unproved.items())}
        remarks = dict(report.remarks)
        print_json("library-check", {**counts, "wrong": wrong, "remarks": remarks, "not_proved": not_proved})
    else:
        for name, why in report.wrong:
            say_fitted(f"{origin_of(library_folder / name)}: wrong: {why}")
        for remark, file_count in report.remarks.items():
            say_fitted(f"{remark} ({format_count(file_count, 'file')})")
        parts = [(report.files, "file"), (report.schedules, "schedule"), (report.proofs, "proof")]
        counted = ", ".join(format_count(*part) for part in parts)
        for property_name, names in sorted(report.unproved.items()):
            # Shapes follow from schedules, which --proof writes.
            advice = "; asking again with --proof proves them" if "steps" in property_name.split(", ") else ""
            kind = "stated only, beside proved times and bounds" if is_harmless(property_name) else "not proved"
            say_fitted(f"{kind}: {property_name} ({format_count(len(names), 'file')}; --json names them{advice})")
        open_files = len(report.unproved_files)
        outcome = f"nothing wrong, {format_count(open_files, 'file')} not proved" if open_files else "all right"
        verdict = f"{len(report.wrong)} wrong" if report.wrong else outcome
        say_fitted(f"{origin_of(folder)}: {counted}: {verdict}")
    raise SystemExit(1 if report.wrong else 0)


def _check_folder(library_folder: Path, folder: str, topology: Topology | None, progress: Count) -> LibraryReport:
    """Return the report on a library and on the folders of its failures; its paths begin at the library.

    Args:
        library_folder: The library's folder.
        folder: The library as the user named it: its folder or its index.
        topology: Network of files whose topology has no known name; None for no network.
        progress: Counts what was checked.

    Raises:
        InputError: An index cannot be read, or the folder of failures is a link.
    """
    check_below(library_folder, library_folder / FAULTS)
    failures = sorted(path for path in (library_folder / FAULTS).glob("*") if not path.is_symlink())
    is_failure = os.path.lexists(library_folder / FAULT)
    entries = [] if is_failure and not (library_folder / INDEX).exists() else load_index(folder)
    report = check_library(library_folder, entries, topology, unfiled_schedules(library_folder), progress)
    for failure in () if is_failure else failures:
        if any(os.path.lexists(failure / name) for name in (FAULT, INDEX)):
            report.add(_check_folder(failure, str(failure), topology, progress), f"{FAULTS}/{failure.name}/")
    return report


@click.command("export")
@click.argument("folder", metavar="LIB")
@click.option(
    "--for", "form", required=True, metavar="NAME", help=f"Write one of {', '.join((TABLE, TUNER, NCCLX, *TARGETS))}."
)
@click.option("-o", "--out", required=True, metavar="DIR", help="Write to this folder.")
@click.option("--group", "groups", multiple=True, metavar="RANKS", help="For executors: write only this group; repeat.")
@click.option("--topology", metavar="NAME", help=f"For {TABLE}: use this topology, if the library has several.")
@click.option(
    "--topo", metavar="T", help=f"For {TUNER}, {NCCLX}: use this network, if the library's name for it is unknown."
)
@click.option(
    "--measured",
    metavar="FILE",
    help=f"For {TUNER}, {NCCLX}: use measured times (CSV) instead of NCCL's cost model.",
)
def export(
    folder: str, form: str, out: str, groups: tuple[str, ...], topology: str | None, topo: str | None,
    measured: str | None,
) -> None:  # fmt: skip
    """Write a library in a form that other programs select from.

    \b
    table       library.table, which launchers and plug-ins map into memory,
                and synth_table.h, which reads it in C
    nccl-tuner  nccl_tuner.conf for the example tuner plug-in of NCCL and RCCL:
                what NCCL itself runs, by its cost model or by measured times
    ncclx       the same for NCCLX, as ncclx_tuner.csv and ncclx_tuner.json
    a target    a folder for each communicator with the files of its group,
                and env.sh, which loads them

    \b
    synth library export lib --for table -o out
    synth library export lib --for executor-nccl --group 0-7 -o out
    """
    extra_options = {"--group": groups, "--topology": topology, "--topo": topo, "--measured": measured}
    tuner_options = "--topo", "--measured"
    form_options = {TABLE: ("--topology",), TUNER: tuner_options, NCCLX: tuner_options}.get(form, ("--group",))
    if form not in (known := (TABLE, TUNER, NCCLX, *TARGETS)):
        raise InputError(f"--for {form}: is not known; it must be one of {', '.join(known)}")
    unfit = [option for option, value in extra_options.items() if value and option not in form_options]
    if unfit:
        raise InputError(f"{unfit[0]}: cannot be used with --for {form}; leave it out")
    if form == TABLE:
        _export_table(folder, Path(out), topology)
    elif form in (TUNER, NCCLX):
        _export_tuner(folder, Path(out), topo, measured, form == NCCLX)
    else:
        group_ranks = [parse_ranks(group, "--group", _RANKS) for group in groups]
        library_folder = as_folder(folder, "LIB")
        check_fault(library_folder)
        with counting("checking") as progress:
            exported = export_folders(load_library(folder), form, out, group_ranks, progress)
        for item in exported[:_SHOWN]:
            files = format_count(item.files, "file")
            click.echo(f"{load_line(item)}    # {files}, ranks {format_listed(item.communicator)} in this order")
        if len(exported) > _SHOWN:
            click.echo(f"… and {len(exported) - _SHOWN} more folders in {origin_of(out)}")


def _export_table(folder: str, out: Path, topology: str | None) -> None:
    """Write the table of a library and the C header that reads it into a folder, and print the table's size.

    Args:
        folder: The library.
        out: The folder.
        topology: Name of the topology whose files are in the table; None if the library has only one.
    """
    data = table_bytes(*load_as_one(folder), topology)
    for name, content in (("library.table", data), (HEADER.name, HEADER.read_bytes())):
        write_into(out / name, content)
    say_fitted(f"{origin_of(out / 'library.table')}: {len(data)} bytes; {HEADER.name} in the same folder reads it in C")


def _export_tuner(folder: str, out: Path, topo: str | None, measured: str | None, is_ncclx: bool) -> None:
    """Write the file of NCCL's tuner plug-in, or those of NCCLX, and print how to load them.

    Args:
        folder: The library.
        out: Folder of the files.
        topo: Network for NCCL's cost model; None for the only one of the library.
        measured: File of measured times, which count instead of the cost model; None for none.
        is_ncclx: Whether to write NCCLX's files.

    Raises:
        InputError: The network is not known or not unique, or a file cannot be read or written.
    """
    entries, remarks = load_library(folder), list[str]()
    if measured is not None:
        lines, source = measured_lines(measured), f"NCCL's fastest by the measured times of {Path(measured).name}"
    else:
        names = list(dict.fromkeys(entry.topology for entry in entries))
        if topo is None and len(names) != 1:
            raise InputError(f"{folder}: has files for topologies {', '.join(names) or 'none'}; give one as --topo")
        kept = Networks(library=entries[0].folder).named(names[0]) if topo is None else None
        topology = kept or load(names[0] if topo is None else topo)
        lines, remarks = model_lines([entry for entry in entries if entry.topology == topology.name], topology)
        source = f"what NCCL {VERSION} runs by its own cost model, for {topology.name}"
    if is_ncclx:
        _write_ncclx(out, rules_of(lines), source)
    else:
        _write_nccl(out, lines, source)
    for remark in remarks:
        say_fitted(remark)


def _write_ncclx(out: Path, rules: Sequence[Rule], source: str) -> None:
    """Write NCCLX's files (CSV and JSON), each read back before, and print how to load them.

    Args:
        out: Folder of the files.
        rules: The rules.
        source: What the rules follow, for a comment.

    Raises:
        InputError: A file would not hold the same rules, or cannot be written. In the first case nothing is written.
    """
    texts = {"ncclx_tuner.csv": csv_text(rules, source), "ncclx_tuner.json": json_text(rules)}
    for name, text in texts.items():
        if parse_rules(text, name, name.endswith(".json")) != list(rules):
            raise InputError(f"{name}: would not say the same when it is read")
    for name, text in texts.items():
        write_into(out / name, text.encode())
    path = out / "ncclx_tuner.csv"
    click.echo(f"{origin_of(path)}: {format_count(len(rules), 'line')}; ncclx_tuner.json says the same")
    click.echo(f"export NCCLX_TUNER_CONFIG_FILE={path.absolute()}")


def _write_nccl(out: Path, lines: Sequence[Line], source: str) -> None:
    """Write the file of NCCL's tuner plug-in, and print how to load it.

    Args:
        out: Folder of the file.
        lines: The lines of the file.
        source: What the lines follow, for a comment.
    """
    path = out / "nccl_tuner.conf"
    write_into(path, text_of(lines, source).encode())
    click.echo(f"{origin_of(path)}: {format_count(len(lines), 'line')}; NCCL_TUNER_PLUGIN names the plug-in, which")
    click.echo("is built from ext-tuner/example of NCCL's sources, and")
    click.echo(f"export NCCL_TUNER_CONFIG_FILE={path.absolute()}")
