"""Forged libraries and caches: what changes its meaning while every digest is right, and what the checks say of it.

    python -m results.scripts.forged [--every N]

makes forged.md. Each field of each entry is changed in each way that its type allows; besides there are the forgeries
of the tests, made by hand.
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

from emit.library.checking.check import Report, check_library
from emit.library.index import INDEX, load_index
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
_NEITHER = ("kept", "answer")  # what a build notes for itself
_OPTIONAL = ("vs_baseline", "libraries", "curve", "proof_file", "schedule", "isomorphic_groups", "sends", "engine")


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield other values of a field, each with a word for the change."""
    if isinstance(value, bool):
        yield "turned", not value
    elif isinstance(value, int | float):
        yield "halved", value / 2 if isinstance(value, float) else value // 2
        yield "doubled", value * 2
        yield "plus one", value + 1
    elif isinstance(value, str):
        yield "other text", value + "x"
        yield "an escape", value + "\x1b[2J"
    elif isinstance(value, list) and value:
        yield "cut short", value[:-1]
        for word, other in changed(value[-1]):
            yield f"last one {word}", [*value[:-1], other]
    elif isinstance(value, dict):
        for key, own in value.items():
            for word, other in changed(own):
                yield f"{key} {word}", {**value, key: other}
    if value is not None:
        yield "null", None


def verdict(folder: Path, before: set[tuple[str, str]], key: str = "") -> str:
    """Return what the check says of a library, beside what it said of the honest one.

    Args:
        key: The field that was changed. Where the check names it as not proved, it is not taken for true.
    """
    try:
        report = check_library(folder, load_index(folder))
    except InputError:
        return "refused"
    if report.wrong:
        return "refused"
    names_key = any(key in what.split(", ") for what in report.unproved)
    return "not proved" if names_key or unproved(report) - before else "accepted"


def unproved(report: Report) -> set[tuple[str, str]]:
    return {(what, name) for what, names in report.unproved.items() for name in names}


def claims_less(key: str, word: str) -> bool:
    """Return whether a change leaves out what need not be stated, or states a bound below the one that is proved."""
    left_out = word in ("null", "left out", "cut short") and key in _OPTIONAL
    return left_out or (key == "curve" and word == "last one last one halved")


def forge(honest: Path, every: int) -> Iterator[tuple[str, str]]:
    """Yield each forgery of a library's entries with the check's verdict."""
    report = check_library(honest, load_index(honest))
    if report.wrong:
        sys.exit(f"the honest library {honest.name} is wrong: {report.wrong[0]}")
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
                    if value is ...:
                        del forged[0][key]
                    else:
                        forged[0][key] = copy.deepcopy(value)

                try:
                    edit(folder, change)
                except (OSError, KeyError, TypeError):  # a file of this name is not there
                    yield f"{key}: {word}", "refused"
                    continue
                found = verdict(folder, before, key)
                yield f"{key}: {word}", "claims less" if found == "accepted" and claims_less(key, word) else found


def by_hand(honest: Path, forgeries: dict[str, Any]) -> Iterator[tuple[str, str]]:
    before = unproved(check_library(honest, load_index(honest)))
    for name, change in forgeries.items():
        with tempfile.TemporaryDirectory() as folder:
            library = Path(shutil.copytree(honest, Path(folder) / "lib"))
            change(library)
            yield name, verdict(library, before)


def of_cache(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each forgery of a kept answer with what the command made of it."""
    cache = Cache(folder / "cache")
    asked = synth(*caches.ASKED, "--cache", cache.folder)
    run([*asked, "--out", str(folder / "first")])
    [path] = list((folder / "cache").glob("??/*"))
    data = cache.get(path.name)
    assert data is not None
    for name, change in caches.FORGERIES.items():
        about, files = unpack(data, "answer")
        change(about, files)
        cache.put(path.name, pack(about, files))
        done = run([*asked, "--out", str(folder / "forged")])
        yield name, "refused" if "is not believed" in done.err and done.code == 0 else f"accepted (exit {done.code})"
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every Nth change of a field")
    every = parser.parse_args().every
    rows: list[tuple[str, Counter[str]]] = []
    accepted: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, words in LIBRARIES.items():
            done = run([*synth(*words.split()), "--budget", "3s", "--out", str(folder / kind)])
            if done.code != 0:
                sys.exit(f"{kind}: {done.err}")
        parts = [(f"fields of an index, {kind}", forge(folder / kind, every)) for kind in LIBRARIES]
        parts += [("a library, by hand", by_hand(folder / "XML", PLAIN))]
        parts += [("a library with costs, by hand", by_hand(folder / "with costs", COSTS))]
        os.makedirs(folder / "kept")
        parts += [("answers of the cache", of_cache(folder / "kept")), ("answers of workers", of_answers(folder))]
        for title, forgeries in parts:
            counts: Counter[str] = Counter()
            for what, found in forgeries:
                counts[found] += 1
                if found.startswith("accepted"):
                    accepted.append(f"- {title}: {what}")
            rows.append((title, counts))
    names = ("refused", "not proved", "claims less", "accepted")
    table = grid(("what is forged", "forgeries", *names), [(t, c.total(), *(c[n] for n in names)) for t, c in rows])
    listed = "\n".join(accepted) or "None was accepted."
    about = (
        "*not proved*: the check names the field as one that no file proves. *claims less*: what need not be stated is"
        " left out, or a bound below the proved one is stated. Accepted:"
    )
    write(__file__, page(__file__, "Forged libraries, caches and answers", [table, about, listed]))


if __name__ == "__main__":
    main()
