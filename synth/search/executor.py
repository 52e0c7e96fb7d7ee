"""What a search asks of an executor: to lower algorithms to programs, and to write their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from synth.model.problem import Problem
from synth.search.offer import Execution, Offer
from synth.verify.algorithm import Algorithm


class Executor(Protocol):
    """The lowering of algorithms for one executor.

    Attributes:
        first_s: Seconds of the last lowering until it had any program.
        send_s: Seconds that lowering one send in haste takes, as far as is known.
        writing: Time to lower a program in haste and to write its file, over the time to lower it in haste.
    """

    first_s: float
    send_s: float
    writing: float

    @property
    def rank_sends(self) -> int:
        """Return how many sends a rank may take part in, as a mean over the ranks, so that programs can hold them."""

    def sends(self, algorithm: Algorithm) -> int:
        """Return the number of sends that are lowered; sends that symmetry maps onto each other count once."""

    def least_bytes(self, problem: Problem) -> int:
        """Return the chunk size in bytes below which finer chunks are of no use under the problem's protocol."""

    def able(self, protocols: Sequence[str]) -> list[str]:
        """Return those of `protocols` that files of the executor can have, in the same order; maybe none."""

    def refusal(self, algorithm: Algorithm) -> str:
        """Return why no program can hold an algorithm, as far as that is known before lowering; else ""."""

    def lower(self, algorithm: Algorithm, until: float, sizes: Sequence[int]) -> Execution:
        """Lower an algorithm to a program.

        Args:
            algorithm: What to lower.
            until: Reading of `now` after which the best program so far, or else the first, is taken.
            sizes: Message sizes in bytes for which the schedule is the fastest.

        Raises:
            InputError: The executor can hold no program of it.
        """

    def expected_us(self, algorithm: Algorithm, size_bytes: float) -> float:
        """Return about the least time that a program of an algorithm takes, as far as that is known before lowering.

        The time is in µs, for messages of `size_bytes`.
        """

    def can_improve(self, algorithm: Algorithm, size_bytes: float, time_us: float) -> bool:
        """Return whether a second lowering of an algorithm may give a faster program than the first.

        Args:
            algorithm: The algorithm.
            size_bytes: A message size in bytes.
            time_us: Time of the first program at that size, in µs.
        """

    def files(self, offers: Sequence[Offer]) -> list[Offer]:
        """Return the offers split so that each is one file."""

    def complete(self, execution: Execution) -> None:
        """Write and check the file of an execution as far as its lowering left that for later.

        Raises:
            InputError: A check has a finding.
        """
