"""Writes the text form of a topology, repeated structure made short."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

import numpy as np

from topologies.arrays import Ints, grouped
from topologies.clusters import Nics
from topologies.costs import KINDS
from topologies.text.costs import costs_lines, format_number, quoted
from topologies.text.vertex_sets import format_names, format_set
from topologies.topology import NAMED, Topology


def to_toml(topology: Topology, nics: Nics | None = None, remarks: Sequence[str] = ()) -> str:
    """Text form (TOML) of `topology`; `from_toml` gives an equal topology back, figures to the last bit.

    nics: by which nodes of it are joined to a cluster, if any. remarks: lines on its figures, which stand first.
    """
    t = topology
    lines = [
        *(f"# {' '.join(remark.split())}" for remark in remarks),
        f"name = {quoted(t.name)}",
        f"ranks = {t.nranks}",
    ]
    if t.switches:
        lines.append(f"switches = {_array(format_names(t.switches))}")
    for word, words in (("summary", t.summary), ("source", t.source)):
        if words:
            lines.append(f"{word} = {quoted(words)}")
    if t.alpha_assumed:
        lines.append("alpha_assumed = true")
    if t.sms:
        lines.append(f"sms = {t.sms}")
    if t.compute_capability:
        lines.append(f"compute_capability = {t.compute_capability}")
    lines += [f"{key} = {quoted(value)}" for key, _, _ in NAMED if (value := getattr(t, key))]
    if t.nodes.any():
        lines.append(f"nodes = {_array(_node_sets(t))}")
    for index in _groups(t):
        src, dst = t.link_src[index], t.link_dst[index]
        key = src * t.nvertices + dst
        both = bool(np.isin(dst * t.nvertices + src, key).all())
        if both:
            src, dst = src[src < dst], dst[src < dst]
        lines += ["", "[[links]]", f"pairs = {_pairs(t, src, dst)}"]
        if both:
            lines.append("both = true")
        lines.append(f"gbs = {format_number(t.bandwidth_gbs[index[0]])}")
        lines.append(f"alpha_us = {format_number(t.alpha_us[index[0]])}")
        if t.link_kind[index[0]]:
            lines.append(f'kind = "{KINDS[t.link_kind[index[0]]]}"')
    for limit in t.limits:
        pairs = _pairs(t, t.link_src[limit.links], t.link_dst[limit.links])
        lines += ["", "[[limits]]", f"name = {quoted(limit.name)}", f"pairs = {pairs}"]
        lines.append(f"gbs = {format_number(limit.bandwidth_gbs)}")
    for multicast, reduce in dict.fromkeys((ops.multicast, ops.reduce) for ops in t.switch_ops):
        names = [ops.switch for ops in t.switch_ops if (ops.multicast, ops.reduce) == (multicast, reduce)]
        lines += ["", "[[switch_ops]]", f"switches = {_array(format_names(names))}"]
        lines += [f"multicast = {format_number(multicast)}", f"reduce = {format_number(reduce)}"]
    if nics is not None:
        lines += ["", "[nic]", *_nic_lines(nics, t.nranks)]
    if t.costs is not None:
        lines += costs_lines(t.costs)
    return "\n".join(lines) + "\n"


def _nic_lines(nics: Nics, nranks: int) -> list[str]:
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
    """Links of equal figures, groups in order of their first link."""
    if not t.nlinks:
        return []
    figures = np.stack([t.bandwidth_gbs, t.alpha_us, t.link_kind], axis=1)
    _, first, group = np.unique(figures, axis=0, return_index=True, return_inverse=True)
    ptr, by_group = grouped(group.reshape(-1), len(first))
    parts = np.split(by_group, ptr[1:-1])
    return [parts[i] for i in np.argsort(first)]


def _pairs(t: Topology, src: Ints, dst: Ints) -> str:
    """Pairs as sets: sources that reach the same destinations stand together."""
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
    ptr, order = grouped(t.nodes, int(t.nodes.max()) + 1)
    return [format_set(part.tolist(), t.nranks, ()) for part in np.split(order, ptr[1:-1])]


def _array(items: list[str]) -> str:
    return "[" + ", ".join(quoted(item) for item in items) + "]"
