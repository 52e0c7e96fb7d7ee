"""synth: topology-aware synthesis of collective-communication algorithms, with a proved gap on every answer.

The Python face of the product:

    import synth
    a = synth.synthesize("allreduce", topo="dgx-a100", group=[0, 2, 4, 6])
    a.gap, a.table(), a.save("out/")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synth.app.synthesis import Synthesis, synthesize
    from topologies.errors import InputError

    __version__: str

__all__ = ["InputError", "Synthesis", "__version__", "synthesize"]

_MODULES = {
    "InputError": "topologies.errors",
    "Synthesis": "synth.app.synthesis",
    "synthesize": "synth.app.synthesis",
}


def __getattr__(name: str) -> Any:
    # Import a name only when it is used: solver processes import this package too, and start faster without the rest.
    if name == "__version__":
        from importlib.metadata import version  # It is a quarter of what `synth --help` loads.

        return version("synth-collectives")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'synth' has no attribute {name!r}")
