"""Sum tensors over the ranks by messages of fewer bits, where a caller asks for it, with a stated limit of the error.

The buffer is cut into a shard for each rank. All ranks send their compressed shards to the shards' owners (an
all-to-all). Each owner adds them up in float32 and sends the compressed sum to all (an all-gather). So every value is
rounded twice, however many ranks there are, and all ranks get the same bits.

Let x be a rank's value and s the sum. With float16 and bfloat16 the error of an element is at most u · (Σ|x| + |s|), up
to second order in u, with u = 2⁻¹¹ and 2⁻⁸; float16 also loses values below 6 · 10⁻⁸, and sums beyond 65504 become
infinite. With int8 each block of 256 values has a scale, and x and s in this limit are the largest values of the
block in size, with u = 1 / 254. A value that is infinite or no number makes its whole block of the sum no number on
all ranks, which a GradScaler notices.

Error feedback adds what a rank's rounding lost to its next values, at the senders and at the owners of shards (Tang,
Yu, Lian, Zhang, Liu, "DoubleSqueeze", ICML 2019, section 3).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from topologies.errors import InputError

Tensor: TypeAlias = Any
_SUM = -1  # In place of a shard's number: the sum of a rank's own shard.
BLOCK = 256  # Values of int8 that share a scale.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 1 / 254}  # By kind: u in the limit above.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # The old name is deprecated.
_HALF_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def packed(values: Tensor, kind: str) -> Tensor:
    """Return values in fewer bits, as bytes.

    Args:
        values: Values of float32 in one dimension; for int8 a multiple of BLOCK. A block of int8 with a value that is
            not finite becomes no number.
        kind: A key of ROUNDING.
    """
    if kind in _HALF_TYPES:
        return values.to(_HALF_TYPES[kind]).view(torch.uint8)
    blocks = values.view(-1, BLOCK)
    scales = blocks.abs().amax(1) / 127
    whole = (blocks / torch.where(scales > 0, scales, 1.0)[:, None]).round().to(torch.int8)
    return torch.cat([scales.view(torch.uint8), whole.view(torch.uint8).view(-1)])


def unpacked(message: Tensor, kind: str) -> Tensor:
    """Return the values of float32 that `packed` gave as these bytes, rounded."""
    if kind in _HALF_TYPES:
        return message.view(_HALF_TYPES[kind]).float()
    blocks = len(message) // (BLOCK + 4)
    scales, whole = message[: 4 * blocks].view(torch.float32), message[4 * blocks :].view(torch.int8)
    return (whole.view(blocks, BLOCK).float() * scales[:, None]).view(-1)


class CompressionState:
    """The settings of compressed sums, and what earlier roundings lost.

    Attributes:
        kind: float16, bfloat16 or int8.
        group: torch's group; None for the default one.
        error_feedback: Whether what rounding loses is added to the next values.
    """

    def __init__(self, kind: str, group: Any = None, error_feedback: bool = True) -> None:
        """Begin without losses.

        Raises:
            InputError: The kind is unknown.
        """
        if kind not in ROUNDING:
            raise InputError(f"compression {str(kind)[:40]!r}: is not known; it must be one of {', '.join(ROUNDING)}")
        self.kind, self.group, self.error_feedback = kind, group, error_feedback
        self._lost: dict[tuple[Any, int], Tensor] = {}  # By key, and the shard that was sent or _SUM.

    def sum(self, values: Tensor, key: Any = None) -> Tensor:
        """Return the sum of all ranks' values, the same on each rank; all ranks of the group must call it.

        Args:
            values: This rank's values, in one dimension, of a type of real floating point; they are not changed.
            key: What the values are of, such as a bucket's number: losses are added to the next values with the same
                key, length and device.

        Raises:
            RuntimeError: A rank is lost or takes too long.
        """
        if not len(values):
            return values.clone()
        ranks = dist.get_world_size(self.group)
        shard = -(-len(values) // ranks)
        shard += -shard % (BLOCK if self.kind == "int8" else 1)
        padded = torch.zeros(shard * ranks, dtype=torch.float32, device=values.device)
        padded[: len(values)] = values
        sent = torch.stack([self._rounded(part, (key, place)) for place, part in enumerate(padded.split(shard))])
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        total = torch.stack([unpacked(message, self.kind) for message in received]).sum(0)
        own = self._rounded(total, (key, _SUM))
        gathered = torch.empty_like(sent)
        _all_gather(gathered.view(-1), own, group=self.group)
        return torch.cat([unpacked(message, self.kind) for message in gathered])[: len(values)].to(values.dtype)

    def _rounded(self, values: Tensor, key: tuple[Any, int]) -> Tensor:
        """Return values as a message, with what was lost before under this key added; keep what is lost now."""
        if not self.error_feedback:
            return packed(values, self.kind)
        lost = self._lost.get(key)
        if lost is not None and lost.shape == values.shape and lost.device == values.device:
            values = values + lost
        message = packed(values, self.kind)
        lost = values - unpacked(message, self.kind)
        self._lost[key] = torch.where(lost.isfinite(), lost, 0.0)  # A sum beyond float16 is not made up for.
        return message


def all_reduce_compressed(tensor: Tensor, kind: str, group: Any = None) -> None:
    """Replace a tensor by its sum over all ranks, sent in fewer bits; the call is over when the function returns.

    Nothing is compressed unless a caller asks for it here or by `compress_hook`.

    Args:
        tensor: Tensor of a real floating-point type, of any shape, which is written.
        kind: "float16", "bfloat16" or "int8"; the module's text states the limit of the error, and what becomes of
            values that are not finite.
        group: torch's group; None for the default one.

    Raises:
        InputError: The kind is unknown, or the tensor is none or of another type.
        RuntimeError: A rank is lost or takes too long.
    """
    state = CompressionState(kind, group, error_feedback=False)
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"compression of a {type(tensor).__name__}: it must be a tensor of a floating-point type")
    if not tensor.is_floating_point():
        raise InputError(f"compression of {tensor.dtype}: it must be a tensor of a floating-point type")
    tensor.copy_(state.sum(tensor.reshape(-1)).view(tensor.shape))


def compress_hook(state: CompressionState, bucket: Any) -> Any:
    """Return a future of the mean of a bucket of gradients over all ranks, sent in fewer bits.

    It is a communication hook: `model.register_comm_hook(CompressionState("int8"), compress_hook)`, where `model` is a
    DistributedDataParallel. The future is done already: the sums of two buckets do not overlap.

    Args:
        state: The settings, and what earlier roundings lost.
        bucket: torch's GradBucket.

    Raises:
        InputError: The state is no CompressionState.
        RuntimeError: A rank is lost or takes too long.
    """
    if not isinstance(state, CompressionState):
        name = f"the class {state.__name__}" if isinstance(state, type) else f"a {type(state).__name__}"
        raise InputError(f"compress_hook with {name} as its state: it must be one such as CompressionState('int8')")
    gradients = bucket.buffer()
    gradients.copy_(state.sum(gradients, bucket.index()).div_(dist.get_world_size(state.group)))
    future: Any = torch.futures.Future()
    future.set_result(gradients)
    return future


# torch examines a hook's annotations, which must be these very objects.
compress_hook.__annotations__.update({"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]})
