"""Workloads: the collectives of one training step over the axes, read from a TOML file of [[call]] tables.

A file may state `axes`, the axes that it knows. Such an axis has size 1 if the placement does not have it, and calls
over no other axis are left out. `[values]` are numbers that the formulas of `bytes` and `times` use besides the axes'
sizes. `base` names a ready description or a file in the same folder; its calls and values hold where this file states
none.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from synth.model.registry import COLLECTIVE_KINDS, parse_name
from synth.model.sizes import MAX_SIZE, parse_size
from synth.parallelism.axes import Axis, axes_named
from synth.parallelism.formula import evaluate
from topologies.errors import InputError, did_you_mean
from topologies.text.fields import parse_toml, shown
from topologies.text.files import origin_of, read_text

MAX_FILE_BYTES = 1 << 20
_PLAIN_SIZE = re.compile(r"[+-]?\s*[0-9]+\s*[A-Za-z]*")  # Any other text is a formula.
_MOST_CALLS = 1000
_MOST_TIMES = 1e12
_MOST_VALUE = 1e300
_MOST_BASES = 16  # In one chain.
_FIELDS = ("collective", "over", "bytes", "times", "overlaps", "name")
_TABLES = ("base", "axes", "values", "call", "summary", "source")


@dataclass(frozen=True)
class Call:
    """A collective that every process group over some axes runs.

    Attributes:
        name: The name by which `overlaps` of other calls refers to it.
        collective: Name of the collective.
        over: Positions of the axes, ascending; the product of their sizes is more than 1.
        size_bytes: Message size of one group in bytes, as the collective's command takes it, for one run.
        times: Number of runs in a step, which may be a fraction.
        overlaps: Names of calls that may run at the same time; one of two calls need name the other.
    """

    name: str
    collective: str
    over: tuple[int, ...]
    size_bytes: int
    times: float = 1.0
    overlaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workload:
    """The calls of a step, in order.

    Attributes:
        calls: The calls.
    """

    calls: tuple[Call, ...]

    @cached_property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """Return the phases in order: for each the positions in `calls` of those that run at the same time.

        A call joins the first phase before it whose calls may all overlap with it; else it begins a phase. Every call
        is in one phase.
        """
        phases: list[list[int]] = []
        for i, call in enumerate(self.calls):
            fits = (p for p in phases if all(self._may(call, self.calls[index]) for index in p))
            phase = next(fits, None)
            if phase is None:
                phases.append([i])
            else:
                phase.append(i)
        return tuple(map(tuple, phases))

    @staticmethod
    def _may(a: Call, b: Call) -> bool:
        """Return True if one of two calls names the other in its `overlaps`."""
        return a.name in b.overlaps or b.name in a.overlaps


def ready() -> dict[str, str]:
    """Return the summary of each ready description of the package, by name in alphabetical order."""
    folder = files("synth.parallelism") / "workloads"
    names = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return {name: str(tomllib.loads((folder / f"{name}.toml").read_text()).get("summary", "")) for name in names}


def read_workload(name: str, axes: Sequence[Axis]) -> Workload:
    """Read the workload of a ready description or a file, for the given axes.

    Calls whose axes have only one rank in all are left out. `over` of the other calls is positions in `axes`.

    Args:
        name: Name of a ready description (see `ready`), or path of a TOML file.
        axes: Axes of the placement; formulas of the description may use their sizes by name.

    Raises:
        InputError: The file cannot be read; a field, collective or axis is unknown; a formula is wrong; a size or a
            number of runs is not positive or too large; two calls have one name; an overlap names no call; or no call
            is left. The message names the file, the call and the field.
    """
    document, origin = _document(name, None, ())
    axis_names = {axis.name for axis in axes}
    declared = document.get("axes", [])
    if not isinstance(declared, list) or not all(isinstance(axis, str) for axis in declared):
        raise InputError(f"{origin}: axes {shown(declared)}; it must be a list of names, such as ['dp', 'tp']")
    declared_axes = [*axes, *(Axis(axis, 1) for axis in declared if axis not in axis_names)]
    sizes = {axis.name: float(axis.size) for axis in declared_axes}
    values = sizes | _values(document, origin, sizes)
    tables = document.get("call", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{origin}: has no calls; it must have [[call]] tables")
    if len(tables) > _MOST_CALLS:
        raise InputError(f"{origin}: has {len(tables)} calls; it must have at most {_MOST_CALLS}")
    calls = [_call(table, f"{origin}: call {i + 1}", declared_axes, values) for i, table in enumerate(tables)]
    names = [call.name for call in calls]
    for i, call in enumerate(calls):
        if names.index(call.name) != i:
            raise InputError(f"{origin}: two calls are named {call.name!r}; names must differ")
        for overlapping_name in call.overlaps:
            if overlapping_name == call.name:
                raise InputError(
                    f"{origin}: call {i + 1} overlaps: {shown(call.name)} is the call itself; name another"
                )
            if overlapping_name not in names:
                hint = did_you_mean(overlapping_name, names, "; ")
                raise InputError(
                    f"{origin}: call {i + 1} overlaps: {shown(overlapping_name)} is no call{hint}; it must be one of"
                    f" {', '.join(names)}"
                )
    wide_calls = tuple(call for call in calls if math.prod(declared_axes[axis].size for axis in call.over) > 1)
    if not wide_calls:
        raise InputError(f"{origin}: no call is over an axis of more than one rank; at least one call must be")
    return Workload(tuple(_among(call, len(axes)) for call in wide_calls))


def _among(call: Call, count: int) -> Call:
    """Return the call over the first `count` axes only, which are those of the placement."""
    over = tuple(axis for axis in call.over if axis < count)
    return Call(call.name, call.collective, over, call.size_bytes, call.times, call.overlaps)


def _document(name: str, folder: Path | None, parents: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    """Read a description merged with its bases; return it with its origin for messages.

    Only the names of the tables and the chain of bases are checked.

    Args:
        name: Name of a ready description, or a file.
        folder: Folder that a base's file must be in; None for the description that the user names.
        parents: Origins of the descriptions that have this one as a base.

    Raises:
        InputError: The name is unknown, the file cannot be read or is no TOML, a table is unknown, or a base is wrong,
            in another folder, or its own base.
    """
    ready_descriptions = ready()
    if len(parents) > _MOST_BASES:
        raise InputError(
            f"{parents[0]}: has a chain of more than {_MOST_BASES} bases; it must have at most {_MOST_BASES}"
        )
    if folder is not None and name not in ready_descriptions and (Path(name).is_absolute() or ".." in Path(name).parts):
        raise InputError(
            f"{parents[-1]}: base {shown(name)} is in another folder; it must be a file in the folder of this one"
        )
    path = Path(name) if folder is None else folder / name
    if name in ready_descriptions:
        origin, text = f"workload {name}", (files("synth.parallelism") / "workloads" / f"{name}.toml").read_text()
    elif folder is None and not name.endswith(".toml") and not path.exists():
        hint = did_you_mean(name, list(ready_descriptions), "; ")
        raise InputError(
            f"workload: {shown(name)} is not known{hint}; it must be FILE.toml or {', '.join(ready_descriptions)}"
        )
    else:
        text, origin = read_text(path, "a workload (TOML)", MAX_FILE_BYTES), origin_of(path)
    try:
        document = dict(parse_toml(text, origin, "[[call]] tables").values)
    except InputError as error:
        raise InputError(str(error).replace(": not TOML: ", ": is no TOML: ", 1)) from None
    _check_fields(document, _TABLES, origin)
    base = document.get("base")
    if base is None:
        return document, origin
    if not isinstance(base, str) or not base or origin in parents:
        raise InputError(f"{origin}: base {shown(base)}; it must be another workload's name or file")
    base_document, _ = _document(base, path.parent, (*parents, origin))
    values = {**_table(base_document, "values", origin), **_table(document, "values", origin)}
    return {**base_document, **document, "values": values}, origin


def _table(document: Mapping[str, Any], key: str, origin: str) -> dict[str, Any]:
    """Return a table of a description, empty where it has none.

    Raises:
        InputError: It is no table; the message begins with `origin`.
    """
    table = document.get(key, {})
    if not isinstance(table, dict):
        raise InputError(f"{origin}: {key} {shown(table)}; it must be a table of numbers")
    return table


def _values(document: Mapping[str, Any], origin: str, sizes: Mapping[str, float]) -> dict[str, float]:
    """Compute the numbers of [values]; a text is a formula of the axes' sizes and the values before it.

    Raises:
        InputError: A name is that of an axis, a number is negative or too large, or a formula is wrong.
    """
    numbers: dict[str, float] = {}
    for key, value in _table(document, "values", origin).items():
        where = f"{origin}: values.{key}"
        if key in sizes:
            raise InputError(f"{where}: is the name of an axis; it must be another")
        if isinstance(value, str):
            numbers[key] = evaluate(value, {**sizes, **numbers}, where)
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_VALUE:
            raise InputError(f"{where}: {shown(value)}; it must be a number, 0 or more")
        else:
            numbers[key] = float(value)
    return numbers


def _check_fields(table: Mapping[str, Any], fields: Sequence[str], where: str) -> None:
    """Raise InputError if a table has a field that is none of `fields`; its message begins with `where`."""
    for key in table:
        if key not in fields:
            hint = did_you_mean(key, fields, "; ")
            raise InputError(f"{where}: field {shown(key)} is not known{hint}; it must be one of {', '.join(fields)}")


def _call(table: Mapping[str, Any], where: str, axes: Sequence[Axis], values: Mapping[str, float]) -> Call:
    """Build a call from its table; `where` begins error messages.

    A call without a name gets one from its number, such as "call 1"; without `times` it has one run.

    Raises:
        InputError: A field is unknown, missing or wrong, or the collective takes a size for every pair.
    """
    _check_fields(table, _FIELDS, where)
    name = table.get("name", where.rpartition(": ")[2])
    if not isinstance(name, str) or not name:
        raise InputError(f"{where}: name {shown(name)}; it must be text")
    for key in ("collective", "over", "bytes"):
        if key not in table:
            raise InputError(f"{where}: has no {key}; it must have collective, over and bytes")
    if not isinstance(table["collective"], str):
        raise InputError(f"{where}: collective {shown(table['collective'])}; it must be a name, such as 'allreduce'")
    try:
        collective = parse_name(table["collective"])
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if COLLECTIVE_KINDS[collective].even:
        raise InputError(
            f"{where}: collective {collective} needs sizes of blocks; it must be {COLLECTIVE_KINDS[collective].even}"
        )
    return Call(
        name=name,
        collective=collective,
        over=axes_named(_names(table, "over", where), axes, f"{where} over"),
        size_bytes=_bytes(table["bytes"], values, f"{where} bytes"),
        times=_times(table.get("times", 1), values, f"{where} times"),
        overlaps=tuple(_names(table, "overlaps", where)),
    )


def _names(table: Mapping[str, Any], key: str, where: str) -> list[str]:
    """Return the list of names in a field, empty where the field is missing.

    Raises:
        InputError: The field is no list of texts.
    """
    names = table.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{where}: {key} {shown(names)}; it must be a list of names, such as ['dp']")
    return names


def _bytes(value: Any, values: Mapping[str, float], where: str) -> int:
    """Compute a size in bytes from a size as --size takes it or from a formula, rounded up.

    Raises:
        InputError: It is no size and no formula, or not more than 0 and at most `MAX_SIZE` bytes.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{where}: {shown(value)}; it must be a size such as '1G' or a formula")
    text = str(value)
    if _PLAIN_SIZE.fullmatch(text.strip()):
        return parse_size(text, where)
    amount = evaluate(text, values, where)
    if not 0 < amount <= MAX_SIZE:
        raise InputError(
            f"{where}: {shown(text)} gives {amount:g}; it must be more than 0 bytes and at most {MAX_SIZE}"
        )
    return math.ceil(amount)


def _times(value: Any, values: Mapping[str, float], where: str) -> float:
    """Compute a number of runs, which may be a fraction, from a number or a formula.

    Raises:
        InputError: It is neither, or not more than 0 and at most 10¹².
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{where}: {shown(value)}; it must be a number or a formula")
    repetitions = evaluate(str(value), values, where)
    if not 0 < repetitions <= _MOST_TIMES:
        raise InputError(f"{where}: {shown(value)} is out of range; it must be more than 0 and at most {_MOST_TIMES:g}")
    return repetitions
