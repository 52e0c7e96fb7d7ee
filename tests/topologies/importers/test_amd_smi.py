"""Tests of the equivalent forms of `amd-smi topology`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.topologies.importers.test_importers import pairs, read, shared
from topologies.errors import InputError
from topologies.importers import format_of

Cells = Sequence[Sequence[str]]
BDF = [f"0000:{16 * i + 3:02x}:00.0" for i in range(8)]


def table(title: str, cells: Cells) -> str:
    head = " " * 12 + "".join(bdf.rjust(13) for bdf in BDF[: len(cells)])
    rows = [f"{bdf} " + "".join(cell.ljust(13) for cell in row) for bdf, row in zip(BDF, cells, strict=False)]
    return "\n".join([f"{title} TABLE:", head, *rows]) + "\n"


def text(kind: Cells, weight: Cells, gbs: Cells) -> str:
    access = [["ENABLED"] * len(kind)] * len(kind)
    tables = [("ACCESS", access), ("WEIGHT", weight), ("LINK TYPE", kind), ("NUMA BW", gbs), ("DMA", access)]
    return "\n".join(table(*title_and_cells) for title_and_cells in tables) + "\nLegend:\n  SELF = Current GPU\n"


def as_json(kind: Cells, weight: Cells, gbs: Cells) -> str:
    n = range(len(kind))
    links = [
        [
            {"gpu": b, "bdf": BDF[b], "weight": int(weight[a][b]), "link_type": kind[a][b], "bandwidth": gbs[a][b]}
            for b in n
        ]
        for a in n
    ]
    return json.dumps([{"gpu": a, "bdf": BDF[a], "links": links[a][::-1]} for a in n])


def as_old_json(kind: Cells, weight: Cells, gbs: Cells) -> str:
    tables = {"link_accessibility": kind, "weight": weight, "link_type": kind, "numa_bandwidth": gbs}
    rows = (
        {key: {f"gpu_{b}": cell for b, cell in enumerate(cells[a])} for key, cells in tables.items()}
        for a in range(len(kind))
    )
    return json.dumps([{"gpu": a, "bdf": BDF[a], **row} for a, row in enumerate(rows)])


def as_csv(kind: Cells, weight: Cells, gbs: Cells) -> str:
    tables = {"weight": weight, "link_type": kind, "numa_bandwidth": gbs}
    head = ["gpu", "bdf", *(f"{key}_gpu_{b}" for key in tables for b in range(len(kind)))]
    rows = [[str(a), BDF[a], *(cell for cells in tables.values() for cell in cells[a])] for a in range(len(kind))]
    return "\n".join(",".join(row) for row in [head, *rows]) + "\n"


def square(count: int, inside: str, across: str, itself: str, islands: int = 1) -> list[list[str]]:
    island_size = count // islands
    return [
        [itself if a == b else inside if a // island_size == b // island_size else across for b in range(count)]
        for a in range(count)
    ]


FORMS = [text, as_json, as_old_json, as_csv]


@pytest.mark.parametrize("form", FORMS)
def test_two_islands_that_share_their_sockets(form: object) -> None:
    """Check two islands of four, whose links have the stated rates, and which share their hosts' sockets."""
    assert callable(form)
    dump = form(
        square(8, "XGMI", "PCIE", "SELF", 2), square(8, "15", "72", "0", 2), square(8, "50000-100000", "N/A", "N/A", 2)
    )
    assert format_of(dump).name == "amd-smi topology"
    machine = read(dump)
    gbs_of = pairs(machine.topology)
    assert gbs_of[0, 3] == gbs_of[4, 7] == 100
    assert gbs_of[0, 4] == 16
    assert shared(machine.topology, (0, 4), (3, 7))
    assert any("read" in remark for remark in machine.remarks)


@pytest.mark.parametrize("form", FORMS)
def test_missing_rates(form: object) -> None:
    """Check a virtual machine, which states no rates: eight devices that are all joined are taken for MI300X."""
    assert callable(form)
    machine = read(form(square(8, "XGMI", "", "SELF"), square(8, "0", "", "0"), square(8, "0-0", "", "N/A")))
    assert set(pairs(machine.topology).values()) == {64.0}
    assert any("assumed" in remark for remark in machine.remarks)


def test_devices_two_links_apart_have_no_link() -> None:
    """Check a ring of four, where opposite devices are joined only over others and have no link."""
    kind, weight = square(4, "XGMI", "", "SELF"), square(4, "15", "", "0")
    weight[0][2] = weight[2][0] = weight[1][3] = weight[3][1] = "30"
    topology = read(text(kind, weight, square(4, "N/A", "", "N/A"))).topology
    links = set(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    assert links == {(a, (a + d) % 4) for a in range(4) for d in (1, 3)}


def test_cards_on_one_host() -> None:
    """Check two workstation cards that are joined only by one socket's PCIe."""
    dump = text(square(2, "PCIE", "", "SELF"), square(2, "40", "", "0"), square(2, "N/A", "", "N/A"))
    topology = read(dump).topology
    assert topology.summary == "2 devices, PCIe"
    assert 20 < pairs(topology)[0, 1] < 32


OF_TWO = (square(2, "XGMI", "", "SELF"), square(2, "15", "", "0"), square(2, "50000-50000", "", "N/A"))


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        (text(*OF_TWO).replace("XGMI", "NVL", 1), "link type 'NVL'"),
        (text(*OF_TWO).replace("XGMI", "PCIE", 1), "the reverse"),
        (text(*OF_TWO).replace(" 15 ", " x5 ", 1), "weight 'x5'"),
        (text(*OF_TWO).replace("SELF         XGMI", "SELF", 1), "1 cells for 2 columns"),
        (as_json(*OF_TWO).replace('"gpu": 1', '"gpu": "x"', 1), "device 'x'"),
        (as_json(*OF_TWO).replace('"gpu": 1', '"gpu": 5000', 1), "less than 256"),
        (as_json(*OF_TWO)[:-3], "not JSON"),
        (as_json(*OF_TWO).replace('"gpu": 1', '"gpu": 2'), "nothing between GPU0 and GPU1"),
        (as_csv(*OF_TWO).replace("\n1,", "\nz,"), "device 'z'"),
        ('[{"gpu": 0, "link_type": 3}]', "no link types"),
    ],
)
def test_broken_dumps_are_refused_in_one_line(dump: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(dump)
    assert "\n" not in str(caught.value)
    assert message in str(caught.value)
    assert "must" in str(caught.value)
