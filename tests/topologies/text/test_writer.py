"""Tests that a written topology is read back as the same topology."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topologies.topology_texts import same
from topologies.clusters import Machine, Nics, join
from topologies.load import load, load_machine
from topologies.machines import machines
from topologies.text.reader import from_toml, read_machine
from topologies.text.writer import to_toml
from topologies.topology import Limit, Topology


def test_text_round_trip(any_spec: str) -> None:
    topology = load(any_spec)
    text = to_toml(topology)
    reread = from_toml(text, "again")
    assert same(topology, reread)
    assert to_toml(reread) == text


@pytest.mark.parametrize("name", machines())
def test_a_saved_machine_can_be_joined(name: str) -> None:
    """Check that NICs are written, so that two nodes of the saved machine equal two nodes of the machine."""
    machine = load_machine(name)
    reread = read_machine(to_toml(machine.topology, machine.nics), "again")
    assert (reread.nics is None) == (machine.nics is None)
    if machine.nics is not None:
        joined, rejoined = join(machine, 2, "two"), join(reread, 2, "two")
        assert same(joined, rejoined)
        assert (joined.alpha_assumed, joined.sms) == (rejoined.alpha_assumed, rejoined.sms)


@pytest.mark.parametrize("fabrics", [0, 1, 2, 3, 4])
def test_nics_of_any_kind_round_trip(fabrics: int) -> None:
    """Check ranks that send and receive by different NICs, a rank without NIC, and all numbers of fabrics."""
    sends, receives = ([0, 1], [2], [4], [5]), ([2], [0, 1], [5], [4])
    nics = Nics(tuple(map(np.array, sends)), tuple(map(np.array, receives)), 12.5, 1.25, fabrics % 2 == 0, fabrics)
    topology = load("ring:6")
    text = to_toml(topology, nics)
    reread = read_machine(text, "again")
    assert reread.nics is not None
    assert to_toml(reread.topology, reread.nics) == text
    assert same(join(Machine(topology, nics), 3, "three"), join(reread, 3, "three"))
    assert (reread.nics.assumed, reread.nics.fabrics) == (nics.assumed, nics.fabrics)


@settings(max_examples=25)
@given(st.data())
def test_any_topology_round_trips(data: st.DataObject) -> None:
    nranks = data.draw(st.integers(1, 12))
    switches = data.draw(
        st.lists(st.from_regex(r"[a-zA-Z][a-z0-9_.:/-]{0,3}", fullmatch=True), unique=True, max_size=5)
    )
    v = nranks + len(switches)
    pairs = [(a, b) for a in range(v) for b in range(v) if a != b]
    chosen = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else []
    figure = st.floats(1e-9, 1e9)
    count = len(chosen)
    sample_figures = data.draw(st.lists(figure, min_size=1, max_size=3))
    limits = tuple(
        Limit(
            f"limit {i}",
            np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1))),
            data.draw(figure),
        )
        for i in range(data.draw(st.integers(0, 3)) if count else 0)
    )
    t = Topology(
        "t", nranks, tuple(switches), np.array([a for a, _ in chosen], dtype=int),
        np.array([b for _, b in chosen], dtype=int),
        np.array([data.draw(st.sampled_from([0.0, *sample_figures])) for _ in chosen]),
        np.array([data.draw(st.sampled_from(sample_figures)) for _ in chosen]), limits,
        nodes=np.array(data.draw(st.lists(st.integers(0, nranks - 1), min_size=nranks, max_size=nranks))),
        sms=data.draw(st.integers(0, 4096)), summary=data.draw(st.text()), source=data.draw(st.text()),
    )  # fmt: skip
    text = to_toml(t)
    reread = from_toml(text, "again")
    assert to_toml(reread) == text
    for name in ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "nodes"):
        assert np.array_equal(getattr(t, name), getattr(reread, name))
    assert [x.links.tolist() for x in t.limits] == [x.links.tolist() for x in reread.limits]
    assert (t.switches, t.sms, t.summary, t.source) == (reread.switches, reread.sms, reread.summary, reread.source)
