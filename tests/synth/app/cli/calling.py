"""What a call of `synth` comes to."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from synth.app.cli import main


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


# who compiles a loop first on this machine says so; a search, and a build, of over 15 s says now and then how far it is
_PROGRESS = (
    r"compiling loops for large problems.*|[ \d]{3}\d*\.\d s  .*|\d+ of \d+, about \d+ (s|min) left, worst gap .*"
)


def without_progress(err: str) -> str:
    """Without the lines that only a machine's speed decides about."""
    return re.sub(rf"^({_PROGRESS})\n", "", err, flags=re.MULTILINE)


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
        return Answer(code, said.out, without_progress(said.err))

    return call
