"""The command `calibrate`, which measures this machine and writes it as a topology with an executor's costs."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path

import click

from runtime.backends import BACKENDS, Backend, choose_backend
from runtime.bench import BenchRequest, Settings
from runtime.measure.calibrate import Calibration, measure_machine
from runtime.measure.calibrate import calibrate as calibrate_topology
from runtime.measure.fits import ACCEPT_NOISE, Measured, Meter, worst_within
from runtime.measure.probes import Probe
from runtime.torch.launch import ranks_of_job
from synth.app.cli.programs import write_text
from synth.app.present.layout import say_fitted, warn
from synth.storage.columns import check_replaceable
from topologies.errors import InputError
from topologies.load import load
from topologies.text.writer import to_toml
from topologies.topology import Topology

SHOWN_REMARKS = 10  # of a noisy measurement, on the terminal; the file holds all of them


@click.command("calibrate")
@click.option(
    "--backend",
    type=click.Choice(list(BACKENDS)),
    default="torch",
    help="What the messages go over: " + "; ".join(f"{row.name}: {row.summary}" for row in BACKENDS.values()),
)
@click.option("--topo", "spec", metavar="TOPOLOGY", help="How the ranks are wired. Default: every pair a link.")
@click.option(
    "--ranks",
    type=click.IntRange(2, 1024),
    metavar="N",
    help="So many ranks. Default: the topology's. torch: so many processes here; left out in a job by torchrun.",
)
@click.option("--devices", metavar="LIST", help="Several GPUs, as 0,1: each stands for its share of the ranks.")
@click.option("-o", "--out", default="measured.toml", metavar="FILE", help="Default: measured.toml.")
@click.option(
    ACCEPT_NOISE,
    "accept_noise",
    is_flag=True,
    help="Write the file also where times do not repeat, or where larger messages take no longer, as on a busy machine"
    " or a rate-limited link. The file then says which figures are affected and what was seen of them."
    " Without this option such a measurement is refused.",
)
def calibrate(
    backend: str, spec: str | None, ranks: int | None, devices: str | None, out: str, accept_noise: bool
) -> None:
    """Measure every link, and what calls, protocols and threadblocks cost; write the topology.

    Of every link α and bandwidth; by protocol and kind of link a call's start, the latency of a step, the gap between
    messages, the part of the link's bandwidth; and what one threadblock moves. --topo FILE --costs machine uses them.

    \b
    synth calibrate --backend host --ranks 2 -o here.toml
    synth calibrate --ranks 2 -o here.toml
    torchrun --nproc-per-node 8 -m synth calibrate --topo dgx1 -o here.toml
    """
    chosen_backend = choose_backend(backend, [] if devices is None else ["--devices"])
    for name in ("SYNTH_LIBRARY", "SYNTH_TABLE"):  # nothing is chosen here
        os.environ.pop(name, None)
    count = _count(chosen_backend, ranks, spec)
    topology = _wired(spec, count, out)
    with chosen_backend.open(BenchRequest(None, count, Settings(iterations=1), devices)) as (measure, prints):

        def timer(probe: Probe, size_bytes: int) -> float:
            """Return the time of a probe in µs; raise InputError if elements are wrong."""
            row = measure(probe, size_bytes)
            if row.wrong or row.out_of_place is None:
                raise InputError(f"--backend {backend}: {row.wrong} elements wrong where {probe.name} was run")
            return row.out_of_place.time_us

        def tell(what: str, count: int, total: int) -> None:
            """Show how many measurements of a kind are done."""
            if prints and sys.stderr.isatty():
                click.echo(f"\r{what}: {count} of {total}", nl=count == total, err=True)

        calibration = measure_machine(Meter(timer, count, accept_noise), topology, tell, chosen_backend.tells_protocols)
    if not prints:
        return
    measured = replace(
        calibrate_topology(topology, calibration, _source(topology, calibration, chosen_backend)),
        name=_name(Path(out).stem),  # its answers must not pass for those about the data sheet's machine
    )
    noise = calibration.noise
    remarks = [f"This measurement is noisy. {ACCEPT_NOISE} accepted what follows.", *noise] if noise else []
    write_text(out, to_toml(measured, remarks=remarks))
    _print(calibration)
    _warn(calibration, out)
    say_fitted(f"wrote {out}: equal links have their median; --topo {out} --costs machine counts what a call costs")


def _count(backend: Backend, ranks: int | None, spec: str | None) -> int:
    """Return the number of ranks to measure: that of `--ranks`, else of the job, else of the topology.

    Args:
        backend: The back end.
        ranks: The option `--ranks`, or None.
        spec: The option `--topo`, or None.

    Raises:
        InputError: Nothing states it, or the job has another number.
    """
    job = ranks_of_job() if backend.in_job else None
    if job is not None and ranks not in (None, job):
        raise InputError(f"--ranks {ranks}: this is a rank of a job of {job}; it must be left out")
    if ranks is None and job is None and spec is None:
        raise InputError("--ranks: is not given; it must be how many ranks there are, or use --topo or torchrun")
    return ranks or job or load(str(spec)).nranks


def _wired(spec: str | None, count: int, out: str) -> Topology:
    """Return the topology to measure, after a check of the file that is to be written.

    Args:
        spec: The option `--topo`; None for a link between each two ranks.
        count: Number of ranks.
        out: The file that is to be written.

    Raises:
        InputError: The file cannot be written or does not end in .toml, or the topology has another number of ranks.
    """
    if Path(out).suffix != ".toml":
        raise InputError(f"-o {out!r}: has another ending; it must be .toml, as topologies have")
    check_replaceable(out)
    topology = load(spec if spec is not None else f"full:{count}")
    if topology.nranks != count:
        raise InputError(f"{count} ranks: topology {topology.name} has {topology.nranks}; it must be as many")
    return topology


def _print(calibration: Calibration) -> None:
    """Print what was measured, each figure with its uncertainty: costs by protocol, links, and rates of limits."""
    heads = ("protocol", "links", "start (µs)", "latency (µs)", "gap (µs)", "a block (GB/s)", "link (GB/s)")
    click.echo(f"{heads[0]:<9}{heads[1]:<9}" + "".join(f"{head:>20}" for head in heads[2:]))
    for name, by_kind in calibration.costs.items():
        for kind, costs in by_kind.items():
            figures = (costs.start_us, costs.latency_us, costs.gap_us, costs.threadblock_gbs, costs.link_gbs)
            click.echo(f"{name:<9}{kind:<9}" + "".join(f"{_shown(figure):>20}" for figure in figures))
    click.echo(f"{'link':<18}{'α (µs)':>20}{'(GB/s)':>20}")
    for (a, b), link in calibration.links.items():
        alpha, gbs = Measured(link.alpha_us, link.alpha_spread), Measured(link.gbs, link.gbs_spread)
        click.echo(f"{f'{a}→{b}':<18}{_shown(alpha):>20}{_shown(gbs):>20}")
    for limit, rate in calibration.shared_gbs.items():
        click.echo(f"{limit:<18}{'–':>20}{f'{rate:.3g}':>20}")


def _warn(calibration: Calibration, out: str) -> None:
    """Print a warning on noisy figures, the first 10 of them; nothing if there are none.

    Args:
        calibration: What was measured.
        out: The written file, for the text.
    """
    if not calibration.noise:
        return
    summary, hidden = _noise_summary(calibration), len(calibration.noise) - SHOWN_REMARKS
    warn(f"warning: {summary}; searches with {out} may choose wrongly:")
    for remark in calibration.noise[:SHOWN_REMARKS]:
        warn(f"  {remark}")
    if hidden > 0:
        warn(f"  and {hidden} more, which stand at the head of {out}")


def _noise_summary(calibration: Calibration) -> str:
    """Return a clause with the number of noisy figures: `2 figures are noisy and accepted by --accept-noise`."""
    figures = "1 figure is" if len(calibration.noise) == 1 else f"{len(calibration.noise)} figures are"
    return f"{figures} noisy and accepted by {ACCEPT_NOISE}"


def _shown(figure: Measured) -> str:
    """Return a figure with its uncertainty as text, such as `1.23 ±4 %`; only the uncertainty if the figure is 0."""
    return f"{figure.value:.3g} ±{figure.within}" if figure.value else figure.within


def _source(topology: Topology, calibration: Calibration, backend: Backend) -> str:
    """Return a text on what was measured, on which machine, when and how precisely."""
    alpha = worst_within(Measured(link.alpha_us, link.alpha_spread) for link in calibration.links.values())
    gbs = worst_within(Measured(link.gbs, link.gbs_spread) for link in calibration.links.values())
    noise = f"; {_noise_summary(calibration)}, the first: {calibration.noise[0]}" if calibration.noise else ""
    return (
        f"{topology.name}, measured by synth calibrate --backend {backend.name} on {date.today().isoformat()},"
        f" {backend.machine()}; known within: α {alpha}, bandwidth {gbs}{noise}"
    )


def _name(stem: str) -> str:
    """Return a name for a measured topology: `stem`, or `stem`-measured if a topology of the name `stem` is known."""
    with suppress(InputError):
        load(stem)
        return f"{stem}-measured"
    return stem
