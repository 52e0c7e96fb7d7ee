"""Networks whose links are only some of the paths through switches, made small for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from tests.topologies.importers.simulators import racks, rails
from tests.topologies.importers.test_importers import read
from topologies.costed import with_costs, with_protocol
from topologies.load import load
from topologies.network import Network
from topologies.topology import Limit, Topology


@contextmanager
def few_paths() -> Iterator[None]:
    """Let networks of any size list only some of their paths through switches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topologies.paths.listed.MOST_PATHS", 1)
        patch.setattr("synth.storage.problem.MOST_PATHS", 1)
        yield


def bypassed() -> Topology:
    """Return two nodes of two ranks: ranks at the same place share 10 GB/s, others have 100 GB/s and less latency."""
    links = "0>a 1>a 2>b 3>b 0>r 2>r 1>s 3>s 0>w 3>w 1>x 2>x"
    vertex = {str(rank): rank for rank in range(4)} | {name: 4 + i for i, name in enumerate("abrswx")}
    ends = np.array([[vertex[end] for end in link.split(">")] for link in links.split()])
    gbs = np.array([{"a": 300.0, "b": 300.0, "r": 10.0, "s": 10.0}.get(link[-1], 100.0) for link in links.split()])
    alpha = np.array([5.0 if link[-1] in "rs" else 0.1 for link in links.split()])
    both = np.concatenate([ends, ends[:, ::-1]])
    topology = Topology(
        "bypassed", 4, tuple("abrswx"), both[:, 0], both[:, 1], np.tile(alpha, 2), np.tile(gbs, 2)
    )  # fmt: skip
    return replace(topology, nodes=np.array([0, 0, 1, 1]))


def fabrics() -> dict[str, Topology]:
    """Return fabrics of a few nodes whose levels name some of their paths."""
    planes, limited = read(rails(4, 2, 2, 2, 3)).topology, read(racks(4, 2, 2, 3)).topology
    return {
        "planes": planes,
        "rails": read(rails(8, 2, 1, 4, 1)).topology,
        "racks": read(racks(6, 2, 2, 1)).topology,
        "kept apart": read(rails(4, 2, 2, 2, 2, omit=[0])).topology,
        "bypassed": bypassed(),
        "limited": replace(limited, limits=(Limit("door", np.flatnonzero(limited.link_src == 0), 7.0),)),
        "costs": with_protocol(with_costs(planes, load("dgx-h100").costs), "LL"),
    }


def numbers_in(whole: Network, part: Network) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the number in `whole` of each resource of `part`, by their names."""
    return np.array([whole.resource_names.index(name) for name in part.resource_names], dtype=np.int64)
