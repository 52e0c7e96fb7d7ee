"""Draw the pictures of the site: `python -m docs.pictures` writes them to docs/pages/pictures.

They show answers of synth. Most of their searches end by themselves; those that the budget ends draw slightly other
lines on a slow machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

import synth

FOLDER = Path(__file__).parent / "pages" / "pictures"
_COLOURS = ("#4063d8", "#389826", "#cb3c33", "#9558b2")


def frontier(ax: Axes) -> None:
    """Draw the times of an all-reduce among four GPUs of a DGX A100."""
    synth.synthesize("allreduce", topo="dgx-a100", group=[0, 2, 4, 6], budget=20).plot_frontier(ax)


def timeline(ax: Axes) -> None:
    """Draw the sends of an all-gather in a ring of four."""
    synth.synthesize("allgather", topo="ring:4", size="1M", engine="baseline").plot_timeline("1M", ax)


def network(ax: Axes) -> None:
    """Draw the load of a torus with a dead link in an all-gather."""
    answer = synth.synthesize("allgather", topo="torus:4x4", without=["link:0-1"], size="64M", budget=10)
    answer.plot_network("64M", ax)


def nodes(ax: Axes) -> None:
    """Draw the load of two DGX A100 in a broadcast."""
    synth.synthesize("broadcast", topo="dgx-a100:2", size="64M", budget=10).plot_network("64M", ax)


def allgather(ax: Axes) -> None:
    """Draw the blocks of four ranks before and after an all-gather."""
    for left, title, holds in ((0, "before", lambda rank, block: rank == block), (6, "after", lambda *_: True)):
        ax.text(left + 2, -0.4, title, ha="center")
        for rank in range(4):
            ax.text(left - 0.2, rank + 0.5, f"rank {rank}", ha="right", va="center")
            for block in range(4):
                colour = _COLOURS[block] if holds(rank, block) else "white"
                ax.add_patch(Rectangle((left + block, rank), 1, 0.9, facecolor=colour, edgecolor="0.6"))
    _empty(ax, (-1.2, 10.2), (4.2, -0.8))


def cut(ax: Axes) -> None:
    """Draw a ring of six ranks that is cut into two halves."""
    places = [(1.8, 2.2), (0.4, 1.1), (1.8, 0), (4.8, 0), (6.2, 1.1), (4.8, 2.2)]
    for rank, (x, y) in enumerate(places):
        next_x, next_y = places[(rank + 1) % 6]
        crosses = (x < 3.3) != (next_x < 3.3)
        colour, width = (_COLOURS[2], 3) if crosses else ("0.6", 1.5)
        ax.plot([x, next_x], [y, next_y], color=colour, linewidth=width, zorder=1)
        ax.scatter([x], [y], s=500, color="white", edgecolors="black", zorder=2)
        ax.text(x, y, str(rank), ha="center", va="center", zorder=3)
    ax.plot([3.3, 3.3], [-0.7, 2.9], color="black", linestyle="--")
    ax.text(3.4, 2.75, "3, 4 and 5 lack half of the message")
    ax.text(3.4, 1.1, "two links lead in", color=_COLOURS[2])
    _empty(ax, (-0.2, 7.5), (-0.8, 3.1))


def _empty(ax: Axes, across: tuple[float, float], down: tuple[float, float]) -> None:
    """Set the limits of a drawing without scales."""
    ax.set_xlim(*across)
    ax.set_ylim(*down)
    ax.set_aspect("equal")
    ax.set_axis_off()


_PICTURES: dict[str, tuple[Callable[[Axes], None], tuple[float, float]]] = {
    "frontier": (frontier, (7, 4.2)),
    "timeline": (timeline, (7, 3.2)),
    "network": (network, (7, 4.5)),
    "nodes": (nodes, (7, 4.5)),
    "allgather": (allgather, (7, 3)),
    "cut": (cut, (7, 3.4)),
}


def main() -> None:
    """Draw all pictures."""
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "synth", "svg.fonttype": "none", "font.family": "sans-serif"})
    FOLDER.mkdir(exist_ok=True)
    for name, (draw, size) in _PICTURES.items():
        figure, axes = pyplot.subplots(figsize=size, layout="constrained")
        draw(axes)
        figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
        pyplot.close(figure)


if __name__ == "__main__":
    main()
