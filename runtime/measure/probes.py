"""Small programs whose times say what a machine costs: messages there, and one back that says that they have come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from emit.goal import Goal, Rows
from emit.program import CUSTOM, Gpu, Program, Step, ThreadBlock
from topologies.topology import Topology


@dataclass(frozen=True)
class Probe:
    """One program, as `runtime.bench.Algorithm` says; a message of its size is one chunk.

    On every pair (a, b) `blocks` threadblocks, each on a channel of its own, do `rounds` times: `messages` chunks from
    a to b, one behind the other, then one chunk back. So a run is over on a when all has come, and runs that follow
    each other do not overlap.
    """

    nranks: int
    pairs: tuple[tuple[int, int], ...]
    protocol: str = "Simple"
    blocks: int = 1
    messages: int = 1
    rounds: int = 1

    @property
    def name(self) -> str:
        """Of everything that tells two apart."""
        pairs = "_".join(f"{a}-{b}" for a, b in self.pairs)
        return f"probe_{self.protocol}_{self.blocks}x{self.messages}x{self.rounds}_{pairs}"

    @cached_property
    def _threads(self) -> list[tuple[int, int, int, int, int]]:
        """(a, b, channel, cell of a's input and output, cell of b's output) of each pair of threadblocks."""
        cells = [0] * self.nranks
        channels: dict[tuple[int, int], int] = {}
        found = []
        for a, b in self.pairs * self.blocks:
            # a channel of its own between two ranks, whoever begins
            channel = channels[min(a, b), max(a, b)] = channels.get((min(a, b), max(a, b)), -1) + 1
            found.append((a, b, channel, cells[a], cells[b]))
            cells[a] += 1
            cells[b] += 1
        return found

    @cached_property
    def program(self) -> Program:
        """What all ranks execute; the cells of a rank's buffers are as many as its threadblocks."""
        blocks: list[list[ThreadBlock]] = [[] for _ in range(self.nranks)]
        for a, b, channel, at_a, at_b in self._threads:
            send = Step("s", "i", at_a, count=1)
            into = Step("r", dst_buf="o", dst_off=at_b, count=1)
            back = Step("s", "o", at_b, count=1)
            end = Step("r", dst_buf="o", dst_off=at_a, count=1)
            blocks[a].append(ThreadBlock(b, b, channel, ([send] * self.messages + [end]) * self.rounds))
            blocks[b].append(ThreadBlock(a, a, channel, ([into] * self.messages + [back]) * self.rounds))
        gpus = [Gpu(len(mine), len(mine), 0, mine) for mine in blocks]
        return Program(self.name, CUSTOM, self.protocol, self.nranks, 1, inplace=False, outofplace=True, gpus=gpus)

    @cached_property
    def goal(self) -> Goal:
        """What is sent is in the end on both ranks."""
        sent = [(a, "i", at_a, a, at_a) for a, _, _, at_a, _ in self._threads]
        there = [(b, "o", at_b, a, at_a) for a, b, _, at_a, at_b in self._threads]
        back = [(a, "o", at_a, a, at_a) for a, _, _, at_a, _ in self._threads]
        return Goal.from_arrays(self.nranks, _columns(sent), _columns(there + back))

    def communicator(self, topology: Topology) -> tuple[int, ...] | None:  # noqa: ARG002 - as an Algorithm has it
        """All ranks, in their order."""
        return None


def _columns(rows: Sequence[tuple[int, str, int, int, int]]) -> Rows:
    rank, buffer, index, source, chunk = zip(*rows, strict=True)
    return rank, buffer, index, source, chunk
