"""The rows of targets and formats fit together, and the right one is chosen for a question or a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from emit.check.limits import check_limits
from emit.findings import Findings
from emit.formats import PROGRAM_FORMATS, format_of, verify_file, verify_program
from emit.library.programs import executor_for
from emit.msccl.format import write_msccl
from emit.program import FIFO_DEPTH, OPS, Gpu, Program, Step, ThreadBlock
from emit.targets import TARGETS, Target, TargetSettings, choose_protocol, choose_target, target_for
from synth.model.problem import make_problem
from tests.emit.small_programs import ring_allgather
from topologies.costed import with_costs
from topologies.errors import InputError
from topologies.load import load


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_row_fits_its_format(target: Target) -> None:
    form = PROGRAM_FORMATS[target.format]
    assert target.suffix == form.suffix
    assert target.runs_here == form.has_program
    assert form.load
    assert set(target.protocols) == set(FIFO_DEPTH)
    assert target.limits.ops <= set(OPS)
    assert target.only_outofplace <= set(target.collectives)
    assert len([t for t in TARGETS.values() if t.folder == target.folder]) == 1


def test_format_of_a_file_by_name_or_content(tmp_path: Path) -> None:
    texts = {"msccl": write_msccl(ring_allgather(3)), "mscclpp": ' \n{"name": 1}', "schedule": "PK\x03\x04"}
    for name, text in texts.items():
        (tmp_path / "file").write_text(text)
        assert format_of(tmp_path / "file").name == name
        assert format_of(f"nowhere/a{PROGRAM_FORMATS[name].suffix.upper()}").name == name
    assert format_of("nowhere/a").name == format_of(tmp_path).name == "msccl"
    (tmp_path / "ring").write_text(texts["msccl"])
    assert verify_file(tmp_path / "ring").status == verify_program(tmp_path / "ring").status == "right"
    message = "is a schedule (.synth); synth lower makes an executor's file of it"
    assert message in verify_program(tmp_path / "a.synth").lines[0]
    assert "no such file" in verify_program(tmp_path / "a.json").lines[0]


def test_target_for_a_problem() -> None:
    ring = load("ring:4")
    for collective, relays, target, expected in (
        ("allreduce", (), "auto", "executor-nccl"), ("gather", (), "auto", "executor-nccl"),
        ("alltonext", (), "auto", "msccl"), ("allgather", (3,), "auto", "msccl"), ("allgather", (), "rccl", "rccl"),
        ("allgather", (3,), "mscclpp", "mscclpp"), ("allgather", (3,), "rccl", "msccl or mscclpp or --relay none"),
        ("gather", (), "mscclpp", "use --target executor-nccl or rccl"), ("gather", (), "msccl", "has no name for"),
        ("gather", (3,), "mscclpp", "gather with relays; use --target msccl or --relay none"),
        ("allgather", (), "nccl", "is not known"),
    ):  # fmt: skip
        problem = make_problem(ring, collective, [0, 1, 2], relays)
        if expected in TARGETS:
            assert target_for(problem, target).name == expected
        else:
            with pytest.raises(InputError, match=expected):
                target_for(problem, target)
    assert choose_target("reducescatter").name == "executor-nccl"
    assert [choose_protocol(size) for size in (0, 256 << 10, (256 << 10) + 1, None)] == [
        "LL",
        "LL",
        "Simple",
        "Simple",
    ]


@pytest.mark.parametrize(
    ("spec", "collective", "expected"),
    [
        ("dgx1", "allreduce", "executor-nccl"),
        ("dgx-a100", "allreduce", "mscclpp"),
        ("dgx-h100:2", "alltoall", "mscclpp"),
        ("gb200-nvl72", "allgather", "mscclpp"),
        ("mi300x", "allreduce", "mscclpp"),
        ("mi355x", "allreduce", "mscclpp"),
        ("mi250", "allreduce", "rccl"),
        ("gaudi3", "allreduce", "executor-nccl"),
        ("dgx-a100", "gather", "executor-nccl"),  # A plan cannot say it.
        ("mi300x", "scatter", "rccl"),
    ],
)
def test_the_default_target_follows_the_machine(spec: str, collective: str, expected: str) -> None:
    problem = make_problem(load(spec), collective)
    assert target_for(problem).name == expected
    assert target_for(problem, "executor-nccl").name == "executor-nccl"
    assert target_for(problem, suffix=".XML").suffix == ".xml"


def test_a_known_machine_decides_for_programs_too() -> None:
    h100 = load("dgx-h100")
    assert (
        choose_target("allreduce").name == choose_target("allreduce", topology=load("ring:4")).name == "executor-nccl"
    )
    assert choose_target("allreduce", topology=h100).name == "mscclpp"
    assert choose_target("allreduce", topology=h100, suffix=".xml").name == "executor-nccl"
    assert choose_target("allreduce", "rccl", h100, ".json").name == "rccl"


def test_protocol_between_nodes() -> None:
    for target in TARGETS.values():
        only_ll = "LL" if target.format == "msccl" else "Simple"
        for collective in ("broadcast", "reduce"):
            assert choose_protocol(None, target, collective, [0, 0, 1]) == only_ll
            assert choose_protocol(None, target, collective, [3, 3, 3]) == "Simple"
        assert choose_protocol(None, target, "allreduce", [0, 1]) == "Simple"


def test_searches_leave_out_only_what_the_target_cannot_use() -> None:
    """Check that broadcasts between nodes are searched with LL and LL128, and all others also with Simple."""
    names = ["LL", "LL128", "Simple"]
    for topology, collective, able in (
        ("ndv2:2", "broadcast", names[:2]), ("ndv2:2", "allgather", names), ("ndv2", "broadcast", names),
    ):  # fmt: skip
        programs = executor_for(make_problem(with_costs(load(topology)), collective), TargetSettings("msccl"))
        assert programs is not None
        assert programs.able(names) == able


def test_plans_have_limits_of_their_own() -> None:
    """Check that limits of XML readers do not apply to plans, and that a violated limit names its target."""
    limits = TARGETS["mscclpp"].limits
    copies = [ThreadBlock(-1, -1, 0, [Step("cpy", "i", 0, "o", 0, 100)])] * 200
    chain = ThreadBlock(-1, -1, 0, [Step("re", "i", k, "o", 0, 1) for k in range(40)])
    wide = Program(
        "wide", "allreduce", "Simple", 2, 1 << 16, False, True, [Gpu(1 << 16, 1 << 16, 0, [*copies, chain])] * 2
    )
    findings = Findings()
    check_limits(wide, limits, findings)
    assert not findings.reported
    check_limits(wide, TARGETS["msccl"].limits, findings)
    assert {f.message.split("; ")[-1].split()[0] for f in findings.reported} >= {"msccl"}
    long = replace(wide, gpus=[Gpu(1, 1, 0, [ThreadBlock(-1, -1, 40, [Step("cpy", "i", 0, "o", 0, 1)] * 9000)])] * 2)
    findings = Findings()
    check_limits(long, limits, findings)
    assert len(findings.reported) == 6
    assert all("mscclpp" in f.message and "XML" not in f.message for f in findings.reported)
