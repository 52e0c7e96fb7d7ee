"""The command `warm-up`, which compiles the loops for large problems before a search needs them."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import click

from synth.app.cli.progress import counting
from synth.app.present.layout import say_fitted
from synth.app.synthesis import synthesize
from synth.model.collective import uneven
from synth.model.compiled import compiling_all
from synth.model.loop_cache import gave_up_waiting, loops_folder
from synth.model.text import format_count
from synth.search.budget import BudgetTooShort
from topologies.errors import InputError

# Questions that together run every loop. They are small: whatever runs here is compiled.
_QUESTIONS: tuple[dict[str, Any], ...] = (
    {"collective": "allreduce", "topo": "mesh:2x3", "size": "1M", "engine": "lns"},
    {"collective": "broadcast", "topo": "mesh:2x3", "size": "1G", "engine": "flow"},
    {"collective": "alltoall", "topo": "torus:3x3", "size": "1G", "engine": "flow"},
    {"collective": "allgather", "topo": "ring:4", "size": "1M", "engine": "steiner"},
    {"collective": "allreduce", "topo": "ring:4", "size": "1M", "engine": "trees"},
    {"collective": uneven("alltoallv", [[0, 3], [1, 0]]), "topo": "dgx1", "group": "0,1", "engine": "skewed"},
    {"collective": uneven("alltoallv", [[0, 3, 1, 2]] * 4), "topo": "ring:4", "engine": "skewed"},  # forwards
)
_BUDGET_S = 5  # of a question that states none; compiling does not count


@click.command("warm-up")
def warm_up() -> None:
    """Compile and keep the loops for large problems, so that later commands hardly ever wait for them.

    It takes a minute or two, once for each release and each kind of processor. Without it, the first large search
    compiles what it needs.

    \b
    synth warm-up
    """
    begun, folder, unfinished = time.monotonic(), loops_folder(), 0
    if folder is None:
        raise InputError("no folder for compiled loops can be written; set NUMBA_CACHE_DIR to one that can")
    with counting("compiling: question") as progress:
        for number, question in enumerate(_QUESTIONS):
            progress(number, len(_QUESTIONS))
            try:
                with tempfile.TemporaryDirectory() as files, compiling_all():
                    options = {"budget": _BUDGET_S, "target": "auto", **question}
                    synthesize(**options).save(files, proof=True)
            except BudgetTooShort:  # The machine is busy; loops that were compiled are kept.
                unfinished += 1
    seconds = f"{time.monotonic() - begun:.1f} s"
    if gave_up_waiting():
        say_fitted(f"some loops are not stored, as another process holds {folder}; run this again later   {seconds}")
    else:
        say_fitted(f"loops for large problems are compiled, in {folder}   {seconds}")
    if unfinished:
        say_fitted(f"{format_count(unfinished, 'question')} ran out of time; run this again when less else is running")
