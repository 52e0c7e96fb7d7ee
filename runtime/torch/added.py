"""Keep the back ends that a script adds to ours: any back end of torch, by a name of its own.

`using`, tables of `synth tune` and `tune` itself select an added back end by its name. Each group makes one of each,
in the order of their registration, when it is made itself; so all ranks must register the same ones in the same order
before.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

from topologies.errors import InputError

WRAPPED = "gloo"  # Name of the wrapped back end, whatever its own name is.
OWN = ("auto", "synth", WRAPPED)  # Values of SYNTH_BACKEND without added back ends.
Factory: TypeAlias = Callable[[Any, int, int, timedelta], Any]


class AddedBackend(NamedTuple):
    """A back end that a script has added.

    Attributes:
        name: Its name.
        factory: Makes a group's back end from torch's store, the rank's place, the number of ranks and the time-out.
        devices: Types of the devices whose tensors it takes.
    """

    name: str
    factory: Factory
    devices: frozenset[str]


ADDED: dict[str, AddedBackend] = {}


def register(name: str, factory: Factory, devices: Collection[str] = ("cpu",)) -> None:
    """Add a back end of torch, so that `using`, tables and `synth tune` can select it by its name.

    All ranks must add the same ones in the same order, before they make the groups that are to have them. A name that
    is registered again gets the new factory; groups that exist keep what they have.

    Args:
        name: Lower-case letters, digits and _ or -, beginning with a letter; not auto, synth or gloo.
        factory: Function of torch's store, the rank's place in the group, the number of ranks and the time-out (a
            timedelta), which returns the back end, such as `lambda *a: dist.ProcessGroupGloo(*a[:3], timeout=a[3])`.
            Stores of different back ends and groups share no keys.
        devices: Types of the devices whose tensors it takes, such as "cpu" and "cuda".

    Raises:
        InputError: The name is not allowed, or there is no device.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", name) or name in OWN:
        raise InputError(
            f"back end {str(name)[:40]!r}: the name must be lower-case letters, digits, _ and -, and not"
            f" {', '.join(OWN)}"
        )
    if isinstance(devices, str) or not devices:
        raise InputError(f"back end {name}: devices {devices!r}; it must be a list such as ['cpu']")
    ADDED[name] = AddedBackend(name, factory, frozenset(devices))


def known_names() -> tuple[str, ...]:
    """Return the values of SYNTH_BACKEND and of `using`: auto, synth, gloo, and the names of added back ends."""
    return (*OWN, *ADDED)


def import_registering(values: Mapping[str, str] = os.environ) -> None:
    """Import the modules that SYNTH_REGISTER names with commas, which register back ends.

    So does every process that imports `synth.torch`, those of `synth tune` too.

    Raises:
        InputError: A module does not exist.
    """
    for name in filter(None, values.get("SYNTH_REGISTER", "").split(",")):
        try:
            importlib.import_module(name.strip())
        except ModuleNotFoundError as error:
            if error.name != name.strip():
                raise
            raise InputError(f"SYNTH_REGISTER={name}: no such module; it must be one that Python can import") from None
