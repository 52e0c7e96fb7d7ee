"""Wrong command lines, by kind of argument, for every option and argument of every command."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from synth.app.cli import cli
from tests.synth.app.cli.calling import Answer

LONG, CONTROL = "a" * 300, "x\x1b[31m\nq"
# Wrong values, by kind.
WHOLE = ["x", "0", "-3", "1.5", "9" * 30, "", "1e3", "nan", "١", CONTROL]
SIZE = ["", "many", "-5", "1e300", "9" * 25, "nan", "1KK", "0x10", "１K", "1M\n2", "1.5", "K", "64Kx", LONG, CONTROL]
RANKS = [
    "",
    "0,9",
    "0,0",
    "a,b",
    "3-0",
    "-1",
    "0,,1",
    "0-",
    "0-999999999999",
    "0;1",
    "0.5",
    "0-3-5",
    "²",
    LONG,
    CONTROL,
]
TOPO = [
    "", "nosuch", "dgx1:", "dgx1:x", "dgx1:-1", "dgx1:2:2", "ring:0", "ring:1", "ring:-4", "torus:4xx4",
    "ring:8,bw=nan",
    "ring:8,bw=0", "ring:8,bw=-1", "ring:8,bw=1,bw=2", "ring:8,alpha=-1", "ring:8,", "ring:" + "9" * 20,
    "dgx-a100:99999999", "folder", "folder/", "binary", "empty", "missing.toml", "/dev/null", "pipe", "loop", "a.xml",
    "cut.toml", "apart.toml:2", "rates.toml", "s.synth", "~", "../..", LONG, LONG + ".toml", CONTROL,
]  # fmt: skip
FILE = ["", "missing", "folder", "binary", "empty", "pipe", "loop", "/dev/null", "utf16", "missing/../x", LONG, CONTROL]
OUT = ["", "folder", "/dev/full", "/proc/x/y", LONG, "a.xml/x", "loop"]
NAME = ["", "magic", LONG, CONTROL, "AUTO ", " auto", "0"]
FIGURE = ["x", "", "nan", "inf", "1,5", CONTROL]

KINDS: dict[str, list[str]] = {
    "--topo": TOPO, "--emulate": TOPO, "--compare": TOPO, "--node": TOPO,
    "--group": RANKS, "--relay": [*RANKS, "some", "none,1", "0"],
    "--groups": [
        "", "0-3;", "0;1-3", "0-9", "tp=3", "tp=0", "tp=2,", "tp", "tp=2:dp", "tp=2;dp=2:dp", "x:0-3", "@:0-3",
        "allgather@:0-3", "allgather@0:0-1;2-3", "alltoallv:0-3", "pattern:0-3", "0-3:4-7", "tp=*,dp=*", "tp=99999999",
        "0-1;0-1;" * 3, "tp=2,tp=2", "=4", LONG, CONTROL,
    ],
    "--group-sizes": ["", "1M", "x"], "--objective": ["", "fair", "x"],
    "--without": [
        "", "link:", "link:0-9", "link:0", "rank:99", "rank:x", "switch:no", "foo:1", "link:0-0", "limit:x=50%",
        "link:0-1=50%", "link:0>>1", "rank:-1", "link:0-1-2", "link:0-2", LONG, CONTROL,
    ],
    "--degrade": [
        "", "link:0-1", "link:0-1=", "link:0-1=0%", "link:0-1=-5%", "link:0-1=nan%", "link:0-1=200%", "link:0-1=50",
        "link:0-1=infGB/s", "rank:99=50%", "switch:x=50%", "limit:x=50%", "link:0-1=50%=50%", "=50%", "rank:0=0GB/s",
        "link:0-1=16gbps", "link:0-1=16Gbs", LONG,
    ],
    "--size": [*SIZE, "0"], "--min-bytes": SIZE, "--max-bytes": SIZE, "--scratch-limit": [*SIZE, "0"],
    "-b": [*SIZE, "0"], "-e": SIZE, "-i": SIZE,
    "--chunks": WHOLE, "--steps": WHOLE, "--rounds": WHOLE, "--sms": WHOLE, "--depth": WHOLE, "-n": WHOLE,
    "--turns": WHOLE, "--ranks": [*WHOLE, "1", "99999"], "-w": [w for w in WHOLE if w != "0"],
    "--seed": [*(w for w in WHOLE if w != "0"), "99999999999"], "--root": [*(w for w in WHOLE if w != "0"), "9"],
    "-f": [*FIGURE, "0", "1", "-1", "0.5"], "--slower": [*FIGURE, "0", "-1", "2"],
    "--engine": [*NAME, "milpp", "route,flow"], "--target": [*NAME, "msccl "], "--backend": NAME, "--protocol": NAME,
    "--collective": NAME, "--topology": NAME, "--for": [*NAME, "xml"], "--type": [*NAME, "float8"],
    "--files": WHOLE, "--holdout": [*FIGURE, "-0.1", "0.2"], "--headroom": [*FIGURE, "0", "1.5"],
    "--measured": [*FILE, "m.csv"], "--without-pass": [*NAME, "Fuse"], "--ops": [*NAME, "allreduce,,x"],
    "--types": [*NAME, "float33"], "-d": [*NAME, "float8"], "--format": NAME,
    "--budget": ["", "0", "-1", "abc", "nan", "inf", "1e309", "5 parsecs", "1m1", "9" * 30, "0s", "1e-400s", CONTROL],
    "--out": OUT, "-o": OUT, "--trace": OUT,
    "--library": [*FILE, "cut.json"], "--proof": [*FILE, "a.xml", "lib/index.json"],
    "--sizes": [
        *SIZE, "0", "1M:", "1M:1K", "1K:1M:0x", "1K:1M:1x", "1K:1M:x", "1K:1M:nanx", "1K:1M:4x:5", ":", ",", "1K,,2K",
        "1:99999999999999:1.0000001x", "1K:1T:1.00001x",
    ],
    "--set": ["", "ranks", "ranks=", "=4", "ranks=x", "ranks=-1", "ranks=0", "ranks=1e9", "rank=4", "ranks=nan", LONG],
    "--devices": ["", "x", "-1", "0,0", "0"],
    "--nodes": ["", "0", "0,0", "0,1,x,2", "0,0,0,0,0", "-1,0,0,0", "0,0,0,9999999999999", LONG],
    "--name": ["", LONG, CONTROL],
    "--levels": ["", ",", "a", "a:", "a:0", "a:-1", "a:x", "a:3", "a:2,a:2", "a:2,b:2,", "2,2", LONG, CONTROL],
    "--axes": ["", ",", "dp", "dp=", "dp=0", "dp=-4", "dp=x", "dp=3", "dp=4,dp=1", "dp=2", "x=4", LONG, CONTROL],
    "--workload": [*FILE, "dens", "cut.toml", "t.toml", "pat.toml"],
    "--top": [w for w in WHOLE if w != "0"],
    "--slots": [*WHOLE, "5"], "--tokens": WHOLE, "--copies": WHOLE, "--expert-groups": [*WHOLE, "3"],
    "--bytes": [*SIZE, "0"], "--combine-bytes": [*SIZE, "0"], "--imbalance": [*FIGURE, "0", "0.9", "-1", "1e9"],
    "--over": ["", ",", "ep", "dp,dp", "dp,", "dp;tp", "DP", LONG, CONTROL],
    "--matrix": ["", "dp", "dp=2", "dp=2x1", "dp=2x1,tp=2x2", "dp=2x1,dp=1x2", "dp=0x2,tp=2x1", "dp=2,tp=1,pp=2", LONG],
    "--on": [*NAME, "tcp://", "tcp:1", "http://host:1"], "--jobs": WHOLE, "--cache": ["", "a.xml", LONG],
    "--plot": [*(candidate for candidate in OUT if candidate != "loop"), "a.txt", "nosuch/a.svg"],
    "--faults": [*NAME, "nodes", "links,"],
    "--libraries": NAME,
    "--hierarchy": NAME, "--length": [*WHOLE, "6"], "--costs": [*FILE, "machine", "cut.toml", "t.toml", "nosuch"],
}  # fmt: skip
ARGUMENTS: dict[str, list[str]] = {
    "file": [*FILE, "cut.xml", "cut.json", "cut.synth", "t.toml", "m.csv"], "topology": TOPO, "name": TOPO,
    "files": FILE, "folder": [*FILE, "missing/"], "path": [*FILE, "cut.xml", "cut.json", "cut.synth", "m.csv"],
    "collective": [*NAME, "allreduc"], "size": [*SIZE, "0"], "library_a": FILE, "library_b": FILE,
    "collective_name": [*NAME, "allreduc", "allgather,allreduce", "alltoallv"],
    "collectives": [*NAME, "allreduc", "allgather,", "alltoallv"],
    "group": [candidate for candidate in RANKS if candidate != "0,9"],
    "source": [*FILE, "cut.xml", "cut.json", "s.synth", "m.csv"], "out": [*OUT, "missing/x", "a.xml"],
}  # fmt: skip
PLACES = {
    "out": 1,
    "library_b": 1,
    "collective": 1,
    "group": 2,
    "size": 3,
}  # Positions of arguments that are not the first.
# Values for options that have another meaning than their kind.
OWN: dict[tuple[str, str], list[str]] = {
    ("torch-setup", "-o"): ["a.xml", "/dev/full"],
    ("alltoallv", "--sizes"): [*FILE, "ragged.csv", "words.csv", "minus.csv", "cut.json"],
    ("alltoallv", "--trace"): [*FILE, "m.csv"],  # It has --sizes already.
    ("allgatherv", "--sizes"): [
        *FILE,
        "words.csv",
        "minus.csv",
        "cut.json",
        "m.csv",
        "1M",
        "1M,",
        "1M,x",
        "0,0",
        "1,2,3",
        "1M;2M",
        "-1,2",
    ],
    ("allgather", "--out"): [*(candidate for candidate in OUT if candidate != "folder"), "a.xml"],
    ("reduce-program", "--out"): [*(candidate for candidate in OUT if candidate != "folder"), "a.xml"],
    ("compile", "--library"): [*(candidate for candidate in OUT if candidate != "folder"), "a.xml"],
    ("sweep", "--topo"): [
        "",
        "ring:4",
        "{n}",
        "ring:{m}",
        "ring:{n},{m}",
        "missing.toml",
        "folder",
        "binary",
        LONG,
        CONTROL,
    ],
    ("sweep", "--vary"): ["", "n", "n=", "n=3,3", "=3", "m=3", "n=x", "n=0", "ranks=3", "1n=3", LONG, CONTROL],
    ("sweep", "--size"): [size for size in SIZE if size not in ("1.5", "64Kx")],
    ("sweep", "--cost"): ["", "x", "n*", "0-n", "1/0", "n n", "n**9", "__import__('os')", LONG, CONTROL],
    ("reconfigure", "--states"): [
        *(spec for spec in TOPO if spec not in ("cut.toml",)),
        "ring:4 + ",
        "ring:4 + ring:5",
        "ring:4+ring:4",
        "star:4",
        "axes:",
        "axes:1",
        "axes:2xx2",
        "strides:0",
        "strides:9999999",
        "states:4",
        "pat.toml",
    ],
    ("reconfigure", "--size"): SIZE,
    ("reconfigure", "--delta"): ["", "x", "-1", "1,", "nan", "inf", "1e10", ",".join(map(str, range(51))), CONTROL],
    ("sweep", "--plot"): ["x", "x.nothing", "missing/x.svg", ".", LONG],
    ("bench", "-o"): [*NAME, "mean"],
    ("bench", "--emulate"): ["", "ring:4", "nosuch"],
    ("library build", "--out"): [*(candidate for candidate in OUT if candidate != "folder"), "a.xml"],
    ("library update", "--out"): [*(candidate for candidate in OUT if candidate != "folder"), "a.xml"],
    ("library install", "--into"): [*(candidate for candidate in OUT if candidate != "folder"), "a.xml"],
    ("topo planner", "-o"): [*(candidate for candidate in OUT if candidate != "folder"), "a.xml"],
    ("library export", "-o"): [*(candidate for candidate in OUT if candidate != "folder"), "a.xml"],
    ("place", "--library"): [*(candidate for candidate in OUT if candidate != "folder"), "a.xml"],
    ("place", "-o"): [*(candidate for candidate in OUT if candidate != "folder"), "a.xml"],
    ("place-experts", "-o"): [*(candidate for candidate in OUT if candidate != "loop"), "a.xml", "counts.csv"],
    ("topo import", "--node"): ["", LONG, CONTROL, "nosuch"],
}

_SEARCH = ("--topo", "ring:4", "--engine", "route", "--size", "64K", "--budget", "50ms")
_BENCH = ("bench", "a.xml", "--backend", "host", "-n", "1", "-w", "0", "-b", "1M", "-e", "4M")
# A right call of each command; a wrong value is added to it, or replaces a right one.
RIGHT: dict[str, tuple[str, ...]] = {
    "allgather": ("allgather", *_SEARCH), "broadcast": ("broadcast", *_SEARCH),
    "pattern": ("pattern", "pat.toml", *_SEARCH),
    "alltoallv": ("alltoallv", "--sizes", "m.csv", "--topo", "ring:2", "--engine", "flow", "--budget", "50ms"),
    "allgatherv": ("allgatherv", "--sizes", "1M,2M", "--topo", "ring:2", "--engine", "flow", "--budget", "50ms"),
    "reduce-program": (
        "reduce-program", "--topo", "ring:4", "--axes", "dp=2,tp=2", "--over", "dp", "--budget", "50ms", "--size", "1M",
    ),
    "topo list": ("topo", "list"), "topo show": ("topo", "show", "ring:4"), "topo check": ("topo", "check", "ring:4"),
    "topo import": ("topo", "import", "missing"), "topo here": ("topo", "here"),
    "topo planner": ("topo", "planner", "full:4", "-o", "new"),
    "library env": ("library", "env", "lib"), "library show": ("library", "show", "lib"),
    "library pick": ("library", "pick", "lib", "allgather", "0-3", "1M"), "library check": ("library", "check", "lib"),
    "library diff": ("library", "diff", "lib", "lib"),
    "library build": ("library", "build", "cluster.toml", "--dry-run", "--out", "new"),
    "library export": ("library", "export", "lib", "--for", "table", "-o", "new"),
    "library install": ("library", "install", "lib", "--into", "new"),
    "cache info": ("cache", "info"), "cache clear": ("cache", "clear"),
    "library update": ("library", "update", "cluster.toml", "--without", "rank:0", "--out", "lib"),
    "prove": ("prove", "s.synth"),
    "simulate": ("simulate", "a.xml", "--topo", "ring:4"), "compile": ("compile", "turn.py"),
    "lower": ("lower", "s.synth"),
    "optimize": ("optimize", "a.xml"), "bench": _BENCH, "tune": ("tune", "--ranks", "2"),
    "calibrate": ("calibrate", "--ranks", "2"), "torch-setup": ("torch-setup", "--ranks", "2"),
    "report": ("report", "lib"), "convert": ("convert", "a.xml", "o.json"),
    "verify": ("verify", "a.xml"),
    "judge": ("judge", "run.txt", "--topo", "ring:4"),
    "sweep": ("sweep", "allgather", "--topo", "ring:{n}", "--vary", "n=3,4", "--size", "64K", "--budget", "50ms"),
    "reconfigure": ("reconfigure", "allgather", "--states", "ring:4 + axes:2x2", "--budget", "50ms"),
    "place": ("place", "--topo", "ring:4", "--axes", "dp=2,tp=2", "--workload", "fsdp", "--top", "0"),
    "place-experts": ("place-experts", "counts.csv", "--topo", "dgx-h100"),
}  # fmt: skip
NEEDS_TOPO = {("verify", "--group"), ("report", "--group"), ("report", "--size"), ("convert", "--group")}
NEEDS_TOPO |= {("optimize", "--group"), ("compile", "--group")}
# Commands that depend on this machine, and may report its deficiencies before a wrong argument.
UNCERTAIN = {"tune", "calibrate", "torch-setup", "topo here", "topo import"}

_TRACE = ("alltoallv", "--topo", "ring:2", "--engine", "route", "--budget", "50ms", "--trace")
MORE: list[tuple[str, ...]] = [
    *((*_TRACE, file) for file in (*FILE, "ragged.csv", "words.csv", "minus.csv", "cut.json", "three.csv")),
    *((*_TRACE, "m.csv", "--holdout", value) for value in ("-0.1", "0.95", "0.8", "nan", "x")),
    *((*_TRACE, "m.csv", "--headroom", value) for value in ("0.9", "nan", "inf", "1e9")),
    *((*_TRACE, "m.csv", "--files", value) for value in ("0", "-1", "65", "1.5")),
    *((*_TRACE, "m.csv", *words) for words in (("--size", "1K"), ("--groups", "0-1"), ("--compare", "flow,route"))),
    (*_TRACE, "m.csv", "--steps", "2"), (*_TRACE, "m.csv", "--out", "a.xml"),
    ("cache", "info", "--cache", "none"), ("cache", "clear", "--cache", "none"), ("cache",  "empty"),
    ("library", "update", "cluster.toml", "--without", "rank:0", "--out", "nosuch"),
    ("allreduce", "--topo", "ring:4", "-size", "1M"), ("allreduce", "--topo", "ring:4", "-group=0,1"),
    ("allreduc",), ("Allreduce ",), (LONG,), (CONTROL,), ("",), ("topo", "lst"), ("topo", "show"), ("topo", ""),
    ("--nonsense",), ("allreduce",), ("allreduce", "--topo"), ("allreduce", "--topo", "ring:4", "extra"),
    ("allreduce", "--top", "ring:4"), ("allreduce", "--topo", "ring:4", "--chunk", "1"), ("verify",), ("prove",),
    ("allreduce", "--topo", "ring:4", "--topo", "ring:5"), ("allreduce", "--topo", "ring:4", "--json", "--json"),
    ("verify", "a.xml", "--depth", "2", "--depth", "3"), ("verify", "a.xml", "b.xml"), ("simulate", "a.xml"),
    ("convert", "a.xml", "o.json", "--inplace", "--outofplace"), ("convert", "a.xml"),
    ("allreduce", "--topo", "ring:4", "--group", "0-1", "--groups", "0-1;2-3", "--size", "1K"),
    ("allreduce", "--topo", "ring:4", "--groups", "0-1;2-3"), ("allreduce", "--topo", "ring:4", "--objective", "fair"),
    ("allreduce", "--topo", "ring:4", "--group-sizes", "1K"), ("allreduce", "--topo", "apart.toml"),
    ("allreduce", "--topo", "ring:4", "--without", "rank:0", "--group", "0,1"),
    ("allreduce", "--topo", "ring:4", "--without", "link:0-1", "--without", "link:2-3"),
    ("allreduce", "--topo", "ring:4", "--without", "link:0-1", "--degrade", "link:0-1=50%"),
    ("allreduce", "--topo", "ring:4", "--group", "0,1", "--relay", "1"),
    ("allreduce", "--topo", "ring:64", "--steps", "3"), ("allreduce", "--topo", "ring:64", "--engine", "smt"),
    ("allreduce", "--topo", "ring:4", "--engine", "milp"),
    ("allreduce", "--topo", "ring:4", "--engine", "baseline", "--steps", "3"),
    ("broadcast", "--topo", "ring:4", "--group", "0,1", "--root", "2"),
    ("allreduce", "--topo", "ring:4", "--root", "0"),
    ("sendrecv", "--topo", "ring:4", "--target", "rccl"), ("alltoallv", "--topo", "ring:2"),
    ("alltoallv", "--topo", "ring:2", "--sizes", "m.csv", "--size", "1K", "--chunks", "0"),
    ("alltoallv", "--topo", "ring:4", "--sizes", "m.csv"), ("alltoallv", "--topo", "ring:2", "--sizes", "three.csv"),
    ("reducescatterv", "--topo", "ring:2"), ("gatherv", "--topo", "ring:2", "--sizes", "1M,0", "--root", "0"),
    ("scatterv", "--topo", "ring:2", "--sizes", "1M,1M", "--root", "2"),
    ("gather", "--topo", "ring:2", "--sizes", "1,2"),
    ("pattern", "pat.toml", "--topo", "ring:5"),
    ("pattern", "rows.toml", "--topo", "ring:4"), ("pattern", "same.toml", "--topo", "ring:4"),
    ("compile", "turn.py", "-o", "x.xml", "--library", "new"), ("compile", "turn.py", "--group", "0-3"),
    ("compile", "turn.py", "-o", "turn.py"), ("compile", "turn.py", "--topo", "ring:3"), ("compile", "t.toml"),
    ("compile", "raises.py"), ("compile", "nothing.py"), ("compile", "other.py"), ("lower", "a.xml"),
    ("optimize", "s.synth"),
    ("optimize", "a.xml", "-o", "a.xml"), ("convert", "a.xml", "a.xml"), ("verify", "p.json", "--depth", "2"),
    ("verify", "a.xml", "--target", "mscclpp"), ("verify", "a.xml", "--group", "0-3"),
    ("report", "lib", "--size", "1M"),
    ("bench", "lib", "--backend", "host", "--collective", "allreduce"),
    ("bench", "lib", "--backend", "host", "--group", "0,1"),
    ("bench", "a.xml", "--backend", "host", "-b", "4M", "-e", "1M"), ("bench", "folder", "--backend", "host"),
    ("bench", "a.xml", "--backend", "host", "--devices", "0"), ("library", "env", "lib", "--collective", "allreduce"),
    ("library", "export", "lib", "--for", "nccl-tuner", "-o", "new", "--measured", "m.csv"),
    ("library", "export", "lib", "--for", "nccl-tuner", "-o", "new", "--measured", "missing"),
    ("library", "export", "lib", "--for", "nccl-tuner", "-o", "new"),
    ("library", "export", "lib", "--for", "rccl", "-o", "new"),
    ("library", "export", "lib", "--for", "executor-nccl", "-o", "new", "--group", "0,1"),
    ("library", "export", "lib", "--for", "table", "-o", "new", "--group", "0-3"),
    ("library", "export", "lib", "-o", "new"),
    ("library", "show", "lib", "--collective", "allreduce"), ("library", "show", "lib", "--group", "0,1"),
    ("library", "diff", "lib"), ("library", "pick", "lib", "allgather"),
    ("prove", "a.xml"), ("prove", "s.synth", "--proof", "s.synth"), ("simulate", "a.xml", "--topo", "ring:3"),
    ("simulate", "a.xml", "--topo", "ring:4", "--group", "0-2"), ("tune", "--ranks", "2", "--turns", "5.5"),
]  # fmt: skip


class Case(NamedTuple):
    """A wrong call.

    Attributes:
        command: Name of the command.
        arguments: All words of the call.
        where: The wrong option or argument; "": several.
        value: The wrong text.
    """

    command: str
    arguments: tuple[str, ...]
    where: str = ""
    value: str = ""


def parameters() -> Iterator[tuple[str, click.Parameter]]:
    """Yield every option and argument that takes a value, once for all searches that share it."""
    keys: set[str] = set()
    for name, command in _leaves(cli, ()):
        if name not in RIGHT and {"--topo", "--scratch-limit"} <= {o for p in command.params for o in p.opts}:
            name = "allgather"
        for param in command.params:
            if not getattr(param, "is_flag", False):
                command_name = name
                if command_name in ("pattern", "alltoallv", "allgatherv", "broadcast") and param.opts[0] not in (
                    "--sizes",
                    "--root",
                    "--trace",
                    "--files",
                    "--holdout",
                    "--headroom",
                    "file",
                ):
                    command_name = "allgather"
                if param.opts[0] == "--root":
                    command_name = "broadcast"
                if (key := f"{command_name} {param.opts[0]}") not in keys:
                    keys.add(key)
                    yield command_name, param


def _leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        subcommand = command.get_command(context, name)
        assert subcommand is not None
        yield from _leaves(subcommand, (*path, name))


def cases() -> list[Case]:
    """Return all wrong calls.

    Raises:
        KeyError: There are no wrong values for a parameter.
    """
    wrong_calls = [Case(words[0], words) for words in MORE]
    for command, param in parameters():
        option, right = param.opts[0], RIGHT[command]
        if isinstance(param, click.Option):
            values = OWN.get((command, option)) or KINDS[option]
            wrong_calls += [Case(command, _with(right, command, option, value), option, value) for value in values]
        else:
            place = len(command.split()) + PLACES.get(option, 0)
            values = ARGUMENTS[option]
            wrong_calls += [
                Case(command, (*right[:place], value, *right[place + 1 :]), option, value) for value in values
            ]
    return list({case.arguments: case for case in wrong_calls}.values())


def _with(right: tuple[str, ...], command: str, option: str, value: str) -> tuple[str, ...]:
    if option in right:
        place = right.index(option) + 1
        return (*right[:place], value, *right[place + 1 :])
    return (*right, *(("--topo", "ring:4") if (command, option) in NEEDS_TOPO else ()), option, value)


def prepare(folder: Path, synth: Callable[..., Answer]) -> None:
    """Write files of all kinds, good and bad, into the working folder.

    Args:
        folder: The working folder.
        synth: Calls the command.
    """
    for target in ("executor-nccl", "mscclpp"):
        arguments = ("allgather", "--topo", "ring:4", "--engine", "route", "--size", "1M", "--out", "lib", "--proof")
        assert synth(*arguments, "--budget", "1s", "--target", target).code == 0
    for name, pattern in (("a.xml", "msccl/*.xml"), ("p.json", "mscclpp/*.json"), ("s.synth", "schedules/*.synth")):
        file = min((folder / "lib").glob(pattern))
        shutil.copy(file, folder / name)
        (folder / f"cut{file.suffix}").write_bytes(file.read_bytes()[:200])
    shutil.copy(min((folder / "lib").glob("schedules/*.proof.json")), folder / "s.proof.json")
    link = '[[links]]\npairs = "0>1 1>0 2>3 3>2"\nalpha_us = 1\ngbs = '
    texts: dict[str, str] = {
        "t.toml": 'name = "t"\nranks = 4\n[[links]]\nfrom = "0-3"\nto = "0-3"\ngbs = 10\nalpha_us = 1\n',
        "apart.toml": f'name = "apart"\nranks = 4\n{link}5\n', "rates.toml": f'name = "rates"\nranks = 4\n{link}-5\n',
        "cut.toml": 'name = "t"\nranks = 4\n[[links]]\nfrom = "0',
        "cluster.toml": 'topology = "ring:4"\ngroups = ["0-3"]\ncollectives = ["allgather"]\n',
        "pat.toml": 'name = "halo"\nranks = 4\n[[chunk]]\nfrom = [0]\nto = "1-3"\n',
        "run.txt": "./all_reduce_perf -g 4\n# size count type time algbw busbw\n1024 256 float 99 10.59 15.9 0\n",
        "rows.toml": 'name = "halo"\nranks = 4\n[[chunk]]\nfrom = [0]\nto = [9]\n',
        "same.toml": 'name = "halo"\nranks = 4\n[[chunk]]\nfrom = [0]\nto = [0]\n',
        "counts.csv": "1,2,3,4\n4,3,2,1\n",
        "m.csv": "0,1K\n1K,0\n", "three.csv": "0,1,1\n1,0,1\n1,1,0\n", "ragged.csv": "0,1\n1\n",
        "words.csv": "0,much\n1,0\n",
        "minus.csv": "0,-1\n1,0\n", "empty": "",
        "turn.py": "from emit.language import Script\n\n\ndef algorithm(ranks: int = 4):\n"
        '    one = Script("turn", "broadcast", ranks)\n    part = one.chunk(0, "i", 0).copy(0, "o", 0)\n'
        '    for rank in range(1, ranks):\n        part = part.copy(rank, "o", 0)\n    return one\n',
        "raises.py": "def algorithm():\n    return 1 / 0\n", "nothing.py": "x = 1\n",
        "other.py": "def algorithm():\n    return 5\n",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "binary").write_bytes(bytes(range(256)) * 8)
    (folder / "utf16").write_bytes((folder / "a.xml").read_text(encoding="utf-8").encode("utf-16"))
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")


def contents(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return type, size and time of change of every file below a folder."""
    paths = [os.path.join(top, name) for top, folders, names in os.walk(folder) for name in (*folders, *names)]
    return {path: ((status := os.lstat(path)).st_mode, status.st_size, status.st_mtime_ns) for path in paths}


def fault(case: Case, answer: Answer) -> str:
    """Return what is wrong with the answer to a wrong call; "": nothing."""
    lines = answer.err.splitlines()
    if "Traceback" in answer.err:
        return "a traceback"
    if answer.code != 2:
        return f"exit code {answer.code}"
    if len(lines) != 1 or not lines[0].startswith("synth: ") or not lines[0].isprintable():
        return f"{len(lines)} lines: {answer.err[:300]!r}"
    if answer.out:
        return "something on standard output"
    if len(re.sub("a{20,}", "", lines[0])) > len("synth: ") + 160:  # Without the text LONG.
        return f"a line of {len(lines[0])} characters: {lines[0]}"
    if case.where and case.value != CONTROL and case.command not in UNCERTAIN and not _is_named(case, lines[0]):
        return f"names neither {case.where} nor {case.value[:20]!r}: {lines[0]}"
    return ""


def _is_named(case: Case, line: str) -> bool:
    """Return whether a line names the wrong option, argument or text."""
    if f"{case.where}:" in line or "is empty; it must be as " in line:
        return True
    value = case.value.strip()
    words = (case.where.lstrip("-"), value[:20], value.strip("/"), value.partition("=")[0], Path(value).name[-40:])
    return any(word and word in line for word in words)
