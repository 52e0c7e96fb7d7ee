"""The command `synth library install`: plans where MSCCL++'s shim for NCCL loads them without any Python."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from emit.library.checking.fault_check import check_fault
from emit.library.entry import IndexEntry
from emit.library.networks import Networks
from emit.library.overlay import load_library
from emit.library.selection.selector import entries_in_order
from emit.library.selection.shim_plans import (
    SLOTS,
    TARGET,
    choose_plans,
    install_plans,
    mscclpp_plan_dir,
    undo_plans,
)
from synth.app.cli.asking.answer import check_folder
from synth.app.present.layout import say_fitted, warn
from synth.model.numbers import as_folder
from synth.model.problem import parse_ranks
from synth.model.text import format_count, format_listed, format_served, format_spans
from topologies.errors import InputError
from topologies.load import load
from topologies.text.files import origin_of

_RANKS = 1 << 20  # ranks that a group may name
_NO_FILE = 3  # exit code


@click.command("install")
@click.argument("folder", metavar="LIB", required=False)
@click.option(
    "--group", metavar="RANKS", help="Install the plans of this communicator. Default: the only one that fits."
)
@click.option(
    "--only-sums", is_flag=True, help="State that the job's all-reduces are sums: without it no plan that reduces fits."
)
@click.option("--out-of-place", is_flag=True, help="Install plans for calls out of place. Default: in place.")
@click.option("--topo", metavar="T", help="Use this network, if the library's name for it is unknown.")
@click.option(
    "--into", metavar="DIR", help="Install to this folder. Default: default in $MSCCLPP_CACHE_DIR or ~/.cache/mscclpp."
)
@click.option("--undo", is_flag=True, help="Remove what was installed, and restore what was there before.")
def install(
    folder: str | None,
    group: str | None,
    only_sums: bool,
    out_of_place: bool,
    topo: str | None,
    into: str | None,
    undo: bool,
) -> None:
    """Put plans where MSCCL++'s shim for NCCL loads them without any Python.

    The shim reads plans of four names: two for 16 ranks on two nodes, one for 32 ranks on four nodes, and one for 64
    ranks with 4 on each node. Run the command once for each home folder, for example on every node. Exit code 3: no
    plan of the library fits.

    \b
    synth library install lib --only-sums
    synth library install --undo
    """
    target_folder = mscclpp_plan_dir() if into is None else Path(into)
    if undo:
        if folder is not None:
            raise InputError(f"--undo: takes no library; leave {folder} out")
        say_fitted(f"{origin_of(target_folder)}:", *(f"  {line}" for line in undo_plans(target_folder)))
        return
    if folder is None:
        raise InputError("LIB is missing: synth library install LIB")
    check_folder(target_folder, "--into" if into is not None else "$MSCCLPP_CACHE_DIR")
    library_folder = as_folder(folder, "LIB")
    check_fault(library_folder)
    entries = _of_one_communicator(load_library(folder), group, topo, folder)
    communicator = entries[0].communicator
    topology = Networks().of(entries[0]) if topo is None else load(topo)
    if topology is None:
        raise InputError(f"the network {entries[0].topology} is not known; give it as --topo")
    if topology.nranks <= max(communicator):
        raise InputError(f"--topo {topology.name}: has {topology.nranks} ranks; it must be the library's network")
    choice = choose_plans(entries, topology.nodes.tolist(), inplace=not out_of_place, only_sums=only_sums)
    for reason, count in choice.reasons.items():
        warn(f"{format_count(count, 'plan')} not installed: {reason}")
    if not choice.placed:
        raise SystemExit(_NO_FILE)
    kept = install_plans(choice.placed, target_folder)
    say_fitted(f"{origin_of(target_folder)}: for ranks {format_listed(communicator)} in this order")
    for slot, entry in choice.placed.items():
        form = "in place" if entry.inplace else "out of place"
        served = f"{entry.collective}, {format_served(entry.min_bytes, entry.max_bytes)} {form}"
        multiples = f", only messages of a multiple of {entry.divides} bytes" if entry.divides > 1 else ""
        say_fitted(f"  {slot.name}: {served}{multiples} ({entry.file})")
    say_fitted(*(f"  {name}: was there before, and is kept" for name in kept))
    say_fitted(
        "the shim takes a plan by collective, ranks, ranks a node, form and size only: every communicator of this shape"
        " gets these plans, and a call of another multiple fails in them"
    )
    if into is not None and target_folder.resolve() != mscclpp_plan_dir().resolve():
        if target_folder.name == "default":
            click.echo(f"export MSCCLPP_CACHE_DIR={shlex.quote(str(target_folder.resolve().parent))}")
        else:
            warn("MSCCL++ reads only a folder named default in $MSCCLPP_CACHE_DIR")


def _of_one_communicator(
    entries: Sequence[IndexEntry], group: str | None, topo: str | None, folder: str
) -> list[IndexEntry]:
    """Return the entries of plans of one communicator on one network, which are to be installed.

    Communicators of other sizes than the shim's four names take count only if no other plan is there.

    Args:
        entries: Entries of the library.
        group: The option `--group`: ranks in the communicator's order; None for the only communicator that fits.
        topo: The option `--topo`; if it names a topology of the library, only its plans count.
        folder: The library, for messages.

    Raises:
        InputError: The library has no plans without relays, none of the group, or those of more than one communicator.
    """
    plans = [entry for entry in entries if entry.target == TARGET and not entry.relays]
    if not plans:
        raise InputError(f"{folder}: has no plans of MSCCL++ without relays; make some with --target {TARGET}")
    if group is not None:
        plans = entries_in_order(plans, parse_ranks(group, "--group", _RANKS))
        if not plans:
            raise InputError(f"--group {group}: the library has no plan for it; synth library show {folder} lists all")
    by_question: dict[tuple[str, tuple[int, ...]], list[IndexEntry]] = {}
    for entry in plans:
        by_question.setdefault((entry.topology, entry.communicator), []).append(entry)
    names = {name for name, _ in by_question}
    if topo in names:
        by_question = {key: of_key for key, of_key in by_question.items() if key[0] == topo}
    sizes = {slot.nranks for slot in SLOTS}
    fitting = {key: of_key for key, of_key in by_question.items() if len(key[1]) in sizes} or by_question
    if len(fitting) > 1:
        name, ranks = next(iter(fitting))
        network = f" --topo {name}" if len(names) > 1 else ""
        raise InputError(
            f"{folder}: has plans for several communicators; name one, as --group {format_spans(ranks)}{network}"
        )
    return next(iter(fitting.values()))
