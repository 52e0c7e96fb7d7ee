"""`synth place` and `synth reduce-program` as a new user meets them: on all topologies, timed, and with wrong input.

    python -m results.scripts.parallelism [--every N] [--budget S]

makes parallelism.md. Each command in a process of its own, with a budget for its searches.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from results.measuring.measure import Timed, grid, page, run, seconds_words, synth, write
from topologies.levels.hierarchy import find_levels
from topologies.load import load, load_machine, machines

CLUSTER, AXES, WITHIN_S = "dgx-h100:8", "dp=4,tp=8,pp=2", 180.0
FAMILIES = (
    "ring:8", "ring:7", "line:6", "full:4", "mesh:4x4", "mesh:2x3x4", "torus:4x4", "torus:3x5", "hypercube:4",
    "star:12", "fattree:4", "fattree:4x8x2", "dragonfly:4x4x2", "dragonfly:3x3x1",
)  # fmt: skip
STEP = """[[call]]
name = "gradients"
collective = "allreduce"
over = ["dp"]
bytes = "1G"
"""
PLACE = ("place", "--topo", "dgx-h100:2", "--axes", "dp=2,tp=8", "--workload", "step.toml", "--top", "0")
REDUCE = ("reduce-program", "--topo", "dgx-a100:2", "--axes", "dp=4,tp=4", "--over", "dp", "--budget", "1s")
# what is wrong, the command, options put in the place of its own or behind it, the workload, words of the line
WRONG: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str, str], ...] = (
    ("products do not match", PLACE, ("--axes", "dp=3,tp=8"), STEP, "16"),
    ("products do not match", REDUCE, ("--axes", "dp=3,tp=4"), STEP, "16"),
    ("an axis that no level can hold", PLACE, ("--axes", "dp=5,tp=8"), STEP, "dp=5"),
    ("an axis that no level can hold", REDUCE, ("--axes", "dp=5,tp=4"), STEP, "dp=5"),
    ("products do not match", PLACE, ("--axes", "dp=4,tp=8"), STEP, "16"),
    ("a size that is none", PLACE, ("--axes", "dp=0,tp=8"), STEP, "dp=0"),
    ("an axis twice", PLACE, ("--axes", "dp=2,dp=8"), STEP, "dp"),
    ("an unknown axis in the workload", PLACE, (), STEP.replace('"dp"', '"ep"'), "ep"),
    ("negative bytes in the workload", PLACE, (), STEP.replace('"1G"', '"-1"'), "bytes"),
    ("an unknown collective in the workload", PLACE, (), STEP.replace("allreduce", "sum"), "sum"),
    ("calls that overlap with none there", PLACE, (), STEP + 'overlaps = ["pipeline"]\n', "pipeline"),
    ("a workload that is no TOML", PLACE, (), "[[call", "step.toml"),
    ("no such workload", PLACE, ("--workload", "nothing.toml"), STEP, "nothing.toml"),
    ("a hierarchy of another size", PLACE, ("--levels", "node:3,gpu:8"), STEP, "levels"),
    ("a hierarchy of another size", REDUCE, ("--levels", "node:3,gpu:8"), STEP, "levels"),
    ("a hierarchy that is none", PLACE, ("--topo", "uneven.toml"), STEP, "--levels gpu:6"),
    ("a hierarchy that is none", REDUCE, ("--topo", "uneven.toml"), STEP, "--levels gpu:6"),
    ("axes to reduce over that there are not", REDUCE, ("--over", "ep"), STEP, "ep"),
    ("a matrix of other products", REDUCE, ("--matrix", "dp=2x2,tp=1x1"), STEP, "--matrix"),
    ("relays that are none", REDUCE, ("--relay", "some"), STEP, "--relay"),
    ("negative bytes", REDUCE, ("--size", "-1"), STEP, "--size"),
)  # fmt: skip
UNEVEN = """name = "uneven"
ranks = 6
switches = ["a", "b"]
[[links]]
from = "0-3"
to = "a"
both = true
gbs = 100
alpha_us = 1
[[links]]
from = "4-5"
to = "b"
both = true
gbs = 100
alpha_us = 1
[[links]]
from = "a"
to = "b"
both = true
gbs = 10
alpha_us = 1
"""


def axes_of(spec: str) -> str:
    """A split of a topology's ranks: tp, the innermost level or a part of it, and dp, all others."""
    sizes = [level.size for level in find_levels(load(spec)).levels]
    inner = sizes[-1] if len(sizes) > 1 else next(k for k in range(2, sizes[-1] + 1) if sizes[-1] % k == 0)
    outer = math.prod(sizes) // inner
    return f"dp={outer},tp={inner}" if outer > 1 else f"dp={inner}"


def printed(done: Timed) -> dict[str, Any]:
    """What a command printed with --json; empty where it failed."""
    return dict(json.loads(done.out)) if done.code == 0 else {}


def topology_row(spec: str, budget_s: float) -> tuple[list[str], bool]:
    """Both commands on one topology; whether they answered."""
    axes, budget = axes_of(spec), f"{budget_s:g}s"
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        placed = run(synth("place", "--topo", spec, "--axes", axes, "--workload", "dense", "--top", 1, "--budget",
                           budget, "--json"))  # fmt: skip
        reduced = run(synth("reduce-program", "--topo", spec, "--axes", axes, "--over", "dp", "--size", "16M",
                            "--budget", budget, "--json"))  # fmt: skip
        ranking, programs = printed(placed), printed(reduced)
        file = programs["programs"][0]["file"] if programs else None
        checked = run(synth("verify", file)) if file else None
    row = [spec, axes]
    right = placed.code == reduced.code == 0 and checked is not None and checked.code == 0
    if ranking:
        row += [str(len(ranking["placements"])), f"{ranking['placements'][0]['time_us'] / 1e3:.3g}"]
    else:
        row += ["–", placed.err.strip()[:90]]
    if programs:
        single_us = programs["single"]["time_us"] if programs["single"] else math.nan
        times = (programs["programs"][0]["time_us"], single_us, programs["searched"]["time_us"], programs["bound_us"])
        row += [str(programs["sequences"]), *(f"{us:.1f}" if math.isfinite(us) else "–" for us in times)]
    else:
        row += ["–", reduced.err.strip()[:90], "", "", ""]
    words = "yes" if right else "no"
    return [*row, f"{seconds_words(placed.seconds)} + {seconds_words(reduced.seconds)}", words], right


def wrong_rows() -> tuple[list[tuple[str, str, str, str]], int]:
    """Every wrong command with its answer: one line, exit code 2, nothing written; how many are not so."""
    rows, faults = [], 0
    for what, command, other, workload, word in WRONG:
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            Path("step.toml").write_text(workload)
            Path("uneven.toml").write_text(UNEVEN)
            options = dict(zip(command[1::2], command[2::2], strict=True))
            options |= dict(zip(other[::2], other[1::2], strict=True))
            done = run(synth(command[0], *(part for pair in options.items() for part in pair)), 120.0)
            left = sorted(path.name for path in Path().iterdir())
        line = done.err.strip()
        right = done.code == 2 and line.startswith("synth: ") and "\n" not in line and word in line
        right = right and left == ["step.toml", "uneven.toml"] and not done.out
        faults += not right
        rows.append(
            (what, command[0], line.removeprefix("synth: ").replace("|", "\\|")[:200], "yes" if right else "no")
        )
    return rows, faults


def command_rows() -> tuple[list[tuple[str, str, str]], float]:
    """From axes on a cluster to a rank order, programs, a library, and pages; the seconds of the first two commands."""
    rows, spent = [], 0.0
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for number, command in enumerate((
            ("place", "--topo", CLUSTER, "--axes", AXES, "--workload", "dense", "-o", "placed", "--library", "library"),
            ("reduce-program", "--topo", CLUSTER, "--axes", AXES, "--over", "dp", "--out", "library"),
            ("report", "placed", "-o", "placed.html"),
            ("report", "library", "-o", "library.html"),
        )):  # fmt: skip
            done = run(synth(*command))
            spent += done.seconds if number < 2 else 0.0
            made = sorted(str(path) for path in Path().rglob("*") if path.is_file())
            what = f"exit code {done.code}, {len(made)} files by then" if done.code == 0 else done.err.strip()[:200]
            rows.append((f"`synth {' '.join(command)}`", seconds_words(done.seconds), what))
    return rows, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="every so-manieth topology only")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for the searches of a command")
    asked = parser.parse_args()
    joined = [f"{name}:2" for name in machines() if load_machine(name).nics is not None]
    specs = [*machines(), *joined, *FAMILIES][:: asked.every]
    each = [topology_row(spec, asked.budget) for spec in specs]
    wrong, faults = wrong_rows()
    commands, spent = command_rows()
    answered = sum(right for _, right in each)
    write(__file__, page(__file__, "Placement and reduction programs, as commands", (
        f"Sample: {'all' if asked.every == 1 else f'every {asked.every}th'} of the topologies; {asked.budget:g} s of"
        " search a command. Seconds by the clock, from start to exit.",
        "## From axes to a library",
        f"Place, programs and library for {AXES} on {CLUSTER}: asked two commands, under {WITHIN_S:.0f} s; measured"
        f" {spent:.0f} s: {'reached' if spent <= WITHIN_S else 'not reached'}. The pages are the lines below.",
        grid(("command", "s", "what came of it"), commands),
        "## On every machine, alone and (where it has NICs) as two nodes, and every family",
        f"Asked: all; measured: {answered} of {len(each)} have a ranking, programs, and files that `synth verify`"
        " finds right. Axes: tp over the innermost level, dp over the others; programs for the reduction over dp,"
        " 16 MiB a group; a bound is on every algorithm.",
        grid(("topology", "axes", "placements", "best, ms", "programs", "best program, µs", "single, µs",
              "searched, µs", "bound, µs", "s", "right"), [row for row, _ in each]),
        "## Wrong input",
        f"One line, exit code 2, nothing written: {len(wrong) - faults} of {len(wrong)}.",
        grid(("what is wrong", "command", "the line", "so"), wrong),
    )))  # fmt: skip


if __name__ == "__main__":
    main()
