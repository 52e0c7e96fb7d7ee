"""A rank's threadblocks wait for each other: all must be resident on the SMs of its device, or the run hangs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from emit.compiler.lower import lower
from emit.formats import PROGRAM_FORMATS, check_place, verify_file, write_program
from emit.library import load_index
from emit.library.programs import Programs
from emit.library.saving.save import save
from emit.library.selection.lookup import place_beside
from emit.msccl.format import threadblocks
from emit.msccl.read import read_msccl
from emit.targets import FEWEST_SMS, RESERVED_SMS, TARGETS, Target, on_devices
from synth.app.arguments import QuestionArguments
from synth.app.question import make_question
from synth.app.synthesis import synthesize
from synth.baselines import baseline
from synth.search.settings import TargetSettings
from tests.emit.small_programs import alltoall
from topologies.errors import InputError
from topologies.load import load
from topologies.machines import machines

WIDE = alltoall(6, protocol="LL")


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_verify_refuses_more_threadblocks_than_sms(tmp_path: Path, target: Target) -> None:
    path = tmp_path / f"wide{target.suffix}"
    path.write_text(write_program(WIDE, None, target))
    most = max(PROGRAM_FORMATS[target.format].threadblocks(WIDE, path))
    assert most > 4
    verdict = verify_file(path)
    assert verdict.status == "right"
    blocks = PROGRAM_FORMATS[target.format].threadblocks(verdict.program, path)
    ring = load("ring:6")
    for sms in (0, most, 108):
        assert check_place(verdict, blocks, replace(ring, sms=sms), range(6)) == verdict
    refused = check_place(verdict, blocks, replace(ring, sms=most - 1), range(6))
    assert (refused.status, refused.exit_code) == ("deadlock", 1)
    assert refused.lines[0].startswith("deadlock: alltoall on 6 ranks")
    assert refused.lines[-1] == f"hang: rank 0 has {most} threadblocks on {most - 1} SMs; all must run at once"


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_no_target_writes_more_threadblocks_than_sms(target: Target) -> None:
    text = write_program(WIDE, None, target)
    most = max(PROGRAM_FORMATS[target.format].threadblocks(WIDE, text))
    assert write_program(WIDE, None, on_devices(target, 108, TargetSettings(sms=most))) == text
    with pytest.raises(InputError, match=f"has {most} threadblocks on {most - 1} SMs"):
        write_program(WIDE, None, on_devices(target, 108, TargetSettings(sms=most - 1)))


def test_sms_that_a_rank_may_use() -> None:
    target = TARGETS["rccl"]
    assert on_devices(target, 0, TargetSettings()) is target
    assert on_devices(target, 304, TargetSettings()).limits.sms == 304 - RESERVED_SMS
    assert on_devices(target, 304, TargetSettings()).limits.tbs_per_gpu == target.limits.tbs_per_gpu == 64
    assert on_devices(target, 5, TargetSettings()).limits.tbs_per_gpu == 3
    assert (
        on_devices(target, 0, TargetSettings(sms=7)).limits.tbs_per_gpu
        == on_devices(target, 80, TargetSettings(sms=7)).limits.sms
        == 7
    )
    for sms in (0, -1, 81):
        with pytest.raises(InputError, match=f"--sms {sms}: is not possible; it must be 1 to 80"):
            on_devices(target, 80, TargetSettings(sms=sms))


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall"])
def test_a_lowered_program_fits_its_sms(collective: str) -> None:
    problem = make_question(QuestionArguments(collective, "dgx1", costs="none")).problem
    programs = Programs(problem, TargetSettings(sms=8))
    for algorithm in list(baseline(problem))[:2]:
        for lowered in (programs.lower(algorithm).small, programs.lower(algorithm).large):
            assert max(threadblocks(lowered.program, "")) <= 8
    with pytest.raises(InputError, match="on 1 SMs"):
        lower(baseline(problem)[0], "x", limits=on_devices(TARGETS["msccl"], 0, TargetSettings(sms=1)).limits)


def test_the_index_states_threadblocks_of_a_rank(tmp_path: Path) -> None:
    synthesize("allgather", "dgx1", [0, 1, 2], engine="route", target="auto", sms=6).save(tmp_path)
    for entry in load_index(tmp_path):
        program = read_msccl(entry.path)
        assert entry.row["threadblocks"] == max(threadblocks(program, "")) <= 6


def test_the_index_states_topology_and_group(tmp_path: Path) -> None:
    """Check that the index states a file's topology, also with faults, which the library keeps."""
    answer = synthesize("allgather", "dgx1", [0, 2, 3], without=["link:0-1"], engine="route", target="auto")
    for path in answer.save(tmp_path):
        place = place_beside(path)
        assert (place is None) == (path.suffix != ".xml")
        if place is not None:
            assert (place[0].name, place[0].sms, place[1]) == ("dgx1 without link:0-1", 80, [0, 2, 3])


def test_unknown_sms_are_remarked_where_they_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = synthesize("alltoall", "full:4", engine="route", size=1 << 20).result
    for fewest, sms, expected in ((FEWEST_SMS, None, False), (1, 20, False), (1, None, True)):
        monkeypatch.setattr("emit.library.saving.save.FEWEST_SMS", fewest)
        saved = save(result, tmp_path, TargetSettings(sms=sms))
        assert saved.index is not None
        assert any("the SMs of its device are not known" in remark for remark in saved.remarks) == expected


def test_fewest_sms_is_the_minimum_of_all_machines() -> None:
    assert min(load(name).sms or 1 << 20 for name in machines()) == FEWEST_SMS
