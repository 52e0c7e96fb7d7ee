"""The passes: those that a target may require, and one row for each that can be left out.

The rows are read by the compiler, by `--passes` and by `--without-pass`.
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
# what makes instructions of those that the target runs; always used, first of all
REQUIRED: dict[str, Apply] = {
    "split": lambda ir, limits: split(ir, limits.count),
    "unfuse": lambda ir, limits: unfuse(ir, limits.ops),
}


@dataclass(frozen=True)
class Pass:
    """A pass that can be left out.

    Attributes:
        name: what `--without-pass` takes. summary: what `--passes` prints.
        apply: the pass over the instructions; None where it is a choice of how they are laid out in threadblocks.
        needs: instructions that it makes, which the target must run.
        choice: it can cost time, so that programs with and without it are tried; else it is always used.
    """

    name: str
    summary: str
    apply: Apply | None = None
    needs: tuple[str, ...] = ()
    choice: bool = False


PASSES = {
    row.name: row
    for row in (
        Pass("prune", "leave out what nobody reads", lambda ir, _: prune(ir)),
        Pass("absorb", "reduce what arrives as it arrives, not from scratch", lambda ir, _: absorb(ir), ("rrc",)),
        Pass("copy", "copy neighbouring chunks that nobody waits for as one", aggregate_copies),
        Pass("aggregate", "send neighbouring chunks that are ready together as one message", aggregate, choice=True),
        Pass(
            "fuse", "receive, reduce and send on in one instruction", lambda ir, _: fuse(ir), ("rcs", "rrcs", "rrs"),
            choice=True,
        ),
        Pass("scratch", "use scratch again whose content is over", lambda ir, _: reuse_scratch(ir)),
        Pass("pair", "one threadblock sends and receives", choice=True),
        Pass("run", "channels that a connection needs one after another, so that a link keeps its order", choice=True),
        Pass("deal", "more channels for a connection that waits for room"),
        Pass(
            "turn", "ranks that exchange take turns, where both would wait for room",
            lambda ir, _: order_by_depth(ir, exchanges=True), choice=True,
        ),
    )
}  # fmt: skip
# in which instructions go through them, but for prune and copy, which come first; prune again after fuse
ORDER = ("turn", "absorb", "aggregate", "fuse", "scratch")
