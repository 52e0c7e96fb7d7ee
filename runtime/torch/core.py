"""Execute, number, count and watch one rank's calls of a group, over messages; this module does not know c10d.

`runtime.torch.rank_choices` decides what serves them. An adapter for a library of collectives, such as
`runtime.torch.c10d.dispatch` for torch.distributed, gives the core messages, and translates that library's calls,
options and results.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import torch

from emit.library.overlay import dead_parts
from runtime.algorithms.built_in import DIRECT
from runtime.torch.counters import counters
from runtime.torch.failures.causes import Waiting
from runtime.torch.failures.compare import check_same_call, gather_texts
from runtime.torch.failures.lost import FailureWatch
from runtime.torch.programs.agree import agree_on_block, exchange_sizes, wait_for_all
from runtime.torch.programs.blocks import Blocks, Buffers
from runtime.torch.programs.pieces import Sizes
from runtime.torch.programs.planned import run_planned
from runtime.torch.programs.rank_program import RankProgram
from runtime.torch.programs.run import REDUCERS
from runtime.torch.programs.transport import Transport, call_tag, exchange
from runtime.torch.rank_choices import RankChoices, requested_method
from runtime.torch.table import PLANNED, TableCall
from runtime.torch.tasks import GroupTask, Record, TaskThread
from topologies.errors import InputError

Tensor: TypeAlias = Any

_TICK_S = 0.005  # Seconds between two checks whether calls of the wrapped back end are over.
# Ranks up to which an exchange of all sizes costs no more than one of a single number: messages of up to 8 KiB.
_MOST_AT_ONCE = 32
# The elements of all blocks that `known_sizes` states, as [giving place][taking place].
stated_sizes: ContextVar[Sizes | None] = ContextVar("stated_sizes", default=None)
_TOO_LONG = "too long"  # In place of names that are longer than _MOST_FAILED; no part has a blank.
_MOST_FAILED = 160  # Bytes of the names of failed parts, with commas, that ranks exchange.
_cores: weakref.WeakSet[Core] = weakref.WeakSet()  # Those of all groups of this process.
_failed_parts: tuple[str, ...] = ()  # Parts of the network that all ranks of the job have agreed to avoid.


def type_text(dtype: Any) -> str:
    """Return torch's name of a type without its prefix, such as "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def type_name(tensor: Tensor) -> str:
    """Return torch's name of the type of a tensor's elements, such as "float32"."""
    return type_text(tensor.dtype)


@dataclass(frozen=True)
class Terms:
    """The conditions of a call.

    Attributes:
        waits: Whether the caller waits for the call at once.
        timeout: Time-out of a wait; None for that of the messages.
    """

    waits: bool = False
    timeout: timedelta | None = None


@dataclass(frozen=True)
class Issued:
    """A call that all ranks make, with what its watch knows of it and its text for errors."""

    call: TableCall
    waiting: Waiting
    text: str


class Core:
    """The calls of one rank.

    Attributes:
        ranks: The members, as the whole job numbers them.
        rank: Place of this rank among them.
        names: The members as text.
        messages: Moves bytes between ranks.
        watch: Watches the waits for other ranks.
        lane: Runs the calls one after the other.
        task: Makes the work that callers get, from a function, the tensors that it writes, and what records its time.
        choices: Decide what serves the calls.
    """

    def __init__(
        self,
        watch: FailureWatch,
        is_whole_job: bool = False,
        task: Callable[[Callable[[], None], Sequence[Tensor], Any], GroupTask] = GroupTask,
    ) -> None:
        """Start a rank's calls from the environment's settings, and check that all ranks have the same settings.

        All ranks of a group must call it, since they exchange messages; a group of one rank exchanges none.

        Args:
            watch: Watch of the group.
            is_whole_job: Whether the group holds all ranks of the job.
            task: Makes the work that callers get, from a function, the tensors that it writes, and what records its
                seconds.

        Raises:
            InputError: The ranks' settings differ, or a rank cannot use what its settings name; every rank raises it.
            RuntimeError: A rank is lost; the message names it.
        """
        self.watch, self.messages = watch, watch.messages
        self.rank, self.ranks = watch.me, watch.ranks
        self.names = ", ".join(map(str, self.ranks))
        self.lane = TaskThread(f"group of ranks {self.names}")
        self.task = task
        with watch.guard(Waiting(f"making {watch.group}")) if len(self.ranks) > 1 else nullcontext():
            self.choices = RankChoices(self.messages, self.ranks, self.rank, is_whole_job, _failed_parts)
        _cores.add(self)

    def agree_on_failures(self, seen: Sequence[str]) -> tuple[str, ...]:
        """Agree with all ranks of the job on the failed parts of the network, and use the library's answers for these.

        All ranks call it on a group of the whole job, between the same two calls. What any rank has seen counts, and
        nothing else: without any failure the healthy library serves again. It first waits for this process's tasks of
        all groups, whose calls all ranks have made. If it raises, nothing has changed on any rank.

        Args:
            seen: Parts that this rank knows to have failed, as --without takes them.

        Returns:
            All parts that have failed, sorted; the same on every rank.

        Raises:
            InputError: The library has no answers for this failure, or the names are too long; on every rank.
            RuntimeError: A rank is lost.
        """
        global _failed_parts
        cores, own_text = list(_cores), ",".join(sorted(dead_parts(seen) - {""}))
        for core in cores:
            core.lane.drain()
        with self.watch.guard(self.watch.issue("agreement on failures"), new=True):
            text = own_text if len(own_text.encode()) <= _MOST_FAILED else _TOO_LONG
            texts = gather_texts(self.messages, text, self.ranks) if len(self.ranks) > 1 else [text]
            failed = tuple(sorted(dead_parts(texts) - {""}))
            if _TOO_LONG in failed:
                raise InputError(f"agree_on_failures: a rank names more than {_MOST_FAILED} bytes; it must be fewer")
            chooser = self.choices.agreed_chooser([core.choices for core in cores], failed)
        _failed_parts = failed
        for core in cores:
            core.choices.use(chooser)
        return failed

    @property
    def compares(self) -> bool:
        """Return True if ranks compare each call: SYNTH_CHECK was set, not to 0, and there is more than one rank."""
        return self.choices.checks and len(self.ranks) > 1

    def issue(self, call: TableCall, text: str, on: str = "", blocks: Blocks | None = None) -> Issued:
        """Return the group's next call with its number; compare it between ranks if SYNTH_CHECK demands it.

        Args:
            call: Facts on which the choice depends.
            text: Text of the call for errors; it is the result's `text`.
            on: Text of what serves it, to be put after `text` in the text that is compared and watched.
            blocks: This rank's blocks, if other ranks need not know their sizes; a wait that lasts compares them.

        Raises:
            RuntimeError: Ranks compare their calls, and these differ, or a rank is lost.
        """
        sizes = None if blocks is None else (blocks.sent_sizes, blocks.received_sizes)
        waiting = self.watch.issue(text + on, sizes)
        if self.compares:
            with self.watch.guard(waiting, new=True, closes=False):
                check_same_call(self.messages, waiting.text, self.ranks)
        return Issued(call, waiting, text)

    def execute(self, issued: Issued, part: RankProgram, buffers: Buffers, op: str, terms: Terms) -> GroupTask:
        """Start a task that runs this rank's part of a program after the group's earlier calls, and return it.

        The call is counted. If `terms` waits and no earlier task is unfinished, the task has run on this thread when
        the function returns. The task keeps its error for those who wait for it.

        Args:
            issued: The call.
            part: This rank's part.
            buffers: Tensors of the call; the task writes the outputs.
            op: A key of REDUCERS, any of them without a reduction; avg writes averages.
            terms: Conditions of the call.
        """
        record = counters.count(
            issued.call.collective, f"synth {part.program.name}", issued.call.size_bytes, ranks=len(self.ranks)
        )
        return self._start(
            issued, record, lambda transport: buffers.execute(part, op, transport), buffers.outputs, op, terms
        )

    def execute_custom(self, name: str, buffers: Buffers, op: str | None, terms: Terms) -> GroupTask:
        """Start the library's first program of a custom collective that serves these tensors, and return its task.

        Args:
            name: Name of the collective.
            buffers: Its tensors, of which the task writes the outputs; the size of a block is ignored.
            op: A key of REDUCERS; anything else is an unsupported reduction.
            terms: Conditions of the call.

        Raises:
            InputError: The tensors or the reduction are not supported, or the library has no such program.
            RuntimeError: Ranks compare their calls, and these differ, or a rank is lost.
        """
        if op not in REDUCERS or any(t.device.type != "cpu" or t.layout != torch.strided for t in buffers.tensors):
            raise InputError(f"{name}: needs dense tensors on the CPU, and sum, avg, prod, max or min as its reduction")
        part, block = self.choices.choose_custom(name, buffers)
        return self.execute_program(name, part, replace(buffers, block=block), op, terms)

    def execute_program(self, name: str, part: RankProgram, buffers: Buffers, op: str, terms: Terms) -> GroupTask:
        """Start this rank's part of a custom collective's program as the group's next call, and return its task.

        Args:
            name: Name of the collective, for errors and counts.
            part: This rank's part.
            buffers: Tensors of the call; the task writes the outputs. Their block must fit the part.
            op: A key of REDUCERS; avg writes averages.
            terms: Conditions of the call.

        Raises:
            RuntimeError: Ranks compare their calls, and these differ, or a rank is lost.
        """
        call = TableCall(name, buffers.size_bytes, type_name(buffers.tensors[0]), self.ranks)
        text = f"{name} {op}, {call.size_bytes} bytes of {call.kind}"
        return self.execute(self.issue(call, text, f", on {part.program.name}"), part, buffers, op, terms)

    def run_blocks(
        self, call: TableCall, text: str, blocks: Blocks, buffers: Buffers, agrees: bool, terms: Terms
    ) -> GroupTask:
        """Start a collective in which a rank does not know all block sizes of the other ranks, and return its task.

        The task counts the call when it is over, since only then it is known what served it.

        Args:
            call: Facts on which the choice depends.
            text: Text of the call for errors.
            blocks: This rank's blocks.
            buffers: Tensors of the call.
            agrees: Whether ranks first exchange the sizes, so that a program may run. They must do so if calls of some
                size would use a program. Otherwise each block is sent straight to its destination; with SYNTH_CHECK
                ranks still exchange the sizes, to compare them.
            terms: Conditions of the call.

        Raises:
            InputError: The tensors are sparse or of more than one type or device. The task raises it, too, and the same
                on every rank, if two ranks that exchange sizes expect different sizes of a block.
            RuntimeError: Ranks compare their calls, and these differ, or a rank is lost.
        """
        if not buffers.are_plain:
            raise InputError(
                f"{call.collective}: sparse tensors, or of several types; they must be dense and of one type"
            )
        method, served_by, reason = requested_method.get(), f"synth {DIRECT}", ""
        planner, stated = self.choices.planner_for(call), self._stated_sizes(call, blocks)
        element_bytes = buffers.tensors[0].element_size()
        at_once = planner is not None or (call.collective == "alltoall" and len(self.ranks) <= _MOST_AT_ONCE)

        def run_plan(transport: Transport, sized: TableCall, sizes: Sizes) -> bool:
            """Run the plan for these sizes in elements, if there is one that gains; return True if it ran."""
            nonlocal served_by
            if planner is None or not self.choices.chooser.choose(sized, method).planned:
                return False
            plan = planner.plan([[elements * element_bytes for elements in row] for row in sizes])
            if plan:
                served_by = f"synth {PLANNED}"
                blocks.exchange(transport, partial(run_planned, plan))
            return bool(plan)

        def work(transport: Transport) -> None:
            """Exchange sizes if wanted, then run a plan or a program, or send the blocks straight to their goals.

            It sets `served_by` and `reason` for the count.
            """
            nonlocal served_by, reason
            block, sizes = self._agreed_sizes(transport, blocks, stated, agrees, at_once)
            if agrees and block is None:
                sized = call._replace(size_bytes=self.choices.elements_of_rank(call, sizes) * element_bytes)
                if run_plan(transport, sized, sizes):
                    return None
                part, reason = self.choices.choose_uneven(sized, buffers, sizes, method)
                if part is not None:
                    served_by = f"synth {part.program.name}"
                    return buffers.execute_uneven(part, blocks, sizes, transport)
            if block:
                sized = call._replace(size_bytes=block * buffers.blocks * element_bytes)
                even = replace(buffers, block=block)
                choice, part = self.choices.choose(sized, even, None, method)
                if part is not None and self.choices.chooser.path(choice) == "program":
                    served_by = f"synth {part.program.name}"
                    return even.execute(part, "sum", transport)
                if run_plan(transport, sized, [[block] * len(self.ranks)] * len(self.ranks)):
                    return None
            return blocks.exchange(transport, exchange)

        def record(seconds: float) -> None:
            """Count the call, with what served it and its seconds."""
            counters.count(call.collective, served_by, call.size_bytes, reason, len(self.ranks))(seconds)

        # Ranks that compare their calls notice that they know other sizes.
        digest = "" if stated is None else hashlib.sha256(repr(stated).encode()).hexdigest()[:16]
        knowledge = f"known sizes {digest}" if digest else "agreed"
        issued = self.issue(call, text, f", {knowledge if agrees else DIRECT}", blocks)
        return self._start(issued, record, work, buffers.outputs, "sum", terms)

    def _stated_sizes(self, call: TableCall, blocks: Blocks) -> Sizes | None:
        """Return the elements of all blocks that `stated_sizes` has for this call, or None if it has none.

        Raises:
            InputError: They are of another number of ranks, or this rank has other blocks.
        """
        sizes = stated_sizes.get() if call.collective == "alltoall" else None
        if sizes is None:
            return None
        n, me = len(self.ranks), self.rank
        if len(sizes) != n:
            raise InputError(
                f"{call.collective}: known sizes of {len(sizes)} ranks; it must be {n} rows of {n} numbers"
            )
        received = [row[me] for row in sizes]
        if list(sizes[me]) != list(blocks.sent_sizes) or received != list(blocks.received_sizes):
            raise InputError(
                f"{call.collective}: rank {self.ranks[me]} sends {list(blocks.sent_sizes)} elements and receives"
                f" {list(blocks.received_sizes)}; by the known sizes it must be {list(sizes[me])} and {received}"
            )
        return sizes

    def _agreed_sizes(
        self, transport: Transport, blocks: Blocks, stated: Sizes | None, agrees: bool, at_once: bool
    ) -> tuple[int | None, Sizes]:
        """Return what ranks know of all blocks: the elements of each if these are equal, and else of every block.

        Args:
            transport: Messages of the call.
            blocks: This rank's blocks.
            stated: Elements of all blocks if they are known already; None if ranks must exchange them.
            agrees: Whether ranks need to know; otherwise they exchange the sizes only if ranks compare their calls.
            at_once: Whether all sizes are exchanged at once, even if the blocks may be equal. Every pair of ranks must
                then have a block.

        Returns:
            Elements of each block, or None if blocks differ or ranks do not agree; and elements of all blocks, as
            [giving place][taking place], empty where they are equal or not exchanged.

        Raises:
            InputError: Two ranks that exchange sizes expect different sizes of a block; on every rank.
            MessageLost: A message did not come.
        """
        if stated is None and not (agrees and at_once):
            block = agree_on_block(transport, blocks) if agrees else None
            return block, exchange_sizes(transport, blocks) if self.choices.checks or (agrees and block is None) else []
        sizes = exchange_sizes(transport, blocks) if stated is None else stated
        distinct = {elements for row in sizes for elements in row}
        return (distinct.pop(), []) if agrees and len(distinct) == 1 else (None, sizes)

    def send_blocks(
        self,
        call: TableCall,
        buffers: Buffers,
        work: Callable[[Transport], None],
        op: str,
        terms: Terms,
        part: RankProgram | None = None,
    ) -> GroupTask:
        """Start a collective of unequal blocks whose sizes all ranks know, and return its task.

        Args:
            call: Facts on which the choice depends.
            buffers: Tensors of the call; `work` writes the outputs.
            work: Sends the blocks, given the messages of the call.
            op: Reduction; for avg `work` leaves sums, which are then divided. Any other key of REDUCERS has no effect.
            terms: Conditions of the call.
            part: This rank's part of the program that `work` runs; None if it sends the blocks one by one.

        Raises:
            RuntimeError: Ranks compare their calls, and these differ, or a rank is lost.
        """
        name = "" if part is None else part.program.name
        issued = self.issue(call, f"{call.collective} of unequal blocks, {call.kind}", name and f", on {name}")
        reason = "" if name else "blocks of unequal sizes: sent one by one"
        served_by = f"synth {name}" if name else "one by one"
        record = counters.count(call.collective, served_by, call.size_bytes, reason, len(self.ranks))
        return self._start(issued, record, work, buffers.outputs, op, terms)

    def finish_calls(self, limit_s: float) -> bool:
        """Wait for all open calls before this rank leaves; return True if they all ended.

        Like `FailureWatch.leave_calls` it ends calls that wait for a rank which does not make them, and all calls that
        are not over after `limit_s` seconds. It checks for such calls only every 30 s. Then it returns False, and the
        group's connections are closed.
        """

        def are_over(seconds: float) -> bool:
            """Wait up to some seconds for all tasks and calls of the wrapped back end; return True if they are over."""
            deadline = time.monotonic() + seconds
            if not self.lane.drain(seconds):
                return False
            while self.watch.is_in_call():  # Calls that the wrapped back end serves are not in the lane.
                if time.monotonic() > deadline:
                    return False
                time.sleep(_TICK_S)
            return True

        return self.watch.leave_calls(are_over, limit_s)

    def barrier(self, begin: Callable[[bool], Callable[[], bool]], backend: str, terms: Terms) -> GroupTask:
        """Start a barrier and return its task, which is over when all ranks have begun it after their earlier tasks.

        Collectives of the wrapped back end start in the order of their callers, which is not the order of the lane; the
        barrier does not wait until they are over.

        Args:
            begin: Tells the other ranks in the order of the callers whether this rank has unfinished tasks; returns a
                function that waits until all have begun, and returns whether any has such tasks.
            backend: Name of what serves that.
            terms: Conditions of the call.

        Raises:
            RuntimeError: Ranks compare their calls, and these differ, or a rank is lost.
        """
        issued = self.issue(TableCall("barrier", 0, "", self.ranks), "barrier")
        last_task = self.lane.last
        with self.watch.guard(issued.waiting, new=True, closes=False):
            end = begin(last_task is not None and not last_task.is_completed())

        def work(transport: Transport) -> None:
            """Wait until all ranks have come, and if one of them was busy, until all are here again."""
            if end():
                wait_for_all(transport)

        record = counters.count("barrier", backend, 0, ranks=len(self.ranks))
        return self._start(issued, record, work, [], "sum", terms, has_begun=True)

    def wait_for_tasks(self, number: int) -> None:
        """Wait until all ranks have come here after their earlier tasks, in the barrier of a number.

        This rank had none when it began the barrier, so it waits on the caller's thread.

        Raises:
            RuntimeError: A rank is lost.
        """
        tag = call_tag(number, "barrier")
        with self.watch.guard(Waiting("barrier", number), new=True):
            wait_for_all(
                Transport(self.messages, self.ranks, self.rank, tag, "barrier", in_vain=self.watch.abandons_waits)
            )

    def _start(
        self,
        issued: Issued,
        record: Record,
        work: Callable[[Transport], None],
        outputs: Sequence[Tensor],
        op: str,
        terms: Terms,
        has_begun: bool = False,
    ) -> GroupTask:
        """Start a task that runs `work` after the group's earlier calls, and return it.

        The task also counts the seconds that it waited for each rank. If `terms` waits and no earlier task is
        unfinished, it has run on this thread when the function returns.

        Args:
            issued: The call. Its number and its `text` give the tag of its messages.
            record: Takes the seconds that the call took, also if it fails.
            work: Moves the bytes.
            outputs: Tensors that the call writes.
            op: Reduction of the call; for avg the written sums are divided.
            terms: Conditions of the call.
            has_begun: Whether the ranks have exchanged something already, so that one of them may have done its part
                and ended by now.
        """
        waiting = issued.waiting
        tag = call_tag(waiting.number, issued.text)
        waited_s: dict[int, float] = defaultdict(float)
        text, limit, in_vain = waiting.text, terms.timeout, self.watch.abandons_waits
        transport = Transport(self.messages, self.ranks, self.rank, tag, text, waited_s, limit, in_vain)

        def function() -> None:
            """Run `work` under the watch, divide sums for an average, and count the waits."""
            try:
                with self.watch.guard(waiting, new=not has_begun):
                    work(transport)
                    if op == "avg":
                        self.divide(outputs)
            finally:
                for peer, seconds in waited_s.items():
                    counters.count_wait(self.ranks[peer], seconds)

        task = self.task(function, outputs, record)
        self.lane.put(task, terms.waits)
        return task

    def divide(self, sums: Sequence[Tensor]) -> None:
        """Divide sums by the number of ranks, in place; averages of whole numbers are truncated towards zero."""
        for tensor in sums:
            whole = not tensor.is_floating_point() and not tensor.is_complex()
            tensor.copy_(torch.div(tensor, len(self.ranks), rounding_mode="trunc" if whole else None))
