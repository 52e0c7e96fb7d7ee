"""Files of states: what they state, and one line for each fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from synth.reconfiguration.states import read_states, subsets
from topologies.errors import InputError

RIGHT = """
name = "ring-and-pairs"
delta_us = 10.0
start = "ring"
[[state]]
name = "ring"
topo = "ring:4"
[[state]]
name = "pairs"
ranks = 4
links = [[0, 2], [1, 3]]
bandwidth_gbs = 100.0
alpha_us = 0.7
[[state]]
name = "both"
topo = "ring:4"
links = [[0, 2]]
bandwidth_gbs = 100.0
alpha_us = 0.5
[[change]]
between = ["ring", "pairs"]
delta_us = 5
"""


def test_a_file_states_topologies_and_times(tmp_path: Path) -> None:
    path = tmp_path / "states.toml"
    path.write_text(RIGHT)
    network = read_states(str(path))
    assert [state.nlinks for state in network.states] == [8, 4, 10]
    assert network.delta_us.tolist() == [[0, 5, 10], [5, 0, 10], [10, 10, 0]]
    assert (network.changing_us([1, 2, 0]), network.changes([1, 2, 0])) == (25.0, 3)  # It starts in the ring.
    assert network.changing_us([0, 1]) == 5.0
    assert subsets(network, 2) == [(0, 1), (0, 2)]


def test_states_by_name() -> None:
    cube = read_states("ring:8 + axes:2x2x2,bw=100")
    assert [state.nlinks for state in cube.states] == [16, 8, 8, 8]
    assert [int((state.link_src ^ state.link_dst).max()) for state in cube.states[1:]] == [4, 2, 1]
    both = read_states("axes:8x2 + axes:4x4")
    assert [state.name for state in both.states] == ["axis 0 of 8x2", "axis 1 of 8x2", "axis 0 of 4x4", "axis 1 of 4x4"]
    strides = read_states("strides:6")
    assert [state.nlinks for state in strides.states] == [12, 12, 6]
    distance = (strides.states[1].link_dst - strides.states[1].link_src) % 6
    assert set(distance.tolist()) == {2, 4}
    assert np.all(cube.with_delta(3.0).delta_us == 3.0 * (1 - np.eye(4)))


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ('name = "ring-and-pairs"', 'name = "\\n"', "name"),
        ("delta_us = 10.0", "delta_us = -1", "delta_us"),
        ("delta_us = 10.0", "delta_us = nan", "delta_us"),
        ("delta_us = 10.0", "delta = 1", "delta"),
        ('start = "ring"', 'start = "x"', "start"),
        ('topo = "ring:4"', 'topo = "ring:5"', "ranks"),
        ('topo = "ring:4"', 'topo = "../ring.toml"', "topo"),
        ('topo = "ring:4"', 'topo = "/etc/passwd"', "topo"),
        ('topo = "ring:4"', 'topo = "star:4"', "switches"),
        ('topo = "ring:4"', 'topo = "nosuch"', "nosuch"),
        ('topo = "ring:4"', 'topo = "ring:1000000000"', "too large"),
        ('topo = "ring:4"', 'topo = "ring:4"\nbandwidth_gbs = 7', "bandwidth_gbs"),
        ('topo = "ring:4"', "", "links"),
        ("ranks = 4", "ranks = 1000000", "ranks"),
        ("ranks = 4", "", "ranks"),
        ("[[0, 2], [1, 3]]", "[]", "links"),
        ("[[0, 2], [1, 3]]", "[[0, 4]]", "links"),
        ("[[0, 2], [1, 3]]", "[[0, 0]]", "links"),
        ("[[0, 2], [1, 3]]", "[[0, 2], [2, 0]]", "links"),
        ("[[0, 2], [1, 3]]", '[[0, "x"]]', "links"),
        ("[[0, 2], [1, 3]]", "[[0, 2, 3]]", "links"),
        ("[[0, 2], [1, 3]]", "[[0, true]]", "0, true"),
        ("[[0, 2], [1, 3]]", "[" + "[0, 2]," * 7 + "]", "links"),
        ("links = [[0, 2]]", "links = [[0, 1]]", "links"),
        ("bandwidth_gbs = 100.0\nalpha_us = 0.7", "alpha_us = 0.7", "bandwidth_gbs"),
        ("alpha_us = 0.7", "alpha_us = -1", "alpha_us"),
        ('name = "pairs"', 'name = "ring"', "ring"),
        ('name = "pairs"', 'name = "  "', "blank"),
        ('["ring", "pairs"]', '["ring"]', "between"),
        ('["ring", "pairs"]', '["ring", "ring"]', "between"),
        ('["ring", "pairs"]', '["ring", "x"]', "between"),
        ("[[change]]", "[[changes]]", "changes"),
        ("[[change]]", '[[change]]\nbetween = ["pairs", "ring"]\ndelta_us = 6\n[[change]]', "two [[change]] tables"),
        (RIGHT[1:], "delta_us = " + "9" * 5000, "digits"),
        (RIGHT[1:], "", "state"),
        (RIGHT[1:], "state = 1", "state"),
        (RIGHT[1:], "[[state]]\nname='a'\ntopo='ring:4'\n" * 17, "state"),
        (RIGHT[1:], "\x00", "TOML"),
    ],
)
def test_a_wrong_file_is_one_line(old: str, new: str, place: str, tmp_path: Path) -> None:
    assert old in RIGHT
    path = tmp_path / "states.toml"
    path.write_text(RIGHT.replace(old, new, 1))
    with pytest.raises(InputError) as refusal:
        read_states(str(path))
    message = str(refusal.value).replace(str(tmp_path), "")
    assert place in message
    assert "\n" not in message
    assert len(message) <= 160


def test_a_topology_is_read_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "mine.toml").write_text('name = "mine"\nranks = 4\n')
    path = tmp_path / "states.toml"
    path.write_text(RIGHT.replace('topo = "ring:4"', 'topo = "mine.toml"', 1))
    assert [state.nlinks for state in read_states(path).states] == [0, 4, 10]


def test_a_list_may_end_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('name = "mine"\nranks = 4\n')
    assert [state.name for state in read_states("ring:4 + mine.toml").states] == ["ring:4", "mine"]
    (tmp_path / "a+b.toml").write_text(RIGHT)
    assert len(read_states("a+b.toml").states) == 3


@pytest.mark.parametrize("spec", ["axes:" + "2x" * 50 + "2", "strides:4,foo=1", "axes:1x1", "strides:64", "x" * 99])
def test_wrong_terms_are_one_short_line(spec: str) -> None:
    with pytest.raises(InputError) as refusal:
        read_states(f"ring:4 + {spec}")
    assert len(str(refusal.value)) <= 160
    assert "torus:2" not in str(refusal.value)
