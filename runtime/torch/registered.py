"""A group's calls as torch's dispatcher sees them: operators `c10d::…` for CommDebugMode, profilers, hooks, fakes.

The dispatcher is gone round while nobody looks: from torch's Python API straight to ours. When somebody does, a plain
group of torch's own is called, whose operators come back to ours by a back end that is registered with it. Its Work
knows neither whether it is over nor who sent (`is_completed`, `source_rank`), so callers are given ours.

Before torch 2.15 a back end that can be registered must be written in C++. There the operator is called with tensors
that hold no data, and only seen; the call itself is made beside it. Profilers show such operators without the call's
time, and no barriers.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from inspect import Signature, signature
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.utils._python_dispatch import _disable_current_modes

from runtime.torch.untraced import untraced
from topologies.errors import InputError

Tensor: TypeAlias = Any

CALLS = (
    "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "allgather_coalesced", "gather", "scatter",
    "reduce_scatter", "alltoall", "send", "recv", "recv_anysource", "barrier",
)  # fmt: skip
# calls that torch had other names for, and these
EARLIER = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


def _registrable() -> bool:
    """Whether a back end can be written in Python."""
    try:
        type("Probe", (Backend,), {})(0, 1)
    except TypeError:
        return False
    return True


REGISTRABLE = _registrable()


def tensors_of(arguments: Sequence[Any]) -> list[Tensor]:
    """All tensors among a call's arguments, which may be lists of lists of them."""
    found: list[Tensor] = []
    for each in arguments:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += tensors_of(each)
    return found


def is_special(tensor: Tensor) -> bool:
    """Whether the dispatcher alone knows what it is: without data, or of a class with a dispatch of its own."""
    return tensor.device.type == "meta" or type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _without_data(value: Any) -> Any:
    """A call's argument with tensors of the same shapes that hold nothing."""
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value, device="meta") if value.layout == torch.strided else value
    return [_without_data(each) for each in value] if isinstance(value, list | tuple) else value


class Registered:
    """A group for the dispatcher; serve: a method of ours, which makes a call of this name with these arguments.

    Attributes:
        group: torch's; hooked: whether hooks wait for its calls.
    """

    def __init__(self, store: Any, rank: int, size: int, serve: Callable[[str, Sequence[Any]], Any]) -> None:
        self.group = dist.ProcessGroup(store, rank, size)
        self.hooked = False
        self._ours = weakref.WeakMethod(serve)  # C++ owns what is registered, and sees no cycles
        self._made = threading.local()
        if REGISTRABLE:
            backend = _backend(rank, size, self._serve)
            for device in ("cpu", "cuda"):
                self.group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
            self.group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def is_watched(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a call with these is to go through the dispatcher."""
        return bool(
            torch._C._len_torch_dispatch_stack()
            or self.hooked
            or torch._C._autograd._profiler_enabled()
            or any(map(is_special, tensors))
        )

    def call(
        self,
        name: str,
        arguments: Sequence[Any],
        tensors: Sequence[Tensor],
        named: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Make a call that is watched; torch's Work. tensors: those among its arguments; named: of shorter forms."""
        given = list(arguments)
        while given and given[-1] is None:  # C++ knows its own defaults
            given.pop()
        method = getattr(self.group, name, None) or getattr(self.group, EARLIER[name])
        self._made.work = None
        if REGISTRABLE or any(map(is_special, tensors)):
            work = method(*given, **named)
            return self._made.work or work
        if tensors:  # a barrier has none, and so no operator without a back end
            with _disable_current_modes():
                given = [_without_data(each) for each in given]
            with suppress(NotImplementedError):  # coalesced ones know no such tensors, and were seen
                method(*given)
        return self._serve(name, arguments)

    def _serve(self, name: str, arguments: Sequence[Any]) -> Any:
        serve = self._ours()
        assert serve is not None  # a call is under way, so its group is there
        self._made.work = serve(name, arguments)
        return self._made.work


def _backend(rank: int, size: int, serve: Callable[[str, Sequence[Any]], Any]) -> Any:
    """A back end of c10d whose every method is `serve`."""

    def method(name: str) -> Callable[..., Any]:
        return lambda _, *arguments: serve(name, arguments)

    made: dict[str, Any] = {name: method(name) for name in (*CALLS, *EARLIER)}
    made["getBackendName"] = lambda _: "synth"
    return type("SynthBackend", (Backend,), made)(rank, size)


def plain(value: Any) -> Any:
    """A tensor's memory without its history, as Gloo sees it: what is written there autograd does not know of."""
    if isinstance(value, torch.Tensor):
        return value.data if value.layout == torch.strided else value
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def _is_short(arguments: Sequence[Any], of: Signature) -> bool:
    """Whether a group's own method is called in one of torch's shorter forms: a tensor for a list, no options."""
    for value, name in zip(arguments, list(of.parameters)[1:], strict=False):
        if name in ("tensors", "outputs", "inputs") and isinstance(value, torch.Tensor):
            return True
        if name == "opts" and not (value is None or type(value).__name__.endswith("Options")):
            return True
    return len(arguments) >= len(of.parameters)


def watched(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a group that is given tensors, on their memory; through the dispatcher where somebody looks."""
    of, name = signature(method), method.__name__

    @wraps(method)
    def call(self: Watched, *arguments: Any, **named: Any) -> Any:
        short = False
        try:
            arguments, named = of.bind(self, *arguments, **named).args[1:] if named else arguments, {}
        except TypeError:  # root=0
            short = True
        tensors = tensors_of(arguments)
        short = short or _is_short(arguments, of)
        if short and not REGISTRABLE:
            raise InputError(f"{name}: before torch 2.15 it must be called with lists of tensors, and with options")
        if not short and not self._registered.is_watched(tensors):
            return self._serve(name, arguments)
        if not any(map(is_special, tensors)):
            arguments = tuple(map(plain, arguments))
        return self._registered.call(name, arguments, tensors, named)

    call.unwatched = method  # type: ignore[attr-defined]
    return call


class Watched(dist.ProcessGroup):  # type: ignore[misc]
    """A group in Python, its calls seen by who watches them: those of its methods that are `watched`."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        super().__init__(*([store] if REGISTRABLE else []), rank, size)  # C++ of 2.15 reads it; earlier takes none
        self._store = store
        self._registered = Registered(store, rank, size, self._serve)
        self._shortened: list[str] = []

    def _shorten(self, name: str, calls_or: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Try another way before a method, while nobody looks. calls_or: makes it, given the method."""
        method = weakref.WeakMethod(getattr(self, name))

        def whole(*arguments: Any, **named: Any) -> Any:
            bound = method()
            assert bound is not None  # it is being called
            return bound(*arguments, **named)

        shortened = calls_or(whole)

        @untraced
        def call(tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
            if more or named or type(tensors) is not list or len(tensors) != 1 or not hasattr(opts, "asyncOp"):
                return whole(tensors, *(() if opts is None else (opts, *more)), **named)
            return shortened(tensors, opts)

        self._shortened.append(name)
        setattr(self, name, call)

    def _be_hooked(self) -> None:
        self._registered.hooked = True
        while self._shortened:
            delattr(self, self._shortened.pop())

    def _serve(self, name: str, arguments: Sequence[Any]) -> Any:
        """The method of this name, not watched any more."""
        return getattr(type(self), name).unwatched(self, *map(plain, arguments))

    def get_group_store(self) -> Any:
        return self._store

    def merge_remote_group(self, *_: Any, **__: Any) -> Any:
        raise InputError("merge_remote_group: not of groups of synth; it must be of another back end")

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)
        self._registered.group._set_group_name(name)

    def _set_group_desc(self, text: str) -> None:
        super()._set_group_desc(text)
        self._registered.group._set_group_desc(text)

    def register_pre_hook(self, number: int, hook: Any) -> None:
        self._registered.group.register_pre_hook(number, hook)
        self._be_hooked()

    def register_post_hook(self, number: int, hook: Any) -> None:
        self._registered.group.register_post_hook(number, hook)
        self._be_hooked()

    def unregister_pre_hook(self, number: int) -> None:
        self._registered.group.unregister_pre_hook(number)

    def unregister_post_hook(self, number: int) -> None:
        self._registered.group.unregister_post_hook(number)
