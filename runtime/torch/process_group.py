"""Provide a back end of torch.distributed that runs our algorithms or those of the back end that it wraps (Gloo, NCCL).

    import synth.torch

    torch.distributed.init_process_group("cpu:synth,cuda:synth")

`runtime.torch.choice` chooses for each call from its collective, size, type and group only, so all ranks agree without
communication. Our algorithms run on CPU tensors over the wrapped back end's messages, in the order of the calls, on one
thread per group. The wrapped back end serves all other calls; the reason is logged (logger `synth.torch`) and counted
in `summary()`.

If the process of a rank ends, the other ranks raise RuntimeError at once. The message has the rank's number in the
whole job: "lost: rank N" if it ended without a word, otherwise the reason ("rank N raised …", "was interrupted", "has
left the group"). Calls that differ between ranks also raise RuntimeError, a second after all have begun. A rank that
lives and only waits, computes or is stopped is never called lost. At the time-out ranks ask each other for at most a
second, and the message says where that rank is (`runtime.torch.failures.lost`). After such an error the group cannot be
used any more.

Before torch 2.15 `torch.distributed.monitored_barrier` asks for Gloo by name. Call the group's method instead:
`torch.distributed.group.WORLD.monitored_barrier()`.

`runtime.torch.c10d.registered` explains how CommDebugMode, profilers, hooks and tensors without data work with these
groups.

Environment variables: `runtime.torch.choice` explains SYNTH_BACKEND, SYNTH_LIBRARY, SYNTH_TABLE and SYNTH_TOPOLOGY.
With SYNTH_CHECK=1 ranks compare each collective before anything is sent, and all raise the same error if it differs.
Without this check Gloo can end a process whose message is longer or shorter than expected. SYNTH_LOG=FILE and
SYNTH_TRACE=FILE let each rank write, at its end, `statistics` and the trace of `write_trace`.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

try:
    import torch.distributed as dist
except ImportError as error:
    need = "synth.torch needs PyTorch: pip install '.[torch]' in a copy of synth's sources"
    raise ImportError(need, name=error.name) from None

from runtime.torch.added import known_names
from runtime.torch.c10d.group import Group, group_of_synth
from runtime.torch.choice import Method
from runtime.torch.core import stated_sizes
from runtime.torch.counters import counters
from runtime.torch.logs import file_of_rank, job_rank, write_json
from runtime.torch.rank_choices import requested_method
from topologies.errors import InputError

Tensor: TypeAlias = Any


def summary(by_size: bool = False) -> str:
    """Print and return, as text, what served each call, how often and how long, the fallbacks, and the waits.

    Args:
        by_size: Whether a second table follows, with a row for each size class: percentiles of the times in µs, and
            algbw and busbw in GB/s as nccl-tests defines them.
    """
    text = counters.text() + (f"\n\n{counters.text_by_size()}" if by_size else "")
    print(text)
    return text


def statistics() -> dict[str, Any]:
    """Return what served the calls of this process so far as a JSON object, whose schema is "torch-log".

    It has a row for each collective, back end, number of ranks and size class, the reasons of fallbacks, and the
    seconds that this rank waited for messages of each other rank. Only calls that are over are in the rows.
    """
    return counters.document()


def trace(traces: bool = True) -> None:
    """Begin to keep calls one by one for a trace, without those so far; with False, keep no more.

    Only the latest 100,000 calls are kept. `write_trace` writes them.
    """
    counters.trace(traces)


def write_trace(path: str | Path) -> None:
    """Write the calls that were kept to a file that chrome://tracing and Perfetto show, one process for each rank.

    The clock is that of the machine, so that the files of all ranks can be opened together.

    Raises:
        InputError: The file cannot be written.
    """
    write_json(Path(path), counters.trace_document())


@contextmanager
def using(backend: str, algorithm: str | None = None) -> Iterator[None]:
    """Name the back end for the calls of this thread in a with block; it must be the same on all ranks.

    It overrules SYNTH_BACKEND for this thread, or this task of asyncio, until the block ends. Blocks can be nested.

    Args:
        backend: auto, synth or gloo, as for SYNTH_BACKEND, or the name of a back end that `register` has added.
        algorithm: With synth, the name of a program of the library or of a built-in one; None for the default.

    Raises:
        InputError: The back end is unknown, or an algorithm is named without synth. That an algorithm does not exist
            for a call is raised by the call.
    """
    if backend not in known_names():
        raise InputError(f"back end {backend!r} is not known; it must be one of {', '.join(known_names())}")
    if algorithm is not None and backend != "synth":
        raise InputError(f"algorithm {algorithm} is named with back end {backend}; it must be with back end synth")
    token = requested_method.set(Method(backend, algorithm))
    try:
        yield
    finally:
        requested_method.reset(token)


@contextmanager
def known_sizes(rows: ArrayLike, row_elements: int = 1) -> Iterator[None]:
    """State the sizes of all blocks of the all-to-alls in a with block, so that ranks need not exchange them.

    All ranks must state the same, which they compare with SYNTH_CHECK=1 only. It matters where SYNTH_TOPOLOGY names the
    network, so that calls are planned, and where the table has several answers, which calls with splits follow only so.

    Args:
        rows: Rows of the tensor that each rank sends to each other, whole numbers, shape (ranks, ranks), as
            [sender][receiver] by places in the group: a tensor, an array or lists.
        row_elements: Elements in a row, such as the hidden size; 1 for tensors of one dimension and for `all_to_all`.

    Raises:
        InputError: The rows are no square of whole numbers from 0 on, or `row_elements` is below 1. That they do not
            fit this rank's blocks is raised by the call.
    """
    try:
        table = np.asarray(rows)
    except (TypeError, ValueError):
        table = np.empty(0)
    square = table.ndim == 2 and len(table) == table.shape[1] and table.dtype.kind in "iu"
    if not square or table.min(initial=0) < 0 or not isinstance(row_elements, int) or row_elements < 1:
        raise InputError("known_sizes: must be a square of whole numbers, a row for each sender, and elements in a row")
    token = stated_sizes.set((table * row_elements).tolist())
    try:
        yield
    finally:
        stated_sizes.reset(token)


def custom(name: str, output: Tensor, tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
    """Run a custom collective, such as a hand-written one, by its name in the library (SYNTH_LIBRARY).

    Args:
        name: Name of the collective.
        output: Tensor on the CPU, of any shape, with as many elements as the rank's output holds, which is written;
            empty if the rank has none.
        tensor: Tensor likewise with as many elements as the rank's input holds; empty if the rank has none.
        op: torch's reduction; None for sums.
        group: Group of synth; None for the default group.
        async_op: Whether to return at once.

    Returns:
        torch's Work with async_op, otherwise None.

    Raises:
        InputError: The library has no program that serves the tensors, the reduction is not supported, both tensors are
            empty, or the group has another back end. Only this rank raises it if only its tensors are wrong.
        RuntimeError: A rank is lost or takes too long.
    """
    synth_group = group_of_synth(group, name)
    opts = dist.AllreduceOptions()
    opts.asyncOp = async_op
    work = synth_group.custom(name, output, tensor, dist.ReduceOp.SUM if op is None else op, opts)
    if async_op:
        return work
    work.wait()
    return None


def agree_on_failures(*seen: str) -> tuple[str, ...]:
    """Agree with all ranks on what has failed in the network, and use the library's answers for this failure.

    All ranks call it between the same two calls, such as every tenth step of a training, each with what it has seen.
    What any rank has seen counts for all of them, in all groups of synth; if none has seen a failure, the healthy
    library serves again. Calls that are made later use the new choices; where the table names one of our algorithms,
    the answer for the failure takes its place. Calls that the wrapped back end serves stay there.

    Args:
        seen: Parts that this rank knows to have failed, as `synth library update --without` takes them: "link:0-1".

    Returns:
        All failed parts, sorted; the same on every rank.

    Raises:
        InputError: SYNTH_LIBRARY has no answers for this failure, or the default group has another back end. Every rank
            raises it, and nothing changes.
        RuntimeError: A rank is lost or takes too long.
    """
    group = dist.distributed_c10d._get_default_group()
    if not isinstance(group, Group):
        raise InputError("agree_on_failures: the default group has another back end; it must be a group of synth")
    return group.agree_on_failures(seen)


def _log_at_exit(values: Mapping[str, str] = os.environ) -> None:
    """Trace the calls and write a log at the end of the process, where SYNTH_TRACE and SYNTH_LOG name files.

    Each rank writes a file of its own: `log.json` becomes `log.3.json` for rank 3.
    """
    documents = {"SYNTH_LOG": statistics, "SYNTH_TRACE": counters.trace_document}

    def write() -> None:
        """Write the files that are named; one that cannot be written is reported in a line on standard error."""
        for variable, document in documents.items():
            if values.get(variable):
                try:
                    write_json(file_of_rank(values[variable], job_rank()), document())
                except InputError as error:
                    print(f"synth.torch: {error}", file=sys.stderr)

    if values.get("SYNTH_TRACE"):
        trace()
    if any(map(values.get, documents)):
        atexit.register(write)


def _create(options: Any, backend_options: Any) -> Group:
    """Build a rank's group from torch's options, with the other ranks, and return it; torch calls this function.

    Args:
        options: torch's facts about the group: its store, ranks, time-out and name.
        backend_options: torch's `pg_options`, which must be None.

    Raises:
        InputError: torch passes options that this back end would ignore, or ranks would choose differently.
        RuntimeError: A rank is lost or does not come in time; the message names it.
    """
    if backend_options is not None:
        type_of_options = type(backend_options).__qualname__
        raise InputError(f"pg_options: the back end synth has no options, but got {type_of_options}; it must be None")
    ranks, name = options.global_ranks_in_group, options.group_id
    return Group(options.store, options.group_rank, options.group_size, options.timeout, ranks, name)


if "SYNTH" not in dist.Backend._plugins:
    _log_at_exit()
    dist.Backend.register_backend("synth", _create, extended_api=True, devices=["cpu", "cuda"])
