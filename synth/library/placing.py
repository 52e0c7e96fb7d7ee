"""Answers in a library: files in the names of the questions that they answer, entries of the index, a build's record.

Beside the index a library that `synth library build` made has records, builds/TOPOLOGY-DIGEST.json, one a cluster file:

    format      "synth-build-1"
    topology    the topology's name; digest: of all that the cluster file asks for
    budget_class    seconds of work that engines counted for a problem
    shares      one for all questions that the same files answer:
        collective, root    root: its place in the group, null without
        groups      ranks in order; files stand in the name of the first
        key         of the answer; entries of the index state it as `answer`
        gap, cut    the largest time / bound; whether the clock ended the search
        files       SHA-256 by name in the library
        unfiled     ranges of sizes for which a target can hold no file: target, refused, and the fields of a row, with
                    the schedule
    left_out    questions without an answer: collective, group, root, why
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from emit.formats import restate_program
from emit.library.index import ISOMORPHIC, Entry, check_types
from emit.library.save import stem_of_problem
from emit.library.standing import network_digest
from emit.library.write import standing, writing
from emit.targets import TARGETS
from synth.bounds.witness import Witness
from synth.library.carried import carried
from synth.library.cluster import Cluster
from synth.library.plan import Plan, Question, Share
from synth.library.task import Answer, unpacked
from synth.model.collective import Ints
from synth.model.problem import Problem, question
from synth.storage.columns import json_object
from synth.storage.proof import load_proof, save_proof
from synth.storage.schedule_file import load_schedule, save_schedule
from synth.symmetry.canonical import resource_order
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, ProofRefused
from topologies.text.fields import Fields
from topologies.text.files import origin_of, read_bytes

RECORDS = "builds"
FORMAT = "synth-build-1"
_KINDS = ("schedule", "proof_file")
_MOST = (1 << 63) - 1
_MOST_RECORD_BYTES, _MOST_FILE_BYTES = 24 << 20, 1 << 30


class Placing:
    """A library that a build fills: answers gather here, and are written together now and then."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.shares: dict[int, dict[str, Any]] = {}  # records, by the share's place in the plan
        self.left_out: list[dict[str, Any]] = []
        self._waiting: list[tuple[Share, bytes]] = []  # packed: files of all take GBs
        self._recorded = (0, 0)
        self._record = f"{RECORDS}/{_plain(plan.cluster.topology.name)}-{cluster_digest(plan.cluster)}.json"

    def known(self) -> set[int]:
        """The shares, by their places, whose files stand in the library already, every byte as it was written."""
        try:
            written = read_record(self.folder, self.folder / self._record)
        except InputError:
            return set()
        before = {row["key"]: row for row in written["shares"]}
        listed = {entry.file: entry for entry in standing(self.folder)}
        for number, share in enumerate(self.plan.shares):
            row = before.get(share.task.key)
            if row is not None and row["groups"] == _groups(share) and _stands(self.folder, row, listed):
                self.shares[number] = row
        self._recorded = (
            (len(self.shares), len(written["left_out"])) if len(self.shares) == len(written["shares"]) else (0, 0)
        )
        return set(self.shares)

    def add(self, number: int, answer: Answer, packed: bytes) -> None:
        """Take the answer of a share, and its bytes; it is written with the next `commit`."""
        share = self.plan.shares[number]
        self._waiting.append((share, packed))
        self.shares[number] = {
            "collective": share.first.collective,
            "root": None if share.first.root is None else share.first.group.index(share.first.root),
            "groups": _groups(share),
            "key": share.task.key,
            "gap": answer.gap,
            "cut": answer.cut,
        }

    def leave_out(self, asked: Sequence[Question], why: str) -> None:
        """Questions that get no answer."""
        self.left_out += [
            {"collective": q.collective, "group": list(q.group), "root": q.root, "why": why} for q in asked
        ]

    @property
    def changed(self) -> bool:
        """Whether something is not written yet."""
        return bool(self._waiting) or self._recorded != (len(self.shares), len(self.left_out))

    def commit(self, until: float = math.inf, elsewhere: bool = False) -> Path:
        """Write what was added since the last time, and return the folder in which it is.

        Args:
            until: The time of `now` when a wait for another writer ends.
            elsewhere: Whether to write to a new folder beside the library where that wait ends in vain.

        Raises:
            InputError: The folder cannot be written. Nothing of what was added is lost then.
        """
        waiting = list(self._waiting)
        numbers = {id(share): number for number, share in enumerate(self.plan.shares)}
        with writing(self.folder, until=until, elsewhere=elsewhere) as library:
            rows: dict[tuple[str, str, tuple[int, ...]], list[Mapping[str, Any]]] = {}
            served: dict[object, list[tuple[int, ...]]] = {}  # further groups, which another build may have named
            for entry in library.entries:
                known = str(entry.values.get("answer")), entry.collective, entry.group
                rows.setdefault(known, []).append(entry.values)
                served.setdefault((entry.question[:-1], entry.values.get("network")), []).extend(
                    entry.isomorphic_groups
                )
            for share, packed in waiting:
                named = in_its_name(share, unpacked(packed), library.entries)
                for name, data in named.files.items():
                    library.write(name, data)
                rows[_place_of(share)] = []
                for row in named.rows:
                    asked = *(row[key] for key in ("collective", "topology")), share.first.group, (), row["root"]
                    known_groups = served.get((asked, row["network"]), ())
                    groups = dict.fromkeys([*(one.group for one in share.questions), *known_groups])
                    others = [list(ranks) for ranks in groups if ranks != share.first.group]
                    more = {"answer": named.key} | ({ISOMORPHIC: others} if others else {})
                    rows[_place_of(share)].append({**row, **more})
                self.shares[numbers[id(share)]] |= {
                    "files": {name: hashlib.sha256(data).hexdigest() for name, data in named.files.items()},
                    "unfiled": list(named.unfiled),
                }
            library.write(self._record, self._text())
            # in the order of the plan, so that the index has the same bytes whatever was solved first
            library.commit([row for share in self.plan.shares for row in rows.get(_place_of(share), ())], indexed=True)
        self._waiting = self._waiting[len(waiting) :]
        self._recorded = (len(self.shares), len(self.left_out))
        return library.folder

    def _text(self) -> bytes:
        cluster = self.plan.cluster
        about = {
            "format": FORMAT,
            "topology": cluster.topology.name,
            "digest": cluster_digest(cluster),
            "budget_class": self.plan.searches[0].work_s,
            "shares": [self.shares[number] for number in sorted(self.shares)],
            "left_out": self.left_out,
        }
        return (json.dumps(about, ensure_ascii=False, indent=1) + "\n").encode()


def unfiled_schedules(folder: str | Path) -> list[dict[str, Any]]:
    """What builds recorded of ranges of sizes for which a target can hold no file: the rows that have a schedule.

    With the collective, the groups and the root (its place in the group) of each. A record that is none is left out.
    """
    found = []
    for path in sorted((Path(folder) / RECORDS).glob("*.json")):
        with suppress(InputError):
            for share in read_record(Path(folder), path)["shares"]:
                about = {key: share[key] for key in ("collective", "groups", "root")}
                found += [{**row, **about} for row in share.get("unfiled", []) if row.get("schedule")]
    return found


def read_record(folder: Path, path: Path) -> dict[str, Any]:
    """Return what a build recorded of a library, each of its fields of the type that its readers expect.

    Raises InputError for what is no such record, and where a link inside the library leads to it.
    """
    origin = origin_of(path)
    data = read_bytes(path, "a record of synth library build", _MOST_RECORD_BYTES, inside=folder)
    top = Fields(json_object(data, origin), "", origin)
    if top.string("format") != FORMAT:
        top.fail("format", f"must be {FORMAT}")
    left_out = top.values.get("left_out")
    if not isinstance(left_out, list) or not isinstance(top.values.get("shares"), list):
        top.fail("shares", "missing, or left_out is; both must be arrays")
    for share in top.tables("shares"):
        _check_share(share)
    return dict(top.values)


def _check_share(share: Fields) -> None:
    share.string("collective")
    share.string("key")
    groups = share.values.get("groups")
    if not isinstance(groups, list) or not groups or not all(map(_is_group, groups)):
        share.fail("groups", "must be arrays of ranks, one at least")
    if share.values.get("root") is not None:
        share.integer("root", 0, len(groups[0]) - 1)
    files = share.values.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        share.fail("files", "must be an object of digests by the files' names")
    for row in share.tables("unfiled"):
        if row.values.get("schedule") is None:
            continue
        for key in ("schedule", "target"):
            row.string(key)
        row.integer("min_bytes", 0, _MOST)
        if row.values.get("max_bytes") is not None:
            row.integer("max_bytes", 0, _MOST)
        for key in ("engine", "steps", "rounds", "chunks", "shown_bytes", "time_us", "bound_us", "gap"):
            if row.values.get(key) is None:
                row.fail(key, "missing; it must be what the search states of its schedule")
        check_types(row)


def _is_group(ranks: object) -> bool:
    return (
        isinstance(ranks, list) and len(ranks) > 0 and all(type(rank) is int and 0 <= rank <= _MOST for rank in ranks)
    )


def cluster_digest(cluster: Cluster) -> str:
    """Of all that a cluster file asks for."""
    asked = asdict(replace(cluster, topology=None, healthy=None))  # type: ignore[arg-type]
    return hashlib.sha256(json.dumps([cluster.topology.name, asked]).encode()).hexdigest()[:8]


def _place_of(share: Share) -> tuple[str, str, tuple[int, ...]]:
    return share.task.key, share.first.collective, share.first.group


def _groups(share: Share) -> list[list[int]]:
    return [list(one.group) for one in share.questions]


def _stands(folder: Path, row: Mapping[str, Any], listed: Mapping[str, Any]) -> bool:
    """Whether all files of a share are there as they were written, and the index has those of executors."""
    try:
        for name, digest in row["files"].items():
            data = read_bytes(folder / name, "a file of the library", _MOST_FILE_BYTES, inside=folder)
            if hashlib.sha256(data).hexdigest() != digest:
                return False
            inside = name.startswith("schedules/") or (name in listed and listed[name].values["answer"] == row["key"])
            if not inside:
                return False
    except (InputError, KeyError, TypeError, AttributeError):
        return False
    return True


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "-" for c in name)[:60]


def in_its_name(share: Share, answer: Answer, entries: Sequence[Entry] = ()) -> Answer:
    """Return an answer with names, ranks and topology of the share's first question, in whose name its files stand.

    Args:
        entries: Entries of the library for which the files are: no name of theirs is taken.
    """
    problem = replace(share.task, group=share.first.group, root=share.first.root).problem()
    asked = question(problem)
    stem = stem_of_problem(problem)
    others = {entry.file for entry in entries if any(entry.values[key] != asked[key] for key in asked)}
    if any(Path(name).name.startswith(f"{stem}-") for name in others):
        stem += f"-{answer.key[:8]}"  # a topology whose name differs in what no file name has
    if stem == answer.stem and all(asked[key] == answer.instance[key] for key in answer.instance):
        return answer
    files = dict(_restored(answer, problem, stem))
    rows = []
    for row in answer.rows:
        target, name = TARGETS[row["target"]], _renamed(row["file"], answer.stem, stem)
        base = Path(name).name.removesuffix(target.suffix)
        text = answer.files[row["file"]].decode()
        files[name] = restate_program(text, base, row["min_bytes"], row["max_bytes"], target).encode()
        stored = {kind: _stored(row, kind, answer.stem, stem, files) for kind in _KINDS}
        ranks = {"communicator": list(problem.ranks), "network": network_digest(problem)}
        own = {key: value for key, value in row.items() if key != "sha256"}
        rows.append({**own, **asked, **ranks, **stored, "file": name})
    unfiled = [
        {**row, **{kind: _stored(row, kind, answer.stem, stem, files) for kind in _KINDS if row.get(kind)}}
        for row in answer.unfiled
    ]
    return replace(answer, rows=rows, unfiled=unfiled, files=files, stem=stem)


def _renamed(name: str, old: str, new: str) -> str:
    folder, _, base = name.partition("/")
    return f"{folder}/{new}{base.removeprefix(old)}"


def _stored(row: Mapping[str, Any], kind: str, old: str, new: str, files: Mapping[str, bytes]) -> str | None:
    """The name of a row's schedule or proof, None where there is none."""
    name = None if row.get(kind) is None else _renamed(row[kind], old, new)
    return name if name in files else None


def _restored(answer: Answer, problem: Problem, stem: str) -> dict[str, bytes]:
    """Schedules of an answer as those of a problem with the same network, replayed, and their proofs, checked."""
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, data in answer.files.items():
            if not name.endswith(".synth"):
                continue
            path = Path(folder) / "old.synth"
            path.write_bytes(data)
            stored = load_schedule(path)
            size, engine = stored.schedule.size_bytes, str(stored.header["engine"])
            known = Algorithm(stored.problem, stored.schedule, engine, size_bytes=size)
            onto = problem.under(stored.problem.topology.protocol) if problem.protocols else problem
            one = carried(known, onto, np.arange(problem.nranks))
            new = save_schedule(Path(folder) / "new.synth", one, size)
            files[_renamed(name, answer.stem, stem)] = new.read_bytes()
            proof = name.removesuffix(".synth") + ".proof.json"
            if proof not in answer.files:
                continue
            beside = path.with_name("old.proof.json")
            beside.write_bytes(answer.files[proof])
            place = _resource_map(stored.problem, problem)
            witnesses = [_moved(witness, place) for witness in load_proof(beside).witnesses]
            with suppress(ProofRefused, InputError):
                at = save_proof(new, problem, witnesses, size, one.time_us(size))
                files[_renamed(proof, answer.stem, stem)] = at.read_bytes()
    return files


def _moved(witness: Witness, place: Ints) -> Witness:
    """A witness with the resources of another network; what it proves there is worked out anew."""
    return replace(
        witness,
        resources=tuple(int(place[one]) for one in witness.resources),
        prices=tuple((int(place[one]), price) for one, price in witness.prices),
        windows=tuple((int(place[one]), slot, price) for one, slot, price in witness.windows),
    )


def _resource_map(old: Problem, new: Problem) -> Ints:
    """The new number of each resource of an equal network, and of each link as a resource of its own."""
    net = old.network
    place = np.arange(net.nresources + net.ncarriers)
    place[resource_order(net)] = resource_order(new.network)
    return place
