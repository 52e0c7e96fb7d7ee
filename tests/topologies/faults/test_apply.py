"""Tests of topologies with faults: parts are removed or slower as stated, and everything else is unchanged."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.faults.notation import dead_ranks, live_ranks, parse_fault
from topologies.load import load
from topologies.network import network
from topologies.text.reader import from_toml
from topologies.text.writer import to_toml
from topologies.topology import Limit, Topology

SEEDS = st.integers(0, 2**32)
SWITCHES = ("leaf-0", "leaf-1", "core/0.a")  # Names with characters that links and file names use.


def wired(rng: random.Random) -> Topology:
    """Return ranks and switches with random links, and limits over some of them."""
    nranks, switches = rng.randint(3, 7), SWITCHES[: rng.randint(0, 3)]
    size = nranks + len(switches)
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    src, dst = np.array(sorted(rng.sample(pairs, rng.randint(size, len(pairs))))).T
    gbs = np.array([rng.choice((1.0, 12.5, 25.0, 300.0)) for _ in src])
    alpha = np.array([rng.choice((0.0, 0.7, 3.0)) for _ in src])
    limits = [
        Limit(
            f"nic{i}, out=x" if i else "nic0",
            np.array(rng.sample(range(len(src)), rng.randint(1, min(4, len(src))))),
            40.0,
        )
        for i in range(rng.randint(0, 3))
    ]
    return Topology("t", nranks, switches, src, dst, alpha, gbs, tuple(limits))


Figures = dict[tuple[str, str], tuple[float, float]]


def figures(t: Topology) -> Figures:
    """Return (α in µs, GB/s) of every link by the names of its ends."""
    name = t.vertex_name
    rows = zip(t.link_src.tolist(), t.link_dst.tolist(), t.alpha_us.tolist(), t.bandwidth_gbs.tolist(), strict=True)
    return {(name(a), name(b)): (alpha, gbs) for a, b, alpha, gbs in rows}


def limits(t: Topology) -> dict[str, tuple[float, set[tuple[str, str]]]]:
    name = t.vertex_name
    return {
        x.name: (
            x.bandwidth_gbs,
            {(name(int(t.link_src[i])), name(int(t.link_dst[i]))) for i in x.links.tolist()},
        )
        for x in t.limits
    }


def random_faults(rng: random.Random, t: Topology) -> tuple[list[str], list[str], Figures, set[str]]:
    """Return texts of random faults, the remaining links with their figures, and the removed vertices."""
    remaining = figures(t)
    names = list(remaining)
    without, lost = [], set()
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice(("both", "one", "rank", "switch"))
        a, b = rng.choice(names)
        if kind == "both":
            without.append(f"link:{a}-{b}")
            remaining = {k: v for k, v in remaining.items() if k not in ((a, b), (b, a))}
        elif kind == "one":
            without.append(f"link:{a}>{b}")
            remaining = {k: v for k, v in remaining.items() if k != (a, b)}
        else:
            vertex = a if kind == "rank" else rng.choice((*t.switches, a))
            without.append(f"rank:{vertex}" if vertex.isdecimal() else f"switch:{vertex}")
            remaining = {k: v for k, v in remaining.items() if vertex not in k}
            lost.add(vertex)
    degrade = []
    slower = dict(remaining)
    for _ in range(rng.randint(0, 3) if remaining else 0):
        a, b = rng.choice(list(remaining))
        percent = rng.choice((50, 12.5, 99))
        kind = rng.choice(("both", "one", "rank", "gbs"))
        if kind == "gbs":
            alpha, gbs = remaining[a, b]
            degrade.append(f"link:{a}>{b}={gbs / 4:g}GB/s")
            slower[a, b] = (alpha, min(slower[a, b][1], gbs / 4))
            continue
        part = {"both": f"link:{a}-{b}", "one": f"link:{a}>{b}"}.get(
            kind, f"rank:{a}" if a.isdecimal() else f"switch:{a}"
        )
        degrade.append(f"{part}={percent:g}%")
        for key, (alpha, gbs) in remaining.items():
            hit = a in key if kind == "rank" else key == (a, b) or (kind == "both" and key == (b, a))
            if hit:
                slower[key] = (alpha, min(slower[key][1], gbs * percent / 100))
    return without, degrade, slower, lost


@settings(max_examples=60, derandomize=True)
@given(SEEDS)
def test_only_named_parts_change(seed: int) -> None:
    rng = random.Random(seed)
    topology = wired(rng)
    without, degrade, remaining, lost = random_faults(rng, topology)
    ranks = tuple(r for r in range(topology.nranks) if str(r) not in lost)
    if not remaining or len(ranks) < 2:
        with pytest.raises(InputError, match="left"):
            apply_faults(topology, without, degrade)
        return
    t = apply_faults(topology, without, degrade)
    assert figures(t) == remaining
    assert t.nranks == topology.nranks
    assert t.switches == tuple(s for s in topology.switches if s not in lost)
    assert live_ranks(t, dead_ranks(topology, without), None, "--group") == ranks
    expected = {n: (gbs, limited_links & set(remaining)) for n, (gbs, limited_links) in limits(topology).items()}
    assert limits(t) == {n: x for n, x in expected.items() if x[1]}
    reread = from_toml(to_toml(t), "t.toml")
    assert (figures(reread), limits(reread), reread.name) == (remaining, limits(t), t.name)
    network(t, ranks)
    if without or degrade:
        assert re.fullmatch(r"t [A-Za-z0-9_.:,=% -]+", t.name)
        assert len(t.name) < 120
    else:
        assert t is topology


@settings(max_examples=60, derandomize=True)
@given(SEEDS)
def test_order_and_form_of_faults_do_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    topology = wired(rng)
    without, degrade, remaining, lost = random_faults(rng, topology)
    if not remaining or len(lost & {str(r) for r in range(topology.nranks)}) > topology.nranks - 2:
        return
    t = apply_faults(topology, without, degrade)
    for _ in range(2):
        rng.shuffle(without)
        rng.shuffle(degrade)
        second = apply_faults(topology, [",".join(without)] if without else [], degrade + degrade)
        assert (second.name, figures(second), limits(second)) == (t.name, figures(t), limits(t))


def test_the_name_states_the_faults() -> None:
    dgx1 = load("dgx1")
    t = apply_faults(dgx1, ["link:1-0", "rank:6,rank:7"], ["link:3>2=50%"])
    assert t.name == "dgx1 without link:0-1,rank:6-7 degraded link:3to2=50%"
    assert apply_faults(dgx1, ["link:0>1", "link:1>0"], []).name == "dgx1 without link:0-1"
    assert apply_faults(dgx1, ["link:0>1"], []).name == "dgx1 without link:0to1"
    assert apply_faults(dgx1, [], ["link:0>1=1.5GB/s"]).name == "dgx1 degraded link:0to1=1.5GBps"
    # A link of a removed rank is removed with it, and the name omits it.
    assert apply_faults(dgx1, ["rank:0,link:0-1"], []).name == "dgx1 without rank:0"


def test_long_names_are_cut_and_distinct() -> None:
    t = load("full:16")
    links = [f"link:{a}-{b}" for a in range(6) for b in range(a)]
    first, second = apply_faults(t, links, []), apply_faults(t, [*links[:-1], "link:6-7"], [])
    assert first.name.startswith(f"{t.name} without {len(links)} parts ")
    assert first.name != second.name
    assert len(first.name) < 60


def test_limits_can_be_degraded() -> None:
    t = load("dgx2:2")
    name = t.limits[0].name
    half = apply_faults(t, [], [f"limit:{name}=50%"])
    assert [x.bandwidth_gbs for x in half.limits][:2] == [
        t.limits[0].bandwidth_gbs / 2,
        t.limits[1].bandwidth_gbs,
    ]
    assert np.array_equal(half.bandwidth_gbs, t.bandwidth_gbs)
    assert half.sms == t.sms == 80
    assert apply_faults(t, [], [f"limit:{name}=1GB/s"]).limits[0].bandwidth_gbs == 1.0
    lone = Limit("a, b=c", np.array([0, 2]), 10.0)
    odd = Topology("o", 2, ("s",), [0, 1, 2, 2], [2, 2, 0, 1], [1.0] * 4, [9.0] * 4, (lone,))
    slowed = apply_faults(odd, [], ["limit:a, b=c=50%,rank:0=50%"])
    assert slowed.limits[0].bandwidth_gbs == 5
    assert slowed.bandwidth_gbs.tolist() == [4.5, 9, 4.5, 9]


def test_dashes_in_names_of_switches() -> None:
    t = Topology(
        "d", 2, ("a-b", "c", "a", "b-c"), [0, 2, 3, 4, 1], [2, 3, 1, 5, 2], [1.0] * 5, [9.0] * 5
    )  # 0>a-b, a-b>c, c>1, a>b-c, 1>a-b
    assert apply_faults(t, ["link:a-b>c"], []).nlinks == 4
    assert apply_faults(t, ["link:0-a-b"], []).nlinks == 4
    with pytest.raises(InputError, match="ambiguous; it must be link:a>b-c or a-b>c"):
        apply_faults(t, ["link:a-b-c"], [])


WRONG = [
    ("link:3-5", "", r"rank 3 has no link to 5; it has links to 0-2, 7"),
    ("link:3>5", "", r"rank 3 has no link to 5"),
    ("link:3-9", "", r"rank 9 does not exist; ranks of dgx1 are 0 to 7"),
    ("link:3-x", "", r"no switch 'x'; it has no switches"),
    ("link:3-~", "", r"no rank and no switch"),
    ("link:3", "", r"does not name two ends"),
    ("link:-", "", r"no rank and no switch"),
    ("link:", "", r"names no link"),
    ("rank:8", "", r"rank 8 does not exist"),
    ("rank:5-4", "", r"must be rank:4-5"),
    ("rank:x", "", r"no rank; it must be rank:17"),
    ("rank:1,2", "", r"'2' does not say what it is"),
    ("", "", r"does not say what it is"),
    ("3-5", "", r"must be link:3-5"),
    ("switch:nv", "", r"has no switch 'nv'"),
    ("limit:x", "", r"must be --degrade limit:x=50%"),
    ("link:0-1=50%", "", r"must be --degrade link:0-1=50%"),
    ("rank:0-6", "", r"only rank 7 is left"),
    ("rank:0-7", "", r"no rank is left"),
    ("", "link:0-1", r"does not say what is left"),
    ("", "link:0-1=0%", r"above 0% and below 100%"),
    ("", "link:0-1=100%", r"below 100%"),
    ("", "link:0-1=-5%", r"no bandwidth that is left"),
    ("", "link:0-1=half", r"no bandwidth that is left"),
    ("", "link:0-1=nan%", r"no bandwidth that is left"),
    ("", "link:0-1=0GB/s", r"above 0"),
    ("", "link:0-1=50GB/s", r"50 GB/s is too much; it must be below what 0→1 has, 50 GB/s"),
    ("", "link:3-5=50%", r"no link to 5"),
    ("", "rank:3=5GB/s", r"as in rank:3=50%"),
    ("", "switch:s=50%", r"has no switch"),
    ("", "limit:nic0=50%", r"no such limit; it has no limits"),
    ("link:0-1", "link:1-0=50%", r"taken out by --without"),
    ("rank:3", "rank:3=50%", r"taken out by --without"),
]


@pytest.mark.parametrize(("without", "degrade", "message"), WRONG)
def test_wrong_faults_are_refused_in_one_line(without: str, degrade: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        apply_faults(load("dgx1"), [without] if without or not degrade else [], [degrade] if degrade else [])
    assert len(str(error.value).splitlines()) == 1
    assert str(error.value).startswith("--degrade" if degrade else "--without")


def test_near_switches_and_limits_are_offered() -> None:
    t = load("dgx-a100:2")
    with pytest.raises(InputError, match=r"did you mean nvswitch"):
        apply_faults(t, ["switch:nvswitch"], [])
    with pytest.raises(InputError, match=r"its switches are nvswitch"):
        apply_faults(t, ["switch:q"], [])
    with pytest.raises(InputError, match=r"did you mean nic0.0"):
        apply_faults(load("dgx2:2"), [], ["limit:nic0.0=50%"])
    with pytest.raises(InputError, match=r"rank 3 has no link to 5; it has links to nvswitch"):
        apply_faults(t, ["link:3-5"], [])


def test_faults_that_leave_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="no link is left"):
        apply_faults(load("star:4"), [f"switch:{load('star:4').switches[0]}"], [])
    two = Topology("two", 3, ("s",), [0, 1], [3, 3], [1.0] * 2, [9.0] * 2, (Limit("x", np.array([0]), 5.0),))
    with pytest.raises(InputError, match="all its links are taken out"):
        apply_faults(two, ["link:0-s"], ["limit:x=50%"])


def test_a_group_with_a_removed_rank() -> None:
    t = load("dgx1")
    assert live_ranks(t, (3, 5), None, "--group") == (0, 1, 2, 4, 6, 7)
    assert live_ranks(t, (3, 5), (7, 0), "--group") == (7, 0)
    with pytest.raises(InputError, match=r"^--group: rank 5 is taken out"):
        live_ranks(t, (3, 5), (7, 5), "--group")
    assert dead_ranks(t, ["rank:3-4", "link:0-1,rank:3"]) == (3, 4)


def test_a_fault_is_parsed() -> None:
    fault = parse_fault(" link:0>1 = 12.5 GB/s ", "--degrade")
    assert (fault.kind, fault.where, fault.percent, fault.gbs) == ("link", "0>1", None, 12.5)
    assert parse_fault("rank:3=.5%", "--degrade").percent == 0.5


@pytest.mark.parametrize(
    ("rate", "gbs"),
    [
        ("16GB/s", 16), ("16GBps", 16), ("16Gbps", 2), ("16 Gbit/s", 2), ("16Gb/s", 2), ("500Mbps", 0.0625),
        (".5GB/s", 0.5),
    ],
)  # fmt: skip
def test_what_is_left_of_a_link_may_be_in_bytes_or_bits(rate: str, gbs: float) -> None:
    assert parse_fault(f"link:0-1={rate}", "--degrade").gbs == gbs
    assert apply_faults(load("ring:4"), [], [f"link:0-1={rate}"]).bandwidth_gbs.min() == gbs


@pytest.mark.parametrize("rate", ["16gbps", "16gb/s", "16GBPS", "16G", "16", "1e3GB/s", "16GBs"])
def test_rates_whose_unit_is_not_clear_are_refused(rate: str) -> None:
    with pytest.raises(InputError, match=r"must be =50%, =12\.5GB/s or =100Gbps \(bits\)"):
        parse_fault(f"link:0-1={rate}", "--degrade")
