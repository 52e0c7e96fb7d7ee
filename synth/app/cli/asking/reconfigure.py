"""The command `reconfigure`, for networks whose links change: schedules that say when, and a bound for all of them."""

from __future__ import annotations

import time

import click

from synth.app.cli.asking.answer import clear_progress, progress_line
from synth.app.cli.defects import say_defects
from synth.app.cli.options import json_option, print_json
from synth.app.present.changes import changes_statement, changes_table
from synth.app.present.layout import say_fitted, terminal_width
from synth.model.numbers import parse_seconds
from synth.model.registry import find_kind, parse_name
from synth.model.sizes import parse_size
from synth.reconfiguration.search import search_changes
from synth.reconfiguration.states import MAX_DELTA_US, read_states
from topologies.errors import InputError
from topologies.text.fields import shown

_MOST_DELTAS = 50


@click.command("reconfigure")
@click.argument("collective_name", metavar="COLLECTIVE")
@click.option(
    "--states",
    required=True,
    metavar="S",
    help="States of the network: FILE.toml, or topologies joined by +, as ring:8 + axes:2x2x2 or strides:8.",
)
@click.option("--size", default="64M", metavar="SIZE", help="Message size, as 64K or 1M. Default: 64M.")
@click.option(
    "--delta",
    metavar="LIST",
    help="Times of a change in µs, as 0,1,10,100; a row of the table for each. Default: those of the file, or 10.",
)
@click.option("--root", type=int, default=0, metavar="RANK", help="Root of a broadcast and its like. Default: 0.")
@click.option("--budget", default="30s", metavar="TIME", help="Limit the time of the search. Default: 30s.")
@json_option
def reconfigure(
    collective_name: str, states: str, size: str, delta: str | None, root: int, budget: str, as_json: bool
) -> None:
    """Find when a network of changing links should change during a collective, with a bound over all sequences.

    While the network changes, nothing moves. All ranks take part. A file lists [[state]] tables. Among topologies,
    axes:4x4 stands for one state for each dimension of a torus, and strides:8 for one for each stride of a ring.

    \b
    synth reconfigure alltoall --states 'ring:8,bw=50 + axes:2x2x2,bw=100'
    synth reconfigure allgather --states states.toml --size 1M --delta 0,1,10
    """
    name = parse_name(collective_name)
    if find_kind(name).even:
        raise InputError(f"{name}: has a size of its own for each block; it must be a collective of equal blocks")
    size_bytes, budget_s = parse_size(size, "--size"), parse_seconds(budget, "--budget")
    deltas_us = [] if delta is None else _parse_deltas(delta)
    begun = time.monotonic()
    network = read_states(states)
    if not 0 <= root < network.nranks:
        raise InputError(f"--root: rank {root} is not in the states; it must be 0 to {network.nranks - 1}")
    show = progress_line(begun)
    try:
        search = search_changes(
            network, name, size_bytes, root, budget_s, deltas_us, progress=lambda text: show(text, None)
        )
    finally:
        clear_progress()
    say_defects(search.defects, "its answers are missing")
    document = changes_statement(search, deltas_us)
    if as_json:
        print_json("reconfiguration", document)
    else:
        click.echo(changes_table(document, terminal_width()))
        ended = "interrupted   " if search.interrupted else ""
        say_fitted(f"replayed and right   {ended}{time.monotonic() - begun:.1f} s")
    if search.interrupted:
        raise SystemExit(130)


def _parse_deltas(text: str) -> list[float]:
    """Return the times in µs of a list such as `0,1,10`, each once.

    Raises:
        InputError: An item is no number from 0 to 10⁹, or there are too many.
    """
    times: list[float] = []
    for item in text.split(","):
        try:
            value = float(item)
        except ValueError:
            value = -1.0
        if not 0 <= value <= MAX_DELTA_US:
            right = f"it must be µs from 0 to {MAX_DELTA_US:g}, as in 0,1,10"
            raise InputError(f"--delta: {shown(item.strip())} is no time of a change; {right}")
        times.append(value)
    if len(times) > _MOST_DELTAS:
        raise InputError(f"--delta: {len(times)} times; it must be at most {_MOST_DELTAS}")
    return list(dict.fromkeys(times))
