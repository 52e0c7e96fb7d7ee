"""Sum several buckets of gradients of DistributedDataParallel by one call, where a script asks for it.

The torch of a rank makes an all-reduce for each bucket as soon as its gradients are there. Small buckets spend most of
that time on the start of calls. Here buckets wait until those that wait are large enough, or the last one has come.
Only facts end the wait that are the same on all ranks: a limit of time would end it on each rank at another bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from topologies.errors import InputError

Tensor: TypeAlias = Any
Finish: TypeAlias = Callable[[BaseException | None], None]  # Ends a future, with an error if there is one.


class FusionState:
    """The buckets that wait for others, and how many bytes may wait.

    Attributes:
        group: torch's group; None for the default one.
        most_bytes: Bytes from which on the waiting buckets are sent.
    """

    def __init__(self, group: Any = None, most_bytes: int = 8 << 20) -> None:
        """Begin with no bucket.

        Raises:
            InputError: The limit is not a positive whole number.
        """
        if type(most_bytes) is not int or most_bytes < 1:  # True is no number of bytes.
            raise InputError(f"fusion of up to {most_bytes!r} bytes: it must be a whole number, 1 or more")
        self.group, self.most_bytes = group, most_bytes
        self._waiting: list[tuple[Tensor, Finish]] = []  # Gradients, and the future that ends when they are summed.

    def add(self, gradients: Tensor, is_first: bool, is_last: bool) -> Any:
        """Add a bucket; send all that wait if it is the last one, or if they are large enough. Return its future.

        Buckets that still wait when a first one comes are of a backward pass that failed; their futures fail, too.

        Args:
            gradients: This rank's part of the mean, which becomes the mean over all ranks.
            is_first: Whether a new backward pass begins with this bucket.
            is_last: Whether no bucket follows in its backward pass.

        Raises:
            RuntimeError: The call for the waiting buckets cannot start.
        """
        if is_first:
            abandoned, self._waiting = self._waiting, []
            for _, finish_left in abandoned:
                finish_left(RuntimeError("a bucket of gradients was not sent: its backward pass ended before the last"))
        end: Any = torch.futures.Future()
        errors: list[BaseException] = []

        def outcome(_: Any) -> Tensor:
            """Return the mean, or raise the error of the call."""
            if errors:
                raise errors[0]
            return gradients

        def finish(error: BaseException | None) -> None:
            """End the future."""
            errors.extend([] if error is None else [error])
            end.set_result(None)

        self._waiting.append((gradients, finish))
        if is_last or sum(waiting.nbytes for waiting, _ in self._waiting) >= self.most_bytes:
            self._send()
        return end.then(outcome)

    def _send(self) -> None:
        """Start one call for all buckets that wait, and end their futures with it, or at once if it cannot start."""
        buckets, self._waiting = self._waiting, []

        def end_all(error: BaseException | None) -> None:
            """End the futures of all buckets."""
            for _, finish in buckets:
                finish(error)

        def end_with(future: Any) -> None:
            """End the futures of all buckets with the call, whatever its error: DDP would wait for them for good."""
            try:
                future.value()
            except BaseException as error:
                end_all(error)
            else:
                end_all(None)

        try:
            with dist._coalescing_manager(group=self.group, async_ops=True) as manager:
                for gradients, _ in buckets:
                    dist.all_reduce(gradients, group=self.group)
            manager.works[0].get_future().add_done_callback(end_with)
        except BaseException as error:
            end_all(error)
            raise


def fuse_hook(state: FusionState, bucket: Any) -> Any:
    """Return a future of the mean of a bucket of gradients over all ranks, which is sent with others in one call.

    It is a communication hook: `model.register_comm_hook(FusionState(), fuse_hook)`, where `model` is a
    DistributedDataParallel.

    Args:
        state: The buckets that wait; each model needs its own.
        bucket: torch's GradBucket.

    Raises:
        RuntimeError: A rank is lost or takes too long.
    """
    gradients = bucket.buffer().div_(dist.get_world_size(state.group))
    return state.add(gradients, bucket.index() == 0, bucket.is_last())


# torch examines a hook's annotations, which must be these very objects.
fuse_hook.__annotations__.update({"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]})
