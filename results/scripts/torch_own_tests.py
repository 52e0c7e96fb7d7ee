"""PyTorch's own tests of back ends that run on CPUs, with Gloo and with our back end in Gloo's place.

    python -m results.scripts.torch_own_tests [SOURCES] [--every N] [--budget S] [--only WORDS] [--keep FILE]

makes torch_own_tests.md. SOURCES: the folder test/distributed of PyTorch's sources; without it only the tests that the
package torch brings with it are run. --every: each N-th test of a file; --budget: seconds after which no further test
is begun; --only: tests whose name has one of these words, for a look without writing the table; --keep: outcomes are
added to FILE, a line each, and those that it has are not found again, so that a run goes on where one ended. A test
runs in a process of its own, whose ranks are forked from it; "gloo" makes our groups there, with SYNTH_BACKEND=synth.
Needs PyTorch and expecttest; where one is missing it says so and writes nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

from results.measuring.measure import grid, page, write

RANKS = 4  # of the tests that leave it open
LIMIT_S = 90  # for one test; the ranks' own limit is less
BUILT_IN = "torch.testing._internal.distributed.distributed_test"
FILES = ("test_c10d_gloo", "test_c10d_object_collectives", "test_c10d_spawn_gloo")
ERROR = re.compile(r"^(?:E +)?(?:[\w.]+\.)?(\w*(?:Error|Exception|Exit|Failure)\b.*)$", re.MULTILINE)
# why a test fails in Gloo's place only: a word of its error, or of its name → the reason
EXPLAINED: dict[str, str] = {
    "'synth' != 'gloo'": "asks for the back end's name",
    "it must be": "refused like by Gloo, in other words",
    "test_allreduce_coalesced_checks": "served, where Gloo refuses",
    "test_all_to_all_single": "served, where Gloo refuses: a tensor that is not contiguous",
    "test_set_gloo_pg_timeout": "asks for options that only Gloo's class has; torch's function for them works",
}
Test = tuple[str, type[unittest.TestCase], str]  # file, class, name
Outcome = tuple[str, str]  # passed, skipped or failed; why


def in_gloos_place() -> None:
    """From now on "gloo", and a ProcessGroupGloo made by hand, are groups of ours."""
    os.environ["SYNTH_BACKEND"] = "synth"
    import torch.distributed as dist  # here: slow, and an extra

    import runtime.torch.dispatch as face
    from runtime.torch.process_group import Group, _create

    gloo = dist.ProcessGroupGloo

    class Wrapped(ModuleType):
        """torch.distributed as our back end finds it, with the Gloo that it wraps."""

        ProcessGroupGloo = gloo

        def __getattr__(self, name: str) -> Any:
            return getattr(dist, name)

    face.dist = Wrapped("torch.distributed")  # type: ignore[attr-defined]

    def made(store: Any, rank: int, size: int, options: Any = None, timeout: Any = None) -> Any:
        limit = timeout or getattr(options, "_timeout", None) or dist.distributed_c10d.default_pg_timeout
        return Group(store, rank, size, limit, range(size))

    for name in ("Options", "_Options", "create_device", "create_default_device"):
        setattr(made, name, getattr(gloo, name, None))
    plugins = dist.Backend._plugins
    plugins["GLOO"] = type(plugins["SYNTH"])(_create, True)
    dist.ProcessGroupGloo = dist.distributed_c10d.ProcessGroupGloo = made
    # events `gloo:…` in profiles are Gloo's own; values are compared all the same
    importlib.import_module(BUILT_IN).PROFILING_SUPPORTED_BACKENDS = []


def load(sources: Path | None) -> Iterator[Test]:
    """The tests, file by file."""
    built_in = importlib.import_module(BUILT_IN)

    class Forked(built_in.TestDistBackend, built_in.DistributedTest._DistTestBase):  # type: ignore[name-defined,misc]
        """As torch's own script makes it."""

        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

    modules: list[tuple[str, Any]] = [("distributed_test", type("Tests", (), {"Forked": Forked}))]
    if sources is not None:
        sys.path.insert(0, str(sources))
        modules += [(name, importlib.import_module(name)) for name in FILES if (sources / f"{name}.py").exists()]
    for file, module in modules:
        cases = [
            case for case in vars(module).values() if isinstance(case, type) and issubclass(case, unittest.TestCase)
        ]
        for case in cases:
            if case is Forked or case.__module__ == file:
                for name in unittest.TestLoader().getTestCaseNames(case):
                    yield file, case, name


def run(test: Test, ours: bool, answer: Any) -> None:
    """One test, in a process of its own; its outcome goes into `answer`."""
    os.setsid()
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    if ours:
        in_gloos_place()
    result = unittest.TestResult()
    try:
        test[1](test[2]).run(result)
    except BaseException as error:
        answer.send(("failed", f"{type(error).__name__}: {error}"))
        return
    bad = [text for _, text in (*result.failures, *result.errors)]
    if bad:
        lines = ERROR.findall(bad[0]) or bad[0].strip().splitlines()[-1:]
        answer.send(("failed", lines[-1]))
    else:
        answer.send(("skipped", result.skipped[0][1]) if result.skipped else ("passed", ""))


def outcome(test: Test, ours: bool) -> Outcome:
    """What became of a test; whatever it started is ended."""
    context = get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=run, args=(test, ours, there))
    process.start()
    there.close()
    try:
        found: Outcome = here.recv() if here.poll(LIMIT_S) else ("failed", f"not over within {LIMIT_S} s")
    except EOFError:
        process.join()
        found = "failed", f"its process ended with {process.exitcode}"
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return found


def explained(test: Test, why: str) -> str:
    """The reason of a failure that Gloo does not have; "" where there is none."""
    return next((reason for word, reason in EXPLAINED.items() if word in why or word == test[2]), "")


def measure(tests: list[Test], budget: float, keep: Path | None) -> list[tuple[Test, Outcome, Outcome]]:
    """Each test with Gloo, and with ours, one after the other; keep: as --keep."""
    found = []
    until = time.monotonic() + budget
    lines = keep.read_text().splitlines() if keep is not None and keep.exists() else []
    known = {name: pair for name, *pair in map(json.loads, lines)}
    for k, test in enumerate(tests):
        name = f"{test[0]} {test[1].__name__} {test[2]}"
        if name in known:
            gloo, ours = ((str(one[0]), str(one[1])) for one in known[name])
            found.append((test, gloo, ours))
            continue
        if time.monotonic() > until:
            continue
        pair = outcome(test, False), outcome(test, True)
        if keep is not None:
            with keep.open("a") as file:
                file.write(json.dumps([name, *pair]) + "\n")
        print(f"{k + 1}/{len(tests)} {test[0]} {test[2]}: {pair[0][0]} {pair[1][0]} {pair[1][1][:140]}", flush=True)
        found.append((test, *pair))
    return found


def parts(found: list[tuple[Test, Outcome, Outcome]], of: int, sources: Path | None) -> Iterator[str]:
    """The page's parts."""
    import torch  # here: slow, and an extra

    tests = "" if sources is None else f", tests of {sources.resolve().parents[1].name}"
    few = f"{RANKS} ranks where a test leaves their number open"
    yield f"torch {torch.__version__}{tests}; {len(found)} of {of} tests; {few}."
    counts = Counter((test[0], gloo[0], ours[0]) for test, gloo, ours in found)
    kinds = {
        "both pass": ("passed", "passed"),
        "both skip": ("skipped", "skipped"),
        "both fail": ("failed", "failed"),
        "ours only fails": ("passed", "failed"),
        "Gloo only fails": ("failed", "passed"),
    }
    rows = []
    for file in dict.fromkeys(test[0] for test, _, _ in found):
        row = [counts[file, *pair] for pair in kinds.values()]
        rows.append([file, *row, sum(n for key, n in counts.items() if key[0] == file) - sum(row)])
    yield grid(["file", *kinds, "other"], rows)
    rows = []
    for test, gloo, ours in found:
        if gloo[0] == ours[0] != "failed":
            continue
        reason = "Gloo's too" if gloo[0] == ours[0] else explained(test, ours[1]) or "NOT EXPLAINED"
        error = ours[1] if ours[0] == "failed" else gloo[1]
        rows.append([test[0], f"`{test[2]}`", gloo[0], ours[0], reason if ours[0] == "failed" else "", error[:110]])
    yield grid(["file", "test", "Gloo", "ours", "reason", "error"], rows) if rows else "No test fails."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="?", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--budget", type=float, default=7200.0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    for module in ("torch", "expecttest"):
        if find_spec(module) is None:
            print(f"torch_own_tests: {module} is not installed; nothing was run")
            return
    if asked.sources is not None and not any((asked.sources / f"{name}.py").exists() for name in FILES):
        sys.exit(f"torch_own_tests: {asked.sources}: must hold one of {', '.join(f'{name}.py' for name in FILES)}")
    os.environ |= {
        "BACKEND": "gloo",
        "WORLD_SIZE": str(RANKS),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(LIMIT_S // 2),
        "TEMP_DIR": tempfile.mkdtemp(),  # of this run: torch's barriers are files there
    }
    from torch.testing._internal import common_distributed  # here: slow, and an extra

    # forked ranks need not load torch again
    cases = common_distributed.MultiProcessTestCase
    cases._spawn_processes = lambda self: self._start_processes(get_context("fork").Process)
    every = list(load(asked.sources))
    tests = [test for test in every[:: asked.every] if not asked.only or any(word in test[2] for word in asked.only)]
    found = measure(tests, asked.budget, asked.keep)
    if asked.only:
        return
    write(__file__, page(__file__, "PyTorch's own tests, in Gloo's place", parts(found, len(every), asked.sources)))


if __name__ == "__main__":
    main()
