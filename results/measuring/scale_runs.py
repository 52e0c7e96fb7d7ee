"""Whole commands in fresh processes: their seconds, peak memory, and answers checked again from their files.

All commands of a script share a folder for compiled code, which is empty when the script begins. A command that had to
compile code is run again. Its table states the seconds without compiling, and those of the first run separately.
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
ONCE_OVER_S = 5.0  # Commands that take longer are run once.
EXACT = 1e-9  # Allowed relative difference between the gap of the command and that of `synth prove`.


@dataclass(frozen=True)
class Ended(Timed):
    """A command's end, with the peak memory of the largest of its processes in MB (10⁶ bytes)."""

    peak_mb: float = 0.0


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    Attributes:
        question: Arguments of `synth`, without those that say where files go.
        seconds: Wall time of the whole command in seconds, with its compiled code on disk.
        peak_mb: Peak memory of the largest process of the command, in MB.
        first_s: Seconds of a first run that had to compile code; 0 if there was none.
        said: Parsed output of --json; None without an answer.
        checked: What `synth prove` printed about the answer's files.
        wrong: What is wrong with the answer, or why there is none; empty if all is well.
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
        """Return the only algorithm of an answer for one size; empty without an answer."""
        return self.said["algorithms"][0] if self.said and self.said["algorithms"] else {}

    @property
    def gap(self) -> float:
        """Return time / bound; infinite without an answer."""
        return float(self.row.get("gap", math.inf))


def run_watched(command: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None) -> Ended:
    """Run a command in a fresh process from start to exit; at the limit, kill it with all processes that it started."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start_s = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=env, start_new_session=True)
        killer = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
        killer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            killer.cancel()
        seconds = time.monotonic() - start_s
        code = process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    killed = code == -signal.SIGKILL and seconds >= limit_s
    return Ended(seconds, None if killed else code, texts[0], texts[1], peak)


class Processes:
    """A runner of `synth` commands with one folder for compiled code, which is removed when the script ends."""

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
        """Run a command once."""
        return run_watched(command, limit_s, {**os.environ, "NUMBA_CACHE_DIR": str(self.cache)})

    def compiled(self) -> set[tuple[str, int]]:
        """Return the files of compiled code, each with its time of change in ns."""
        return {(str(path), path.stat().st_mtime_ns) for path in self.cache.rglob("*.nbc")}

    def asked(self, *question: object, times: int = 3, limit_s: float = LIMIT_S, name: str = "") -> Answer:
        """Run a question, check its answer again, and return the run of median wall time.

        Args:
            question: Arguments of `synth` after which there is one answer for one size.
            times: Number of runs; a command that takes longer than ONCE_OVER_S is run once.
            limit_s: Time limit of a run in seconds.
            name: Name of the question in the table; the arguments if empty.
        """
        words = name or " ".join(map(str, question))
        runs: list[tuple[Ended, Path]] = []
        first_s = 0.0
        while len(runs) < times:
            compiled_before = self.compiled()
            out = Path(tempfile.mkdtemp(dir=self._folder.name))
            ended = self.run(synth(*question, "--costs", "none", "--proof", "--json", "--out", out), limit_s)
            if ended.code == 0 and not first_s and self.compiled() != compiled_before:
                first_s = ended.seconds
                shutil.rmtree(out)
                continue
            runs.append((ended, out))
            if ended.code != 0 or ended.seconds > ONCE_OVER_S:
                break
        ended = sorted((run[0] for run in runs), key=lambda run: run.seconds)[(len(runs) - 1) // 2]
        answer = self._checked(words, ended, first_s, limit_s)
        for _, out in runs:
            shutil.rmtree(out, ignore_errors=True)
        print(summary_line(answer), file=sys.stderr, flush=True)
        return answer

    def _checked(self, words: str, ended: Ended, first_s: float, limit_s: float) -> Answer:
        """Return the answer of a run, after `synth prove` has checked its files."""
        plain = Answer(words, ended.seconds, ended.peak_mb, first_s)
        if ended.code is None:
            return replace(plain, wrong=f"killed at the time limit of {limit_s:g} s")
        try:
            output: dict[str, Any] = json.loads(ended.out)
            row = output["algorithms"][0]
        except (ValueError, LookupError):
            lines = ended.err.strip().splitlines() or [f"no answer, exit code {ended.code}"]
            return replace(plain, wrong=lines[-1][:300])
        checked, wrong = self.proved(row, limit_s)
        return replace(plain, said=output, checked=checked, wrong=wrong)

    def proved(self, row: Mapping[str, Any], limit_s: float = LIMIT_S) -> tuple[str, str]:
        """Return what `synth prove` says of an algorithm's files, and what is wrong with them (empty: nothing)."""
        if "schedule" not in row or "proof_file" not in row:
            return "–", "the command wrote no schedule and no proof"
        ended = self.run(synth("prove", row["schedule"], "--json"), limit_s)
        if ended.code is None:
            return f"not finished within {limit_s:g} s", ""
        try:
            output = json.loads(ended.out)
        except ValueError:
            return "refused", f"synth prove: {' '.join(ended.err.split())[-200:] or ended.code}"
        if ended.code != 0 or output["status"] != "right":
            return "refused", f"synth prove: {output['why'] or output['status']}"
        # The time of a row with a file is its program's, which cuts large chunks into slices; prove times the schedule.
        figure, words = ("bound_us", "bound (µs)") if row.get("file") else ("gap", "time / bound")
        if output[figure] is None or not math.isclose(output[figure], row[figure], rel_tol=EXACT):
            return "refused", f"synth prove computes {words} = {output[figure]}, the command printed {row[figure]}"
        return f"right, {seconds_words(ended.seconds)} s", ""


def summary_line(answer: Answer) -> str:
    """Describe an answer in one line, to show progress."""
    first = f" (with compiling {answer.first_s:.1f} s)" if answer.first_s else ""
    return (
        f"{answer.question}: {answer.seconds:.2f} s{first}, {answer.peak_mb:.0f} MB, gap {answer.gap:.4f},"
        f" prove: {answer.checked or '–'}{' WRONG: ' + answer.wrong if answer.wrong else ''}"
    )


def gap_words(gap: float) -> str:
    """Format time / bound: `1.0034`, or `1, optimal` if time and bound meet."""
    if math.isinf(gap):
        return "–"
    return "1, optimal" if gap <= 1 + 1e-9 else f"{max(gap, 1.0001):.4f}"


def many_words(number: int) -> str:
    """Format a number in groups of three digits: `2 064 384`."""
    return f"{number:,}".replace(",", " ")


def seconds_of(words: str) -> float:
    """Return the seconds of a published time: `18 s`, `11.68 min`, `2.01 h`."""
    number, unit = words.split()
    return float(number) * {"s": 1.0, "min": 60.0, "h": 3600.0}[unit]


def ratio_words(ratio: float) -> str:
    """Format a ratio with three digits: `1.24`, `12.4`, `1 240`."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else many_words(round(ratio))


def faults(answers: Iterable[Answer]) -> list[str]:
    """Return one line for each answer that is missing or wrong."""
    return [f"- `{a.question}`: {a.wrong}" for a in answers if a.wrong]
