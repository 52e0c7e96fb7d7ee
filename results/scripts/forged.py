"""Forge libraries and caches so that every digest is right but the meaning differs, and report what the checks say.

    python -m results.scripts.forged [--every N]

makes forged.md. Each field of each entry is changed in each way that its type allows. The forgeries that the tests
make by hand are added.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emit.library.checking.check import check_library
from emit.library.checking.report import LibraryReport
from emit.library.entry import INDEX
from emit.library.index import load_index
from results.measuring.measure import grid, page, run, synth, write
from synth.app.clusters.answer_check import checked_answer
from synth.app.clusters.task import solve, unpacked
from synth.storage.bundle import pack, unpack
from synth.storage.cache import Cache
from tests.emit.library.test_forged import COSTS, PLAIN, edit
from tests.synth.app.cli import test_known_forged as caches
from tests.synth.app.clusters import test_forged_answers as answers
from tests.synth.app.clusters.test_build import planned
from topologies.errors import InputError

LIBRARIES = {
    "XML": "allgather --topo ring:4 --engine baseline --size 1M --target executor-nccl --proof",
    "plan": "allreduce --topo full:4 --engine route --target mscclpp --proof",
    "with costs": "broadcast --topo dgx-a100:2 --group 0,1 --engine baseline --size 1M --costs machine --proof",
    "without a proof": "reducescatter --topo dgx1 --group 0,1,2,3 --engine route --size 64K --target executor-nccl",
    "groups": "allgather --topo ring:4 --groups 0,1;2,3 --size 1M --proof",
}
_NEITHER = ("kept", "answer")  # Fields that only a later build reads.
_OPTIONAL = ("vs_baseline", "libraries", "curve", "proof_file", "schedule", "isomorphic_groups", "sends", "engine")


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield other values of a field, each with a word for the change."""
    if isinstance(value, bool):
        yield "negated", not value
    elif isinstance(value, int | float):
        yield "halved", value / 2 if isinstance(value, float) else value // 2
        yield "doubled", value * 2
        yield "plus one", value + 1
    elif isinstance(value, str):
        yield "other text", value + "x"
        yield "an escape", value + "\x1b[2J"
    elif isinstance(value, list) and value:
        yield "cut short", value[:-1]
        for word, altered in changed(value[-1]):
            yield f"last one {word}", [*value[:-1], altered]
    elif isinstance(value, dict):
        for key, member in value.items():
            for word, altered in changed(member):
                yield f"{key} {word}", {**value, key: altered}
    if value is not None:
        yield "null", None


def verdict(folder: Path, before: set[tuple[str, str]], key: str = "") -> str:
    """Return what the check says of a forged library: refused, not proved or accepted.

    Args:
        folder: Folder of the library.
        before: What the check names as not proved in the honest library.
        key: The changed field. If the check names it as not proved, the change does not count as accepted.
    """
    try:
        report = check_library(folder, load_index(folder))
    except InputError:
        return "refused"
    if report.wrong:
        return "refused"
    names_key = any(key in statement.split(", ") for statement in report.unproved)
    return "not proved" if names_key or unproved(report) - before else "accepted"


def unproved(report: LibraryReport) -> set[tuple[str, str]]:
    """Return pairs of an unproved statement and the name of a file to which it belongs."""
    return {(statement, name) for statement, names in report.unproved.items() for name in names}


def claims_less(key: str, word: str) -> bool:
    """Return True if a change omits an optional field, or states a bound below the proved one."""
    omitted = word in ("null", "left out", "cut short") and key in _OPTIONAL
    return omitted or (key == "curve" and word == "last one last one halved")


def forge(honest: Path, every: int) -> Iterator[tuple[str, str]]:
    """Yield each forgery of a library's entries with the check's verdict."""
    report = check_library(honest, load_index(honest))
    if report.wrong:
        sys.exit(f"The library {honest.name} is wrong before it is forged: {report.wrong[0]}")
    before = unproved(report)
    rows = json.loads((honest / INDEX).read_bytes())["algorithms"]
    number = 0
    for key in rows[0]:
        if key in _NEITHER:
            continue
        values = [*changed(rows[0][key]), ("left out", ...)]
        for word, value in values:
            if key == "sha256" or value == rows[0][key] or (number := number + 1) % every:
                continue
            with tempfile.TemporaryDirectory() as name:
                folder = Path(shutil.copytree(honest, Path(name) / "lib"))

                def change(forged: list[dict[str, Any]], key: str = key, value: Any = value) -> None:
                    """Set or delete the field of the first entry."""
                    if value is ...:
                        del forged[0][key]
                    else:
                        forged[0][key] = copy.deepcopy(value)

                try:
                    edit(folder, change)
                except (OSError, KeyError, TypeError):  # No file has the forged name.
                    yield f"{key}: {word}", "refused"
                    continue
                outcome = verdict(folder, before, key)
                yield f"{key}: {word}", "claims less" if outcome == "accepted" and claims_less(key, word) else outcome


def by_hand(honest: Path, forgeries: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each forgery that the tests make by hand with the check's verdict."""
    before = unproved(check_library(honest, load_index(honest)))
    for name, change in forgeries.items():
        with tempfile.TemporaryDirectory() as folder:
            library = Path(shutil.copytree(honest, Path(folder) / "lib"))
            change(library)
            yield name, verdict(library, before)


def of_cache(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each forgery of a cached answer with what the command does with it."""
    cache = Cache(folder / "cache")
    command = synth(*caches.ASKED, "--cache", cache.folder)
    run([*command, "--out", str(folder / "first")])
    [path] = list((folder / "cache").glob("??/*"))
    data = cache.get(path.name)
    assert data is not None
    for name, change in caches.FORGERIES.items():
        about, files = unpack(data, "answer")
        change(about, files)
        cache.put(path.name, pack(about, files))
        ended = run([*command, "--out", str(folder / "forged")])
        yield name, "refused" if "is not believed" in ended.err and ended.code == 0 else f"accepted (exit {ended.code})"
        shutil.rmtree(folder / "forged", ignore_errors=True)


def of_answers(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each forgery of an answer to a cluster's problem with the check's verdict."""
    plan = planned(folder, answers.QUESTION)
    answer = unpacked(solve(plan.shares[0].task))
    for name, change in answers.FORGERIES.items():
        try:
            checked_answer(plan.shares[0], change(answer))
        except InputError:
            yield name, "refused"
        else:
            yield name, "accepted"


def main() -> None:
    """Check forged libraries, caches and answers, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every N-th change of a field")
    every = parser.parse_args().every
    rows: list[tuple[str, Counter[str]]] = []
    accepted: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, words in LIBRARIES.items():
            ended = run([*synth(*words.split()), "--budget", "3s", "--out", str(folder / kind)])
            if ended.code != 0:
                sys.exit(f"The library {kind!r} cannot be built: {ended.err}")
        parts = [(f"fields of an index, {kind}", forge(folder / kind, every)) for kind in LIBRARIES]
        parts += [("a library, forged by hand", by_hand(folder / "XML", PLAIN))]
        parts += [("a library with costs, forged by hand", by_hand(folder / "with costs", COSTS))]
        os.makedirs(folder / "kept")
        parts += [("answers of the cache", of_cache(folder / "kept")), ("answers of workers", of_answers(folder))]
        for title, forgeries in parts:
            counts: Counter[str] = Counter()
            for forgery, outcome in forgeries:
                counts[outcome] += 1
                if outcome.startswith("accepted"):
                    accepted.append(f"- {title}: {forgery}")
            rows.append((title, counts))
    names = ("refused", "not proved", "claims less", "accepted")
    table = grid(
        ("forged part", "forgeries", *names),
        [
            (title_of_row, outcomes.total(), *(outcomes[outcome_name] for outcome_name in names))
            for title_of_row, outcomes in rows
        ],
    )
    accepted_lines = "\n".join(accepted) or "none."
    about = (
        "*not proved*: the check reports that no file proves the field. *claims less*: an optional field is"
        " omitted, or the stated bound is below the proved one. Accepted forgeries:"
    )
    write(__file__, page(__file__, "Forged libraries, caches and answers", [table, about, accepted_lines]))


if __name__ == "__main__":
    main()
