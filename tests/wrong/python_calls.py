"""Wrong calls of the Python functions: impossible values of each argument must be refused in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import synth
from emit.language import Script
from emit.library import choose, load_index
from emit.library.selection.call import LibraryCall
from topologies.errors import InputError
from topologies.load import load

OBJECT = object()
NO_TEXT = (None, 5, 1.5, True, b"x", [], {}, OBJECT)
NO_WHOLE = ("x", "", "1.5", 1.5, math.nan, math.inf, [1], b"1", OBJECT)
NO_FLAG = ("yes", 2, 1.5, [], OBJECT)
NO_RANKS = (3, 1.5, [0.5, 1], [0, 0], ["0", "x"], "0-9", "x", "0,,1", [0, -1], [0, 99], [None, 1], [0, [1]], OBJECT)
NO_NAME = ("nosuch", "", " ", "x\n", "a" * 300)


class PythonCall(NamedTuple):
    """A wrong call.

    Attributes:
        function: Name of the function.
        argument: The wrong argument.
        value: Its value.
    """

    function: str
    argument: str
    value: Any


QUESTION: Mapping[str, Sequence[Any]] = {
    "collective": (*NO_TEXT, *NO_NAME),
    "topo": (*NO_TEXT, *NO_NAME, "ring:", "ring:1", "ring:x", "ring:4:2:2", "dgx-a100:0", "torus:3x", "/nosuch.toml"),
    "group": NO_RANKS,
    "relay": (*(value for value in NO_RANKS if value != [0, 0]), "some"),
    "without": (4, 1.5, ["nosuch"], [5], "nosuch", ["0-9"], OBJECT),
    "degrade": (4, 1.5, ["nosuch"], [5], "0-1", ["0-1=x"], ["0-1=-1"], OBJECT),
    "root": (*NO_WHOLE, -1, 4, 99),
    "size": ("x", "", "1.5X", 1.5, math.nan, [1], b"1", OBJECT, -1, "-1", 0, 1 << 70),
    "chunks": (*NO_WHOLE, 0, -1, 10**9),
    "steps": (*NO_WHOLE, 0, -1),
    "rounds": (*NO_WHOLE, 0, -1),
    "engine": (*NO_TEXT, *NO_NAME),
    "budget": (None, True, "soon", "", "-1s", -1, 0, math.nan, math.inf, [1], b"1", OBJECT),
    "seed": (*NO_WHOLE, None),
    "target": (*NO_TEXT, *NO_NAME),
    "sms": (*NO_WHOLE, -1),
    "scratch_limit": (*(value for value in NO_WHOLE if value != "1.5"), -1, "-1"),
    "groups_overlap": NO_FLAG,
    "switch_ops": NO_FLAG,
    "costs": (5, 1.5, [], OBJECT, "nosuch", "", True),
    "progress": (5, "x"),
}
SIZES = (*(value for value in NO_WHOLE if value != "1.5"), None, 0, -5, "-1")
SCRIPT: Mapping[str, Sequence[Any]] = {
    "name": (None, 5, b"x", OBJECT),
    "collective": (*NO_TEXT, "nosuch", ""),
    "ranks": (*NO_WHOLE, None, 0, -1),
    "chunks": (*NO_WHOLE, None, 0, -1),
    "protocol": (*NO_TEXT, "nosuch"),
    "min_bytes": (*NO_WHOLE, None, -1),
    "max_bytes": (*NO_WHOLE, None, -1),
    "root": (*NO_WHOLE, None, -1, 9),
    "instances": (*NO_WHOLE, None, 0, -1),
}
CHOOSE: Mapping[str, Sequence[Any]] = {
    "entries": (None, 5, "x", [5], OBJECT),
    "collective": (*NO_TEXT, "nosuch", ""),
    "nranks": (*NO_WHOLE, None, 0, -1),
    "ranks": (3, "x", [0.5, 1], [0, 0, 1, 2], [0, 1], OBJECT),
    "size_bytes": (*NO_WHOLE, None, -1),
    "inplace": (*NO_FLAG, None),
    "target": NO_TEXT[1:],
    "topology": NO_TEXT[1:],
    "root": NO_WHOLE,
    "relays": (3, 1.5, [0.5], OBJECT),
    "element_bytes": (*NO_WHOLE, None, 0, -1),
}
CHANGES: Mapping[str, Sequence[Any]] = {
    "network": (None, 5, "nosuch", [], OBJECT),
    "collective": (*NO_TEXT, *NO_NAME, "alltoallv"),
    "size_bytes": SIZES,
    "root": (*NO_WHOLE, -1, 4),
    "budget_s": (True, "soon", "", -1, 0, math.nan, math.inf, [1], OBJECT),
    "deltas_us": ([-1.0], [math.nan], ["x"], [None], [1e10], [True]),
}
PATHS = (None, 5, 1.5, [], {}, OBJECT, "a\0b")


UNNAMED = ("topo", "spec", "entries", "path")


@cache
def answer() -> synth.Synthesis:
    """Return the answer that further calls use."""
    return synth.synthesize("allgather", "ring:4", engine="route")


def _choose(entries: Any, size_bytes: Any, **call: Any) -> object:
    """Look a file up for a call with these fields."""
    return choose(entries, LibraryCall(**call), size_bytes)


def functions() -> dict[str, tuple[Callable[..., Any], dict[str, Any], Mapping[str, Sequence[Any]]]]:
    """Return by name: the function, right arguments, and wrong values of each argument."""
    question = {"collective": "broadcast", "topo": "ring:4", "budget": 1, "engine": "route"}
    right = {"collective": "allgather", "nranks": 4, "ranks": None, "size_bytes": 1 << 20, "inplace": True}
    saved = {"target": (*NO_TEXT, "nosuch", ""), "folder": PATHS, "proof": NO_FLAG, "replace": NO_FLAG}
    return {
        "synthesize": (synth.synthesize, question, QUESTION),
        "Synthesis.algorithm": (answer().algorithm, {"size_bytes": 1024}, {"size_bytes": SIZES}),
        "Synthesis.schedule": (answer().schedule, {"size_bytes": 1024}, {"size_bytes": SIZES}),
        "Synthesis.save": (answer().save, {"folder": "written"}, saved),
        "load": (load, {"spec": "ring:4"}, {"spec": QUESTION["topo"]}),
        "read_states": (
            synth.read_states,
            {"spec": "ring:4"},
            {"spec": (*QUESTION["topo"], "axes:1", "ring:4 + star:4")},
        ),
        "search_changes": (
            synth.search_changes,
            {"network": synth.read_states("ring:4"), "collective": "allgather", "size_bytes": 1, "budget_s": 0.2},
            CHANGES,
        ),
        "load_index": (load_index, {"path": "written"}, {"path": (*PATHS, "nosuch", "")}),
        "choose": (_choose, {"entries": [], **right}, CHOOSE),
        "Script": (Script, {"name": "x", "collective": "allreduce", "ranks": 4}, SCRIPT),
    }


def cases() -> Iterator[PythonCall]:
    """Yield all wrong calls."""
    for name, (_, _, wrong) in functions().items():
        for argument, values in wrong.items():
            yield from (PythonCall(name, argument, value) for value in values)


def fault(case: PythonCall) -> str:
    """Return what is wrong with the outcome of a wrong call; "": nothing."""
    function, right, _ = functions()[case.function]
    try:
        function(**right | {case.argument: case.value})
    except InputError as error:
        line = str(error)
        if not line or not line.isprintable():
            return f"not one line: {line!r}"
        named = any(word in line for word in (case.argument, str(case.value).strip() or case.argument))
        return "" if named or case.argument in UNNAMED else f"names neither {case.argument} nor its value: {line}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"
