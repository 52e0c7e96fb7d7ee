"""The JSON documents of the product, which commands print with `--json`: what each begins with, and their schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synth.model.numbers import as_flag, as_text, taking
from synth.model.text import software_name
from topologies.errors import InputError, right_name
from topologies.text.fields import shown

SCHEMAS = Path(__file__).parent / "schemas.json"


def stamp(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new document that begins with its format, `synth-KIND-1`, and this software's name and version.

    Args:
        kind: Name of the document's schema, such as "search".
        document: The content; a format or software that it states itself stays.
    """
    return {"format": f"synth-{kind}-1", "software": software_name(), **document}


def json_kinds() -> list[str]:
    """Return the kinds of documents, each of which `json_schema` takes: those of `--json`, and a library's "index"."""
    return [kind for kind, schema in _schemas()["$defs"].items() if "format" in schema["properties"]]


@taking('synth.json_schema("search")')
def json_schema(kind: str, *, strict: bool = False) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a kind of document.

    Args:
        kind: What stands between "synth-" and the version in the document's `format`, such as "search" (see
            `json_kinds`); or "algorithm" or "entry" for an object in such documents.
        strict: Whether to refuse fields that this release does not have. Later releases may add fields.

    Raises:
        InputError: There is no such kind.
    """
    kind, schemas = as_text(kind, "kind"), _schemas()
    if kind not in schemas["$defs"]:
        raise InputError(f"kind: {shown(kind)} is not known; {right_name(kind, list(schemas['$defs']))}")
    named = schemas["$defs"][kind]["properties"].get("format", {}).get("const", kind)
    schema = {"$id": f"urn:synth-collectives:{named}", **schemas, "$ref": f"#/$defs/{kind}"}
    return schema if as_flag(strict, "strict") else _with_further_fields(schema)


def _schemas() -> dict[str, Any]:
    """Return the content of the file of schemas, which refuse fields that they do not name."""
    schemas: dict[str, Any] = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    return schemas


def _with_further_fields(schema: Any) -> Any:
    """Return a schema, or a value in one, that accepts further fields of all objects."""
    if isinstance(schema, list):
        return [_with_further_fields(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    is_closed = schema.get("additionalProperties") is False
    return {
        key: _with_further_fields(value)
        for key, value in schema.items()
        if not (is_closed and key == "additionalProperties")
    }
