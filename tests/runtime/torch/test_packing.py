"""Several calls as one: the same results as one by one, within the limit, whatever the shapes and types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from runtime.torch.c10d import packing  # noqa: E402 - it needs PyTorch
from runtime.torch.c10d.fusion import FusionState  # noqa: E402
from runtime.torch.c10d.packing import Coalesced, fuse, group_calls, pack  # noqa: E402
from topologies.errors import InputError  # noqa: E402

RANKS = 3
SHAPES = ((4,), (2, 3), (1,), (5, 1, 2))
BLOCKS = {"allgather": (RANKS, 1), "reducescatter": (1, RANKS)}  # Of an output and of an input.


def calls_of(collective: str, rank: int) -> tuple[list[Any], list[Any]]:
    """Return a rank's outputs and inputs of one call for each shape, whose numbers differ everywhere."""
    out_blocks, in_blocks = BLOCKS[collective]
    sizes = [(torch.Size(shape).numel(), shape) for shape in SHAPES]
    inputs = [
        (torch.arange(size * in_blocks) + 1000 * rank + 100 * number).view(in_blocks, *shape)
        for number, (size, shape) in enumerate(sizes)
    ]
    return [torch.zeros(out_blocks, *shape, dtype=torch.int64) for shape in SHAPES], inputs


def result(collective: str, inputs: Sequence[Any], rank: int) -> Any:
    """Return what one call gives a rank, flat, from the inputs of all ranks."""
    if collective == "allgather":
        return torch.cat([tensor.reshape(-1) for tensor in inputs])
    return sum(tensor.reshape(RANKS, -1)[rank] for tensor in inputs)


def faults(collective: str, build: Callable[..., Any]) -> list[str]:
    """Return the outputs that differ from those of one call after the other, where `build` packs the calls."""
    found, calls = [], [calls_of(collective, rank) for rank in range(RANKS)]
    packed = [build(outputs, inputs, *BLOCKS[collective]) for outputs, inputs in calls]
    for rank, (outputs, _) in enumerate(calls):
        _, output, unpack = packed[rank]
        output.copy_(result(collective, [tensor for tensor, _, _ in packed], rank))
        unpack()
        for number, got in enumerate(outputs):
            want = result(collective, [inputs[number] for _, inputs in calls], rank)
            if not torch.equal(got.reshape(-1), want):
                found.append(f"rank {rank}, call {number}")
    return found


def packed_slowly(outputs: Sequence[Any], inputs: Sequence[Any], out_blocks: int, in_blocks: int) -> Any:
    """Return what `pack` makes of the calls, whose tensors may have any layout."""
    calls = [Coalesced((), [tensor], [out]) for out, tensor in zip(outputs, inputs, strict=True)]
    return pack(calls, in_blocks, out_blocks)


@pytest.mark.parametrize("collective", BLOCKS)
@pytest.mark.parametrize("build", [fuse, packed_slowly])
def test_calls_in_one_give_the_results_of_one_by_one(collective: str, build: Callable[..., Any]) -> None:
    assert faults(collective, build) == []


@pytest.mark.parametrize("build", [fuse, packed_slowly])
def test_values_that_are_unpacked_to_a_wrong_place_are_found(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchange(targets: list[Any], sources: Sequence[Any]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source.flip(0) if target.shape[0] > 1 else source + 1)

    monkeypatch.setattr(packing.torch, "_foreach_copy_", exchange)
    assert faults("allgather", build)


def test_both_ways_to_pack_send_the_same_bytes() -> None:
    for collective in BLOCKS:
        outputs, inputs = calls_of(collective, 1)
        fast, slow = (build(outputs, inputs, *BLOCKS[collective]) for build in (fuse, packed_slowly))
        assert torch.equal(fast[0], slow[0])  # A rank with another layout packs in the other way.


def test_calls_that_do_not_fit_are_not_fused() -> None:
    outputs, inputs = calls_of("allgather", 0)
    assert fuse(outputs, [inputs[0].float(), *inputs[1:]], RANKS, 1) is None
    assert fuse([torch.zeros(1, dtype=torch.int64), *outputs[1:]], inputs, RANKS, 1) is None
    assert fuse([outputs[1], *outputs[1:]], [inputs[1], *inputs[1:]], RANKS, 1) is None
    wide = torch.zeros(RANKS, 8, dtype=torch.int64)[:, ::2]
    assert fuse([wide, *outputs[1:]], inputs, RANKS, 1) is None


def test_a_buffer_holds_one_type_and_no_more_than_its_limit() -> None:
    kinds = [torch.float32, torch.int64, torch.float32, torch.float32, torch.int64, torch.float32]
    calls = [Coalesced((), [tensor], [tensor]) for tensor in (torch.zeros(10, dtype=kind) for kind in kinds)]
    groups = group_calls(calls, most_bytes=100)
    assert sorted(id(call) for group in groups for call in group) == sorted(map(id, calls))
    for group in groups:
        assert len({call.inputs[0].dtype for call in group}) == 1
        assert len(group) == 1 or sum(call.inputs[0].nbytes for call in group) <= 100
    assert len(groups) == 4  # Two of two calls of 40 bytes, and two of one call of 80 bytes.
    assert len(group_calls(calls, most_bytes=1)) == len(calls)


def test_buckets_wait_for_the_limit_or_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    state = FusionState(most_bytes=100)
    monkeypatch.setattr(FusionState, "_send", lambda self: (sent.append(len(self._waiting)), self._waiting.clear()))
    for number in range(5):
        state.add(torch.zeros(10), is_first=number == 0, is_last=number == 4)
    assert sent == [3, 2]
    for wrong in (0, True, 1.5):
        with pytest.raises(InputError, match="must be a whole number"):
            FusionState(most_bytes=wrong)  # type: ignore[arg-type]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand in for torch's coalesced calls: keep what they sum, and end with an error or fail to start with one."""
    made = SimpleNamespace(summed=[], error=None, start_error=None)

    @contextmanager
    def manager(**_: Any) -> Iterator[SimpleNamespace]:
        """Make one call at the end of the block."""

        def value() -> None:
            """Raise the error of the call, if it has one."""
            if made.error is not None:
                raise made.error

        future = SimpleNamespace(value=value, add_done_callback=lambda callback: callback(future))
        yield SimpleNamespace(works=[SimpleNamespace(get_future=lambda: future)])
        if made.start_error is not None:
            raise made.start_error

    monkeypatch.setattr("torch.distributed._coalescing_manager", manager)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda tensor, **_: made.summed.append(tensor))
    return made


@pytest.mark.parametrize("error", [RuntimeError("lost"), InputError("wrong"), KeyboardInterrupt("Ctrl-C")])
def test_the_futures_of_buckets_end_with_any_error_of_their_call(call: SimpleNamespace, error: BaseException) -> None:
    state, call.error = FusionState(), error
    ends = [state.add(torch.zeros(1), is_first=last == 0, is_last=last == 1) for last in range(2)]
    for end in ends:
        assert end.done()
        with pytest.raises(RuntimeError, match=str(error)):
            end.value()


def test_the_futures_of_buckets_end_if_their_call_cannot_start(call: SimpleNamespace) -> None:
    state, call.start_error = FusionState(), InputError("wrong")
    first = state.add(torch.zeros(1), is_first=True, is_last=False)
    with pytest.raises(InputError, match="wrong"):
        state.add(torch.zeros(1), is_first=False, is_last=True)
    assert first.done()
    call.start_error = None
    state.add(torch.ones(1), is_first=False, is_last=True)
    assert len(call.summed) == 3  # The two that failed are not sent again.


def test_buckets_of_a_failed_backward_pass_are_not_sent_in_the_next_one(call: SimpleNamespace) -> None:
    state = FusionState()
    left = state.add(torch.zeros(1), is_first=True, is_last=False)
    new = state.add(torch.ones(1), is_first=True, is_last=True)
    assert [tensor.item() for tensor in call.summed] == [1] == [new.value().item()]
    with pytest.raises(RuntimeError, match="backward pass ended"):
        left.wait()
