"""How the ranks of a group find one another, and find out where one of them does not come or ends meanwhile.

torchrun's `--max-restarts` starts all ranks anew beside the store that they had, and nothing in the environment says so
on all nodes alike: place 0 of a group opens a new attempt in the store, and the others take one for theirs only where
place 0 has answered them in it.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from runtime.torch.failures.presence import Presence

_LOOK_S = 0.25  # after which those that have come are looked at one by one
_ATTEMPT = "attempt"  # the key of the latest attempt's number
_MOST_BYTES = 400  # of what a rank writes
_NONCE = re.compile("[0-9a-f]{16}")
_PAUSES_S = (0.001, 0.02)  # between two looks whether all have come: the first, and the longest


def meet(
    own: Presence, store: Any, me: int, ranks: Sequence[int], timeout: timedelta, check: Callable[[list[str]], None]
) -> tuple[list[str], str]:
    """Wait until all ranks have written their addresses to the store, and connect to their processes.

    me: this one's place; ranks: the members, as the job numbers them; check: raises where one of the processes of these
    names has ended ("" where it is not known). Returns the names, by place, and one for the group that its members
    share, and no others do, not in an earlier attempt either. Raises RuntimeError for ranks that do not come in time,
    and what the store raises.
    """
    words = [*own.address.split(), secrets.token_hex(8)]
    attempt = store.add(_ATTEMPT, 1) if me == 0 else None  # None: not known yet
    if me == 0:
        store.set(f"{attempt}/at/0", " ".join(words))
    found = {me: words}
    start = looked = time.monotonic()
    pause, longest = _PAUSES_S
    while len(found) < len(ranks):
        missing = [place for place in range(len(ranks)) if place not in found]
        now = time.monotonic()
        if attempt is None:
            attempt = _answered(store, me, words)
        if (attempt is None or not _have(store, attempt, missing)) and now < looked + _LOOK_S:
            time.sleep(pause)
            pause = min(longest, pause * 1.5)
            continue
        looked = now
        for place in [place for place in missing if attempt is not None and _have(store, attempt, [place])]:
            found[place], own.of_rank[ranks[place]] = _connected(own, store, f"{attempt}/at/{place}", ranks[place])
            if me == 0:
                store.set(f"{attempt}/answer/{place}", found[place][-1])
        names = [found[place][0] if place in found else own.of_rank.get(rank, "") for place, rank in enumerate(ranks)]
        check(names)
        absent = [str(rank) for place, rank in enumerate(ranks) if place not in found]
        if absent and now > start + timeout.total_seconds():
            who = ", ".join(absent) if attempt is not None else str(ranks[0])
            raise RuntimeError(f"rank {who} did not come within {timeout.total_seconds():g} s")
    return [found[place][0] for place in range(len(ranks))], found[0][-1]


def _connected(own: Presence, store: Any, key: str, rank: int) -> tuple[list[str], str]:
    """Connect to the process whose address a rank wrote to the store; return the words that it wrote, and its name.

    Raises RuntimeError where it wrote something else.
    """
    value = bytes(store.get(key))
    try:
        *address, nonce = value[:_MOST_BYTES].decode("ascii").split(" ")
        if len(value) > _MOST_BYTES or not _NONCE.fullmatch(nonce):
            raise ValueError("is no address of a process")
        return [*address, nonce], own.connect(" ".join(address))
    except ValueError:
        right = "it must be what the same version of synth wrote on that rank"
        raise RuntimeError(f"the store's {key}: is no address of rank {rank}; {right}") from None


def _have(store: Any, attempt: int, places: Sequence[int]) -> bool:
    """Whether all of them have written their addresses."""
    return bool(store.check([f"{attempt}/at/{place}" for place in places]))


def _answered(store: Any, me: int, words: list[str]) -> int | None:
    """The latest attempt, entered, once place 0 has answered in it; None until then."""
    attempt, answer = int(store.add(_ATTEMPT, 0)), f"answer/{me}"
    store.set(f"{attempt}/at/{me}", " ".join(words))
    there = store.check([f"{attempt}/{answer}"]) and bytes(store.get(f"{attempt}/{answer}")) == words[-1].encode()
    return attempt if there else None


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
