"""A library for a whole cluster, built: what is known is taken, the rest solved, and written as it comes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from emit.library.write import LibraryHeldError
from synth.library.answer_check import checked_answer
from synth.library.local import Pool
from synth.library.placing import Placing
from synth.library.plan import Plan, Share, estimated_s
from synth.library.task import Task, unpacked
from synth.model.deadline import now
from synth.storage.cache import Cache
from topologies.errors import InputError

_WRITTEN_S = 5.0  # between two times that answers are written
_WRITING = 0.02  # of the time: what writing may take, on cores that solve; what is not written is in the cache


@dataclass
class Progress:
    """How far a build is.

    total, done: shares. left_s: what is left of the estimates, on all processes. worst: the largest time / bound so
    far. kept: of the shares done, those whose files were in the library. cached: whose answers were in the cache.
    """

    total: int
    done: int = 0
    left_s: float = 0.0
    worst: float = 1.0
    kept: int = 0
    cached: int = 0
    solved: int = 0


@dataclass
class Built:
    """What a build came to.

    seconds: that it took. interrupted: by Ctrl-C. remarks: a clause each, on what did not go as it should.
    """

    plan: Plan
    progress: Progress
    left_out: list[tuple[Share, str]] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    remarks: list[str] = field(default_factory=list)


def build(
    plan: Plan, folder: str | Path, cache: Cache, pool: Pool, report: Callable[[Progress], None] = lambda _: None
) -> Built:
    """Build a library in a folder. Ctrl-C ends it early, with all written that was found.

    Raises InputError where the folder cannot be written; what was written before is whole.
    """
    return _Build(plan, Path(folder), cache, pool, report).run()


class _Build:
    def __init__(self, plan: Plan, folder: Path, cache: Cache, pool: Pool, report: Callable[[Progress], None]) -> None:
        self.plan, self.cache, self.pool, self.report = plan, cache, pool, report
        self.placing = Placing(folder, plan)
        self.built = Built(plan, Progress(len(plan.shares)))
        self.shares: dict[str, list[int]] = {}  # by the key of their task
        self.after: dict[str, list[Task]] = {}  # relabellings, by the key of their search
        self.open: dict[str, Task] = {}  # to be solved
        self.written = self.spent_s = 0.0

    def run(self) -> Built:
        begun = self.written = now()
        try:
            self._take_known()
            for task in sorted(self.open.values(), key=lambda t: (-estimated_s(t), t.key)):
                if not task.order:
                    self.pool.submit(task)
            with self.pool:
                for done in self.pool.results():
                    if done.answer is None:
                        self._leave_out(done.task, done.why)
                    else:
                        self._solved(done.task, done.answer)
                    self._write_now_and_then()
        except KeyboardInterrupt:
            self.built.interrupted = True
        if self.placing.changed:
            written = self.placing.commit(elsewhere=True)
            if written != self.placing.folder:
                self._remark(f"another process holds the library: the last answers are in {written}")
        self.built.seconds = now() - begun
        return self.built

    def _take_known(self) -> None:
        """What the library and the cache have; what is left is opened."""
        known = self.placing.known()
        self.built.progress.kept = self.built.progress.done = len(known)
        for number in known:
            self._gap(self.placing.shares[number]["gap"])
        for question, why in self.plan.impossible:
            self.placing.leave_out([question], why)
        for number, share in enumerate(self.plan.shares):
            if number not in known:
                self.shares.setdefault(share.task.key, []).append(number)
        sources = {share.task.key: share.source for share in self.plan.shares if share.source is not None}
        for key in list(self.shares):
            packed = self._checked(key, self.cache.get(key), "of the cache")
            if packed is not None and self._place(key, packed):
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
                self.pool.submit(replace(share.task, known=packed))
        self._tell()

    def _checked(self, key: str, packed: bytes | None, source: str) -> bytes | None:
        """Return an answer that somebody else may have made, checked; None where it is not right, which is said."""
        if packed is None or key not in self.shares:
            return packed
        try:
            return checked_answer(self.plan.shares[self.shares[key][0]], unpacked(packed)).packed()
        except InputError as error:
            self._remark(f"an answer {source} is not believed: {error}")
            self.cache.remove(key)
            return None

    def _solved(self, task: Task, packed: bytes) -> None:
        believed = packed if self.pool.is_own else self._checked(task.key, packed, "of a worker")
        if believed is None:
            self._leave_out(task, "the answer of a worker is not right")
            return
        packed = believed
        if not self._place(task.key, packed):
            self._leave_out(task, "its answer cannot be read")
            return
        try:
            self.cache.put(task.key, packed)
        except OSError as error:
            self._remark(f"the cache {self.cache.folder} cannot be written ({error.strerror or error})")
        self.open.pop(task.key, None)
        self.built.progress.solved += 1
        for waiting in self.after.pop(task.key, ()):
            self.pool.submit(replace(waiting, known=packed))
        self._tell()

    def _place(self, key: str, packed: bytes) -> bool:
        """Whether it is an answer; which has its place then in all shares that wait for it."""
        try:
            answer = unpacked(packed)
        except InputError:
            return False
        for defect in answer.defects:
            self._remark(f"defect: {defect}; its answers are missing")
        for number in self.shares.get(key, ()):
            self.placing.add(number, answer, packed)
            self.built.progress.done += 1
            self._gap(answer.gap)
            if answer.cut:
                self._remark("the clock ended some problems: on another run their answers may differ")
        return True

    def _leave_out(self, task: Task, why: str) -> None:
        """Of a search that has no answer the relabellings have none either."""
        self.open.pop(task.key, None)
        for one in (task, *self.after.pop(task.key, ())):
            self.open.pop(one.key, None)
            for number in self.shares.get(one.key, ()):
                share = self.plan.shares[number]
                self.placing.leave_out(share.questions, why)
                self.built.left_out.append((share, why))
                self.built.progress.done += 1
        self._tell()

    def _gap(self, gap: float) -> None:
        self.built.progress.worst = max(self.built.progress.worst, gap)

    def _remark(self, text: str) -> None:
        if text not in self.built.remarks:
            self.built.remarks.append(text)

    def _tell(self) -> None:
        self.built.progress.left_s = sum(map(estimated_s, self.open.values())) / self.plan.cores
        self.report(self.built.progress)

    def _write_now_and_then(self) -> None:
        since = now() - self.written
        if since > max(_WRITTEN_S, self.spent_s / _WRITING) and self.placing.changed:
            begun = now()
            with suppress(LibraryHeldError):  # by another process: it is tried again, and at the end
                self.placing.commit(begun)
            self.written = now()
            self.spent_s = self.written - begun
