"""Our times beside those of two simulators of others: ASTRA-sim on Chakra traces, LogGOPSim on GOAL, both ours.

    python -m results.scripts.simulators [--astra BINARY] [--golden PREFIX] [--loggopsim FOLDER] [--every N]
                                         [--only TOPOLOGY …]

makes simulators.md. BINARY is ASTRA-sim's analytical backend, congestion-aware; PREFIX its example's custom collective
(…/custom_allreduce, beside which PREFIX.xml stands); FOLDER holds LogGOPSim and txt2bin. Nothing is built here, and
what is not given is not run, which the table says; without any simulator the table stays. A difference of more than
2 % is explained by the rules of the simulator that bring it about: `tests/oracles` has each simulator's model, which
must agree with what was run, and by which each rule is replaced by ours in turn.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations, product
from pathlib import Path

from emit.chakra.format import encode as chakra_files
from emit.chakra.format import verify
from emit.chakra.format import write as write_trace
from emit.chakra.wire import block, messages, number, varint
from emit.compiler.unlimited import lower_any
from emit.loggopsim.format import encode as goal_text
from emit.msccl.read import read_msccl
from emit.operations import Operations, operations_of, whole_size
from emit.program import Gpu, Program, Step, ThreadBlock
from emit.timing.predict import Predictor
from results.measuring.measure import grid, page, write
from synth import synthesize
from synth.timing.simulate import time_us, timed
from tests.oracles import link_queues, loggops
from topologies.load import load
from topologies.topology import Topology

SPECS = ("ring:4", "ring:8", "star:4", "star:8", "full:4", "full:8", "torus:3x3", "torus:4x4")
COLLECTIVES = ("point to point", "broadcast", "allgather", "reducescatter", "allreduce", "alltoall")
SIZES = (1 << 14, 1 << 20, 1 << 26)
CLOSE = 0.02
BUDGET_S, ENGINE = 1.0, "flow"
NO_FIFO = 1 << 20  # slots: simulators have none
ASTRA_NAMES = {"ring": "Ring", "star": "Switch", "full": "FullyConnected"}
GIB = 1 << 30  # ASTRA-sim's GB
LIMIT_S = 120


@dataclass(frozen=True)
class Case:
    """What is run: a program on a topology for messages of so many bytes. schedule_us: None of what has no schedule."""

    spec: str
    name: str
    topology: Topology
    program: Program
    size: int
    schedule_us: float | None

    @cached_property
    def operations(self) -> Operations:
        return operations_of(self.program, self.size)

    @cached_property
    def ours_us(self) -> float:
        """Without FIFO slots, which no simulator has."""
        return Predictor(self.program, self.topology, fifo_depth=NO_FIFO).time_us(self.size)


def one_message(n: int) -> Program:
    """Rank 0 sends all that it has to rank 1."""
    send, receive = Step("s", "i", 0, "o", 0, 1), Step("r", "i", 0, "o", 0, 1)
    gpus = [Gpu(1, 1, 0, ()) for _ in range(n)]
    gpus[0] = replace(gpus[0], threadblocks=[ThreadBlock(1, -1, 0, [send])])
    gpus[1] = replace(gpus[1], threadblocks=[ThreadBlock(-1, 0, 0, [receive])])
    return Program("one", "custom", "Simple", n, 1, False, True, gpus)


def case(spec: str, name: str, size: int) -> Case:
    topology = load(spec)
    if name == "point to point":
        return Case(spec, name, topology, one_message(topology.nranks), size, None)
    found = (
        synthesize(name, topology, size=size, budget=BUDGET_S, engine=ENGINE, target="none").found.ranges[-1].algorithm
    )
    program = lower_any(found, "x")[0]
    whole = whole_size(program, size)
    return Case(
        spec, name, topology, program, whole, time_us(found.problem, timed(found.problem, found.schedule, whole))
    )


def paths(topology: Topology) -> Callable[[int, int], tuple[int, ...]]:
    """The links from one rank to another, over at most one switch."""
    links = {(s, d): at for at, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}

    @cache
    def path(source: int, target: int) -> tuple[int, ...]:
        if (source, target) in links:
            return (links[source, target],)
        middle = next(v for v in range(topology.nranks, topology.nvertices) if {(source, v), (v, target)} <= set(links))
        return links[source, middle], links[middle, target]

    return path


def queued_us(of: Case, rules: link_queues.Rules) -> float:
    """By our model of ASTRA-sim."""
    alpha = dict(enumerate((of.topology.alpha_us * 1e3).tolist()))
    rate = dict(enumerate(of.topology.bandwidth_gbs.tolist()))
    return link_queues.time_ns(of.operations, paths(of.topology), alpha, rate, rules) / 1e3


def logged_us(of: Case, rules: loggops.Rules) -> float:
    """By our model of LogGOPSim."""
    latency, gap = _loggp(of)
    return loggops.time_units(of.operations, latency, gap, rules) / 1e6


def _loggp(of: Case) -> tuple[int, int]:
    """L and G in ps and ps a byte: a rank's way to the next, and its link's time a byte."""
    way = paths(of.topology)(0, 1)
    return round(sum(of.topology.alpha_us[list(way)]) * 1e6), round(1e3 / min(of.topology.bandwidth_gbs[list(way)]))


def astra_us(binary: Path, of: Case, files: Sequence[bytes] | None = None) -> float:
    """The last rank's end by ASTRA-sim, which runs the trace as an implementation of all-reduce.

    files: of each rank; None: the case's.
    """
    if files is None:
        files = [content for _, content in chakra_files(of.operations, "allreduce")]
    kind, count = of.spec.split(":")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        for rank, content in enumerate(files):
            (here / f"trace.{rank}.et").write_bytes(content)
            attributes = (("is_cpu_op", 27, 0), ("comm_type", 9, 0), ("comm_size", 9, of.size))
            node = number(1, rank + 1) + number(3, 7)
            node += b"".join(block(10, block(1, name.encode()) + number(of_, value)) for name, of_, value in attributes)
            head = block(1, b"0.0.4")
            (here / f"work.{rank}.et").write_bytes(b"".join(varint(len(part)) + part for part in (head, node)))
        system = {
            "scheduling-policy": "FIFO", "preferred-dataset-splits": 1, "local-mem-bw": 1600,
            "active-chunks-per-dimension": 1, "all-reduce-implementation-custom": [str(here / "trace")],
        }  # fmt: skip
        (here / "system.json").write_text(json.dumps(system))
        (here / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
        rate, alpha = float(of.topology.bandwidth_gbs[0]) * 1e9 / GIB, float(of.topology.alpha_us[0]) * 1e3
        lines = (f"topology: [ {ASTRA_NAMES[kind]} ]", f"npus_count: [ {count} ]", f"bandwidth: [ {rate!r} ]",
                 f"latency: [ {alpha!r} ]")  # fmt: skip
        (here / "network.yml").write_text("\n".join(lines) + "\n")
        command = [str(binary.resolve()), f"--workload-configuration={here / 'work'}",
                   f"--system-configuration={here / 'system.json'}",
                   f"--remote-memory-configuration={here / 'memory.json'}",
                   f"--network-configuration={here / 'network.yml'}"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=folder, check=False)
    ends = re.findall(r"sys\[\d+\] finished, (\d+) cycles", done.stdout)
    if done.returncode or len(ends) != of.topology.nranks:
        raise SystemExit(f"{binary}: {of.spec} {of.name}: {(done.stderr or done.stdout)[-300:]}")
    return max(map(int, ends)) / 1e3


def loggopsim_us(folder: Path, of: Case) -> float:
    """The last host's end by LogGOPSim, eager messages of any size, o and g 0, in ps."""
    latency, gap = _loggp(of)
    with tempfile.TemporaryDirectory() as name:
        text, binary = Path(name) / "a.goal", Path(name) / "a.bin"
        text.write_bytes(goal_text(of.operations))
        subprocess.run([folder / "txt2bin", "-i", text, "-o", binary], check=True, capture_output=True, timeout=LIMIT_S)
        figures = {"-L": latency, "-o": 0, "-g": 0, "-G": gap, "-S": 2**31 - 1}
        command = [str(folder / "LogGOPSim"), "-f", str(binary),
                   *(word for name, value in figures.items() for word in (name, str(value)))]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    ends = re.findall(r"Host \d+: (\d+)", done.stdout)
    if len(ends) != of.topology.nranks:
        raise SystemExit(f"{folder}: {of.spec} {of.name}: {(done.stderr or done.stdout)[-300:]}")
    return max(map(int, ends)) / 1e6


ASTRA_RULES = {
    "a send ends as its message arrives": {"ends_at_arrival": False},
    "a switch stores before it forwards": {"stores": False},
}
LOGGOPS_RULES = {
    "a rank has one NIC": {"one_nic": False},
    "its CPU is busy while it receives": {"cpu": False},
    "a send ends at once": {"ends_at_once": False},
    "sends go in the file's order": {"nearest": True},
}
UNEXPLAINED = "**not explained**"
ORDER = "the order of what is ready at once"


def explained(ours_us: float, theirs_us: float, rules: dict[str, dict[str, bool]], model: Callable[..., float]) -> str:
    """Why theirs is not ours: the fewest rules of theirs that must become ours; "" where they agree.

    model: the time, in µs, by our model of the simulator with these rules replaced.
    """
    if abs(theirs_us / ours_us - 1) <= CLOSE:
        return ""
    order = f"; {ORDER}" if abs(model() / theirs_us - 1) > CLOSE else ""
    for count in range(len(rules) + 1):
        for names in combinations(rules, count):
            changed: dict[str, bool] = {}
            for name in names:
                changed |= rules[name]
            if abs(model(**changed) / ours_us - 1) <= CLOSE:
                return ("; ".join(names) + order).removeprefix("; ")
    return UNEXPLAINED


@dataclass(frozen=True)
class Row:
    """One case by one simulator; theirs_us: None where it was not run, then `by_model_us` is compared."""

    of: Case
    theirs_us: float | None
    by_model_us: float
    why: str

    @property
    def difference(self) -> float:
        return (self.by_model_us if self.theirs_us is None else self.theirs_us) / self.of.ours_us - 1

    @property
    def cells(self) -> tuple[object, ...]:
        of = self.of
        times = (of.schedule_us, of.ours_us, self.theirs_us, self.by_model_us)
        said = ["–" if one is None else f"{one:.2f}" for one in times]
        return of.spec, of.name, of.size, *said, f"{self.difference:+.1%}", self.why


def astra_row(binary: Path | None, of: Case) -> Row:
    """Beside ASTRA-sim, whose congestion-aware networks have one dimension."""

    def model(**changed: bool) -> float:
        return queued_us(of, link_queues.Rules(**changed))

    runs = binary is not None and of.spec.split(":")[0] in ASTRA_NAMES
    theirs = astra_us(binary, of) if binary is not None and runs else None
    why = explained(of.ours_us, model() if theirs is None else theirs, ASTRA_RULES, model)
    return Row(of, theirs, model(), why)


def loggops_row(folder: Path | None, of: Case) -> Row:
    """Beside LogGOPSim; at a switch a rank has one port in ours too."""

    def model(**changed: bool) -> float:
        return logged_us(of, loggops.Rules(**changed))

    theirs = loggopsim_us(folder, of) if folder is not None else None
    rules = {name: one for name, one in LOGGOPS_RULES.items() if "one_nic" not in one or not of.topology.switches}
    why = explained(of.ours_us, model() if theirs is None else theirs, rules, model)
    return Row(of, theirs, model(), why)


def golden(prefix: Path | None, binary: Path | None) -> str:
    """What becomes of ASTRA-sim's own example: read as a program, and written again."""
    if prefix is None:
        return "ASTRA-sim's example of a custom collective was not given."
    verdict = verify(Path(f"{prefix}.0.et"))
    if verdict.program is None:
        return f"ASTRA-sim's example: **{verdict.lines[0]}**"
    program, size = verdict.program, 1 << 20
    theirs = [Path(f"{prefix}.{rank}.et").read_bytes() for rank in range(program.nranks)]
    ours = [content for _, content in write_trace(program, size, reduce_us=7)]
    same = sum(list(messages(a))[1:] == list(messages(b))[1:] for a, b in zip(theirs, ours, strict=True))
    as_xml = "the same as" if read_msccl(Path(f"{prefix}.xml")) == program else "**not** the same as"
    said = (
        f"ASTRA-sim's example, {program.collective} on {program.nranks} ranks: {verdict.status}; the program read back "
        f"from it is {as_xml} its MSCCL XML; written again for 1 MiB with its 7 µs a sum, {same} of {len(theirs)} "
        "files have the same nodes, byte for byte."
    )
    if binary is None:
        return said
    of = Case("ring:8", "allreduce", load("ring:8,alpha=0.5"), program, size, None)
    times = [astra_us(binary, of, files) for files in (theirs, ours)]
    return f"{said} ASTRA-sim takes {times[0]:.2f} µs for its files and {times[1]:.2f} µs for ours (ring of 8)."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every case by both, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--astra", type=Path, metavar="BINARY")
    parser.add_argument("--golden", type=Path, metavar="PREFIX")
    parser.add_argument("--loggopsim", type=Path, metavar="FOLDER")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="One case in N.")
    parser.add_argument("--only", nargs="+", default=SPECS, metavar="TOPOLOGY")
    given = parser.parse_args(arguments)
    if given.astra is None and given.loggopsim is None:
        print("no BINARY and no FOLDER of a simulator: the table stays")
        return
    asked = list(product(given.only, COLLECTIVES, SIZES))[:: given.every]
    cases = [case(*one) for one in asked]
    by_astra = [astra_row(given.astra, of) for of in cases]
    by_loggops = [loggops_row(given.loggopsim, of) for of in cases]
    write(__file__, text(by_astra, by_loggops, golden(given.golden, given.astra), given.every))


def text(by_astra: Sequence[Row], by_loggops: Sequence[Row], example: str, every: int) -> str:
    """The page."""
    titles = ("topology", "what", "bytes", "schedule", "program", "simulator", "its model", "differs", "by")
    parts = [
        f"{len(by_astra)} cases (one in {every}): what the engine `{ENGINE}` finds in {BUDGET_S:g} s for a "
        "topology, a collective and a size, as a program, its trace, and the trace's time. All times in µs. "
        "*Schedule* and *program* are ours (the program's without FIFO slots, which no simulator has); *its "
        "model* is the simulator's, written anew from its sources in `tests/oracles`. A difference of more "
        f"than {CLOSE:.0%} is put down to the fewest of the simulator's rules that, replaced by ours in that "
        f"model, bring it within {CLOSE:.0%} of ours; *{ORDER}* where the model and what was run, which "
        "share all but that, are further apart.",
        "## ASTRA-sim, analytical, congestion-aware",
        summary(by_astra),
        example,
        "Its GB are 2³⁰ bytes: it was given our bandwidths in these. Its times are whole ns; a message that holds a "
        "link for less than one stops it. Its congestion-aware networks have one dimension: "
        "tori are by its model only.",
        grid(titles, [row.cells for row in by_astra]),
        "## LogGOPSim",
        summary(by_loggops),
        "With o, g and O 0, all messages eager, G and L those of a link and a path. It has no links: at a switch with "
        "one port a rank its model is ours but for the rules named; elsewhere its one NIC a rank is another machine.",
        grid(titles, [row.cells for row in by_loggops]),
    ]
    return page(__file__, "Beside simulators of others", parts)


def summary(rows: Sequence[Row]) -> str:
    """How many were run, agree and are explained."""
    run = [row for row in rows if row.theirs_us is not None]
    close = sum(abs(row.difference) <= CLOSE for row in run)
    model = sum(abs(row.by_model_us / row.theirs_us - 1) <= CLOSE for row in run if row.theirs_us)
    missing = sum(row.why == UNEXPLAINED for row in rows)
    told = "every other difference is explained" if not missing else f"**{missing} differences are not explained**"
    if not run:
        return f"Not run: the times are those of its model; {told}."
    rest = f", {len(rows) - len(run)} by its model only" if len(run) < len(rows) else ""
    return (
        f"{len(run)} cases run{rest}. {close} of them are within {CLOSE:.0%} of ours; {told}. The model is within "
        f"{CLOSE:.0%} of what was run in {model} of {len(run)}."
    )


if __name__ == "__main__":
    main()
