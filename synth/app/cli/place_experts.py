"""The command `place-experts`, which places the experts of a mixture of experts on the ranks of a group.

It is no form of `place`: that ranks how axes lie on a topology, by a workload; this fills slots, by a histogram.
"""

from __future__ import annotations

import json
import math
import time

import click

from synth.app.cli import interrupts
from synth.app.cli.asking.answer import clear_progress, progress_line
from synth.app.cli.options import json_option, print_json, wide_option
from synth.app.cli.programs import check_ending, check_not_source, write_text
from synth.app.present.experts import engine_file, experts_statement, experts_table
from synth.app.present.layout import say_fitted, terminal_width
from synth.engines.skewed.shape import shape_of
from synth.model.numbers import parse_seconds
from synth.model.problem import parse_ranks
from synth.model.sizes import parse_size
from synth.parallelism.experts.histogram import MAX_EXPERTS, read_histogram, read_tokens
from synth.parallelism.experts.placement import IMBALANCE, place_experts, right_slots
from synth.parallelism.experts.traffic import MAX_COPIES, ExpertRouting, routing_of_tokens, scaled
from synth.storage.columns import check_replaceable
from topologies.errors import InputError
from topologies.load import load

TOKEN_BYTES = 14336  # 7168 values of 16 bits, as in DeepSeek-V3.


@click.command("place-experts")
@click.argument("file", metavar="FILE")
@click.option(
    "--topo",
    required=True,
    metavar="T",
    help="Use this topology: nodes whose ranks all have links to each other, joined by NICs: dgx-h100:4, mi300x:2, or"
    " FILE (see synth topo).",
)
@click.option(
    "--tokens",
    "nexperts",
    type=click.IntRange(1, MAX_EXPERTS),
    metavar="N",
    help="State that FILE has the experts, of N, of sampled tokens, and that a token is sent once to a node.",
)
@click.option("--group", metavar="RANKS", help="Use these ranks, in this order. Default: all.")
@click.option(
    "--slots", type=int, metavar="N", help="Let each rank hold N experts. Default: one more than all experts need."
)
@click.option(
    "--bytes",
    "token",
    default=str(TOKEN_BYTES),
    metavar="SIZE",
    help=f"Bytes of a token on its way to an expert: hidden size × bytes of a value. Default: {TOKEN_BYTES}.",
)
@click.option("--combine-bytes", "result", metavar="SIZE", help="Bytes of a result. Default: those of --bytes.")
@click.option(
    "--copies",
    type=click.IntRange(1, int(MAX_COPIES)),
    metavar="N",
    help="Scale each layer to N copies from a rank: its tokens × the experts of a token. Default: as the file states.",
)
@click.option(
    "--imbalance",
    type=float,
    default=IMBALANCE,
    metavar="X",
    help=f"Allow the most loaded rank X times the mean load. Default: {IMBALANCE}.",
)
@click.option(
    "--expert-groups",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Groups of experts, for the comparison with EPLB's hierarchical balancing. Default: 1.",
)
@click.option(
    "--budget",
    metavar="TIME",
    help="End the search after this time; each layer gets an equal part. Default: none, the whole search.",
)
@click.option(
    "-o", "--out", metavar="OUT.json", help="Write the map from slots to experts, which serving engines load."
)
@wide_option
@json_option
def place_experts_command(
    file: str,
    topo: str,
    nexperts: int | None,
    group: str | None,
    slots: int | None,
    token: str,
    result: str | None,
    copies: int | None,
    imbalance: float,
    expert_groups: int,
    budget: str | None,
    out: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Place the experts of a mixture of experts on ranks for the least time of dispatch and combine.

    FILE is a routing histogram: how many tokens go to each expert, of shape (layers, experts), or (layers, ranks,
    experts) where it is known from which rank they come; JSON, text or .npy. With --tokens it has the experts of whole
    tokens, of shape (layers, tokens, experts of a token).

    \b
    synth place-experts counts.csv --topo dgx-h100:4 --slots 9 -o experts.json
    """
    if out is not None:
        check_ending(out, ".json", "a map from slots to experts")
        check_not_source(out, file)
        check_replaceable(out)
    budget_s = math.inf if budget is None else parse_seconds(budget, "--budget")
    dispatch_bytes = parse_size(token, "--bytes")
    combine_bytes = dispatch_bytes if result is None else parse_size(result, "--combine-bytes")
    if not 1 <= imbalance <= 1e6:
        raise InputError(f"--imbalance: {imbalance:g} is out of range; it must be from 1 to 1000000, such as 1.1")
    begun = time.monotonic()
    show = progress_line(begun)
    try:
        topology = load(topo)
        members = None if group is None else parse_ranks(group, "--group", topology.nranks)
        shape = shape_of(topology, members)
        if nexperts is None:
            routing = ExpertRouting(shape, read_histogram(file, shape.nranks), dispatch_bytes, combine_bytes)
        else:
            tokens = read_tokens(file, nexperts, shape.nranks)
            routing = routing_of_tokens(shape, tokens, nexperts, dispatch_bytes, combine_bytes)
        if copies is not None:
            routing = scaled(routing, copies)
        slots = right_slots(routing, slots, expert_groups, "--")
        placed = place_experts(
            routing,
            slots,
            imbalance,
            expert_groups,
            lambda layer: show(f"placing layer {layer + 1} of {len(routing.copies)}", None),
            budget_s - (time.monotonic() - begun),
        )
        interrupts.let_finish()
    finally:
        clear_progress()
    document = experts_statement(placed, topology.name, imbalance)
    if out is not None:
        write_text(out, json.dumps(engine_file(placed)) + "\n")
    if as_json:
        print_json("experts", document)
    else:
        click.echo(experts_table(document, None if wide else terminal_width()))
        if out is not None:
            say_fitted(f"wrote {out}: physical_to_logical_map, {len(document['ranks']) * slots} slots a layer")
    if placed.interrupted:
        raise SystemExit(130)
