"""The grid by which a group's positions are numbered, read from the links: tori, meshes, hypercubes, products."""

from __future__ import annotations

from synth.model.problem import Problem


def grid_extents(problem: Problem) -> tuple[int, ...]:
    """Return the extents of the dimensions, the one that counts fastest last, as in `torus:4x8`; (k,) if there is one.

    There are as many dimensions as possible such that every link between members changes the digit of one of them.
    Relays are ignored. Members without links to each other are one dimension.
    """
    k, net = problem.collective.nranks, problem.network
    inside = (net.src < k) & (net.dst < k)
    src, dst = net.src[inside], net.dst[inside]
    extents, stride = [], 1
    for block in range(2, k + 1):
        if k % block or block % stride:
            continue
        crossing = (src // block != dst // block) & (src % block != dst % block)
        if block == k or (len(src) and not crossing.any()):
            extents.append(block // stride)
            stride = block
    return tuple(extents[::-1])
