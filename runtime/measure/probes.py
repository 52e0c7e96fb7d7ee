"""Small programs whose times give a machine's costs: messages in one direction, and one back that confirms them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from emit.goal import Goal, Rows
from emit.program import CUSTOM, Gpu, Program, Step, ThreadBlock
from topologies.topology import Topology


@dataclass(frozen=True)
class Probe:
    """A program for a measurement (see `runtime.bench.BenchAlgorithm`); a message of its size is one chunk.

    On every pair (a, b), `blocks` threadblocks with a channel each do this `rounds` times: they send `messages` chunks
    from a to b, one behind the other, then one chunk back. So a run ends on a when all chunks have arrived, and
    successive runs do not overlap.

    Attributes:
        nranks: Number of ranks.
        pairs: Pairs of ranks (a, b), of two different ranks each.
        protocol: Protocol of the messages.
        blocks: Threadblocks of a pair.
        messages: Chunks from a to b in a round.
        rounds: Number of rounds.
    """

    nranks: int
    pairs: tuple[tuple[int, int], ...]
    protocol: str = "Simple"
    blocks: int = 1
    messages: int = 1
    rounds: int = 1

    @property
    def name(self) -> str:
        """Return a name that differs for different probes."""
        pairs = "_".join(f"{a}-{b}" for a, b in self.pairs)
        return f"probe_{self.protocol}_{self.blocks}x{self.messages}x{self.rounds}_{pairs}"

    @cached_property
    def _threads(self) -> list[tuple[int, int, int, int, int]]:
        """Return (a, b, channel, cell of a's input and output, cell of b's output) of each pair of threadblocks."""
        cells = [0] * self.nranks
        channels: dict[tuple[int, int], int] = {}
        threads = []
        for a, b in self.pairs * self.blocks:
            # Each pair of threadblocks has its own channel between two ranks, in either direction.
            channel = channels[min(a, b), max(a, b)] = channels.get((min(a, b), max(a, b)), -1) + 1
            threads.append((a, b, channel, cells[a], cells[b]))
            cells[a] += 1
            cells[b] += 1
        return threads

    @cached_property
    def program(self) -> Program:
        """Build the program of all ranks; a rank's buffers have as many cells as it has threadblocks."""
        blocks: list[list[ThreadBlock]] = [[] for _ in range(self.nranks)]
        for a, b, channel, at_a, at_b in self._threads:
            send = Step("s", "i", at_a, count=1)
            receive = Step("r", dst_buf="o", dst_off=at_b, count=1)
            send_back = Step("s", "o", at_b, count=1)
            receive_back = Step("r", dst_buf="o", dst_off=at_a, count=1)
            blocks[a].append(ThreadBlock(b, b, channel, ([send] * self.messages + [receive_back]) * self.rounds))
            blocks[b].append(ThreadBlock(a, a, channel, ([receive] * self.messages + [send_back]) * self.rounds))
        gpus = [Gpu(len(rank_blocks), len(rank_blocks), 0, rank_blocks) for rank_blocks in blocks]
        return Program(self.name, CUSTOM, self.protocol, self.nranks, 1, inplace=False, outofplace=True, gpus=gpus)

    @cached_property
    def goal(self) -> Goal:
        """Build the goal: the sent data is on both ranks in the end."""
        sent = [(a, "i", at_a, a, at_a) for a, _, _, at_a, _ in self._threads]
        arrived = [(b, "o", at_b, a, at_a) for a, b, _, at_a, at_b in self._threads]
        returned = [(a, "o", at_a, a, at_a) for a, _, _, at_a, _ in self._threads]
        return Goal.from_arrays(self.nranks, _columns(sent), _columns(arrived + returned))

    def communicator(self, topology: Topology) -> tuple[int, ...] | None:  # noqa: ARG002 - the protocol Algorithm has it
        """Return None: the probe runs on all ranks in their order."""
        return None


def _columns(rows: Sequence[tuple[int, str, int, int, int]]) -> Rows:
    """Return the columns of rows."""
    rank, buffer, index, source, chunk = zip(*rows, strict=True)
    return rank, buffer, index, source, chunk
