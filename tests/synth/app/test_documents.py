"""The schemas of the JSON documents; `tests/conftest.py` holds each document that a test prints to its schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError

import synth
from synth.app.documents import SCHEMAS, json_schema
from synth.engines.request import StepClaim
from topologies.errors import InputError


def test_schemas_are_schemas_and_state_their_format() -> None:
    kinds = synth.json_kinds()
    assert set(json.loads(SCHEMAS.read_text())["$defs"]) - set(kinds) == {"algorithm", "calls", "entry"}
    for strict in (True, False):  # A schema holds the definitions of all kinds.
        Draft202012Validator.check_schema(json_schema(kinds[0], strict=strict))
    for kind in kinds:
        stated = json_schema(kind)["$defs"][kind]["properties"]["format"]["const"]
        assert stated == f"synth-{kind}-{2 if kind == 'index' else 1}"
        assert json_schema(kind)["$id"] == f"urn:synth-collectives:{stated}"
    with pytest.raises(InputError, match=r"kind: 'serch' is not known; did you mean search"):
        json_schema("serch")


def test_a_document_that_breaks_its_schema_is_refused() -> None:
    document = synth.synthesize("allgather", "ring:3", engine="route").to_dict()
    assert (document["format"], document["software"]) == ("synth-search-1", f"synth {synth.__version__}")
    Draft202012Validator(synth.json_schema("search")).validate(document | {"unknown": 1})  # A later release may add it.
    validator = Draft202012Validator(synth.json_schema("search", strict=True))
    validator.validate(document)
    for fault in (
        {"unknown": 1},
        {"format": "synth-search-2"},
        {"algorithms": [{}]},
        {"seconds": "1"},
    ):
        with pytest.raises(ValidationError):
            validator.validate(document | fault)
    del document["group"]
    with pytest.raises(ValidationError):
        validator.validate(document)


def test_a_claim_without_a_schedule_is_a_document() -> None:
    answer = synth.synthesize("allgather", "ring:3", engine="route")
    answer.result.claims.append(StepClaim(1, 1.0, "cut", None, False, None, None))
    document = answer.to_dict()
    assert document["k_synchronous"][-1]["rounds"] is None
    Draft202012Validator(synth.json_schema("search")).validate(document)


def test_indices_are_documents(tmp_path: Path) -> None:
    """Check indices of equal and unequal blocks, with and without proofs, against their schema."""
    validator = Draft202012Validator(json_schema("index", strict=True))
    synth.synthesize("allgather", "ring:4", engine="route").save(tmp_path, proof=True)
    synth.synthesize("allgatherv", "ring:4", sizes=[1, 2, 0, 4], engine="route", size=7 << 10).save(tmp_path, "msccl")
    validator.validate(json.loads((tmp_path / "index.json").read_text()))
    with pytest.raises(ValidationError):
        validator.validate({"format": "synth-index-2", "algorithms": [{}]})
