"""The rows of targets and formats hold together, and the right one is found for a question or a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from emit.check.limits import check_limits
from emit.findings import Findings
from emit.formats import FORMATS, format_of, verify_file, verify_program
from emit.msccl.format import write_msccl
from emit.program import FIFO_DEPTH, OPS, Gpu, Program, Step, ThreadBlock
from emit.targets import TARGETS, Target, choose_protocol, choose_target, target_for
from synth.model.problem import make_problem
from tests.emit.small_programs import ring_allgather
from topologies.errors import InputError
from topologies.load import load


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_row_fits_its_format(target: Target) -> None:
    form = FORMATS[target.format]
    assert target.suffix == form.suffix
    assert target.runs_here == form.has_program
    assert form.module
    assert set(target.protocols) == set(FIFO_DEPTH)
    assert target.limits.ops <= set(OPS)
    assert target.only_outofplace <= set(target.collectives)
    assert len([t for t in TARGETS.values() if t.folder == target.folder]) == 1


def test_the_format_of_a_file_follows_from_its_name_or_its_start(tmp_path: Path) -> None:
    texts = {"msccl": write_msccl(ring_allgather(3)), "mscclpp": ' \n{"name": 1}', "schedule": "PK\x03\x04"}
    for name, text in texts.items():
        (tmp_path / "file").write_text(text)
        assert format_of(tmp_path / "file").name == name
        assert format_of(f"nowhere/a{FORMATS[name].suffix.upper()}").name == name
    assert format_of("nowhere/a").name == format_of(tmp_path).name == "msccl"
    (tmp_path / "ring").write_text(texts["msccl"])
    assert verify_file(tmp_path / "ring").status == verify_program(tmp_path / "ring").status == "right"
    wanted = "it must be an MSCCL XML file or an execution plan (JSON)"
    assert wanted in verify_program(tmp_path / "a.synth").lines[0]
    assert "no such file" in verify_program(tmp_path / "a.json").lines[0]


def test_what_serves_a_problem() -> None:
    ring = load("ring:4")
    for collective, relays, asked, right in (
        ("allreduce", (), "auto", "executor-nccl"), ("gather", (), "auto", "executor-nccl"),
        ("alltonext", (), "auto", "msccl"), ("allgather", (3,), "auto", "msccl"), ("allgather", (), "rccl", "rccl"),
        ("allgather", (3,), "mscclpp", "mscclpp"), ("allgather", (3,), "rccl", "msccl or mscclpp or --relay none"),
        ("gather", (), "mscclpp", "use --target executor-nccl or rccl"), ("gather", (), "msccl", "has no name for"),
        ("gather", (3,), "mscclpp", "gather with relays; use --target msccl or --relay none"),
        ("allgather", (), "nccl", "is not known"),
    ):  # fmt: skip
        problem = make_problem(ring, collective, [0, 1, 2], relays)
        if right in TARGETS:
            assert target_for(problem, asked).name == right
        else:
            with pytest.raises(InputError, match=right):
                target_for(problem, asked)
    assert choose_target("reducescatter").name == "executor-nccl"
    assert [choose_protocol(size) for size in (0, 256 << 10, (256 << 10) + 1, None)] == [
        "LL",
        "LL",
        "Simple",
        "Simple",
    ]


def test_a_protocol_that_works_between_nodes() -> None:
    for target in TARGETS.values():
        only_ll = "LL" if target.format == "msccl" else "Simple"
        for collective in ("broadcast", "reduce"):
            assert choose_protocol(None, target, collective, [0, 0, 1]) == only_ll
            assert choose_protocol(None, target, collective, [3, 3, 3]) == "Simple"
        assert choose_protocol(None, target, "allreduce", [0, 1]) == "Simple"


def test_plans_have_limits_of_their_own() -> None:
    """What only XML and its readers cannot hold is no matter of a plan, and what is too much names its own target."""
    limits = TARGETS["mscclpp"].limits
    many = [ThreadBlock(-1, -1, 0, [Step("cpy", "i", 0, "o", 0, 100)])] * 200
    chain = ThreadBlock(-1, -1, 0, [Step("re", "i", k, "o", 0, 1) for k in range(40)])
    wide = Program(
        "wide", "allreduce", "Simple", 2, 1 << 16, False, True, [Gpu(1 << 16, 1 << 16, 0, [*many, chain])] * 2
    )
    found = Findings()
    check_limits(wide, limits, found)
    assert not found.reported
    check_limits(wide, TARGETS["msccl"].limits, found)
    assert {f.message.split("; ")[-1].split()[0] for f in found.reported} >= {"msccl"}
    long = replace(wide, gpus=[Gpu(1, 1, 0, [ThreadBlock(-1, -1, 40, [Step("cpy", "i", 0, "o", 0, 1)] * 9000)])] * 2)
    found = Findings()
    check_limits(long, limits, found)
    assert len(found.reported) == 6
    assert all("mscclpp" in f.message and "XML" not in f.message for f in found.reported)
