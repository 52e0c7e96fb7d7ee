"""What the flow engine's routing and list scheduling are set to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """The same for all problems.

    Attributes:
        sharpness: of the prices, pass by pass: how much longer the busiest resource is than an idle one, as a power of
            e. It rises as the loads come near their best, where small differences must count.
        wide_links: links looked at in a pass (chunks times links) up to which paths may be longer than the shortest;
            30 million take some seconds.
        spreads: how far apart in time the parts of a message are asked for, in parts of the whole time, most
            promising first.
        swings: backward and forward passes of an order of sends; a fourth gained nothing on grids and machines.
        levels: lists of ready sends over all bundles, 64 to 4096 levels of urgency each: what fits into the cache.
        matched_share: of the ranks: where more want each chunk (or add to it), matching in time is tried too.
        matched_cells: chunks times ranks up to which it is: its table takes a byte each.
    """

    sharpness: tuple[float, ...] = (8.0, 12.0, 20.0, 30.0, 40.0, 60.0, 80.0)
    wide_links: int = 30_000_000
    spreads: tuple[float, ...] = (0.25, 1.0, 0.0)
    swings: int = 3
    levels: int = 1 << 21
    matched_share: float = 0.5
    matched_cells: int = 400_000_000


TUNING = Tuning()
