"""Modules of packages that only an extra of this project installs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from topologies.errors import InputError


def optional_module(name: str, extra: str, need: str) -> Any:
    """Import a module of a package that only an extra of this project installs, and return it.

    Args:
        name: Name of the module.
        extra: Name of the extra.
        need: What needs the package, as the beginning of the error's message.

    Raises:
        InputError: The package is not installed; the message says how to install it.
        ModuleNotFoundError: The package is installed, but lacks another module that it imports.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, name.partition(".")[0]):  # The package is there, but something else is not.
            raise
        raise InputError(f"{need}: pip install '.[{extra}]' in a copy of synth's sources") from None
