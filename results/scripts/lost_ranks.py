"""Ranks that are killed, stopped, interrupted, end early or call differently: what every other rank says, and when.

    python -m results.scripts.lost_ranks [--every N]

makes lost_ranks.md. Each case forks 2 to 4 ranks of torch.distributed on this machine, and one of them fails
(`results.measuring.failing_ranks`). A rank passes where its error is one line that names whom or what it must, within
2 s of the moment at which that can be known: the later one of the fault and its own call's begin, the begin of the last
of calls that differ or wait for each other, or the time-out where the culprit lives. Nobody may hang, and nobody be
called lost but those whose process has ended without a word. Faults of our own are planted in the back end, and must be
found. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from results.measuring.measure import grid, page, run, synth, write

SOON_S = 2.0  # after the moment at which it can be known
HANGS_S = 15.0  # after the time-out, where there is one
MODES = ("synth", "auto", "synth, library")
DEAD = ("killed", "killed in a call", "killed amid a large message", "rank 0, which serves the store, is killed",
        "leaves by os._exit", "killed at the start of a second group", "killed amid the start")  # fmt: skip
DIFFERS = r"rank \d calls .*, rank \d calls .*; it must be the same on all ranks"
ELSEWHERE = r"rank \d is in .* of group .*, rank \d in .* of group "
SAYS = {
    **dict.fromkeys(DEAD, r"lost: rank {0} \(its connection is closed\)$"),
    "stopped": "no answer from rank {0}: connected, so not lost",
    "stopped amid a large message": "no answer from rank {0}: connected, so not lost",
    "interrupted between calls": "rank {0} was interrupted",
    "interrupted in a call": "rank {0} was interrupted",
    "raises an error": "rank {0} raised ValueError: bad batch",
    "sys.exit(3)": "rank {0} ended",
    "makes fewer calls": "rank {0} ended",
    "destroys its groups": "rank {0} has left the group",
    "computes past the time-out": "rank {0} has made 1 call of group",
    "calls another collective": DIFFERS,
    "calls another size": DIFFERS,
    "calls another type": DIFFERS,
    "calls another reduction": DIFFERS,
    "calls in another group": ELSEWHERE,
    "groups in opposite order": ELSEWHERE,
    "waits for a message that is not sent": "rank 0: connected, and waiting for no other rank",
    "never comes to the start": "rank {0} did not come within 3 s",
    "comes late, within the time-out": "",
    "ends after its part": "",
}
CALLS = {
    "killed": ("all_reduce", "chain", "all_to_all"),
    "killed in a call": ("barrier", "all_gather", "broadcast"),
    "leaves by os._exit": ("reduce_scatter", "all_reduce", "chain"),
    "raises an error": ("all_reduce", "barrier", "all_gather"),
    "ends after its part": ("broadcast",),
    "stopped": ("all_reduce", "all_to_all", "barrier"),
    "killed amid a large message": ("all_reduce", "all_reduce", "all_reduce", "future", "circle", "circle"),
}


@dataclass(frozen=True)
class Seen:
    """How a rank fared. events: what it noted; ended: its process came to an end; killed: by a signal."""

    events: list[dict[str, Any]]
    ended: bool
    killed: bool

    def at(self, event: str) -> float | None:
        return next((each["at"] for each in self.events if each["event"] == event), None)


def cases() -> list[Any]:
    """Each fault, for three turns or its calls: 2 to 4 ranks, each mode, at once or later, all or a sub-group."""
    from results.measuring.failing_ranks import Case  # needs PyTorch

    found = []
    for i, fault in enumerate(SAYS):
        for turn in range(max(3, len(CALLS.get(fault, ())))):
            ranks, mode = 2 + (turn + i) % 3, MODES[(turn + 2 * i) % 3]
            if fault == "ends after its part":
                ranks = max(ranks, 3)
            calls = CALLS.get(fault, ("all_reduce",))
            call = calls[turn % len(calls)]
            alone = fault in ("killed", "stopped", "raises an error", "destroys its groups", "killed in a call")
            group = "two" if alone and ranks == 4 and call != "chain" else "all"
            found.append(Case(fault, ranks, mode, call, (turn + i) % 2 == 1, group, (1000, 30_000, 10)[turn % 3]))
    return found


def known_at(case: Any, rank: int, ranks: Sequence[Seen]) -> float:
    """When this rank could know, by `time.monotonic`."""
    from results.measuring.failing_ranks import TIMED_OUT  # needs PyTorch

    begins = ranks[rank].at("begins") or 0.0
    fault = ranks[case.culprit].at("fault")
    if case.fault in TIMED_OUT and not (rank == case.culprit and "computes" in case.fault):
        return max(begins, fault or 0.0) + float(case.timeout_s)
    if case.fault.startswith("calls another") or SAYS[case.fault] == ELSEWHERE:
        return max(each.at("begins") or 0.0 for each in ranks)
    return max(begins, fault or 0.0)


def verdict(case: Any, rank: int, ranks: Sequence[Seen]) -> tuple[str, float]:
    """What is wrong about this rank, "" where nothing is; and the seconds after the moment it could be known."""
    mine, says = ranks[rank], SAYS[case.fault].format(case.culprit)
    dead = {r for r, each in enumerate(ranks) if each.killed or (r == case.culprit and case.fault in DEAD)}
    if not mine.ended:
        return "hangs", 0.0
    fails = next((each for each in mine.events if each["event"] == "fails"), None)
    if fails is None:
        return _without_error(case, rank, ranks), 0.0
    text, seconds = fails["text"], max(0.0, fails["at"] - known_at(case, rank, ranks))
    accused = {int(r) for each in re.findall(r"lost: rank ([\d, ]+)", text) for r in each.split(",") if r.strip()}
    if accused - dead:
        return "falsely accuses", seconds
    if not says or not _is_concerned(case, rank):
        return "fails for nothing", seconds
    gave_up = rank == case.culprit and "the others gave up waiting for this rank" in text
    if "\n" in text or not (re.search(says, text) or gave_up):
        return "does not name it", seconds
    return "late" if seconds > SOON_S else "", seconds


def _without_error(case: Any, rank: int, ranks: Sequence[Seen]) -> str:
    """Of a rank whose call did not fail."""
    mine, fault = ranks[rank], ranks[case.culprit].at("fault")
    interrupted = mine.at("interrupted")
    if interrupted is not None and fault is not None:
        return "" if rank == case.culprit and interrupted < fault + SOON_S else "late"
    if mine.at("begins") is None:
        return "" if rank == case.culprit else "did not begin"
    if rank == case.culprit and case.fault in DEAD:
        return ""
    right = not SAYS[case.fault] or not _is_concerned(case, rank)
    return "" if right and mine.at("passes") is not None else "does not fail"


def _is_concerned(case: Any, rank: int) -> bool:
    """Whether this rank must say something."""
    if case.fault == "waits for a message that is not sent":
        return bool(rank == case.culprit)
    return case.group == "all" or rank in (0, case.ranks - 1)


def run_case(case: Any, libraries: dict[int, Path], plant: Callable[[], None] | None = None) -> list[Seen]:
    """Fork its ranks, wait for their ends, and read what they noted. plant: called in each before it begins."""
    from results.measuring.failing_ranks import run_rank  # needs PyTorch

    with _folder() as folder:
        address = f"file://{folder}/store"
        if case.fault.startswith("rank 0") or (case.ranks == 3 and "start" not in case.fault):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        children = []
        for rank in range(case.ranks):
            child = os.fork()
            if not child:
                silent = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silent, 1)
                os.dup2(silent, 2)
                os.environ.update(case.environment | {"GLOO_SOCKET_IFNAME": "lo"})
                if case.mode.endswith("library"):
                    os.environ["SYNTH_LIBRARY"] = str(libraries[case.ranks])
                if plant is not None:
                    plant()
                run_rank(case, rank, address, f"{folder}/{rank}")
            children.append(child)
        codes = _wait(children, case)
        seen = []
        for rank, code in enumerate(codes):
            path = Path(folder, str(rank))
            events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            seen.append(Seen(events, code is not None, code is not None and os.WIFSIGNALED(code)))
        return seen


def _wait(children: Sequence[int], case: Any) -> list[int | None]:
    """Each one's status; None where it did not end. One that is stopped goes on when the others have ended."""
    codes: list[int | None] = [None] * len(children)
    until = time.monotonic() + HANGS_S + (2 * case.timeout_s if case.timeout_s < HANGS_S else 0)
    going = False
    while None in codes and time.monotonic() < until:
        for place, child in enumerate(children):
            if codes[place] is None:
                ended, status = os.waitpid(child, os.WNOHANG)
                codes[place] = status if ended else None
        if not going and all(code is not None for place, code in enumerate(codes) if place != case.culprit):
            going = True
            if codes[case.culprit] is None:
                os.kill(children[case.culprit], signal.SIGCONT)
        time.sleep(0.01)
    for place, child in enumerate(children):
        if codes[place] is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return codes


def plants() -> dict[str, tuple[Any, str, Callable[[], None]]]:
    """Faults of our own in the back end: a case, the verdict that must be found, and what plants it."""
    from results.measuring.failing_ranks import Case  # needs PyTorch
    from runtime.torch.failures import lost
    from runtime.torch.failures.causes import Cause, Waiting
    from runtime.torch.failures.lost import FailureWatch

    def accuse() -> None:
        lost.find_cause = lambda *given: Cause(f"lost: rank {min(given[-1])} (it does not answer)")

    def be_silent() -> None:
        FailureWatch._find_cause = lambda *_: ""  # type: ignore[method-assign]

    def be_late() -> None:
        before = FailureWatch._find_cause

        def later(watch: FailureWatch, waiting: Waiting, late: bool) -> str:
            time.sleep(SOON_S + 0.5)
            return before(watch, waiting, late)

        FailureWatch._find_cause = later  # type: ignore[method-assign]

    def hang() -> None:
        FailureWatch._end_waits = lambda _: None  # type: ignore[method-assign]

    return {
        "a live rank is called lost": (Case("computes past the time-out", 3, "synth"), "falsely accuses", accuse),
        "nobody is named": (Case("killed", 3, "synth"), "does not name it", be_silent),
        "it is named 2.5 s later": (Case("killed", 2, "auto"), "late", be_late),
        "waits are not ended": (Case("calls another reduction", 3, "synth"), "hangs", hang),
    }


def _messages(ranks: Sequence[Seen]) -> str:
    """What ranks said, those that said the same together."""
    said: dict[str, list[str]] = {}
    for rank, seen in enumerate(ranks):
        last = next((e for e in reversed(seen.events) if e["event"] in ("fails", "passes", "interrupted")), None)
        text = "–" if last is None else last["event"] if last["event"] != "fails" else _cause(last["text"])
        said.setdefault(text.replace("|", "/"), []).append(str(rank))
    return "; ".join(f"{', '.join(who)}: {text}" for text, who in said.items() if text != "–")


def _cause(text: str) -> str:
    """What stands after the error of the wrapped back end, where there is such."""
    _, _, after = text.partition("; ")
    return text if after.startswith("it must be") or not after else after


@contextmanager
def _folder() -> Iterator[str]:
    """A folder that goes at the end; not tempfile's, whose exit function the forked ranks would run, too."""
    folder = tempfile.mkdtemp()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _libraries() -> Iterator[dict[int, Path]]:
    """By ranks, a library of all-reduces for so many."""
    with _folder() as folder:
        made = {}
        for ranks in (2, 3, 4):
            made[ranks] = Path(folder, str(ranks))
            done = run(synth("allreduce", "--topo", f"full:{ranks}", "--budget", "5s", "--out", made[ranks]))
            if done.code != 0:
                raise RuntimeError(done.err)
        yield made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases, and write the table; 1 where one fails or a planted fault is not found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th case only")
    parser.add_argument("--only", metavar="FAULT", help="cases whose fault has this in its name, and no table")
    given = parser.parse_args(arguments)
    if find_spec("torch") is None:
        print("lost_ranks needs PyTorch: pip install 'synth-collectives[torch]'", file=sys.stderr)
        return 2
    import torch  # slow, and optional

    torch.set_num_threads(1)
    every = [case for case in cases() if given.only is None or given.only in case.fault][:: given.every]
    rows, wrong, worst = [], 0, 0.0
    with _libraries() as libraries:
        for case in every:
            ranks = run_case(case, libraries)
            found = [verdict(case, rank, ranks) for rank in range(case.ranks)]
            faults = sorted({f"rank {rank} {text}" for rank, (text, _) in enumerate(found) if text})
            seconds = max(late for _, late in found)
            wrong, worst = wrong + bool(faults), max(worst, seconds)
            how = f"{case.call}{', async' if case.is_async else ''}{', group of two' if case.group == 'two' else ''}"
            rows.append(
                (
                    case.fault,
                    case.ranks,
                    case.mode,
                    how,
                    _messages(ranks),
                    f"{seconds:.2f}",
                    "; ".join(faults) or "right",
                )
            )
            print(*rows[-1], sep=" | ", flush=True)
        if given.only is not None:
            return int(wrong > 0)
        planted = []
        for name, (case, expected, plant) in plants().items():
            ranks = run_case(case, libraries, plant)
            found = {verdict(case, rank, ranks)[0] for rank in range(case.ranks)}
            planted.append((name, case.fault, ", ".join(sorted(found - {""})) or "nothing", expected in found))
            print(*planted[-1], sep=" | ", flush=True)
    about = (
        f"{len(every)} of {len(cases())} cases, PyTorch {torch.__version__}: {len(every) - wrong} right. The latest"
        f" word came {worst:.2f} s after the moment at which it could be known. The culprit is the last rank unless the"
        " fault says another; in mode auto, where Gloo runs the calls, SYNTH_CHECK=1 compares those that differ:"
        " Gloo ends a process whose message is longer than it should be, and takes a sum for a maximum. Loopback, so no"
        " partitions of a network."
    )
    titles = ("fault", "ranks", "mode", "call", "said, by rank", "s after", "verdict")
    missed = sum(not row[-1] for row in planted)
    rows_of_plants = [(*row[:3], "yes" if row[3] else "NO") for row in planted]
    checks = grid(("planted in the back end", "case", "found", "as it must"), rows_of_plants)
    write(__file__, page(__file__, "Ranks that fail", [about, grid(titles, rows), "## Planted faults", checks]))
    return int(wrong + missed > 0)


if __name__ == "__main__":
    sys.exit(main())
