"""The command `torch-setup`: from nothing to a tuned back end of torch.distributed on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from runtime.backends import BACKENDS
from runtime.measure.tune import parse_collectives, parse_sizes
from runtime.torch.launch import is_rank_of_job, python_options
from runtime.torch.table import PLANNED, SPLIT_ALLTOALL
from synth.app.present.layout import say_fitted
from synth.model.numbers import parse_seconds
from synth.model.text import format_short_size
from topologies.errors import InputError
from topologies.load import load

_TOPOLOGY, _LIBRARY, _TABLE = "here.toml", "library", "table.json"  # in the folder that the command writes


@click.command("torch-setup")
@click.option("--ranks", type=click.IntRange(2, 1024), required=True, metavar="N", help="Processes of a job here.")
@click.option("--topo", metavar="TOPOLOGY", help="How the ranks are wired. Default: every pair a link.")
@click.option(
    "--ops",
    default="allreduce,allgather,reducescatter",
    metavar="NAMES",
    help="Collectives, separated by commas, or all. Default: allreduce,allgather,reducescatter.",
)
@click.option("--sizes", default="1K:16M", metavar="FROM:TO", help="Message sizes, as in tune. Default: 1K:16M.")
@click.option("--budget", default="10s", metavar="TIME", help="Time of the search for each collective. Default: 10s.")
@click.option("-o", "--out", default="tuned", metavar="DIR", help="Write to this folder. Default: tuned.")
def torch_setup(ranks: int, topo: str | None, ops: str, sizes: str, budget: str, out: str) -> None:
    """Measure this machine, search algorithms for it, and tune which of them torch's calls use.

    It runs calibrate (with --accept-noise), a search for each collective, and tune. Then it says what was gained and
    which variables let a job use it. A folder that exists is continued: a topology that is there is not measured
    again.

    \b
    synth torch-setup --ranks 2 --ops allreduce
    synth torch-setup --ranks 4 -o tuned
    """
    if is_rank_of_job():
        raise InputError("torch-setup: starts its own processes; outside of torchrun, or run calibrate and tune in it")
    names = parse_collectives(ops)
    parse_sizes(sizes)
    parse_seconds(budget, "--budget")
    if topo is not None and (count := load(topo).nranks) != ranks:
        raise InputError(f"--ranks {ranks}: {topo} has {count} ranks; it must be as many")
    BACKENDS["torch"].require()
    folder = Path(out).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"-o {out}: cannot be made ({error.strerror or error}); name a folder you may write") from None
    topology, library, table = (str(folder / name) for name in (_TOPOLOGY, _LIBRARY, _TABLE))
    if Path(topology).exists():
        if (count := load(topology).nranks) != ranks:
            raise InputError(f"{topology}: has {count} ranks, not {ranks}; remove it, or name another folder with -o")
        say_fitted(f"{topology}: is there already, so nothing is measured again; remove it to measure anew")
    else:
        wiring = ["--topo", topo] if topo is not None else []
        _step("measuring this machine", ["calibrate", "--ranks", str(ranks), *wiring, "--accept-noise", "-o", topology])
    for name in names:
        if name == SPLIT_ALLTOALL:  # No file can be made for sizes that are not known yet.
            continue
        # A search that ends without a file leaves the collective to the built-in algorithms.
        _step(f"searching {name}", [name, "--topo", topology, "--budget", budget, "--out", library], allowed=(0, 1))
    library_option = ["--library", library] if Path(library).is_dir() else []
    plans = {"SYNTH_TOPOLOGY": topology} if SPLIT_ALLTOALL in names else {}
    words = ["tune", "--ranks", str(ranks), "--ops", ops, "--sizes", sizes, *library_option, "-o", table]
    _step("comparing", words, variables=plans)
    rows = json.loads(Path(table).read_text(encoding="utf-8"))["rows"]
    say_fitted(*_gains(rows, names))
    variables = [f"SYNTH_LIBRARY={library}"] if library_option else []
    if any(row["algorithm"] == PLANNED for row in rows):
        variables.append(f"SYNTH_TOPOLOGY={topology}")
    click.echo(f"\nexport {' '.join([*variables, f'SYNTH_TABLE={table}'])}")
    say_fitted('import synth.torch; init_process_group("cpu:synth") then follows it')


def _step(
    text: str, arguments: Sequence[str], allowed: Sequence[int] = (0,), variables: Mapping[str, str] | None = None
) -> None:
    """Run a command of synth in a process of its own, whose progress is shown and whose output is not.

    Args:
        text: What happens, for the user.
        arguments: Arguments of `synth`.
        allowed: Exit codes that are no failure.
        variables: Further variables of the process's environment.

    Raises:
        InputError: It failed; the message is the last line of its errors.
    """
    say_fitted(f"{text} ...")
    completed = subprocess.run(
        [sys.executable, *python_options(), "-m", "synth", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, **(variables or {})},
    )
    if completed.returncode not in allowed:
        lines = completed.stderr.strip().splitlines()
        reason = lines[-1].removeprefix("synth: ") if lines else f"exit code {completed.returncode}"
        raise InputError(f"synth {' '.join(arguments)}: {reason}"[:400])


def _gains(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Return a line for each range of sizes in which another method than Gloo was surely faster, by collective.

    Args:
        rows: Rows of the table of `tune`.
        names: The collectives that were measured, each of which has a line.
    """
    lines = [""]
    for name in names:
        gained = [row for row in rows if row["collective"] == name and "gain" in row]
        for row in gained:
            low, high = format_short_size(row["min_bytes"]), format_short_size(row["max_bytes"])
            gain, sizes = row["gain"], low if low == high else f"{low} to {high}"
            rate = f"{gain['median']:.2f} × as fast as Gloo, surely {gain['at_least']:.2f} ×"
            lines.append(f"{name} {sizes}: {rate}: {row['algorithm'] or row['backend']}")
        if not gained:
            lines.append(f"{name}: Gloo is fastest at every size")
    return lines
