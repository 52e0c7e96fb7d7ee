"""A class is known by its name alone, whatever module it is in."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]


def repeated_names(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the class names of which two or more sources have one, each with these sources, by their names."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    return {name: found_in for name, found_in in places.items() if len(found_in) > 1}


def test_no_two_classes_of_the_packages_have_one_name() -> None:
    packages = ("topologies", "synth", "emit", "runtime")
    paths = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(paths) > 300
    assert repeated_names({str(path.relative_to(ROOT)): path.read_text() for path in paths}) == {}


def test_a_name_that_comes_again_is_told() -> None:
    again = {"one.py": "class Limits: ...", "two.py": "def limits():\n    class Limits: ...", "three.py": "Limits = 3"}
    assert repeated_names(again) == {"Limits": ["one.py", "two.py"]}
