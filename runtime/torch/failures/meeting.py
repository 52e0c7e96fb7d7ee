"""Let the ranks of a group find each other, and detect a rank that does not come or ends meanwhile.

torchrun's `--max-restarts` starts all ranks anew with the store that they had, and no environment variable says so on
all nodes alike. So place 0 of a group opens a new attempt in the store. The other places accept an attempt only after
place 0 has answered them in it.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from runtime.torch.failures.presence import Presence

_LOOK_S = 0.25  # Seconds after which the ranks that have come are served one by one, though others are missing.
_ATTEMPT = "attempt"  # The store's key of the latest attempt's number.
_MOST_BYTES = 400  # Limit for the words that a rank writes.
_NONCE = re.compile("[0-9a-f]{16}")
_PAUSES_S = (0.001, 0.02)  # First and longest pause between two checks whether all ranks have come.


def meet(
    own: Presence, store: Any, me: int, ranks: Sequence[int], timeout: timedelta, check: Callable[[list[str]], None]
) -> tuple[list[str], str]:
    """Wait until all ranks have written their addresses to the store, and connect to their processes.

    Args:
        own: Presence of this process; its `of_rank` gets the ranks that come.
        store: torch's store of the group.
        me: Place of this rank in the group.
        ranks: The members, as the job numbers them.
        timeout: Limit of the wait.
        check: Called now and then with the names of the processes by place, "" for an unknown one; what it raises ends
            the wait, as it should if one of the processes has ended.

    Returns:
        Names of the processes by place, and a name of the group, which no other group and no earlier attempt has.

    Raises:
        RuntimeError: A rank did not come in time. Errors of the store are raised as they are.
    """
    own_words = [*own.address.split(), secrets.token_hex(8)]
    attempt = store.add(_ATTEMPT, 1) if me == 0 else None  # None until it is known.
    if me == 0:
        store.set(f"{attempt}/at/0", " ".join(own_words))
    words_of_place = {me: own_words}
    start = looked = time.monotonic()
    pause, longest = _PAUSES_S
    while len(words_of_place) < len(ranks):
        missing = [place for place in range(len(ranks)) if place not in words_of_place]
        now = time.monotonic()
        if attempt is None:
            attempt = _enter_attempt(store, me, own_words)
        if (attempt is None or not _have_written(store, attempt, missing)) and now < looked + _LOOK_S:
            time.sleep(pause)
            pause = min(longest, pause * 1.5)
            continue
        looked = now
        for place in [place for place in missing if attempt is not None and _have_written(store, attempt, [place])]:
            words_of_place[place], own.of_rank[ranks[place]] = _connect(
                own, store, f"{attempt}/at/{place}", ranks[place]
            )
            if me == 0:
                store.set(f"{attempt}/answer/{place}", words_of_place[place][-1])
        names = [
            words_of_place[place][0] if place in words_of_place else own.of_rank.get(rank, "")
            for place, rank in enumerate(ranks)
        ]
        check(names)
        absent = [str(rank) for place, rank in enumerate(ranks) if place not in words_of_place]
        if absent and now > start + timeout.total_seconds():
            absent_text = ", ".join(absent) if attempt is not None else str(ranks[0])
            raise RuntimeError(f"rank {absent_text} did not come within {timeout.total_seconds():g} s")
    return [words_of_place[place][0] for place in range(len(ranks))], words_of_place[0][-1]


def _connect(own: Presence, store: Any, key: str, rank: int) -> tuple[list[str], str]:
    """Connect to the process whose address a rank wrote; return what the rank wrote and the process's name.

    What it wrote is a list: the five parts of the address, then a number that is used once, in hexadecimal. If that
    process has the greater name, it opens the connection, and this one only expects it (`Presence.connect`).

    Raises:
        RuntimeError: The rank wrote something else into the store.
    """
    value = bytes(store.get(key))
    try:
        *address, nonce = value[:_MOST_BYTES].decode("ascii").split(" ")
        if len(value) > _MOST_BYTES or not _NONCE.fullmatch(nonce):
            raise ValueError("is not the address of a process")
        return [*address, nonce], own.connect(" ".join(address))
    except ValueError:
        advice = "it must be written by the same version of synth on that rank"
        raise RuntimeError(f"the store's {key} is not the address of rank {rank}; {advice}") from None


def _have_written(store: Any, attempt: int, places: Sequence[int]) -> bool:
    """Return True if all these places have written their addresses for this attempt; it does not wait."""
    return bool(store.check([f"{attempt}/at/{place}" for place in places]))


def _enter_attempt(store: Any, me: int, words: list[str]) -> int | None:
    """Write what this rank writes, an address and a nonce, into the latest attempt; return the attempt's number.

    It is None until place 0 has answered with this nonce.
    """
    attempt, answer = int(store.add(_ATTEMPT, 0)), f"answer/{me}"
    store.set(f"{attempt}/at/{me}", " ".join(words))
    is_answered = store.check([f"{attempt}/{answer}"]) and bytes(store.get(f"{attempt}/{answer}")) == words[-1].encode()
    return attempt if is_answered else None
