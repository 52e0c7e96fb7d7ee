"""The schemas of the JSON documents; `tests/conftest.py` holds each document that a test prints to its schema."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator, ValidationError

import synth
from synth.app.documents import SCHEMAS, json_schema
from synth.engines.request import StepClaim
from topologies.errors import InputError


def test_schemas_are_schemas_and_state_their_format() -> None:
    kinds = [
        kind for kind, schema in json.loads(SCHEMAS.read_text())["$defs"].items() if kind not in ("algorithm", "calls")
    ]
    Draft202012Validator.check_schema(json_schema(kinds[0]))  # It holds the definitions of all kinds.
    for kind in kinds:
        assert json_schema(kind)["$defs"][kind]["properties"]["format"] == {"const": f"synth-{kind}-1"}
    with pytest.raises(InputError, match=r"kind: 'serch' is not known; did you mean search"):
        json_schema("serch")


def test_a_document_that_breaks_its_schema_is_refused() -> None:
    document = synth.synthesize("allgather", "ring:3", engine="route").to_dict()
    assert (document["format"], document["software"]) == ("synth-search-1", f"synth {synth.__version__}")
    validator = Draft202012Validator(synth.json_schema("search"))
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
