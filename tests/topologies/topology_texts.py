"""Texts of topologies that several tests read, and their comparison."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from topologies.errors import InputError
from topologies.topology import Topology

GOOD = """name = "x"
ranks = 4
switches = ["s"]

[[links]]
from = "0-3"
to = "s"
both = true
gbs = 25
alpha_us = 0.7

[[limits]]
name = "root"
pairs = "0-1>s"
gbs = 30
"""


NIC = '\n[nic]\ncount = 2\ngbs = 10\nalpha_us = 2\nfabric = "one"\n'


def complaint(read: Callable[[], Topology]) -> str:
    """Return the InputError's message, or "" if there is none; other exceptions fail the test."""
    try:
        read()
    except InputError as error:
        return str(error)
    return ""


def same(a: Topology, b: Topology) -> bool:
    words = (
        "name", "nranks", "switches", "alpha_assumed", "sms", "compute_capability", "gcn", "platform", "summary",
        "source",
    )  # fmt: skip
    columns = ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "nodes")
    return (
        all(getattr(a, w) == getattr(b, w) for w in words)
        and all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns)
        and [(x.name, x.links.tolist(), x.bandwidth_gbs) for x in a.limits]
        == [(x.name, x.links.tolist(), x.bandwidth_gbs) for x in b.limits]
    )
