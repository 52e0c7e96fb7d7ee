"""Tests of MSCCL XML files: they are read back as written, wrong ones are refused, wrong programs are not written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.formats import write_program
from emit.goal import Goal
from emit.msccl.format import verify, write_msccl, xml_text
from emit.msccl.read import read_msccl
from emit.program import FIFO_DEPTH, Gpu, Program, Step, ThreadBlock
from emit.targets import TARGETS
from tests.emit.check.against_runs import differences
from tests.emit.check.equivalent_programs import finer
from tests.emit.small_programs import (
    RIGHT,
    allpairs_allreduce,
    alltoall,
    chain_broadcast,
    chain_reduce,
    direct_gather,
    direct_scatter,
    doubling_allgather,
    ring_allgather,
    ring_allreduce,
    ring_reducescatter,
    with_step,
    with_steps,
)
from topologies.errors import InputError

RING = write_msccl(ring_allgather(3))
PAIRS = write_msccl(allpairs_allreduce(3))


def test_written_text() -> None:
    assert RING.splitlines()[:4] == [
        '<algo name="ring_allgather" proto="LL128" nchannels="1" nchunksperloop="3" ngpus="3" '
        'coll="allgather" inplace="1" outofplace="0" minBytes="0" maxBytes="0">',
        '  <gpu id="0" i_chunks="0" o_chunks="3" s_chunks="0">',
        '    <tb id="0" send="1" recv="2" chan="0">',
        '      <step s="0" type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" '
        'hasdep="0"/>',
    ]
    assert RING.endswith("</algo>\n")
    assert all(line.count("<") == 1 and "\t" not in line for line in RING.splitlines())


@pytest.mark.parametrize("name", RIGHT)
def test_round_trip(name: str, tmp_path: Path) -> None:
    nranks = RIGHT[name].nranks
    program = replace(RIGHT[name], min_bytes=64 * nranks, max_bytes=nranks << 33)
    text = write_msccl(program)
    assert text == write_msccl(program)
    assert replace(read_msccl(text), root=program.root) == program
    path = tmp_path / "a.xml"
    path.write_text(text)
    verdict = verify(path)
    assert (verdict.status, verdict.exit_code) == ("right", 0), verdict.lines
    if program.root:
        assert f"root {program.root}" in verdict.lines[0]


@pytest.mark.parametrize("target", ["executor-nccl", "rccl", "msccl"])
def test_served_sizes_are_kept_between_readers(target: str) -> None:
    """Check that each reader serves the same sizes, whether maxBytes is the last size or the first one beyond."""
    plain = [p for p in RIGHT.values() if not {step.op for *_, step in p.steps()} - {"s", "r", "cpy", "re", "nop"}]
    programs = [p for p in plain if p.collective not in ("gather", "scatter")]
    assert programs
    for program in programs:
        for low, high in ((1, 1), (1024, 65536)):
            ranged = replace(program, min_bytes=low, max_bytes=high)
            text = write_msccl(ranged, target=target)
            assert (read_msccl(text).min_bytes, read_msccl(text).max_bytes) == (low, high)
            for second_target in ("executor-nccl", "rccl", "msccl"):
                through = write_msccl(read_msccl(text), target=second_target)
                assert write_msccl(read_msccl(through), target=target) == text
                assert write_msccl(ranged, target=second_target) == through


def test_names_that_targets_know() -> None:
    text = write_msccl(replace(ring_reducescatter(3), max_bytes=1023), target="msccl")
    assert 'coll="reduce_scatter"' in text
    assert 'maxBytes="1024"' in text
    assert 'redop="sum"' in text
    assert read_msccl(text).collective == "reducescatter"
    relay = Program("one", "custom", "LL", 2, 1, False, True, [
        Gpu(1, 0, 0, [ThreadBlock(1, -1, 0, [Step("s", "i", 0, "o", 0, 1)])]),
        Gpu(0, 1, 0, [ThreadBlock(-1, 0, 0, [Step("r", "i", 0, "o", 0, 1)])]),
    ])  # fmt: skip
    goal = Goal.from_arrays(2, ([0], ["i"], [0], [0], [0]), ([1], ["o"], [0], [0], [0]))
    assert 'coll="custom"' in write_msccl(relay, goal, "msccl")
    with pytest.raises(InputError, match="use --target msccl"):
        write_msccl(relay, goal, "executor-nccl")
    with pytest.raises(InputError, match="given one to check"):
        write_msccl(relay, None, "msccl")
    with pytest.raises(InputError, match="use --target executor-nccl or rccl"):
        write_msccl(RIGHT["direct_gather"], target="msccl")
    with pytest.raises(InputError, match=r"limit: .* rccl runs only"):
        write_msccl(ring_allgather(3), target="rccl")
    assert write_msccl(alltoall(3), target="rccl")


def test_wrong_programs_are_not_written() -> None:
    for faulty_program in (
        with_step(ring_allgather(3), 0, 0, 0, src_off=1),
        doubling_allgather(8, "Simple"),
        replace(ring_allgather(3), name='a"b'),
        replace(ring_allgather(3), name=""),
        replace(alltoall(3), inplace=True),
        with_steps(alltoall(3), 0, 0, [Step("cpy", "i", 0, "o", 0, 1)] * 65),
    ):
        with pytest.raises(InputError):
            write_msccl(faulty_program)
    with pytest.raises(InputError, match="out of place only"):
        write_msccl(replace(alltoall(3), inplace=True, outofplace=False))
    with pytest.raises(InputError, match="out of place: o"):  # The file states o as its result, but no step writes it.
        write_msccl(replace(ring_reducescatter(3), outofplace=True))
    with pytest.raises(InputError, match="1 to 63"):
        write_msccl(replace(ring_allgather(3), name="x" * 64), target="msccl")
    with pytest.raises(InputError, match="target 'xx'"):
        write_msccl(ring_allgather(3), target="xx")


def test_file_of_the_first_dialect() -> None:
    text = re.sub(r' outofplace="0" minBytes="0" maxBytes="0"', "", RING)
    program = read_msccl("<!-- a comment\n <here> -->\n" + text + "\n<!-- and here -->\n")
    assert program == ring_allgather(3)
    for comment in ("<!-- a -- b --->", "<!---->", "<!--->-->", "<!-- <!-- \n-- -->", "<!-----><!-- -->"):
        assert read_msccl(comment + text.replace("<gpu", comment + "<gpu", 1)) == program
        with pytest.raises(InputError, match=f"line {2 + comment.count(chr(10))}: gpu i_chunks"):
            read_msccl(comment + text.replace('i_chunks="0"', 'i_chunks="-1"', 1))


def test_gpus_and_threadblocks_may_have_any_order() -> None:
    gpus = re.findall(r"  <gpu.*?</gpu>\n", RING, re.DOTALL)
    head, tail = RING.split("\n", 1)[0] + "\n", "</algo>\n"
    assert read_msccl(head + "".join(reversed(gpus)) + tail) == read_msccl(RING)


REFUSED = {
    'name="ring': ("xname='ring", "single quotes"),
    '<algo name="ring_allgather"': ('<?xml version="1.0"?><algo name="ring_allgather"', "XML declaration"),
    "<algo ": ('<!DOCTYPE x [<!ENTITY a "b">]><algo ', "declarations and entities"),
    "<algo name": ("<!--x=y--><algo name", "= in its first word"),
    "  <gpu": ("\t<gpu", "a tab"),
    ' ngpus="3"': (' ngpus = "3"', "a space beside ="),
    ' proto="LL128"': ('\nproto="LL128"', "a newline inside tag"),
    'proto="LL128"': ('proto="ll"', "algo proto 'll'; it must be one of Simple, LL, LL128"),
    'coll="allgather"': ('coll="allgatherv"', "algo coll"),
    'ngpus="3"': ('ngpus="5000"', "algo ngpus '5000'; it must be a whole number in 1..4096"),
    'nchannels="1"': ('nchannels="0"', "tb chan 0, which is never connected; it must be below nchannels 0"),
    'minBytes="0" maxBytes="0"': ('minBytes="9" maxBytes="8"', "minBytes 9 and maxBytes 8"),
    '<gpu id="1"': ('<gpu id="0"', "line 9: gpu id 0 twice"),
    '<gpu id="2"': ('<gpu id="3"', "none of id 2 (line 16: gpu id 3 is ignored: there are 3 ranks)"),
    '<tb id="0"': ('<tb id="1"', "no tb 0"),
    'send="1" recv="2"': ('send="0" recv="2"', "itself as peer"),
    'recv="2"': ('recv="3"', "line 3: tb recv '3'; it must be a whole number in -1..2"),
    'chan="0"': ('chan="1"', "tb chan 1"),
    ' chan="0"': (' chan="-1"', "tb chan '-1'"),
    'type="rcs"': ('type="rsc"', "step type 'rsc'"),
    'srcbuf="o"': ('srcbuf="x"', "step srcbuf 'x'"),
    'srcoff="0"': ('srcoff="-2"', "step srcoff '-2'"),
    'cnt="1"': ('cnt="72"', "step cnt '72'; it must be a whole number in 0..71"),
    'hasdep="0"': ('hasdep="2"', "step hasdep '2'; it must be a whole number in 0..1"),
    ' hasdep="0"': ("", "<step> without hasdep"),
    '<step s="0"': ('<step a="" b="" c="" d="" e="" f="" g="" s="0"', "behind more attributes than readers keep"),
    'hasdep="0"/>': ('hasdep="0">', "<step> inside <step>"),
    "</tb>": ("</gpu>", "</gpu> stands here; it must be </tb>"),
    "</algo>": ("", "ends inside <algo>; it must be closed by </algo>"),
    "</algo>\n": ("</algo>\n</algo>", "it must be at the end of what it opens"),
    "<gpu ": ("<gpus ", "none of id 0 (line 2: element <gpus> inside <algo> is ignored)"),
    "  <gpu ": ("  text <gpu ", "text 'text <gpu"),
}


@pytest.mark.parametrize("old", REFUSED)
def test_malformed_files_are_refused_with_the_line(old: str) -> None:
    new, message = REFUSED[old]
    assert old in RING
    with pytest.raises(InputError, match=re.escape(message)) as error:
        read_msccl(RING.replace(old, new, 1))
    assert re.match(r"text line \d+: ", str(error.value))
    assert "\n" not in str(error.value)
    assert verify(RING.replace(old, new, 1)).exit_code == 2


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    empty = tmp_path / "empty.xml"
    empty.touch()
    for path in (empty, tmp_path, tmp_path / "none", "a\0b", "x" * 9999):
        verdict = verify(path)
        assert (verdict.status, verdict.exit_code, len(verdict.lines)) == ("not readable", 2, 1)
    assert verify("").exit_code == 2
    long = RING.replace("ring_allgather", "x" * 256)
    assert "256 characters" in verify(long).lines[0]


def test_verdicts() -> None:
    assert verify(RING).status == "right"
    stuck = verify(RING, fifo_depth=1)
    assert (stuck.status, stuck.exit_code) == ("deadlock", 1)
    assert "rank 0 tb 0 step 1" in stuck.lines[1]
    wrong = verify(RING.replace('type="s" srcbuf="o" srcoff="0"', 'type="s" srcbuf="o" srcoff="1"'))
    assert (wrong.status, wrong.exit_code) == ("wrong", 1)
    caution = verify(write_msccl(doubling_allgather(8)).replace('"LL"', '"Simple"'))
    assert caution.status == "right"
    assert any("caution" in line for line in caution.lines)
    unknown = verify(RING.replace('coll="allgather"', 'coll="custom"'))
    assert unknown.status == "not judged"
    assert verify(write_msccl(chain_broadcast(4, 2))).lines[0].endswith("root 2")


@pytest.mark.parametrize("make", [chain_broadcast, chain_reduce])
def test_the_root_of_a_large_file_is_found(make: Callable[[int, int], Program], tmp_path: Path) -> None:
    """Check that the root is found without trying all ranks, which would take too long."""
    program = finer(make(48, 47), 400 // make(48, 47).nchunks_per_loop)
    path = tmp_path / "a.xml"
    path.write_text(xml_text(program, TARGETS["executor-nccl"]))
    assert verify(path).lines[0].endswith("root 47")


# Attributes that may change without a change of meaning: names, served sizes, offsets that an op does not use, flags
# that no step waits for, scratch that no step uses.
FREE = {"name", "minBytes", "maxBytes", "s_chunks", "hasdep", "proto"}
UNUSED = {
    "s": ("dstbuf", "dstoff"),
    "rrs": ("dstbuf", "dstoff"),
    "r": ("srcbuf", "srcoff"),
    "rcs": ("srcbuf", "srcoff"),
    "nop": ("srcbuf", "srcoff", "dstbuf", "dstoff"),
}
TAMPERED = [
    RING,
    PAIRS,
    write_msccl(ring_allreduce(3)),
    write_msccl(alltoall(3)),
    write_msccl(doubling_allgather(4)),
]


@settings(max_examples=100, derandomize=True)
@given(st.sampled_from(TAMPERED), st.data())
def test_a_changed_attribute_is_reported(text: str, data: st.DataObject) -> None:
    places = list(re.finditer(r' ([A-Za-z_]+)="([^"]*)"', text))
    place = data.draw(st.sampled_from(places))
    name, value = place.groups()
    tag = text[text.rindex("<", 0, place.start()) : text.index(">", place.start())]
    op = re.search(r'type="([a-z]+)"', tag)
    if name in FREE or (op is not None and name in UNUSED.get(op[1], ())):
        return
    if re.fullmatch(r"-?\d+", value):
        new = str(int(value) + data.draw(st.sampled_from([-2, -1, 1, 2, 1000])))
    elif name in ("srcbuf", "dstbuf"):
        new = data.draw(st.sampled_from([x for x in "ios" if x != value]))
    elif name == "type":
        new = data.draw(st.sampled_from([x for x in ("s", "r", "cpy", "re", "rcs", "rrc", "nop") if x != value]))
    else:
        new = value + "x"
    changed = text[: place.start(2)] + new + text[place.end(2) :]
    verdict = verify(changed)
    if verdict.status == "right":
        # Some changes are harmless: an additional chunk is summed before it is overwritten, or sums change their order.
        program = read_msccl(changed)
        assert differences(program, None, FIFO_DEPTH[program.protocol], split=False) == []


@settings(max_examples=15, derandomize=True)
@given(st.sampled_from(TAMPERED), st.data())
def test_damaged_files_raise_no_other_errors(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 40))
        put = data.draw(
            st.one_of(
                st.just(""),
                st.text(max_size=8),
                st.sampled_from(
                    [
                        '"',
                        "<",
                        ">",
                        "/>",
                        "<!--",
                        "-->",
                        "&a;",
                        "<!DOCTYPE",
                        "</tb>",
                        '="',
                        "\0",
                        "99999999999999999999",
                    ]
                ),
            )
        )
        text = text[:at] + put + text[at + cut :]
    verdict = verify("<" + text if "<" not in text else text)
    assert verdict.status in ("right", "wrong", "deadlock", "not judged", "not readable")
    assert not any("\n" in line for line in verdict.lines)


@settings(max_examples=50, derandomize=True)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.xml"
    path.write_bytes(data)
    assert verify(path).status == "not readable"


@pytest.mark.parametrize("target", ["executor-nccl", "rccl"])
def test_gather_and_scatter_state_the_size_of_a_block(target: str) -> None:
    """Check that files state the size of one rank's block, while programs state the size of the whole message."""
    for program in (direct_gather(4, 0), direct_scatter(4, 0)):
        ranged = replace(program, min_bytes=4097, max_bytes=65539)
        text = write_msccl(ranged, target=target)
        assert 'minBytes="1025" maxBytes="16384"' in text
        reread = read_msccl(text)
        assert (reread.min_bytes, reread.max_bytes) == (4100, 65536)
        assert write_msccl(reread, target=target) == text
        assert 'minBytes="0" maxBytes="0"' in write_msccl(program, target=target)
        for low, high in ((0, 3), (5, 7)):
            with pytest.raises(InputError, match=r"no .* of 4 equal blocks has its size"):
                write_msccl(replace(program, min_bytes=low, max_bytes=high), target=target)


@pytest.mark.parametrize("target", ["executor-nccl", "rccl", "msccl"])
def test_broadcast_and_reduce_between_nodes_are_not_simple(target: str) -> None:
    for program in (chain_broadcast(4, 0), chain_reduce(4, 0)):
        if any(step.op not in TARGETS[target].limits.ops for *_, step in program.steps()):
            continue
        simple = replace(program, protocol="Simple")
        write_program(simple, None, TARGETS[target], nodes=[0, 0, 0, 0])
        for protocol in TARGETS[target].own_protocols(["LL", "LL128"]):
            write_program(replace(program, protocol=protocol), None, TARGETS[target], nodes=[0, 0, 1, 1])
        with pytest.raises(InputError, match=r"with Simple over a network, to rank [12]: .*must be LL or LL128"):
            write_program(simple, None, TARGETS[target], nodes=[0, 0, 1, 1])
