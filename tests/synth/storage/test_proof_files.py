"""Proof files: a right proof passes, and no number in one can claim more."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.bounds.check import WITNESSES, recompute
from synth.bounds.prove import prove
from synth.bounds.witness import Witness
from synth.bounds.witnesses.lengths import Lengths
from synth.model.problem import Problem, make_problem
from synth.storage.check import check_stored
from synth.storage.proof import Proof, check_beside, check_proof, digest, load_proof, proof_path, save_proof
from synth.storage.schedule_file import StoredSchedule, load_schedule
from synth.symmetry.quotient import quotient_problem
from tests.synth.storage.json_places import at, changed, numbers
from tests.synth.storage.stored_files import written
from topologies.errors import InputError, ProofRefused
from topologies.load import load

SIZE = float(1 << 20)
NEVER = float("inf")


def lengths(problem: Problem, prices: tuple[tuple[int, float], ...]) -> Lengths:
    """Return a witness of these prices that claims what they prove."""
    claim = Lengths(prices=prices, text="link lengths")
    base, per_byte, cap = recompute(problem, claim)
    return replace(claim, base_us=base, per_byte_us=per_byte, cap_us=cap)


def witnesses(problem: Problem) -> tuple[Witness, ...]:
    net = problem.network
    every = tuple((r, 0.1 + r / 3) for r in range(net.nresources))
    priced = [lengths(problem, every), lengths(problem, ((net.nresources, 1.0), (0, 0.25)))]
    return (*prove(problem, max_flow=False).witnesses, *priced)


@pytest.fixture(scope="module", params=["alltoall ring:4", "allreduce line:3", "broadcast dgx1"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StoredSchedule]:
    """Write a schedule file with its proof."""
    name, topology = request.param.split()
    problem = make_problem(load(topology), name)
    path = written(tmp_path_factory.mktemp("proved"), problem, SIZE)
    stored_schedule = load_schedule(path)
    assert save_proof(path, problem, witnesses(problem), SIZE, stored_schedule.claimed_us) == proof_path(path)
    return path, stored_schedule


def checked(path: Path, stored_schedule: StoredSchedule, proof: Proof) -> float:
    check_beside(proof, digest(path), stored_schedule.claimed_us)
    return check_proof(stored_schedule.bounded_problem, proof, SIZE)[0]


def read(folder: Path, document: object) -> Proof:
    path = folder / "x.proof.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return load_proof(path)


def test_a_written_proof_is_read_back(stored: tuple[Path, StoredSchedule], tmp_path: Path) -> None:
    path, stored_schedule = stored
    proof = load_proof(proof_path(path))
    given_in = witnesses(stored_schedule.problem)
    assert sorted(proof.witnesses, key=repr) == sorted(given_in, key=repr)
    best = max(w.at(SIZE) for w in given_in)
    assert proof.witnesses[0].at(SIZE) == proof.bound_us == best
    assert (proof.time_us, proof.gap) == (stored_schedule.claimed_us, stored_schedule.claimed_us / best)
    assert checked(path, stored_schedule, proof) == best
    again = save_proof(
        path, stored_schedule.problem, given_in, SIZE, stored_schedule.claimed_us, tmp_path / "again.json"
    )
    assert again.read_bytes() == proof_path(path).read_bytes()


def test_any_number_of_chunks(tmp_path: Path) -> None:
    """Check that a proof for one chunk per block holds for a schedule of three."""
    problem = make_problem(load("ring:4"), "allgather")
    path = written(tmp_path, problem.with_chunks(3), SIZE)
    stored_schedule = load_schedule(path)
    save_proof(path, problem, prove(problem).witnesses, SIZE, stored_schedule.claimed_us)
    checked(path, stored_schedule, load_proof(proof_path(path)))


def test_a_quotient_or_the_whole(tmp_path: Path) -> None:
    problem = quotient_problem(load("ring:5"), "alltoall")
    assert problem is not None
    path = written(tmp_path, problem, SIZE)
    stored_schedule = load_schedule(path)
    save_proof(
        path,
        stored_schedule.bounded_problem,
        prove(stored_schedule.bounded_problem).witnesses,
        SIZE,
        stored_schedule.claimed_us,
    )
    whole = load_proof(proof_path(path))
    checked(path, stored_schedule, whole)
    with pytest.raises(ProofRefused, match="fold"):
        check_proof(stored_schedule.problem, whole, SIZE)
    every = lengths(problem, tuple((r, 1.0) for r in range(problem.network.nresources)))
    save_proof(path, problem, [every], SIZE, stored_schedule.claimed_us)
    of_quotient = load_proof(proof_path(path))
    assert check_proof(problem, of_quotient, SIZE)[0] == every.at(SIZE)
    assert of_quotient.names[0] == dict(enumerate(problem.network.resource_names))
    with pytest.raises(ProofRefused, match="fold"):
        check_proof(stored_schedule.bounded_problem, of_quotient, SIZE)


def test_every_field_of_every_kind_has_a_place_and_its_type_in_the_file(
    stored: tuple[Path, StoredSchedule], tmp_path: Path
) -> None:
    """Check each kind with a value in each of its fields, and that a value of another kind's field is refused."""
    document = json.loads(proof_path(stored[0]).read_text())
    values = {
        "ranks": (1, 2), "parts": ((0, 1), (2,)), "resources": (3, 1), "prices": ((1, 0.1), (2, 1e-300)),
        "at_bytes": 2.0, "times": (0.0, 1.5), "windows": ((0, 1, 0.5),), "shares": ((0, 1, 2, 3, 4, 0.5),),
    }  # fmt: skip
    for kind, witness_class in WITNESSES.items():
        own_values = {field.name: values[field.name] for field in fields(witness_class) if field.name in values}
        witness = witness_class(base_us=1.0, per_byte_us=2.0, cap_us=3.0, text="x", protocol="LL", **own_values)  # type: ignore[arg-type]
        assert {field.name for field in fields(witness)} | {"kind"} <= {*document["witnesses"][0], "protocol"}
        shared = {"kind": kind, "base_us": 1, "per_byte_us": 2, "cap_us": 3, "text": "x", "protocol": "LL"}
        empty = {name: 0 if name == "at_bytes" else [] for name in values}
        content = {**shared, **empty, **own_values, "resource_names": {}}
        assert read(tmp_path, {**document, "witnesses": [content]}).witnesses == (witness,)
        for name in values.keys() - own_values.keys():
            with pytest.raises(InputError, match=f"{name}: a witness of kind {kind} has none"):
                read(tmp_path, {**document, "witnesses": [{**content, name: values[name]}]})


CLAIMS = ("base_us", "per_byte_us", "cap_us", "time_us", "bound_us", "size_bytes", "gap")


@settings(max_examples=12, derandomize=True)
@given(st.sampled_from([1e-7, 1e-3, 0.5, 10.0]), st.integers(0, 2**32))
def test_no_number_can_be_raised(
    stored: tuple[Path, StoredSchedule], tmp_path_factory: pytest.TempPathFactory, part: float, seed: int
) -> None:
    """Check that no claim can be raised; a changed name may name another resource, and then proves what is true."""
    path, stored_schedule = stored
    document = json.loads(proof_path(path).read_text())
    rng = np.random.default_rng(seed)
    truth = checked(path, stored_schedule, load_proof(proof_path(path)))
    places = list(numbers(document))
    assert {w[-1] for w in places} >= {"base_us", "per_byte_us", "time_us", "bound_us", "size_bytes", "gap"}
    named = [w for w in places if w[-1] not in CLAIMS]
    for where in [w for w in places if w[-1] in CLAIMS] + [named[i] for i in rng.permutation(len(named))[:6]]:
        old = at(document, where)
        raised = old + 1 + int(part) if type(old) is int else old * (1 + part) + 1e-12
        bad = changed(document, where, raised)
        try:
            proved = checked(path, stored_schedule, read(tmp_path_factory.getbasetemp(), bad))
        except (ProofRefused, InputError) as error:
            line = str(error)
        else:
            assert where[-1] not in CLAIMS, (where, old, raised)
            assert proved <= stored_schedule.claimed_us * (1 + 1e-9)
            assert proved >= truth * (1 - 1e-9)
            continue
        assert len(line.splitlines()) == 1
        assert line.isprintable()


def test_consistent_false_claims_are_refused_too(stored: tuple[Path, StoredSchedule]) -> None:
    """Check a bound that agrees with its witness, and a gap that agrees with both."""
    path, stored_schedule = stored
    proof = load_proof(proof_path(path))
    for name in ("base_us", "per_byte_us"):
        first = proof.witnesses[0]
        more = replace(first, **{name: getattr(first, name) * (1 + 1e-7) + 1e-13})
        bound_us = more.at(SIZE)
        forged = replace(proof, witnesses=(more, *proof.witnesses[1:]), bound_us=bound_us, gap=proof.time_us / bound_us)
        with pytest.raises(ProofRefused, match=f"witness 1, .*{name}: claims"):
            checked(path, stored_schedule, forged)
    higher = proof.bound_us * (1 + 1e-7)
    with pytest.raises(ProofRefused, match="bound_us"):
        checked(path, stored_schedule, replace(proof, bound_us=higher, gap=proof.time_us / higher))
    for gap in (proof.gap * (1 - 1e-7), proof.gap * (1 + 1e-7), 1.0 if proof.gap > 1 + 1e-6 else 2.0):
        with pytest.raises(ProofRefused, match="gap"):
            checked(path, stored_schedule, replace(proof, gap=gap))
    with pytest.raises(ProofRefused, match="time_us"):
        checked(path, stored_schedule, replace(proof, time_us=proof.bound_us / 2, gap=0.5))
    with pytest.raises(ProofRefused, match="schedule"):
        checked(path, stored_schedule, replace(proof, schedule="0" * 64))
    with pytest.raises(ProofRefused, match="none"):
        checked(path, stored_schedule, replace(proof, witnesses=(), names=()))
    with pytest.raises(ProofRefused, match="proves nothing"):
        checked(path, stored_schedule, replace(proof, bound_us=0.0, gap=0.0))
    # Less than the proved value is true as well.
    lower = proof.bound_us / 2
    assert checked(path, stored_schedule, replace(proof, bound_us=lower, gap=proof.time_us / lower)) > lower


def test_prices_that_prove_less_are_accepted(tmp_path: Path) -> None:
    problem = make_problem(load("ring:4"), "alltoall")
    path = written(tmp_path, problem, SIZE)
    stored_schedule = load_schedule(path)
    even = lengths(problem, tuple((r, 1.0) for r in range(problem.network.nresources)))
    save_proof(path, problem, [even], SIZE, stored_schedule.claimed_us)
    proof = load_proof(proof_path(path))
    assert proof.witnesses[0] == even
    for row in range(len(even.prices)):
        for price in (1.01, 3.0, 0.5, 0.0):
            prices = (*even.prices[:row], (row, price), *even.prices[row + 1 :])
            forged = replace(proof, witnesses=(replace(even, prices=prices),))
            with pytest.raises(ProofRefused, match="per_byte_us"):
                checked(path, stored_schedule, forged)
    for prices in (((99, 1.0),), ((-1, 1.0),), ((0, -1.0), *even.prices[1:]), ()):
        with pytest.raises(ProofRefused, match="witness 1"):
            checked(path, stored_schedule, replace(proof, witnesses=(replace(even, prices=prices),)))


def test_names_and_numbers_agree(stored: tuple[Path, StoredSchedule]) -> None:
    path, stored_schedule = stored
    proof = load_proof(proof_path(path))
    number = next(i for i, w in enumerate(proof.witnesses) if w.resource_numbers())
    names = proof.names[number]
    first = min(names)
    for wrong in (
        names | {first: "another"},
        {r: n for r, n in names.items() if r != first},
        names | {999: "x"},
    ):
        forged = (*proof.names[:number], wrong, *proof.names[number + 1 :])
        with pytest.raises(ProofRefused, match=f"witness {number + 1}, .*: resource"):
            checked(path, stored_schedule, replace(proof, names=forged))


def test_a_proof_of_another_question_is_refused(stored: tuple[Path, StoredSchedule]) -> None:
    path, stored_schedule = stored
    proof = load_proof(proof_path(path))
    other_values = {
        "collective": "allgather",
        "topology": "ring:5",
        "group": [1, 0],
        "relays": [7],
        "root": 1,
        "size_bytes": 2 * SIZE,
        "fold": [[1, 2]],
        "more": 1,
    }
    for key, value in other_values.items():
        with pytest.raises(ProofRefused, match=f"question: '{key}' is"):
            checked(path, stored_schedule, replace(proof, question={**proof.question, key: value}))
    for key in proof.question:
        remaining = {k: v for k, v in proof.question.items() if k != key}
        if proof.question[key] is not None:
            with pytest.raises(ProofRefused, match=f"question: '{key}' is"):
                checked(path, stored_schedule, replace(proof, question=remaining))


def test_a_proof_with_costs_for_a_schedule_without_is_reported(
    stored: tuple[Path, StoredSchedule], tmp_path: Path
) -> None:
    path, stored_schedule = stored
    document = json.loads(proof_path(path).read_text(encoding="utf-8"))
    document["question"]["costs"] = {"protocols": ["LL", "Simple"], "source": "nobody"}
    (tmp_path / "x.proof.json").write_text(json.dumps(document), encoding="utf-8")
    assert "question: 'costs' is" in check_stored(path, stored_schedule, tmp_path / "x.proof.json").wrong


def test_nothing_unproved_is_written(tmp_path: Path) -> None:
    problem = make_problem(load("ring:4"), "allgather")
    path = written(tmp_path, problem, SIZE)
    right = prove(problem).witnesses
    more = replace(right[0], per_byte_us=right[0].per_byte_us * 1.001)
    for bad in ((), (more,), (*right, more), (replace(right[0], base_us=0.0, per_byte_us=0.0),)):
        with pytest.raises(ProofRefused):
            save_proof(path, problem, bad, SIZE, 100.0)
        assert not proof_path(path).exists()
    with pytest.raises(InputError, match="no such file"):
        save_proof(tmp_path / "none.synth", problem, right, SIZE, 100.0)


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as error:
        load_proof(path)
    line = str(error.value)
    assert len(line.splitlines()) == 1
    assert len(line) < 500
    assert line.isprintable()
    return line


def test_every_field_is_needed(stored: tuple[Path, StoredSchedule], tmp_path: Path) -> None:
    document = json.loads(proof_path(stored[0]).read_text())
    path = tmp_path / "x.proof.json"
    inner = document["witnesses"][0]
    for holder, prefix in ((document, ()), (inner, ("witnesses", 0))):
        for key in holder:
            bad = copy.deepcopy(document)
            del at(bad, prefix)[key]
            path.write_text(json.dumps(bad))
            assert f"{key}: " in refusal(path)
            path.write_text(json.dumps(changed(document, (*prefix, key), {"a": [None]})))
            if key != "question":
                assert f"{key}: " in refusal(path)
        path.write_text(json.dumps(changed(document, (*prefix, "more"), 1)))
        assert "unknown key" in refusal(path)


WRONG: list[tuple[tuple[Any, ...], object]] = [
    (("format",), "synth-proof-2"),
    (("time_us",), True),
    (("time_us",), -1),
    (("bound_us",), 10**400),
    (("gap",), "1.0"),
    (("witnesses",), [3]),
    (("witnesses", 0, "kind"), ""),
    (("witnesses", 0, "kind"), "recompute"),
    (("witnesses", 0, "kind"), "__class__"),
    (("witnesses", 0, "kind"), "a\x1b[2J"),
    (("witnesses", 0, "ranks"), [-1]),
    (("witnesses", 0, "ranks"), [0.5]),
    (("witnesses", 0, "ranks"), [True]),
    (("witnesses", 0, "ranks"), [1 << 60]),
    (("witnesses", 0, "ranks"), 3),
    (("witnesses", 0, "parts"), [0]),
    (("witnesses", 0, "prices"), [[1]]),
    (("witnesses", 0, "prices"), [[1, 2, 3]]),
    (("witnesses", 0, "prices"), [[1, None]]),
    (("witnesses", 0, "base_us"), None),
    (("witnesses", 0, "base_us"), "0"),
    (("witnesses", 0, "base_us"), True),
    (("witnesses", 0, "base_us"), 1e300),
    (("witnesses", 0, "text"), "a\x1b[2J"),
    (("witnesses", 0, "text"), "a\nb"),
    (("witnesses", 0, "text"), "\ud800"),
    (("witnesses", 0, "text"), "x" * 1001),
    (("witnesses", 0, "resource_names"), {"a": "b"}),
    (("witnesses", 0, "resource_names"), {"0": 1}),
    (("witnesses", 0, "resource_names"), {"²": "b"}),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_fields(stored: tuple[Path, StoredSchedule], tmp_path: Path, case: int) -> None:
    where, value = WRONG[case]
    path = tmp_path / "x.proof.json"
    path.write_text(json.dumps(changed(json.loads(proof_path(stored[0]).read_text()), where, value)))
    assert str(where[-1]) in refusal(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"gap": NaN}', b'{"gap": -Infinity}',
     b'{"gap": 1, "gap": 1}', b'{"gap": ' + b"1" * 5000 + b"}", bytes(range(256))],
    ids=range(11),
)  # fmt: skip
def test_no_proof(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.proof.json").write_bytes(data)
    assert refusal(tmp_path / "x.proof.json").startswith(f"{tmp_path}/x.proof.json: ")


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, Path("/dev/zero"), Path("a\nb"), Path("a\0b")):
        refusal(path)


def test_crafted_kinds_and_places(stored: tuple[Path, StoredSchedule]) -> None:
    """Check that witnesses of every kind with any places are refused and raise no other error."""
    path, stored_schedule = stored
    proof, names = load_proof(proof_path(path)), stored_schedule.problem.network.resource_names
    shapes: list[dict[str, Any]] = [
        {}, {"ranks": (0, 99)}, {"ranks": (0, 0)}, {"parts": ((0,), ())}, {"parts": ((0,), (1,))},
        {"resources": (0, 1, 2, 10**9)}, {"resources": (0,)}, {"ranks": (99,), "resources": (0,)},
        {"prices": ((0, 1e15), (0, 1e-15))}, {"prices": ((0, 0.0),)},
    ]  # fmt: skip
    for witness_class in WITNESSES.values():
        own = {field.name for field in fields(witness_class)}
        for shape in shapes:
            own_fields = {name: value for name, value in shape.items() if name in own}
            claim = witness_class(per_byte_us=1.0, text="x", **own_fields)
            spoken = [r for r in claim.resource_numbers() if r < len(names)]
            forged = replace(
                proof,
                witnesses=(claim,),
                names=({r: names[r] for r in spoken},),
                bound_us=SIZE,
                gap=proof.time_us / SIZE,
            )
            with pytest.raises(ProofRefused):
                checked(path, stored_schedule, forged)
