"""Read what nccl-tests and rccl-tests print, as people paste it: with prefixes, logs in between, and several runs.

A run begins with the heads of its columns. What stands before them belongs to it too: the line of parameters, the list
of devices, and the name of the program. Between the rows, `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=TUNING` prints
which algorithm runs, before the row of its message size.
"""

from __future__ import annotations

import math
import re
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
_DEVICE = re.compile(r"\bRank\s+(\d{1,7})\b[^\[]*\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)", re.ASCII)
_PARAMETERS = re.compile(r"\bnThread (\d{1,6}) nGpus (\d{1,6}) minBytes \d", re.ASCII)
_HEADS = ("size", "count", "time", "algbw", "busbw")
_TYPE = r"(u?int\d{1,3}|half|b?float\d{0,2}|double|f\d{1,2}e\w{1,8}|fp\d{1,2}\w{0,8})"
_ROW = re.compile(rf"(?:^|[\s:])(\d{{1,40}})\s+\d{{1,40}}\s+{_TYPE}(?=\s|$)", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{0,9})?(?:e[+-]?\d{1,2})?", re.ASCII)
_ROOT = re.compile(r"-?\d{1,7}", re.ASCII)
_RAN = re.compile(r"\d Bytes -> Algo (\w{1,20}) proto (\w{1,20})", re.ASCII)
_GRAPH = re.compile(r"\bgraph: [1-9]")
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,20}m")
_LONGEST_LINE = 1000  # Characters; longer lines are logs.
_LEAST_US, _MOST_US = 0.01, 1e12
_ROUNDING = 0.005  # Bandwidths are printed with two decimals.
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
        factor: Bus bandwidth over algorithm bandwidth as printed: the least and the largest value before rounding;
            None where both round to nearly 0.
    """

    size_bytes: int
    out_of_place_us: float
    in_place_us: float | None
    wrong: float
    factor: tuple[float, float] | None


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
        graph: Whether the calls were launched as a CUDA graph.
        line: Number of the line with the heads of the columns, from 1.
        stated_ranks: Threads times GPUs that the line of parameters states; 0 without it.
        rows: Rows in the order of the text.
        ran: By message size, the algorithm and protocol that NCCL's log says it ran.
    """

    collective: str
    ranks: int
    hosts: int
    device: str
    graph: bool
    line: int
    type: str = ""
    operation: str = ""
    root: int = -1
    stated_ranks: int = 0
    rows: list[PrintedRow] = field(default_factory=list)
    ran: dict[int, tuple[str, str]] = field(default_factory=dict)


def read_runs(text: str, origin: str) -> list[PrintedRun]:
    """Return the runs of a text in order; runs without rows and lines of more than 1000 characters are left out.

    A collective or a number of ranks that the text does not state is derived from the columns, where they tell it.

    Args:
        text: What nccl-tests or rccl-tests printed, with anything around it.
        origin: Name of the file, with which errors begin.

    Raises:
        InputError: The text has no table with rows or one with too many, a row is cut off, or a number is not possible.
    """
    runs: list[PrintedRun] = []
    devices: dict[int, tuple[str, str]] = {}
    program, stated_ranks, graph, ran = "", 0, False, None
    for number, whole_line in enumerate(text.splitlines(), 1):
        line = _COLOURS.sub("", whole_line).partition("  |")[0]  # Of two tables side by side, the left one is read.
        if len(line) > _LONGEST_LINE:
            continue
        if name := _PROGRAM.search(line):
            if "concluded" not in line:
                program = _PROGRAMS[name[1]]
            elif runs and not runs[-1].collective:
                runs[-1].collective = _PROGRAMS[name[1]]
        if parameters := _PARAMETERS.search(line):
            devices, stated_ranks = {}, int(parameters[1]) * int(parameters[2])
            graph = _GRAPH.search(line) is not None
        if device := _DEVICE.search(line):
            devices[int(device[1])] = device[2], device[3].strip()
        if algorithm := _RAN.search(line):
            ran = _named(algorithm[1], _ALGORITHMS), _named(algorithm[2], _PROTOCOLS)
        words = line.split()
        if all(head in words for head in _HEADS):
            hosts, (_, name_of_device) = {host for host, _ in devices.values()}, devices.get(0, ("", ""))
            listed = max(devices, default=-1) + 1
            runs.append(
                PrintedRun(program, listed, len(hosts), name_of_device, graph, number, stated_ranks=stated_ranks)
            )
            program, ran = "", None
        elif runs and (row := _ROW.search(line)):
            printed = _row_of(runs[-1], row, line[row.end() :].split(), f"{origin}: line {number}")
            if printed is not None:
                runs[-1].rows.append(printed)
                if ran is not None:
                    runs[-1].ran[printed.size_bytes] = ran
            ran = None
            if len(runs[-1].rows) > _MOST_ROWS:
                raise InputError(f"{origin}: line {number}: more than {_MOST_ROWS} rows; give a part of the text")
    runs = [run for run in runs if run.rows]
    if not runs:
        raise InputError(
            f"{origin}: no table of nccl-tests in it; it needs the line 'size count type … time algbw busbw' and rows"
        )
    for run in runs:
        run.ranks = run.ranks or _ranks_by_columns(run)
        run.collective = run.collective or _collective_by_columns(run)
    return runs


def _row_of(run: PrintedRun, row: re.Match[str], fields: list[str], place: str) -> PrintedRow | None:
    """Return a row, and note its type, operation and root in the run; None for a message without bytes.

    Args:
        run: The run.
        row: The match of the message size and the type.
        fields: What follows: operation and root, both optional, then time, algbw, busbw and wrong for each form.
        place: File and line, with which errors begin.

    Raises:
        InputError: Fields are missing, or a number is not possible.
    """
    operation = fields.pop(0) if fields and fields[0].isalpha() else ""
    root = int(fields.pop(0)) if len(fields) % 4 == 1 and _ROOT.fullmatch(fields[0]) else -1
    if len(fields) not in (4, 8):
        raise InputError(f"{place}: the row is not whole; paste whole lines of nccl-tests")
    if not all(field == "N/A" or _NUMBER.fullmatch(field) for field in fields):
        raise InputError(f"{place}: the row has something else than numbers; paste whole lines of nccl-tests")
    numbers = [None if field == "N/A" else float(field) for field in fields]
    out_us, algbw_gbs, busbw_gbs, wrong = numbers[:4]
    in_us, wrong_in = (numbers[4], numbers[7]) if len(numbers) == 8 else (None, None)
    size = int(row[1])
    if not size:
        return None
    times_us = [us for us in (out_us, in_us) if us is not None]
    if out_us is None or not all(_LEAST_US <= us <= _MOST_US for us in times_us) or size > _LARGEST:
        raise InputError(f"{place}: times must be {_LEAST_US} µs or more, and sizes at most {_LARGEST} bytes")
    run.type, run.operation, run.root = row[2], operation, root
    factor = None
    if algbw_gbs is not None and busbw_gbs is not None and algbw_gbs >= 1:
        low, high = (busbw_gbs - _ROUNDING) / (algbw_gbs + _ROUNDING), (busbw_gbs + _ROUNDING) / (algbw_gbs - _ROUNDING)
        factor = low, high
    return PrintedRow(size, out_us, in_us, (wrong or 0.0) + (wrong_in or 0.0), factor)


def _named(text: str, names: tuple[str, ...]) -> str:
    """Return the name that NCCL logs as its index in `names`, or in capitals with underscores.

    A text that is no name of `names` is returned as it is.
    """
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else text
    plain = text.replace("_", "").upper()
    return next((name for name in names if name.replace(" ", "").upper() == plain), text)


def _factor(run: PrintedRun) -> tuple[float, float] | None:
    """Return the least and the largest possible bus over algorithm bandwidth of a run; None if unknown.

    They are those of the row with the largest message that has them.
    """
    factors = [(row.size_bytes, row.factor) for row in run.rows if row.factor is not None]
    return max(factors)[1] if factors else None


def _ranks_by_columns(run: PrintedRun) -> int:
    """Return the number of ranks that the bandwidths tell, else what the parameters state; 0 where it is not known.

    Processes that are started by mpirun state one GPU each, so that the parameters count only where the bandwidths do
    not tell another number.
    """
    factor = _factor(run)
    if factor is None:
        return run.stated_ranks
    scale = 0.5 if run.collective == "allreduce" or factor[0] > 1 else 1.0
    low, high = (scale * end for end in factor)
    if not 0 < low <= high < 1:
        return run.stated_ranks
    least, most = math.ceil(1 / (1 - low) - 1e-9), math.floor(1 / (1 - high) + 1e-9)
    if run.stated_ranks > 1 and least <= run.stated_ranks <= most:
        return run.stated_ranks
    return least if least == most and least > 1 else 0


def _collective_by_columns(run: PrintedRun) -> str:
    """Return "reduce", "broadcast", "allreduce" or "reducescatter" as the columns of a run tell; "" where they do not.

    They are the root, the operation, and the bus over algorithm bandwidth for `run.ranks`, which must be set.
    """
    is_reduced, factor = run.operation not in ("", "none"), _factor(run)
    if run.root >= 0:
        if is_reduced:
            return "reduce"
        return "broadcast" if factor is not None and factor[0] <= 1 <= factor[1] else ""
    if not is_reduced or factor is None or not run.ranks:
        return ""
    share, middle = 1 - 1 / run.ranks, sum(factor) / 2
    return "allreduce" if abs(middle - 2 * share) < abs(middle - share) else "reducescatter"
