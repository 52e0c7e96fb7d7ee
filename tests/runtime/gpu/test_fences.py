"""Weakens the kernel's fences and barriers one after another: the thread sanitizer must see each that is missing.

The sanitizer has the memory model of C++: without the order that an acquire, a release or a barrier makes, two accesses
are a race, however the machine runs them. What it cannot see, the scopes of a GPU's fences, test_nvrtc.py checks.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from emit.compiler.compile import compile_instructions
from emit.goal import Goal
from emit.language import load_scripts
from emit.program import FIFO_DEPTH, Program, ThreadBlock
from runtime.bench import Settings, measure
from runtime.gpu.encoding import SOURCE
from tests import EXAMPLES
from tests.runtime.example_runs import PROGRAMS
from tests.runtime.gpu.cpu_shim.shim import SanitizerReport, ShimExecutor, built

WEAKER = {"load_acquire": "weak_load", "store_release": "weak_store", "__syncthreads_or": "loose_meeting"}
FENCE = re.compile(rf"\b({'|'.join(WEAKER)})\(")
# The kernel's functions, of which one call at most, number SYNTH_WEAKENED, does without the order.
HEAD = """
#include <cstdlib>
inline const int weakened = std::atoi(std::getenv("SYNTH_WEAKENED"));
template <int K, class T> T weak_load(const T *at) { return weakened == K ? load_relaxed(at) : load_acquire(at); }
template <int K, class T> void weak_store(T *at, T value) {
    weakened == K ? store_relaxed(at, value) : store_release(at, value);
}
template <int K> int loose_meeting(int value) { return weakened == K ? value : __syncthreads_or(value); }
"""


def plain_kernel() -> str:
    """Return the kernel's source without what only a paced launch has."""
    kept: list[str] = []
    skips: list[bool | None] = []  # For each open condition: whether its lines are left out; None for other conditions.
    for line in SOURCE.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.startswith("#if"):
            skips.append(True if line == "#ifdef PACED\n" else None)
        elif line.startswith("#else") and skips[-1] is not None:
            skips[-1] = False
            continue
        elif line.startswith("#endif") and skips.pop() is not None:
            continue
        if True not in skips and line != "#ifdef PACED\n":
            kept.append(line)
    return "".join(kept)


def fences() -> list[str]:
    """Return the lines of the kernel's fences and barriers in order."""
    return [line.strip() for line in plain_kernel().splitlines() for _ in FENCE.finditer(line)]


@pytest.fixture(scope="session")
def weak_kernel(sanitized: Path | str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the kernel whose fences can be weakened, under the thread sanitizer, or skip the test."""
    if isinstance(sanitized, str):
        pytest.skip(sanitized)
    folder = tmp_path_factory.mktemp("weak")
    parts = FENCE.split(plain_kernel())
    for number, at in enumerate(range(1, len(parts), 2)):
        parts[at] = f"{WEAKER[parts[at]]}<{number}>("
    (folder / "interpreter.cu").write_text(HEAD + "".join(parts), encoding="utf-8")
    for name in ("elements.h", "pace.h"):
        (folder / name).write_text(SOURCE.with_name(name).read_text(encoding="utf-8"), encoding="utf-8")
    return built(folder, "thread", kernel=folder, few=True)


def cases() -> list[tuple[Program, Goal | None, int | None]]:
    """Return programs with their goals and numbers of slots that need every fence: few slots, waits, packets."""
    named = {program.name: (program, goal) for program, goal in PROGRAMS}
    ring, ring_goal = named["ring"]
    pairs, pairs_goal = named["allpairs2"]
    script = load_scripts(EXAMPLES / "halving_doubling.py", ["ranks=4"])[0].instructions()
    halving = compile_instructions(script, without=["pairing"]).program
    first = ring.gpus[0]
    idle = replace(first, threadblocks=[*first.threadblocks, ThreadBlock(-1, -1, 0, [])])
    return [
        (replace(pairs, protocol="Simple"), pairs_goal, 1),
        (replace(ring, protocol="Simple"), ring_goal, None),
        (replace(halving, protocol="LL"), script.goal, FIFO_DEPTH["Simple"]),
        (replace(ring, protocol="Simple", gpus=[idle, *ring.gpus[1:]]), ring_goal, None),
    ]


def is_seen(kernel: Path, program: Program, goal: Goal | None, depth: int | None, runs: int = 3) -> bool:
    """Return True if the sanitizer reports a race in one of some runs of two launches, with two threads a block."""
    for _ in range(runs):
        executor = ShimExecutor(program, goal, kernel, threads=2, launches=2, depth=depth)
        try:
            assert measure(program, goal, 1600, executor, Settings("float", "sum", iterations=1, warmup=0)).wrong == 0
        except SanitizerReport as error:
            if "data race" in str(error):
                return True
        except AssertionError:
            return True  # The result is wrong, which is worse than a race.
    return False


@pytest.mark.slow
def test_every_fence_is_needed_and_missed(weak_kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that nothing is reported as long as all fences are there, and something for each that is not."""
    assert len(fences()) >= 10
    monkeypatch.setenv("SYNTH_WEAKENED", "-1")
    waiting = cases()
    assert not any(is_seen(weak_kernel, *case, runs=1) for case in waiting)
    unseen = []
    for number, line in enumerate(fences()):
        monkeypatch.setenv("SYNTH_WEAKENED", str(number))
        place = next((place for place, case in enumerate(waiting) if is_seen(weak_kernel, *case)), None)
        if place is None:
            unseen.append(line)
        else:  # What shows one fence often shows the next.
            waiting.insert(0, waiting.pop(place))
    assert unseen == []
