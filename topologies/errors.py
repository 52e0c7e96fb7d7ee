"""Every error that a user of the Python API can meet, in one hierarchy.

    SynthError
    ├── InputError (ValueError)           what was given cannot be used
    │   └── NoRoute, TooManySends         a baseline that this network does not allow
    ├── NotModelled (ValueError)          a library's own cost model says nothing of this question
    ├── VerificationError (ValueError)    what was checked is not right
    │   ├── ScheduleError, ScheduleRefused, QuotientRefused
    │   └── BadWitness, ProofRefused
    └── MessageLost (RuntimeError)        a peer of a torch.distributed call did not answer

The message of each is one line: `<where>: <what is wrong>; it must be <what is right>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def in_one_line(text: str) -> str:
    """The text with line ends and whatever else does not print as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class SynthError(Exception):
    """Any error that this package raises on purpose; what a stranger wrote does not break its one line."""

    def __init__(self, text: object = "") -> None:
        super().__init__(in_one_line(str(text)))


class InputError(SynthError, ValueError):
    """Input that cannot be used: one line says what is wrong, where, and what would be right.

    The command line prints the message and exits with code 2; in Python it is also a ValueError.
    """


class NoRoute(InputError):
    """A baseline needs a route between two ranks that the network does not connect."""


class TooManySends(InputError):
    """A baseline would have more sends than it may hold in memory."""


class NotModelled(SynthError, ValueError):
    """A library's own cost model says nothing of this question; the message says why."""


class VerificationError(SynthError, ValueError):
    """Something was checked and is not what it claims to be."""


class ScheduleError(VerificationError):
    """A schedule cannot be timed: it breaks the model; the message names the send, the rank and the chunk."""


class ScheduleRefused(VerificationError):
    """A replay found a schedule wrong; the message says which send, rank and chunk, what it holds and should hold."""


class QuotientRefused(VerificationError):
    """A quotient problem does not stand for the whole network; the message says what is wrong."""


class BadWitness(VerificationError):
    """The witness of a bound does not prove what it claims."""


class ProofRefused(VerificationError):
    """The proof file does not prove what it claims; the message says which number."""


class MessageLost(SynthError, RuntimeError):
    """A message did not come or could not be sent. peer: the other rank's place in the group."""

    def __init__(self, text: str, peer: int) -> None:
        super().__init__(text)
        self.peer = peer


# what code that reads a stranger's file may raise where it meets a value of a kind that no check has named
HOSTILE = (SynthError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """ "did you mean A or B?" for the names that are most like `name`, "" where none is."""
    near = get_close_matches(name[:60], known[:2000], 3, 0.5)
    return f"did you mean {' or '.join(near)}?" if near else ""
