"""Answers placed in a library: files in the names of the answered questions, index entries, and a build's record.

A library that `synth library build` made has records beside the index, builds/TOPOLOGY-DIGEST.json, one for each
cluster file:

    format      "synth-build-1"
    topology    the topology's name
    digest      digest of all that the cluster file asks for
    sizes       the least and the most bytes that the cluster file asks for; earlier versions stated none
    budget_class    seconds of work that engines counted for a problem
    shares      one for all questions that the same files answer:
        collective, root    root: its place in the group, null without
        groups      ranks in order; files stand in the name of the first
        key         key of the answer; index entries state it as `answer`
        gap, cut    the largest time / bound; whether the clock ended the search
        files       SHA-256 by name in the library
        unfiled     ranges of sizes without a file: target, refused, min_bytes and max_bytes, and where the target can
                    hold none the fields of a row, with the schedule
    left_out    questions without an answer: collective, group, root, why
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from emit.formats import restate_program
from emit.library.checking.schedules import costed_as_stated
from emit.library.entry import ISOMORPHIC, IndexEntry, check_types
from emit.library.library_file import CHECKED_PER_S, network_digest
from emit.library.networks import Networks
from emit.library.saving.save import stem_of_problem
from emit.library.saving.write import existing_entries, writing
from emit.targets import TARGETS
from synth.app.clusters.carried import relabel
from synth.app.clusters.cluster import Cluster
from synth.app.clusters.merging import Merged, merge_answer
from synth.app.clusters.plan import BuildPlan, BuildQuestion, BuildShare
from synth.app.clusters.task import Answer, unpacked
from synth.baselines.vendors import LIBRARIES
from synth.model.collective import Ints
from synth.model.problem import LARGEST, SMALLEST, Problem, question
from synth.search.statement import beside
from synth.storage.columns import json_object
from synth.storage.proof import load_proof, save_proof
from synth.storage.schedule_file import load_schedule, save_schedule
from synth.symmetry.canonical import resource_order
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, NotModelled, ProofRefused
from topologies.text.fields import Fields
from topologies.text.files import origin_of, read_bytes

RECORDS = "builds"
FORMAT = "synth-build-1"
_KINDS = ("schedule", "proof_file")
_MOST = (1 << 63) - 1
_MOST_RECORD_BYTES, _MOST_FILE_BYTES = 24 << 20, 1 << 30


class Placing:
    """A library that a build fills: answers gather here, and are written in batches.

    Attributes:
        folder: The library's folder.
        plan: The plan of the build.
        shares: Records of answered shares, by their numbers in the plan.
        left_out: Records of questions without an answer.
    """

    def __init__(self, folder: Path, plan: BuildPlan) -> None:
        self.folder, self.plan = folder, plan
        self.shares: dict[int, dict[str, Any]] = {}
        self.left_out: list[dict[str, Any]] = []
        self._waiting: list[tuple[BuildShare, bytes]] = []  # Answers are packed, since the files of all take GBs.
        self._recorded = (0, 0)
        self._record = f"{RECORDS}/{_plain(plan.cluster.topology.name)}-{cluster_digest(plan.cluster)}.json"

    def known(self) -> set[int]:
        """Return the numbers of the shares whose files are in the library already, each byte as it was written.

        The records of these shares are taken into `shares`, also those of answers that the clock cut short, which are
        not in the result. Without a readable record of the build the result is empty.
        """
        try:
            record = read_record(self.folder, self.folder / self._record)
        except InputError:
            return set()
        row_of_key = {row["key"]: row for row in record["shares"]}
        entry_of_file = {entry.file: entry for entry in existing_entries(self.folder)}
        for number, share in enumerate(self.plan.shares):
            row = row_of_key.get(share.task.key)
            if row is not None and row["groups"] == _groups(share) and _is_intact(self.folder, row, entry_of_file):
                self.shares[number] = row
        self._recorded = (
            (len(self.shares), len(record["left_out"])) if len(self.shares) == len(record["shares"]) else (0, 0)
        )
        return {number for number, row in self.shares.items() if not row.get("cut")}

    def add(self, number: int, answer: Answer, packed: bytes) -> None:
        """Add the answer of a share; the next `commit` writes it. An earlier record of the share is replaced.

        At each size the faster file of the two answers stays.

        Args:
            number: Number of the share in the plan.
            answer: The answer.
            packed: The same answer as bytes.
        """
        share, earlier = self.plan.shares[number], self.shares.get(number)
        self._waiting.append((share, packed))
        self.shares[number] = {
            "collective": share.first.collective,
            "root": None if share.first.root is None else share.first.group.index(share.first.root),
            "groups": _groups(share),
            "key": share.task.key,
            "gap": answer.gap if earlier is None else min(earlier["gap"], answer.gap),
            "cut": answer.cut,
        }

    def merging_s(self, numbers: Iterable[int]) -> float:
        """Return about how many seconds it takes to merge answers with the files that the library has for the shares.

        The answers are about as large as these files.

        Args:
            numbers: Numbers of the shares in the plan.
        """
        firsts = {(share.first.collective, share.first.group) for share in map(self.plan.shares.__getitem__, numbers)}
        sizes = [
            entry.path.stat().st_size
            for entry in existing_entries(self.folder)
            if (entry.collective, entry.group) in firsts and entry.path.is_file()
        ]
        return 2 * sum(sizes) / CHECKED_PER_S

    def leave_out(self, questions: Sequence[BuildQuestion], why: str) -> None:
        """Record questions that get no answer; the next `commit` writes the record.

        Args:
            questions: The questions.
            why: Why they get none.
        """
        self.left_out += [
            {"collective": lost.collective, "group": list(lost.group), "root": lost.root, "why": why}
            for lost in questions
        ]

    @property
    def changed(self) -> bool:
        """Return whether an answer or a question without one waits for the next `commit`."""
        return bool(self._waiting) or self._recorded != (len(self.shares), len(self.left_out))

    def commit(self, until: float = math.inf, elsewhere: bool = False) -> Path:
        """Write the answers that were added since the last commit, and return the folder in which they are.

        The record of the build and the index are written too; the index has the plan's order. Groups that other builds
        named for the same files stay in it.

        Args:
            until: The time of `synth.model.deadline.now` when a wait for another writer ends.
            elsewhere: Whether to write to a new folder next to the library if the other writer does not end by then.

        Raises:
            InputError: The folder cannot be written. No added answer is lost then.
        """
        waiting = list(self._waiting)
        numbers = {id(share): number for number, share in enumerate(self.plan.shares)}
        with writing(self.folder, until=until, elsewhere=elsewhere) as library:
            entries: dict[tuple[str, str, tuple[int, ...]], list[IndexEntry]] = {}
            # Other builds may have named further groups.
            groups_of_question: dict[object, list[tuple[int, ...]]] = {}
            for entry in library.entries:
                entries.setdefault((str(entry.answer), entry.collective, entry.group), []).append(entry)
                key = entry.question[:-1], entry.network
                groups_of_question.setdefault(key, []).extend(entry.isomorphic_groups)
            for share, packed in waiting:
                placed = in_its_name(share, unpacked(packed), library.entries)
                problem = replace(share.task, group=share.first.group, root=share.first.root).problem()
                asked = question(problem)
                existing = [entry for entry in library.entries if entry.answers(asked)]
                merged = merge_answer(placed, problem, existing, library.folder)
                for name, data in merged.files.items():
                    library.write(name, data)
                entries[_place_of(share)] = []
                for entry in merged.entries:
                    known_groups = groups_of_question.get((entry.question[:-1], entry.network), ())
                    groups = dict.fromkeys(
                        [*(share_question.group for share_question in share.questions), *known_groups]
                    )
                    further_groups = [list(ranks) for ranks in groups if ranks != share.first.group]
                    additions = {"answer": placed.key} | ({ISOMORPHIC: further_groups} if further_groups else {})
                    entries[_place_of(share)].append(entry.restated(**additions))
                self.shares[numbers[id(share)]] |= {
                    "gap": self._gap(merged),
                    "files": _digests(merged, library.folder),
                    "unfiled": list(merged.unfiled),
                }
            library.write(self._record, self._text())
            library.keep(self.plan.cluster.topology)
            # Keep the order of the plan, so that the index has the same bytes whatever was solved first.
            ordered = [entry for share in self.plan.shares for entry in entries.get(_place_of(share), ())]
            library.commit(ordered, indexed=True)
        self._waiting = self._waiting[len(waiting) :]
        self._recorded = (len(self.shares), len(self.left_out))
        return library.folder

    def _gap(self, merged: Merged) -> float:
        """Return the largest gap of the files and schedules of a share at the sizes that are asked for."""
        cluster = self.plan.cluster
        asked = (entry.at_sizes(cluster.low, cluster.high) for entry in merged.entries)
        rows = [entry.row for entry in asked if entry is not None] or [entry.row for entry in merged.entries]
        gaps = [(row.get("worst") or row).get("gap") for row in (*rows, *merged.unfiled)]
        return max((gap for gap in gaps if gap is not None), default=1.0)

    def _text(self) -> bytes:
        """Return the record of the build as the bytes of its file."""
        cluster = self.plan.cluster
        about = {
            "format": FORMAT,
            "topology": cluster.topology.name,
            "digest": cluster_digest(cluster),
            "sizes": [cluster.low, cluster.high],
            "budget_class": self.plan.searches[0].work_s,
            "shares": [self.shares[number] for number in sorted(self.shares)],
            "left_out": self.left_out,
        }
        return (json.dumps(about, ensure_ascii=False, indent=1) + "\n").encode()


def unfiled_schedules(folder: str | Path) -> list[dict[str, Any]]:
    """Return the recorded rows of size ranges for which a target can hold no file, if they have a schedule.

    Each row also has the collective, the groups and the root (its index in the group, or None). A file that is no
    record is left out.

    Args:
        folder: The library.
    """
    rows = []
    for share in recorded_shares(folder):
        about = {key: share[key] for key in ("collective", "groups", "root")}
        rows += [{**row, **about} for row in share.get("unfiled", []) if row.get("schedule")]
    return rows


def recorded_shares(folder: str | Path) -> list[dict[str, Any]]:
    """Return the shares of all builds that a library records; a file that is no record is left out."""
    shares = []
    for path in sorted((Path(folder) / RECORDS).glob("*.json")):
        with suppress(InputError):
            shares += read_record(Path(folder), path)["shares"]
    return shares


def why_no_file(shares: Iterable[Mapping[str, Any]], entry: IndexEntry, low: int, high: int | None) -> str:
    """Return why a build's library has no file for sizes of a question, by its records; "" if they do not say it.

    Args:
        shares: The library's `recorded_shares`.
        entry: An entry of the question.
        low: Smallest size in bytes.
        high: Largest size in bytes; None where there is no end.
    """
    last, is_cut = _MOST if high is None else high, False
    for share in shares:
        if share["collective"] != entry.collective or share["groups"][0] != list(entry.group):
            continue
        is_cut |= bool(share.get("cut"))
        for row in share.get("unfiled", ()):
            end = _MOST if row.get("max_bytes") is None else row["max_bytes"]
            if row["target"] == entry.target and row.get("min_bytes", _MOST) <= last and low <= end:
                return "".join(char for char in row["refused"] if char.isprintable())
    return "the time of the build ran out; a longer budget may find one" if is_cut else ""


def at_asked_sizes(entries: Iterable[IndexEntry]) -> list[IndexEntry]:
    """Return entries that state only the sizes for which their builds were asked; other entries stay as they are.

    An entry whose file serves none of these sizes is left out.

    Args:
        entries: Entries of one library, or of a failure and its surrounding library.
    """
    networks, limited_entries, asked_of_folder = Networks(), list[IndexEntry](), dict[Path, dict[str, list[int]]]()
    for entry in entries:
        if entry.folder not in asked_of_folder:
            asked_of_folder[entry.folder] = _asked_sizes(entry.folder)
        sizes = asked_of_folder[entry.folder].get(str(entry.answer))
        limited = entry if sizes is None else entry.at_sizes(*sizes)
        if limited is not None and limited.shown_bytes != entry.shown_bytes:
            libraries = _libraries_at_shown_size(limited, entry, networks)
            limited = replace(limited.restated(libraries=libraries), asked=limited.asked)
        limited_entries += [] if limited is None else [limited]
    return limited_entries


def _asked_sizes(folder: Path) -> dict[str, list[int]]:
    """Return the least and the most bytes that a library's builds were asked for, by the keys of their answers.

    Answers for all sizes are left out, and so are those of records that cannot be read or state no sizes.
    """
    sizes_of_key = dict[str, list[int]]()
    for path in sorted((folder / RECORDS).glob("*.json")):
        with suppress(InputError):
            record = read_record(folder, path)
            if record.get("sizes", [SMALLEST, LARGEST]) != [SMALLEST, LARGEST]:
                sizes_of_key |= {share["key"]: record["sizes"] for share in record["shares"]}
    return sizes_of_key


def _libraries_at_shown_size(entry: IndexEntry, compared: IndexEntry, networks: Networks) -> dict[str, Any]:
    """Return what vendor libraries would run at the size that an entry is shown at, as its row's `libraries` has it.

    Args:
        entry: The entry.
        compared: The same entry at another size; the result has its libraries whose models are known here.
        networks: Networks by the names of topologies.
    """
    choices, size, time_us = dict[str, Any](), entry.shown_bytes, entry.time_us
    named = networks.of(entry)
    network = None if named is None else costed_as_stated(entry, named)
    if network is None or size is None or time_us is None:
        return choices
    for name in compared.row.get("libraries") or {}:
        with suppress(InputError, NotModelled, KeyError):
            choice = LIBRARIES[name].model(network, entry.communicator).choose(entry.collective, size)
            choices[name] = beside(choice, time_us)
    return choices


def read_record(folder: Path, path: Path) -> dict[str, Any]:
    """Return what a build recorded of a library, with each field of the type that its readers expect.

    Args:
        folder: The library.
        path: The record's file in it.

    Returns:
        The record; its keys are those that `Placing` writes, among them shares and left_out.

    Raises:
        InputError: The file cannot be read or is no such record, or a link inside the library leads to it.
    """
    origin = origin_of(path)
    data = read_bytes(path, "a record of synth library build", _MOST_RECORD_BYTES, inside=folder)
    top = Fields(json_object(data, origin), "", origin)
    if top.string("format") != FORMAT:
        top.fail("format", f"must be {FORMAT}")
    left_out = top.values.get("left_out")
    if not isinstance(left_out, list) or not isinstance(top.values.get("shares"), list):
        top.fail("shares", "missing, or left_out is; both must be arrays")
    if "sizes" in top.values and not (_are_whole_numbers(sizes := top.values["sizes"]) and len(sizes) == 2):
        top.fail("sizes", "must be two sizes in bytes, the least and the most")
    for share in top.tables("shares"):
        _check_share(share)
    return dict(top.values)


def _check_share(share: Fields) -> None:
    """Check the types of a record's share; raise InputError for the first field that is wrong.

    Of rows without a file only those with a schedule are checked.
    """
    share.string("collective")
    share.string("key")
    groups = share.values.get("groups")
    if not isinstance(groups, list) or not groups or not all(map(_are_whole_numbers, groups)):
        share.fail("groups", "must be arrays of ranks, one at least")
    if share.values.get("root") is not None:
        share.integer("root", 0, len(groups[0]) - 1)
    share.number("gap", 1.0, math.inf, "times the bound")
    if not isinstance(share.values.get("cut", False), bool):
        share.fail("cut", "must be true or false")
    files = share.values.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        share.fail("files", "must be an object of digests by the files' names")
    for row in share.tables("unfiled"):
        row.string("target")
        row.string("refused")
        if row.values.get("schedule") is None and "min_bytes" not in row.values:
            continue
        row.integer("min_bytes", 0, _MOST)
        if row.values.get("max_bytes") is not None:
            row.integer("max_bytes", 0, _MOST)
        if row.values.get("schedule") is None:
            continue
        row.string("schedule")
        for key in ("engine", "steps", "rounds", "chunks", "shown_bytes", "time_us", "bound_us", "gap"):
            if row.values.get(key) is None:
                row.fail(key, "missing; it must be what the search states of its schedule")
        check_types(row)


def _are_whole_numbers(values: object) -> bool:
    return (
        isinstance(values, list)
        and len(values) > 0
        and all(type(value) is int and 0 <= value <= _MOST for value in values)
    )


def cluster_digest(cluster: Cluster) -> str:
    """Return a digest (8 hexadecimal digits) of all that a cluster file asks for; the topology counts by its name."""
    fields = asdict(replace(cluster, topology=None, healthy=None))  # type: ignore[arg-type]
    return hashlib.sha256(json.dumps([cluster.topology.name, fields]).encode()).hexdigest()[:8]


def _digests(merged: Merged, folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a question by its name, kept files of the library included."""
    names = {name for entry in merged.entries for name in entry.files.values()} | merged.files.keys()
    contents = {
        name: merged.files[name] if name in merged.files else (folder / name).read_bytes() for name in sorted(names)
    }
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}


def _place_of(share: BuildShare) -> tuple[str, str, tuple[int, ...]]:
    """Return what tells the index rows of a share from those of other shares: key, collective and first group."""
    return share.task.key, share.first.collective, share.first.group


def _groups(share: BuildShare) -> list[list[int]]:
    """Return the groups of a share as lists."""
    return [list(share_question.group) for share_question in share.questions]


def _is_intact(folder: Path, row: Mapping[str, Any], entry_of_file: Mapping[str, IndexEntry]) -> bool:
    """Return whether all files of a share are as they were written, and the index lists those of executors.

    Args:
        folder: The library.
        row: The share's record. False is returned if it names no files or is malformed.
        entry_of_file: The index's entries by file.
    """
    try:
        for name, digest in row["files"].items():
            data = read_bytes(folder / name, "a file of the library", _MOST_FILE_BYTES, inside=folder)
            if hashlib.sha256(data).hexdigest() != digest:
                return False
            is_listed = name.startswith("schedules/") or (
                name in entry_of_file and entry_of_file[name].answer == row["key"]
            )
            if not is_listed:
                return False
    except (InputError, KeyError, TypeError, AttributeError):
        return False
    return True


def _plain(name: str) -> str:
    """Return a name with all but letters, digits, points and underscores replaced by -, in at most 60 characters."""
    return "".join(c if c.isalnum() or c in "._" else "-" for c in name)[:60]


def in_its_name(share: BuildShare, answer: Answer, entries: Sequence[IndexEntry] = ()) -> Answer:
    """Return an answer with the names, ranks and topology of the share's first question, whose name its files have.

    The answer itself is returned if it has them already. Otherwise schedules are relabelled and replayed, and proofs
    are checked again; proofs that no longer hold are left out.

    Args:
        share: The questions that the files answer.
        answer: The answer, perhaps to the same problem with other ranks or another topology.
        entries: Entries of the library for which the files are. If a file of another question there has a name that
            begins equally, the key's first 8 digits are added to the names.
    """
    problem = replace(share.task, group=share.first.group, root=share.first.root).problem()
    stated_question = question(problem)
    stem = stem_of_problem(problem)
    taken_names = {entry.file for entry in entries if not entry.answers(stated_question)}
    if any(Path(name).name.startswith(f"{stem}-") for name in taken_names):
        stem += f"-{answer.key[:8]}"  # The topologies' names differ only in characters that no file name has.
    if stem == answer.stem and all(stated_question[key] == answer.instance[key] for key in answer.instance):
        return answer
    files = dict(_restate_schedules(answer, problem, stem))
    rows = []
    for row in answer.rows:
        target, name = TARGETS[row["target"]], _renamed(row["file"], answer.stem, stem)
        base = Path(name).name.removesuffix(target.suffix)
        text = answer.files[row["file"]].decode()
        files[name] = restate_program(text, base, row["min_bytes"], row["max_bytes"], target).encode()
        schedules_and_proofs = {kind: _stored_name(row, kind, answer.stem, stem, files) for kind in _KINDS}
        ranks = {"communicator": list(problem.ranks), "network": network_digest(problem)}
        row_values = {key: value for key, value in row.items() if key != "sha256"}
        rows.append({**row_values, **stated_question, **ranks, **schedules_and_proofs, "file": name})
    unfiled = [
        {**row, **{kind: _stored_name(row, kind, answer.stem, stem, files) for kind in _KINDS if row.get(kind)}}
        for row in answer.unfiled
    ]
    return replace(answer, rows=rows, unfiled=unfiled, files=files, stem=stem)


def _renamed(name: str, old: str, new: str) -> str:
    """Return the name FOLDER/FILE with the beginning `old` of FILE replaced by `new`; the folder stays."""
    folder, _, base = name.partition("/")
    return f"{folder}/{new}{base.removeprefix(old)}"


def _stored_name(row: Mapping[str, Any], kind: str, old: str, new: str, files: Mapping[str, bytes]) -> str | None:
    """Return the new name of a row's schedule or proof; None if the row names none or it is not among the new files.

    Args:
        row: A row of the answer.
        kind: "schedule" or "proof_file".
        old: Beginning of the answer's names.
        new: Beginning of the new names.
        files: The new files by name.
    """
    name = None if row.get(kind) is None else _renamed(row[kind], old, new)
    return name if name in files else None


def _restate_schedules(answer: Answer, problem: Problem, stem: str) -> dict[str, bytes]:
    """Return the schedules of an answer as files for a problem with the same network, replayed, with checked proofs.

    A proof that is refused for the new problem is left out.

    Args:
        answer: The answer.
        problem: The new problem; its local ranks are those of the answer.
        stem: Beginning of the new names.

    Returns:
        Bytes of each schedule and proof by its new name.
    """
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, data in answer.files.items():
            if not name.endswith(".synth"):
                continue
            path = Path(folder) / "old.synth"
            path.write_bytes(data)
            stored = load_schedule(path)
            size, engine = stored.schedule.size_bytes, str(stored.header["engine"])
            algorithm = Algorithm(stored.problem, stored.schedule, engine, size_bytes=size)
            target_problem = problem.under(stored.problem.topology.protocol) if problem.protocols else problem
            relabelled = relabel(algorithm, target_problem, np.arange(problem.nranks))
            schedule_path = save_schedule(Path(folder) / "new.synth", relabelled, size)
            files[_renamed(name, answer.stem, stem)] = schedule_path.read_bytes()
            proof_name = name.removesuffix(".synth") + ".proof.json"
            if proof_name not in answer.files:
                continue
            old_proof_path = path.with_name("old.proof.json")
            old_proof_path.write_bytes(answer.files[proof_name])
            resource_map = _resource_map(stored.problem, problem)
            witnesses = [witness.renumbered(resource_map) for witness in load_proof(old_proof_path).witnesses]
            with suppress(ProofRefused, InputError):
                proof_path = save_proof(schedule_path, problem, witnesses, size, relabelled.time_us(size))
                files[_renamed(proof_name, answer.stem, stem)] = proof_path.read_bytes()
    return files


def _resource_map(old: Problem, new: Problem) -> Ints:
    """Return the new number of each resource of an equal network, and of each link as a resource of its own.

    It is an int array of shape (resources + carriers,).
    """
    net = old.network
    resource_map = np.arange(net.nresources + net.ncarriers)
    resource_map[resource_order(net)] = resource_order(new.network)
    return resource_map
