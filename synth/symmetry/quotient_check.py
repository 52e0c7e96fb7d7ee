"""Check that the schedules of a quotient problem, translated, are schedules of the whole problem.

The check shares no code with the search for translations or with `quotient`: the translations are applied to the whole
network as it stands, links and resources are compared as sets, and the collective is read row by row. It relies only on
the rule that links between the same two ranks with equal figures keep their order (`expand` follows the same rule).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from synth.model.collective import Collective, Floats, Ints
from synth.model.problem import Problem, Quotient
from synth.model.registry import OWN, PAIR
from topologies.errors import QuotientRefused
from topologies.network import Network, network

_ROUND_OFF = 1e-9


def _refused(reason: str) -> QuotientRefused:
    """Return the error that refuses a quotient problem."""
    return QuotientRefused(f"quotient: {reason}")


def check_quotient(problem: Problem) -> None:
    """Check a quotient problem against the network that its topology has now.

    Raises:
        QuotientRefused: The problem is no quotient, its network or translations are not those of its topology, a
            translation is no symmetry, a resource of the whole is without its orbit, or the translations do not move
            the collective.
    """
    if problem.quotient is None:
        raise _refused("this problem is no quotient")
    if problem.relays:
        raise _refused("it has relays; it must have none")
    net = problem.quotient.whole
    _check_networks(problem, net)
    check_translations(problem.quotient.translations, net.nranks)
    images = _link_images(net, problem.quotient.translations)
    link_class = _link_classes(images, problem.quotient.translations, net.nlinks)
    _check_resources(problem.network, net, link_class)
    _check_collective(problem.collective, problem.quotient)


def _check_networks(problem: Problem, net: Network) -> None:
    """Check that the quotient's networks have the ranks, links and resources of its topology.

    Raises:
        QuotientRefused: A column of one of the networks differs.
    """
    real = network(problem.topology, problem.group, paths=problem.collective.kind.paths)
    columns = ("ranks", "src", "dst", "alpha_us", "bandwidth_gbs", "gap_us", "start_us")
    for name in (*columns, "uses_ptr", "uses_idx", "capacity_gbs"):
        if not np.array_equal(getattr(real, name), getattr(net, name)):
            raise _refused(f"its network is not that of {problem.topology.name} ({name} differs)")
    for stated in (net, problem.network):
        if (real.switch_graph is None) != (stated.switch_graph is None):
            raise _refused("its network does not state whether its links are all paths through switches")
    if real.switch_graph is not None and net.switch_graph is not None:
        for column, own in zip(real.switch_graph.columns, net.switch_graph.columns, strict=True):
            if not np.array_equal(column, own):
                raise _refused("its network has other paths through switches than its topology")
    for name in columns:
        if not np.array_equal(getattr(problem.network, name), getattr(net, name)):
            raise _refused(f"it has other links than the whole ({name} differs)")


def check_translations(translations: Sequence[tuple[int, int]], nranks: int) -> None:
    """Check that translations are (stride, extent) of digits of `nranks` ranks, with ascending strides.

    Then no product of them but the identity leaves a rank, nor therefore a link, in its place.

    Raises:
        QuotientRefused: A translation is no such digit.
    """
    below = 1
    for stride, extent in translations:
        if extent < 2 or stride < 1 or stride % below or nranks % (stride * extent):
            raise _refused(f"stride {stride} with extent {extent} is no digit of {nranks} ranks after {below}")
        below = stride * extent


def _link_images(net: Network, translations: Sequence[tuple[int, int]]) -> list[Ints]:
    """Return the links' image under every translation: an array of shape (nlinks,) for each, in their order.

    Links between the same two ranks with equal figures keep their order.

    Raises:
        QuotientRefused: A translation does not keep the links, their figures or the resources that they share.
    """
    figures = (np.diff(net.uses_ptr), *reversed(net.figures))
    pair = net.src * net.nranks + net.dst
    b = np.lexsort((*figures, pair))
    before = dict(Counter(_users(net, np.arange(net.nlinks))))  # Plain dictionaries compare faster than Counters.
    images = []
    for stride, extent in translations:
        label = f"the translation of extent {extent} at stride {stride}"
        p = np.roll(np.arange(net.nranks).reshape(-1, extent, stride), -1, axis=1).reshape(-1)
        moved_pair = p[net.src] * net.nranks + p[net.dst]
        a = np.lexsort((*figures, moved_pair))
        wrong = moved_pair[a] != pair[b]
        for figure in figures:
            wrong |= figure[a] != figure[b]
        if wrong.any():
            link = int(b[np.argmax(wrong)])
            broken_link = f"link {net.src[link]}→{net.dst[link]} (in the group's numbers) breaks it"
            raise _refused(f"{label} is no symmetry of the network; {broken_link}")
        image = np.empty(net.nlinks, dtype=np.int64)
        image[a] = b
        if before != dict(Counter(_users(net, image))):
            raise _refused(f"{label} does not keep the resources that links share")
        images.append(image)
    return images


def _users(net: Network, number: Ints) -> Iterator[tuple[bytes, float]]:
    """Yield for every resource the set of its links, as the bytes of their sorted numbers, and its capacity in GB/s.

    Args:
        net: The network.
        number: The number under which each link counts, such as its image, shape (nlinks,).
    """
    user = number[net.link_of_use]
    order = np.lexsort((user, net.uses_idx))
    yield from _pieces(user[order], net.uses_idx[order], net.capacity_gbs)


def _pieces(values: Ints, owner: Ints, capacity: Floats) -> Iterator[tuple[bytes, float]]:
    """Yield for every owner, in order, the bytes of its values and its capacity.

    Args:
        values: The values, sorted by owner.
        owner: Owner of each value, ascending.
        capacity: Capacity of each owner 0, 1, …; an owner without values has no bytes.
    """
    data = np.ascontiguousarray(values).tobytes()
    cuts = (np.searchsorted(owner, np.arange(len(capacity) + 1)) * values.itemsize).tolist()
    for i, figure in enumerate(capacity.tolist()):
        yield data[cuts[i] : cuts[i + 1]], figure


def _link_classes(images: list[Ints], translations: Sequence[tuple[int, int]], nlinks: int) -> Ints:
    """Return a number 0, 1, … for every link, equal for links that products of the translations bring onto each other.

    Args:
        images: Image of every link under each translation.
        translations: The translations in the same order.
        nlinks: Number of links.
    """
    lowest = np.arange(nlinks)
    for step, (_, extent) in zip(images, translations, strict=True):
        for _ in range(extent.bit_length()):  # Each round doubles the distance, up to the whole cycle.
            lowest = np.minimum(lowest, lowest[step])
            step = step[step]
    return np.unique(lowest, return_inverse=True)[1].reshape(-1)


def _class_uses(net: Network, link_class: Ints, nclasses: int) -> tuple[Ints, Ints, Ints]:
    """Return (resource, class, number of links of the class that use it) as three arrays, sorted by resource and class.

    Args:
        net: The network.
        link_class: Class of each link.
        nclasses: Number of classes.
    """
    cell, count = np.unique(net.uses_idx * nclasses + link_class[net.link_of_use], return_counts=True)
    return cell // nclasses, cell % nclasses, count


def _check_resources(quotient: Network, net: Network, link_class: Ints) -> None:
    """Check that the quotient has every capacity of the whole, for whole classes of links, and no other.

    This also keeps copies of two sends from meeting on one link: one of its resources is as narrow as the link.

    Args:
        quotient: The network of the quotient problem.
        net: The whole network.
        link_class: Class of each link, as `_link_classes` returns it.

    Raises:
        QuotientRefused: A capacity is missing, superfluous or for a part of a class only, or one send's translates
            need more than a resource has.
    """
    nclasses = int(link_class.max()) + 1
    rate = np.zeros(nclasses)
    rate[link_class] = net.bandwidth_gbs
    owner, members, count = _class_uses(net, link_class, nclasses)
    # A resource that m links of a class use carries m copies of a send at the same time.
    most = np.ones(net.nresources, dtype=np.int64)
    np.maximum.at(most, owner, count)
    bad = (count != most[owner]) | (count * rate[members] > net.capacity_gbs[owner] * (1 + _ROUND_OFF))
    if bad.any():
        name = net.resource_names[int(owner[np.argmax(bad)])]
        raise _refused(f"the translates of one send crowd {name}")
    needed = set(_pieces(members, owner, net.capacity_gbs / most))

    owner, members, count = _class_uses(quotient, link_class, nclasses)
    partly = count != (quotient.nlinks // nclasses)
    if partly.any():
        name = quotient.resource_names[int(owner[np.argmax(partly)])]
        raise _refused(f"{name} is used by some links but not by all their translates")
    stated = list(_pieces(members, owner, quotient.capacity_gbs))
    if needed - set(stated):
        capacity = min(figure for _, figure in needed - set(stated))
        raise _refused(f"a resource of the whole that leaves {capacity:.6g} GB/s is not in the quotient")
    for name, key in zip(quotient.resource_names, stated, strict=True):
        if key not in needed:
            raise _refused(f"{name} ({key[1]:.6g} GB/s) represents no resource of the whole")


def _check_collective(collective: Collective, quotient: Quotient) -> None:
    """Check that the chunks are those of the representatives in the named collective, at their places in the whole.

    Raises:
        QuotientRefused: A number, chunk, condition or place differs.
    """
    name, kind, k = collective.name, collective.kind, collective.nranks
    if not kind.translatable or k != quotient.whole.nranks:
        raise _refused(f"{name} over {k} ranks does not fit the translations of {quotient.whole.nranks} ranks")
    lowest = np.ones(k, dtype=bool)
    for stride, extent in quotient.translations:
        lowest.reshape(-1, extent, stride)[:, 1:] = False
    owners = np.flatnonzero(lowest)
    ndestinations = k if kind.unit == PAIR else 1
    parts, remainder = divmod(collective.nchunks, len(owners) * ndestinations)
    if remainder or parts < 1 or collective.chunks != (parts * k if kind.in_shares else parts):
        raise _refused(f"{collective.nchunks} chunks are not those of {len(owners)} representative ranks")
    if (collective.reduces != kind.reduces).any():
        raise _refused(f"{name} {'adds' if kind.reduces else 'copies'} every chunk")
    if (np.abs(collective.fraction * k * parts - 1) > _ROUND_OFF).any():
        raise _refused(f"a chunk of {name} is not 1/{k * parts} of the message")
    for condition, holder_word, rows, index in (
        ("precondition", kind.before, collective.pre, collective.in_index),
        ("postcondition", kind.after, collective.post, collective.out_index),
    ):
        rank, chunk = rows[:, 0], rows[:, 1]
        if (rows < 0).any() or (rank >= k).any() or (chunk >= collective.nchunks).any():
            raise _refused(f"the {condition} names ranks or chunks that do not exist")
        if (np.diff(rank * collective.nchunks + chunk) <= 0).any() or len(index) != len(rows):
            raise _refused(f"the {condition} is not in order")
        part, block = chunk % parts, chunk // parts
        owner, goal = owners[block // ndestinations], block % ndestinations
        at_owner = holder_word == OWN
        expected_rank, expected_place = (owner, part) if at_owner else (rank, owner * parts + part)
        if kind.unit == PAIR:
            ends = (owner, goal) if condition == "precondition" else (goal, owner)
            expected_rank, expected_place = ends[0], ends[1] * parts + part
        is_complete = len(rows) == collective.nchunks * (1 if at_owner else k)
        if not is_complete or (rank != expected_rank).any() or (index != expected_place).any():
            raise _refused(f"the {condition} is not that of {name} for the representatives' chunks")
