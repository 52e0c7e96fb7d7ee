"""What the script about held folders makes of a command's end; no command is run, and no wall time is asserted."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from results.measuring.places import Place
from results.scripts import locks

SITUATION = locks.Situation("held", "export", locks.nothing, "refused")


@pytest.mark.parametrize(
    ("code", "out", "err", "judged"),
    [
        (2, b"", "synth: --out lib: is held\n", ("refused", "right")),
        (2, b"", "synth: one\nsynth: two\n", ("refused", "2 lines, or files")),
        (2, b"half of an answer", "synth: --out lib: is held\n", ("refused", "0 lines, or files")),
        (130, b"", "synth: interrupted\n", ("interrupted", "right")),
        (-2, b"", "synth: interrupted\n", ("interrupted", "right")),
        (1, b"", "a defect", ("exit code 1", "a defect")),
        (None, b"", "", ("hangs", "nothing")),
    ],
)
def test_each_end_has_its_name(tmp_path: Path, code: int | None, out: bytes, err: str, judged: tuple[str, str]) -> None:
    with ExitStack() as stack:
        place = Place(tmp_path, stack)
        kind, answer = locks.judge(SITUATION, place, "export", locks.Ended(1.0, None, code, out, err))
    assert kind == judged[0]
    assert (answer == "right") == (judged[1] == "right")


def test_what_a_refused_command_leaves_is_not_right(tmp_path: Path) -> None:
    (tmp_path / "lib" / ".synth-half").mkdir(parents=True)
    with ExitStack() as stack:
        ended = locks.Ended(1.0, None, 2, b"", "synth: --out lib: is held\n")
        assert locks.judge(SITUATION, Place(tmp_path, stack), "export", ended)[1] != "right"


def test_each_situation_is_named_once() -> None:
    assert len({situation.what for situation in locks.SITUATIONS}) == len(locks.SITUATIONS) >= 40
