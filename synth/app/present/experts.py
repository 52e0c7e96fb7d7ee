"""A placement of experts as one dictionary of plain values, and as the table that people read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synth.app.present.layout import LEAST_WIDTH, Column, fitted, wrapped
from synth.model.text import format_count, format_gap, format_time
from synth.parallelism.experts.placement import PlacedExperts
from synth.parallelism.experts.traffic import LayerTraffic

_ROWS = 6  # Layers that the table shows.


def experts_statement(placed: PlacedExperts, topology: str, imbalance: float) -> dict[str, Any]:
    """Return a placement of experts as a dictionary of plain values.

    Args:
        placed: The placement.
        topology: Name of the topology.
        imbalance: The imbalance that was allowed.

    Returns:
        A dictionary with these keys:

        - topology: Name of the topology.
        - ranks: Ranks of the topology that hold the experts, in the group's order.
        - nodes: Node of each of these ranks, from 0.
        - experts, slots: Number of experts of a layer, and of slots of a rank.
        - dispatch_bytes, combine_bytes: Bytes of a token to an expert, and of its result.
        - imbalance_limit: The allowed imbalance.
        - total: Figures of all layers, as of a layer; between_nodes is of all layers, imbalance is the largest.
        - layers: For each layer `time_us`, `bound_us`, `gap` (time / bound; None without a bound), `between_nodes` (the
          messages that leave their node / all copies), `imbalance` (load of the most loaded rank / mean) and `proof`
          ("nodes" or "ranks": what the bound's prices are for; "" for none).
        - unsearched: Number of layers that Ctrl-C or the budget left without a search and a bound; usually 0.
        - cut_short: Number of further layers whose search the budget ended; usually 0.
        - eplb: `total` and `layers` of EPLB's placement, without bounds.
        - physical_to_logical_map: For each layer the expert in each slot, rank by rank.
    """
    routing = placed.layers[0].routing
    shape = routing.shape
    copies = [float(layer.sum()) for layer in routing.copies]
    layers = []
    for layer, all_copies in zip(placed.layers, copies, strict=True):
        bound = layer.bound
        layers.append(
            {
                **_figures([layer.traffic], [all_copies]),
                "bound_us": bound.time_us,
                "gap": _gap(layer.traffic.time_us, bound.time_us),
                "proof": bound.of,
            }
        )
    traffic = [layer.traffic for layer in placed.layers]
    return {
        "topology": topology,
        "ranks": shape.net.ranks.tolist(),
        "nodes": shape.node_of.tolist(),
        "experts": routing.copies.shape[2],
        "slots": placed.layers[0].experts.shape[1],
        "dispatch_bytes": routing.dispatch_bytes,
        "combine_bytes": routing.combine_bytes,
        "imbalance_limit": imbalance,
        "total": {
            **_figures(traffic, copies),
            "bound_us": placed.bound_us,
            "gap": _gap(placed.time_us, placed.bound_us),
        },
        "layers": layers,
        "unsearched": placed.unsearched,
        "cut_short": placed.cut_short,
        "eplb": {
            "total": _figures(placed.eplb, copies),
            "layers": [_figures([sent], [amount]) for sent, amount in zip(placed.eplb, copies, strict=True)],
        },
        **engine_file(placed),
    }


def engine_file(placed: PlacedExperts) -> dict[str, list[list[int]]]:
    """Return what a serving engine loads: the expert in each slot of each layer, rank by rank."""
    experts = placed.experts
    return {"physical_to_logical_map": experts.reshape(len(experts), -1).tolist()}


def _figures(traffic: Sequence[LayerTraffic], copies: Sequence[float]) -> dict[str, float]:
    """Return the figures of some layers in all, without those of the bound."""
    total = sum(copies)
    return {
        "time_us": sum(layer.time_us for layer in traffic),
        "between_nodes": sum(layer.between_nodes for layer in traffic) / total if total else 0.0,
        "imbalance": max(layer.imbalance for layer in traffic),
    }


def _gap(time_us: float, bound_us: float) -> float | None:
    """Return time / bound: 1 where both are 0, None where only the bound is 0."""
    if bound_us > 0:
        return time_us / bound_us
    return None if time_us > 0 else 1.0


def experts_table(document: dict[str, Any], width: int | None = LEAST_WIDTH) -> str:
    """Return an `experts_statement` as text: heading, this placement and EPLB's, and the slowest layers.

    Args:
        document: The statement.
        width: Most characters of a line, as far as columns can be left out; None for all columns.
    """
    layers, eplb = document["layers"], document["eplb"]["layers"]
    slowest = sorted(range(len(layers)), key=lambda i: -layers[i]["time_us"])[:_ROWS]
    shown = [("all layers", document["total"], document["eplb"]["total"])]
    shown += [(f"layer {i}", layers[i], eplb[i]) for i in sorted(slowest)] if len(layers) > 1 else []
    gaps = ["–" if row["gap"] is None else format_gap(row["gap"]) for _, row, _ in shown]
    columns = [
        Column("", [name for name, _, _ in shown], left=True),
        Column("time", [format_time(row["time_us"]) for _, row, _ in shown]),
        Column("gap", gaps),
        Column("EPLB's time", [format_time(eplb_row["time_us"]) for _, _, eplb_row in shown]),
        Column("between nodes", [f"{row['between_nodes']:.1%}" for _, row, _ in shown], 1),
        Column("EPLB's share", [f"{eplb_row['between_nodes']:.1%}" for _, _, eplb_row in shown], 1),
        Column("imbalance", [f"{row['imbalance']:.2f}" for _, row, _ in shown], 2),
        Column("EPLB's imbalance", [f"{eplb_row['imbalance']:.2f}" for _, _, eplb_row in shown], 2),
    ]
    lines, no_room = fitted(columns, width)
    nnodes, total = max(document["nodes"]) + 1, document["total"]
    text = [
        f"{document['topology']} · {format_count(len(layers), 'layer')} · {format_count(document['experts'], 'expert')}"
        f" on {format_count(len(document['ranks']), 'rank')} of {format_count(nnodes, 'node')},"
        f" {format_count(document['slots'], 'slot')} each",
        "",
        *lines,
        "",
        "time: dispatch and combine; between nodes: messages that leave their node / all copies; imbalance: load of"
        " the most loaded rank / mean load; EPLB's share: its messages between nodes",
    ]
    if total["imbalance"] > document["imbalance_limit"] * (1 + 1e-9):
        over = sum(row["imbalance"] > document["imbalance_limit"] * (1 + 1e-9) for row in layers)
        text.append(
            f"{format_count(over, 'layer')} over the allowed imbalance of {document['imbalance_limit']:g}:"
            " more --slots make room for further replicas of heavy experts"
        )
    if 0 < len(slowest) < len(layers):
        text.append(f"shown: {len(slowest)} of {len(layers)} layers, the slowest; --json has all")
    if document["cut_short"]:
        text.append(
            f"the budget ended the search of {document['cut_short']} of {format_count(len(layers), 'layer')}; their"
            " bounds hold, but may be weaker"
        )
    if document["unsearched"]:
        text.append(
            f"no time was left for {document['unsearched']} of {format_count(len(layers), 'layer')}, which have EPLB's"
            " placement and no bound"
        )
    if no_room:
        text.append(f"--wide also shows {', '.join(no_room)}")
    return "\n".join(wrapped(text, width))
