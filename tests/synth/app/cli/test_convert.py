"""`synth convert`: any MSCCL XML to an execution plan or to another executor's XML; and `synth verify` of plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synth.model.problem import make_problem
from synth.storage.schedule_file import save_schedule
from tests.synth.app.cli.calling import Call
from tests.synth.engines.test_switch import answers
from topologies.load import load


def step(s: int, op: str, buffers: str, src: int, dst: int) -> str:
    return (
        f'<step s="{s}" type="{op}" srcbuf="{buffers[0]}" srcoff="{src}" dstbuf="{buffers[1]}" dstoff="{dst}" cnt="1" '
        'depid="-1" deps="-1" hasdep="0"/>\n'
    )


def ring() -> str:
    """Return a file as msccl-tools writes it: without outofplace, minBytes and maxBytes."""
    gpus = ""
    for r in range(3):
        after, before = (r + 1) % 3, (r - 1) % 3
        gpus += f'<gpu id="{r}" i_chunks="0" o_chunks="3" s_chunks="0">'
        gpus += f'<tb id="0" send="{after}" recv="{before}" chan="0">'
        gpus += step(0, "s", "oo", r, r) + step(1, "rcs", "oo", before, before) + step(2, "r", "oo", after, after)
        gpus += "</tb></gpu>\n"
    return (
        '<algo name="ring" proto="Simple" nchannels="1" nchunksperloop="3" ngpus="3" coll="allgather" inplace="1">\n'
        f"{gpus}</algo>\n"
    )


@pytest.fixture
def source(working_folder: Path) -> Path:
    path = working_folder / "a.xml"
    path.write_text(ring())
    return path


def test_to_a_plan_and_verified(synth: Call, source: Path, working_folder: Path) -> None:
    answer = synth("convert", source, "b.json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.flat.startswith("b.json: allgather on 3 ranks in place, execution plan of protocol Simple, checked:")
    plan = json.loads((working_folder / "b.json").read_text())
    assert (plan["collective"], plan["inplace"]) == ("allgather", True)
    verdict = synth("verify", "b.json")
    assert (verdict.code, verdict.err) == (0, "")
    assert verdict.out.splitlines()[0] == "b.json: right"
    first = (working_folder / "b.json").read_bytes()
    assert synth("convert", source, "b.json").code == 0
    assert (working_folder / "b.json").read_bytes() == first


def test_nodes_and_forms(synth: Call, source: Path, working_folder: Path) -> None:
    for options, port in (
        (("--nodes", "0,0,1"), True),
        (("--topo", "dgx-a100:2", "--group", "0,1,8"), True),
        (("--topo", "dgx-a100:2"), False),
    ):
        answer = synth("convert", source, "b.json", *options, "--outofplace", "--protocol", "LL")
        assert answer.code == 0, answer.err
        plan = json.loads((working_folder / "b.json").read_text())
        kinds = {c["channel_type"] for gpu in plan["gpus"] for c in gpu["channels"]}
        assert ("port" in kinds) == port
        assert (plan["inplace"], plan["protocol"]) == (False, "LL")
        assert synth("verify", "b.json").code == 0


def test_to_another_executor(synth: Call, source: Path, working_folder: Path) -> None:
    assert synth("convert", source, "b.xml").code == 0
    assert 'maxBytes="0"' in (working_folder / "b.xml").read_text()
    assert synth("verify", "b.xml").code == 0
    assert synth("convert", "b.xml", "c.xml", "--target", "msccl", "--protocol", "LL").code == 0
    assert 'redop="sum"' in (working_folder / "c.xml").read_text()
    assert 'proto="LL"' in (working_folder / "c.xml").read_text()


def test_to_traces_for_simulators_and_back(synth: Call, source: Path, working_folder: Path) -> None:
    answer = synth("convert", source, "b.et", "--size", "3K")
    assert (answer.code, answer.out) == (
        0,
        "b.0.et to b.2.et: allgather on 3 ranks, 3072 bytes, checked, for ASTRA-sim\n",
    )
    assert sorted(path.name for path in working_folder.iterdir()) == ["a.xml", "b.0.et", "b.1.et", "b.2.et"]
    assert synth("verify", "b.1.et").out.splitlines()[0] == "b.1.et: right"
    answer = synth("convert", source, "b", "--target", "goal")
    assert (answer.code, answer.out) == (0, "b.goal: allgather on 3 ranks, 1048575 bytes, checked, for LogGOPSim\n")
    for trace in ("b.2.et", "b.goal"):
        assert synth("simulate", trace, "--topo", "ring:3", "--sizes", "3K").code == 0
        assert synth("bench", trace, "--backend", "host", "-n", "1", "-b", "3K").code == 0
        assert synth("optimize", trace, "-o", "better.xml").code == 0
        assert synth("report", trace, "-o", "page.html").code == 0
        assert synth("convert", trace, "back.xml").code == 0
        assert synth("verify", "back.xml").out.startswith(
            "back.xml: right\n  right: allgather on 3 ranks, 9 instructions"
        )


def test_a_schedule_becomes_a_trace(synth: Call, working_folder: Path) -> None:
    assert synth("allgather", "--topo", "ring:3", "--size", "3K", "--proof", "--engine", "route").code == 0
    (stored,) = (working_folder / "out" / "schedules").glob("*.synth")
    assert synth("convert", stored, "s.et").code == 0
    assert synth("verify", "s.0.et").code == 0


def test_a_trace_is_written_whole_or_not_at_all(synth: Call, source: Path, working_folder: Path) -> None:
    (working_folder / "b.1.et").mkdir()
    assert "b.1.et: cannot be written" in synth("convert", source, "b.et").refusal
    assert sorted(path.name for path in working_folder.iterdir()) == ["a.xml", "b.1.et"]
    (working_folder / "c.3.et").write_bytes(b"")
    assert "c.3.et: belongs to a trace of more ranks" in synth("convert", source, "c.et").refusal
    assert synth("convert", source, "d.et").code == 0
    assert "is the file that it would be made from" in synth("convert", "d.0.et", "d.et").refusal


REFUSED = {
    "no such file": (("none.xml", "b.json"), "none.xml"),
    "onto itself": (("a.xml", "a.xml"), "give another name"),
    "a plan as source": (("p.json", "b.json"), "not readable"),
    "wrong": (("wrong.xml", "b.json"), "o[1]"),
    "fused for rccl": (("a.xml", "b.xml", "--target", "rccl"), "rccl runs only"),
    "nodes of two": (("a.xml", "b.json", "--nodes", "0,1"), "must be 3 numbers"),
    "nodes as words": (("a.xml", "b.json", "--nodes", "a,b,c"), "must be 3 numbers"),
    "nodes for an XML": (("a.xml", "b.xml", "--nodes", "0,0,1"), "give OUT.json"),
    "group alone": (("a.xml", "b.json", "--group", "0,1,2"), "--topo"),
    "two ways": (("a.xml", "b.json", "--nodes", "0,0,0", "--topo", "dgx1"), "one of them"),
    "topology too small": (("a.xml", "b.json", "--topo", "ring:2"), "2 ranks, but the program has 3"),
    "group too large": (("a.xml", "b.json", "--topo", "dgx1", "--group", "0-3"), "4 ranks, but the program has 3"),
    "no folder": (("a.xml", "none/b.json"), "cannot be written"),
    "gather": (("gather.xml", "b.json"), "cannot do gather"),
    "size of an XML": (("a.xml", "b.xml", "--size", "1M"), "give OUT.et or OUT.goal"),
    "part of a chunk": (("a.xml", "b.et", "--size", "1M"), "3 chunks; it must be a multiple, as 1048575"),
    "no size": (("a.xml", "b.goal", "--size", "many"), "--size"),
    "a trace's place": (("a.xml", "b.et", "--topo", "ring:3"), "--topo: applies to files for executors"),
    "a trace's protocol": (("a.xml", "b.goal", "--protocol", "LL"), "--protocol: applies to files for executors"),
    "a trace of what is wrong": (("wrong.xml", "b.et"), "o[1]"),
    "a trace without a name": (("a.xml", ".et"), "it must be as in a.et"),
    "a trace without a folder": (("a.xml", "none/b.et"), "cannot be written"),
}

GATHER = (
    '<algo name="g" proto="LL" nchannels="1" nchunksperloop="1" ngpus="2" coll="gather" inplace="0" outofplace="1" '
    'minBytes="0" maxBytes="0">'
    '<gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0"><tb id="0" send="-1" recv="1" chan="0">'
    + step(0, "r", "io", 0, 1)
    + '</tb><tb id="1" send="-1" recv="-1" chan="0">'
    + step(0, "cpy", "io", 0, 0)
    + '</tb></gpu><gpu id="1" i_chunks="1" o_chunks="0" s_chunks="0"><tb id="0" send="0" recv="-1" chan="0">'
    + step(0, "s", "io", 0, 1)
    + "</tb></gpu></algo>"
)


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_leave_nothing(synth: Call, source: Path, working_folder: Path, case: str) -> None:
    arguments, message = REFUSED[case]
    (working_folder / "wrong.xml").write_text(ring().replace('srcoff="0"', 'srcoff="1"', 1))
    (working_folder / "gather.xml").write_text(GATHER)
    (working_folder / "p.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in working_folder.iterdir()}
    assert source.name in before
    assert message in synth("convert", *arguments).refusal
    assert {path.name: path.read_bytes() for path in working_folder.iterdir()} == before


def test_verdicts_on_plans(synth: Call, source: Path, working_folder: Path) -> None:
    assert synth("convert", source, "b.json").code == 0
    plan = json.loads((working_folder / "b.json").read_text())
    ops = plan["gpus"][0]["threadblocks"][0]["ops"]
    ops[:] = [op for op in ops if op["name"] != "wait"]
    (working_folder / "wrong.json").write_text(json.dumps(plan))
    answer = synth("verify", "wrong.json")
    assert (answer.code, answer.err) == (1, "")
    assert answer.out.splitlines()[0] == "wrong.json: wrong"
    assert "a missing wait" in answer.out
    report = json.loads(synth("verify", "wrong.json", "--json").out)
    assert report["status"] == "wrong"
    assert {"unpaired", "race"} <= {f["kind"] for f in report["findings"]}
    assert all(f["rank"] is not None for f in report["findings"])
    assert "no FIFO" in synth("verify", "b.json", "--depth", "2").refusal
    (working_folder / "no.json").write_text('{"gpus": 3}')
    assert "must be a list" in synth("verify", "no.json").refusal
    right = json.loads((working_folder / "b.json").read_text())
    (working_folder / "hello.json").write_text(json.dumps(right | {"collective": "hello", "max_message_size": 1 << 20}))
    assert "does not say what the result must be" in synth("verify", "hello.json").refusal


def test_names_differ_where_files_do(synth: Call, source: Path, working_folder: Path) -> None:
    """Check that names differ where contents differ, and that the same content has the same name.

    MSCCL++ keeps loaded plans by name: 63 characters, whose end depends on the content.
    """
    source.write_text(ring().replace('name="ring"', f'name="{"long-" * 30}"'))
    names = {}
    for form in ("--inplace", "--outofplace"):
        for protocol in ("LL", "Simple"):
            for _ in range(2):
                assert synth("convert", source, "b.json", form, "--protocol", protocol).code == 0
                name = json.loads((working_folder / "b.json").read_text())["name"]
                assert names.setdefault((form, protocol), name) == name
                assert len(name) <= 63
    assert len(set(names.values())) == 4
    assert synth("convert", source, "b.xml", "--target", "executor-nccl").code == 0
    first = (working_folder / "b.xml").read_text()
    assert synth("convert", "b.xml", "c.xml", "--target", "executor-nccl").code == 0
    assert (working_folder / "c.xml").read_text() == first  # A name that already has its end keeps it.


def test_plans_for_groups_that_overlap(synth: Call, source: Path, working_folder: Path) -> None:
    source.write_text(ring().replace('proto="Simple"', 'proto="LL"'))
    assert synth("convert", source, "b.json", "--groups-overlap").code == 0
    assert json.loads((working_folder / "b.json").read_text())["protocol"] == "Simple"
    for protocol in ("LL", "LL128"):
        refusal = synth("convert", source, "b.json", "--groups-overlap", "--protocol", protocol).refusal
        assert f"--protocol {protocol}: " in refusal
        assert "must be Simple" in refusal
    assert "--target mscclpp" in synth("convert", source, "b.xml", "--groups-overlap").refusal


def test_a_schedule_through_a_switch_becomes_a_plan(synth: Call, working_folder: Path) -> None:
    save_schedule(
        working_folder / "a.synth", answers(make_problem(load("dgx-h100"), "allreduce", range(4)), 8)[0], 1 << 20
    )
    answer = synth("convert", "a.synth", "a.json")
    assert (answer.code, answer.err) == (0, "")
    assert "allreduce on 4 ranks in place, execution plan of protocol Simple, checked" in answer.flat
    assert synth("verify", "a.json").out.startswith("a.json: right")
    (working_folder / "mine.py").write_text("print('mine')\n")
    assert "keep the plan (JSON)" in synth("convert", "a.synth", "mine.py").refusal
    assert (working_folder / "mine.py").read_text() == "print('mine')\n"
    assert "whose name must end in .json" in synth("convert", "a.synth", "a.xml", "--target", "mscclpp").refusal
    for arguments, says in (
        (("convert", "a.synth", "b.json", "--nodes", "0,0,1,1"), "leave out all options but --inplace"),
        (("convert", "a.synth", "b.et"), "no program can express them"),
        (("simulate", "a.json", "--topo", "dgx-a100", "--group", "0-3"), "no switch of the topology reduces over"),
        (("report", "a.synth", "-o", "b.html"), "cannot be drawn"),
    ):
        refused = synth(*arguments)
        assert (refused.code, refused.out) == (2, "")
        assert says in refused.err
        assert refused.err.count("\n") == 1


def test_to_a_program_in_the_language_of_mscclpp(synth: Call, source: Path, working_folder: Path) -> None:
    """Check programs of a plan and of an XML file, and that only a program that synth wrote is replaced."""
    assert synth("convert", source, "b.json").code == 0
    answer = synth("convert", "b.json", "b.py")
    assert (answer.code, answer.err) == (0, "")
    assert "a program in MSCCL++'s language; python b.py prints the plan" in answer.flat
    text = (working_folder / "b.py").read_text()
    assert synth("convert", source, "b.py").code == 0
    assert "MemoryChannel" in text
    assert "PortChannel(peer, rank)" in (working_folder / "b.py").read_text()
    (working_folder / "mine.py").write_text("print('mine')\n")
    assert "'mine.py': exists, and may have been changed by hand" in synth("convert", "b.json", "mine.py").refusal
    assert (working_folder / "mine.py").read_text() == "print('mine')\n"
    assert "c.py" in synth("convert", "b.json", "c.py", "--target", "rccl").refusal
    (working_folder / "bad.json").write_text((working_folder / "b.json").read_text().replace('"signal"', '"wait"'))
    assert "bad.json: " in synth("convert", "bad.json", "bad.py").refusal
    assert not (working_folder / "bad.py").exists()
