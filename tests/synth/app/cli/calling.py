"""Calls of `synth` in this process, and their answers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from synth.app.cli import main


@dataclass(frozen=True)
class Answer:
    """The exit code and the output of a call of `synth`, without progress lines."""

    code: int
    out: str
    err: str

    @property
    def flat(self) -> str:
        """Return the output with one space in place of each line break and indent, as texts are broken to fit."""
        return " ".join(self.out.split())

    @property
    def refusal(self) -> str:
        """Check that the call was refused with one line on stderr, and return that line."""
        lines = self.err.splitlines()
        assert self.code == 2, (self.code, self.out, self.err)
        assert len(lines) == 1, self.err
        assert lines[0].startswith("synth: "), self.err
        assert "Traceback" not in self.err
        assert self.out == ""
        return lines[0]


Call = Callable[..., Answer]


# The first process that compiles a loop on a machine says so; whatever takes over a second prints its progress.
_PROGRESS = (
    r"compiling loops for large problems.*|[ \d]{3}\d*\.\d s  .*"
    r"|(building|checking|drawing|reading the library|comparing with vendor libraries|sweep)"
    r"(: \d+ of \d+)?(, about \d+ (s|min) left.*)?"
)


def without_progress(err: str) -> str:
    """Return the text without the lines that depend on the speed of the machine."""
    return re.sub(rf"^({_PROGRESS})\n", "", err, flags=re.MULTILINE)


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that calls the entry point in this process, in the current working folder."""

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["synth", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = 0 if end.code is None else int(end.code)
        output = capsys.readouterr()
        return Answer(code, output.out, without_progress(output.err))

    return call
