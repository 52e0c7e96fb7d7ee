"""Files for launchers: every rank once, on its own node and slot."""

from __future__ import annotations

import re

import numpy as np
import pytest

from synth.parallelism.axes import Axis
from synth.parallelism.launch import host_order, is_ascending, rankfile, torch_module
from topologies.load import load


def test_rankfile_and_hosts_name_every_device_once() -> None:
    topology = load("dgx-h100:2")
    order = np.random.default_rng(0).permutation(16).tolist()
    lines = [re.fullmatch(r"rank (\d+)=\+n(\d+) slot=(\d+)", line) for line in rankfile(topology, order).splitlines()]
    slots = [tuple(map(int, line.groups())) for line in lines if line]
    assert slots == [(p, rank // 8, rank % 8) for p, rank in enumerate(order)]
    hosts = host_order(topology, order).split()
    assert hosts == [f"node{rank // 8}" for rank in order]


@pytest.mark.parametrize("mixed", [False, True])
def test_the_torch_module_has_the_order(mixed: bool) -> None:
    ranks = np.arange(8).reshape(2, 4)
    if mixed:
        ranks = ranks[:, [0, 2, 1, 3]]
    assert is_ascending(ranks) is not mixed
    text = torch_module(ranks, (Axis("dp", 2), Axis("tp", 4)), 'synth place --topo "a\\b"')
    names: dict[str, object] = {}
    exec(text[text.index("NAMES =") : text.index("def ")], names)
    assert names["NAMES"] == ("dp", "tp")
    assert names["SHAPE"] == (2, 4)
    assert names["ORDER"] == ranks.reshape(-1).tolist()
    assert ("sort_ranks=False" in text) is mixed
    compile(text, "mesh.py", "exec")
