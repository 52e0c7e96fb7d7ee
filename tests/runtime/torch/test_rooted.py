"""Scatters of blocks of any sizes on Gloo's own scatters, whose receivers know their own blocks only."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch
from torch.distributed import distributed_c10d as c10d

from runtime.torch.c10d.on_gloo import rooted
from runtime.torch.c10d.on_gloo.rooted import Scatter
from runtime.torch.failures.calls import Calls
from tests.hang import HANG_S

MARK = torch.frombuffer(bytearray(rooted._MARK), dtype=torch.uint8)
LIMIT = timedelta(seconds=5)


class Work:
    """A Work of Gloo's, which ends when somebody waits for it."""

    def __init__(self, end: Callable[[], object] = lambda: None) -> None:
        self._end = end

    def wait(self, *_: Any) -> bool:
        self._end()
        return True


class Post:
    """What is under way between ranks: by sender, receiver and tag, values in the order of sending."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, int, Any], deque[torch.Tensor]] = defaultdict(deque)
        self.taken: dict[tuple[int, int, Any], deque[threading.Event]] = defaultdict(deque)  # Set when they are taken.
        self.messages = 0

    def take(self, key: tuple[int, int, Any], output: torch.Tensor) -> None:
        """Write the next values to the beginning of a tensor that is at least as long."""
        values = self.values[key].popleft().view(-1)
        if self.taken[key]:
            self.taken[key].popleft().set()
        assert values.numel() <= output.numel()
        output.view(-1)[: values.numel()] = values


class Gloo:
    """A rank's end of a back end: its scatters take equal blocks only, but receive shorter ones."""

    def __init__(self, post: Post, place: int) -> None:
        self._post, self._me = post, place

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        (output,), root = outputs, opts.rootRank
        if root != self._me:
            return Work(lambda: self._post.take((root, self._me, "scatter"), output))
        for place, block in enumerate(inputs[0]):
            assert block.shape == output.shape
            if place != root:
                self._post.values[root, place, "scatter"].append(block.clone())
        output.copy_(inputs[0][root])
        return Work()

    def send(self, tensors: Any, peer: int, tag: int) -> Work:
        self._post.messages += 1
        taken = threading.Event()
        self._post.values[self._me, peer, tag].append(tensors[0].clone())
        self._post.taken[self._me, peer, tag].append(taken)
        return Work(lambda: taken.wait(HANG_S))

    def recv(self, tensors: Any, peer: int, tag: int) -> Work:
        return Work(lambda: self._post.take((peer, self._me, tag), tensors[0]))


def scattered(blocks: Sequence[torch.Tensor], root: int) -> tuple[list[torch.Tensor], int]:
    """Scatter blocks from a root; return what each rank has, and the number of messages besides the scatter."""
    post, opts = Post(), c10d.ScatterOptions()
    opts.rootRank = root
    outputs = [torch.full_like(block, 77) for block in blocks]
    scatters, works = [], []
    for rank in sorted(range(len(blocks)), key=lambda rank: rank != root):
        scatter = Scatter(Gloo(post, rank), rank, Calls(), lambda _: LIMIT)
        scatters.append(scatter)
        works.append(scatter.start([outputs[rank]], [list(blocks)] if rank == root else [], opts))
    for work in works:  # The root's comes first: it does not wait for messages that nobody has asked for.
        work.wait()
    for scatter in scatters:
        scatter.drain(HANG_S)
    assert not any(post.values.values()), "messages are left"
    return outputs, post.messages


def block(*parts: Any) -> torch.Tensor:
    """Return bytes: numbers are themselves, and tensors are put in as they are."""
    return torch.cat([part if torch.is_tensor(part) else torch.tensor([part], dtype=torch.uint8) for part in parts])


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize(
    ("blocks", "messages"),
    [
        ([torch.arange(9.0) + rank for rank in range(3)], 0),
        ([torch.full((1,), rank, dtype=torch.uint8) for rank in range(3)], 0),
        ([torch.empty(0)] * 3, 0),
        ([torch.arange(float(size)) for size in (4, 1, 30)], 2),  # Of unequal sizes.
        ([torch.ones(size) for size in (3, 0, 2)], 1),
        ([torch.ones(2, 3), torch.ones(6), torch.ones(3, 2)], 2),  # Gloo wants equal shapes.
        ([block(1, 2, MARK), block(3, MARK, 4), block(5, 6, MARK)], 1),  # Equal blocks with the mark at their end.
        ([MARK[:2], MARK[:2].flip(0), block(1, 2)], None),  # Blocks that are shorter than the mark.
    ],
)
def test_each_rank_gets_its_block(blocks: list[torch.Tensor], messages: int | None, root: int) -> None:
    outputs, sent = scattered(blocks, root)
    for output, expected in zip(outputs, blocks, strict=True):
        assert torch.equal(output, expected)
    assert messages is None or sent == messages


def test_a_root_that_leaves_waits_until_its_messages_are_taken() -> None:
    post, opts = Post(), c10d.ScatterOptions()
    blocks = [torch.ones(3), torch.zeros(4)]
    scatter = Scatter(Gloo(post, 0), 0, Calls(), lambda _: LIMIT)
    scatter.start([torch.empty(3)], [blocks], opts).wait()
    scatter.drain(0.01)
    ((key, taken),) = post.taken.items()
    assert not taken[0].is_set()
    leaves = threading.Thread(target=scatter.drain, args=(HANG_S,))
    leaves.start()
    post.take(key, torch.empty(4))
    leaves.join(HANG_S)
    assert not leaves.is_alive()


def test_a_rank_that_sees_no_mark_leaves_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooted, "string_at", lambda _, length: b"x" * length)
    monkeypatch.setattr(Scatter, "drain", lambda *_: None)
    with pytest.raises(AssertionError, match="messages are left"):
        scattered([torch.ones(3), torch.zeros(4)], 0)
