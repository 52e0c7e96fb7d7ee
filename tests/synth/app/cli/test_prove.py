"""`synth prove`: exit code 0 for right and proved, 1 for wrong, 2 for what cannot be read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synth.app import proving
from synth.bounds.prove import prove
from synth.engines.route import quick_schedule
from synth.model.collective import named
from synth.model.problem import Problem, make_problem
from synth.phases.prune import prune_copies
from synth.phases.reversal import reverse, unreverse
from synth.phases.split import join, split
from synth.storage.columns import write_columns
from synth.storage.proof import digest, proof_path, save_proof
from synth.storage.schedule_file import load_schedule, save_schedule
from synth.symmetry.quotient import quotient_problem
from synth.verify.algorithm import Algorithm
from tests.synth.app.cli.calling import Answer, Call
from topologies.errors import InputError
from topologies.load import load
from topologies.text.writer import to_toml

pytestmark = pytest.mark.usefixtures("wide_terminal")
SIZE = 1 << 20
Columns = dict[str, Any]


def write_proved(folder: Path, problem: Problem, proved: bool = True) -> Path:
    """Write a schedule file and its proof."""
    if not problem.collective.reducing:
        schedule = quick_schedule(problem, SIZE)
    else:
        first, last = split(problem)
        schedule = join(
            unreverse(first, quick_schedule(reverse(first), SIZE)),
            prune_copies(last, quick_schedule(last, SIZE)),
        )
    path = save_schedule(folder / "a.synth", Algorithm(problem, schedule, "route"), SIZE)
    stored = load_schedule(path)
    if proved:
        save_proof(path, stored.bounded_problem, prove(stored.bounded_problem).witnesses, SIZE, stored.claimed_us)
    return path


@pytest.fixture
def right(working_folder: Path) -> Path:
    return write_proved(working_folder, make_problem(load("ring:4"), "allgather")).relative_to(working_folder)


def edited(path: Path, change: Callable[[dict[str, Any], Columns], object], proved: bool) -> Path:
    """Write a copy of the file with its header and columns changed; where `proved`, its proof names the copy."""
    with np.load(path) as file:
        header = json.loads(file["header.json"])
        columns = {name: file[name] for name in file.files if name != "header.json"}
    change(header, columns)
    header["sends"] = len(columns["chunk"])
    new = path.with_name("edited.synth")
    write_columns(new, header, columns)
    if proved:
        proof_path(new).write_text(proof_path(path).read_text().replace(digest(path), digest(new)))
    return new


def rows(keep: Callable[[Any], Any]) -> Callable[[dict[str, Any], Columns], None]:
    def change(_: dict[str, Any], columns: Columns) -> None:
        columns |= {name: keep(column) for name, column in columns.items()}

    return change


def wrong(answer: Answer, part: str) -> str:
    assert (answer.code, answer.err) == (1, ""), answer
    (line,) = answer.out.splitlines()
    assert f": wrong: the {part}" in line
    assert "is refused: " in line
    return line


def test_right_and_proved(synth: Call, right: Path) -> None:
    answer = synth("prove", right)
    assert (answer.code, answer.err) == (0, "")
    first, question, bound, gap = answer.out.splitlines()
    assert first == "a.synth: right"
    assert re.fullmatch(r"allgather on ring:4: 12 sends, 4 ranks, [0-9.]+ µs at 1 MiB", question)
    assert re.fullmatch(r"bound [0-9.]+ µs proved: .+", bound)
    assert re.fullmatch(r"gap = 1\.[0-9]{3}(, optimal)?", gap)


def test_python_returns_the_document_that_the_command_prints(synth: Call, right: Path) -> None:
    for has_proof in (True, False):
        if not has_proof:
            proof_path(right).unlink()
        document = proving.prove(right)
        assert document == json.loads(synth("prove", right, "--json").out)
        assert (document["status"], document["gap"] is None) == ("right", not has_proof)
    with pytest.raises(InputError, match="must be a schedule file"):
        proving.prove("a.xml")


def test_right_without_a_proof(synth: Call, right: Path, working_folder: Path) -> None:
    elsewhere = working_folder / "elsewhere.json"
    proof_path(right).rename(elsewhere)
    answer = synth("prove", right)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[2:] == ["no proof: there is no a.proof.json"]
    assert synth("prove", right, "--proof", elsewhere).out.splitlines()[3].startswith("gap = 1")
    assert "a.proof.json: no such file" in synth("prove", right, "--proof", proof_path(right)).refusal
    report = json.loads(synth("prove", right, "--json").out)
    assert (report["status"], report["proof"], report["bound_us"], report["gap"]) == ("right", None, None, None)


def test_json(synth: Call, right: Path, working_folder: Path) -> None:
    answer = synth("prove", right, "--json")
    report = json.loads(answer.out)
    assert answer.code == 0
    assert report["gap"] == report["time_us"] / report["bound_us"]
    assert report["gap"] >= 1
    assert (report["status"], report["why"], report["file"], report["proof"]) == (
        "right",
        "",
        "a.synth",
        "a.proof.json",
    )
    assert (report["collective"], report["topology"], report["group"]) == ("allgather", "ring:4", [0, 1, 2, 3])
    assert (report["sends"], report["copies"], report["size_bytes"], report["as_named"]) == (12, 1, SIZE, True)
    assert set(report["witness"]) == {"kind", "text"}
    answer = synth("prove", edited(right, rows(lambda x: x[1:]), True), "--json")
    report = json.loads(answer.out)
    assert (answer.code, report["status"], answer.err) == (1, "wrong", "")
    assert report["why"]
    (working_folder / "no.synth").write_text("no")
    answer = synth("prove", working_folder / "no.synth", "--json")
    report = json.loads(answer.out)
    assert (answer.code, report["status"], answer.err) == (2, "not readable", "")
    assert "no.synth" in report["why"]
    assert (
        "it must be a schedule file (.synth); synth verify checks executors' files" in synth("prove", "a.xml").refusal
    )


@pytest.mark.parametrize("proved", [True, False])
def test_a_send_dropped_or_doubled(synth: Call, right: Path, proved: bool) -> None:
    for row in range(12):
        dropped = edited(right, rows(lambda x, row=row: np.delete(x, row)), proved)
        wrong(synth("prove", dropped), "schedule")
        doubled = edited(right, rows(lambda x, row=row: np.insert(x, row, x[row])), proved)
        wrong(synth("prove", doubled), "schedule")


@pytest.mark.parametrize("proved", [True, False])
@pytest.mark.parametrize("column", ["chunk", "link", "start_us"])
def test_a_send_moved(synth: Call, right: Path, column: str, proved: bool) -> None:
    """Check that a send is refused with another chunk, over another link, or at another time.

    The time is earlier, or the start of another send over the link, or long after the end.
    """
    for row in range(12):

        def change(_: dict[str, Any], columns: Columns, row: int = row) -> None:
            old = columns[column].astype(np.float64 if column == "start_us" else np.int64)
            if column == "start_us":
                later = old[columns["link"] == columns["link"][row]].max()
                old[row] = old[row] / 2 if old[row] > 0 else later or 1e6
            else:
                old[row] = (old[row] + 1) % (old.max() + 1)
            columns[column] = old

        wrong(synth("prove", edited(right, change, proved)), "schedule")


def test_sums(synth: Call, working_folder: Path) -> None:
    path = write_proved(working_folder, make_problem(load("ring:4"), "allreduce"))
    assert synth("prove", path).code == 0
    with np.load(path) as file:
        count = len(file["chunk"])
    for row in range(count):

        def change(_: dict[str, Any], columns: Columns, row: int = row) -> None:
            columns["reduces"][row] ^= True

        wrong(synth("prove", edited(path, change, True)), "schedule")
        wrong(synth("prove", edited(path, rows(lambda x, row=row: np.delete(x, row)), True)), "schedule")


def test_a_proof_is_for_the_exact_file(synth: Call, right: Path) -> None:
    """Check that a proof holds for one file to the byte; without the proof the changed file is another right one."""

    def rename(header: dict[str, Any], _: Columns) -> None:
        header["engine"] = "other"

    path = edited(right, rename, False)
    assert synth("prove", path).code == 0
    proof_path(path).write_text(proof_path(right).read_text())
    assert "schedule: is for a file of SHA-256" in wrong(synth("prove", path), "proof edited.proof.json")


@pytest.mark.parametrize("part", [1e-6, -1e-6, 1.0])
def test_claimed_time(synth: Call, right: Path, part: float) -> None:
    def change(header: dict[str, Any], _: Columns) -> None:
        header["time_us"] *= 1 + part

    assert "µs, it takes" in wrong(synth("prove", edited(right, change, True)), "schedule")


def test_another_question_than_the_proofs(synth: Call, working_folder: Path, right: Path) -> None:
    document = json.loads(proof_path(right).read_text())
    other_path = write_proved(working_folder / "..", make_problem(load("ring:4"), "alltoall"))
    document["schedule"] = digest(other_path)
    document["time_us"] = load_schedule(other_path).claimed_us
    proof_path(other_path).write_text(json.dumps(document))
    assert "question: 'collective' is 'allgather'" in wrong(synth("prove", other_path), "proof")


@pytest.mark.parametrize("name", ["time_us", "bound_us", "gap", "base_us", "per_byte_us"])
def test_a_number_raised(synth: Call, right: Path, name: str) -> None:
    document = json.loads(proof_path(right).read_text())
    holder = document if name in document else document["witnesses"][0]
    holder[name] = holder[name] * (1 + 1e-6) + 1e-9
    proof_path(right).write_text(json.dumps(document))
    assert name in wrong(synth("prove", right), "proof a.proof.json")


def test_a_proof_better_than_the_truth(synth: Call, right: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a bound above the time of a right schedule is reported, and that nothing is called proved."""
    monkeypatch.setattr("synth.storage.check.check_proof", lambda *_: (99.0, None))
    assert "proves 99.0 µs for a schedule that takes" in wrong(synth("prove", right), "proof")


def test_groups_relays_and_patterns_are_named(synth: Call, working_folder: Path) -> None:
    problem = make_problem(load("line:4"), "allgather", [3, 0], [1, 2])
    lines = synth("prove", write_proved(working_folder, problem)).out.splitlines()
    assert lines[1].startswith("allgather on line:4, group 3,0, 2 relaying: ")
    for name, message in (
        ("mine", "mine as the file states it on"),
        ("allreduce", "which differs from the meaning of the name"),
    ):
        lookalike = make_problem(load("ring:4"), replace(named("allgather", 4, 1), name=name))
        assert message in synth("prove", write_proved(working_folder, lookalike)).out.splitlines()[1]


def test_a_quotient(synth: Call, working_folder: Path) -> None:
    problem = quotient_problem(load("ring:5"), "alltoall")
    assert problem is not None
    path = write_proved(working_folder, problem)
    answer = synth("prove", path)
    lines = answer.out.splitlines()
    assert (answer.code, answer.err) == (0, "")
    assert ": 30 sends, 5 ranks, " in lines[1]
    assert lines[1].startswith("alltoall on ring:5; 6 sends stored, each for 5 translated copies: ")
    assert "gap = 1" in lines[3]
    for row in range(6):
        wrong(synth("prove", edited(path, rows(lambda x, row=row: np.delete(x, row)), True)), "schedule")


def test_a_quotient_by_no_symmetry(synth: Call, working_folder: Path) -> None:
    """Check that a header cannot state a quotient by a permutation that is no symmetry."""
    problem = quotient_problem(load("ring:6"), "allgather")
    assert problem is not None
    line = make_problem(load("line:6"), "allgather").topology

    def change(header: dict[str, Any], _: Columns) -> None:
        header["topology"] = to_toml(line)

    assert "header.json: fold: " in synth("prove", edited(write_proved(working_folder, problem), change, False)).refusal


def test_cut_short_or_garbled(synth: Call, right: Path) -> None:
    data, proof = right.read_bytes(), proof_path(right).read_bytes()
    for length in (0, 3, 100, len(data) // 2, len(data) - 1):
        right.write_bytes(data[:length])
        assert "a.synth: " in synth("prove", right).refusal
    at = data.index(b"NUMPY") + 130  # This is within a column.
    right.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert "a.synth: chunk.npy: cannot be read" in synth("prove", right).refusal
    right.write_bytes(data)
    for length in (0, 3, len(proof) // 2, len(proof) - 3):
        proof_path(right).write_bytes(proof[:length])
        assert "a.proof.json: " in synth("prove", right).refusal
    proof_path(right).unlink()
    proof_path(right).mkdir()
    assert "a.proof.json: a directory" in synth("prove", right).refusal


@pytest.mark.parametrize("path", ["none.synth", ".", "/dev/null", "a\nb", "/proc/self/mem", "a" * 300])
def test_no_file(synth: Call, path: str) -> None:
    assert synth("prove", path).refusal


def test_real_processes(process: Call, right: Path, working_folder: Path) -> None:
    assert process("prove", right).out.startswith("a.synth: right\n")
    wrong(process("prove", edited(right, rows(lambda x: x[:-1]), True)), "schedule")
    (working_folder / "no.synth").write_bytes(b"PK\x03\x04" * 50)
    assert process("prove", "no.synth").refusal


def test_a_quotient_of_many_shares_is_no_large_problem(synth: Call, working_folder: Path) -> None:
    """Check an all-reduce over 1000 ranks, which has as many shares: its quotient has one row for each share."""
    assert synth("allreduce", "--topo", "torus:10x10x10", "--size", "1G", "--proof", "--budget", "4s").code == 0
    stored = next((working_folder / "out" / "schedules").glob("*.synth"))
    assert synth("prove", stored).code == 0
