"""What a call of `synth` comes to."""

from __future__ import annotations

import re
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


def without_compiling(err: str) -> str:
    """Without the line that the first one says who compiles a loop on this machine."""
    return re.sub(r"^compiling loops for large problems[^\n]*\n", "", err, flags=re.MULTILINE)
