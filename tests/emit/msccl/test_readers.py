"""Tests of what each executor's reader accepts, ignores and refuses in a file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emit.check.limits import check_limits
from emit.findings import Findings
from emit.msccl.format import verify, write_msccl, xml_text
from emit.msccl.read import read, read_msccl
from emit.program import Gpu, Program, Step, ThreadBlock
from emit.targets import TARGETS
from tests.emit.small_programs import ring_allgather

RING = write_msccl(ring_allgather(3))


def waiting() -> Program:
    """Return a local broadcast by two threadblocks; the second copies the chunk that the first put into scratch."""
    first = [Step("cpy", "i", 0, "s", 0, 1, has_dep=True), Step("cpy", "s", 0, "s", 1, 1, has_dep=True)]
    second = [Step("cpy", "s", 0, "o", 0, 1, dep_tb=0, dep_step=0)]
    blocks = [ThreadBlock(-1, -1, 0, first), ThreadBlock(-1, -1, 0, second)]
    return Program("one", "broadcast", "LL", 1, 1, False, True, [Gpu(1, 1, 2, blocks)])


def chained(count: int) -> Program:
    """Return a program of `count` consecutive sums into one chunk."""
    steps = [Step("re", "s", x, "i", 0, 1) for x in range(count)]
    return Program("sums", "allreduce", "LL", 1, 1, True, False, [Gpu(1, 0, count, [ThreadBlock(-1, -1, 0, steps)])])


WAITING = xml_text(waiting(), TARGETS["executor-nccl"])

# Text that readers accept but ignore or read differently, and the remark on it.
REMARKED = {
    "<algo ": ('<algo maxcount="1" ', "algo attribute maxcount is ignored"),
    ' ngpus="3"': (' ngpus="3" ngpus="4"', "algo attribute ngpus is ignored"),
    ' maxBytes="0"': (' maxBytes="0" redop="nop"', "algo redop 'nop' is ignored"),
    'inplace="1"': ('inplace="01"', "algo inplace '01' is read as 1"),
    'ngpus="3"': ('ngpus="0x3"', "algo ngpus '0x3' is read as 3"),
    'minBytes="0"': ('minBytes=" 0 B"', "algo minBytes ' 0 B' is read as 0"),
    'nchannels="1"': ('nchannels="2"', "algo nchannels 2: 1 are used"),
    'step s="1"': ('step s="2"', "step s is not its position"),
    "  <gpu": ('<load path="x"><y/></z><gpu', "element <load> inside <algo> is ignored"),
    "</algo>\n": ("</algo>\n<algo/>", "element <algo> a second time is ignored"),
    "</algo>": ('<gpu id="7" i_chunks="0" o_chunks="0" s_chunks="0"/></algo>', "gpu id 7 is ignored"),
    "    </tb>": ('<step s="9" type="nop" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="3" depid="0" deps="0" '
                  'hasdep="0"/></tb>', "a nop at the end of a tb is ignored"),
}  # fmt: skip
UNREMARKED = {
    '"ring_allgather"': '"ring&amp;<x>\n\t\xe9"',
    ' proto="LL128"': '  proto="LL128" ',
    'hasdep="0"/>': 'hasdep="0" ></step>',
}


@pytest.mark.parametrize("old", REMARKED)
def test_ignored_text_is_remarked_on(old: str) -> None:
    new, message = REMARKED[old]
    assert old in RING
    reading = read(RING.replace(old, new, 1))
    assert any(message in remark for remark in reading.remarks)
    assert reading.program == read_msccl(RING)
    verdict = verify(RING.replace(old, new, 1))
    assert verdict.status == "right"
    assert any(line.startswith("remark: ") and message in line for line in verdict.lines)


@pytest.mark.parametrize("old", UNREMARKED)
def test_accepted_spellings(old: str) -> None:
    assert old in RING
    reading = read(RING.replace(old, UNREMARKED[old], 1))
    assert reading.remarks == ()
    assert replace(reading.program, name="ring_allgather") == read_msccl(RING)


def test_a_wait_ends_with_the_next_signalling_step() -> None:
    """Check that a wait for a step with hasdep 0 ends with the next step that has hasdep 1."""
    silent = WAITING.replace('hasdep="1"', 'hasdep="0"', 1)
    assert silent != WAITING
    reading = read(silent)
    assert any("ends with the next step" in remark for remark in reading.remarks)
    assert [step.dep_step for _, _, _, step in reading.program.steps() if step.dep_tb == 0] == [1]
    assert verify(silent).status == "right"
    never = verify(silent.replace('hasdep="1"', 'hasdep="0"'))
    assert never.findings[0].kind == "dangling dependency"


# Changes that some readers refuse or crash on, those readers, and the message.
REFUSED_BY = {
    ' outofplace="0"': ("", {"executor-nccl", "rccl"}, "algo without outofplace"),
    ' minBytes="0"': ("", {"executor-nccl", "rccl"}, "algo without minBytes"),
    ' name="ring_allgather"': ("", {"msccl"}, "algo without name"),
    'minBytes="0"': ('minBytes="1"', {"msccl"}, "minBytes 1 and maxBytes 0"),
    'maxBytes="0"': ('maxBytes="0" nthreads="33"', {"msccl"}, "multiple of 32"),
    'nchannels="1"': ('nchannels="33"', {"executor-nccl", "msccl"}, "nchannels 33"),
    'step s="1"': ('step s="64"', {"executor-nccl", "rccl"}, "step s 64"),
    "<algo ": ("<x/><algo ", {"executor-nccl", "rccl"}, "<x> comes first"),
    's_chunks="0"': ('s_chunks="9999" ', {"msccl"}, "more than any device has"),
}


@pytest.mark.parametrize("old", REFUSED_BY)
def test_one_reader_refuses_what_another_accepts(old: str) -> None:
    new, names, message = REFUSED_BY[old]
    text = RING.replace('maxBytes="0"', f'maxBytes="{1 << 40}"') if "s_chunks" in old else RING
    assert old in text
    changed = text.replace(old, new, 1)
    for target in ("executor-nccl", "msccl"):
        verdict = verify(changed, target=target)
        assert (verdict.status == "wrong") == (target in names)
        if target in names:
            assert message in verdict.reason
    assert verify(changed).status == ("wrong" if names >= {"executor-nccl", "msccl"} else "right")


def test_long_chains_of_reductions_are_refused() -> None:
    """Check that chains of re are limited to 16 in the kernel; readers split only the first one themselves."""
    limits, sixteen = Findings(), Findings()
    check_limits(chained(17), TARGETS["executor-nccl"].limits, limits)
    assert not limits.reported
    check_limits(chained(33), TARGETS["executor-nccl"].limits, sixteen)
    assert [f.step for f in sixteen.reported] == [32]


def test_cut_names_and_unserved_sizes_are_remarked_on() -> None:
    long = RING.replace("ring_allgather", "x" * 64)
    assert any("first 63 bytes of the name" in line for line in verify(long, target="msccl").lines)
    assert not any("of the name" in line for line in verify(long, target="executor-nccl").lines)
    assert any("serves no size" in line for line in verify(RING, target="msccl").lines)
    none = RING.replace('inplace="1"', 'inplace="0"', 1)
    assert any("serves no call" in line for line in verify(none, target="executor-nccl").lines)


def test_readers_have_room_for_4095_nodes() -> None:
    """Check the limit of 4095 nodes, which was tried with the readers themselves."""
    copies = [Step("cpy", "i", 0, "o", 0, 1)] * 64
    for extra, kinds in ((0, set()), (1, {"limit"})):
        blocks = [ThreadBlock(-1, -1, 0, copies) for _ in range(62)]
        blocks.append(ThreadBlock(-1, -1, 0, copies[: 4095 - 2 - 62 * 65 - 1 + extra]))
        program = Program("one", "broadcast", "LL", 1, 1, False, True, [Gpu(1, 1, 0, blocks)])
        findings = Findings()
        check_limits(program, TARGETS["executor-nccl"].limits, findings)
        assert {f.kind for f in findings.reported} == kinds
