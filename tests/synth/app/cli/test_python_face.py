"""The Python face and the command line answer one question alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NotRequired, get_origin, get_type_hints

from synth import json_schema, synthesize
from synth.app.synthesis import AlgorithmRow
from tests.synth.app.cli.calling import Call


def test_an_answer_is_the_document_that_the_command_prints(synth: Call, tmp_path: Path) -> None:
    """Check that `to_dict` has the keys of `--json` before and after `save`, and its algorithms the typed ones."""
    printed = json.loads(synth("allgather", "--topo", "ring:4", "--engine", "route", "--out", tmp_path, "--json").out)
    answer = synthesize("allgather", "ring:4", engine="route", target="auto")
    schema = json_schema("algorithm")["$defs"]["algorithm"]
    hints = get_type_hints(AlgorithmRow, include_extras=True)
    assert set(hints) == set(schema["properties"])
    assert {key for key, hint in hints.items() if get_origin(hint) is not NotRequired} == set(schema["required"])
    for folder in (None, tmp_path / "lib"):
        written = [] if folder is None else answer.save(folder)
        document = answer.to_dict()
        assert set(printed) - {"other_form"} == set(document) - {"other_form"}
        assert bool(document["unsaved"]) == (not written)
        for row in document["algorithms"]:
            assert (row["file"] is not None) == (row["file"] in map(str, written))
            assert set(schema["required"]) <= set(row)
    assert [row["file"] for row in answer.algorithms] == [row["file"] for row in document["algorithms"]]
