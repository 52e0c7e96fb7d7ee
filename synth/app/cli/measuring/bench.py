"""The command `bench`, which runs executors' files on this machine and prints the table of nccl-tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from emit.formats import format_of
from emit.timing.predict import Predictor
from emit.timing.timed import TimedProgram
from emit.timing.trace import measured_trace
from runtime.backends import BACKENDS, choose_backend
from runtime.bench import BenchRequest, BenchRow, Measure, Settings, elements_of, message_sizes
from runtime.dtypes import parse_type, reducer
from synth.app.cli.files.file_choice import Chosen, StoredChoice, chooser
from synth.app.cli.files.plan_scripts import PLAN_SOURCE
from synth.app.cli.options import costs_option, json_option, print_json, wide_option
from synth.app.cli.programs import as_executors_see, check_ending, check_not_source, named_problem, write_text
from synth.app.present.bench import BenchTable
from synth.app.present.layout import say_fitted, terminal_width, warn
from synth.bounds.prove import Bound, prove
from synth.model.sizes import parse_size
from synth.storage.columns import check_replaceable
from topologies.errors import InputError
from topologies.load import apply_costs, load, read_costs
from topologies.topology import Topology

_BEHIND = 1.02  # multiple of the network's own time from which a warning says that the GPU was too slow


@click.command("bench")
@click.argument("path", type=PLAN_SOURCE)
@click.option(
    "--backend",
    metavar="NAME",
    help="Run on this back end. "
    + "; ".join(f"{row.name}: {row.summary}" for row in BACKENDS.values())
    + ". Default: gpu if there is one, otherwise host.",
)
@click.option(
    "-b",
    "--minbytes",
    metavar="SIZE",
    help="Start with this message size. Default: 1M, or the nearest size that a single file serves.",
)
@click.option("-e", "--maxbytes", metavar="SIZE", help="End with this message size. Default: the smallest size.")
@click.option("-f", "--stepfactor", type=float, metavar="X", help="Multiply each size by X. Default: 2.")
@click.option("-i", "--stepbytes", metavar="SIZE", help="Increase each size by this many bytes, instead of -f.")
@click.option(
    "-d",
    "--datatype",
    default="float",
    metavar="TYPE",
    help="Use elements of this type: float (default), half, bfloat16, double, int32, int64.",
)
@click.option(
    "-o", "--op", default="sum", metavar="OP", help="Reduce with this operation: sum (default), prod, max, min or avg."
)
@click.option("-n", "--iters", type=click.IntRange(1), default=5, metavar="N", help="Measure N runs. Default: 5.")
@click.option(
    "-w",
    "--warmup-iters",
    type=click.IntRange(0),
    default=1,
    metavar="N",
    help="Run N times before the measurement. Default: 1.",
)
@click.option("--devices", metavar="LIST", help="Use several GPUs, as 0,1; each stands for its share of the ranks.")
@click.option(
    "--emulate",
    metavar="T",
    help="Emulate this network on one GPU: machine, machine:N, family (torus:4x4) or FILE.toml.",
)
@click.option(
    "--slower",
    type=float,
    default=1.0,
    metavar="X",
    help="With --emulate: run a network that is X times slower, which the GPU can follow; times are printed for X = 1.",
)
@click.option("--topo", metavar="T", help="Predict times and bounds on this network. Default: the file's own network.")
@costs_option
@click.option("--collective", metavar="NAME", help="Choose this collective of a library. Default: the only one.")
@click.option("--group", metavar="RANKS", help="Choose this group of a library. Default: the only one.")
@click.option(
    "--target", metavar="NAME", help="Choose this executor's files of a library. Default: the first that has files."
)
@click.option(
    "--trace", metavar="OUT.json", help="Write the last run, measured and predicted, as a trace for Perfetto."
)
@wide_option
@json_option
def bench(
    path: str,
    backend: str | None,
    minbytes: str | None,
    maxbytes: str | None,
    stepfactor: float | None,
    stepbytes: str | None,
    datatype: str,
    op: str,
    iters: int,
    warmup_iters: int,
    devices: str | None,
    emulate: str | None,
    slower: float,
    topo: str | None,
    costs: str,
    collective: str | None,
    group: str | None,
    target: str | None,
    trace: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Run and measure an MSCCL XML, a plan (JSON), a stored schedule, or a library's file for each size.

    The table is that of nccl-tests. Exit code 0: every element right; 1: some wrong; 2: it cannot be run.

    \b
    synth bench out/msccl/FILE.xml -b 1M -n 20
    """
    if stepbytes is not None and stepfactor is not None:
        raise InputError("-i: adds bytes from size to size, and -f multiplies; use one of them")
    choose, usual = chooser(Path(path), collective, group, target)
    sizes = _sizes(usual, minbytes, maxbytes, 2.0 if stepfactor is None else stepfactor, stepbytes)
    parse_type(datatype), reducer(op, "float"), read_costs(costs)  # Raise before the table's head is printed.
    extra_options = {
        "--devices": devices, "--emulate": emulate, "--slower": slower if slower != 1 else None, "--trace": trace
    }  # fmt: skip
    if slower != 1 and emulate is None:
        raise InputError("--slower: is for emulated networks only; give --emulate too")
    chosen_backend = choose_backend(backend, [name for name, value in extra_options.items() if value is not None])
    network = None if emulate is None else load(emulate)
    topology = network if topo is None or network is not None else load(topo)
    chosen, too_small = _files_at_sizes(path, choose, sizes, datatype)
    if trace is not None:
        if len(chosen) != 1:
            raise InputError(f"--trace: there are {len(chosen)} sizes; it must be one, as with -b 1M")
        check_ending(trace, ".json", "a trace")
        check_not_source(trace, path)
        check_replaceable(trace)
    settings = Settings(datatype, op, iters, warmup_iters)
    request = BenchRequest(
        Path(path), chosen[0][1].program.nranks, settings, devices, network, slower, trace is not None
    )
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ  # A reader of a pipe gets all columns.
    table = BenchTable(terminal_width() if has_width and not wide else None)
    run = _BenchRun(chosen_backend.name, request, topology, None if as_json else table, trace, costs)
    with chosen_backend.open(request) as (measure, run.prints):
        run.measure_rows(chosen, measure)
    if run.prints:
        if too_small:
            warn(f"# {', '.join(map(str, too_small))} bytes have less than one element a block")
        if unserved := sorted(set(sizes) - {size for size, _ in chosen}):
            warn(f"# no algorithm of {path} serves {', '.join(map(str, unserved))} bytes")
        run.end()
    if run.wrong:
        raise SystemExit(1)


def _files_at_sizes(
    path: str, choose: Callable[[int], Chosen | None], sizes: Sequence[int], datatype: str
) -> tuple[list[tuple[int, Chosen]], list[int]]:
    """Return each size in bytes that a file serves with this file, and the sizes that have too few elements for it.

    Args:
        path: The library or file, for messages.
        choose: Function that returns the file for a size; None if none serves it.
        sizes: Message sizes in bytes.
        datatype: Type of an element.

    Raises:
        InputError: No size is left.
    """
    chosen = [(size, file_at_size) for size in sizes if (file_at_size := choose(size)) is not None]
    if not chosen:
        raise InputError(f"{path}: no file serves any of these sizes; synth library show lists what they serve")
    too_small = [size for size, file_at_size in chosen if not elements_of(file_at_size.program, size, datatype)]
    chosen = [(size, file_at_size) for size, file_at_size in chosen if size not in too_small]
    if not chosen:
        raise InputError(f"-b: {too_small[-1]} bytes have less than one element a block; give a larger size")
    return chosen, too_small


def _sizes(
    usual: int, minbytes: str | None, maxbytes: str | None, stepfactor: float, stepbytes: str | None
) -> list[int]:
    """Return the message sizes in bytes that the options name, ascending; [`usual`] without options.

    Args:
        usual: The smallest size in bytes if `--minbytes` is not given.
        minbytes: Text of `--minbytes`.
        maxbytes: Text of `--maxbytes`; None for the smallest size.
        stepfactor: Factor from size to size.
        stepbytes: Text of `--stepbytes`, which counts instead of the factor; None for the factor.

    Raises:
        InputError: A text is no size, or the largest size is below the smallest.
    """
    low = usual if minbytes is None else parse_size(minbytes, "--minbytes")
    high = parse_size(maxbytes, "--maxbytes") if maxbytes else low
    step = parse_size(stepbytes, "--stepbytes") if stepbytes else 0
    if high < low:
        raise InputError(f"-e {maxbytes}: is less than -b; it must be {minbytes or low} or more")
    return list(message_sizes(low, high, stepfactor, step))


@dataclass(eq=False)
class _BenchRun:
    """The rows of one call of `bench`, printed as they come.

    Attributes:
        backend: Name of the back end.
        request: What the back end was asked to run.
        topology: The network for predicted times; None for the network that each file was made for.
        table: The table to print; None to print JSON instead.
        trace: File for the trace of the last run; None for no trace.
        costs: The option `--costs`.
        prints: Whether this process prints.
        wrong: Number of wrong elements so far.
        behind: Largest measured time so far / the emulated network's own time.
        rows: The printed rows.
        copied: Names of the programs that work in place only and were run out of place too, after a copy of the input.
        predicted_for: Names of the networks of predicted times.
    """

    backend: str
    request: BenchRequest
    topology: Topology | None
    table: BenchTable | None
    trace: str | None
    costs: str
    prints: bool = True
    wrong: int = 0
    behind: float = 1.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    copied: dict[str, None] = field(default_factory=dict)
    predicted_for: dict[str, None] = field(default_factory=dict)

    def measure_rows(self, chosen: Sequence[tuple[int, Chosen]], measure: Measure) -> None:
        """Measure each file at its size, and print its row; only count wrong elements in a process that does not print.

        The rows, `wrong` and `behind` are changed, and the trace is written if there is one.

        Args:
            chosen: The sizes in bytes and the file of each; a file may have another one for calls in place.
            measure: Function that runs a file at a size.
        """
        predictions: dict[str, Prediction] = {}
        for size, file_at_size in chosen:
            row = measure(file_at_size, size)
            if file_at_size.inside is not None:
                row = replace(row, in_place=measure(file_at_size.inside, size).in_place)
            if row.out_of_place is not None and not file_at_size.program.outofplace:
                self.copied[file_at_size.name] = None
            self.wrong += row.wrong
            if not self.prints:
                continue
            if file_at_size.name not in predictions:
                topology = self.topology or file_at_size.made_for()
                topology = topology if topology is None else apply_costs(topology, self.costs)
                predictions[file_at_size.name] = Prediction(file_at_size, topology, self.topology is not None)
                if topology is not None and predictions[file_at_size.name].timed is not None:
                    self.predicted_for[topology.name] = None
            prediction, size_bytes = predictions[file_at_size.name], row.size_bytes
            figures = prediction.predicted_us(size_bytes), prediction.bound_us(size_bytes)
            shown = as_object(row, file_at_size.name, self.backend, *figures)
            self.rows.append(shown)
            if self.trace is not None and row.recorded is not None:
                trace = measured_trace(file_at_size.program, row.recorded, prediction.predictor, size_bytes)
                write_text(self.trace, trace)
                shown["trace"] = self.trace
            if row.emulated is not None and self.request.network is not None:
                due_us = row.emulated.due_us
                shown |= {"network": self.request.network.name, "slower": self.request.slower, "due_us": due_us}
                self.behind = max(self.behind, row.emulated.measured_us / max(due_us, 1e-9))
            if self.table is not None:
                click.echo((self.table.heading() + "\n" if len(self.rows) == 1 else "") + self.table.line(shown))

    def end(self) -> None:
        """Print the verdict, or all rows as JSON; warn on stderr if the GPU was too slow to emulate the network."""
        network = self.request.network
        if self.table is None:
            print_json("bench", {"rows": self.rows, "wrong": self.wrong})
        else:
            verdict = "every element right" if not self.wrong else f"{self.wrong} elements wrong"
            emulated = "" if network is None else f", {network.name}'s time"
            if self.backend == "host" and network is None and self.predicted_for:
                say_fitted(
                    f"# the measured times are this computer's CPU's; predicted and bound are for the devices of"
                    f" {', '.join(self.predicted_for)}"
                )
            for name in self.copied:
                say_fitted(f"# out of place: {name} works in place only and ran after a copy of the input")
            click.echo(f"# {self.backend}{emulated}: {verdict}")
            if left_out := self.table.left_out():
                say_fitted(f"# --wide also shows {', '.join(left_out)}")
            if self.trace is not None:
                click.echo(f"# trace → {self.trace}")
        if self.behind > _BEHIND and network is not None:
            warn(f"# the GPU was up to {self.behind - 1:.0%} behind {network.name}'s own time: give a larger --slower")


def as_object(row: BenchRow, name: str, backend: str, predicted: float | None, bound: float | None) -> dict[str, Any]:
    """Return a row as a JSON object.

    Args:
        row: The measured row.
        name: Name of the algorithm.
        backend: Name of the back end.
        predicted: Predicted time in µs; None if unknown.
        bound: Bound on the time in µs; None if unknown.

    Returns:
        A dictionary: algorithm, backend, size_bytes, count (elements), type, redop ("none" if nothing is reduced),
        root, predicted_us, bound_us, and out_of_place and in_place: for each form of calls time_us, algbw_gbs,
        busbw_gbs and wrong (number of wrong elements); None for a form that was not run.
    """
    forms = {"out_of_place": row.out_of_place, "in_place": row.in_place}
    timings = {
        form: timing
        and {
            "time_us": timing.time_us,
            "algbw_gbs": row.algbw(timing),
            "busbw_gbs": row.busbw(timing),
            "wrong": timing.wrong,
        }
        for form, timing in forms.items()
    }
    return {
        "algorithm": name,
        "backend": backend,
        "size_bytes": row.size_bytes,
        "count": row.count,
        "type": row.kind,
        "redop": row.op if row.reduces else "none",
        "root": row.root,
        **timings,
        "predicted_us": predicted,
        "bound_us": bound,
    }


class Prediction:
    """The predicted time and the bound of a file on a network.

    Attributes:
        timed: The file's program, ready to be timed; None if it cannot be.
        bound: The bound on the time of any algorithm; None if unknown.
    """

    def __init__(self, chosen: Chosen, topology: Topology | None, is_named: bool = False) -> None:
        """Prepare the prediction for a file: compute its bound, and its program's timing.

        Args:
            chosen: The file.
            topology: The network; None if it is unknown, so that nothing can be predicted.
            is_named: Whether the user named the network.

        Raises:
            InputError: The user named the network, and the file cannot be timed there.
        """
        self.timed: TimedProgram | None = None
        self.bound: Bound | None = None
        if topology is None:
            return
        with suppress(*(() if is_named else (InputError,))):
            communicator = chosen.communicator(topology)
            self.timed = format_of(chosen.file).predictor(chosen.file, chosen.program, topology, communicator)
        with suppress(InputError):
            self.bound = _bound(chosen, topology)

    @property
    def predictor(self) -> Predictor | None:
        """Return the predictor that can draw the program's run; None if the file has none."""
        return self.timed if isinstance(self.timed, Predictor) else None

    def predicted_us(self, size_bytes: int) -> float | None:
        """Return the predicted time of the program in µs at a message size in bytes; None if it cannot be timed."""
        with suppress(InputError):
            return None if self.timed is None else self.timed.time_us(size_bytes)
        return None

    def bound_us(self, size_bytes: int) -> float | None:
        """Return the bound on the time of any algorithm in µs at a message size in bytes; None if unknown or 0."""
        least_us = self.bound.at(size_bytes)[0] if self.bound is not None and self.bound.witnesses else 0.0
        return least_us if least_us > 0 else None


def _bound(chosen: Chosen, topology: Topology) -> Bound | None:
    """Return the bound of the problem that a file solves, newly proved, as a search for the file's executor does.

    It is None if a stored schedule is for another network, or if the name in the file names no problem.

    Args:
        chosen: The file.
        topology: The network. A library's entry for another network counts as a file for the first ranks.
    """
    program, entry = chosen.program, chosen.entry
    if isinstance(chosen, StoredChoice):
        return prove(chosen.problem) if topology.name == chosen.problem.topology.name else None
    topology = as_executors_see(topology, format_of(chosen.file).name, entry)
    if entry is not None and entry.topology == topology.name:
        problem = named_problem(topology, entry.collective, entry.group, entry.root, entry.relays)
    else:
        problem = named_problem(topology, program.collective, tuple(range(program.nranks)), program.root)
    return None if problem is None else prove(problem)
