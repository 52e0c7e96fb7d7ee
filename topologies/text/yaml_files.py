"""Reader of YAML from strangers: texts, lists and mappings only, within limits."""

from __future__ import annotations

from typing import Any

from topologies.errors import InputError

_MOST_BYTES = 2**20  # PyYAML reads some 200 KB per second.
_MOST_MARKS = 60_000  # Marks at keys and items, of which PyYAML reads some 12,000 per second.
_DEEPEST = 16


def parse_yaml(text: str, origin: str, references: bool = False) -> Any:
    """Return the document of a YAML text, in which scalars stay texts.

    With references, a value may stand at more than one place, and the caller must bound what it visits.

    Args:
        text: The text.
        origin: Name of the text in errors.
        references: Whether references (*) to an anchor are accepted.

    Raises:
        InputError: The text is no YAML, is too large, has references (*) or more than 16 levels; or PyYAML is
            not installed.
    """
    try:
        import yaml  # An optional dependency, the extra `yaml`.
    except ImportError:
        raise InputError(
            f"{origin}: YAML needs PyYAML; it must be installed (pip install '.[yaml]' in a copy of synth's sources)"
        ) from None
    if len(text) > _MOST_BYTES:
        raise InputError(f"{origin}: {len(text)} characters of YAML; it must be at most {_MOST_BYTES}")
    if sum(map(text.count, (": ", ":\n", "- ", "? ", ",", "[", "{"))) > _MOST_MARKS:
        raise InputError(f"{origin}: too many keys and items of YAML; it must be fewer, or JSON")

    depth = 0

    def compose_node(loader: Any, parent: Any, index: Any) -> Any:
        """Return a composed YAML node, or raise YAMLError for deep nesting and for references that are refused."""
        nonlocal depth
        if depth >= _DEEPEST or (not references and loader.check_event(yaml.AliasEvent)):
            problem = f"a reference (*), or more than {_DEEPEST} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=loader.peek_event().start_mark)
        depth += 1
        node = yaml.BaseLoader.compose_node(loader, parent, index)
        depth -= 1
        return node

    # This loader gives texts, lists and mappings only, neither deep nor by reference.
    plain: Any = type("Plain", (yaml.BaseLoader,), {"compose_node": compose_node})
    try:
        return yaml.load(text, Loader=plain)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError, TypeError) as error:
        line, problem = _problem(error, text)
        raise InputError(f"{origin}:{line}: not YAML: {problem[:160]}") from None


def _problem(error: Exception, text: str) -> tuple[int, str]:
    """Return the line of an error of PyYAML, and what is wrong there; the first line where the error states none.

    Args:
        error: The error.
        text: The text.
    """
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        # The parser notices an open bracket at the end of the text, behind its last line.
        line = min(mark.line, text.rstrip().count("\n")) + 1
        stated = (getattr(error, name, None) for name in ("context", "problem"))
        return line, ", ".join(part for part in stated if part) or "of wrong form"
    position = getattr(error, "position", None)  # A character that YAML does not have is no marked error.
    if isinstance(position, int):
        return text.count("\n", 0, position) + 1, str(getattr(error, "reason", "a wrong character"))
    return 1, " ".join(str(error).split())
