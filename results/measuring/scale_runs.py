"""Whole commands in fresh processes: seconds, peak memory, and the answer checked again from its files.

All commands of a script share a folder for compiled code that is empty when the script begins. A command that had to
compile something is run again: its table has the seconds without, and the first go's apart.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from results.measuring.measure import Timed, seconds_words, synth

LIMIT_S = 400.0
ONCE_OVER_S = 5.0  # commands that take longer are run once
EXACT = 1e-9  # relative: how far apart the command's gap and that of `synth prove` may be


@dataclass(frozen=True)
class Ended(Timed):
    """A command's end, and the peak memory of the largest of its processes, in MB (10⁶ bytes)."""

    peak_mb: float = 0.0


@dataclass(frozen=True)
class Answer:
    """A question's answer.

    Attributes:
        question: the arguments of `synth`, without those that say where files go.
        seconds, peak_mb: of the whole command, compiled code found on disk.
        first_s: seconds of a go before that had to compile; 0 where there was none.
        said: what --json printed.
        checked: what `synth prove` said of the answer's files.
        wrong: what is wrong with the answer, or why there is none; empty where all is well.
    """

    question: str
    seconds: float
    peak_mb: float
    first_s: float = 0.0
    said: Mapping[str, Any] | None = None
    checked: str = ""
    wrong: str = ""

    @property
    def row(self) -> Mapping[str, Any]:
        """The one algorithm of an answer for one size; empty without an answer."""
        return self.said["algorithms"][0] if self.said and self.said["algorithms"] else {}

    @property
    def gap(self) -> float:
        """time / bound; infinite without an answer."""
        return float(self.row.get("gap", math.inf))


def run_watched(command: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None) -> Ended:
    """Run a command in a fresh process from start to exit; at the limit it is killed with all it started."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begun = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=env, start_new_session=True)
        late = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            late.cancel()
        seconds = time.monotonic() - begun
        code = process.returncode = os.waitstatus_to_exitcode(status)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    killed = code == -signal.SIGKILL and seconds >= limit_s
    return Ended(seconds, None if killed else code, said[0], said[1], peak)


class Processes:
    """Runs commands of `synth` with one folder for compiled code, which goes when the script ends."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="synth-results-")
        self.cache = Path(self._folder.name, "compiled")
        self.cache.mkdir()

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def run(self, command: Sequence[str], limit_s: float = LIMIT_S) -> Ended:
        """One go."""
        return run_watched(command, limit_s, {**os.environ, "NUMBA_CACHE_DIR": str(self.cache)})

    def compiled(self) -> set[tuple[str, int]]:
        """The files of compiled code, each with its time of change in ns."""
        return {(str(path), path.stat().st_mtime_ns) for path in self.cache.rglob("*.nbc")}

    def asked(self, *question: object, times: int = 3, limit_s: float = LIMIT_S, name: str = "") -> Answer:
        """The go of median wall time (one where the first takes long), its answer checked again.

        Args:
            question: arguments of `synth` after which there is one answer for one size.
            name: how the table calls the question; the arguments when empty.
        """
        words = name or " ".join(map(str, question))
        goes: list[tuple[Ended, Path]] = []
        first_s = 0.0
        while len(goes) < times:
            known = self.compiled()
            out = Path(tempfile.mkdtemp(dir=self._folder.name))
            ended = self.run(synth(*question, "--proof", "--json", "--out", out), limit_s)
            if ended.code == 0 and not first_s and self.compiled() != known:
                first_s = ended.seconds
                shutil.rmtree(out)
                continue
            goes.append((ended, out))
            if ended.code != 0 or ended.seconds > ONCE_OVER_S:
                break
        ended = sorted((go[0] for go in goes), key=lambda go: go.seconds)[(len(goes) - 1) // 2]
        answer = self._checked(words, ended, first_s, limit_s)
        for _, out in goes:
            shutil.rmtree(out, ignore_errors=True)
        print(summary_line(answer), file=sys.stderr, flush=True)
        return answer

    def _checked(self, words: str, ended: Ended, first_s: float, limit_s: float) -> Answer:
        plain = Answer(words, ended.seconds, ended.peak_mb, first_s)
        if ended.code is None:
            return replace(plain, wrong=f"stopped after {limit_s:g} s")
        try:
            said: dict[str, Any] = json.loads(ended.out)
            row = said["algorithms"][0]
        except (ValueError, LookupError):
            lines = ended.err.strip().splitlines() or [f"no answer, exit {ended.code}"]
            return replace(plain, wrong=lines[-1][:300])
        checked, wrong = self.proved(row, limit_s)
        return replace(plain, said=said, checked=checked, wrong=wrong)

    def proved(self, row: Mapping[str, Any], limit_s: float = LIMIT_S) -> tuple[str, str]:
        """What `synth prove` says of an algorithm's files, and what is wrong with them (empty: nothing)."""
        if "schedule" not in row or "proof_file" not in row:
            return "–", "no schedule and proof were written"
        ended = self.run(synth("prove", row["schedule"], "--json"), limit_s)
        if ended.code is None:
            return f"not within {limit_s:g} s", ""
        try:
            said = json.loads(ended.out)
        except ValueError:
            return "refused", f"synth prove: {' '.join(ended.err.split())[-200:] or ended.code}"
        if ended.code != 0 or said["status"] != "right":
            return "refused", f"synth prove: {said['why'] or said['status']}"
        if said["gap"] is None or not math.isclose(said["gap"], row["gap"], rel_tol=EXACT):
            return (
                "refused",
                f"synth prove comes to time / bound = {said['gap']}, the command said {row['gap']}",
            )
        return f"right, {seconds_words(ended.seconds)} s", ""


def summary_line(answer: Answer) -> str:
    """Progress."""
    first = f" (with compiling {answer.first_s:.1f} s)" if answer.first_s else ""
    return (
        f"{answer.question}: {answer.seconds:.2f} s{first}, {answer.peak_mb:.0f} MB, gap {answer.gap:.4f},"
        f" prove: {answer.checked or '–'}{' WRONG: ' + answer.wrong if answer.wrong else ''}"
    )


def gap_words(gap: float) -> str:
    """`1.0034`; `1, optimal` where time and bound meet."""
    if math.isinf(gap):
        return "–"
    return "1, optimal" if gap <= 1 + 1e-9 else f"{max(gap, 1.0001):.4f}"


def many_words(number: int) -> str:
    """`2 064 384`."""
    return f"{number:,}".replace(",", " ")


def seconds_of(words: str) -> float:
    """Seconds of a published time: `18 s`, `11.68 min`, `2.01 h`."""
    number, unit = words.split()
    return float(number) * {"s": 1.0, "min": 60.0, "h": 3600.0}[unit]


def ratio_words(ratio: float) -> str:
    """`1.24`, `12.4`, `1 240`: three digits."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else many_words(round(ratio))


def faults(answers: Iterable[Answer]) -> list[str]:
    """One line an answer that is not there or not right."""
    return [f"- `{a.question}`: {a.wrong}" for a in answers if a.wrong]
