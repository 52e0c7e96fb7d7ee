"""Commands whose folders are held, hurt or full: how soon each ends beyond its budget, and with what.

    python -m results.scripts.locks [--every N] [--only WORD]

makes locks.md. Each situation is a whole command in a fresh process: a search that writes into a library, one that
needs compiled loops, one with a cache, builders of libraries, and the commands that read or write them.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from results.measuring.measure import ROOT, grid, page, write
from results.measuring.places import Place, SkippedError, library_state
from synth.app.cli import cli

MOST_LATE_S = 1.0
LIMIT_S = 150.0  # of one command
MINUTE_S = 60.0  # for which a command without a budget waits for another writer
TIMES = 2  # that a command runs with nothing in its way
LARGE = "allreduce --topo dgx-h100:2 --costs none --budget 4s --json --out lib"  # takes all of its budget
SOON = "allgather --topo ring:4 --size 1M --budget 5s --json --out lib"  # is proved optimal at once
NAMED = SOON + " --target executor-nccl"
PATIENT = SOON.replace("5s", "30s")
GROUPS = "allgather --topo ring:4 --groups 0,1;2,3 --size 1M --budget 5s --out lib"
LOOPS = "alltoall --topo torus:8x8 --chunks 1 --budget 4s --json --out lib"  # needs compiled loops
BUILD = "library build cluster.toml --out lib --jobs 1"
UPDATE = "library update cluster.toml --out lib --jobs 1 --without link:1-2"
ADD = "compile ring.py --set ranks=4 --library lib"
EXPORT = "library export lib --for executor-nccl -o other"
CLUSTER = """topology = "ring:4"
groups = ["0,1", "0,1,2"]
collectives = ["allgather"]
targets = ["executor-nccl"]
sizes = "1M"
budget = "10s"
"""
LOCK_FILES = "lock", ".lock", "index.json.lock"  # of other programs; this one leaves them alone
WAITS = "waiting up to"
_FOLDERS = "lib", "other"  # words of a command that name a folder of its place
_LOOK_S = 0.02
_APART_S = 4.0  # between two commands that wait for a minute, beside the others

Change = Callable[[Place], object]


@dataclass(frozen=True)
class Situation:
    """A command in a situation, and how it is to end.

    Attributes:
        what: The situation, in words.
        words: The command's words.
        change: Makes the situation.
        end: "here", "elsewhere", "refused", "interrupted" or "printed"; two of them with "or" between them.
        wait_s: Seconds for which the command may wait for another process.
        cold: Whether the command compiles its loops, and so is compared with a command that does.
        beside: Words of a second command that runs at the same time; None without one.
    """

    what: str
    words: str
    change: Change
    end: str
    wait_s: float = 0.0
    cold: bool = False
    beside: str | None = None


@dataclass(frozen=True)
class Ended:
    """The end of a command."""

    seconds: float
    since_s: float | None
    code: int | None
    out: bytes
    err: str


def begin(place: Place, words: str) -> subprocess.Popen[bytes]:
    """Start a command whose words go to files; its name for them is its number."""
    arguments = [str(place.folder / word) if word in _FOLDERS else word for word in words.split(" ")]
    number = len(list(place.folder.glob("*.err")))
    out, err = (place.folder / f"{number}.{stream}" for stream in ("out", "err"))
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen(
            [*place.prefix, sys.executable, *place.program, *arguments],
            cwd=place.folder, env={**os.environ, "PYTHONPATH": str(ROOT), **place.environment},
            stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file,
        )  # fmt: skip
    process.args = err
    return process


def follow(process: subprocess.Popen[bytes], acts: Sequence[tuple[float | str, Callable[..., object]]] = ()) -> Ended:
    """Wait for a command, and do what is to be done meanwhile."""
    begun = last = time.monotonic()
    err, has_acted = process.args, False
    assert isinstance(err, Path)
    waiting = list(acts)
    while process.poll() is None and time.monotonic() - begun < LIMIT_S:
        if waiting:
            when, act = waiting[0]
            is_due = when in err.read_text() if isinstance(when, str) else time.monotonic() - last >= when
            if is_due:
                act(process)
                has_acted, last = True, time.monotonic()
                del waiting[0]
        time.sleep(_LOOK_S)
    ended = time.monotonic()
    if process.poll() is None:
        process.kill()
        process.wait()
        return Ended(ended - begun, None, None, b"", err.read_text())
    since_s = ended - last if has_acted else None
    return Ended(ended - begun, since_s, process.returncode, err.with_suffix(".out").read_bytes(), err.read_text())


def ask(place: Place, words: str) -> None:
    """Run a command that must end well, before the situation begins."""
    ended = follow(begin(place, words))
    if ended.code:
        sys.exit(f"{words}: {ended.err}")


def new_place(folder: Path, stack: ExitStack) -> Place:
    """Make the place of a command, with what its words name."""
    folder.mkdir(parents=True)
    (folder / "cluster.toml").write_text(CLUSTER)
    shutil.copy(ROOT / "examples" / "ring.py", folder)
    return Place(folder, stack, {"SYNTH_CACHE": "none"})


# Situations of the library


def nothing(_place: Place) -> None:
    """Leave everything as it is."""


def hold(place: Place) -> None:
    """Make a process hold the library."""
    place.hold(place.lib)


def hold_stopped(place: Place) -> None:
    """Make a process hold the library, and stop it."""
    place.hold(place.lib).stop()


def hold_several(place: Place) -> None:
    """Make a process hold the library and the two folders that would take its answers."""
    place.hold(place.lib, place.folder / "lib-2", place.folder / "lib-3")


def hold_through_link(place: Place) -> None:
    """Make a process hold the library, which the command reaches through a link."""
    place.put("link", "lib")
    place.hold(place.lib)


def hold_in_closed_folder(place: Place) -> None:
    """Make a process hold the library in a folder in which no other library can be made."""
    hold(place)
    place.forbid(place.folder, 0o555)


def hold_on_full_disk(place: Place) -> None:
    """Make a process hold the library, which is on a full disk."""
    place.fill(place.folder / "disk")
    place.lib.symlink_to("disk")
    place.hold(place.lib)


def hold_known(place: Place) -> None:
    """Make a process hold the library for a question whose answer is in the cache."""
    place.environment["SYNTH_CACHE"] = str(place.folder / "answers")
    ask(place, SOON)
    shutil.rmtree(place.lib)
    hold(place)


def hold_filled(place: Place) -> None:
    """Make a process hold a library that has answers."""
    ask(place, NAMED)
    hold(place)


def hold_output(place: Place) -> None:
    """Make a process hold the folder of one communicator in the output of an export."""
    ask(place, NAMED)
    place.hold(place.folder / "other" / "ring-4-0.1.2.3")  # An export has a folder for each communicator.


def hold_failure(place: Place) -> None:
    """Make a process hold the folder of a failure."""
    place.hold(place.lib / "faults" / "link-1-2")


def leave_dead(place: Place) -> None:
    """Make a writer end in the middle of its work, so that its unfinished folder stays."""
    staging = place.lib / ".synth-dead"
    holder = place.hold(place.lib, staging)
    (staging / "half.xml").write_text("<algo")
    holder.kill()


def leave_lock_files(place: Place) -> None:
    """Write lock files as other programs leave them."""
    place.lib.mkdir()
    for name in LOCK_FILES:
        (place.lib / name).write_text(f"{os.getpid()} another-host\n")


def release(when: float | str) -> Change:
    """Make the holder let go after some seconds, or once the command has printed a text."""

    def change(place: Place) -> None:
        holder = place.hold(place.lib)
        place.acts.append((when, lambda _process: holder.release()))

    return change


def interrupt(times: int, when: float | str = WAITS) -> Change:
    """Send Ctrl-C so often, first while the command waits for the library or after some seconds."""

    def change(place: Place) -> None:
        hold(place)
        for number in range(times):
            place.acts.append((0.1 if number else when, lambda process: process.send_signal(signal.SIGINT)))

    return change


def forbid(mode: int, name: str = "lib") -> Change:
    """Set the permissions of a folder."""

    def change(place: Place) -> None:
        (place.folder / name).mkdir(parents=True)
        place.forbid(place.folder / name, mode)

    return change


def forbid_index(place: Place) -> None:
    """Set the index of the library to read-only."""
    ask(place, SOON)
    place.forbid(place.lib / "index.json", 0o444)


def without_locks(error: str) -> Change:
    """Make every lock fail with an error."""
    return lambda place: place.forget_locks(error)


def put(kind: str, name: str) -> Change:
    """Make a folder, a file, a link or a pipe of a name."""
    return lambda place: place.put(kind, name)


# Situations of the folder of compiled loops and of the cache


def on_loops(change: Change, warm: bool = True) -> Change:
    """Give the command a folder of compiled loops of its own, which holds them where it is warm, and change that."""

    def change_loops(place: Place) -> None:
        loops = place.folder / "loops"
        place.environment["NUMBA_CACHE_DIR"] = str(loops)
        if warm:
            shutil.copytree(os.environ["NUMBA_CACHE_DIR"], loops)
        change(place)

    return change_loops


def replace_lock(kind: str) -> Change:
    """Replace the lock of the compiled loops by something else."""

    def change(place: Place) -> None:
        (place.folder / "loops" / "lock").unlink(missing_ok=True)
        place.put(kind, "loops/lock")

    return on_loops(change)


def cut_loops(place: Place) -> None:
    """Cut each kept loop to a half, as a machine that lost its power may leave it."""
    for path in (place.folder / "loops").rglob("*.nb?"):
        os.truncate(path, path.stat().st_size // 2)


def release_loops(place: Place) -> None:
    """Make a process hold the compiled loops for a second."""
    holder = place.hold(place.folder / "loops" / "lock")
    place.acts.append((1.0, lambda _process: holder.release()))


def kill_holder_of_loops(place: Place) -> None:
    """Make a process hold the compiled loops, and kill it."""
    lock = place.folder / "loops" / "lock"
    lock.write_text(f"{os.getpid()} another-host\n")
    place.hold(lock).kill()


def on_answers(change: Change, filled: bool = False) -> Change:
    """Give the command a cache of its own, which holds the answer where it is filled, and change that."""

    def change_answers(place: Place) -> None:
        place.environment["SYNTH_CACHE"] = str(place.folder / "answers")
        if filled:
            ask(place, SOON)
            shutil.rmtree(place.lib)
        change(place)

    return change_answers


def replace_answer(kind: str) -> Change:
    """Replace the answer in the cache by something else."""

    def change(place: Place) -> None:
        [path] = (place.folder / "answers").glob("??/*")
        path.unlink()
        place.put(kind, str(path.relative_to(place.folder)))

    return on_answers(change, filled=True)


def forbid_answer(place: Place) -> None:
    """Set the answer in the cache to be unreadable."""
    [path] = (place.folder / "answers").glob("??/*")
    place.forbid(path, 0o000)


def put_files_in_answers(place: Place) -> None:
    """Write a file of each name that a folder of the cache would have."""
    for number in range(256):
        place.put("file", f"answers/{number:02x}")


def fill(name: str) -> Change:
    """Make a folder lie on a full disk."""
    return lambda place: place.fill(place.folder / name)


SITUATIONS = (
    Situation("held by a process that lives", LARGE, hold, "elsewhere"),
    Situation("held by a process that is stopped", LARGE, hold_stopped, "elsewhere"),
    Situation("held; the answer is proved at once", SOON, hold, "elsewhere", wait_s=5.0),
    Situation("held; the cache has the answer", SOON, hold_known, "elsewhere", wait_s=5.0),
    Situation("held; several groups", GROUPS, hold, "elsewhere", wait_s=5.0),
    Situation("held; a budget of 1 s", LARGE.replace("4s", "1s"), hold, "elsewhere"),
    Situation("held, as are lib-2 and lib-3", LARGE, hold_several, "elsewhere"),
    Situation("held; reached through a link", LARGE, hold_through_link, "elsewhere"),
    Situation("held; no folder can be made beside it", LARGE, hold_in_closed_folder, "elsewhere"),
    Situation("held, on a full disk", LARGE, hold_on_full_disk, "elsewhere"),
    Situation("its holder was killed amid its work", LARGE, leave_dead, "here"),
    Situation("lock files of another host with our own number", LARGE, leave_lock_files, "here"),
    Situation("its holder lets go during the search", LARGE, release(2.5), "here"),
    Situation("its holder lets go during the wait", PATIENT, release(WAITS), "here"),
    Situation("held; Ctrl-C during the search", LARGE, interrupt(1, 3.0), "elsewhere or interrupted"),
    Situation("held; Ctrl-C during the wait", PATIENT, interrupt(1), "elsewhere"),
    Situation("held; Ctrl-C twice during the wait", PATIENT, interrupt(2), "elsewhere"),
    Situation("held; Ctrl-C three times during the wait", PATIENT, interrupt(3), "elsewhere or interrupted"),
    Situation("two searches at once, one question", LARGE, nothing, "here", beside=LARGE),
    Situation("two searches at once, two questions", LARGE, nothing, "here", beside=SOON),
    Situation("may not be written", LARGE, forbid(0o555), "refused"),
    Situation("may not be listed", LARGE, forbid(0o300), "refused"),
    Situation("may not be entered", LARGE, forbid(0o600), "refused"),
    Situation("its index may not be written", SOON, forbid_index, "here"),
    Situation("its folder msccl may not be written", NAMED, forbid(0o555, "lib/msccl"), "refused"),
    Situation("its folder msccl is a file", NAMED, put("file", "lib/msccl"), "refused"),
    Situation("its folder msccl is a link", NAMED, put("link", "lib/msccl"), "refused"),
    Situation("its index is a pipe", LARGE, put("pipe", "lib/index.json"), "refused"),
    Situation("its index is a folder", LARGE, put("folder", "lib/index.json"), "refused"),
    Situation("no locks (ENOLCK)", LARGE, without_locks("ENOLCK"), "here"),
    Situation("no locks (EOPNOTSUPP)", LARGE, without_locks("EOPNOTSUPP"), "here"),
    Situation("no locks (EINVAL)", LARGE, without_locks("EINVAL"), "here"),
    Situation("no locks (EBADF)", LARGE, without_locks("EBADF"), "here"),
    Situation("a file in its place", LARGE, put("file", "lib"), "refused"),
    Situation("a pipe in its place", LARGE, put("pipe", "lib"), "refused"),
    Situation("a link to nothing in its place", LARGE, put("link to nothing", "lib"), "refused"),
    Situation("a link to itself in its place", LARGE, put("link to itself", "lib"), "refused"),
    Situation("on a full disk", LARGE, fill("lib"), "refused"),
    Situation(
        "loops: held by a process that is stopped", LOOPS,
        on_loops(lambda place: place.hold(place.folder / "loops/lock").stop()), "here", cold=True,
    ),
    Situation("loops: the holder lets go in time", LOOPS, on_loops(release_loops), "here"),
    Situation("loops: the holder was killed", LOOPS, on_loops(kill_holder_of_loops), "here"),
    Situation("loops: the lock is a folder", LOOPS, replace_lock("folder"), "here"),
    Situation("loops: the lock is a pipe", LOOPS, replace_lock("pipe"), "here"),
    Situation("loops: the lock is a link to nothing", LOOPS, replace_lock("link to nothing"), "here"),
    Situation("loops: the lock is a link to itself", LOOPS, replace_lock("link to itself"), "here"),
    Situation("loops: no locks (ENOLCK)", LOOPS, without_locks("ENOLCK"), "here"),
    Situation("loops: each cut to a half", LOOPS, on_loops(cut_loops), "here", cold=True),
    Situation("loops: may not be written", LOOPS, on_loops(forbid(0o555, "loops"), warm=False), "here", cold=True),
    Situation("loops: a full disk", LOOPS, on_loops(fill("loops"), warm=False), "here", cold=True),
    Situation("cache: may not be written", SOON, on_answers(forbid(0o555, "answers")), "here"),
    Situation("cache: a file in its place", SOON, on_answers(put("file", "answers")), "refused"),
    Situation("cache: a pipe in its place", SOON, on_answers(put("pipe", "answers")), "refused"),
    Situation("cache: a link to nothing in its place", SOON, on_answers(put("link to nothing", "answers")), "here"),
    Situation("cache: files in its folders' places", SOON, on_answers(put_files_in_answers), "here"),
    Situation("cache: the answer is a pipe", SOON, replace_answer("pipe"), "here"),
    Situation("cache: the answer is a folder", SOON, replace_answer("folder"), "here"),
    Situation("cache: the answer may not be read", SOON, on_answers(forbid_answer, filled=True), "here"),
    Situation("cache: a full disk", SOON, on_answers(fill("answers")), "here"),
    Situation("cache: two searches at once", SOON, on_answers(nothing), "here", beside=SOON),
    Situation("two builds at once", BUILD, nothing, "here", beside=BUILD),
    Situation("held during a build; the holder lets go", BUILD, release(WAITS), "here"),
    Situation("held during a build", BUILD, hold, "elsewhere", wait_s=MINUTE_S),
    Situation("held during a build; Ctrl-C", BUILD, interrupt(1), "elsewhere"),
    Situation("held during a build; Ctrl-C twice", BUILD, interrupt(2), "elsewhere or interrupted"),
    Situation("its failure's folder is held", UPDATE, hold_failure, "refused", wait_s=MINUTE_S),
    Situation("held; an algorithm is added", ADD, hold, "refused", wait_s=MINUTE_S),
    Situation("held; an algorithm is added; Ctrl-C", ADD, interrupt(1), "interrupted"),
    Situation("the folder of an export is held", EXPORT, hold_output, "refused", wait_s=MINUTE_S),
    Situation("held; it is exported", EXPORT, hold_filled, "printed"),
    Situation("held; it is shown", "library show lib", hold_filled, "printed"),
    Situation("held; it is checked", "library check lib", hold_filled, "printed"),
    Situation("held; it is compared", "library diff lib lib", hold_filled, "printed"),
    Situation("held; a file is picked", "library pick lib allgather 0-3 1M", hold_filled, "printed"),
    Situation("held; it is loaded", "library env lib", hold_filled, "printed"),
    Situation("held; a page is made of it", "report lib -o page.html", hold_filled, "printed"),
)  # fmt: skip


def usual_s(words: str, kind: str, folder: Path) -> float:
    """Return the seconds of a command with nothing in its way: the mean of a few runs."""
    seconds = []
    for number in range(TIMES):
        with ExitStack() as stack:
            place = new_place(folder / str(number), stack)
            unhindered(kind)(place)
            seconds.append(follow(begin(place, words)).seconds)
    return statistics.fmean(seconds)


def reference(situation: Situation) -> tuple[str, str]:
    """Return what tells a situation's command with nothing in its way from others."""
    kinds: dict[Change, str] = {hold_filled: "filled", hold_output: "filled", hold_known: "known"}
    kind = kinds.get(situation.change, "")
    words = SOON if situation.words == PATIENT else situation.words  # which ends as soon
    return words, "cold" if situation.cold else kind


def unhindered(kind: str) -> Change:
    """Return what prepares a command with nothing in its way."""

    def change(place: Place) -> None:
        if kind == "cold":
            place.environment["NUMBA_CACHE_DIR"] = str(place.folder / "loops")
        elif kind == "filled":
            ask(place, NAMED)
        elif kind == "known":
            place.environment["SYNTH_CACHE"] = str(place.folder / "answers")
            ask(place, SOON)
            shutil.rmtree(place.lib)

    return change


def run(situation: Situation, place: Place) -> list[Ended]:
    """Run the commands of a situation."""
    situation.change(place)
    processes = [begin(place, words) for words in (situation.words, situation.beside) if words is not None]
    return [follow(processes[0], place.acts), *map(follow, processes[1:])]


def judge(situation: Situation, place: Place, words: str, ended: Ended) -> tuple[str, str]:
    """Return how a command ended, in the words of `Situation.end`, and "right" or what is wrong."""
    moved = re.search(r"the answer is written to (.*)", ended.err)
    folder = place.folder / moved[1] if moved else place.lib
    said = [line for line in ended.err.splitlines() if line.startswith("synth: ")]
    if ended.code is None:
        return "hangs", "nothing"
    # a signal after Python has taken its handlers back ends a process by itself, which shells call 130 too
    code = 130 if ended.code == -signal.SIGINT else ended.code
    if "Traceback" in ended.err or code not in (0, 2, 130):
        return f"exit code {code}", ended.err.strip()[-200:] or "nothing was said"
    if code == 2 or (code == 130 and not ended.out):
        is_right = len(said) == 1 and not ended.out and not list(place.folder.rglob(".synth-*"))
        return "refused" if code == 2 else "interrupted", "right" if is_right else f"{len(said)} lines, or files"
    if situation.end == "printed":
        return "printed", "right" if ended.out else "nothing"
    if situation.change is leave_lock_files:
        for name in LOCK_FILES:
            (folder / name).unlink()  # the check of a folder knows no foreign files
    if "--json" in words and situation.beside in (None, words):
        answer = library_state(folder, ended.out)
    else:
        check = CliRunner().invoke(cli, ["library", "check", str(folder)])
        answer = "right" if check.exit_code == 0 else check.output[-200:]
    if moved and (place.lib / "index.json").exists():
        answer = "the held library was written"
    return "elsewhere" if moved else "here", answer


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all situations and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th situation only")
    parser.add_argument("--only", default="", metavar="WORD", help="situations whose words have this")
    given = parser.parse_args(arguments)
    situations = [row for row in SITUATIONS if given.only in row.what][:: given.every]
    rows, late, wrong, skipped = [], [], [], []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        root = Path(name)
        os.environ["NUMBA_CACHE_DIR"] = str(root / "loops")  # warm from the first run of a command on
        if any("loops" in row.what for row in situations):
            ask(new_place(root / "warm", stack), LOOPS)
        usual: dict[tuple[str, str], float] = {}
        for situation in situations:
            if reference(situation) not in usual:
                words, kind = reference(situation)
                usual[words, kind] = usual_s(words, kind, root / f"usual{len(usual)}")
        places = [new_place(root / str(number), stack) for number in range(len(situations))]
        long_waits = {}
        for number, situation in enumerate(situations):
            if situation.wait_s >= MINUTE_S:
                long_waits[number] = threads.submit(run, situation, places[number])
                time.sleep(_APART_S)
        for number, (situation, place) in enumerate(zip(situations, places, strict=True)):
            try:
                ends = long_waits[number].result() if number in long_waits else run(situation, place)
            except SkippedError as error:
                skipped.append(f"- {situation.what}: {error}")
                continue
            judged = [
                judge(situation, place, words, ended)
                for words, ended in zip((situation.words, situation.beside or ""), ends, strict=False)
            ]
            kinds = " and ".join(dict.fromkeys(kind for kind, _ in judged))
            answer = " and ".join(dict.fromkeys(right for _, right in judged))
            expected_s = usual[reference(situation)] + situation.wait_s
            late_s = max(
                min(ended.seconds - expected_s, math.inf if ended.since_s is None else ended.since_s) for ended in ends
            )
            is_right = kinds in situation.end.split(" or ") and answer == "right"
            late += [situation] if late_s > MOST_LATE_S else []
            wrong += [] if is_right else [f"- {situation.what}: {kinds}, {answer}: {ends[0].err.strip()[-300:]}"]
            seconds = (f"{max(ended.seconds for ended in ends):.2f}", f"{expected_s:.2f}", f"{late_s:+.2f}")
            rows.append((situation.what, situation.words.split(" --")[0], situation.end, kinds, *seconds, answer))
            print(rows[-1], flush=True)
    about = (
        f"{len(rows)} situations, {len(wrong)} that ended otherwise than they should, {len(late)} later than"
        f" {MOST_LATE_S:g} s. *Usual* is the same command with nothing in its way (the mean of {TIMES} runs, start-up"
        " included; with its loops to be compiled where they are so in the situation), and what it may wait for another"
        " process: the rest of its budget or, without a budget, a minute. *Late* is what the command took beyond that;"
        " where something was done to it while it ran (a signal, or the holder let go), at most the seconds after that."
        f" Load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    )
    titles = ("situation", "command", "must end", "ended", "seconds", "usual", "late", "answer")
    skips = [f"{len(skipped)} could not be made:", "\n".join(skipped)] if skipped else []
    write(__file__, page(__file__, "Held, hurt and full folders", [about, grid(titles, rows), *wrong, *skips]))
    if wrong or late:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
