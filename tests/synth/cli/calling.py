"""What a call of `synth` comes to."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from synth.cli import main


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


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls the entry point in this process, in the folder that is the working folder then."""

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["synth", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = 0 if end.code is None else int(end.code)
        said = capsys.readouterr()
        return Answer(code, said.out, without_compiling(said.err))

    return call
