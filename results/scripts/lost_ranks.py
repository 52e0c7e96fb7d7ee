"""Make ranks fail (kill, stop, slow down, end early, call differently, other settings), and check what others say.

    python -m results.scripts.lost_ranks [--every N]

makes lost_ranks.md. Each case forks 2 to 8 ranks of torch.distributed on this machine, and one of them fails
(`results.measuring.failing_ranks`). A rank passes if its error is one line that names the right rank or cause, within
2 s of the time at which it can be known. This time is the later one of the fault and the begin of the rank's own call;
for calls or settings that differ, or calls that wait for each other, it is the begin of the last one, and for a culprit
that lives it is the time-out. No rank may hang. Only ranks whose process has ended without a message may be called
lost. The script also plants faults in the back end; the verdicts must find them. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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
from runtime.torch.table import FORMAT

SOON_S = 2.0  # Allowed seconds from the time at which a fault can be known to the message.
HANGS_S = 15.0  # A rank hangs if it has not ended so many seconds later, or after the time-out.
MOST_RANKS = 8
MODES = ("synth", "auto", "synth, library")
DEAD = ("killed", "killed in a call", "killed amid a large message", "rank 0, which serves the store, is killed",
        "leaves by os._exit", "killed at the start of a second group", "killed amid the start")  # fmt: skip
DIFFERS = r"rank \d calls .*, rank \d calls .*; it must be the same on all ranks"
OTHER_SIZE = DIFFERS + r"|rank \d sends rank \d \d+ elements; it must be \d+, as many as that rank expects"
# What the culprit with wrong settings says itself, which are its own error and no other rank's.
OWN_ERRORS = {
    "has one file for a library": "rank {0} has another SYNTH_BACKEND, SYNTH_LIBRARY",
    "has a damaged file in its library": r"library .*\.xml",
    "has a library for other ranks": r"library .*: is for \d ranks, this job has \d",
    "has another table": "rank {0} has another SYNTH_BACKEND, SYNTH_LIBRARY, SYNTH_TABLE",
    "has a damaged table": "table .*: ",
    "has a table that does not exist": "table .*: ",
    "has an unknown back end": "SYNTH_BACKEND=syn; it must be one of",
    "compares calls, unlike others": "rank {0} has another .* or SYNTH_CHECK",
}
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
    "calls another size": OTHER_SIZE,
    "calls another type": DIFFERS,
    "calls another reduction": DIFFERS,
    "calls in another group": ELSEWHERE,
    "groups in opposite order": ELSEWHERE,
    "waits for a message that is not sent": "rank 0: connected, and waiting for no other rank",
    "never comes to the start": "rank {0} did not come within 3 s",
    "comes late, within the time-out": "",
    "ends after its part": "",
    **{
        fault: own if "rank {0}" in own else r"rank {0} cannot use SYNTH_BACKEND, .* \(its own error says why\)"
        for fault, own in OWN_ERRORS.items()
    },
}
CALLS = {
    "killed": ("all_reduce", "chain", "all_to_all", "reduce_scatter"),
    "killed in a call": ("barrier", "all_gather", "broadcast", "all_to_all"),
    "leaves by os._exit": ("reduce_scatter", "all_reduce", "chain"),
    "raises an error": ("all_reduce", "barrier", "all_gather", "reduce_scatter"),
    "ends after its part": ("broadcast",),
    "stopped": ("all_reduce", "all_to_all", "barrier", "all_gather"),
    "computes past the time-out": ("all_reduce", "all_to_all", "all_gather", "reduce_scatter"),
    "comes late, within the time-out": ("all_reduce", "all_gather", "all_to_all", "barrier"),
    "calls another size": ("all_reduce", "all_to_all", "reduce_scatter", "broadcast", "all_gather"),
    "calls another collective": ("all_reduce", "broadcast", "all_to_all", "barrier"),
    "calls another type": ("all_reduce", "reduce_scatter", "broadcast"),
    "killed amid a large message": ("all_reduce", "all_reduce", "all_reduce", "future", "circle", "circle"),
}


@dataclass(frozen=True)
class Seen:
    """The events of a rank and its end.

    Attributes:
        events: Events that the rank recorded.
        ended: True if its process ended.
        killed: True if a signal ended it.
    """

    events: list[dict[str, Any]]
    ended: bool
    killed: bool

    def at(self, event: str) -> float | None:
        """Return the time of the first event of a name; None without such an event."""
        return next((record["at"] for record in self.events if record["event"] == event), None)


def cases() -> list[Any]:
    """Return the cases: each fault three times or more, for 2 to 4 ranks and 8, all modes, calls, and groups."""
    from results.measuring.failing_ranks import Case  # This import needs PyTorch.

    all_cases = []
    for i, fault in enumerate(SAYS):
        for repetition in range(max(3, len(CALLS.get(fault, ())))):
            ranks, mode = 2 + (repetition + i) % 3, MODES[(repetition + 2 * i) % 3]
            if fault == "ends after its part":
                ranks = max(ranks, 3)
            if repetition == 3:
                ranks = MOST_RANKS
            calls = CALLS.get(fault, ("all_reduce",))
            call = calls[repetition % len(calls)]
            if call == "broadcast" and fault.startswith("calls another"):
                mode = "auto"  # Ranks compare calls there; otherwise those whose part is over rightly go on.
            in_subgroup = fault in ("killed", "stopped", "raises an error", "destroys its groups", "killed in a call")
            group = "two" if in_subgroup and ranks == 4 and call != "chain" else "all"
            all_cases.append(
                Case(fault, ranks, mode, call, (repetition + i) % 2 == 1, group, (1000, 30_000, 10)[repetition % 3])
            )
    return all_cases


def known_at(case: Any, rank: int, ranks: Sequence[Seen]) -> float:
    """Return the time (of `time.monotonic`) at which this rank could know of the fault."""
    from results.measuring.failing_ranks import TIMED_OUT  # This import needs PyTorch.

    begins = ranks[rank].at("begins") or 0.0
    fault = ranks[case.culprit].at("fault")
    if case.fault in TIMED_OUT and not (rank == case.culprit and "computes" in case.fault):
        return max(begins, fault or 0.0) + float(case.timeout_s)
    if case.fault.startswith("calls another") or SAYS[case.fault] == ELSEWHERE or case.fault in OWN_ERRORS:
        return max(fate.at("begins") or 0.0 for fate in ranks)
    return max(begins, fault or 0.0)


def verdict(case: Any, rank: int, ranks: Sequence[Seen]) -> tuple[str, float]:
    """Return what is wrong about a rank ("" for nothing), and the seconds from when it could know to its message."""
    fate, expected = ranks[rank], SAYS[case.fault].format(case.culprit)
    dead = {r for r, other_rank in enumerate(ranks) if other_rank.killed or (r == case.culprit and case.fault in DEAD)}
    if not fate.ended:
        return "hangs", 0.0
    fails = next((other_rank for other_rank in fate.events if other_rank["event"] == "fails"), None)
    if fails is None:
        return _without_error(case, rank, ranks), 0.0
    text, seconds = fails["text"], max(0.0, fails["at"] - known_at(case, rank, ranks))
    accused = {
        int(r) for other_rank in re.findall(r"lost: rank ([\d, ]+)", text) for r in other_rank.split(",") if r.strip()
    }
    if accused - dead:
        return "falsely accuses", seconds
    if not expected or not _is_concerned(case, rank):
        return "fails for nothing", seconds
    if rank == case.culprit:
        own = OWN_ERRORS.get(case.fault, "the others gave up waiting for this rank").format(rank)
        expected = f"{expected}|{own}"
    if "\n" in text or not re.search(expected, text):
        return "does not name it", seconds
    return "late" if seconds > SOON_S else "", seconds


def _without_error(case: Any, rank: int, ranks: Sequence[Seen]) -> str:
    """Return what is wrong about a rank whose call did not fail."""
    fate, fault = ranks[rank], ranks[case.culprit].at("fault")
    interrupted = fate.at("interrupted")
    if interrupted is not None and fault is not None:
        return "" if rank == case.culprit and interrupted < fault + SOON_S else "late"
    if fate.at("begins") is None:
        return "" if rank == case.culprit else "did not begin"
    if rank == case.culprit and case.fault in DEAD:
        return ""
    right = not SAYS[case.fault] or not _is_concerned(case, rank)
    return "" if right and fate.at("passes") is not None else "does not fail"


def _is_concerned(case: Any, rank: int) -> bool:
    """Return True if the fault must make this rank's call fail."""
    if case.fault == "waits for a message that is not sent":
        return bool(rank == case.culprit)
    return case.group == "all" or rank in (0, case.ranks - 1)


def run_case(case: Any, libraries: dict[int, Path], plant: Callable[[], None] | None = None) -> list[Seen]:
    """Run the ranks of a case as forked processes, wait for their ends, and return what they recorded.

    Args:
        case: The case.
        libraries: Folder of a library by number of ranks.
        plant: Function that each rank calls before it begins.
    """
    from results.measuring.failing_ranks import run_rank  # This import needs PyTorch.

    with _folder() as folder:
        address = f"file://{folder}/store"
        if case.fault.startswith("rank 0") or (case.ranks == 3 and "start" not in case.fault):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        wrong_settings = _wrong_settings(case, libraries, Path(folder)) if case.fault in OWN_ERRORS else {}
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
                if rank == case.culprit:
                    os.environ.update(wrong_settings)
                if plant is not None:
                    plant()
                run_rank(case, rank, address, f"{folder}/{rank}")
            children.append(child)
        codes = _wait(children, case)
        fates_of_ranks = []
        for rank, code in enumerate(codes):
            path = Path(folder, str(rank))
            events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            fates_of_ranks.append(Seen(events, code is not None, code is not None and os.WIFSIGNALED(code)))
        return fates_of_ranks


def _wrong_settings(case: Any, libraries: dict[int, Path], folder: Path) -> dict[str, str]:
    """Return the environment variables that make the culprit's settings wrong; write the files that they name.

    Args:
        case: The case.
        libraries: Folder of a library by number of ranks.
        folder: Folder of the case, for the files.
    """
    other_ranks = next(ranks for ranks in libraries if ranks != case.ranks)
    own_file, other_file = (min(libraries[ranks].rglob("*.xml")) for ranks in (case.ranks, other_ranks))
    table = folder / "table.json"
    row = {"collective": "allreduce", "ranks": case.ranks, "min_bytes": 0, "backend": "gloo"}
    text = json.dumps({"format": FORMAT, "machine": platform.node(), "rows": [row]})
    if case.fault == "has one file for a library":
        return {"SYNTH_LIBRARY": str(own_file)}
    if case.fault == "has a library for other ranks":
        return {"SYNTH_LIBRARY": str(other_file)}
    if case.fault == "has a damaged file in its library":
        library = shutil.copytree(libraries[case.ranks], folder / "library")
        damaged = library / own_file.relative_to(libraries[case.ranks])
        damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
        return {"SYNTH_LIBRARY": str(library)}
    if case.fault == "has an unknown back end":
        return {"SYNTH_BACKEND": "syn"}
    if case.fault == "compares calls, unlike others":
        return {"SYNTH_CHECK": "1"}
    if case.fault != "has a table that does not exist":
        table.write_text(text if case.fault == "has another table" else text[: len(text) // 2])
    return {"SYNTH_TABLE": str(table)}


def _wait(children: Sequence[int], case: Any) -> list[int | None]:
    """Return the status of each rank; None if it did not end.

    A stopped rank is continued when all other ranks have ended.
    """
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
    """Return faults that are planted in the back end.

    By name, each has a case, the expected verdict, and a function that plants it.
    """
    from results.measuring.failing_ranks import Case  # This import needs PyTorch.
    from runtime.torch.failures import lost
    from runtime.torch.failures.causes import Cause, Waiting
    from runtime.torch.failures.lost import FailureWatch

    def accuse() -> None:
        """Call a live rank lost."""
        lost.find_cause = lambda *arguments: Cause(f"lost: rank {min(arguments[-1])} (it does not answer)")

    def be_silent() -> None:
        """Return no cause for any failure."""
        FailureWatch._find_cause = lambda *_: ""  # type: ignore[method-assign]

    def be_late() -> None:
        """Set a delay before each cause."""
        find_cause = FailureWatch._find_cause

        def later(watch: FailureWatch, waiting: Waiting, late: bool) -> str:
            """Return the cause after a delay."""
            time.sleep(SOON_S + 0.5)
            return find_cause(watch, waiting, late)

        FailureWatch._find_cause = later  # type: ignore[method-assign]

    def hang() -> None:
        """Keep waits from ending."""
        FailureWatch._end_waits = lambda _: None  # type: ignore[method-assign]

    return {
        "a live rank is called lost": (Case("computes past the time-out", 3, "synth"), "falsely accuses", accuse),
        "nobody is named": (Case("killed", 3, "synth"), "does not name it", be_silent),
        "it is named 2.5 s later": (Case("killed", 2, "auto"), "late", be_late),
        "waits are not ended": (Case("calls another reduction", 3, "synth"), "hangs", hang),
    }


def _messages(ranks: Sequence[Seen]) -> str:
    """Return the ranks' messages, with the ranks that sent each one."""
    ranks_of_text: dict[str, list[str]] = {}
    for rank, fate in enumerate(ranks):
        last = next((e for e in reversed(fate.events) if e["event"] in ("fails", "passes", "interrupted")), None)
        text = "–" if last is None else last["event"] if last["event"] != "fails" else _cause(last["text"])
        ranks_of_text.setdefault(text.replace("|", "/"), []).append(str(rank))
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in ranks_of_text.items() if text != "–")


def _cause(text: str) -> str:
    """Return a message without folders, and without the error of the wrapped back end before it, if there is one."""
    text = re.sub(r"(?<=[ =])/\S*/", "", text)  # Folders of the run are not the same the next time.
    _, _, after = text.partition("; ")
    return text if after.startswith("it must ") or not after else after


@contextmanager
def _folder() -> Iterator[str]:
    """Yield a temporary folder and remove it afterwards.

    It is not tempfile's context manager, because the forked ranks would run that one's exit function too.
    """
    folder = tempfile.mkdtemp()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _libraries() -> Iterator[dict[int, Path]]:
    """Yield folders of libraries of all-reduces, by number of ranks."""
    with _folder() as folder:
        folder_of_ranks = {}
        for ranks in (2, 3, 4, MOST_RANKS):
            folder_of_ranks[ranks] = Path(folder, str(ranks))
            process = run(
                synth("allreduce", "--topo", f"full:{ranks}", "--budget", "20s", "--out", folder_of_ranks[ranks])
            )
            if process.code != 0:
                raise RuntimeError(process.err)
        yield folder_of_ranks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases, and write the table; return 1 if one fails or a planted fault is not found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run each N-th case only")
    parser.add_argument("--only", metavar="FAULT", help="run the cases whose fault contains this, and write no table")
    options = parser.parse_args(arguments)
    if find_spec("torch") is None:
        print("lost_ranks needs PyTorch; install it with: pip install '.[torch]'", file=sys.stderr)
        return 2
    import torch  # The import is slow and optional.

    torch.set_num_threads(1)
    chosen_cases = [case for case in cases() if options.only is None or options.only in case.fault][:: options.every]
    rows, nwrong, worst = [], 0, 0.0
    with _libraries() as libraries:
        for case in chosen_cases:
            ranks = run_case(case, libraries)
            verdicts = [verdict(case, rank, ranks) for rank in range(case.ranks)]
            faults = sorted({f"rank {rank} {text}" for rank, (text, _) in enumerate(verdicts) if text})
            seconds = max(late for _, late in verdicts)
            nwrong, worst = nwrong + bool(faults), max(worst, seconds)
            call_text = (
                f"{case.call}{', async' if case.is_async else ''}{', group of two' if case.group == 'two' else ''}"
            )
            rows.append(
                (
                    case.fault,
                    case.ranks,
                    case.mode,
                    call_text,
                    _messages(ranks),
                    f"{seconds:.2f}",
                    "; ".join(faults) or "right",
                )
            )
            print(*rows[-1], sep=" | ", flush=True)
        if options.only is not None:
            return int(nwrong > 0)
        planted = []
        for name, (case, expected, plant) in plants().items():
            ranks = run_case(case, libraries, plant)
            verdicts = {verdict(case, rank, ranks)[0] for rank in range(case.ranks)}
            planted.append((name, case.fault, ", ".join(sorted(verdicts - {""})) or "nothing", expected in verdicts))
            print(*planted[-1], sep=" | ", flush=True)
    about = (
        f"{len(chosen_cases) - nwrong} of {len(chosen_cases)} cases are right (all cases: {len(cases())}; PyTorch"
        f" {torch.__version__}). The latest message came {worst:.2f} s after the fault could be known. The culprit is"
        " the last rank unless the fault names rank 0. In mode auto Gloo runs the calls, and SYNTH_CHECK=1 compares"
        " calls that may differ: Gloo ends a process whose message is too long, and does not notice a sum instead of a"
        " maximum. All ranks use loopback, so no network is partitioned."
    )
    titles = ("fault", "ranks", "mode", "call", "messages by rank", "delay of the last message, s", "verdict")
    missed = sum(not row[-1] for row in planted)
    rows_of_plants = [(*row[:3], "yes" if row[3] else "NO") for row in planted]
    checks = grid(("planted in the back end", "fault of the case", "verdict", "as expected"), rows_of_plants)
    write(__file__, page(__file__, "Ranks that fail", [about, grid(titles, rows), "## Planted faults", checks]))
    return int(nwrong + missed > 0)


if __name__ == "__main__":
    sys.exit(main())
