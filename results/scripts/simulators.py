"""Compare our times with two other simulators: ASTRA-sim on our Chakra traces, and LogGOPSim on our GOAL files.

    python -m results.scripts.simulators [--astra BINARY] [--golden PREFIX] [--loggopsim FOLDER] [--every N]
                                         [--only TOPOLOGY …]

makes simulators.md. BINARY is ASTRA-sim's analytical, congestion-aware backend. PREFIX is the prefix of its example's
custom collective (…/custom_allreduce; PREFIX.xml must exist too). FOLDER has LogGOPSim and txt2bin. The script builds
nothing. A simulator that is not given is not run, and the table says so; without any simulator the table stays. A
difference of more than 2 % is explained by the rules of the simulator that cause it: `tests/oracles` has a model of
each simulator, which must agree with its runs, and in which each rule can be replaced by ours.
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
NO_FIFO = 1 << 20  # FIFO slots; simulators have no limit.
ASTRA_NAMES = {"ring": "Ring", "star": "Switch", "full": "FullyConnected"}
GIB = 1 << 30  # Bytes of ASTRA-sim's GB.
LIMIT_S = 120


@dataclass(frozen=True)
class Case:
    """A program on a topology for one message size.

    Attributes:
        spec: Name of the topology.
        name: Name of the collective, or "point to point".
        topology: The topology.
        program: The program.
        size: Message size in bytes.
        schedule_us: Time of the schedule in µs; None without a schedule.
    """

    spec: str
    name: str
    topology: Topology
    program: Program
    size: int
    schedule_us: float | None

    @cached_property
    def operations(self) -> Operations:
        """Return the operations of the program."""
        return operations_of(self.program, self.size)

    @cached_property
    def ours_us(self) -> float:
        """Return our time of the program in µs, without FIFO slots, which no simulator has."""
        return Predictor(self.program, self.topology, fifo_depth=NO_FIFO).time_us(self.size)


def one_message(n: int) -> Program:
    """Return a program in which rank 0 sends all its data to rank 1."""
    send, receive = Step("s", "i", 0, "o", 0, 1), Step("r", "i", 0, "o", 0, 1)
    gpus = [Gpu(1, 1, 0, ()) for _ in range(n)]
    gpus[0] = replace(gpus[0], threadblocks=[ThreadBlock(1, -1, 0, [send])])
    gpus[1] = replace(gpus[1], threadblocks=[ThreadBlock(-1, 0, 0, [receive])])
    return Program("one", "custom", "Simple", n, 1, False, True, gpus)


def case(spec: str, name: str, size: int) -> Case:
    """Return the case of a topology, a collective and a size in bytes."""
    topology = load(spec)
    if name == "point to point":
        return Case(spec, name, topology, one_message(topology.nranks), size, None)
    algorithm = (
        synthesize(name, topology, size=size, budget=BUDGET_S, engine=ENGINE, target="none").result.ranges[-1].algorithm
    )
    program = lower_any(algorithm, "x")[0]
    whole = whole_size(program, size)
    return Case(
        spec,
        name,
        topology,
        program,
        whole,
        time_us(algorithm.problem, timed(algorithm.problem, algorithm.schedule, whole)),
    )


def paths(topology: Topology) -> Callable[[int, int], tuple[int, ...]]:
    """Return a function from two ranks to the links of their path, over at most one switch."""
    links = {(s, d): at for at, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}

    @cache
    def path(source: int, target: int) -> tuple[int, ...]:
        """Return the links from a rank to another."""
        if (source, target) in links:
            return (links[source, target],)
        middle = next(v for v in range(topology.nranks, topology.nvertices) if {(source, v), (v, target)} <= set(links))
        return links[source, middle], links[middle, target]

    return path


def queued_us(of: Case, rules: link_queues.Rules) -> float:
    """Return the time in µs by our model of ASTRA-sim."""
    alpha = dict(enumerate((of.topology.alpha_us * 1e3).tolist()))
    rate = dict(enumerate(of.topology.bandwidth_gbs.tolist()))
    return link_queues.time_ns(of.operations, paths(of.topology), alpha, rate, rules) / 1e3


def logged_us(of: Case, rules: loggops.Rules) -> float:
    """Return the time in µs by our model of LogGOPSim."""
    latency, gap = _loggp(of)
    return loggops.time_units(of.operations, latency, gap, rules) / 1e6


def _loggp(of: Case) -> tuple[int, int]:
    """Return L in ps (the latency of a rank's path to the next) and G in ps a byte (the inverse rate of its link)."""
    path = paths(of.topology)(0, 1)
    return round(sum(of.topology.alpha_us[list(path)]) * 1e6), round(1e3 / min(of.topology.bandwidth_gbs[list(path)]))


def astra_us(binary: Path, of: Case, files: Sequence[bytes] | None = None) -> float:
    """Run a case in ASTRA-sim, as an implementation of all-reduce; return the end of the last rank in µs.

    Args:
        binary: ASTRA-sim's analytical backend.
        of: The case.
        files: Trace of each rank; None for the case's own traces.
    """
    if files is None:
        files = [content for _, content in chakra_files(of.operations, "allreduce")]
    kind, count = of.spec.split(":")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for rank, content in enumerate(files):
            (work / f"trace.{rank}.et").write_bytes(content)
            attributes = (("is_cpu_op", 27, 0), ("comm_type", 9, 0), ("comm_size", 9, of.size))
            node = number(1, rank + 1) + number(3, 7)
            node += b"".join(block(10, block(1, name.encode()) + number(of_, value)) for name, of_, value in attributes)
            head = block(1, b"0.0.4")
            (work / f"work.{rank}.et").write_bytes(b"".join(varint(len(part)) + part for part in (head, node)))
        system = {
            "scheduling-policy": "FIFO", "preferred-dataset-splits": 1, "local-mem-bw": 1600,
            "active-chunks-per-dimension": 1, "all-reduce-implementation-custom": [str(work / "trace")],
        }  # fmt: skip
        (work / "system.json").write_text(json.dumps(system))
        (work / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
        rate, alpha = float(of.topology.bandwidth_gbs[0]) * 1e9 / GIB, float(of.topology.alpha_us[0]) * 1e3
        lines = (f"topology: [ {ASTRA_NAMES[kind]} ]", f"npus_count: [ {count} ]", f"bandwidth: [ {rate!r} ]",
                 f"latency: [ {alpha!r} ]")  # fmt: skip
        (work / "network.yml").write_text("\n".join(lines) + "\n")
        command = [str(binary.resolve()), f"--workload-configuration={work / 'work'}",
                   f"--system-configuration={work / 'system.json'}",
                   f"--remote-memory-configuration={work / 'memory.json'}",
                   f"--network-configuration={work / 'network.yml'}"]  # fmt: skip
        process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=folder, check=False)
    ends = re.findall(r"sys\[\d+\] finished, (\d+) cycles", process.stdout)
    if process.returncode or len(ends) != of.topology.nranks:
        raise SystemExit(f"{binary} failed on {of.spec} {of.name}: {(process.stderr or process.stdout)[-300:]}")
    return max(map(int, ends)) / 1e3


def loggopsim_us(folder: Path, of: Case) -> float:
    """Run a case in LogGOPSim; return the end of the last host in µs.

    All messages are eager, and o and g are 0; times are given in ps.
    """
    latency, gap = _loggp(of)
    with tempfile.TemporaryDirectory() as name:
        text, binary = Path(name) / "a.goal", Path(name) / "a.bin"
        text.write_bytes(goal_text(of.operations))
        subprocess.run([folder / "txt2bin", "-i", text, "-o", binary], check=True, capture_output=True, timeout=LIMIT_S)
        figures = {"-L": latency, "-o": 0, "-g": 0, "-G": gap, "-S": 2**31 - 1}
        command = [str(folder / "LogGOPSim"), "-f", str(binary),
                   *(word for name, value in figures.items() for word in (name, str(value)))]  # fmt: skip
        process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    ends = re.findall(r"Host \d+: (\d+)", process.stdout)
    if len(ends) != of.topology.nranks:
        raise SystemExit(
            f"LogGOPSim in {folder} failed on {of.spec} {of.name}: {(process.stderr or process.stdout)[-300:]}"
        )
    return max(map(int, ends)) / 1e6


ASTRA_RULES = {
    "a send ends as its message arrives": {"ends_at_arrival": False},
    "a switch stores before it forwards": {"stores": False},
}
LOGGOPS_RULES = {
    "a rank has one NIC": {"one_nic": False},
    "its CPU is busy while it receives": {"cpu": False},
    "a send ends immediately": {"ends_at_once": False},
    "sends follow the file's order": {"nearest": True},
}
UNEXPLAINED = "**not explained**"
ORDER = "the order of operations that are ready at the same time"


def explained(ours_us: float, theirs_us: float, rules: dict[str, dict[str, bool]], model: Callable[..., float]) -> str:
    """Return the fewest rules of the simulator that cause a difference; "" if the times agree.

    Args:
        ours_us: Our time in µs.
        theirs_us: The simulator's time in µs.
        rules: Arguments of the model that replace a rule of the simulator by ours, by name of the rule.
        model: Function that returns the time in µs by our model of the simulator, with these rules replaced.
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
    """The result of a case in one simulator.

    Attributes:
        of: The case.
        theirs_us: The simulator's time in µs; None if it did not run. Then `by_model_us` is compared.
        by_model_us: Time in µs by our model of the simulator.
        why: The rules that explain the difference; "" if the times agree.
    """

    of: Case
    theirs_us: float | None
    by_model_us: float
    why: str

    @property
    def difference(self) -> float:
        """Return the simulator's time over ours, less one."""
        return (self.by_model_us if self.theirs_us is None else self.theirs_us) / self.of.ours_us - 1

    @property
    def cells(self) -> tuple[object, ...]:
        """Return the cells of the table."""
        of = self.of
        times = (of.schedule_us, of.ours_us, self.theirs_us, self.by_model_us)
        time_cells = ["–" if time_of_row is None else f"{time_of_row:.2f}" for time_of_row in times]
        return of.spec, of.name, of.size, *time_cells, f"{self.difference:+.1%}", self.why


def astra_row(binary: Path | None, of: Case) -> Row:
    """Return the row of a case and ASTRA-sim, whose congestion-aware networks have one dimension."""

    def model(**changed: bool) -> float:
        """Return the time in µs by the model, with these rules replaced."""
        return queued_us(of, link_queues.Rules(**changed))

    runs = binary is not None and of.spec.split(":")[0] in ASTRA_NAMES
    theirs = astra_us(binary, of) if binary is not None and runs else None
    why = explained(of.ours_us, model() if theirs is None else theirs, ASTRA_RULES, model)
    return Row(of, theirs, model(), why)


def loggops_row(folder: Path | None, of: Case) -> Row:
    """Return the row of a case and LogGOPSim; at a switch a rank has one port in our model too."""

    def model(**changed: bool) -> float:
        """Return the time in µs by the model, with these rules replaced."""
        return logged_us(of, loggops.Rules(**changed))

    theirs = loggopsim_us(folder, of) if folder is not None else None
    rules = {name: rule for name, rule in LOGGOPS_RULES.items() if "one_nic" not in rule or not of.topology.switches}
    why = explained(of.ours_us, model() if theirs is None else theirs, rules, model)
    return Row(of, theirs, model(), why)


def golden(prefix: Path | None, binary: Path | None) -> str:
    """Describe the check of ASTRA-sim's own example, which is read as a program and written again."""
    if prefix is None:
        return "ASTRA-sim's example of a custom collective was not given (--golden)."
    verdict = verify(Path(f"{prefix}.0.et"))
    if verdict.program is None:
        return f"ASTRA-sim's example: **{verdict.lines[0]}**"
    program, size = verdict.program, 1 << 20
    theirs = [Path(f"{prefix}.{rank}.et").read_bytes() for rank in range(program.nranks)]
    ours = [content for _, content in write_trace(program, size, reduce_us=7)]
    same = sum(list(messages(a))[1:] == list(messages(b))[1:] for a, b in zip(theirs, ours, strict=True))
    as_xml = "the same as" if read_msccl(Path(f"{prefix}.xml")) == program else "**not** the same as"
    description = (
        f"ASTRA-sim's example, {program.collective} on {program.nranks} ranks: {verdict.status}. The program read back "
        f"from it is {as_xml} its MSCCL XML. Written again for 1 MiB with its 7 µs a sum, {same} of {len(theirs)} "
        "files have the same nodes, byte for byte."
    )
    if binary is None:
        return description
    of = Case("ring:8", "allreduce", load("ring:8,alpha=0.5"), program, size, None)
    times = [astra_us(binary, of, files) for files in (theirs, ours)]
    return f"{description} ASTRA-sim takes {times[0]:.2f} µs for its files and {times[1]:.2f} µs for ours (ring of 8)."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every case in both simulators, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--astra", type=Path, metavar="BINARY")
    parser.add_argument("--golden", type=Path, metavar="PREFIX")
    parser.add_argument("--loggopsim", type=Path, metavar="FOLDER")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th case only")
    parser.add_argument("--only", nargs="+", default=SPECS, metavar="TOPOLOGY")
    options = parser.parse_args(arguments)
    if options.astra is None and options.loggopsim is None:
        print("No simulator is given (--astra, --loggopsim), so the table stays as it is.")
        return
    parameters = list(product(options.only, COLLECTIVES, SIZES))[:: options.every]
    cases = [case(*parameters_of_case) for parameters_of_case in parameters]
    by_astra = [astra_row(options.astra, of) for of in cases]
    by_loggops = [loggops_row(options.loggopsim, of) for of in cases]
    write(__file__, text(by_astra, by_loggops, golden(options.golden, options.astra), options.every))


def text(by_astra: Sequence[Row], by_loggops: Sequence[Row], example: str, every: int) -> str:
    """Return the page."""
    titles = (
        "topology",
        "collective",
        "bytes",
        "schedule µs",
        "program µs",
        "simulator µs",
        "its model µs",
        "difference",
        "cause",
    )
    parts = [
        f"{len(by_astra)} cases (--every {every}): the schedule that engine `{ENGINE}` finds in {BUDGET_S:g} s for a"
        " topology, a collective and a size, its program, its trace, and the trace's time. *Schedule* and *program*"
        " are our times (the program's without FIFO slots, which no simulator has). *Its model* is our model of the"
        f" simulator in `tests/oracles`, written from its sources. A difference of more than {CLOSE:.0%} is explained"
        " by the fewest rules of the simulator that, replaced by ours in its model, bring its time within"
        f" {CLOSE:.0%} of ours. *{ORDER}* is a cause if the model and the run, which share everything else, differ by"
        " more.",
        "## ASTRA-sim, analytical, congestion-aware",
        summary(by_astra),
        example,
        "Its GB are 2³⁰ bytes, and our bandwidths are converted to them. Its times are whole ns; a message that holds"
        " a link for less than 1 ns stops it. Its congestion-aware networks have one dimension, so the times of tori"
        " are by its model only.",
        grid(titles, [row.cells for row in by_astra]),
        "## LogGOPSim",
        summary(by_loggops),
        "o, g and O are 0, all messages are eager, and G and L are those of a link and a path. It has no links: at a"
        " switch with one port a rank its model is ours except for the named rules; elsewhere its single NIC a rank"
        " is a different machine.",
        grid(titles, [row.cells for row in by_loggops]),
    ]
    return page(__file__, "Our times and other simulators", parts)


def summary(rows: Sequence[Row]) -> str:
    """Describe how many cases were run, agree, and are explained."""
    run_rows = [row for row in rows if row.theirs_us is not None]
    close = sum(abs(row.difference) <= CLOSE for row in run_rows)
    model = sum(abs(row.by_model_us / row.theirs_us - 1) <= CLOSE for row in run_rows if row.theirs_us)
    nunexplained = sum(row.why == UNEXPLAINED for row in rows)
    explanation = (
        "every other difference is explained"
        if not nunexplained
        else f"**{nunexplained} differences are not explained**"
    )
    if not run_rows:
        return f"Not run: the times are by its model; {explanation}."
    not_run = f", {len(rows) - len(run_rows)} by its model only" if len(run_rows) < len(rows) else ""
    return (
        f"{len(run_rows)} cases were run{not_run}. {close} of them are within {CLOSE:.0%} of ours; {explanation}. The"
        f" model is within {CLOSE:.0%} of the run in {model} of {len(run_rows)} cases."
    )


if __name__ == "__main__":
    main()
