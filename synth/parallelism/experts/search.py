"""Search placements of experts: which nodes hold an expert, which ranks of the node, layer by layer.

A layer takes six steps, for a limit on the load of one replica:

1. Each expert gets as many replicas as the limit needs, heavy experts first. A replica goes to a node that does not
   hold the expert yet, to the one which then has least to receive.
2. The free slots of each node go to replicas that are above the limit, then to the experts that its ranks want most.
3. Nodes exchange experts that have one replica, while that makes the busiest nodes less busy.
4. Replicas of all experts move between nodes, or are made in place of others, while that helps too.
5. Where whole tokens are known, nodes exchange experts that have one replica, so that tokens need fewer nodes.
6. Each node packs its replicas to its ranks: heavy ones first, to the rank with the least load; then ranks exchange
   replicas while that lowers the largest load.

The limits become smaller until the loads of the ranks keep to the imbalance that is allowed. Where none does, the
fastest placement counts of those that are about as even as the most even one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from synth.model.deadline import check_deadline
from synth.parallelism.experts.traffic import ExpertRouting, traffic_of_layer

_PARTS = (1.0, 0.85, 0.7, 0.5, 0.35, 0.25)  # Limits of a replica's load that are tried, as parts of a rank's.
# Imbalances that are searched for in a small layer, up to the allowed one.
_LIMITS = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 3.0, 4.0, 8.0, 16.0)
_MOST_SMALL = 2048  # Ranks × experts of a small layer.
_AS_EVEN = 1.02  # A placement is about as even as another one up to this ratio of their imbalances.
_NEARLY = 1.1  # Ratio to the allowed imbalance up to which moves may still reach it.
_MOST_EXCHANGES = 80  # Between nodes, in one layer.
_MOST_SWAPS = 60  # Between ranks of one node.
_LEAST_GAIN = 1e-3  # Part of the sum of heights that an exchange must gain.
_MOST_MOVES = 2_000_000  # Nodes² × figures × experts up to which moves of all replicas are tried.
_MOST_MOVED = 20  # Pairs of replicas that are moved in one layer.
_MOST_PARTNERS = 8  # Experts of which pairs are tried, for two nodes.
_MOST_TOKENS = 2048  # Of a layer, by which experts are gathered.
_MOST_GATHERED = 150  # Pairs of experts that are exchanged, or tried, for the sake of tokens.
_SLACK = 1e-9  # Relative; figures that differ by less are equal.


def placements(routing: ExpertRouting, layer: int, slots: int, imbalance: float) -> Iterator[Ints]:
    """Yield ever better placements of a layer: the expert in each slot, int64, shape (ranks, slots); one or more.

    Args:
        routing: What is to be routed.
        layer: The layer.
        slots: Slots of each rank: at most the number of experts, and in all ranks at least that many.
        imbalance: Most load of a rank / mean load that a placement should have.

    Raises:
        TimeUp: The time of the work around is over.
    """
    shape = routing.shape
    nodes = [shape.node_rank[a:b] for a, b in zip(shape.node_ptr[:-1], shape.node_ptr[1:], strict=True)]
    starts = [(routing.copies_of_nodes(layer), nodes)]
    if shape.nnodes == 1:  # Each rank is then also tried as a node of its own, for experts near their sources.
        starts.append((routing.copies[layer], list(np.arange(shape.nranks)[:, None])))
    best: tuple[float, float, Ints] | None = None
    for limit in _limits(routing, imbalance):
        for candidate in _candidates(routing, layer, slots, limit, starts):
            if best is None or _is_better(candidate, best, imbalance):
                best = candidate
                yield candidate[2]


def _limits(routing: ExpertRouting, imbalance: float) -> Sequence[float]:
    """Return the imbalances to search for, of which a looser limit on small layers has all that a stricter one has.

    A search for a stricter limit may give the fastest placement by chance, and takes little time in a small layer.
    """
    _, nranks, nexperts = routing.copies.shape
    return [limit for limit in _LIMITS if limit <= imbalance] if nranks * nexperts <= _MOST_SMALL else [imbalance]


def _candidates(
    routing: ExpertRouting, layer: int, slots: int, imbalance: float, starts: list[tuple[Floats, list[Ints]]]
) -> Iterator[tuple[float, float, Ints]]:
    """Yield rated placements of a layer, until those of some limit of a replica's load keep to the imbalance.

    Args:
        routing: What is to be routed.
        layer: The layer.
        slots: Slots of each rank.
        imbalance: Most load of a rank / mean load that a placement should have.
        starts: Copies from each node to each expert, and ranks of each node, for each division into nodes.
    """
    rank_load = imbalance * float(routing.copies[layer].sum()) / routing.shape.nranks
    for part in _PARTS:
        least = np.inf
        for copies, members in starts:
            check_deadline()
            layout = _Layout(copies, members, slots)
            layout.replicate(part * rank_load)
            layout.fill(part * rank_load)
            layout.exchange(rank_load)
            candidates = [_rated(routing, layer, layout.pack())]
            # What is far from even stays so, as moves keep to the limit of a replica but not to that of a rank.
            if candidates[0][0] <= _NEARLY * imbalance or part == _PARTS[-1]:
                layout.move(rank_load, part * rank_load)
                candidates.append(_rated(routing, layer, layout.pack()))
            if routing.tokens is not None and routing.shape.nnodes > 1:
                layout.gather(routing.tokens[layer, ::2])
                candidates.append(_rated(routing, layer, layout.pack()))
            yield from candidates
            least = min(least, *(candidate[0] for candidate in candidates))
        if least <= imbalance * (1 + _SLACK):
            return


def _rated(routing: ExpertRouting, layer: int, placement: Ints) -> tuple[float, float, Ints]:
    """Return the imbalance and the time of a placement, and the placement.

    Of whole tokens those count by which no experts were gathered, so that chance in a sample is no gain.
    """
    if routing.tokens is not None and routing.tokens.shape[1] > 1:
        routing = replace(routing, tokens=routing.tokens[:, 1::2])
    traffic = traffic_of_layer(routing, layer, placement)
    return traffic.imbalance, traffic.time_us, placement


def _is_better(candidate: tuple[float, float, Ints], best: tuple[float, float, Ints], imbalance: float) -> bool:
    """Return whether a rated placement is better: faster if both keep to the imbalance or are about as even.

    One that keeps to it is better than one that does not; placements are about as even only where neither does.
    """
    limit, least = imbalance * (1 + _SLACK), min(candidate[0], best[0])
    as_even = limit if least <= limit else _AS_EVEN * least
    return (candidate[0] > as_even, candidate[1]) < (best[0] > as_even, best[1])


class _Layout:
    """The replicas of a layer's experts in nodes, while they are placed.

    Attributes:
        copies: Copies from each node to each expert, shape (nodes, experts).
        total: Copies to each expert, shape (experts,).
        members: Ranks of each node.
        slots: Slots of each rank.
        ranks: Number of ranks of each node, shape (nodes,).
        room: Slots of each node, shape (nodes,).
        count: Replicas of each expert in each node, shape (nodes, experts).
    """

    def __init__(self, copies: Floats, members: list[Ints], slots: int) -> None:
        self.copies, self.members, self.slots = copies, members, slots
        self.total = copies.sum(axis=0)
        self.ranks = np.array([len(ranks) for ranks in members])
        self.room = self.ranks * slots
        self.count = np.zeros(copies.shape, dtype=np.int64)

    def replicate(self, most: float) -> None:
        """Give each expert the replicas that it needs, in nodes: step 1.

        Args:
            most: Copies that a replica should have at most.
        """
        nodes = range(len(self.copies))
        need = _needed(self.total, most, int(self.ranks.sum()), int(self.room.sum()))
        # Nodes get equal parts of these replicas, as far as possible, so that each has slots for what its ranks want.
        quota = np.ceil(need.sum() * self.room / self.room.sum()).astype(np.int64).tolist()
        room_left, inward, ranks = self.room.tolist(), [0.0] * len(nodes), self.ranks.tolist()
        rows, totals = self.copies.T.tolist(), self.total.tolist()
        for e in np.argsort(-self.total, kind="stable").tolist():
            count = [0] * len(nodes)
            # What a node would have to receive if no other node held the expert.
            score = [(inward[node] + totals[e] - rows[e][node]) / ranks[node] for node in nodes]
            for _ in range(int(need[e])):
                free = [node for node in nodes if room_left[node] and count[node] < ranks[node]]
                fresh = [node for node in free if not count[node]]
                if not free:
                    break
                if fresh:
                    node = min([n for n in fresh if quota[n] > 0] or fresh, key=score.__getitem__)
                else:
                    node = max(free, key=lambda n: rows[e][n] / count[n])
                count[node] += 1
                room_left[node] -= 1
                quota[node] -= 1
            away = sum(rows[e][node] for node in nodes if not count[node])
            replicas = sum(count)
            for node in nodes:
                inward[node] += away * count[node] / replicas
            self.count[:, e] = count

    def fill(self, most: float) -> None:
        """Fill the free slots of each node: step 2."""
        for node, copies in enumerate(self.copies):
            count, away = self.count[node], np.where(self.count > 0, 0.0, self.copies).sum(axis=0)
            overall = self.count.sum(axis=0)
            # An expert that comes to the node brings its copies there, and may need several replicas for them.
            size = np.maximum(np.ceil(copies / most - _SLACK), 1) if most > 0 else np.ones(len(copies))
            for _ in range(int(self.room[node] - count.sum())):
                load = (copies + away * count / overall) / np.maximum(count, 1)
                load[(count == 0) | (count >= self.ranks[node])] = -1.0
                worth = np.where(count == 0, copies / size, -1.0)
                heaviest, worthiest = int(np.argmax(load)), int(np.argmax(worth))
                chosen = heaviest if load[heaviest] > most * (1 + _SLACK) or worth[worthiest] < 0 else worthiest
                away[chosen] -= copies[chosen] if not count[chosen] else 0.0
                count[chosen] += 1
                overall[chosen] += 1

    def flows(self) -> Floats:
        """Return the copies that each node computes for each expert, shape (nodes, experts)."""
        has = self.count > 0
        away = np.where(has, 0.0, self.copies).sum(axis=0)
        return np.where(has, self.copies + away * self.count / self.count.sum(axis=0), 0.0)

    def exchange(self, rank_load: float) -> None:
        """Exchange experts that have one replica between nodes: step 3.

        Args:
            rank_load: Copies that a rank should have at most.
        """
        has, flows = self.count > 0, self.flows()
        local = np.where(has, self.copies, 0.0).sum(axis=1)
        # What leaves each node, what enters it, and what it computes.
        figures = np.stack([self.copies.sum(axis=1) - local, flows.sum(axis=1) - local, flows.sum(axis=1)])
        scale = np.stack([np.full(len(local), figures[:2].max())] * 2 + [self.ranks * rank_load])
        single = self.count.sum(axis=0) == 1
        home = np.where(single, self.count.argmax(axis=0), -1)
        if len(local) == 1 or scale.min() <= 0:
            return
        # What an expert adds to the figures of a node that holds its only replica, (3, nodes, experts).
        adds = np.stack([-self.copies, self.total - self.copies, np.broadcast_to(self.total, self.copies.shape)])
        adds, figures = adds / scale[:, :, None], figures / scale
        is_done = np.zeros(len(local), dtype=bool)
        for _ in range(_MOST_EXCHANGES):
            check_deadline()
            heights = _eighth(figures).sum(axis=0)
            node = int(np.argmax(np.where(is_done, -1.0, heights)))
            own_experts, other_experts = np.flatnonzero(home == node), np.flatnonzero((home >= 0) & (home != node))
            if is_done[node]:
                return
            is_done[node] = True
            if not len(own_experts) or not len(other_experts):
                continue
            their_node = home[other_experts]
            gain = (
                heights[node]
                + heights[their_node]
                - sum(
                    _eighth((figures[i, node] - adds[i, node, own_experts])[:, None] + adds[i, node, other_experts])
                    + _eighth(
                        figures[i, their_node]
                        - adds[i, their_node, other_experts]
                        + adds[i][:, own_experts].T[:, their_node]
                    )
                    for i in range(3)
                )
            )
            best = np.unravel_index(np.argmax(gain), gain.shape)
            if gain[best] <= _LEAST_GAIN * heights.sum():
                continue
            leaving, coming = int(own_experts[best[0]]), int(other_experts[best[1]])
            partner = int(home[coming])
            figures[:, node] += adds[:, node, coming] - adds[:, node, leaving]
            figures[:, partner] += adds[:, partner, leaving] - adds[:, partner, coming]
            self.count[[node, partner], [leaving, coming]] = 0
            self.count[[node, partner], [coming, leaving]] = 1
            home[leaving], home[coming] = partner, node
            is_done[:] = False

    def move(self, rank_load: float, most: float) -> None:
        """Move pairs of replicas between nodes, where one takes the slot of the other: step 4.

        A replica of one expert goes from node a to node b, and one of another expert from b to a. Node a or b may also
        be none: a replica is dropped, and another one is made in its slot.

        Args:
            rank_load: Copies that a rank should have at most.
            most: Copies that a replica should have at most.
        """
        nnodes, nexperts = self.copies.shape
        if (nnodes + 1) ** 2 * 3 * nnodes * nexperts > _MOST_MOVES:
            return
        everyone = np.arange(nexperts)
        figures = self._figures(self.count, everyone)
        scale = np.concatenate(
            [np.full(2 * nnodes, figures[:, : 2 * nnodes].sum(axis=0).max()), self.ranks * rank_load]
        )
        if scale.min() <= 0:
            return
        sums = figures.sum(axis=0) / scale
        changes, is_wrong = self._moves(everyone, scale, most)
        a, b = np.array([(a, b) for a in range(nnodes + 1) for b in range(a)]).T
        keep = min(_MOST_PARTNERS, nexperts)
        for _ in range(_MOST_MOVED):
            check_deadline()
            # By the slopes of the heights, the experts whose move gains most; of their pairs the exact heights.
            score = changes @ sums**7
            score[is_wrong] = np.inf
            best = np.argpartition(score, keep - 1, axis=2)[:, :, :keep]
            forth, back = best[a, b], best[b, a]
            change = changes[a[:, None], b[:, None], forth][:, :, None] + changes[b[:, None], a[:, None], back][:, None]
            height = _eighth(sums + change).sum(axis=3)
            height[is_wrong[a[:, None], b[:, None], forth]] = np.inf
            height[np.broadcast_to(is_wrong[b[:, None], a[:, None], back][:, None], height.shape)] = np.inf
            height[forth[:, :, None] == back[:, None]] = np.inf
            pair, x, y = np.unravel_index(np.argmin(height), height.shape)
            if not height[pair, x, y] < _eighth(sums).sum() * (1 - _LEAST_GAIN):
                return
            sums = sums + change[pair, x, y]
            moved = np.array([forth[pair, x], back[pair, y]])
            for expert, source, goal in zip(moved, (a[pair], b[pair]), (b[pair], a[pair]), strict=True):
                self.count[:, expert] += np.arange(nnodes) == goal
                self.count[:, expert] -= np.arange(nnodes) == source
            changes[:, :, moved], is_wrong[:, :, moved] = self._moves(moved, scale, most)

    def _figures(self, count: Ints, experts: Ints) -> Floats:
        """Return what leaves each node, what enters it, and what it computes, by expert: (…, experts, 3 · nodes).

        Args:
            count: Replicas of these experts in each node, shape (…, nodes, experts).
            experts: The experts.
        """
        copies = self.copies[:, experts]
        out = np.where(count > 0, 0.0, copies)
        into = out.sum(axis=-2, keepdims=True) * count / np.maximum(count.sum(axis=-2, keepdims=True), 1)
        figures: Floats = np.concatenate([out, into, copies - out + into], axis=-2).swapaxes(-1, -2)
        return figures

    def _moves(self, experts: Ints, scale: Floats, most: float) -> tuple[Floats, Bools]:
        """Return how a move of a replica from node to node changes figures, and whether it is not allowed.

        The last node stands for none. Shapes: (nodes + 1, nodes + 1, experts, 3 · nodes) and without the last axis.

        Args:
            experts: The experts.
            scale: What each figure counts in, shape (3 · nodes,).
            most: Copies that a replica should have at most.
        """
        nnodes = len(self.copies)
        count = self.count[:, experts]
        unit = np.eye(nnodes + 1, nnodes, dtype=np.int64)
        after = count + (unit[None, :] - unit[:, None])[..., None]
        before_figures, figures = self._figures(count, experts), self._figures(after, experts)
        heaviest, before = (
            (f[..., 2 * nnodes :] / np.maximum(c, 1).swapaxes(-1, -2)).max(axis=-1)
            for f, c in ((figures, after), (before_figures, count))
        )
        is_wrong = (after < 0).any(axis=2) | (after > self.ranks[:, None]).any(axis=2) | (after.sum(axis=2) == 0)
        is_wrong |= heaviest > np.maximum(before, most) * (1 + _SLACK)
        return np.ascontiguousarray((figures - before_figures) / scale), is_wrong

    def gather(self, tokens: Ints) -> None:
        """Exchange experts that have one replica between nodes, so that tokens need fewer nodes: step 5.

        Args:
            tokens: Experts of each token, shape (tokens, experts of a token).
        """
        tokens = tokens[:: -(-len(tokens) // _MOST_TOKENS)]
        load = self.flows().sum(axis=1)
        most = np.maximum(load, _AS_EVEN * load.sum() * self.ranks / self.ranks.sum())
        single = self.count.sum(axis=0) == 1
        home = np.where(single, self.count.argmax(axis=0), -1)
        experts = np.flatnonzero(single)
        if not len(experts):
            return
        needs = _Needs(tokens, home, len(self.copies))
        is_tried = np.zeros((len(experts), len(experts)), dtype=bool)
        for _ in range(_MOST_GATHERED):
            check_deadline()
            place, weight = home[experts], self.total[experts]
            gain = needs.gain[experts][:, place]
            # What a node gains in load, by the expert that leaves it and the one that comes.
            more = weight[None, :] - weight[:, None]
            fits = load[place][:, None] + more <= most[place][:, None]
            score = np.where(fits & fits.T & ~is_tried & (place[:, None] != place), gain + gain.T, 0)
            x, y = np.unravel_index(np.argmax(score), score.shape)
            if score[x, y] <= 0:
                return
            pair = experts[[x, y]]
            nodes = home[pair]
            if needs.exchange(pair, nodes):
                load[nodes] += np.array([1.0, -1.0]) * more[x, y]
                self.count[nodes, pair] = 0
                self.count[nodes[::-1], pair] = 1
                is_tried[[x, y]] = is_tried[:, [x, y]] = False
            else:
                is_tried[x, y] = is_tried[y, x] = True

    def pack(self) -> Ints:
        """Pack the replicas of each node to its ranks: step 6; return the expert in each slot, shape (ranks, slots)."""
        share = self.flows() / np.maximum(self.count, 1)
        placement = np.zeros((int(self.ranks.sum()), self.slots), dtype=np.int64)
        for node, ranks in enumerate(self.members):
            placement[ranks] = _packed(share[node], self.count[node], len(ranks), self.slots)
        return placement


class _Needs:
    """How many experts with one replica each token has in each node, and what moves of such experts would gain.

    Attributes:
        home: Node of each expert, shape (experts,); -1 for experts with more replicas. It changes with the exchanges.
        gain: Tokens that would need a node less, minus those that would need one more, if an expert moved to a node:
            int64, shape (experts, nodes).
    """

    def __init__(self, tokens: Ints, home: Ints, nnodes: int) -> None:
        self._tokens, self.home, self._nnodes = tokens, home, nnodes
        order = np.argsort(tokens, axis=None, kind="stable")
        self._rows = order // tokens.shape[1]
        self._first = np.searchsorted(tokens.reshape(-1)[order], np.arange(len(home) + 1))
        self._count = np.zeros((len(tokens), nnodes), dtype=np.int64)
        row, column = np.nonzero(home[tokens] >= 0)
        np.add.at(self._count, (row, home[tokens[row, column]]), 1)
        self.gain = np.zeros((len(home), nnodes), dtype=np.int64)
        self._add_gain(np.arange(len(tokens)), 1)

    def exchange(self, pair: Ints, nodes: Ints) -> bool:
        """Let two experts of two nodes change places if tokens then need fewer nodes; return whether they did."""
        rows = np.unique(np.concatenate([self._rows[self._first[e] : self._first[e + 1]] for e in pair]))
        count = self._count[rows].copy()
        for expert, source, goal in zip(pair, nodes, nodes[::-1], strict=True):
            has = (self._tokens[rows] == expert).any(axis=1)
            count[has, source] -= 1
            count[has, goal] += 1
        if (count > 0).sum() >= (self._count[rows] > 0).sum():
            return False
        self._add_gain(rows, -1)
        self._count[rows] = count
        self.home[pair] = nodes[::-1]
        self._add_gain(rows, 1)
        return True

    def _add_gain(self, rows: Ints, sign: int) -> None:
        """Add what some tokens say of moves to `gain`, or take it away."""
        tokens, count = self._tokens[rows], self._count[rows]
        home = self.home[tokens]
        is_last = np.take_along_axis(count, np.maximum(home, 0), axis=1) == 1
        change = (is_last & (home >= 0))[:, :, None].astype(np.int64) - (count == 0)[:, None]
        np.add.at(self.gain, tokens.reshape(-1), sign * change.reshape(-1, self._nnodes))


def _eighth(values: Floats) -> Floats:
    """Return the eighth power, whose sums stand for the largest value and still count the others."""
    square = values * values
    square *= square
    square *= square
    return square


def _needed(total: Floats, most: float, nranks: int, room: int) -> Ints:
    """Return the replicas of each expert, so that none has more than `most` copies as far as there is room."""

    def replicas(limit: float) -> Ints:
        """Return the replicas for a limit."""
        return np.clip(np.ceil(total / limit - _SLACK), 1, nranks).astype(np.int64)

    low, high = most, max(float(total.max()), most)
    if high <= 0:
        return np.ones(len(total), dtype=np.int64)
    if replicas(low).sum() <= room:
        return replicas(low)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if replicas(middle).sum() <= room else (middle, high)
    return replicas(high)


def _packed(share: Floats, count: Ints, nranks: int, slots: int) -> Ints:
    """Pack the replicas of a node to its ranks, no expert twice to one; return experts, shape (ranks, slots).

    Args:
        share: Copies of each replica of an expert, shape (experts,).
        count: Replicas of each expert, at most `nranks`, in all nranks × slots.
        nranks: Number of ranks.
        slots: Slots of each rank.
    """
    experts_of_rank: list[list[int]] = [[] for _ in range(nranks)]
    load, full = [0.0] * nranks, float("inf")
    shares = share.tolist()
    for e in np.argsort(-share, kind="stable").tolist():
        for _ in range(int(count[e])):
            # Full ranks have an infinite load.
            open_load = [full if len(h) == slots or e in h else x for h, x in zip(experts_of_rank, load, strict=True)]
            rank = open_load.index(min(open_load))
            if open_load[rank] == full:
                rank = _make_room(experts_of_rank, load, shares, e, slots)
            experts_of_rank[rank].append(e)
            load[rank] += shares[e]
    placed = np.array(experts_of_rank, dtype=np.int64)
    _level(placed, share)
    return placed


def _make_room(
    experts_of_rank: list[list[int]], load: list[float], shares: list[float], expert: int, slots: int
) -> int:
    """Move a light replica to a rank with room, and return the rank without `expert` that has room then."""
    donors = sorted((r for r in range(len(experts_of_rank)) if expert not in experts_of_rank[r]), key=load.__getitem__)
    goals = [r for r in range(len(experts_of_rank)) if len(experts_of_rank[r]) < slots]
    donor, goal, moved = next(
        (donor, goal, e)
        for donor in donors
        for goal in goals
        for e in sorted(experts_of_rank[donor], key=shares.__getitem__)
        if e not in experts_of_rank[goal]
    )
    experts_of_rank[donor].remove(moved)
    experts_of_rank[goal].append(moved)
    load[donor] -= shares[moved]
    load[goal] += shares[moved]
    return donor


def _level(placed: Ints, share: Floats) -> None:
    """Exchange replicas between the most loaded rank and others while that lowers the larger of their loads.

    Args:
        placed: Expert in each slot, shape (ranks, slots); it is changed.
        share: Copies of each replica of an expert, shape (experts,).
    """
    load = share[placed].sum(axis=1)
    for _ in range(_MOST_SWAPS if len(placed) > 1 else 0):
        rank = int(np.argmax(load))
        own_experts = placed[rank]
        # By the slot of this rank, the other rank, and its slot.
        gain = share[own_experts][:, None, None] - share[placed]
        larger = np.maximum(load[rank] - gain, load[:, None] + gain)
        is_same = placed[:, :, None] == own_experts  # (ranks, slots, slots of this rank)
        is_twice = is_same.any(axis=1).T[:, :, None] | is_same.any(axis=2)
        larger[is_twice] = np.inf
        slot, peer, peer_slot = np.unravel_index(np.argmin(larger), larger.shape)
        if not larger[slot, peer, peer_slot] < load[rank] * (1 - _SLACK):
            return
        load[[rank, peer]] += np.array([-1.0, 1.0]) * gain[slot, peer, peer_slot]
        placed[rank, slot], placed[peer, peer_slot] = placed[peer, peer_slot], placed[rank, slot]
