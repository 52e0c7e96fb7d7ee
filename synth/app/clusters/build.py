"""The build of a library for a whole cluster: take known answers, solve the other problems, and write the answers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from emit.library.saving.write import LibraryHeldError
from synth.app.clusters.answer_check import checked_answer
from synth.app.clusters.local import WorkerPool
from synth.app.clusters.placing import Placing
from synth.app.clusters.plan import BuildPlan, BuildShare, estimated_s, spread_s
from synth.app.clusters.task import Answer, Task, unpacked
from synth.model.deadline import now
from synth.storage.cache import Cache
from topologies.errors import InputError

HURRIED = (
    "time ran out for some problems: their files are right; the same command searches these problems again, and"
    " keeps each file at every size at which it is no slower; a longer budget finds more"
)
_WRITTEN_S = 5.0  # seconds between two writes
# Writing may take this part of the time, since it uses a core that solves. Unwritten answers are in the cache.
_WRITING = 0.02
_LEAST_SLOWNESS = 0.5  # the least factor on the estimated time that is left
_MERGING = 0.3  # The most of the budget that is kept free for merging answers with files of the library.
LEAST_S = 2.0  # The least time of a problem, in which it gets a first file also where the budget is over.
_LAST_WRITE = 0.03  # The part of the budget for the last write, and for the start of processes.


@dataclass
class BuildProgress:
    """The progress of a build.

    Attributes:
        total: Number of shares of the plan.
        done: Number of finished shares.
        left_s: Estimated seconds until the end, with all processes.
        running: The problems that are solved now, as "allreduce of 31 ranks".
        worst: Largest time / bound so far.
        kept: Number of finished shares whose files were in the library.
        cached: Number of finished shares whose answers were in the cache.
        solved: Number of problems solved by this build.
    """

    total: int
    done: int = 0
    left_s: float = 0.0
    running: tuple[str, ...] = ()
    worst: float = 1.0
    kept: int = 0
    cached: int = 0
    solved: int = 0


@dataclass
class Built:
    """The outcome of a build.

    Attributes:
        plan: The plan that was carried out.
        progress: The final progress.
        left_out: Shares without an answer, and why.
        seconds: Duration of the build.
        interrupted: Whether Ctrl-C ended it.
        remarks: What did not go as it should, a clause each.
    """

    plan: BuildPlan
    progress: BuildProgress
    left_out: list[tuple[BuildShare, str]] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    remarks: list[str] = field(default_factory=list)


def build(
    plan: BuildPlan,
    folder: str | Path,
    cache: Cache,
    pool: WorkerPool,
    report: Callable[[BuildProgress], None] = lambda _: None,
    seconds: float = math.inf,
) -> Built:
    """Build a library in a folder; after Ctrl-C end early, with all answers written that are known.

    Each problem gets its share of the seconds when it begins: what is left of them, divided by the estimates of the
    problems that are still to be solved. A problem without a share still gets 2 s, for a first file.

    Answers are taken from the library and the cache if they are there. New ones are put into the cache. If another
    process holds the library, the last answers go to another folder, and a remark names it.

    Args:
        plan: The shares and their problems.
        folder: The library's folder.
        cache: Answers of earlier builds.
        pool: Processes that solve the problems; they are stopped at the end.
        report: Function that is called with the progress.
        seconds: Seconds for all problems and their files; infinite for as many as each problem's own limit allows.

    Raises:
        InputError: The folder cannot be written. What was written before is complete.
    """
    return _Build(plan, Path(folder), cache, pool, report, seconds).run()


class _Build:
    """The state of a build.

    Attributes:
        placing: The library that the answers go to.
        built: The outcome so far.
        shares: Numbers of the shares that wait for an answer, by the key of their task.
        after: Relabellings that wait for a search, by the key of the search.
        open: Tasks that are still to be solved, by key.
        written: Time of the last write, in seconds as `now` counts them.
        spent_s: Seconds that the last write took.
        begun: Time of the beginning, likewise.
        solved_s: Estimated seconds of each task that was solved.
        queue: Tasks that are ready and wait for a process, in their order.
        end_of: When the time of each running task ends, by its key; readings of `now`.
        deadline: When the time for all problems ends, likewise.
    """

    def __init__(
        self,
        plan: BuildPlan,
        folder: Path,
        cache: Cache,
        pool: WorkerPool,
        report: Callable[[BuildProgress], None],
        seconds: float,
    ) -> None:
        self.plan, self.cache, self.pool, self.report = plan, cache, pool, report
        self.placing = Placing(folder, plan)
        self.built = Built(plan, BuildProgress(len(plan.shares)))
        self.shares: dict[str, list[int]] = {}
        self.after: dict[str, list[Task]] = {}
        self.open: dict[str, Task] = {}
        self.solved_s: list[float] = []
        self.queue = deque[Task]()
        self.end_of: dict[str, float] = {}
        self.begun = self.written = self.spent_s = 0.0
        self.seconds = seconds
        self.deadline = math.inf

    def run(self) -> Built:
        """Run the build and return its outcome: take known answers, solve other problems, write answers now and then.

        Searches are submitted from the longest estimate to the shortest. Ctrl-C ends the solving; what is known is
        written.
        """
        self.begun = self.written = now()
        self.deadline = self.begun + (1.0 - _LAST_WRITE) * self.seconds
        try:
            self._take_known_answers()
            waiting = (number for numbers in self.shares.values() for number in numbers)
            self.deadline -= min(_MERGING * self.seconds, self.placing.merging_s(waiting))
            searches = [task for task in self.open.values() if not task.order]
            self.queue.extend(sorted(searches, key=lambda task: (-estimated_s(task), task.key)))
            self._submit_ready()
            with self.pool:
                for outcome in self.pool.results():
                    self.end_of.pop(outcome.task.key, None)
                    if outcome.answer is None:
                        self._leave_out(outcome.task, outcome.why)
                    else:
                        self._accept_answer(outcome.task, outcome.answer)
                    self._submit_ready()
                    self._write_now_and_then()
        except KeyboardInterrupt:
            self.built.interrupted = True
        if self.placing.changed:
            try:
                written = self.placing.commit(elsewhere=True)
            except KeyboardInterrupt:  # it may have ended a wait for another process
                self.built.interrupted = True
                written = self.placing.commit(now(), elsewhere=True)
            if written != self.placing.folder:
                self._remark(f"another process holds the library: the last answers are in {written}")
        self.built.seconds = now() - self.begun
        return self.built

    def _take_known_answers(self) -> None:
        """Take the answers of the library and the cache; add the tasks of all other shares to `open`.

        A relabelling whose search is in the cache is ready; of others the search is added to `open` too. Questions
        without an answer are recorded as left out.
        """
        kept_numbers = self.placing.known()
        self.built.progress.kept = self.built.progress.done = len(kept_numbers)
        for number in kept_numbers:
            self._note_gap(self.placing.shares[number]["gap"])
        for question, why in self.plan.impossible:
            self.placing.leave_out([question], why)
        for number, share in enumerate(self.plan.shares):
            if number not in kept_numbers:
                self.shares.setdefault(share.task.key, []).append(number)
        sources = {share.task.key: share.source for share in self.plan.shares if share.source is not None}
        for key in list(self.shares):
            packed = self._checked(key, self.cache.get(key), "of the cache")
            if packed is not None and self._place(key, packed) is not None:
                self.built.progress.cached += len(self.shares[key])
                continue
            share = self.plan.shares[self.shares[key][0]]
            source = sources.get(key)
            if source is None:
                self.open[key] = share.task
                continue
            self.open[key] = share.task
            packed = self.cache.get(source.key)
            if packed is None:
                self.open.setdefault(source.key, source)
                self.after.setdefault(source.key, []).append(share.task)
            else:
                self.queue.append(replace(share.task, known=packed))
        self._report_progress()

    def _submit_ready(self) -> None:
        """Submit ready tasks, the first first, as long as a process is idle; each gets its time when it begins."""
        while self.queue and len(self.end_of) < self.pool.processes:
            task = self.queue.popleft()
            limit_s = self._limit_s(task)
            self.end_of[task.key] = now() + limit_s
            self.pool.submit(replace(task, limit_s=limit_s))
        self._report_progress()

    def _limit_s(self, task: Task) -> float:
        """Return the seconds that a task may take which begins now: its share of what is left, 2 s at least.

        The share is that of its estimate in those of all tasks that have not begun. What is left is the time of all
        processes until the deadline, without that of the running tasks.
        """
        left_s = self.deadline - now()
        if left_s == math.inf:
            return task.limit_s
        own_s = estimated_s(task)
        later = [*self.queue, *(relabelling for waiting in self.after.values() for relabelling in waiting)]
        free_s = left_s * self.pool.processes - sum(max(0.0, end - now()) for end in self.end_of.values())
        share_s = free_s * own_s / (own_s + sum(map(estimated_s, later)))
        return min(task.limit_s, max(LEAST_S, min(left_s, share_s)))

    def _checked(self, key: str, packed: bytes | None, source: str) -> bytes | None:
        """Return an answer that somebody else may have made, after a check for the first share that waits for it.

        A wrong answer is removed from the cache and remarked on, and the result is None. An answer for which no share
        waits is returned without a check.

        Args:
            key: Key of the task.
            packed: The answer; None is returned as it is.
            source: Where it comes from, such as "of the cache", for the remark.
        """
        if packed is None or key not in self.shares:
            return packed
        try:
            return checked_answer(self.plan.shares[self.shares[key][0]], unpacked(packed)).packed()
        except InputError as error:
            self._remark(f"an answer {source} is not believed: {error}")
            self.cache.remove(key)
            return None

    def _accept_answer(self, task: Task, packed: bytes) -> None:
        """Place a solved answer, put it into the cache, and submit the relabellings that wait for it.

        An answer of other users' processes is checked first; if it is wrong, the task is left out.
        """
        believed = packed if self.pool.is_own else self._checked(task.key, packed, "of a worker")
        if believed is None:
            self._leave_out(task, "the answer of a worker did not pass its check")
            return
        packed = believed
        answer = self._place(task.key, packed)
        if answer is None:
            self._leave_out(task, "its answer cannot be read")
            return
        try:
            if not answer.cut:  # With more time, another build finds a better answer.
                self.cache.put(task.key, packed)
        except OSError as error:
            self._remark(f"the cache {self.cache.folder} cannot be written ({error.strerror or error})")
        self.open.pop(task.key, None)
        self.solved_s.append(estimated_s(task))
        self.built.progress.solved += 1
        for waiting in self.after.pop(task.key, ()):
            self.queue.append(replace(waiting, known=packed))

    def _place(self, key: str, packed: bytes) -> Answer | None:
        """Add an answer to all shares that wait for it, which are then done; return it, None if its bytes are none.

        Its defects, and that the clock ended its search, become remarks.
        """
        try:
            answer = unpacked(packed)
        except InputError:
            return None
        for defect in answer.defects:
            self._remark(f"defect: {defect}; its answers are missing")
        for number in self.shares.get(key, ()):
            self.placing.add(number, answer, packed)
            self.built.progress.done += 1
            self._note_gap(self.placing.shares[number]["gap"])
            if answer.cut:
                self._remark(HURRIED)
        return answer

    def _leave_out(self, task: Task, why: str) -> None:
        """Record that a task and the relabellings that wait for it have no answer, so that their shares are done."""
        self.open.pop(task.key, None)
        for lost_task in (task, *self.after.pop(task.key, ())):
            self.open.pop(lost_task.key, None)
            for number in self.shares.get(lost_task.key, ()):
                share = self.plan.shares[number]
                self.placing.leave_out(share.questions, why)
                self.built.left_out.append((share, why))
                self.built.progress.done += 1

    def _note_gap(self, gap: float) -> None:
        """Update the largest time / bound of the build."""
        self.built.progress.worst = max(self.built.progress.worst, gap)

    def _remark(self, text: str) -> None:
        """Add a remark to the outcome unless it is there already."""
        if text not in self.built.remarks:
            self.built.remarks.append(text)

    def _report_progress(self) -> None:
        """Estimate the seconds that the open problems still need on all cores, and report the progress.

        The estimate follows the time that the solved problems took over theirs, as on a busy machine; it is not beyond
        the deadline, except for the least time of the open problems.
        """
        cores = self.plan.cores
        slowness = max(_LEAST_SLOWNESS, (now() - self.begun) / spread_s(self.solved_s, cores)) if self.solved_s else 1.0
        needed_s = slowness * spread_s([*map(estimated_s, self.open.values())], cores)
        least_s = LEAST_S * len(self.open) / cores
        self.built.progress.left_s = min(needed_s, max(least_s, self.deadline - now()))
        running = (self.open[key] for key in self.end_of if key in self.open)
        self.built.progress.running = tuple(f"{task.collective} of {len(task.group)} ranks" for task in running)
        self.report(self.built.progress)

    def _write_now_and_then(self) -> None:
        """Write the waiting answers if 5 s have passed since the last write, and 50 times its duration.

        Nothing is written while another process holds the library.
        """
        since = now() - self.written
        if since > max(_WRITTEN_S, self.spent_s / _WRITING) and self.placing.changed:
            begun = now()
            with suppress(LibraryHeldError):  # The next write, or the last one, tries again.
                self.placing.commit(begun)
            self.written = now()
            self.spent_s = self.written - begun
