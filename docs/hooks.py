"""Fill in the parts of the site that are made from the sources: the fields of the JSON documents."""

from __future__ import annotations

import json
from typing import Any

from synth.app.documents import SCHEMAS

_MARK = "<!--@schemas-->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the text of a page, with the tables of the documents' fields in place of their mark."""
    return markdown.replace(_MARK, "\n\n".join(_tables())) if _MARK in markdown else markdown


def _tables() -> list[str]:
    """Return a heading and a table of fields for each document."""
    definitions = json.loads(SCHEMAS.read_text(encoding="utf-8"))["$defs"]
    return [
        f"## {kind}\n\n| field | type | meaning |\n|---|---|---|\n" + "\n".join(_rows(definition))
        for kind, definition in definitions.items()
    ]


def _rows(definition: dict[str, Any], path: str = "") -> list[str]:
    """Return a line for each field of an object, and of the objects in it."""
    rows = []
    for name, field in definition.get("properties", {}).items():
        place, needed = f"{path}{name}", "" if name in definition.get("required", ()) else " (may be missing)"
        kind = field.get("type", "algorithm" if "$ref" in field else "string")
        kind = " or ".join(kind) if isinstance(kind, list) else kind
        rows.append(f"| `{place}` | {kind}{needed} | {field.get('description', '')} |")
        inner = field
        while isinstance(inner.get("items"), dict):
            inner, place = inner["items"], f"{place}[]"
        if isinstance(inner.get("additionalProperties"), dict):
            inner, place = inner["additionalProperties"], f"{place}.*"
        if "$ref" in inner:
            rows.append(f"| `{place}` | object | The fields of *{inner['$ref'].rpartition('/')[2]}*. |")
        rows += _rows(inner, f"{place}.")
    return rows
