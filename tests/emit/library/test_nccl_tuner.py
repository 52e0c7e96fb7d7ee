"""Tests of the tuner's configuration: its plug-in applies the choice of NCCL's model, or the fastest measured one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.library.index import index_text, parse_index
from emit.library.selection.nccl_tuner import measured_lines, model_lines, text_of
from synth.baselines.nccl.model import nccl_model
from tests.emit.library.made_indices import entry_row
from topologies.errors import InputError
from topologies.load import load

SPELT = {"ring": "ring", "tree": "tree", "NVLS": "nvls", "NVLSTree": "nvls_tree", "PAT": "pat"}
HEAD = "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,latency_us"


def applied(text: str, collective: str, size: int, nodes: int, ranks: int) -> tuple[str, str, int] | None:
    """Return the choice of NCCL's example plug-in (pluginGetCollInfo): the first line that fits."""
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        assert len(line) < 256  # The plug-in reads at most 255 characters of a line.
        fields = line.split(",")
        assert len(fields) == 10
        low, high, channels, of_nodes, of_ranks = (int(fields[i]) for i in (1, 2, 5, 6, 7))
        if fields[0] == collective and low <= size <= high and of_nodes in (-1, nodes) and of_ranks in (-1, ranks):
            return fields[3], fields[4], channels
    return None


@pytest.mark.parametrize(
    ("name", "groups"), [("dgx-h100:2", [range(8), range(16)]), ("dgx-a100", [(0, 2, 5), range(8)])]
)
def test_the_plug_in_applies_the_choice_of_the_model(name: str, groups: list[list[int]]) -> None:
    topology = load(name)
    rows = [
        entry_row(collective=collective, topology=name, nranks=len(group), group=[*group], communicator=[*group],
                  root=0 if collective == "broadcast" else None, file=f"msccl/{collective}{len(group)}.xml")
        for group in groups for collective in ("allreduce", "allgather", "broadcast", "alltoall")
    ]  # fmt: skip
    lines, remarks = model_lines(parse_index(index_text(rows), "index.json", Path("lib")), topology)
    text, draw = text_of(lines, "here"), random.Random(1)
    assert remarks == []
    edges = [edge for line in lines for edge in (line.low - 1, line.low, line.high) if 0 <= edge <= 1 << 40]
    for group in groups:
        model = nccl_model(topology, [*group])
        for collective in ("allreduce", "allgather", "broadcast"):
            for size in [*edges[:: max(1, len(edges) // 40)], *(round(2 ** draw.uniform(0, 40)) for _ in range(40))]:
                right = model.choose(collective, size)
                expected = SPELT[right.algorithm], right.protocol.lower(), right.channels
                assert applied(text, collective, size, model.communicator.nnodes, len(group)) == expected
    assert applied(text, "allreduce", (1 << 64) - 1, 1, len(groups[0])) is not None
    assert applied(text, "alltoall", 1024, 1, 8) is None


def test_groups_that_look_alike_to_the_plug_in() -> None:
    rows = [
        entry_row(topology="dgx1", group=group, communicator=group, file=f"msccl/{i}.xml")
        for i, group in enumerate(([0, 1, 2, 3], [0, 1, 4, 6]))
    ]
    lines, remarks = model_lines(parse_index(index_text(rows), "index.json", Path("lib")), load("dgx1"))
    assert len({(line.collective, line.nodes, line.ranks, line.low) for line in lines}) == len(lines)
    assert [" ".join(remark.split()[:3]) for remark in remarks] in ([], ["allreduce of 4"])


def test_a_topology_without_an_nccl_model() -> None:
    entries = parse_index(index_text([entry_row(topology="ring:8")]), "index.json", Path("lib"))
    with pytest.raises(InputError, match="no line for any of the library's groups"):
        model_lines(entries, load("ring:8"))


MEASURED = st.tuples(
    st.sampled_from(["allreduce", "broadcast"]), st.integers(0, 1 << 20), st.sampled_from(["ring", "tree", "nvls"]),
    st.sampled_from(["ll", "ll128", "simple"]), st.integers(1, 32), st.sampled_from([1, 2]), st.just(8),
    st.floats(0.5, 1e6),
)  # fmt: skip


@settings(max_examples=30)
@given(st.lists(MEASURED, min_size=1, max_size=12))
def test_measured_times(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[object, ...]]) -> None:
    """Check that the fastest choice is applied at every measured size and that ranges cover all sizes."""
    path = tmp_path_factory.mktemp("measured") / "m.csv"
    path.write_text("\n".join([HEAD, *(",".join(map(str, row)) for row in rows)]) + "\n")
    lines = measured_lines(path)
    text = text_of(lines, "measured")
    for collective, size, *_, nodes, ranks, _ in rows:
        same = [row for row in rows if (row[0], row[1], row[5]) == (collective, size, nodes)]
        least = min(row[7] for row in same)  # type: ignore[type-var]
        fastest = {(row[2], row[3], row[4]) for row in same if row[7] == least}
        assert applied(text, str(collective), int(str(size)), int(str(nodes)), int(str(ranks))) in fastest
    for key in {(line.collective, line.nodes) for line in lines}:
        lines_of_key = [line for line in lines if (line.collective, line.nodes) == key]
        assert [line.low for line in lines_of_key] == [0, *(line.high + 1 for line in lines_of_key[:-1])]
        assert lines_of_key[-1].high == (1 << 64) - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column collective"),
        (HEAD, "holds no measured time"),
        (f"{HEAD}\nalltoall,1,ring,ll,1,1,8,1", "line 2: collective: 'alltoall' is not known"),
        (f"{HEAD}\nallreduce,-1,ring,ll,1,1,8,1", "line 2: size_bytes: '-1' must be"),
        (f"{HEAD}\nallreduce,1,rings,ll,1,1,8,1", "line 2: algorithm: 'rings' is not known"),
        (f"{HEAD}\nallreduce,1,ring,lll,1,1,8,1", "line 2: protocol"),
        (f"{HEAD}\nallreduce,1,ring,ll,-1,1,8,1", "line 2: channels: '-1' must be a whole number, 1 to"),
        (f"{HEAD}\nallreduce,1,ring,ll,1,x,8,1", "line 2: nodes"),
        (f"{HEAD}\nallreduce,1,ring,ll,1,1,8,nan", "line 2: latency_us"),
        (f"{HEAD}\nallreduce,1,ring,ll,1,1,8", "line 2: latency_us"),
        (f"{HEAD}\nallreduce,1", "line 2: "),
    ],
)
def test_wrong_measured_times(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(InputError) as error:
        measured_lines(tmp_path / "m.csv")
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1
