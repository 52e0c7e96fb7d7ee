"""List the passes: those that a target may require, and one row for each pass that can be left out.

The compiler, `--passes` and `--without-pass` read the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from emit.compiler.ir import Instructions
from emit.compiler.passes.combine import absorb, aggregate, aggregate_copies, fuse
from emit.compiler.passes.depth import order_by_depth
from emit.compiler.passes.legalize import split, unfuse
from emit.compiler.passes.liveness import prune, reuse_scratch
from emit.targets import Limits

Apply = Callable[[Instructions, Limits], Instructions]
# Passes that turn instructions into ones that the target runs; they are always used, before all others.
REQUIRED: dict[str, Apply] = {
    "split": lambda ir, limits: split(ir, limits.count),
    "unfuse": lambda ir, limits: unfuse(ir, limits.ops),
}


@dataclass(frozen=True)
class Pass:
    """A pass that can be left out.

    Attributes:
        name: Name that `--without-pass` takes.
        summary: Text that `--passes` prints.
        apply: The pass over the instructions; None if it is a choice of their layout in threadblocks.
        needs: Instructions that the pass makes, which the target must run.
        choice: Whether the pass can cost time, so that programs with and without it are tried; if not, it is always
            used.
    """

    name: str
    summary: str
    apply: Apply | None = None
    needs: tuple[str, ...] = ()
    choice: bool = False


PASSES = {
    row.name: row
    for row in (
        Pass("prune", "remove instructions whose result nobody reads", lambda ir, _: prune(ir)),
        Pass("absorb", "reduce data as it arrives, not from scratch", lambda ir, _: absorb(ir), ("rrc",)),
        Pass("copy", "merge copies of neighbouring chunks that no instruction waits for", aggregate_copies),
        Pass("aggregate", "merge messages of neighbouring chunks that are ready to go", aggregate, choice=True),
        Pass(
            "fuse", "receive, reduce and send on in one instruction", lambda ir, _: fuse(ir), ("rcs", "rrcs", "rrs"),
            choice=True,
        ),
        Pass("scratch", "reuse scratch whose content is no longer needed", lambda ir, _: reuse_scratch(ir)),
        Pass("pairing", "let one threadblock send and receive", choice=True),
        Pass(
            "in-order", "use a connection's channels one after another, so that a link keeps its order",
            choice=True,
        ),
        Pass(
            "in-turn", "let messages to several ranks over one NIC leave in the order of the schedule",
            choice=True,
        ),
        Pass("more-channels", "give more channels to a connection that waits for slots"),
        Pass(
            "alternate", "let ranks that exchange send alternately, if both would wait for slots",
            lambda ir, _: order_by_depth(ir, exchanges=True), choice=True,
        ),
    )
}  # fmt: skip
# The order of the passes, except prune and copy, which come first; prune is repeated after fuse.
ORDER = ("alternate", "absorb", "aggregate", "fuse", "scratch")
# Names of passes in earlier versions, which `--without-pass` still takes.
FORMER_NAMES = {"pair": "pairing", "run": "in-order", "deal": "more-channels", "turn": "alternate"}
