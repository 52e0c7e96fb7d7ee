"""The ranks of a case of `results.scripts.lost_ranks`: their groups, their calls, and the failure.

Ranks are forked from a process that has imported PyTorch. They end as an interpreter does: an error goes to
`sys.excepthook`, then the functions of atexit run.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import runtime.torch.process_group  # noqa: F401 - registers the back end
from runtime.torch.failures.this_process import presence
from topologies.errors import InputError

LONG_S = 60.0  # No case waits so long for this time-out.
TIMED_OUT = ("stopped", "stopped amid a large message", "computes past the time-out", "never comes to the start",
             "waits for a message that is not sent")  # fmt: skip
LARGE = 4 << 20  # elements
# The rank that joins the call 2.5 s late, so that other ranks wait for it while the culprit fails or ends.
LATE = {"interrupted in a call": 0, "killed in a call": 0, "ends after its part": 1}


@dataclass(frozen=True)
class Case:
    """A case: one rank fails while the others make calls.

    Attributes:
        fault: What the culprit does.
        ranks: Number of ranks.
        mode: Mode of the back end, a name of `lost_ranks.MODES`.
        call: The call that all ranks make.
        is_async: True if the call is made with async_op.
        group: "all", or "two" (the first and the last rank).
        elements: Elements of the tensor.
    """

    fault: str
    ranks: int
    mode: str
    call: str = "all_reduce"
    is_async: bool = False
    group: str = "all"
    elements: int = 1000

    @property
    def culprit(self) -> int:
        """Return the rank that fails: the last one, unless the fault names rank 0."""
        return 0 if self.fault.startswith("rank 0") else self.ranks - 1

    @property
    def timeout_s(self) -> float:
        """Return the time-out of the case's process groups in seconds."""
        return 3.0 if self.fault in TIMED_OUT else LONG_S

    @property
    def has_wrong_settings(self) -> bool:
        """Return True if the culprit has other settings, so that the ranks cannot make a group."""
        return self.fault.startswith("has ") or self.fault == "compares calls, unlike others"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of the back end, besides SYNTH_LIBRARY.

        Gloo aborts processes whose sizes differ, so SYNTH_CHECK compares them first.
        """
        checks = {"SYNTH_CHECK": "1"} if self.mode == "auto" and self.fault.startswith("calls another") else {}
        return {"SYNTH_BACKEND": self.mode.split(",", 1)[0]} | checks


def run_rank(case: Case, rank: int, address: str, results: str) -> None:
    """Run a rank of the case and exit the process; never return.

    Args:
        case: The case.
        rank: Rank of this process.
        address: Address of the store for `init_process_group`.
        results: File that gets a line of JSON for each event.
    """
    code = 0
    try:
        _Rank(case, rank, results).go(address)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    atexit._run_exitfuncs()
    os._exit(code)


class _Rank:
    def __init__(self, case: Case, rank: int, results: str) -> None:
        self.case, self.rank, self._results = case, rank, results
        self.fails = rank == case.culprit
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def note(self, event: str, text: str = "") -> None:
        """Record an event and its time in the file of results."""
        line = json.dumps({"at": time.monotonic(), "event": event, "text": text}) + "\n"
        with open(self._results, "a") as file:
            file.write(line)

    def go(self, address: str) -> None:
        """Create the groups, then make the calls of this rank or fail."""
        case = self.case
        if "start" in case.fault:
            self._start(address)
            return
        if case.has_wrong_settings:
            self._try(lambda: self._join(address))
            return
        self._join(address)
        limit = timedelta(seconds=case.timeout_s)
        every = list(range(case.ranks))
        self.a, self.b = (dist.new_group(every, timeout=limit) for _ in range(2))
        self.two = dist.new_group([0, case.ranks - 1], timeout=limit)
        self.middle = dist.new_group(every[1:-1], timeout=limit) if case.ranks > 2 else None
        group = self.two if case.group == "two" else self.a
        inside = self.rank in (0, case.ranks - 1) or case.group == "all"
        for group_of_rank in (self.a, self.b, *((self.two,) if self.rank in (0, case.ranks - 1) else ())):
            dist.all_reduce(torch.ones(3), group=group_of_rank)
        self.note("ready")
        if not inside:
            self._try(self._work_on)
        elif self.fails:
            self._fail(group)
        else:
            if LATE.get(case.fault) == self.rank:
                time.sleep(2.5)
            self._try(lambda: self._others(group))

    def _join(self, address: str, timeout_s: float | None = None) -> None:
        dist.init_process_group(
            "cpu:synth,cuda:synth",
            init_method=address,
            rank=self.rank,
            world_size=self.case.ranks,
            timeout=timedelta(seconds=timeout_s or self.case.timeout_s),
        )

    def _try(self, call: Callable[[], Any]) -> None:
        """Make a call and note how it ends."""
        self.note("begins")
        try:
            call()
            self.note("passes")
        except (RuntimeError, InputError) as error:
            self.note("fails", str(error))
        except KeyboardInterrupt:
            self.note("interrupted")
            raise

    def _call(self, group: Any, name: str | None = None, elements: int | None = None, **named: Any) -> None:
        """Make the case's call, or the call of another name."""
        name, n = name or self.case.call, dist.get_world_size(group)
        x = torch.ones(elements or self.case.elements, **named)
        work: Any = None
        wait = self.case.is_async
        if name == "all_reduce":
            work = dist.all_reduce(x, group=group, async_op=wait)
        elif name == "maximum":
            work = dist.all_reduce(x, dist.ReduceOp.MAX, group=group, async_op=wait)
        elif name == "broadcast":
            work = dist.broadcast(x, 0, group=group, async_op=wait)
        elif name == "all_gather":
            work = dist.all_gather([torch.empty_like(x) for _ in range(n)], x, group=group, async_op=wait)
        elif name == "reduce_scatter":
            work = dist.reduce_scatter(torch.empty_like(x), [x] * n, group=group, async_op=wait)
        elif name == "all_to_all":
            x = x[: len(x) // n * n]
            work = dist.all_to_all_single(torch.empty_like(x), x, group=group, async_op=wait)
        elif name == "barrier":
            work = dist.barrier(group, async_op=wait)
        elif name == "chain":  # Each rank receives from the rank before it.
            work = dist.irecv(x, (self.rank - 1) % n, group=group)
        elif name == "circle":  # Each rank also sends to the rank after it.
            sent = dist.isend(x, (self.rank + 1) % n, group=group)
            dist.irecv(torch.empty_like(x), (self.rank - 1) % n, group=group).wait()
            sent.wait()
        elif name == "future":  # DDP waits like this.
            future = dist.all_reduce(x, group=group, async_op=True).get_future()
            try:
                future.wait()
            except RuntimeError as error:  # PyTorch appends the place of a callback's error.
                raise RuntimeError(str(error).partition("\n\nAt:\n")[0]) from error
        if work is not None:
            work.wait()

    def _work_on(self) -> None:
        """Make calls in a group without the culprit; nothing may happen to this rank."""
        for _ in range(20):
            dist.all_reduce(torch.ones(self.case.elements), group=self.middle)
            time.sleep(0.1)

    def _others(self, group: Any) -> None:
        """Make the calls of a rank that does not fail by itself."""
        fault = self.case.fault
        if fault == "groups in opposite order":
            for next_group in (self.a, self.b):
                self._call(next_group)
        elif fault == "calls in another group":
            self._call(self.a)
        elif "large message" in fault:
            while True:
                self._call(group, elements=LARGE)
        elif fault == "waits for a message that is not sent":
            time.sleep(self.case.timeout_s + 3)
        else:
            self._call(group)

    def _fail(self, group: Any) -> None:
        """Make this rank fail as the case says."""
        fault = self.case.fault
        pid = os.getpid()
        if "large message" in fault:
            sign = signal.SIGKILL if fault.startswith("killed") else signal.SIGSTOP

            def strike() -> None:
                """Send the signal to this process amid the calls."""
                time.sleep(1.0)
                self.note("fault")
                os.kill(pid, sign)

            threading.Thread(target=strike, daemon=True).start()
            self._try(lambda: self._others(group))
        elif fault == "killed in a call":
            threading.Thread(target=self._strike, args=(0.5, signal.SIGKILL), daemon=True).start()
            self._call(group)
        elif fault in ("killed", "rank 0, which serves the store, is killed"):
            time.sleep(0.5)
            self._strike(0.0, signal.SIGKILL)
        elif fault == "leaves by os._exit":
            time.sleep(0.5)
            self.note("fault")
            os._exit(0)
        elif fault == "stopped":
            self._strike(0.0, signal.SIGSTOP)
            self._try(lambda: self._call(group))
        else:
            self._fail_alive(fault, group)

    def _strike(self, after_s: float, sign: int) -> None:
        time.sleep(after_s)
        self.note("fault")
        os.kill(os.getpid(), sign)

    def _fail_alive(self, fault: str, group: Any) -> None:
        if fault == "interrupted between calls":
            self._strike(0.3, signal.SIGINT)
            time.sleep(LONG_S)
        elif fault == "interrupted in a call":
            threading.Thread(target=self._strike, args=(0.5, signal.SIGINT), daemon=True).start()
            try:
                self._try(lambda: self._call(group))
            finally:
                dist.destroy_process_group()
        elif fault == "raises an error":
            self.note("fault")
            raise ValueError("bad batch")
        elif fault == "sys.exit(3)":
            self.note("fault")
            sys.exit(3)
        elif fault == "makes fewer calls":
            self.note("fault")
        elif fault == "destroys its groups":
            dist.destroy_process_group()
            self.note("fault")
            time.sleep(3)
        elif fault == "computes past the time-out":
            time.sleep(self.case.timeout_s + 3)
            self._try(lambda: self._call(group))
        elif fault == "groups in opposite order":
            self._try(lambda: [self._call(next_group) for next_group in (self.b, self.a)])
        elif fault == "waits for a message that is not sent":
            self._try(lambda: dist.recv(torch.ones(3), 0, group=group))
        elif fault == "comes late, within the time-out":
            time.sleep(4)
            self._try(lambda: self._call(group))
        elif fault == "ends after its part":
            self._try(lambda: self._call(group))
        else:
            self._differ(fault, group)

    def _differ(self, fault: str, group: Any) -> None:
        elements = self.case.elements
        different: dict[str, Callable[[], None]] = {
            "calls another collective": lambda: self._call(group, "all_gather"),
            "calls another size": lambda: self._call(group, elements=elements // 2),
            "calls another type": lambda: self._call(group, dtype=torch.float64),
            "calls another reduction": lambda: self._call(group, "maximum"),
            "calls in another group": lambda: self._call(self.b),
        }
        self._try(different[fault])

    def _start(self, address: str) -> None:
        """Run the cases that fail while groups are being created."""
        fault = self.case.fault
        if fault == "never comes to the start":
            if self.fails:
                time.sleep(self.case.timeout_s + 4)
                return
            self._try(lambda: self._join(address))
        elif fault == "killed at the start of a second group":
            self._join(address)
            dist.all_reduce(torch.ones(3))
            if self.fails:
                self._strike(0.5, signal.SIGKILL)
            self._try(lambda: dist.new_group(list(range(self.case.ranks))))
        else:  # The culprit is killed amid the start: other ranks know its process and wait for its connections.
            if self.fails:
                threading.Thread(target=self._strike_when_met, daemon=True).start()
            self._try(lambda: self._join(address))

    def _strike_when_met(self) -> None:
        while not presence().of_rank:
            time.sleep(0.0005)
        self._strike(0.0, signal.SIGKILL)
