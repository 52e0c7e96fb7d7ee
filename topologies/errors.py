"""The hierarchy of all errors that a user of the Python API can meet.

    SynthError
    ├── InputError (ValueError)           an input cannot be used
    │   ├── UnknownKeyword (TypeError)    a function has no keyword of this name
    │   ├── WrongArguments (TypeError)    a call lacks an argument, or has one too many
    │   └── NoRoute, TooManySends         the network does not allow a baseline
    ├── NotModelled (ValueError)          a library's own cost model does not cover the question
    ├── VerificationError (ValueError)    a checked object is not right
    │   ├── ScheduleError, ScheduleRefused, QuotientRefused
    │   └── BadWitness, ProofRefused
    └── MessageLost (RuntimeError)        a peer of a torch.distributed call did not answer

Each message is one line: `<where>: <what is wrong>; it must be <what is right>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def in_one_line(text: str) -> str:
    """Return a text with line ends and other unprintable characters as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class SynthError(Exception):
    """An error that this package raises on purpose; its message is one line even where it quotes a stranger's text."""

    def __init__(self, text: object = "") -> None:
        super().__init__(in_one_line(str(text)))


class InputError(SynthError, ValueError):
    """An error about input that cannot be used; its one line says what is wrong, where, and what would be right.

    The command line prints the message and exits with code 2. In Python it is also a ValueError.
    """

    __module__ = "synth"  # A traceback shows the name under which users catch it.


class UnknownKeyword(InputError, TypeError):
    """An error about a keyword that a function does not have; the message names the most similar ones that it has."""


class WrongArguments(InputError, TypeError):
    """An error about a call that lacks an argument or has one too many; the message shows a right call."""


class NoRoute(InputError):
    """An error about a baseline that needs a route between two ranks which the network does not connect."""


class TooManySends(InputError):
    """An error about a baseline that would have more sends than it may hold in memory."""


class NotModelled(SynthError, ValueError):
    """An error about a question that a library's own cost model does not cover; the message says why."""


class VerificationError(SynthError, ValueError):
    """An error about an object that was checked and is not what it claims to be."""


class ScheduleError(VerificationError):
    """An error about a schedule that breaks the model and cannot be timed.

    The message names the send, the rank and the chunk.
    """


class ScheduleRefused(VerificationError):
    """An error about a schedule that a replay proved wrong.

    The message names the send, the rank and the chunk, and says what the rank holds and should hold.
    """


class QuotientRefused(VerificationError):
    """An error about a quotient problem that does not stand for the whole network; the message says what is wrong."""


class BadWitness(VerificationError):
    """An error about a witness that does not prove its bound."""


class ProofRefused(VerificationError):
    """An error about a proof file that does not prove what it claims; the message names the number."""


class MessageLost(SynthError, RuntimeError):
    """An error about a message that did not arrive or could not be sent.

    Attributes:
        peer: The other rank's place in the group.
    """

    def __init__(self, text: str, peer: int) -> None:
        super().__init__(text)
        self.peer = peer


# Code that reads a stranger's file may raise any of these where a value has a type that no check expects.
HOSTILE = (SynthError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError)


def did_you_mean(name: str, names: Sequence[str], before: str = "") -> str:
    """Return "did you mean A or B?" with at most three names similar to `name`, the most similar first, or "" for none.

    The dashes before names of options are ignored. Only the first 2000 names are compared. A question begins with
    `before`, such as "; ".
    """
    bare_name, name_of_bare = name.lstrip("-"), {full_name.lstrip("-"): full_name for full_name in names[:2000]}
    least_similarity = 0.5 if len(bare_name) < 4 else 0.6
    similar_names = get_close_matches(bare_name[:60], list(name_of_bare), 3, least_similarity)
    return f"{before}did you mean {' or '.join(map(name_of_bare.__getitem__, similar_names))}?" if similar_names else ""


def right_name(name: str, names: Sequence[str], listing: str = "") -> str:
    """Return the end of an error message about an unknown name: similar right names, or else the list of right names.

    It is "did you mean …?", with "COMMAND lists all" if there is a listing, or "it must be one of …". A list of more
    than 60 characters is cut after a whole name, and ends in "…" and `listing` or the number of names.

    Args:
        name: The wrong name.
        names: The right names.
        listing: Command that lists all of them, for those that are too many for a line; "" for none.
    """
    similar, all_names = did_you_mean(name, names), ", ".join(names)
    if similar:
        return similar + (f" {listing} lists all" if listing else "")
    if len(all_names) <= _LONGEST_LIST:
        return f"it must be one of {all_names}"
    first_names = all_names[:_LONGEST_LIST].rpartition(", ")[0]
    return f"it must be one of {first_names}, … ({listing or f'{len(names)} in all'})"


_LONGEST_LIST = 60
