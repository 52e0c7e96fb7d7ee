"""Faults as they are written: link:3-5, rank:17, switch:leaf0=50% (the forms are at `topologies.faults.apply`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from topologies.errors import InputError
from topologies.text.fields import shown

_KINDS = ("link", "rank", "switch", "limit")
_AMOUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?|\.[0-9]{1,12})\s*(%|gb/s|gbps)", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """One fault as written."""

    kind: str  # link, rank, switch or limit
    where: str  # what follows the kind: "3-5", "3>5", "17", "8-15", a switch's or a limit's name
    percent: float | None = None  # what is left of the bandwidth, above 0 and below 100
    gbs: float | None = None  # the bandwidth that is left

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}"

    @property
    def amount(self) -> str:
        """What is left, in words; "" where the part is gone. Without a slash: it becomes part of a name."""
        if self.percent is not None:
            return f"{self.percent:.12g}%"
        return "" if self.gbs is None else f"{self.gbs:.12g}GBps"


def parse_fault(text: str, option: str) -> Fault:
    """One fault of its text, such as link:3-5 or rank:3=50%; `option` names it in errors. Raises InputError."""
    kind, _, rest = text.strip().partition(":")
    kind = kind.strip()
    if kind not in _KINDS:
        raise InputError(
            f"{option}: {shown(text.strip())} does not say what it is; it must be link:3-5, rank:17, switch:NAME"
            + (" or limit:NAME, each with =50%" if option == "--degrade" else "")
        )
    where, equals, amount = (part.strip() for part in rest.rpartition("="))
    if not equals:
        where, amount = amount, ""
    if not where:
        raise InputError(f"{option}: {shown(text.strip())} names no {kind}; it must be written as in {_example(kind)}")
    if not equals:
        return Fault(kind, where)
    number = _AMOUNT.fullmatch(amount)
    if number is None:
        raise InputError(
            f"{option} {kind}:{where[:60]}: {shown(amount)} is no bandwidth that is left; it must be =50% or =12.5GB/s"
        )
    value, percent = float(number[1]), number[2] == "%"
    if percent and not 0 < value < 100:
        raise InputError(
            f"{option} {kind}:{where[:60]}: {value:g}% is out of range; it must be above 0% and below 100%"
            " (what is gone goes to --without)"
        )
    if not value > 0:
        raise InputError(
            f"{option} {kind}:{where[:60]}: 0 GB/s is out of range; it must be above 0 (what is gone goes to --without)"
        )
    return Fault(kind, where, value) if percent else Fault(kind, where, gbs=value)


def _example(kind: str) -> str:
    return {"link": "link:3-5 or link:3>5", "rank": "rank:17"}.get(kind, f"{kind}:NAME")


def _parsed(texts: Sequence[str], option: str) -> list[Fault]:
    """All faults of an option that can be given several times, each a list with commas."""
    faults = []
    for text in texts:
        items: list[str] = []
        for part in text.split(","):
            # only a limit's name can have a comma in it
            if items and items[-1].startswith("limit:") and part.strip().partition(":")[0] not in _KINDS:
                items[-1] += "," + part
            else:
                items.append(part.strip())
        faults += [parse_fault(item, option) for item in items]
    return faults


def removals(texts: Sequence[str]) -> list[Fault]:
    """All faults of --without. Raises InputError for one that does not take a part out."""
    faults = _parsed(texts, "--without")
    for fault in faults:
        if fault.kind == "limit":
            raise InputError(
                f"--without {fault}: a limit is a capacity, no part that can be missing;"
                f" it must be --degrade {fault}=50%"
            )
        if fault.amount:
            raise InputError(f"--without {fault}: takes no {fault.amount}; it must be --degrade {fault}={fault.amount}")
    return faults


def slowdowns(texts: Sequence[str]) -> list[Fault]:
    """All faults of --degrade. Raises InputError for one that does not say what is left."""
    faults = _parsed(texts, "--degrade")
    for fault in faults:
        if not fault.amount:
            raise InputError(
                f"--degrade {fault}: does not say what is left; it must be {fault}=50%, or --without {fault}"
            )
        if fault.gbs is not None and fault.kind in ("rank", "switch"):
            raise InputError(
                f"--degrade {fault}: a {fault.kind} has several links;"
                f" it must be what is left of each, as in {fault}=50%"
            )
    return faults
