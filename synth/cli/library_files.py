"""A library's files: `synth library check | export`."""

from __future__ import annotations

from pathlib import Path

import click

from emit.library.check import Report, check_library
from emit.library.export import export_folders, load_line
from emit.library.fault_check import check_fault
from emit.library.index import INDEX, load_index
from emit.library.nccl_tuner import measured_lines, model_lines, text_of
from emit.library.overlay import FAULT, FAULTS, load_as_one, load_library
from emit.library.table import HEADER, table_bytes
from emit.targets import TARGETS
from synth.baselines.nccl.figures import VERSION
from synth.cli.options import json_option, print_json
from synth.library.placing import unfiled_schedules
from synth.model.numbers import as_folder
from synth.model.problem import parse_ranks
from synth.present.text import format_count, format_listed
from synth.storage.columns import replaced
from topologies.errors import InputError
from topologies.load import load
from topologies.text.files import check_below, origin_of
from topologies.topology import Topology

TABLE, TUNER = "table", "nccl-tuner"
_RANKS = 1 << 20  # that a group may name
_SHOWN = 40  # folders that are named one by one


@click.command("check")
@click.argument("folder", metavar="LIB")
@click.option("--topo", metavar="T", help="The network of files whose topology's name does not say it, a FILE.")
@json_option
def check(folder: str, topo: str | None, as_json: bool) -> None:
    """Check every file of a library again from its bytes, every schedule and proof, and what the index says of them.

    Programs are replayed and timed, schedules replayed, bounds proved anew. Exit code 0 all right, 1 something is
    wrong, 2 not readable.

    \b
    synth library check lib
    """
    topology = None if topo is None else load(topo)
    where = as_folder(folder, "LIB")
    where = where if where.is_dir() else where.parent
    report = _check_folder(where, folder, topology)
    if as_json:
        wrong = [{"file": name, "why": why} for name, why in report.wrong]
        counts = {"files": report.files, "schedules": report.schedules, "proofs": report.proofs}
        unproved = {what: sorted(names) for what, names in sorted(report.unproved.items())}
        print_json({**counts, "wrong": wrong, "remarks": dict(report.remarks), "not_proved": unproved})
    else:
        for name, why in report.wrong:
            click.echo(f"{origin_of(where / name)}: wrong: {why}")
        for remark, many in report.remarks.items():
            click.echo(f"{remark} ({format_count(many, 'file')})")
        parts = [(report.files, "file"), (report.schedules, "schedule"), (report.proofs, "proof")]
        counted = ", ".join(format_count(*part) for part in parts)
        for what, names in sorted(report.unproved.items()):
            click.echo(f"not proved: {what} ({format_count(len(names), 'file')}, {min(names)})")
        open_files = len(report.unproved_files)
        right = f"nothing wrong, {format_count(open_files, 'file')} not proved" if open_files else "all right"
        verdict = f"{len(report.wrong)} wrong" if report.wrong else right
        click.echo(f"{origin_of(folder)}: {counted}: {verdict}")
    raise SystemExit(1 if report.wrong else 0)


def _check_folder(where: Path, folder: str, topology: Topology | None) -> Report:
    """Check a library and the folders of its failures; the report's paths begin at the library."""
    check_below(where, where / FAULTS)
    failures = sorted(path for path in (where / FAULTS).glob("*") if not path.is_symlink())
    entries = [] if (where / FAULT).exists() and not (where / INDEX).exists() else load_index(folder)
    report = check_library(where, entries, topology, unfiled_schedules(where))
    for failure in failures if not (where / FAULT).exists() else ():
        if (failure / FAULT).exists() or (failure / INDEX).exists():
            report.add(_check_folder(failure, str(failure), topology), f"{FAULTS}/{failure.name}/")
    return report


@click.command("export")
@click.argument("folder", metavar="LIB")
@click.option("--for", "form", required=True, metavar="NAME", help=f"{TABLE}, {TUNER}, or {', '.join(TARGETS)}.")
@click.option("-o", "--out", required=True, metavar="DIR", help="The folder to write to.")
@click.option(
    "--group", "groups", multiple=True, metavar="RANKS", help="For executors: only this group; again for more."
)
@click.option("--topology", metavar="NAME", help=f"For {TABLE}, where the library has files for several.")
@click.option("--topo", metavar="T", help=f"For {TUNER}: the network, where the library's name for it does not say it.")
@click.option("--measured", metavar="FILE", help=f"For {TUNER}: measured times (CSV) in place of NCCL's cost model.")
def export(
    folder: str, form: str, out: str, groups: tuple[str, ...], topology: str | None, topo: str | None,
    measured: str | None,
) -> None:  # fmt: skip
    """Write a library as others select from it.

    \b
    table       library.table, to be mapped by launchers and plug-ins, and synth_table.h, which reads it in C
    nccl-tuner  nccl_tuner.conf for NCCL's (and RCCL's) example tuner plug-in: what NCCL itself runs, by its cost
                model, or the best of measured times
    a target    a folder for each communicator, with the files of its group alone, and env.sh, which loads it

    \b
    synth library export lib --for table -o out
    synth library export lib --for executor-nccl --group 0-7 -o out
    """
    given = {"--group": groups, "--topology": topology, "--topo": topo, "--measured": measured}
    takes = {TABLE: ("--topology",), TUNER: ("--topo", "--measured")}.get(form, ("--group",))
    if form not in (TABLE, TUNER, *TARGETS):
        raise InputError(f"--for {form}: is not known; it must be {TABLE}, {TUNER} or one of {', '.join(TARGETS)}")
    odd = [option for option, value in given.items() if value and option not in takes]
    if odd:
        raise InputError(f"{odd[0]}: does not go with --for {form}; leave it out")
    if form == TABLE:
        _export_table(folder, Path(out), topology)
    elif form == TUNER:
        _export_tuner(folder, Path(out), topo, measured)
    else:
        asked = [parse_ranks(group, "--group", _RANKS) for group in groups]
        where = as_folder(folder, "LIB")
        check_fault(where if where.is_dir() else where.parent)
        written = export_folders(load_library(folder), form, out, asked)
        for one in written[:_SHOWN]:
            files = format_count(one.files, "file")
            click.echo(f"{load_line(one)}    # {files}, ranks {format_listed(one.communicator)} in this order")
        if len(written) > _SHOWN:
            click.echo(f"… and {len(written) - _SHOWN} folders more in {origin_of(out)}")


def _export_table(folder: str, out: Path, topology: str | None) -> None:
    data = table_bytes(*load_as_one(folder), topology)
    for name, content in (("library.table", data), (HEADER.name, HEADER.read_bytes())):
        _write(out / name, content)
    click.echo(f"{origin_of(out / 'library.table')}: {len(data)} bytes; {HEADER.name} beside it says how to read it")


def _export_tuner(folder: str, out: Path, topo: str | None, measured: str | None) -> None:
    entries, remarks = load_library(folder), list[str]()
    if measured is not None:
        lines, source = measured_lines(measured), f"NCCL's fastest by the measured times of {Path(measured).name}"
    else:
        names = list(dict.fromkeys(entry.topology for entry in entries))
        if topo is None and len(names) != 1:
            raise InputError(f"{folder}: has files for topologies {', '.join(names) or 'none'}; give one as --topo")
        topology = load(names[0] if topo is None else topo)
        lines, remarks = model_lines([entry for entry in entries if entry.topology == topology.name], topology)
        source = f"what NCCL {VERSION} takes by its own cost model, for {topology.name}"
    path = out / "nccl_tuner.conf"
    _write(path, text_of(lines, source).encode())
    click.echo(f"{origin_of(path)}: {format_count(len(lines), 'line')}; NCCL_TUNER_PLUGIN loads the plug-in, and")
    click.echo(f"export NCCL_TUNER_CONFIG_FILE={path.absolute()}")
    for remark in remarks:
        click.echo(remark)


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"-o {path.parent}: cannot be written ({error.strerror or error})") from None
    with replaced(path) as file:
        file.write(data)
