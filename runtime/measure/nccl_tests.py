"""Read what nccl-tests and rccl-tests print, as people paste it: with prefixes, logs in between, and several runs.

A run begins with the heads of its columns. What stands before them belongs to it too: the line of parameters, the list
of devices, and the name of the program. Between the rows, `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=TUNING` prints
which algorithm runs, before the row of its message size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from topologies.errors import InputError

MOST_BYTES = 1 << 26  # The most bytes of a text that is read.
_MOST_ROWS = 100_000
_LARGEST = 1 << 50  # Bytes of a message above which a row is not believed.
_PROGRAMS = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter", "alltoall": "alltoall",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter", "sendrecv": "sendrecv",
    "hypercube": "hypercube", "alltoallv": "alltoallv",
}  # fmt: skip
_PROGRAM = re.compile(rf"\b({'|'.join(_PROGRAMS)})_perf(?:_mpi)?\b")
_DEVICE = re.compile(r"\bRank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_PARAMETERS = re.compile(r"\bnThread (\d+) nGpus (\d+) minBytes \d+")
_HEADS = re.compile(r"\bsize\s+count\b.*\btime\s+algbw\s+busbw\b")
_TIMES = r"\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(N/A|[\d.]+(?:e[+-]?\d+)?)"
_ROW = re.compile(rf"(?:^|\s)(\d+)\s+(\d+)\s+([a-z]\w+)(?:\s+([a-z]\w*))?(?:\s+(-?\d+))?{_TIMES}(?:{_TIMES})?\s*$")
_BEGUN_ROW = re.compile(r"(?:^|:)\s*\d+\s+\d+\s+(?:u?int\d+|half|b?float\d*|double|f\d+e\w+|fp\d+\w*)\b")
_RAN = re.compile(r"(\d+) Bytes -> Algo (\w+) proto (\w+)")
_ALGORITHMS = ("tree", "ring", "CollNet direct", "CollNet chain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")


@dataclass(frozen=True)
class PrintedRow:
    """The measured times of one message size.

    Attributes:
        size_bytes: Message size as nccl-tests counts it: the larger of a rank's buffers for sending and receiving.
        out_of_place_us: Time of a call out of place in µs.
        in_place_us: Time of a call in place in µs; None where the row has one form only.
        wrong: Number of wrong elements of both forms together; 0 where they were not checked.
        factor: Bus bandwidth over algorithm bandwidth as printed; None where both round to nearly 0.
    """

    size_bytes: int
    out_of_place_us: float
    in_place_us: float | None
    wrong: float
    factor: float | None


@dataclass
class PrintedRun:
    """One table of nccl-tests.

    Attributes:
        collective: Name of the collective; "" where neither the text nor the columns say it.
        ranks: Number of ranks; 0 where the text does not say it.
        hosts: Number of different hosts of the listed devices; 0 without a list.
        device: Name of the first device; "" without a list.
        type: Type of the elements, as printed.
        operation: How elements are reduced, as printed; "none" or "" where they are not.
        root: Rank of the root; -1 without one.
        line: Number of the line with the heads of the columns, from 1.
        rows: Rows in the order of the text.
        ran: By message size, the algorithm and protocol that NCCL's log says it ran.
    """

    collective: str
    ranks: int
    hosts: int
    device: str
    line: int
    type: str = ""
    operation: str = ""
    root: int = -1
    rows: list[PrintedRow] = field(default_factory=list)
    ran: dict[int, tuple[str, str]] = field(default_factory=dict)


def read_runs(text: str, origin: str) -> list[PrintedRun]:
    """Return the runs of a text in order.

    Args:
        text: What nccl-tests or rccl-tests printed, with anything around it.
        origin: Name of the file, with which errors begin.

    Raises:
        InputError: The text has no table with rows, a row is cut off, or a number is not possible.
    """
    runs: list[PrintedRun] = []
    devices: dict[int, tuple[str, str]] = {}
    program, stated_ranks = "", 0
    for number, whole_line in enumerate(text.splitlines(), 1):
        line = whole_line.partition("  |")[0]  # Of two tables side by side, the left one is read.
        if name := _PROGRAM.search(line):
            if "concluded" not in line:
                program = _PROGRAMS[name[1]]
            elif runs and not runs[-1].collective:
                runs[-1].collective = _PROGRAMS[name[1]]
        if parameters := _PARAMETERS.search(line):
            devices, stated_ranks = {}, int(parameters[1]) * int(parameters[2])
        if device := _DEVICE.search(line):
            devices[int(device[1])] = device[2], device[3].strip()
        if runs and (ran := _RAN.search(line)):
            runs[-1].ran[int(ran[1])] = _named(ran[2], _ALGORITHMS), _named(ran[3], _PROTOCOLS)
        if _HEADS.search(line):
            hosts, (_, name_of_device) = {host for host, _ in devices.values()}, devices.get(0, ("", ""))
            ranks = max(devices, default=-1) + 1 or stated_ranks
            runs.append(PrintedRun(program, ranks, len(hosts), name_of_device, number))
            program = ""
        elif runs and (row := _ROW.search(line)):
            _add(runs[-1], row, f"{origin}: line {number}")
        elif runs and _BEGUN_ROW.search(line):
            raise InputError(f"{origin}: line {number}: the row ends too early; paste whole lines of nccl-tests")
    runs = [run for run in runs if run.rows]
    if not runs:
        raise InputError(
            f"{origin}: no table of nccl-tests in it; it needs the line 'size count type … time algbw busbw' and rows"
        )
    for run in runs:
        run.ranks = run.ranks or _ranks_by_factor(run)
        run.collective = run.collective or _collective_by_columns(run)
    return runs


def _add(run: PrintedRun, row: re.Match[str], place: str) -> None:
    """Add a row to a run; raise InputError if a number is not possible."""
    size, _, element_type, operation, root, *times = row.groups()
    numbers = [0.0 if text in (None, "N/A") else float(text) for text in times]
    out_us, algbw_gbs, busbw_gbs = numbers[:3]
    in_us = numbers[4] if times[4] is not None else None
    if not (0 < out_us < math.inf and (in_us is None or 0 < in_us < math.inf) and int(size) <= _LARGEST):
        raise InputError(f"{place}: times must be numbers above 0, and sizes at most {_LARGEST} bytes")
    if len(run.rows) >= _MOST_ROWS:
        raise InputError(f"{place}: more than {_MOST_ROWS} rows; give a part of the text")
    if not int(size):
        return
    factor = busbw_gbs / algbw_gbs if algbw_gbs >= 1 else None
    run.rows.append(PrintedRow(int(size), out_us, in_us, numbers[3] + numbers[7], factor))
    run.type, run.operation, run.root = element_type, operation or "", -1 if root is None else int(root)


def _named(text: str, names: tuple[str, ...]) -> str:
    """Return the name of an algorithm or protocol, which NCCL logs as a number or in capitals."""
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else text
    return next((name for name in names if name.replace(" ", "_").upper() == text.upper()), text)


def _factors(run: PrintedRun) -> Iterator[float]:
    """Yield the printed factors from algorithm bandwidth to bus bandwidth, those of the largest messages first."""
    yield from (row.factor for row in sorted(run.rows, key=lambda row: -row.size_bytes) if row.factor is not None)


def _ranks_by_factor(run: PrintedRun) -> int:
    """Return the number of ranks that bus over algorithm bandwidth states; 0 where it states none."""
    factor = next(_factors(run), 0.0)
    share = factor / 2 if run.collective == "allreduce" or factor > 1 else factor
    return round(1 / (1 - share)) if 0.4 < share < 0.999 else 0


def _collective_by_columns(run: PrintedRun) -> str:
    """Return the collective that the columns of a run tell; "" where they do not."""
    is_reduced = run.operation not in ("", "none")
    if run.root >= 0:
        return "reduce" if is_reduced else "broadcast"
    factor = next(_factors(run), None)
    if not is_reduced or factor is None or not run.ranks:
        return ""
    share = 1 - 1 / run.ranks
    return "allreduce" if abs(factor - 2 * share) < abs(factor - share) else "reducescatter"
