"""Run PyTorch's own tests of back ends on CPUs, with Gloo and with our back end instead of Gloo.

    python -m results.scripts.torch_own_tests [SOURCES] [--every N] [--budget S] [--only WORDS] [--keep FILE]

makes torch_own_tests.md. SOURCES is the folder test/distributed of PyTorch's sources; without it, only the tests in the
package torch are run. --every takes each N-th test of a file. --budget is the seconds after which no further test is
begun. --only runs the tests whose name has one of these words, and writes no table. --keep adds outcomes to FILE, one a
line, and does not repeat the tests in FILE, so that a run can be continued. A test runs in its own process, from which
its ranks are forked; there "gloo" creates our groups, with SYNTH_BACKEND=synth. Needs PyTorch and expecttest; without
one of them the script says so and writes nothing.
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

RANKS = 4  # Ranks of the tests that leave their number open.
LIMIT_S = 90  # Time limit of a test in seconds; the ranks' own limit is lower.
BUILT_IN = "torch.testing._internal.distributed.distributed_test"
FILES = ("test_c10d_gloo", "test_c10d_object_collectives", "test_c10d_spawn_gloo")
ERROR = re.compile(r"^(?:E +)?(?:[\w.]+\.)?(\w*(?:Error|Exception|Exit|Failure)\b.*)$", re.MULTILINE)
# Why a test fails only with our back end: a part of its error, or its name → the reason.
EXPLAINED: dict[str, str] = {
    "'synth' != 'gloo'": "asks for the back end's name",
    "it must be": "refused as by Gloo, with another message",
    "test_allreduce_coalesced_checks": "served, where Gloo refuses",
    "test_all_to_all_single": "served, where Gloo refuses: a tensor that is not contiguous",
    "test_set_gloo_pg_timeout": "asks for options that only Gloo's class has; torch's function for them works",
}
Test = tuple[str, type[unittest.TestCase], str]  # File, class, name.
Outcome = tuple[str, str]  # Passed, skipped or failed; the reason.


def in_gloos_place() -> None:
    """Replace Gloo from now on: "gloo" and the class ProcessGroupGloo create our groups."""
    os.environ["SYNTH_BACKEND"] = "synth"
    import torch.distributed as dist  # The import is slow and optional.

    import runtime.torch.c10d.dispatch as face
    from runtime.torch.process_group import Group, _create

    gloo = dist.ProcessGroupGloo

    class Wrapped(ModuleType):
        """torch.distributed as our back end finds it, with the Gloo that it wraps."""

        ProcessGroupGloo = gloo

        def __getattr__(self, name: str) -> Any:
            return getattr(dist, name)

    face.dist = Wrapped("torch.distributed")  # type: ignore[attr-defined]

    def create_group(store: Any, rank: int, size: int, options: Any = None, timeout: Any = None) -> Any:
        """Return a group of ours for the arguments of ProcessGroupGloo."""
        limit = timeout or getattr(options, "_timeout", None) or dist.distributed_c10d.default_pg_timeout
        return Group(store, rank, size, limit, range(size))

    for name in ("Options", "_Options", "create_device", "create_default_device"):
        setattr(create_group, name, getattr(gloo, name, None))
    plugins = dist.Backend._plugins
    plugins["GLOO"] = type(plugins["SYNTH"])(_create, True)
    dist.ProcessGroupGloo = dist.distributed_c10d.ProcessGroupGloo = create_group
    # Only Gloo records events `gloo:…` in profiles. The tests still compare values.
    importlib.import_module(BUILT_IN).PROFILING_SUPPORTED_BACKENDS = []


def load(sources: Path | None) -> Iterator[Test]:
    """Yield the tests, file by file."""
    built_in = importlib.import_module(BUILT_IN)

    class Forked(built_in.TestDistBackend, built_in.DistributedTest._DistTestBase):  # type: ignore[name-defined,misc]
        """The test class that PyTorch's own script creates, with forked ranks."""

        def setUp(self) -> None:
            """Start the ranks."""
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
    """Run one test in this process, which is its own, and send its outcome to `answer`."""
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
    """Run a test in a new process, end all processes that it started, and return its outcome."""
    context = get_context("fork")
    receiver, sender = context.Pipe()
    process = context.Process(target=run, args=(test, ours, sender))
    process.start()
    sender.close()
    try:
        result: Outcome = receiver.recv() if receiver.poll(LIMIT_S) else ("failed", f"not finished within {LIMIT_S} s")
    except EOFError:
        process.join()
        result = "failed", f"its process ended with exit code {process.exitcode}"
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return result


def explained(test: Test, why: str) -> str:
    """Return the reason of a failure that Gloo does not have; "" if no reason is known."""
    return next((reason for word, reason in EXPLAINED.items() if word in why or word == test[2]), "")


def measure(tests: list[Test], budget: float, keep: Path | None) -> list[tuple[Test, Outcome, Outcome]]:
    """Run each test with Gloo and then with ours; add the outcomes to the file `keep` if it is given."""
    outcomes = []
    until = time.monotonic() + budget
    lines = keep.read_text().splitlines() if keep is not None and keep.exists() else []
    kept_outcomes = {name: pair for name, *pair in map(json.loads, lines)}
    for k, test in enumerate(tests):
        name = f"{test[0]} {test[1].__name__} {test[2]}"
        if name in kept_outcomes:
            gloo, ours = ((str(kept_outcome[0]), str(kept_outcome[1])) for kept_outcome in kept_outcomes[name])
            outcomes.append((test, gloo, ours))
            continue
        if time.monotonic() > until:
            continue
        pair = outcome(test, False), outcome(test, True)
        if keep is not None:
            with keep.open("a") as file:
                file.write(json.dumps([name, *pair]) + "\n")
        print(f"{k + 1}/{len(tests)} {test[0]} {test[2]}: {pair[0][0]} {pair[1][0]} {pair[1][1][:140]}", flush=True)
        outcomes.append((test, *pair))
    return outcomes


def parts(outcomes: list[tuple[Test, Outcome, Outcome]], ntests: int, sources: Path | None) -> Iterator[str]:
    """Yield the parts of the page."""
    import torch  # The import is slow and optional.

    tests = "" if sources is None else f", tests of {sources.resolve().parents[1].name}"
    ranks_text = f"{RANKS} ranks if a test leaves their number open"
    yield f"torch {torch.__version__}{tests}; {len(outcomes)} of {ntests} tests; {ranks_text}."
    counts = Counter((test[0], gloo[0], ours[0]) for test, gloo, ours in outcomes)
    kinds = {
        "both pass": ("passed", "passed"),
        "both skip": ("skipped", "skipped"),
        "both fail": ("failed", "failed"),
        "ours only fails": ("passed", "failed"),
        "Gloo only fails": ("failed", "passed"),
    }
    rows = []
    for file in dict.fromkeys(test[0] for test, _, _ in outcomes):
        row = [counts[file, *pair] for pair in kinds.values()]
        rows.append([file, *row, sum(n for key, n in counts.items() if key[0] == file) - sum(row)])
    yield grid(["file", *kinds, "other"], rows)
    rows = []
    for test, gloo, ours in outcomes:
        if gloo[0] == ours[0] != "failed":
            continue
        reason = "fails with Gloo too" if gloo[0] == ours[0] else explained(test, ours[1]) or "NOT EXPLAINED"
        error = ours[1] if ours[0] == "failed" else gloo[1]
        rows.append([test[0], f"`{test[2]}`", gloo[0], ours[0], reason if ours[0] == "failed" else "", error[:110]])
    yield grid(["file", "test", "Gloo", "ours", "reason", "error"], rows) if rows else "No test fails."


def main() -> None:
    """Run the tests, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="?", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--budget", type=float, default=7200.0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    for module in ("torch", "expecttest"):
        if find_spec(module) is None:
            print(f"torch_own_tests needs {module}; install it with pip. Nothing was run.")
            return
    if options.sources is not None and not any((options.sources / f"{name}.py").exists() for name in FILES):
        sys.exit(f"torch_own_tests: {options.sources} must contain one of {', '.join(f'{name}.py' for name in FILES)}")
    os.environ |= {
        "BACKEND": "gloo",
        "WORLD_SIZE": str(RANKS),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(LIMIT_S // 2),
        "TEMP_DIR": tempfile.mkdtemp(),  # PyTorch's barriers are files in this folder, so each run needs its own.
    }
    from torch.testing._internal import common_distributed  # The import is slow and optional.

    # Forked ranks need not load PyTorch again.
    cases = common_distributed.MultiProcessTestCase
    cases._spawn_processes = lambda self: self._start_processes(get_context("fork").Process)
    all_tests = list(load(options.sources))
    tests = [
        test
        for test in all_tests[:: options.every]
        if not options.only or any(word in test[2] for word in options.only)
    ]
    outcomes = measure(tests, options.budget, options.keep)
    if options.only:
        return
    write(
        __file__,
        page(
            __file__,
            "PyTorch's own tests with our back end instead of Gloo",
            parts(outcomes, len(all_tests), options.sources),
        ),
    )


if __name__ == "__main__":
    main()
