"""The command `bench`: runs executors' files on this machine and prints nccl-tests' table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from emit.formats import format_of
from emit.timing.predict import Predictor, Timed
from emit.timing.trace import measured_trace
from runtime.backends import BACKENDS, choose_backend
from runtime.bench import Measure, Request, Row, Settings, Timing, message_sizes
from runtime.dtypes import parse_type, reducer
from synth.bounds.prove import Bound, prove
from synth.cli.chosen import Chosen, Stored, chooser
from synth.cli.options import costs_option, json_option, print_json
from synth.cli.programs import named_problem, write_text
from synth.model.sizes import parse_size
from synth.storage.columns import check_replaceable
from topologies.errors import InputError
from topologies.load import load, put_costs, read_costs
from topologies.topology import Topology

_BEHIND = 1.02  # of the network's own time: from here on a warning says that the GPU could not follow

HEAD = "\n".join(
    (
        f"#{'':>46}{'out-of-place':^35}{'in-place':^35}",
        f"#{'size':>12}{'count':>12}{'type':>10}{'redop':>7}{'root':>5}"
        + f"{'time':>11}{'algbw':>8}{'busbw':>8}{'#wrong':>8}" * 2
        + f"{'predicted':>11}{'bound':>11}  algorithm",
        f"#{'(B)':>12}{'(elements)':>12}{'':22}"
        + f"{'(us)':>11}{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}" * 2
        + f"{'(us)':>11}" * 2,
    )
)


@click.command("bench")
@click.argument("path")
@click.option(
    "--backend",
    metavar="NAME",
    help="; ".join(f"{row.name}: {row.summary}" for row in BACKENDS.values())
    + ". Default: gpu where there is one, else host.",
)
@click.option(
    "-b", "--minbytes", metavar="SIZE", help="Smallest message. Default: 1M, or what a single file serves next to it."
)
@click.option("-e", "--maxbytes", metavar="SIZE", help="Largest message. Default: the smallest.")
@click.option("-f", "--stepfactor", type=float, default=2.0, metavar="X", help="Each size X times the last.")
@click.option("-i", "--stepbytes", metavar="SIZE", help="Each size so much more than the last.")
@click.option("-d", "--datatype", default="float", metavar="TYPE", help="float, half, bfloat16, double, int32, int64.")
@click.option("-o", "--op", default="sum", metavar="OP", help="sum, prod, max, min or avg.")
@click.option("-n", "--iters", type=click.IntRange(1), default=5, metavar="N", help="Runs that count. Default: 5.")
@click.option("-w", "--warmup-iters", type=click.IntRange(0), default=1, metavar="N", help="Runs before. Default: 1.")
@click.option("--devices", metavar="LIST", help="Several GPUs, as 0,1: each stands for its share of the ranks.")
@click.option(
    "--emulate", metavar="T", help="One GPU emulates this network: machine, machine:N, family (torus:4x4) or FILE.toml."
)
@click.option(
    "--slower",
    type=float,
    default=1.0,
    metavar="X",
    help="With --emulate: on a network X times slower, which the GPU can follow; times are given as if X were 1.",
)
@click.option("--topo", metavar="T", help="For the predicted time and the bound. Default: what the file was made for.")
@costs_option
@click.option("--collective", metavar="NAME", help="Of a library: which collective. Default: the only one.")
@click.option("--group", metavar="RANKS", help="Of a library: which group. Default: the only one.")
@click.option("--target", metavar="NAME", help="Of a library: for which executor. Default: the first that has files.")
@click.option("--trace", metavar="OUT.json", help="Write the last run, measured and predicted, for Perfetto.")
@json_option
def bench(
    path: str,
    backend: str | None,
    minbytes: str | None,
    maxbytes: str | None,
    stepfactor: float,
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
    as_json: bool,
) -> None:
    """Run an MSCCL XML, a plan (JSON), a stored schedule, or a library's file for each size, and measure it.

    The table is that of nccl-tests.

    Exit code 0: every element right; 1: some wrong; 2: it cannot be run.

    \b
    synth bench out/msccl/FILE.xml -b 1M -n 20
    """
    choose, usual = chooser(Path(path), collective, group, target)
    low = usual if minbytes is None else parse_size(minbytes, "--minbytes")
    high = parse_size(maxbytes, "--maxbytes") if maxbytes else low
    step = parse_size(stepbytes, "--stepbytes") if stepbytes else 0
    if high < low:
        raise InputError(f"-e {maxbytes}: is less than -b; it must be {minbytes or low} or more")
    sizes = list(message_sizes(low, high, stepfactor, step))
    parse_type(datatype), reducer(op, "float"), read_costs(costs)  # refused before the head of the table
    given = {"--devices": devices, "--emulate": emulate, "--slower": slower if slower != 1 else None}
    given["--trace"] = trace
    used = choose_backend(backend, [name for name, value in given.items() if value is not None])
    if slower != 1 and emulate is None:
        raise InputError("--slower: is for a network that is emulated; it must be with --emulate")
    network = None if emulate is None else load(emulate)
    about = network if topo is None or network is not None else load(topo)
    chosen = [(size, found) for size in sizes if (found := choose(size)) is not None]
    if not chosen:
        raise InputError(f"{path}: no algorithm serves any of the sizes")
    if trace is not None:
        if len(chosen) != 1:
            raise InputError(f"--trace: {len(chosen)} sizes; it must be of one, as with -b 1M")
        check_replaceable(trace)
    settings = Settings(datatype, op, iters, warmup_iters)
    request = Request(Path(path), chosen[0][1].program.nranks, settings, devices, network, slower, trace is not None)
    run = _Run(used.name, request, about, as_json, trace, costs)
    with used.open(request) as (measure, run.prints):
        run.measure_rows(chosen, measure)
    if run.prints:
        for size in sorted(set(sizes) - {size for size, _ in chosen}):
            click.echo(f"# no algorithm of {path} serves {size} bytes", err=True)
        run.end()
    if run.wrong:
        raise SystemExit(1)


class _Run:
    """The rows of one command, printed as they come."""

    def __init__(
        self, backend: str, request: Request, about: Topology | None, as_json: bool, trace: str | None, costs: str
    ) -> None:
        """about: the network that times are predicted on; None: what each file was made for. trace: the file for it."""
        self._costs = costs
        self._backend, self._request, self._about, self._json, self._trace = backend, request, about, as_json, trace
        self.prints = True
        self.wrong = 0
        self._behind = 1.0
        self._rows: list[dict[str, Any]] = []

    def measure_rows(self, chosen: Sequence[tuple[int, Chosen]], measure: Measure) -> None:
        """Measure each file at its size."""
        known: dict[str, Known] = {}
        network = self._request.network
        for size, of in chosen:
            row = measure(of, size)
            if of.inside is not None:
                row = replace(row, in_place=measure(of.inside, size).in_place)
            self.wrong += row.wrong
            if not self.prints:
                continue
            if of.name not in known:
                on = self._about or of.made_for()
                on = on if on is None else put_costs(on, self._costs)
                known[of.name] = Known(of, on, self._about is not None)
            figures = known[of.name].predicted_us(row.size_bytes), known[of.name].bound_us(row.size_bytes)
            shown = as_object(row, of.name, self._backend, *figures)
            self._rows.append(shown)
            if self._trace is not None and row.recorded is not None:
                predictor = known[of.name].predictor
                write_text(self._trace, measured_trace(of.program, row.recorded, predictor, row.size_bytes))
                shown["trace"] = self._trace
            if row.emulated is not None and network is not None:
                due_us = row.emulated.due_us
                shown |= {"network": network.name, "slower": self._request.slower, "due_us": due_us}
                self._behind = max(self._behind, row.emulated.measured_us / max(due_us, 1e-9))
            if not self._json:
                click.echo((HEAD + "\n" if len(self._rows) == 1 else "") + format_row(shown))

    def end(self) -> None:
        """The last lines."""
        network = self._request.network
        right = "every element right" if not self.wrong else f"{self.wrong} elements wrong"
        if self._json:
            print_json({"rows": self._rows, "wrong": self.wrong})
        else:
            on = "" if network is None else f", {network.name}'s time"
            click.echo(f"# {self._backend}{on}: {right}")
            if self._trace is not None:
                click.echo(f"# trace → {self._trace}")
        if self._behind > _BEHIND and network is not None:
            click.echo(
                f"# the GPU came up to {self._behind - 1:.0%} behind {network.name}'s own time: give a larger --slower",
                err=True,
            )


def as_object(row: Row, name: str, backend: str, predicted: float | None, bound: float | None) -> dict[str, Any]:
    """A row as an object of JSON; `predicted`, `bound`: µs, None where not known."""

    def side(timing: Timing | None) -> dict[str, Any] | None:
        if timing is None:
            return None
        rates = {"algbw_gbs": row.algbw(timing), "busbw_gbs": row.busbw(timing)}
        return {"time_us": timing.time_us, **rates, "wrong": timing.wrong}

    return {
        "algorithm": name,
        "backend": backend,
        "size_bytes": row.size_bytes,
        "count": row.count,
        "type": row.kind,
        "redop": row.op if row.reduces else "none",
        "root": row.root,
        "out_of_place": side(row.out_of_place),
        "in_place": side(row.in_place),
        "predicted_us": predicted,
        "bound_us": bound,
    }


def format_row(row: dict[str, Any]) -> str:
    """That object as a row of the table."""

    def side(timing: dict[str, Any] | None) -> str:
        if timing is None:
            return f"{'N/A':>11}{'N/A':>8}{'N/A':>8}{'N/A':>8}"
        return "{time_us:>11.1f}{algbw_gbs:>8.2f}{busbw_gbs:>8.2f}{wrong:>8}".format_map(timing)

    last = "".join(f"{us:>11.1f}" if us is not None else f"{'–':>11}" for us in (row["predicted_us"], row["bound_us"]))
    asked = " {size_bytes:>12}{count:>12}{type:>10}{redop:>7}{root:>5}".format_map(row)
    return f"{asked}{side(row['out_of_place'])}{side(row['in_place'])}{last}  {row['algorithm']}"


class Known:
    """Predicted time and bound of a chosen file on a network; InputError where the user `asked` for one that cannot."""

    def __init__(self, chosen: Chosen, topology: Topology | None, asked: bool = False) -> None:
        self._predictor: Timed | None = None
        self._bound: Bound | None = None
        if topology is None:
            return
        with suppress(*(() if asked else (InputError,))):
            form, place = format_of(chosen.file), chosen.communicator(topology)
            self._predictor = form.predictor(chosen.file, chosen.program, topology, place)
        with suppress(InputError):
            self._bound = _bound(chosen, topology)

    @property
    def predictor(self) -> Predictor | None:
        """What draws the program's predicted run, None where that is not known."""
        return self._predictor if isinstance(self._predictor, Predictor) else None

    def predicted_us(self, size_bytes: int) -> float | None:
        """The program's time there, None where not known."""
        with suppress(InputError):
            return None if self._predictor is None else self._predictor.time_us(size_bytes)
        return None

    def bound_us(self, size_bytes: int) -> float | None:
        """What no algorithm can beat there, None where not known."""
        if self._bound is None or not self._bound.witnesses:
            return None
        found, _ = self._bound.at(size_bytes)
        return found if found > 0 else None


def _bound(chosen: Chosen, topology: Topology) -> Bound | None:
    """Of what the file answers, where its name says what that is."""
    program, entry = chosen.program, chosen.entry
    if isinstance(chosen, Stored):
        return prove(chosen.problem) if topology.name == chosen.problem.topology.name else None
    if entry is not None and entry.topology == topology.name:
        problem = named_problem(topology, entry.collective, entry.group, entry.root, entry.relays)
    else:
        problem = named_problem(topology, program.collective, tuple(range(program.nranks)), program.root)
    return None if problem is None else prove(problem)
