"""Place experts as EPLB does, by its published description (the README of github.com/deepseek-ai/EPLB).

Global balancing: each further replica goes to the expert with the most load for each of its replicas; then replicas are
packed to the ranks, so that these have equal loads. Hierarchical balancing: groups of experts are packed to the nodes,
so that these have equal loads; each node replicates its experts; each node packs its replicas to its ranks. A packing
takes the heaviest item first and gives it to the least loaded place with room. Both take each replica of an expert to
have an equal share of its load.
"""

from __future__ import annotations

import numpy as np

from synth.model.collective import Floats, Ints


def place_as_eplb(load: Floats, nranks: int, slots: int, nnodes: int, groups: int) -> Ints:
    """Return the expert in each slot, by nodes where their number divides that of groups, else globally.

    Args:
        load: Copies to each expert, shape (layers, experts).
        nranks: Number of ranks, which follow each other node by node.
        slots: Slots of each rank; ranks × slots is at least the number of experts.
        nnodes: Number of nodes, which divides `nranks`.
        groups: Number of groups, which divides the number of experts; experts of a group follow each other.

    Returns:
        int64, shape (layers, ranks, slots).
    """
    if groups % nnodes == 0:
        return place_by_nodes(load, nranks, slots, nnodes, groups)
    return place_globally(load, nranks, slots)


def place_globally(load: Floats, nranks: int, slots: int) -> Ints:
    """Return the expert in each slot by global balancing: int64, shape (layers, ranks, slots).

    Args:
        load: Copies to each expert, shape (layers, experts).
        nranks: Number of ranks.
        slots: Slots of each rank; ranks × slots is at least the number of experts.
    """
    return np.stack([_in_one_place(layer, nranks, slots) for layer in load])


def place_by_nodes(load: Floats, nranks: int, slots: int, nnodes: int, groups: int) -> Ints:
    """Return the expert in each slot by hierarchical balancing: int64, shape (layers, ranks, slots).

    Args:
        load: Copies to each expert, shape (layers, experts).
        nranks: Number of ranks, which follow each other node by node.
        slots: Slots of each rank.
        nnodes: Number of nodes, which divides `nranks` and `groups`.
        groups: Number of groups, which divides the number of experts; experts of a group follow each other.
    """
    placement = np.zeros((len(load), nranks, slots), dtype=np.int64)
    ranks_of_node = nranks // nnodes
    for layer, expert_load in enumerate(load):
        members = np.arange(len(expert_load)).reshape(groups, -1)
        for node, packed in enumerate(_packed(expert_load[members].sum(axis=1), nnodes, groups // nnodes)):
            experts = members[packed].reshape(-1)
            inside = _in_one_place(expert_load[experts], ranks_of_node, slots)
            placement[layer, node * ranks_of_node : (node + 1) * ranks_of_node] = experts[inside]
    return placement


def _in_one_place(load: Floats, nranks: int, slots: int) -> Ints:
    """Replicate experts and pack their replicas to ranks; return the expert in each slot, shape (ranks, slots)."""
    count = np.ones(len(load), dtype=np.int64)
    for _ in range(nranks * slots - len(load)):
        count[np.argmax(load / count)] += 1
    expert = np.repeat(np.arange(len(load)), count)
    return np.stack([expert[packed] for packed in _packed((load / count)[expert], nranks, slots)])


def _packed(weight: Floats, places: int, room: int) -> list[Ints]:
    """Return the items of each place, `room` of them: the heaviest first, each to the least loaded place with room."""
    items: list[list[int]] = [[] for _ in range(places)]
    load = np.zeros(places)
    for item in np.argsort(-weight, kind="stable").tolist():
        place = int(np.argmin(load))
        items[place].append(item)
        load[place] = load[place] + weight[item]
        if len(items[place]) == room:
            load[place] = np.inf
    return [np.array(place, dtype=np.int64) for place in items]
