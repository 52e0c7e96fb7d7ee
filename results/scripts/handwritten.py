"""Algorithms written by hand: our compiler's programs beside those of msccl-tools, and beside ours without passes.

    python -m results.scripts.handwritten [FOLDER]

makes handwritten.md. FOLDER holds msccl-tools' XML files, and FOLDER/instances-R what its scripts make with R times
the instances; they are measured anew and kept in handwritten.json. Without it the kept figures stand, each with the
checksum of the file that they were read from.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from emit.check.program import check
from emit.compiler.compile import compile_instructions
from emit.compiler.ir import Instructions
from emit.compiler.passes.registry import PASSES
from emit.language import load_script
from emit.msccl.format import write_msccl
from emit.msccl.read import read_msccl
from emit.program import Program
from results.measuring.measure import ROOT, TABLES, grid, page, save, seconds_words, write

EXAMPLES = ROOT / "examples"
KEPT = TABLES / "handwritten.json"
GOAL_S = 0.5
INSTANCES = (2, 4, 8)  # times those of the settings
TIMED = ("allpairs", {"passes": 2, "instances": 4})
# msccl-tools' file, our example of the same algorithm, and its settings
PAIRS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ms__allreduce_a100_ring_8_1_1_LL128.xml", "ring", {}),
    ("az__allreduce_1step_8_1.xml", "allpairs", {"passes": 1}),
    ("az__allreduce_a100_allpairs_8_1_LL.xml", "allpairs", {"passes": 2}),
    ("ndv4__ap2ll.xml", "allpairs", {"passes": 2, "instances": 2}),
    ("ms__hierarchical_allreduce_8_2_1_manual.xml", "hierarchical", {"nodes": 2, "gpus": 8}),
    ("ms__allgather_ring_8_1_1.xml", "allgather", {"way": "ring"}),
    ("ms__allgather_recursive_doubling_8_1.xml", "allgather", {"way": "doubling", "protocol": "Simple"}),
    ("az__allgather_allpairs_8_1_LL.xml", "allgather", {"way": "pairs", "protocol": "LL"}),
    ("az__alltoall_allpairs_8_1_Simple.xml", "alltoall", {}),
    ("az__alltoall_allpairs_8_2_Simple.xml", "alltoall", {"instances": 2}),
    ("alltoall-8n-0-9kb.xml", "alltoall", {"protocol": "LL"}),
    ("az__alltoall_a100_two_step_2_8.xml", "alltoall", {"nodes": 2, "steps": 2}),
    ("az__alltoall_a100_two_step_4_8.xml", "alltoall", {"nodes": 4, "steps": 2}),
)
OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("halving_doubling", {}),
    ("alltoall", {"nodes": 3, "gpus": 4, "steps": 3}),
    ("alltonext", {}),
)


class Shape(NamedTuple):
    """What a program takes: steps in all, the most threadblocks of a rank, nops in all, channels."""

    steps: int
    threadblocks: int
    nops: int
    channels: int


def shape_of(program: Program) -> Shape:
    """Its figures."""
    return Shape(
        program.nsteps,
        max(len(gpu.threadblocks) for gpu in program.gpus),
        sum(step.op == "nop" for *_, step in program.steps()),
        program.nchannels,
    )


def instructions_of(example: str, settings: Mapping[str, Any]) -> Instructions:
    """An example's instructions."""
    asked = [f"{name}={value}" for name, value in settings.items()]
    return load_script(EXAMPLES / f"{example}.py", asked).instructions()


def target_of(ir: Instructions) -> str:
    """Who can load it."""
    return "msccl" if ir.header.collective == "custom" else "executor-nccl"


def right(ir: Instructions, off: tuple[str, ...] = ()) -> Program:
    """Compiled and checked."""
    target = target_of(ir)
    program = compile_instructions(ir, target, without=off).program
    check(program, ir.goal, target=target).raise_if_wrong()
    return program


def kept_name(name: str, times: int) -> str:
    """The key, and the path in FOLDER, of msccl-tools' file with so many times the instances."""
    return name if times == 1 else f"instances-{times}/{name}"


def measured(folder: Path) -> dict[str, Any]:
    """The peer's figures, read from its files."""
    kept = {}
    for name in (kept_name(name, times) for times in (1, *INSTANCES) for name, _, _ in PAIRS):
        data = (folder / name).read_bytes()
        kept[name] = {
            "sha256": hashlib.sha256(data).hexdigest(),
            **shape_of(read_msccl(folder / name))._asdict(),
        }
    return kept


def instances(kept: Mapping[str, Any]) -> tuple[list[list[str]], list[str], list[str]]:
    """A row an algorithm and number of instances; those that cost more than so many times one, and more than theirs."""
    rows, dearer, more = [], [], []
    for name, example, settings in PAIRS:
        one = shape_of(right(instructions_of(example, settings)))
        for times in INSTANCES:
            asked = {**settings, "instances": times * settings.get("instances", 1)}
            ours = shape_of(right(instructions_of(example, asked)))
            theirs = Shape(*(kept[kept_name(name, times)][field] for field in Shape._fields))
            what = words(example, asked)
            if ours.steps > times * one.steps or ours.threadblocks > times * one.threadblocks:
                dearer.append(what)
            if any(a > b for a, b in zip(ours, theirs, strict=True)):
                more.append(what)
            figures = (f"{a} / {times * b} / {c}" for a, b, c in zip(ours, one, theirs, strict=True))
            rows.append([f"`{what}`", *figures])
    return rows, dearer, more


def emission() -> tuple[float, int]:
    """Seconds from the script to the checked text (the best of five), and its steps."""
    best = float("inf")
    steps = 0
    for _ in range(5):
        begun = time.perf_counter()
        ir = instructions_of(*TIMED)
        program = compile_instructions(ir).program
        write_msccl(program, ir.goal)  # checks it
        best = min(best, time.perf_counter() - begun)
        steps = program.nsteps
    return best, steps


def words(example: str, settings: Mapping[str, Any]) -> str:
    """As on the command line."""
    return " ".join([f"examples/{example}.py", *(f"--set {k}={v}" for k, v in settings.items())])


def text(kept: Mapping[str, Any]) -> str:
    """The page."""
    rows = []
    more, fewer = [], 0
    for name, example, settings in PAIRS:
        theirs = Shape(*(kept[name][field] for field in Shape._fields))
        ir = instructions_of(example, settings)
        ours = shape_of(right(ir))
        if any(a > b for a, b in zip(ours, theirs, strict=True)):
            more.append(name)
        fewer += ours != theirs and name not in more
        rows.append(
            [
                f"`{words(example, settings)}`",
                name,
                *(f"{a} / {b}" for a, b in zip(ours, theirs, strict=True)),
            ]
        )
    plain = []
    for example, settings in [*((e, s) for _, e, s in PAIRS), *OTHERS]:
        ir = instructions_of(example, settings)
        none, all_ = shape_of(right(ir, tuple(PASSES))), shape_of(right(ir))
        plain.append([f"`{words(example, settings)}`", *(f"{a} / {b}" for a, b in zip(all_, none, strict=True))])
    several, dearer, more_of_several = instances(kept)
    seconds, steps = emission()
    parts = [
        "Each shipped algorithm compiled (`synth compile`), beside msccl-tools' file of the same algorithm: ours /"
        " theirs. Both are counted from the programs; ours pass the check in every order, also with a slot"
        " for every chunk (msccl-tools' recursive doubling does not).",
        f"More of anything in: **{', '.join(more) or 'none'}** (goal: none). Fewer of something in **{fewer} of"
        f" {len(PAIRS)}** (goal: half).",
        grid(["algorithm", "msccl-tools", "steps", "threadblocks a rank", "nops", "channels"], rows),
        f"With {', '.join(map(str, INSTANCES))} times the instances: ours / as many times ours above / msccl-tools'."
        f" More steps or threadblocks than so many times one: **{', '.join(dearer) or 'none'}** (goal: none)."
        f" More of anything than msccl-tools: **{', '.join(more_of_several) or 'none'}** (goal: none).",
        grid(["algorithm", "steps", "threadblocks a rank", "nops", "channels"], several),
        f"From the script to the checked XML, `{words(*TIMED)}`, {steps} steps: **{seconds_words(seconds)} s** (goal"
        f" {GOAL_S:g} s; {GOAL_S / seconds:.1f} × faster).",
        "The same algorithms with all passes / with none (`--without-pass`):",
        grid(["algorithm", "steps", "threadblocks a rank", "nops", "channels"], plain),
    ]
    if more or dearer or more_of_several or 2 * fewer < len(PAIRS) or seconds > GOAL_S:
        parts.insert(1, "**A goal is not reached.**")
    return page(__file__, "Algorithms written by hand", parts)


def main() -> None:
    if len(sys.argv) > 1:
        save(KEPT, json.dumps(measured(Path(sys.argv[1])), indent=1) + "\n")
    write(__file__, text(json.loads(KEPT.read_text())))


if __name__ == "__main__":
    main()
