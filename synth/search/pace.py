"""How long the lowering of an algorithm will take, by what the lowering of others took."""

from __future__ import annotations

from synth.search.executor import Executor
from synth.verify.algorithm import Algorithm

_LEAST_SEND_S = 3e-5  # Seconds that lowering one send in haste takes at least.
_BASE_S = 0.1  # Seconds that lowering takes besides those for the sends.
_LOADING_S = 0.5  # The same for the first program, for which the compiler is loaded.
_SLOWER = 2.0  # The most that one lowering without a program raises the estimates of others.
_MANY, _QUICKER = 1_000, 0.5  # Sends of a program that shows a quicker pace than the usual one, and how much at most.
_SURELY = 1.25  # The time in which a file is surely written over the usual time.
_MUCH_COARSER = 0.7  # The part of the sends of an algorithm below which another one is much sooner lowered.


class LoweringPace:
    """The pace at which algorithms are lowered; without an executor nothing is lowered, and nothing takes time.

    Attributes:
        executor: The executor, whose `send_s` is kept up to date; None for none.
    """

    def __init__(self, executor: Executor | None) -> None:
        """Begin with the executor's usual pace."""
        self.executor = executor
        self._usual_send_s = _LEAST_SEND_S if executor is None else executor.send_s
        self._learned_sends = 0  # The sends of the program that `send_s` was learned from.
        self._longest_s = 0.0  # The longest time until a best program was found.

    @property
    def longest_s(self) -> float:
        """Return the seconds that the longest lowering so far took, with the writing of its file."""
        return 0.0 if self.executor is None else self.executor.writing * self._longest_s

    def sends(self, algorithm: Algorithm) -> int:
        """Return the number of sends that lowering an algorithm takes time for; all of them without an executor."""
        return len(algorithm.schedule) if self.executor is None else self.executor.sends(algorithm)

    def takes_much_longer(self, algorithm: Algorithm, coarser: Algorithm) -> bool:
        """Return whether the program of an algorithm may come too late where that of a coarser one would not.

        That is so if the coarser one has less than 0.7 of its sends; never without an executor.
        """
        return self.executor is not None and self.sends(coarser) < _MUCH_COARSER * self.sends(algorithm)

    def least_s(self, sends: int) -> float:
        """Return the seconds that lowering so many sends in haste and writing them takes at least.

        Where lowering is quicker than usual, writing is taken to be quicker by half as much.
        """
        if self.executor is None:
            return 0.0
        send_s = self.executor.send_s
        return sends * (send_s + (self.executor.writing - 1.0) * max(send_s, (send_s + self._usual_send_s) / 2))

    def surely_written_s(self, algorithm: Algorithm) -> float:
        """Return the seconds in which the file of an algorithm's program is surely written and checked."""
        if self.executor is None:
            return 0.0
        send_s = max(self.executor.send_s, self._usual_send_s)
        return _SURELY * (self.executor.writing - 1.0) * send_s * self.sends(algorithm)

    def needs_s(self, algorithm: Algorithm) -> float:
        """Return the estimated seconds to lower an algorithm in haste and to write its file."""
        if self.executor is None:
            return 0.0
        base_s = _BASE_S * self.executor.send_s / max(self._usual_send_s, _LEAST_SEND_S)
        return self.executor.writing * base_s + self.least_s(self.sends(algorithm))

    def took(self, seconds: float) -> None:
        """Record the seconds that a lowering took until its best program was there."""
        self._longest_s = max(self._longest_s, seconds)

    def learn(self, sends: int, seconds: float) -> None:
        """Record how long one lowering in haste took, for the estimates of others; large programs say most.

        It sets the executor's `send_s`, unless a program of more than twice the sends was recorded before. The value is
        never below the usual one, or half of it for a program of many sends.

        Args:
            sends: Number of sends that were lowered.
            seconds: Seconds that it took.
        """
        assert self.executor is not None
        if 2 * sends >= self._learned_sends:
            base_s = _BASE_S if self._learned_sends else _LOADING_S
            as_sends = base_s / max(self._usual_send_s, _LEAST_SEND_S)
            # A program of few sends, or of few instructions for many sends, says little of others.
            least_s = self._usual_send_s * (_QUICKER if sends >= _MANY else 1.0)
            self.executor.send_s = max(seconds / (sends + as_sends), least_s)
            self._learned_sends = max(sends, self._learned_sends)

    def learn_cut_off(self, sends: int, seconds: float) -> None:
        """Record that lowering so many sends was cut off after so many seconds, which others may take too."""
        assert self.executor is not None
        self.learn(sends, min(seconds, _SLOWER * sends * self.executor.send_s))
