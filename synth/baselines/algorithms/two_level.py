"""Two-level algorithms: inside nodes, and across nodes among members at the same place."""

from __future__ import annotations

import numpy as np

from synth.baselines.algorithms.direct import flows, messages
from synth.baselines.algorithms.ring import Cycle, find_cycles
from synth.baselines.algorithms.spreading import GATHERING, SpreadMessages, gathered
from synth.baselines.fifo import Unordered
from synth.baselines.routes import Routes
from synth.baselines.tuning import TUNING
from synth.model.collective import MAX_ENTRIES, Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.network import Network

NAME = "two-level"


def two_level_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """Build the algorithm of two levels, as a list of one plan; the nodes are those of the topology.

    Allgather: across nodes in a ring of the members at the same place, then inside nodes. Reduce-scatter: the same
    backwards. Allreduce: reduce-scatter inside, allreduce (ring) across, allgather inside. Inside a node, members that
    are all neighbours send to each other directly, one place further each time; others use as many rings as there are.
    All-to-all: a block goes to the member of its own node that is at its goal's place, then across to the goal (the
    two-step all-to-all of MSCCLang and HetuMoE).

    Args:
        problem: The problem with one chunk a block.
        most: Most sends of a phase.

    Returns:
        The plan; empty for other collectives, and unless the group is at least two nodes with the same number, at least
        two, of members each.

    Raises:
        NoRoute: A message has no route; for all-to-all when the schedule is built.
        TooManySends: A phase has more than `most` sends; for all-to-all when the schedule is built.
    """
    grid = _grid(problem)
    if grid is None:
        return []
    if problem.collective.name in ("alltoall", "alltoallv"):
        return [Unordered(problem, NAME, lambda size: _two_steps(problem, grid, size, most))]
    if problem.collective.name not in GATHERING:
        return []
    rings = _inside(problem.network, grid)
    parts = len(rings[0]) if rings else 1
    back = [[ring.backward() for ring in node] for node in rings]

    def spread(net: Network) -> Schedule:
        """Build the all-gather over the problem's network, or over that network with its links reversed."""
        return _spread(net, grid, rings if net.src is problem.network.src else back, parts, most)

    return [gathered(problem, spread, NAME, parts)]


def _grid(problem: Problem) -> Ints | None:
    """Return positions by node and place, shape (nodes, places), in the group's order of nodes and of members.

    It is None unless there are at least two nodes with equally many members, at least two.
    """
    node = problem.topology.nodes[np.array(problem.group)]
    _, first, which, count = np.unique(node, return_index=True, return_inverse=True, return_counts=True)
    if len(first) < 2 or count.min() != count.max() or count[0] < 2:
        return None
    order = np.lexsort((np.arange(len(node)), first[which]))
    return np.asarray(order.reshape(len(first), -1))


def _inside(net: Network, grid: Ints) -> list[list[Cycle]]:
    """Return rings inside every node, the same number in each, the widest first.

    It is empty where all members of every node are neighbours, or some node has no ring: they send to each other
    directly.

    Args:
        net: The network.
        grid: Positions by node and place, shape (nodes, places).
    """
    routes = Routes(net, grid.ravel())
    places = grid.shape[1]
    a, b = (x.ravel() for x in np.indices((places, places)))
    if (routes.hops(grid[:, a[a != b]], grid[:, b[a != b]]) == 1).all():
        return []
    rings = [find_cycles(net, members) for members in grid]
    fewest = min(*map(len, rings), MAX_ENTRIES // grid.size**2)
    return [node[:fewest] for node in rings] if fewest else []


def _spread(net: Network, grid: Ints, rings: list[list[Cycle]], parts: int, most: int) -> Schedule:
    """Build the sends of an allgather: across nodes in a ring, then inside every node.

    Args:
        net: The network.
        grid: Positions by node and place, shape (nodes, places).
        rings: Rings inside each node, `parts` of them; empty: members of a node send directly.
        parts: Number of chunks of each member: chunk m · parts + i is the i-th of member m.
        most: Most sends of a phase.

    Returns:
        An untimed schedule, by step.

    Raises:
        NoRoute: A message has no route.
        TooManySends: A phase has more than `most` sends.
    """
    sent = SpreadMessages(Routes(net, grid.ravel(), most))
    nodes, places = grid.shape
    part = np.arange(parts)
    # Across nodes: in every phase each member passes on what it received last.
    for phase in range(nodes - 1):
        owner = np.roll(grid, phase, axis=0)
        chunk = (owner[..., None] * parts + part).ravel()
        at, goal = np.repeat(grid.ravel(), parts), np.repeat(np.roll(grid, -1, axis=0).ravel(), parts)
        sent.phase(chunk, at, goal, np.zeros(len(chunk), dtype=np.int64))
    # Inside nodes: column j of the node's blocks is at place j, blocks in the order in which they arrived.
    arrived = np.stack([np.roll(grid, phase, axis=0) for phase in range(nodes)], axis=1)
    age, node, place = (x.ravel() for x in np.indices((nodes, nodes, places)))
    owner = arrived[node, age, place]
    if not rings:
        step = np.arange(1, places)
        destination = (place[:, None] + step) % places
        chunk = owner[:, None, None] * parts + part
        at, goal = grid[node, place][:, None, None], grid[node[:, None], destination][..., None]
        order = (age[:, None] * places + step)[..., None]
        chunk, at, goal, order = (x.ravel() for x in np.broadcast_arrays(chunk, at, goal, order))
        sent.phase(chunk, at, goal, order)
        return sent.copies()
    hop, age = (x.ravel() for x in np.indices((places - 1, nodes)))
    home = np.empty(net.nranks, dtype=np.int64)
    home[grid] = np.arange(places)
    base = sent.steps
    for node_number, node_rings in enumerate(rings):
        for i, ring in enumerate(node_rings):
            for stop, member in enumerate(ring.members.tolist()):
                blocks = arrived[node_number, age, home[member]] * parts + i
                sent.add(blocks, ring.links[(stop + hop) % places], base + hop, age)
    return sent.copies()


def _two_steps(problem: Problem, grid: Ints, chunk_bytes: float, most: int) -> Schedule:
    """Build the sends of an all-to-all: inside the node to the goal's place, then across to the goal.

    Args:
        problem: The problem.
        grid: Positions by node and place, shape (nodes, places).
        chunk_bytes: Size of the smallest chunk in bytes for which the order is that of the queues.
        most: Most sends of each of the two steps.

    Returns:
        Rows in the order of the queues, untimed.

    Raises:
        NoRoute: A message has no route.
        TooManySends: One of the two steps has more than `most` sends.
    """
    node, place = np.zeros((2, problem.nranks), dtype=np.int64)
    node[grid], place[grid] = np.indices(grid.shape)
    chunk, source, goal = flows(problem)
    nodes, places = grid.shape
    issue = (node[goal] - node[source]) % nodes * places + (place[goal] - place[source]) % places
    between = grid[node[source], place[goal]]
    return messages(problem, chunk, [source, between, goal], issue, chunk_bytes, most)
