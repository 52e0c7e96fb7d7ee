"""The time of a form of messages as far as the links between nodes tell it, without its plan."""

from __future__ import annotations

from math import prod

import numpy as np

from synth.engines.messages.merging import Doors, lasts_us
from synth.engines.messages.nodes import LinkChoice, Nodes
from synth.engines.messages.plans import MessagesForm, hands_of, phases_of
from synth.model.problem import Problem
from topologies.arrays import row_entries

_MOST_SENDERS = 8  # The most nodes that are all looked at.


def estimated_us(problem: Problem, nodes: Nodes, form: MessagesForm, kind: str, size_bytes: float) -> float:
    """Estimate the time in µs of one wave of a form: latencies, gaps and bytes of the messages, phase after phase.

    Args:
        problem: The problem, with any number of chunks.
        nodes: The nodes.
        form: The form.
        kind: "spread" or "gather" for copies to all ranks and sums of all, "both" for one after the other, or "move".
        size_bytes: Message size in bytes.
    """
    net = nodes.net
    between = net.gap_us > 0
    alpha_us = float(net.alpha_us[between].min())
    if form.trees:
        slots, _ = hands_of(len(nodes), form)
        return net.start_us + slots * slot_us(nodes, form, size_bytes)
    if form.distributed:
        # The nodes exchange their parts while they get them; the last part comes in one more message.
        part = size_bytes / (len(nodes) - 1)
        scatter_us = _busy_us(nodes, [(ahead, part) for ahead in range(1, len(nodes))], form)
        last_us = part / form.parts / form.carriers * 1e-3 / float(net.bandwidth_gbs[between].max())
        return net.start_us + scatter_us + last_us + 2 * alpha_us
    passes = 2 if kind == "both" and not form.exchanged else 1
    if form.merged:
        return net.start_us + passes * lasts_us(len(nodes), doors_of(nodes, size_bytes), form.merged)
    if problem.collective.block is not None and kind in ("spread", "gather"):
        phases = [_busy_between_us(nodes, messages, form) for messages in _uneven(problem, nodes, form, size_bytes)]
        return net.start_us + sum(phases) + alpha_us * len(phases_of(len(nodes), form.radix))
    phases = [
        _busy_us(nodes, [(ahead, weight * size_bytes) for ahead, weight in phase], form)
        for phase in _weights(problem, nodes, form, kind)
    ]
    return net.start_us + passes * (sum(phases) + alpha_us * len(phases))


def doors_of(nodes: Nodes, size_bytes: float) -> Doors:
    """Return the doors of a node for messages of equal parts of `size_bytes`, one of each node."""
    net = nodes.net
    between = net.gap_us > 0
    block_us = size_bytes / len(nodes) * 1e-3 / float(net.bandwidth_gbs[between].max())
    inner_us = net.alpha_us[~between]
    alpha_us = float(net.alpha_us[between].min() + (inner_us.min() if len(inner_us) else 0.0))
    places = max(len(members) for members in nodes.members)
    return Doors(places, block_us, float(net.gap_us[between].min()), alpha_us)


def slot_us(nodes: Nodes, form: MessagesForm, size_bytes: float) -> float:
    """Return the time in µs for which one of a form's trees keeps a link busy, with the gap."""
    gaps_us = nodes.net.gap_us
    return _busy_us(nodes, [(1, size_bytes / form.trees)], form) + float(gaps_us[gaps_us > 0].min())


def lag_of(nodes: Nodes, form: MessagesForm, size_bytes: float) -> float:
    """Return the slots from the start of a tree's message until its part has come, to an eighth of a slot."""
    net, slot = nodes.net, slot_us(nodes, form, size_bytes)
    between = net.gap_us > 0
    lasts_us = slot - float(net.gap_us[between].min()) + float(net.alpha_us[between].min())
    return round(8 * lasts_us / slot) / 8


def _weights(problem: Problem, nodes: Nodes, form: MessagesForm, kind: str) -> list[list[tuple[int, float]]]:
    """Return for each phase its messages: (how many nodes ahead, part of the message size that it carries)."""
    count, collective = len(nodes), problem.collective
    if form.exchanged:
        exchanges = list[list[tuple[int, float]]]()
        for number, radix in enumerate(form.radixes):
            width, parts = prod(form.radixes[:number]), prod(form.radixes[: min(number + 1, form.halved)])
            exchanges.append([(turn * width, 1.0 / parts) for turn in range(1, radix)])
        return exchanges + exchanges[: form.halved]
    phases = phases_of(count, form.radix)
    if collective.kind.rooted and kind in ("spread", "gather"):
        return [[(ahead, 1.0) for ahead in phase] for phase in phases]
    if kind != "move":
        # A node sends on the blocks of as many nodes as it has by then, and that its goal lacks.
        return [[(ahead, min(phase[0], count - ahead) / count) for ahead in phase] for phase in phases]
    source, goal = (nodes.node_of[ranks] for ranks in (collective.holders[1], collective.goals[1]))
    of_pair = float(collective.fraction[source != goal].sum()) / (count * (count - 1))
    distances = np.arange(count)
    return [
        [(ahead, of_pair * int((distances // phase[0] % form.radix == ahead // phase[0]).sum())) for ahead in phase]
        for phase in phases
    ]


def _uneven(
    problem: Problem, nodes: Nodes, form: MessagesForm, size_bytes: float
) -> list[dict[tuple[int, int], float]]:
    """Return for each phase the bytes from node to node of a collective whose nodes have blocks of different sizes.

    A ring is one phase: its messages follow each other in a pipeline.
    """
    collective, count = problem.collective, len(nodes)
    owner = collective.pre if len(collective.pre) <= len(collective.post) else collective.post
    share = np.bincount(nodes.node_of[owner[:, 0]], collective.fraction[owner[:, 1]], minlength=count) * size_bytes
    homes_at = [{node} for node in range(count)]
    phases = list[dict[tuple[int, int], float]]()
    for ahead in phases_of(count, form.radix):
        carried: dict[tuple[int, int], set[int]] = {}
        lacking = [set(range(count)) - homes for homes in homes_at]
        for distance in ahead:
            for node in range(count):
                goal = (node + distance) % count
                sent = homes_at[node] & lacking[goal]
                lacking[goal] -= sent
                if sent:
                    carried[node, goal] = sent
        for (_, goal), homes in carried.items():
            homes_at[goal] |= homes
        phases.append({ends: float(share[sorted(homes)].sum()) for ends, homes in carried.items()})
    if form.radix > 1:
        return phases
    return [
        {ends: sum(phase.get(ends, 0.0) for phase in phases) for ends in dict.fromkeys(e for p in phases for e in p)}
    ]


def _busy_us(nodes: Nodes, messages: list[tuple[int, float]], form: MessagesForm) -> float:
    """Return the longest time in µs that a resource is busy in a phase, without the gap after its last message.

    Args:
        nodes: The nodes.
        messages: How far ahead each node sends, and how many bytes.
        form: The form.
    """
    count = len(nodes)
    senders = count if count <= _MOST_SENDERS else 1  # All send alike.
    bytes_between = {(node, (node + ahead) % count): size for ahead, size in messages for node in range(senders)}
    return _busy_between_us(nodes, bytes_between, form)


def _busy_between_us(nodes: Nodes, bytes_between: dict[tuple[int, int], float], form: MessagesForm) -> float:
    """Return the longest time in µs that a resource is busy in a phase, without the gap after its last message.

    Args:
        nodes: The nodes.
        bytes_between: Bytes of the message from one node to another, by (source, goal).
        form: The form.
    """
    net = nodes.net
    links_of = LinkChoice(nodes).choose(list(bytes_between), form.carriers)
    counts = np.array([len(links) for links in links_of])
    link = np.concatenate([np.array(links) for links in links_of])
    bytes_of_link = np.repeat(np.array(list(bytes_between.values())) / counts, counts)
    lasts_us = form.parts * net.gap_us[link] + bytes_of_link * 1e-3 / net.bandwidth_gbs[link]
    uses = net.uses_idx[row_entries(net.uses_ptr, link)]
    busy_us = np.bincount(uses, np.repeat(lasts_us, np.diff(net.uses_ptr)[link]))
    return float(busy_us.max()) - float(net.gap_us[net.gap_us > 0].min())
