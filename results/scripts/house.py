"""How the repository is built, and what it answers and how fast, beside an older revision of itself.

    python -m results.scripts.house [--base REV] [--pairs N] [--every N] [--only SECTION …]

makes house.md; with --only it prints the sections named (structure, questions, speed, start-up) and writes nothing.
The older revision is checked out into a temporary folder; both run with this Python.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from results.measuring.measure import ROOT, geometric_mean, grid, page, write
from results.measuring.questions import BETTER, EQUAL, QUESTIONS, Compared, compare, record
from results.measuring.revisions import Ran, checkout, run_in
from results.measuring.structure import LONG, House, cycles, longest_chain
from results.scripts import exact_rows, scale

BASE = "8eca9b3"  # the last commit before the rooms
SLOWER = 1.05  # ratio of medians from which a command counts as slower
PAIRS, MORE_PAIRS = 3, 3  # runs of a command in both revisions, in turn; more where it seemed slower
EXAMPLE = "allreduce --topo dgx-a100 --group 0,2,4,6"
WARM = (
    EXAMPLE,
    "alltoall --topo mesh:6x6x6 --chunks 1 --size 1G",
    "allgather --topo torus:4x4 --engine flow --size 64M",
)


def order(pyproject: Path = ROOT / "pyproject.toml") -> list[set[str]]:
    """The rooms of synth from what sees most to what sees least, as import-linter's contract has them."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c.get("containers") == ["synth"])
    return [{room.strip() for room in layer.replace(":", "|").split("|")} for layer in layers]


def against(rooms: Mapping[str, Iterable[str]], layers: Sequence[set[str]]) -> list[tuple[str, str]]:
    """Imports between rooms that go up or sideways."""
    level = {room: i for i, layer in enumerate(layers) for room in layer}
    return sorted(
        (room, other)
        for room, others in rooms.items()
        for other in others
        if level.get(other, len(layers)) <= level.get(room, -1)
    )


def structure(before: House, after: House, layers: Sequence[set[str]]) -> str:
    """The section on modules, imports and lines."""
    houses = (before, after)
    rows: list[list[object]] = [
        ["modules side by side in `synth/`", *(len(h.side_by_side) for h in houses), "public face"],
        [
            "longest chain of modules in `synth/`",
            *(len(longest_chain(h.module_graph("synth"))) for h in houses),
            "",
        ],
        [
            "longest chain of rooms (folders) in `synth/`",
            *(len(longest_chain(h.rooms())) or "no rooms" for h in houses),
            "≤ 8",
        ],
        [
            "imports between rooms against the order",
            *(len(against(h.rooms(), layers)) if h.rooms() else "no rooms" for h in houses),
            "0",
        ],
        ["cycles of modules in the four packages", *(len(cycles(h.module_graph())) for h in houses), "0"],
        [
            "imports inside functions; without a reason in a comment",
            *(f"{len(h.deferred)}; {sum(not d.reason for d in h.deferred)}" for h in houses),
            "≤ 25; 0",
        ],
        [
            "modules with exactly one importer, of all",
            *(f"{len(h.single_importer)} of {len(h.modules)}" for h in houses),
            "< half of before",
        ],
        [
            f"functions over {LONG} lines; without a reason in a comment",
            *(f"{len(h.long_functions)}; {sum(not f.reason for f in h.long_functions)}" for h in houses),
            "none without",
        ],
        ["lines in the four packages", *(sum(h.lines.values()) for h in houses), "≤ 36 500"],
        *([f"lines in `{p}/`", *(h.lines[p] for h in houses), ""] for p in after.lines),
    ]
    parts = [
        "## Structure",
        "Read from the source. Imports count wherever they stand, in functions and under TYPE_CHECKING too; lines are"
        " those of all sources (Python, CUDA, C++, and the report's page), comments and blanks included.",
        grid(["what", "before", "today", "to reach"], rows),
        "Longest chain of rooms: " + " → ".join(longest_chain(after.rooms())) + ".",
    ]
    if after.long_functions:
        listed = (f"`{f.module}.{f.name}` {f.lines}{'' if f.reason else ' (no reason)'}" for f in after.long_functions)
        parts.append(f"Functions over {LONG} lines: " + ", ".join(listed) + ".")
    return "\n\n".join(parts)


def questions(before: Path, after: Path, asked: Mapping[str, Sequence[str]] = QUESTIONS) -> str:
    """The section on answers: every question asked of both revisions."""
    found = []
    with tempfile.TemporaryDirectory(prefix="synth-questions-") as folder:
        for name, commands in asked.items():
            pair = [
                record(root, Path(folder, side, name), commands)
                for side, root in (("before", before), ("after", after))
            ]
            found.append(compare(name, *pair))
            print(f"{name}: {found[-1].verdict} {found[-1].what}", file=sys.stderr, flush=True)
    return answers(found)


def answers(found: Sequence[Compared]) -> str:
    """What the comparison came to."""
    counts = {verdict: sum(c.verdict == verdict for c in found) for verdict in dict.fromkeys(c.verdict for c in found)}
    commands = sum(len(c.after.commands) for c in found)
    rows = [
        [c.name, c.verdict, "yes" if c.by_time else "", c.what]
        for c in sorted(found, key=lambda c: (c.verdict != BETTER, c.verdict))
        if c.verdict != EQUAL
    ]
    return "\n\n".join(
        [
            "## Answers",
            f"{len(found)} questions, {commands} commands: tables, JSON and the bytes of all files, without seconds and"
            " names of folders: " + ", ".join(f"{number} {verdict}" for verdict, number in counts.items()) + ".",
            *([grid(["question", "answer", "ended by the budget", "what differs"], rows)] if rows else []),
        ]
    )


def sample() -> list[str]:
    """The commands of pareto_dgx1.md, of exact_rows.md, and of scale.md those that take a few seconds by its table."""
    rows = (*scale.ALLTOALL, *scale.ALLGATHER, *scale.REDUCING)
    large = [f"{r.collective} --topo {r.topo} {' '.join(map(str, r.options))} --proof --json" for r in rows]
    slow = {"mesh:10x10x10", "mesh:24x24", "torus:8x8x8,alpha=0", "mesh:16x16"}  # over six seconds
    kept = [text for row, text in zip(rows, large, strict=True) if row.topo not in slow]
    shapes = [
        f"{r.collective} --topo {r.topo} --chunks {r.chunks} --steps {r.steps} --rounds {r.rounds} --json"
        for r in exact_rows.ROWS
    ]
    return [*kept, "allgather --topo dgx1 --json", *shapes]


def speed(before: Path, after: Path, commands: Sequence[str], pairs: int = PAIRS) -> str:
    """The section on whole commands, run in turn in both revisions."""
    rows = []
    for command in commands:
        took = timed(before, after, command, pairs)
        if took[0] * SLOWER < took[1]:
            took = timed(before, after, command, pairs + MORE_PAIRS)
        rows.append((command, *took))
        print(f"{command}: {took[0]:.2f} s → {took[1]:.2f} s", file=sys.stderr, flush=True)
    ratios = [b / a for _, a, b, _ in rows]
    slower = [command for command, a, b, _ in rows if b > SLOWER * a]
    return "\n\n".join(
        [
            "## Speed",
            f"Whole commands in fresh processes, each {pairs} times in both revisions in turn"
            f" ({pairs + MORE_PAIRS} where it seemed slower), medians; compiled code found on disk. Geometric mean of"
            f" today / before"
            f" {geometric_mean(ratios):.3f}; slower than {SLOWER} ×: {len(slower)} of {len(rows)}.",
            grid(
                ["command", "before s", "today s", "today / before", "CPU, today / before"],
                [[f"`{c}`", f"{a:.2f}", f"{b:.2f}", f"{b / a:.3f}", f"{cpu:.3f}"] for c, a, b, cpu in rows],
            ),
        ]
    )


def timed(before: Path, after: Path, command: str, pairs: int) -> tuple[float, float, float]:
    """Median wall seconds in both, and the ratio of median CPU seconds; one more run before, not counted."""
    runs: tuple[list[Ran], list[Ran]] = ([], [])
    with tempfile.TemporaryDirectory(prefix="synth-speed-") as folder:
        for turn in range(pairs + 1):
            for side in (0, 1) if turn % 2 else (1, 0):
                ran = run_in((before, after)[side], Path(folder), [*command.split(), *_out(command)])
                if ran.code not in (0, 1):  # 1: proved that there is no such shape
                    raise SystemExit(f"synth {command}: exit {ran.code}: {ran.err.strip()[-300:]}")
                runs[side].append(ran)
    wall = [statistics.median(r.seconds for r in side[1:]) for side in runs]
    cpu = [statistics.median(r.cpu_s for r in side[1:]) for side in runs]
    return wall[0], wall[1], cpu[1] / cpu[0]


def _out(command: str) -> list[str]:
    return ["--out", "out"] if command.split()[0] not in ("--help", "topo", "verify") else []


def start_up(before: Path, after: Path, times: int = 10) -> str:
    """The section on small commands, of which starting is most."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="synth-start-") as folder:
        run_in(after, Path(folder), [*EXAMPLE.split(), "--out", "out"])
        file = next(Path(folder, "out").rglob("*.xml"))
        for command in ("--help", "topo list", EXAMPLE, f"verify {file}"):
            first, second, cpu = timed(before, after, command, times)
            shown = command.replace(str(file), "FILE.xml")
            rows.append([f"`synth {shown}`", f"{first:.3f}", f"{second:.3f}", f"{second / first:.3f}", f"{cpu:.3f}"])
    return "\n\n".join(
        [
            "## Start-up",
            f"Medians of {times} runs in turn.",
            grid(["command", "before s", "today s", "today / before", "CPU, today / before"], rows),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The house, beside an older revision")
    parser.add_argument("--base", default=BASE, metavar="REV", help=f"the older revision. Default: {BASE}")
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help="runs of each command in both revisions")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="time each N-th command only")
    parser.add_argument("--only", action="append", choices=["structure", "questions", "speed", "start-up"])
    asked = parser.parse_args()
    with checkout(asked.base) as base:
        sections: dict[str, Callable[[], str]] = {
            "structure": lambda: structure(House(base), House(ROOT), order()),
            "speed": lambda: speed(base, ROOT, sample()[:: asked.every], asked.pairs),
            "start-up": lambda: start_up(base, ROOT, 2 * asked.pairs + 1),
            "questions": lambda: questions(base, ROOT),
        }
        names = asked.only or list(sections)
        if names != ["structure"]:
            for root in (base, ROOT):  # compiled code is found on disk afterwards
                with tempfile.TemporaryDirectory() as folder:
                    for command in WARM:
                        run_in(root, Path(folder), command.split())
        parts = [f"Before: revision {asked.base}."]
        for name in names:
            parts.append(sections[name]())
            if not asked.only:  # what is there is kept, should the rest be interrupted
                write(__file__, page(__file__, "The house", parts))
    if asked.only:
        print(page(__file__, "The house", parts))


if __name__ == "__main__":
    main()
