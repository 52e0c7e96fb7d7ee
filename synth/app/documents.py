"""The JSON documents of the product, which commands print with `--json`: what each begins with, and their schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synth.model.numbers import as_text, taking
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


@taking('synth.json_schema("search")')
def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a kind of document.

    Args:
        kind: What stands between "synth-" and "-1" in the document's `format`, such as "search".

    Raises:
        InputError: There is no such kind.
    """
    kind = as_text(kind, "kind")
    schemas: dict[str, Any] = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    if kind not in schemas["$defs"]:
        raise InputError(f"kind: {shown(kind)} is not known; {right_name(kind, list(schemas['$defs']))}")
    return {**schemas, "$ref": f"#/$defs/{kind}"}
