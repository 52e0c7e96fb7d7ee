"""Fixtures of all tests: no cache is shared, and no failure inside the package passes unnoticed."""

from __future__ import annotations

import gc
import json
import os

os.environ["SYNTH_CACHE"] = "none"  # Processes that tests start inherit this.

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

import pytest
from hypothesis import settings
from jsonschema import Draft202012Validator

from synth.app import documents
from synth.bounds.search import DEFAULT
from synth.model import defects
from synth.search.run import windows as windows_of_searches
from synth.solvers import workers

# Files that take a minute or more of one process: they begin first, so that no process is left with one at the end.
LONG = ("tests/readme/", "tests/synth/app/cli/test_search.py", "tests/synth/search/test_frontiers.py")

# On a busy machine any example may take long. Tests whose examples are quick or rare ask for more of them.
settings.register_profile("synth", deadline=None, max_examples=50)
settings.load_profile("synth")

NEW_OBJECTS = (
    50_000  # from one search for unreachable cycles to the next; the usual 700 take a tenth of all tests' time
)
gc.disable()  # While tests are collected, nearly all objects stay.
START_SOLVER, CLOSE_POOL = workers._Child, workers.Workers.__exit__


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first; `make test` hands files to processes in this order."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish() -> None:
    """Collect garbage from now on, seldom, and without a look at what modules and collected tests consist of."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def spare_solver_processes() -> Iterator[None]:
    """Let each pool of solver processes take over the idle ones of pools before it, as a start takes half a second.

    Tests of the pools themselves use `plain_pools`.
    """
    spare: dict[str, list[workers._Child]] = defaultdict(list)
    start, close = START_SOLVER, CLOSE_POOL

    def spare_or_started(solver: str) -> workers._Child:
        while spare[solver]:
            child = spare[solver].pop()
            if child.process.poll() is None:
                return child
        return start(solver)

    def keep_and_close(pool: workers.Workers, *failure: object) -> None:
        for solver, children in pool._idle.items():
            while children and not spare[solver]:
                spare[solver].append(children.pop())
        close(pool, *failure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_Child", spare_or_started)
        patch.setattr(workers.Workers, "__exit__", keep_and_close)
        yield
    for child in chain.from_iterable(spare.values()):
        child.kill()


@pytest.fixture(autouse=True, scope="session")
def no_windows() -> Iterator[None]:
    """Leave bounds by windows of time out of searches in the tests' processes, except in tests that use `windows`.

    Their linear programs keep a core busy for as long as engines work, and few tests look at what they prove.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows_of_searches, "MOST_RANKS", 0)
        yield


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test's searches also prove bounds by windows of time, as they do outside of tests."""
    monkeypatch.setattr(windows_of_searches, "MOST_RANKS", DEFAULT.window_ranks)


@pytest.fixture
def plain_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pools start their own processes, and leave none, as they do outside of tests."""
    monkeypatch.setattr(workers, "_Child", START_SOLVER)
    monkeypatch.setattr(workers.Workers, "__exit__", CLOSE_POOL)


@pytest.fixture
def planted_defects() -> None:
    """Mark a test that plants defects of our own code, so that it does not fail for them."""


@pytest.fixture(autouse=True)
def no_defects(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that no part of synth failed in the test's process, even if the search had an answer without it."""
    met: list[defects.Defect] = []
    describe = defects.describe_defect

    def describe_and_note(part: str, error: BaseException) -> defects.Defect:
        met.append(describe(part, error))
        return met[-1]

    monkeypatch.setattr(defects, "describe_defect", describe_and_note)
    yield
    if "planted_defects" not in request.fixturenames:
        assert not met, "\n".join(defect.trace for defect in met)


@pytest.fixture(autouse=True)
def documents_match_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold every document that the test's process prints with `--json` to its schema."""
    stamp = documents.stamp

    def stamp_and_validate(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
        stamped = stamp(kind, document)
        _validator(kind).validate(json.loads(json.dumps(stamped)))  # Tuples are arrays in JSON.
        return stamped

    monkeypatch.setattr(documents, "stamp", stamp_and_validate)


@cache
def _validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(documents.json_schema(kind, strict=True))
