"""How the ranks of a group find one another, and find out where one of them does not come or ends meanwhile."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from runtime.torch.presence import Presence

_LOOK_S = 0.25  # after which those that have come are looked at one by one
_PAUSES_S = (0.001, 0.02)  # between two looks whether all have come: the first, and the longest


def meet(
    own: Presence, store: Any, me: int, ranks: Sequence[int], timeout: timedelta, check: Callable[[list[str]], None]
) -> tuple[list[str], str]:
    """Wait until all ranks have written their addresses to the store, and connect to them.

    me: this one's place; ranks: the members, as the job numbers them; check: raises where one of the processes of these
    names has ended ("" where it is not known). Returns the names, by place, and one for the group
    that its members share. Raises RuntimeError for ranks that do not come in time, and what the store raises.
    """
    words = [*own.address.split(), secrets.token_hex(8)]
    store.set(f"at/{me}", " ".join(words))
    found = {me: words}
    start = looked = time.monotonic()
    pause, longest = _PAUSES_S
    while len(found) < len(ranks):
        missing = [place for place in range(len(ranks)) if place not in found]
        now = time.monotonic()
        if not store.check([f"at/{place}" for place in missing]) and now < looked + _LOOK_S:
            time.sleep(pause)
            pause = min(longest, pause * 1.5)
            continue
        looked = now
        for place in [place for place in missing if store.check([f"at/{place}"])]:
            found[place] = store.get(f"at/{place}").decode().split()
            own.of_rank[ranks[place]] = own.connect(" ".join(found[place][:4]))
        names = [found[place][0] if place in found else own.of_rank.get(rank, "") for place, rank in enumerate(ranks)]
        check(names)
        absent = [str(rank) for place, rank in enumerate(ranks) if place not in found]
        if absent and now > start + timeout.total_seconds():
            raise RuntimeError(f"rank {', '.join(absent)} did not come within {timeout.total_seconds():g} s")
    return [found[place][0] for place in range(len(ranks))], found[0][4]


def call_unless(
    in_vain: Callable[[], bool], explain: Callable[[], None], function: Callable[[], Any], grace_s: float
) -> Any:
    """What the function returns; it waits for other ranks without end, and `in_vain` says whether that is so.

    Raises what it raises, or what `explain` does, where it is in vain and not over within the grace.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
        if thread.is_alive() and in_vain():
            thread.join(grace_s)
            break
    if thread.is_alive() or errors:
        explain()
    if errors:
        raise errors[0]
    return results[0]
