"""Writer of the text form of a topology, with repeated structure shortened."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

import numpy as np

from topologies.arrays import Ints, grouped
from topologies.clusters import Nics
from topologies.costs import LINK_KINDS
from topologies.text.costs import costs_lines, format_number, quoted
from topologies.text.vertex_sets import format_names, format_set
from topologies.topology import NAMED, Topology


def to_toml(topology: Topology, nics: Nics | None = None, remarks: Sequence[str] = ()) -> str:
    """Return the text form (TOML) of a topology, from which `from_toml` restores an equal one, exact to the last bit.

    Whether its costs are on is not written: they are off in the restored one.

    Args:
        topology: The topology.
        nics: NICs that join nodes of it to a cluster, if any; their `ports` are not written.
        remarks: Lines about the figures, which stand first as comments.
    """
    topo = topology
    lines = [
        *(f"# {' '.join(remark.split())}" for remark in remarks),
        f"name = {quoted(topo.name)}",
        f"ranks = {topo.nranks}",
    ]
    if topo.switches:
        lines.append(f"switches = {_array(format_names(topo.switches))}")
    for word, words in (("summary", topo.summary), ("source", topo.source)):
        if words:
            lines.append(f"{word} = {quoted(words)}")
    if topo.alpha_assumed:
        lines.append("alpha_assumed = true")
    if topo.sms:
        lines.append(f"sms = {topo.sms}")
    if topo.compute_capability:
        lines.append(f"compute_capability = {topo.compute_capability}")
    lines += [f"{key} = {quoted(value)}" for key, _, _ in NAMED if (value := getattr(topo, key))]
    if topo.nodes.any():
        lines.append(f"nodes = {_array(_node_sets(topo))}")
    for index in _groups(topo):
        src, dst = topo.link_src[index], topo.link_dst[index]
        key = src * topo.nvertices + dst
        is_symmetric = bool(np.isin(dst * topo.nvertices + src, key).all())
        if is_symmetric:
            src, dst = src[src < dst], dst[src < dst]
        lines += ["", "[[links]]", f"pairs = {_pairs(topo, src, dst)}"]
        if is_symmetric:
            lines.append("both = true")
        lines.append(f"gbs = {format_number(topo.bandwidth_gbs[index[0]])}")
        lines.append(f"alpha_us = {format_number(topo.alpha_us[index[0]])}")
        if topo.link_kind[index[0]]:
            lines.append(f'kind = "{LINK_KINDS[topo.link_kind[index[0]]]}"')
    for limit in topo.limits:
        pairs = _pairs(topo, topo.link_src[limit.links], topo.link_dst[limit.links])
        lines += ["", "[[limits]]", f"name = {quoted(limit.name)}", f"pairs = {pairs}"]
        lines.append(f"gbs = {format_number(limit.bandwidth_gbs)}")
    for multicast, reduce in dict.fromkeys((ops.multicast, ops.reduce) for ops in topo.switch_ops):
        names = [ops.switch for ops in topo.switch_ops if (ops.multicast, ops.reduce) == (multicast, reduce)]
        lines += ["", "[[switch_ops]]", f"switches = {_array(format_names(names))}"]
        lines += [f"multicast = {format_number(multicast)}", f"reduce = {format_number(reduce)}"]
    if nics is not None:
        lines += ["", "[nic]", *_nic_lines(nics, topo.nranks)]
    if topo.costs is not None:
        lines += costs_lines(topo.costs)
    return "\n".join(lines) + "\n"


def _nic_lines(nics: Nics, nranks: int) -> list[str]:
    """Return the lines of the keys of the table [nic], without its head."""
    sends, receives = (
        _array([format_set(ranks.tolist(), nranks, ()) for ranks in sets]) for sets in (nics.sends, nics.receives)
    )
    lines = [f"serves = {sends}"] if sends == receives else [f"sends = {sends}", f"receives = {receives}"]
    fabric = {len(nics.sends): '"rail"', 0: '"direct"', 1: '"one"'}
    lines += [f"gbs = {format_number(nics.gbs)}", f"alpha_us = {format_number(nics.alpha_us)}"]
    if nics.assumed:
        lines.append("assumed = true")
    if nics.kind != "network":
        lines.append(f'kind = "{nics.kind}"')
    return [*lines, f"fabric = {fabric.get(nics.fabrics, nics.fabrics)}"]


def _groups(t: Topology) -> list[Ints]:
    """Return the links of equal figures, a column of links per group, groups in the order of their first links."""
    if not t.nlinks:
        return []
    figures = np.stack([t.bandwidth_gbs, t.alpha_us, t.link_kind], axis=1)
    _, first, group = np.unique(figures, axis=0, return_index=True, return_inverse=True)
    ptr, by_group = grouped(group.reshape(-1), len(first))
    parts = np.split(by_group, ptr[1:-1])
    return [parts[i] for i in np.argsort(first)]


def _pairs(t: Topology, src: Ints, dst: Ints) -> str:
    """Return links as a quoted TOML text such as "0-3>nvswitch"; sources with equal destinations form one set.

    A text of 90 characters or more is broken into lines. `src` and `dst` are the vertices of the links, in any order.
    """
    order = np.lexsort((dst, src))
    src, dst = src[order], dst[order]
    starts = np.flatnonzero(np.diff(src, prepend=-1))
    by_targets: dict[str, list[int]] = {}
    for source, targets in zip(src[starts].tolist(), np.split(dst, starts[1:]), strict=True):
        by_targets.setdefault(format_set(targets.tolist(), t.nranks, t.switches), []).append(source)
    pairs = " ".join(f"{format_set(sources, t.nranks, t.switches)}>{to}" for to, sources in by_targets.items())
    if len(pairs) < 90:
        return f'"{pairs}"'
    return f'"""\n{fill(pairs, 100, break_long_words=False, break_on_hyphens=False)}\n"""'


def _node_sets(t: Topology) -> list[str]:
    """Return the ranks of each chassis as text such as "0-7", in the order of the chassis; "" for no ranks."""
    ptr, order = grouped(t.nodes, int(t.nodes.max()) + 1)
    return [format_set(part.tolist(), t.nranks, ()) for part in np.split(order, ptr[1:-1])]


def _array(items: list[str]) -> str:
    """Return a TOML array of texts."""
    return "[" + ", ".join(quoted(item) for item in items) + "]"
