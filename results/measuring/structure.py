"""How a checkout is built: modules, imports, rooms, lines and functions, read from the source without running it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGES = ("topologies", "synth", "emit", "runtime")
SOURCES = (".py", ".cu", ".h", ".cpp", ".js", ".css", ".html")
LONG = 60  # lines of a function


@dataclass(frozen=True)
class Import:
    """One module that imports another of ours."""

    importer: str
    imported: str
    line: int
    deferred: bool  # inside a function
    typing: bool  # under TYPE_CHECKING


@dataclass(frozen=True)
class Deferred:
    """An import inside a function; reason: a comment beside it, or above it and those next to it, says why."""

    module: str
    line: int
    reason: bool


@dataclass(frozen=True)
class Function:
    """A function; reason: a comment on its first line, or above it and its decorators, says why it is long."""

    module: str
    name: str
    lines: int
    reason: bool


@dataclass(frozen=True)
class House:
    """The four packages under a root."""

    root: Path

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Path by full name; a package's name is that of its __init__.py."""
        found = {}
        for package in PACKAGES:
            for path in sorted((self.root / package).rglob("*.py")):
                parts = path.relative_to(self.root).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.modules.items()}

    @cached_property
    def imports(self) -> list[Import]:
        """All imports among our modules; `from package import module` counts as the module."""
        return [found for name, tree in self.trees.items() for found in self._of(name, tree, False, False)]

    def _of(self, name: str, node: ast.AST, deferred: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                for target in sorted(self._targets(child)):
                    yield Import(name, target, child.lineno, deferred, typing)
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            checked = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
            yield from self._of(name, child, deferred or inside, typing or checked)

    def _targets(self, node: ast.Import | ast.ImportFrom) -> set[str]:
        if isinstance(node, ast.Import):
            return {alias.name for alias in node.names if alias.name in self.modules}
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        found = names & self.modules.keys()
        return found | ({str(node.module)} & self.modules.keys() if found != names else set())

    @cached_property
    def deferred(self) -> list[Deferred]:
        """Import statements inside functions, of anything, standard library too."""
        found = []
        for module, tree in self.trees.items():
            text = self.modules[module].read_text(encoding="utf-8").split("\n")
            for function in _outermost(tree):
                for node in ast.walk(function):
                    if isinstance(node, ast.Import | ast.ImportFrom):
                        found.append(Deferred(module, node.lineno, _explained(text, node.lineno)))
        return found

    @property
    def side_by_side(self) -> list[str]:
        """Modules that stand in synth/ itself."""
        return [n for n, p in self.modules.items() if p.parent == self.root / "synth" and p.stem != "__init__"]

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Who imports a module, among our modules; without packages' own __init__.py."""
        found: dict[str, set[str]] = {n: set() for n, p in self.modules.items() if p.stem != "__init__"}
        for one in self.imports:
            if one.imported in found:
                found[one.imported].add(one.importer)
        return found

    @property
    def single_importer(self) -> list[str]:
        """Modules that exactly one other imports."""
        return [name for name, by in self.importers.items() if len(by) == 1]

    @cached_property
    def lines(self) -> dict[str, int]:
        """Lines of each package's sources as `wc -l` counts them, comments and blanks included."""
        return {
            package: sum(
                path.read_bytes().count(b"\n") for path in (self.root / package).rglob("*") if path.suffix in SOURCES
            )
            for package in PACKAGES
        }

    @cached_property
    def long_functions(self) -> list[Function]:
        """Functions over 60 lines, docstring included, decorators not; nested ones count with the outer one."""
        found = []
        for module, tree in self.trees.items():
            text = self.modules[module].read_text(encoding="utf-8").split("\n")
            for node in _outermost(tree):
                lines = int(node.end_lineno or 0) - node.lineno + 1
                if lines > LONG:
                    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                    reason = _explained(text, node.lineno) or text[first - 2].lstrip().startswith("# ")
                    found.append(Function(module, node.name, lines, reason))
        return sorted(found, key=lambda f: -f.lines)

    def rooms(self, package: str = "synth") -> dict[str, set[str]]:
        """Which of a package's folders each folder imports, by any import; files side by side are no room."""
        found: dict[str, set[str]] = defaultdict(set)
        for one in self.imports:
            a, b = _room(one.importer, package, self.modules), _room(one.imported, package, self.modules)
            if a and b and a != b:
                found[a].add(b)
        return dict(found)

    def module_graph(self, package: str = "") -> dict[str, set[str]]:
        """Which modules each module imports, by any import: of all packages or of one."""
        found: dict[str, set[str]] = defaultdict(set)
        for one in self.imports:
            if package in ("", one.importer.split(".")[0]) and package in ("", one.imported.split(".")[0]):
                found[one.importer].add(one.imported)
        return dict(found)


def _explained(text: list[str], line: int) -> bool:
    """Whether a line (from 1) has a comment, or the one above the block of imports in which it stands."""
    above = line - 2
    while above > 0 and text[above].lstrip().startswith(("import ", "from ")):
        above -= 1
    return "  # " in text[line - 1] or text[above].lstrip().startswith("# ") or "  # " in text[above + 1]


def _room(module: str, package: str, modules: Mapping[str, Path]) -> str:
    """The folder of a package in which a module stands; empty for its files side by side and for other packages."""
    parts = module.split(".")
    if parts[0] != package or len(parts) < 2:
        return ""
    inside = len(parts) > 2 or modules[module].stem == "__init__"
    return parts[1] if inside else ""


def _outermost(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods that stand in no other function."""
    queue: list[ast.AST] = [tree]
    while queue:
        for child in ast.iter_child_nodes(queue.pop()):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child
            else:
                queue.append(child)


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan's), each sorted."""
    return [sorted(c) for c in components(graph) if len(c) > 1]


def components(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components, what is imported first (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for after in sorted(graph.get(node, ())):
            if after not in index:
                visit(after)
                low[node] = min(low[node], low[after])
            elif after in stack:
                low[node] = min(low[node], index[after])
        if low[node] == index[node]:
            cut = stack.index(node)
            found.append(stack[cut:])
            del stack[cut:]

    for node in sorted({*graph, *(after for targets in graph.values() for after in targets)}):
        if node not in index:
            visit(node)
    return found


def longest_chain(graph: Mapping[str, set[str]]) -> list[str]:
    """The longest chain of imports, from importer to imported; nodes of a cycle count as one floor."""
    best: dict[str, list[str]] = {}
    for members in components(graph):
        below = [best[after] for node in members for after in sorted(graph.get(node, ())) if after not in members]
        chain = ["+".join(sorted(members)), *max(below, key=len, default=[])]
        best |= dict.fromkeys(members, chain)
    return max(best.values(), key=len, default=[])
