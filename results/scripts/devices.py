"""What hangs where a file runs: planted in right programs, and how many threadblocks our files need on machines.

python -m results.scripts.devices
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory

from emit.findings import Findings
from emit.formats import FORMATS, write_program
from emit.library.save import save
from emit.library.write import standing
from emit.program import Program
from emit.targets import TARGETS, check_between_nodes, check_resident, on_devices
from results.measuring.measure import grid, page, write
from synth.synthesis import synthesize
from tests.emit.right_programs import right_programs
from topologies.errors import InputError
from topologies.load import load

MACHINES = ("dgx2", "dgx-a100:2", "ndv2:2", "mi250")
COLLECTIVES = ("alltoall", "allreduce")
EXECUTORS = ("executor-nccl", "mscclpp")
BUDGET_S = 2.0

Row = tuple[object, ...]


def resident(form: str, target: str) -> Row:
    """Of right programs: how many are found on one SM fewer than they need, and accused on as many."""
    tried = found = accused = 0
    for right in right_programs():
        try:
            text = write_program(right.program, right.goal, TARGETS[target])
        except InputError:  # this target cannot say it
            continue
        blocks = FORMATS[TARGETS[target].format].threadblocks(right.program, text)
        tried += max(blocks) > 1
        for sms in (max(blocks) - 1, max(blocks)):
            said = Findings()
            check_resident(blocks, sms, said)
            fits = sms == max(blocks)
            found += not fits and bool(said.reported)
            accused += fits and bool(said.reported)
    return f"one SM too few, {form}", tried, found, accused


def between_nodes() -> Row:
    """Of right broadcasts and reduces: found with Simple on two nodes; accused on one node, with LL, or otherwise."""
    tried = found = accused = 0
    for right in right_programs():
        n = right.program.nranks
        split = [2 * rank // n for rank in range(n)]
        faulty = right.program.collective in ("broadcast", "reduce")
        for protocol, nodes in (("Simple", split), ("Simple", [0] * n), ("LL", split)):
            wrong = faulty and protocol == "Simple" and nodes is split
            said = bool(_between(replace(right.program, protocol=protocol), nodes).reported)
            tried, found, accused = tried + wrong, found + (wrong and said), accused + (said and not wrong)
    return "broadcast and reduce with Simple between nodes, MSCCL XML", tried, found, accused


def _between(program: Program, nodes: list[int]) -> Findings:
    found = Findings()
    check_between_nodes(program, nodes, TARGETS["executor-nccl"], found)
    return found


def needed() -> Iterator[Row]:
    """A row a question: the SMs of a device, those that a rank may use, and the threadblocks that our files need."""
    for machine in MACHINES:
        sms = load(machine).sms
        for collective in COLLECTIVES:
            for name in EXECUTORS:
                with TemporaryDirectory() as folder:
                    save(synthesize(collective, machine, budget=BUDGET_S, target=name).found, folder, name)
                    blocks = [entry.values["threadblocks"] for entry in standing(folder)]
                may = on_devices(TARGETS[name], sms).limits.sms
                yield (
                    machine,
                    collective,
                    name,
                    sms,
                    may,
                    ", ".join(map(str, blocks)) or "no file",
                    max(blocks, default=0) <= may,
                )


def main() -> None:
    planted = [resident("MSCCL XML", "executor-nccl"), resident("execution plan", "mscclpp"), between_nodes()]
    rows = list(needed())
    text = page(
        __file__,
        "What hangs where a file runs",
        [
            "All threadblocks of a rank must be resident at once, and the executors of MSCCL XML count the steps of "
            "broadcast and reduce in two ways with Simple over a network: `synth verify --topo` finds both. *Planted* "
            "in right programs; *accused*: what is right, and was said to hang.",
            grid(("fault", "planted", "found", "accused"), planted),
            f"## Threadblocks of a rank\nOf each file of an answer, with a budget of {BUDGET_S:g} s.",
            grid(("machine", "collective", "target", "SMs", "may use", "threadblocks", "fits"), rows),
        ],
    )
    write(__file__, text)
    if any(row[1] != row[2] or row[3] for row in planted) or not all(row[-1] for row in rows):
        raise SystemExit("a planted fault was not found, what is right was accused, or a file does not fit")


if __name__ == "__main__":
    main()
