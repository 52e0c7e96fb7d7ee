"""Ranks as threads of one process, for tests without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_ranks(ranks: int, run: Callable[[int], None]) -> None:
    """Call `run` with the number of each rank, all at a time and each in a thread of its own; raise the first fault."""
    faults: list[BaseException] = []

    def run_rank(rank: int) -> None:
        """Call `run`, and keep what it raises."""
        try:
            run(rank)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
