"""The grid that a group's positions are numbered by, read off the links: tori, meshes, hypercubes, products of any."""

from __future__ import annotations

from synth.model.problem import Problem


def grid_extents(problem: Problem) -> tuple[int, ...]:
    """Extents of the dimensions, the one that counts fastest last, as in `torus:4x8`; (k,) where there is one only.

    Dimensions are as many as there are such that every link between members changes the digit of one of them. Relays
    are not looked at; members that have no links to each other are one dimension.
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
