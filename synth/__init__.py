"""synth: topology-aware synthesis of collective-communication algorithms, with a proved gap on every answer.

import synth
a = synth.synthesize("allreduce", topo="dgx-a100", group=[0, 2, 4, 6])
a.gap, a.table(), a.save("out/")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synth.synthesis import Synthesis, synthesize
    from topologies.errors import InputError

__all__ = ["InputError", "Synthesis", "synthesize"]


def __getattr__(name: str) -> Any:
    # solver processes import this package too, and start sooner without all of it
    if name in ("Synthesis", "synthesize"):
        from synth import synthesis

        return getattr(synthesis, name)
    if name == "InputError":
        from topologies.errors import InputError

        return InputError
    raise AttributeError(f"module 'synth' has no attribute {name!r}")
