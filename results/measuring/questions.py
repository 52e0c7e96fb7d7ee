"""Questions whose answers must stay what they are, asked of two revisions and compared: tables, JSON, bytes of files.

All collectives, engines, targets, groups, faults, pinned shapes, patterns, folded and large problems, compiled
examples, and refusals.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from results.measuring.revisions import Ran, run_in

INPUTS = {
    "halo.toml": """\
name = "halo"
ranks = 4

[[chunk]]
from = [0]
to = "1-3"

[[chunk]]
from = [1]
to = [0, 2]
weight = 1
count = 2
""",
    "sizes.csv": " 0, 8K, 4K\n4K,  0, 4K\n4K, 4K,  0\n",
}
DGX1 = "--topo dgx1 --group 0-3"
PINNED = f"allgather {DGX1} --steps 2 --rounds 3 --chunks 4"
EXAMPLES = ("ring", "allpairs", "halving_doubling", "hierarchical", "allgather", "alltoall", "alltonext")
TARGETS = ("executor-nccl", "rccl", "msccl", "mscclpp")

# A name, and its commands, run one after another in a folder of their own. {root}: of the checkout. A word with a *
# stands for each file that fits, with a command each.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "readme": ("allreduce --topo dgx-a100 --group 0,2,4,6 --proof",),
    **{
        f"{name}-dgx1-03": (f"{name} {DGX1} --budget 20s --proof",)
        for name in (
            "allreduce", "reduce", "allgather", "gather", "reducescatter", "broadcast", "scatter", "alltoall"
        )
    },
    "sendrecv": (f"sendrecv {DGX1} --budget 10s",),
    "alltonext": ("alltonext --topo dgx1 --group 0-4 --budget 10s",),
    "allgather-dgx1": ("allgather --topo dgx1 --budget 20s",),
    "torch-spelling-json": (f"all_gather_into_tensor {DGX1} --json --budget 20s",),
    "relay": ("allgather --topo dgx1 --group 0,7 --relay 3 --budget 15s --proof",),
    "relay-all": ("allgather --topo dgx1 --group 1,7 --relay all --budget 15s",),
    "root": ("broadcast --topo dgx1 --group 2,3,0 --root 0 --budget 10s",),
    "size": (f"allreduce {DGX1} --size 1M --budget 10s",),
    "shape": (PINNED,),
    "shape-impossible": ("allgather --topo dgx1 --steps 2 --rounds 2 --chunks 6",),
    "shape-refuted": ("allgather --topo ring:4 --steps 1 --rounds 1 --chunks 1",),
    "route-allreduce": ("allreduce --topo torus:3x3 --engine route --budget 5s --seed 1",),
    "route-allgather": ("allgather --topo mesh:3x2 --engine route --size 4M --proof",),
    "flow-allgather": ("allgather --topo torus:4x4 --engine flow --size 64M --proof --chunks 4",),
    "flow-alltoall": ("alltoall --topo mesh:3x3 --engine flow --size 1M --chunks 2 --proof",),
    "flow-allreduce": ("allreduce --topo mesh:3x3 --engine flow --size 1M --chunks 2",),
    "flow-broadcast": ("broadcast --topo mesh:3x3 --engine flow --size 1M --chunks 9",),
    "flow-60-chunks": ("allgather --topo dgx1 --group 1,7 --relay all --engine flow --chunks 60",),
    "cpsat": ("allgather --topo ring:5 --engine cpsat --budget 20s",),
    "smt": ("allgather --topo ring:5 --engine smt --budget 20s",),
    "smt-shape": ("allreduce --topo ring:4 --engine smt --steps 4 --rounds 4 --chunks 2 --budget 20s",),
    "milp": ("allgather --topo ring:4 --engine milp --size 1M --chunks 2 --budget 20s",),
    "folded-alltoall": ("alltoall --topo torus:8x8 --chunks 1 --size 64M --proof",),
    "folded-allgather": ("allgather --topo torus:8x8x8 --chunks 1 --size 1G --proof",),
    "folded-large": ("alltoall --topo torus:8x8x8 --chunks 1 --size 1G --proof",),
    "large": ("alltoall --topo mesh:5x5x5 --chunks 1 --size 64M --budget 20s --proof",),
    "torus": ("allreduce --topo torus:4x4 --size 64M --budget 10s",),
    "hypercube": ("reducescatter --topo hypercube:3 --size 16M --budget 10s",),
    "fattree": ("allgather --topo fattree:4x4x2 --size 16M --budget 10s",),
    "dragonfly": ("alltoall --topo dragonfly:2x2x2 --size 16M --budget 10s",),
    "star": ("allreduce --topo star:4 --budget 10s",),
    "full": ("alltoall --topo full:5 --budget 10s",),
    "line": ("scatter --topo line:4 --root 1 --budget 10s",),
    "two-dgx-h100": ("allgather --topo dgx-h100:2 --size 16M --budget 10s",),
    "two-ndv2": ("allgather --topo ndv2:2 --size 1M --budget 10s",),
    "mi250": ("allgather --topo mi250 --size 16M --budget 10s",),
    "mi300x": ("reducescatter --topo mi300x --size 16M --budget 10s",),
    "without-link": ("allgather --topo dgx1 --without link:0-1 --size 1M --budget 8s",),
    "without-rank": (
        "allreduce --topo torus:4x4 --without rank:5 --degrade link:0-1=50% --size 1M --engine flow --budget 5s",
    ),
    "degrade": ("alltoall --topo mesh:3x3 --degrade rank:4=50% --size 1M --chunks 1 --engine flow",),
    "groups": (
        "alltoall --topo mesh:4x4 --groups '0-3;4-7;8-11;12-15' --relay all --size 16M --budget 4s --proof",
    ),
    "groups-fair": ("allgather --topo torus:4x4 --groups tp=4 --size 16M --budget 4s --objective fair",),
    "groups-mixed": (
        "allgather --topo mesh:4x4 --groups '0-7;alltoall:8-15' --group-sizes 16M,64M --budget 4s --json",
    ),
    **{
        f"target-{name}": (
            f"allreduce --topo ring:4 --target {name} --budget 10s",
            f"allgather --topo dgx1 --group 0,1,2 --target {name} --budget 10s --out second",
        )
        for name in TARGETS
    },
    "pattern": ("pattern halo.toml --topo mesh:2x2 --target msccl --budget 5s",),
    "alltoallv": ("alltoallv --topo dgx1 --group 0,1,2 --sizes sizes.csv --budget 5s",),
    **{
        f"compile-{name}": (
            f"compile {{root}}/examples/{name}.py -o {name}.xml --explain",
            f"verify {name}.xml",
            f"verify {name}.xml --json",
            f"convert {name}.xml {name}.json",
            f"verify {name}.json",
            f"optimize {name}.xml -o better.xml --topo dgx1",
        )
        for name in EXAMPLES
    },
    "compile-on-a-group": (
        "compile {root}/examples/ring.py -o r.xml --topo dgx1 --group 0,3,2,1 --set ranks=4 --without-pass fuse",
        "simulate r.xml --topo dgx1 --group 0,3,2,1 --sizes 1M:256M:4x",
        "optimize r.xml -o better.xml --topo dgx1 --group 0,3,2,1",
        "simulate better.xml --topo dgx1 --group 0,3,2,1 --json",
    ),
    "lower": (
        f"{PINNED} --proof --out L",
        "lower L/schedules/*.synth -o lowered.xml --explain",
        "lower L/schedules/*.synth -o ll.xml --protocol LL",
        "prove L/schedules/*.synth",
        "prove L/schedules/*.synth --json",
    ),
    "report": (f"{PINNED} --proof --out L", "report L -o r.html"),
    "topo": ("topo list", "topo show dgx1", "topo show ndv2:2", "topo check dgx-a100:4", "topo check torus:4x4 --json"),
    "refusals": (
        "allreduce --topo dgx-a10",
        "allreduce --topo dgx1 --group 0,0",
        "allreduce --topo dgx1 --group 0,9",
        "allgather --topo dgx1 --group 0,7 --size 0",
        "allgather --topo dgx1 --root 3",
        "broadcast --topo dgx1 --root 9",
        "allreduce --topo nothing.toml",
        "pattern nofile.toml --topo dgx1",
        "allgather --topo dgx1 --engine nosuch",
        "allgather --topo ring:4 --without link:0-2",
        "allgather --topo dgx1 --group 0,7",
        "bench nofile",
        "frobnicate",
    ),
}  # fmt: skip
# How the answer of a question differs, from nothing to what must not be.
EQUAL, BETTER, MESSAGES, SAME_GAPS, WORSE = "equal", "better", "other messages", "other, same gaps", "worse"


@dataclass(frozen=True)
class Recorded:
    """A question's commands with how they ended, and a digest of every file that they left."""

    commands: tuple[tuple[str, Ran], ...]
    files: dict[str, str] = field(default_factory=dict)

    @property
    def gaps(self) -> list[float]:
        """time / bound of every row that was printed, in order."""
        return [gap for _, ran in self.commands for gap in _gaps(ran.out)]


@dataclass(frozen=True)
class Compared:
    """A question asked of two revisions: one of the words above, and what differs, in short."""

    name: str
    verdict: str
    what: str
    before: Recorded
    after: Recorded

    @property
    def by_time(self) -> bool:
        """Whether a budget ended the search in one of them, so that the machine's speed decides."""
        return any(
            "the budget ended" in ran.out or '"ended": "budget"' in ran.out
            for one in (self.before, self.after)
            for _, ran in one.commands
        )


def record(root: Path, folder: Path, commands: Sequence[str]) -> Recorded:
    """Ask one question of the checkout at `root`; files go to `folder`, which must be new."""
    folder.mkdir(parents=True)
    for name, text in INPUTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    ran = []
    for command in commands:
        words = shlex.split(command.format(root=root))
        starred = next((word for word in words if "*" in word), None)
        files = [starred] if starred is None else sorted(str(p.relative_to(folder)) for p in folder.glob(starred))
        for file in files:
            arguments = [str(file) if word == starred else word for word in words]
            ran.append((command, run_in(root, folder, arguments)))
    return Recorded(tuple((c, _normal(r, root, folder)) for c, r in ran), _digests(root, folder))


def _normal(ran: Ran, root: Path, folder: Path) -> Ran:
    """Without seconds and without names of folders, which differ from run to run."""
    out, err = (_normal_text(text, root, folder) for text in (ran.out, ran.err))
    return Ran(ran.seconds, ran.cpu_s, ran.code, out, err)


def _normal_text(text: str, root: Path, folder: Path) -> str:
    text = text.replace(str(folder), "FOLDER").replace(str(root), "ROOT")
    text = re.sub(r"\b\d+\.\d s$", "SECONDS", text, flags=re.M)
    return re.sub(r'"seconds": [\d.]+', '"seconds": 0', text)


def _digests(root: Path, folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if path.suffix in (".json", ".html"):
            data = _normal_text(data.decode(), root, folder).encode()
        found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def _gaps(text: str) -> list[float]:
    """From JSON ("gap"), a search's table (its column) or what `prove` says."""
    stated = re.findall(r'"gap": ([\d.]+)', text) or re.findall(r"time / bound = ([\d.]+)", text)
    stated = stated or re.findall(r"\bgap (\d+\.\d{3})\b", text) or re.findall(r" (\d+\.\d{3})(?= )", text)
    return [float(gap) for gap in stated]


def compare(name: str, before: Recorded, after: Recorded) -> Compared:
    """Say how the second answer differs from the first."""
    parts = []
    codes = [(a.code, b.code) for (_, a), (_, b) in zip(before.commands, after.commands, strict=False)]
    pairs = list(zip(before.commands, after.commands, strict=False))
    if len(before.commands) != len(after.commands) or any(a != b for a, b in codes):
        old, new = ([ran.code for _, ran in one.commands] for one in (before, after))
        return Compared(name, WORSE, f"exit codes {old} → {new}", before, after)
    texts = [command for (command, a), (_, b) in pairs if (a.out, a.err) != (b.out, b.err)]
    files = sorted(k for k in before.files.keys() | after.files.keys() if before.files.get(k) != after.files.get(k))
    if not texts and not files:
        return Compared(name, EQUAL, "", before, after)
    if texts:
        parts.append("; ".join(f"`{text}`" for text in texts[:3]) + ("; …" if len(texts) > 3 else ""))
    if files:
        parts.append("files " + ", ".join(files[:3]) + ("; …" if len(files) > 3 else ""))
    verdict = SAME_GAPS
    if not files and all(a.code == 2 for (_, a), (_, b) in pairs if (a.out, a.err) != (b.out, b.err)):
        verdict = MESSAGES
    old, new = _worst(before.gaps), _worst(after.gaps)
    if old != new:
        verdict = BETTER if new < old else WORSE
        parts.insert(0, f"gap {old[0]:.3f} → {new[0]:.3f}, mean {old[1]:.3f} → {new[1]:.3f}")
    return Compared(name, verdict, ": ".join(parts), before, after)


def _worst(gaps: Iterable[float]) -> tuple[float, float]:
    """The largest gap of an answer, and their mean; what is compared first comes first."""
    found = [round(gap, 3) for gap in gaps]
    return (max(found), round(sum(found) / len(found), 4)) if found else (0.0, 0.0)
