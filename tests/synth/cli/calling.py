"""What a call of `synth` comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The one line of a refusal; fails where it is none."""
        lines = self.err.splitlines()
        assert self.code == 2, (self.code, self.out, self.err)
        assert len(lines) == 1, self.err
        assert lines[0].startswith("synth: "), self.err
        assert "Traceback" not in self.err
        assert self.out == ""
        return lines[0]


Call = Callable[..., Answer]
