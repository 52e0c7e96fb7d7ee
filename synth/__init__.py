"""synth: topology-aware synthesis of collective-communication algorithms, with a proved gap on every answer.

The Python face of the product:

    import synth
    a = synth.synthesize("allreduce", topo="dgx-a100", group=[0, 2, 4, 6])
    a.gap, a.table(), a.save("out/")

`import synth.torch` registers the back end of torch.distributed.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emit.goal import Goal
    from emit.language import Script
    from emit.library import LibraryCall, Selector, load_library
    from emit.library.selection.shim_plans import mscclpp_plan_dir
    from runtime.mscclpp import Plans
    from synth.app.documents import json_kinds, json_schema
    from synth.app.proving import prove
    from synth.app.question import alltoallv_planner
    from synth.app.sends import SendTable, load
    from synth.app.synthesis import Synthesis, synthesize
    from synth.model.collective import Collective
    from synth.model.pattern import read_pattern
    from synth.reconfiguration.search import search_changes
    from synth.reconfiguration.states import read_states
    from topologies.errors import InputError, MessageLost, SynthError, VerificationError

    __version__: str

__all__ = [
    "Collective",
    "Goal",
    "InputError",
    "LibraryCall",
    "MessageLost",
    "Plans",
    "Script",
    "Selector",
    "SendTable",
    "SynthError",
    "Synthesis",
    "VerificationError",
    "__version__",
    "alltoallv_planner",
    "json_kinds",
    "json_schema",
    "load",
    "load_library",
    "mscclpp_plan_dir",
    "prove",
    "read_pattern",
    "read_states",
    "search_changes",
    "synthesize",
]

_MODULES = {
    "Collective": "synth.model.collective",
    "Goal": "emit.goal",
    "InputError": "topologies.errors",
    "LibraryCall": "emit.library",
    "MessageLost": "topologies.errors",
    "Plans": "runtime.mscclpp",
    "Script": "emit.language",
    "Selector": "emit.library",
    "SendTable": "synth.app.sends",
    "SynthError": "topologies.errors",
    "Synthesis": "synth.app.synthesis",
    "VerificationError": "topologies.errors",
    "alltoallv_planner": "synth.app.question",
    "json_kinds": "synth.app.documents",
    "json_schema": "synth.app.documents",
    "load": "synth.app.sends",
    "load_library": "emit.library",
    "mscclpp_plan_dir": "emit.library.selection.shim_plans",
    "prove": "synth.app.proving",
    "read_pattern": "synth.model.pattern",
    "read_states": "synth.reconfiguration.states",
    "search_changes": "synth.reconfiguration.search",
    "synthesize": "synth.app.synthesis",
}
_PACKAGES = ("topologies", "emit", "runtime")  # The packages that are installed with this one.


def check_packages(*names: str) -> None:
    """Check that Python imports these packages of ours, and no file of the user's with the same name.

    Raises:
        ImportError: A file hides one of our packages; the message names it.
    """
    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for name in names:
        file = _file_of(name)
        if file is not None and os.path.dirname(os.path.realpath(file)) != os.path.join(home, name):
            raise ImportError(
                f"{file}: hides the package {name} of synth-collectives, in {home}; it must have another name, or stand"
                " where Python looks later (sys.path)",
                name=name,
                path=file,
            )


def _file_of(name: str) -> str | None:
    """Return the file that a package's name stands for, imported or not; None if there is no such file."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec = find_spec(name)
    return spec.origin if spec is not None and spec.has_location else None


check_packages("topologies")  # Every room of this package needs it.


def _import_public(name: str) -> Any:
    """Return a public name, which is imported only now: solver processes start faster without the rest."""
    if name == "__version__":
        from importlib.metadata import version  # It is a quarter of what `synth --help` loads.

        return version("synth-collectives")
    try:
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
    except ImportError:
        check_packages(*_PACKAGES)
        raise
    raise AttributeError(f"module 'synth' has no attribute {name!r}")


if not TYPE_CHECKING:  # Type checkers would take any name for one of this package.
    __getattr__ = _import_public


def __dir__() -> list[str]:
    return __all__
