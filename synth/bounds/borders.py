"""Bounds of many all-to-alls by what crosses the borders of sets of ranks; a matrix takes microseconds.

Every byte that crosses a border takes at least one resource of a cover of the crossing links
(`synth.bounds.resource_cover`), so the last of them has left no sooner than their sum over the sum of the cover's
capacities. Then it needs the least α of these links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from synth.bounds.prove import prove
from synth.bounds.resource_cover import cover
from synth.bounds.witnesses.cut import Cut
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem, least_latency
from topologies.network import Network, network


def border_times(net: Network, part: Ints, count: int) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Return ((µs a byte, least α) outward, the same inward) of the links that cross the border of each part.

    Each float64, shape (count,). A part without such links has 0.

    Args:
        net: The network.
        part: Part of each rank of the network, shape (nranks,).
        count: Number of parts.
    """
    ends = part[net.src], part[net.dst]
    directions = []
    for own in ends:
        us, alpha = np.zeros(count), np.zeros(count)
        crossing = ends[0] != ends[1]
        for index in range(count):
            links = np.flatnonzero(crossing & (own == index))
            if len(links):
                us[index] = 1e-3 / float(net.capacity_gbs[cover(net, links)].sum())
                alpha[index] = float(net.alpha_us[links].min())
        directions.append((us, alpha))
    return directions[0], directions[1]


@dataclass(frozen=True, eq=False)
class Borders:
    """The borders of parts of a group of k positions, under each of P protocols.

    Attributes:
        labels: For each partition of the positions, the part of each, int64, shape (k,).
        us: Time of a byte over each border, outward of all parts of a partition and then inward, partition by
            partition, in µs, float64, shape (P, borders).
        alpha_us: Least α of a link over each border, shape (P, borders).
        least_us: Least sum of α on a path from each position to each position, shape (P, k, k).
        start_us: Time before which nothing is sent, shape (P,).
    """

    labels: tuple[Ints, ...]
    us: Floats
    alpha_us: Floats
    least_us: Floats
    start_us: Floats

    def crossing(self, matrices: Floats) -> Floats:
        """Return the bytes over each border, shape (m, borders).

        Args:
            matrices: Bytes from position to position with an empty diagonal, shape (m, k, k).
        """
        columns = []
        for label in self.labels:
            is_in = (label[:, None] == np.arange(label.max() + 1)).astype(np.float64)
            between = is_in.T @ matrices @ is_in
            inside = np.diagonal(between, axis1=1, axis2=2)
            columns += [between.sum(axis=2) - inside, between.sum(axis=1) - inside]
        return np.concatenate(columns, axis=1)

    def bound_us(self, matrices: Floats) -> Floats:
        """Return times in µs that no schedule of each matrix can beat, shape (m,); 0 where nothing is sent.

        Args:
            matrices: As for `crossing`.
        """
        paths_us = np.stack([np.where(matrices > 0, us, 0.0).max(axis=(1, 2)) for us in self.least_us])
        return self._times_us(self.crossing(matrices), paths_us)

    def scaled_us(self, matrix: Floats, scales: Floats) -> Floats:
        """Return the times in µs that no schedule of a matrix can beat at each scale, shape (m,); inf at scale inf.

        Args:
            matrix: Bytes from position to position with an empty diagonal, shape (k, k).
            scales: Factors on all bytes, more than 0, shape (m,).
        """
        paths_us = np.where(matrix > 0, self.least_us, 0.0).max(axis=(1, 2))[:, None]
        finite = np.where(np.isinf(scales), 1.0, scales)
        times_us = self._times_us(finite[:, None] * self.crossing(matrix[None]), paths_us)
        return np.where(np.isinf(scales), np.inf, times_us)

    def _times_us(self, crossing: Floats, paths_us: Floats) -> Floats:
        """Return the bounds by the bytes over borders, shape (m, borders), and by α, shape (P, m) or (P, 1)."""
        best = np.full(len(crossing), np.inf)
        for us, alpha_us, path_us, start_us in zip(self.us, self.alpha_us, paths_us, self.start_us, strict=True):
            at_borders = np.where(crossing > 0, crossing * us + alpha_us, 0.0).max(axis=1)
            best = np.minimum(best, start_us + np.maximum(at_borders, path_us))
        return np.where(crossing.any(axis=1), best, 0.0)


def borders_of(problem: Problem, examples: Iterable[Problem] = ()) -> Borders:
    """Return the borders in the network of an all-to-all: of its ranks, of its nodes, and at the cuts of examples.

    Args:
        problem: The problem, on a network whose switches only forward. Where an executor's costs are on and no protocol
            is chosen, the bounds hold for each of its protocols.
        examples: The problem with other sizes; the cuts that prove most for them become borders too.

    Raises:
        InputError: Switches join too many pairs of ranks.
        TimeUp: The time of the work around is over.
    """
    nets = [_with_all_paths(problem.under(name)) for name in problem.protocols] or [_with_all_paths(problem)]
    nranks, k = nets[0].nranks, problem.collective.nranks
    partitions: list[Ints] = [np.arange(nranks)]
    nodes = np.unique(problem.topology.nodes[nets[0].ranks], return_inverse=True)[1].reshape(-1)
    if 0 < nodes.max() < nranks - 1:
        partitions.append(nodes)
    witnesses = [witness for example in examples for witness in prove(example).witnesses]
    cuts = {tuple(sorted(cut.ranks)) for cut in witnesses if isinstance(cut, Cut) and 1 < len(cut.ranks) < nranks - 1}
    partitions += [np.isin(np.arange(nranks), cut).astype(np.int64) for cut in sorted(cuts)]
    partitions = [part for part in partitions if np.ptp(part[:k])]
    us, alpha_us = zip(*(_columns(net, partitions, k) for net in nets), strict=True)
    return Borders(
        tuple(part[:k] for part in partitions),
        np.stack(us),
        np.stack(alpha_us),
        np.stack([least_latency(net.nranks, net.src, net.dst, net.alpha_us)[:k, :k] for net in nets]),
        np.array([net.start_us for net in nets]),
    )


def _with_all_paths(problem: Problem) -> Network:
    """Return the network of a problem with all its paths through switches as links, which borders count."""
    if problem.network.switch_graph is None:
        return problem.network
    return network(problem.topology, problem.ranks, len(problem.group))


def _columns(net: Network, partitions: Sequence[Ints], k: int) -> tuple[Floats, Floats]:
    """Return (µs a byte, least α) over the borders of all parts that hold positions below k, as in `Borders`."""
    us, alpha_us = [], []
    for part in partitions:
        count = int(part[:k].max()) + 1
        for border_us, border_alpha_us in border_times(net, part, int(part.max()) + 1):
            us.append(border_us[:count])
            alpha_us.append(border_alpha_us[:count])
    return np.concatenate(us), np.concatenate(alpha_us)
