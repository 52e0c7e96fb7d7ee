"""The command `convert`: anyone's MSCCL XML to an execution plan of MSCCL++, or to the XML of another executor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from emit.goal import Goal
from emit.library.index import goal_beside
from emit.msccl.write import NAMES, verify_file, write_msccl
from emit.mscclpp.read import read_plan
from emit.mscclpp.write import write_plan
from emit.program import Program
from synth.model.problem import parse_ranks
from synth.storage.columns import opened, replaced
from topologies.errors import InputError
from topologies.load import load
from topologies.text.fields import shown

_PLAN = "mscclpp"


@click.command("convert")
@click.argument("source")
@click.argument("out")
@click.option(
    "--target",
    type=click.Choice(["auto", "executor-nccl", "rccl", "msccl", _PLAN]),
    default="auto",
    help="Whose file. Default: mscclpp for OUT.json, else who has a name for the collective.",
)
@click.option("--protocol", type=click.Choice(["Simple", "LL", "LL128"]), help="Default: the file's.")
@click.option("--topo", metavar="T", help="Where it will run: a plan uses port channels between nodes.")
@click.option("--group", metavar="RANKS", help="The topology's rank of each of the file's. Default: 0, 1, …")
@click.option(
    "--nodes", metavar="N,N,…", help="The node of each rank, instead of --topo. Default: all in one."
)
@click.option(
    "--inplace/--outofplace",
    "inplace",
    default=None,
    help="Of the plan's calls. Default: as the file has it.",
)
def convert(
    source: str,
    out: str,
    target: str,
    protocol: str | None,
    topo: str | None,
    group: str | None,
    nodes: str | None,
    inplace: bool | None,
) -> None:
    """Convert an MSCCL XML, ours or another's, for another executor; it is checked before and after.

    \b
    synth convert a.xml b.json --nodes 0,0,1,1
    synth convert a.xml b.xml --target msccl
    """

    if target == "auto" and Path(out).suffix.lower() == ".json":
        target = _PLAN
    if target != _PLAN and (topo, group, nodes, inplace) != (None, None, None, None):
        raise InputError(
            "--topo, --group, --nodes, --inplace and --outofplace are about plans; give OUT.json"
        )
    opened(source, "an MSCCL XML file").close()
    if Path(out).exists() and Path(out).samefile(source):
        raise InputError(f"{out}: would be written over what it is made from; give another name")
    program, goal = _program(source)
    if protocol is not None:
        program = replace(program, protocol=protocol)
    if target == _PLAN:
        text, said = _plan(program, goal, _nodes(program.nranks, topo, group, nodes), inplace)
    else:
        text, said = _xml(program, goal, target, source)
    with replaced(out) as file:
        file.write(text.encode())
    click.echo(f"{out if out.isprintable() else ascii(out)}: {said}")


def _program(source: str) -> tuple[Program, Goal | None]:
    """What the file holds, if it is right, with the root for which it is."""

    goal = goal_beside(Path(source))
    verdict = verify_file(source, goal)
    if verdict.status in ("wrong", "deadlock") and verdict.findings:
        first, more = verdict.findings[0], len(verdict.findings) - 1
        also = f" (and {more} more: synth verify)" if more else ""
        raise InputError(f"{source}: {verdict.status}: {first.kind}: {first.message}{also}")
    if verdict.program is None or verdict.status != "right":
        raise InputError(f"not readable: {'; '.join(verdict.lines)}")
    return verdict.program, goal


def _nodes(nranks: int, topo: str | None, group: str | None, nodes: str | None) -> list[int] | None:
    """The node of each rank, from the option that says it."""

    if nodes is not None:
        if topo is not None or group is not None:
            raise InputError("--nodes: says what --topo and --group would; give one of them")
        numbers = nodes.split(",")
        if not all(n.isascii() and n.isdecimal() and len(n) < 7 for n in numbers) or len(numbers) != nranks:
            raise InputError(f"--nodes {shown(nodes)}: must be {nranks} numbers, one a rank, as in 0,0,1,1")
        return [int(n) for n in numbers]
    if topo is None:
        if group is not None:
            raise InputError("--group: says which ranks of --topo; give that too")
        return None

    topology = load(topo)
    ranks = tuple(parse_ranks(group, "--group", topology.nranks)) if group else tuple(range(topology.nranks))
    if len(ranks) < nranks or (group and len(ranks) != nranks):
        what = "--group" if group else f"--topo {topo}"
        raise InputError(f"{what}: has {len(ranks)} ranks, the file {nranks}")
    return [int(topology.nodes[rank]) for rank in ranks[:nranks]]


def _plan(
    program: Program, goal: Goal | None, nodes: list[int] | None, inplace: bool | None
) -> tuple[str, str]:

    text = write_plan(program, goal, nodes=nodes, inplace=inplace)
    plan = read_plan(text)
    blocks = max(len(gpu.blocks) for gpu in plan.gpus)
    scratch = max(gpu.scratch_chunks for gpu in plan.gpus)
    between = any(gpu.peers["port"] for gpu in plan.gpus)
    return text, (
        f"{program.collective} on {program.nranks} ranks {'in place' if plan.inplace else 'out of place'}, execution "
        f"plan of protocol {plan.protocol}, checked: {plan.nops} operations, at most {blocks} threadblocks and "
        f"{scratch} chunks of scratch a rank, {'memory and port' if between else 'memory'} channels"
    )


def _xml(program: Program, goal: Goal | None, target: str, source: str) -> tuple[str, str]:

    if target == "auto":
        able = [name for name, names in NAMES.items() if program.collective in names]
        target = able[0] if able else "executor-nccl"
    try:
        text = write_msccl(program, goal, target)
    except InputError as error:
        if "limit: " not in str(error):
            raise
        raise InputError(f"{error}; synth optimize {source} --target {target} compiles it anew") from None
    return text, (
        f"{program.collective} on {program.nranks} ranks for {target}, checked: {program.nsteps} steps of protocol "
        f"{program.protocol}"
    )
