"""The formats that are read from files: valid files, how they are damaged, and how the command reads them."""

from __future__ import annotations

import io
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from emit.formats import PROGRAM_FORMATS as TRACES
from emit.formats import write_trace
from emit.goal import Goal
from emit.library.index import load_index
from emit.msccl.format import write_msccl
from emit.mscclpp.format import write_plan
from emit.program import Gpu, Program, Step, ThreadBlock
from synth.bounds.prove import prove
from synth.model.collective import uneven
from synth.model.pattern import read_pattern
from synth.model.problem import make_problem
from synth.model.sizes import read_sizes, read_trace
from synth.parallelism.experts.histogram import read_histogram, read_tokens
from synth.storage.proof import save_proof
from synth.storage.schedule_file import write_schedule
from synth.timing.simulate import time_us, timed
from tests.emit.small_programs import RIGHT, direct_gather
from tests.fuzz.mutating import damaged_json, damaged_text, damaged_xml, damaged_zip
from tests.random_problems import answered
from topologies.errors import InputError
from topologies.load import load
from topologies.text.writer import to_toml


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        name: Name of the format.
        file: Name of its files.
        seeds: Returns valid files.
        damage: Makes a damaged file.
        read: Reads a file as the command does, and raises InputError where it refuses.
        beside: Returns files that must stand in the same folder.
    """

    name: str
    file: str
    seeds: Callable[[], Sequence[bytes]]
    damage: Callable[[Sequence[bytes], random.Random], bytes]
    read: Callable[[Path], None]
    beside: Callable[[], dict[str, bytes]] = field(default=dict)


def command(*arguments: object) -> None:
    """Run the command line in this process, and let its exceptions pass.

    Raises:
        InputError: The command refuses its input.
    """
    from synth.app.cli import cli

    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            cli.main(args=[*map(str, arguments)], standalone_mode=False)
    except SystemExit as end:
        if end.code == 2:
            raise InputError(err.getvalue().strip() or out.getvalue().strip()) from None
        if end.code not in (0, 1, None):
            raise AssertionError(f"exit code {end.code}") from None


# --- valid files

TOPOLOGY = """name = "x"
ranks = 4
switches = ["s", "t1"]
nodes = ["0-1", "2-3"]
summary = "four and a switch"

[[links]]
from = "0-3"
to = "s"
both = true
gbs = 25
alpha_us = 0.7
assumed = true

[[links]]
pairs = "0>1 1>0 2,3>t1"
gbs = 1.5e1
alpha_us = 2

[[limits]]
name = "root"
pairs = "0-1>s"
gbs = 30

[nic]
count = 2
serves = ["0-1", "2-3"]
gbs = 10
alpha_us = 2
fabric = "one"
"""
MATRIX = 'name = "m"\nranks = 3\n[[links]]\nmatrix = [[0, 1, 2], [1, 0, 1],\n [2, 1, 0]]\ngbs = 1\nalpha_us = 0\n'
PATTERN = """name = "halo"
ranks = 4
[[chunk]]            # a value
from = [0]
to = "1-3"
weight = 2
count = 4
[[chunk]]
reduce = true
from = "all"
to = [0]
of = [0, 1]
data = "x"
[[chunk]]
name = "n"
from = "2"
to = [3]
data = "y"
"""
SIZES = (
    b"0, 4096, 64K\n1M, 0, 2GiB # a comment\n1, 2, 0\n",
    b"0 1 2 3\n4 0 5 6\n7 8 0 9\n1 1 1 0\n",
    b"[[0, 1024, 2048], [4096, 0, 1.0], [8192, 1, 0]]",
    b'[["1K", 1], [2, "3M"]]',
)


def _topologies() -> list[bytes]:
    return [text.encode() for text in (TOPOLOGY, MATRIX, to_toml(load("dgx1")), to_toml(load("mesh:2x3")))]


@cache
def _msccl() -> tuple[bytes, ...]:
    texts = [write_msccl(program) for program in (*RIGHT.values(), direct_gather(5, 4))]
    texts += [write_msccl(RIGHT[name], target="msccl") for name in ("ring_allreduce", "alltoall", "ring_reducescatter")]
    texts.append(
        texts[list(RIGHT).index("alltoall")].replace('srcoff="1"', 'srcoff="0"', 1)
    )  # A wrong program that can be read.
    return tuple(text.encode() for text in texts)


@cache
def _plans() -> tuple[bytes, ...]:
    texts = []
    for name, nodes in (
        ("ring_allgather", None), ("allpairs_allreduce", None), ("alltoall", None), ("ring_allreduce", [0, 0, 1, 1]),
        ("chain_broadcast", None), ("ring_reducescatter", None), ("doubling_allgather", None),
    ):  # fmt: skip
        with suppress(InputError):  # Other tests check which programs become plans.
            texts.append(write_plan(RIGHT[name], nodes=nodes))
    if len(texts) < 4:
        raise AssertionError("too few programs could be written as plans")
    return tuple(text.encode() for text in texts)


@cache
def _stored() -> tuple[tuple[bytes, bytes], ...]:
    """Return schedule files and their proofs: of a name, with relays, of a pattern, and of an all-reduce."""
    stored_files = []
    with tempfile.TemporaryDirectory() as folder:
        pattern = Path(folder) / "halo.toml"
        pattern.write_text(PATTERN)
        for number, problem in enumerate(
            (
                make_problem(load("ring:4"), "allgather"),
                make_problem(load("line:4"), "alltoall", [0, 3], (1, 2)),
                make_problem(load("mesh:2x2"), read_pattern(pattern)),
                make_problem(load("star:3"), "allreduce"),
            )
        ):
            schedule = timed(problem, answered(problem, 1e6), 1 << 20)
            path = write_schedule(Path(folder) / f"{number}.synth", problem, schedule, "route")
            size, schedule_us = schedule.size_bytes, time_us(problem, schedule)
            proof = save_proof(path, problem, prove(problem).witnesses, size, schedule_us)
            stored_files.append((path.read_bytes(), proof.read_bytes()))
    return tuple(stored_files)


@cache
def _traces(form: str) -> tuple[dict[str, bytes], ...]:
    """Return a simulator's traces: the end of the name and the content of each file."""
    programs = [program for program in RIGHT.values() if program.nranks == 3]
    return tuple(dict(write_trace(program, TRACES[form], 48)) for program in programs)


def _indexed() -> dict[str, bytes]:
    """Return a file whose text does not state its goal."""
    gpus = [
        Gpu(1, 0, 0, [ThreadBlock(1, -1, 0, [Step("s", "i", 0, "o", 0, 1)])]),
        Gpu(0, 1, 0, [ThreadBlock(-1, 0, 0, [Step("r", "i", 0, "o", 0, 1)])]),
    ]
    program = Program("one", "custom", "LL", 2, 1, False, True, gpus)
    goal = Goal.from_arrays(2, ([0], ["i"], [0], [0], [0]), ([1], ["o"], [0], [0], [0]))
    return {"msccl-original/b.xml": write_msccl(program, goal, "msccl").encode()}


def _index() -> list[bytes]:
    goal = {
        "nranks": 2,
        "initial": [[0], ["i"], [0], [0], [0]],
        "required": [[1], ["o"], [0], [0], [0]],
    }
    rows = [
        {
            "collective": "allgather", "topology": "ring:4", "nranks": 4, "group": [0, 1, 2, 3], "relays": [],
            "root": None, "communicator": [0, 1, 2, 3], "file": "msccl/a.xml", "target": "executor-nccl",
            "protocol": "LL128", "inplace": True, "min_bytes": 0, "max_bytes": 4096, "schedule": None,
            "proof_file": None, "goal": None, "time_us": 1.5,
        },
        {
            "collective": "halo", "topology": "dgx1", "nranks": 2, "group": [3, 1], "relays": [], "root": None,
            "communicator": [3, 1], "file": "msccl-original/b.xml", "target": "msccl", "protocol": "LL",
            "inplace": False, "min_bytes": 1, "max_bytes": None, "schedule": "schedules/b.synth",
            "proof_file": "schedules/b.proof.json", "goal": goal, "time_us": 1.5,
        },
    ]  # fmt: skip
    documents = [
        {"format": "synth-index-2", "algorithms": rows},
        {"format": "synth-index-2", "algorithms": rows[1:]},
    ]
    return [json.dumps(document, indent=1).encode() for document in documents]


# --- how the command reads them


def _read_topology(path: Path) -> None:
    command("topo", "check", path)


def _other_commands(path: Path) -> None:
    """Run the other commands that read a program's file."""
    _each(
        ("simulate", path, "--topo", "full:4", "--sizes", "1K"),
        ("convert", path, path.with_name("made.json"), "--target", "mscclpp"),
        ("convert", path, path.with_name("made.xml"), "--target", "msccl"),
        ("optimize", path, "-o", path.with_name("better.xml")),
        ("report", path, "-o", path.with_name("page.html")),
    )


def _of_schedules(path: Path) -> None:
    """Run the other commands that read a schedule file."""
    _each(
        ("lower", path, "-o", path.with_name("made.xml")),
        ("report", path, "-o", path.with_name("page.html")),
    )


def _each(*commands: tuple[object, ...]) -> None:
    """Run commands, each of which must succeed or refuse its input in one line.

    Raises:
        InputError: All commands refuse, or a refusal is not one line.
    """
    refusals = []
    for words in commands:
        try:
            command(*words)
        except InputError as error:
            refusals.append(f"{words[0]}: {error}")
    for line in refusals:
        if len(line.splitlines()) != 1 or not line.isprintable():
            raise InputError(line)  # The caller reports this as a failure.
    if len(refusals) == len(commands):
        raise InputError(refusals[0])


def _read_index(path: Path) -> None:
    for entry in load_index(path):
        entry.goal()
    command("verify", path.parent / "msccl-original" / "b.xml")


def _read_pattern(path: Path) -> None:
    read_pattern(path)


def _read_sizes(path: Path) -> None:
    uneven("alltoallv", read_sizes(path).astype(float))


def _read_trace(path: Path) -> None:
    read_trace(path, 2)


MATRICES = [b"0,1\n2K,0\n0 4\n1 0\n", b"[[[0, 1], [2, 0]]]"]


def _numpy_traces() -> list[bytes]:
    seeds = []
    for table in (np.arange(8).reshape(2, 2, 2), np.ones((1, 2, 2)), np.ones((1, 2, 2), dtype=np.uint64)):
        stream = io.BytesIO()
        np.save(stream, table)
        seeds.append(stream.getvalue())
    return seeds


def _histograms() -> list[bytes]:
    return [b"# layers\n5, 0, 7.5\n1, 2, 3\n", b"[[5, 0, 7.5], [1, 2, 3]]", b"[[[1, 2], [3, 4]], [[0, 0], [0, 9]]]"]


def _numpy_histograms() -> list[bytes]:
    seeds = []
    for table in (np.array([[5.0, 0.0, 7.5]]), np.arange(8, dtype=np.int16).reshape(2, 2, 2, order="F")):
        stream = io.BytesIO()
        np.save(stream, table)
        seeds.append(stream.getvalue())
    return seeds


def _read_histogram(path: Path) -> None:
    read_histogram(path, 2)
    with suppress(InputError):
        read_tokens(path, 12, 2)


def _read_proof(path: Path) -> None:
    command("prove", path.parent / "input.synth", "--proof", path)


def _proved() -> dict[str, bytes]:
    return {"input.synth": _stored()[0][0]}


FORMATS = {
    one.name: one
    for one in (
        Format("MSCCL XML", "input.xml", _msccl, damaged_xml, lambda path: command("verify", path)),
        Format("MSCCL XML, other commands", "input.xml", _msccl, damaged_xml, _other_commands),
        Format("MSCCL++ plan", "input.json", _plans, damaged_json, lambda path: command("verify", path)),
        Format(
            "Chakra trace", "input.1.et", lambda: [one[".1.et"] for one in _traces("chakra")], damaged_text,
            lambda path: command("verify", path),
            lambda: {f"input{end}": content for end, content in _traces("chakra")[0].items() if end != ".1.et"},
        ),
        Format(
            "GOAL", "input.goal", lambda: [one[".goal"] for one in _traces("goal")], damaged_text,
            lambda path: command("verify", path),
        ),
        Format("topology TOML", "input.toml", _topologies, damaged_text, _read_topology),
        Format("pattern TOML", "input.toml", lambda: [PATTERN.encode()], damaged_text, _read_pattern),
        Format("size matrix", "input.csv", lambda: SIZES, damaged_text, _read_sizes),
        Format("trace", "input.csv", lambda: MATRICES, damaged_text, _read_trace),
        Format("trace, NumPy's", "input.npy", _numpy_traces, damaged_text, _read_trace),
        Format("routing histogram", "input.csv", _histograms, damaged_text, _read_histogram),
        Format("routing histogram, NumPy's", "input.npy", _numpy_histograms, damaged_text, _read_histogram),
        Format(
            "schedule", "input.synth", lambda: [s for s, _ in _stored()], damaged_zip,
            lambda path: command("prove", path),
        ),
        Format(
            "schedule, other commands", "input.synth", lambda: [s for s, _ in _stored()], damaged_zip, _of_schedules,
        ),
        Format("proof JSON", "input.proof.json", lambda: [p for _, p in _stored()], damaged_json, _read_proof, _proved),
        Format(
            "index JSON", "index.json", _index, damaged_json, _read_index,
            _indexed,
        ),
    )
}  # fmt: skip
