"""A pool that solves tasks at once, in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from synth.app.clusters.local import Done, attempt
from synth.app.clusters.task import Task, solve


class Inline:
    """A pool that solves tasks in this process.

    Attributes:
        work: Function that solves a task.
        solved: Keys in the order in which they were solved.
    """

    processes = 1
    is_own = True

    def __init__(self, work: Callable[[Task], bytes] = solve) -> None:
        self.work, self.waiting, self.solved = work, deque[Task](), list[str]()

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        self.waiting.clear()

    def submit(self, task: Task) -> None:
        self.waiting.append(task)

    def results(self) -> Iterator[Done]:
        while self.waiting:
            task = self.waiting.popleft()
            self.solved.append(task.key)
            yield Done(task, *attempt(self.work, task))
