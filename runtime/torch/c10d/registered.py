"""Show a group's calls to torch's dispatcher as operators `c10d::…`, for CommDebugMode, profilers, hooks and fakes.

While nothing watches, calls bypass the dispatcher and go from torch's Python API straight to ours. While something
watches, a plain group of torch is called, whose operators come back to ours through a back end that is registered with
that group. Its Work does not know whether it is over or who sent (`is_completed`, `source_rank`), so callers get ours.

Before torch 2.15 a back end that can be registered must be written in C++. There the operator is called with tensors
that hold no data, only so that watchers see it; the call itself is made separately. Profilers show such operators
without the call's time, and show no barriers.
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

from runtime.torch.c10d.untraced import untraced
from topologies.errors import InputError

Tensor: TypeAlias = Any

CALLS = (
    "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "allgather_coalesced", "gather", "scatter",
    "reduce_scatter", "alltoall", "send", "recv", "recv_anysource", "barrier",
)  # fmt: skip
# Methods that torch renamed, and their earlier names.
EARLIER = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


def _registrable() -> bool:
    """Return True if the installed torch lets Python code define a back end."""
    try:
        type("Probe", (Backend,), {})(0, 1)
    except TypeError:
        return False
    return True


REGISTRABLE = _registrable()


def tensors_of(arguments: Sequence[Any]) -> list[Tensor]:
    """Return all tensors among a call's arguments, which may be nested lists of tensors."""
    tensors: list[Tensor] = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            tensors.append(argument)
        elif isinstance(argument, list | tuple):
            tensors += tensors_of(argument)
    return tensors


def is_special(tensor: Tensor) -> bool:
    """Return True if only the dispatcher can handle a tensor: it has no data, or its class has its own dispatch."""
    return tensor.device.type == "meta" or type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _without_data(value: Any) -> Any:
    """Return a call's argument with each dense tensor replaced by one of the same shape that holds no data.

    Other values stay; lists and tuples become lists, item by item.
    """
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value, device="meta") if value.layout == torch.strided else value
    return [_without_data(item) for item in value] if isinstance(value, list | tuple) else value


class Registered:
    """A group as the dispatcher sees it.

    Attributes:
        group: torch's plain group.
        hooked: Whether hooks watch its calls.
    """

    def __init__(self, store: Any, rank: int, size: int, serve: Callable[[str, Sequence[Any]], Any]) -> None:
        """Build torch's plain group, with our back end if torch can register it.

        Args:
            store: torch's store of the group.
            rank: Place of this rank in the group.
            size: Number of ranks in the group.
            serve: Bound method that makes a call, given the name and the arguments of a group's method. Its object is
                not kept alive.
        """
        self.group = dist.ProcessGroup(store, rank, size)
        self.hooked = False
        self._ours = weakref.WeakMethod(serve)  # C++ owns the registered back end, and cannot collect cycles.
        self._served = threading.local()
        if REGISTRABLE:
            backend = _backend(rank, size, self._serve)
            for device in ("cpu", "cuda"):
                self.group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
            self.group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def is_watched(self, tensors: Sequence[Tensor]) -> bool:
        """Return True if a call with these tensors must go through the dispatcher.

        That is so within a mode, with hooks or a profiler, and for tensors that only the dispatcher can handle.
        """
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
        """Make a call so that watchers see it, and return torch's Work.

        Args:
            name: Name of the group's method.
            arguments: Its arguments; torch's defaults replace any None at their end.
            tensors: Tensors among them.
            named: Keyword arguments of a shorter form of the call, which only torch 2.15 or later has.
        """
        shown_arguments = list(arguments)
        while shown_arguments and shown_arguments[-1] is None:  # C++ has its own defaults.
            shown_arguments.pop()
        method = getattr(self.group, name, None) or getattr(self.group, EARLIER[name])
        self._served.work = None
        if REGISTRABLE or any(map(is_special, tensors)):
            work = method(*shown_arguments, **named)
            return self._served.work or work
        if tensors:  # A barrier has none, so without a back end it has no operator.
            with _disable_current_modes():
                shown_arguments = [_without_data(argument) for argument in shown_arguments]
            with suppress(NotImplementedError):  # Coalesced calls refuse such tensors, but were seen.
                method(*shown_arguments)
        return self._serve(name, arguments)

    def _serve(self, name: str, arguments: Sequence[Any]) -> Any:
        """Make a call on our group, and return its work, which is also stored for `call` on this thread."""
        serve = self._ours()
        assert serve is not None  # A call is under way, so its group exists.
        self._served.work = serve(name, arguments)
        return self._served.work


def _backend(rank: int, size: int, serve: Callable[[str, Sequence[Any]], Any]) -> Any:
    """Return a back end of c10d whose methods all call `serve` with their name and arguments, and return its result."""

    def method(name: str) -> Callable[..., Any]:
        """Return a method that calls `serve` with a name."""
        return lambda _, *arguments: serve(name, arguments)

    methods: dict[str, Any] = {name: method(name) for name in (*CALLS, *EARLIER)}
    methods["getBackendName"] = lambda _: "synth"
    return type("SynthBackend", (Backend,), methods)(rank, size)


def plain(value: Any) -> Any:
    """Return a tensor that shares memory but has no history, so that autograd does not see writes, as with Gloo.

    Lists and tuples become lists, item by item. Sparse tensors and other values stay.
    """
    if isinstance(value, torch.Tensor):
        return value.data if value.layout == torch.strided else value
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def _is_short(arguments: Sequence[Any], full_signature: Signature) -> bool:
    """Return True if a method is called in one of torch's shorter forms.

    These have a tensor for a list, something else for the options, or more arguments than the method takes.

    Args:
        arguments: Positional arguments without `self`.
        full_signature: Signature of the method, with `self`.
    """
    for value, name in zip(arguments, list(full_signature.parameters)[1:], strict=False):
        if name in ("tensors", "outputs", "inputs") and isinstance(value, torch.Tensor):
            return True
        if name == "opts" and not (value is None or type(value).__name__.endswith("Options")):
            return True
    return len(arguments) >= len(full_signature.parameters)


def watched(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a group's method that goes through the dispatcher if something watches, and works on plain tensors.

    It also takes the shorter forms of torch's calls from torch 2.15 on; before, it raises InputError for them. Its
    attribute `unwatched` is the given method.
    """
    full_signature, name = signature(method), method.__name__

    @wraps(method)
    def call(self: Watched, *arguments: Any, **named: Any) -> Any:
        """Make the call, through the dispatcher if something watches or if the call has a shorter form.

        Raises:
            InputError: The call has a shorter form, which torch before 2.15 does not support.
        """
        is_short = False
        try:
            arguments, named = full_signature.bind(self, *arguments, **named).args[1:] if named else arguments, {}
        except TypeError:  # A shorter form, such as root=0.
            is_short = True
        tensors = tensors_of(arguments)
        is_short = is_short or _is_short(arguments, full_signature)
        if is_short and not REGISTRABLE:
            raise InputError(f"{name}: before torch 2.15 it must be called with lists of tensors, and with options")
        if not is_short and not self._registered.is_watched(tensors):
            return self._serve(name, arguments)
        if not any(map(is_special, tensors)):
            arguments = tuple(map(plain, arguments))
        return self._registered.call(name, arguments, tensors, named)

    call.unwatched = method  # type: ignore[attr-defined]
    return call


class Watched(dist.ProcessGroup):  # type: ignore[misc]
    """A group written in Python whose `watched` methods can be seen by modes, profilers and hooks."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        super().__init__(*([store] if REGISTRABLE else []), rank, size)  # Only torch 2.15 or later takes a store.
        self._store = store
        self._registered = Registered(store, rank, size, self._serve)
        self._shortened: list[str] = []

    def _shorten(self, name: str, build: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace a method of this object by a faster function, under the method's earlier name too.

        Once a hook is registered, all calls go to the method again.

        Args:
            name: Name of the method.
            build: Builds the function from the method, which it calls if it cannot make a call itself.
        """
        function = untraced(build(self._full_method(name)))
        for own_name in (name, EARLIER.get(name, name)):
            self._shortened.append(own_name)
            setattr(self, own_name, function)

    def _full_method(self, name: str) -> Callable[..., Any]:
        """Return a function that calls the method of this name, and does not keep the object alive."""
        method = weakref.WeakMethod(getattr(self, name))

        def full_method(*arguments: Any, **named: Any) -> Any:
            """Call the full method."""
            bound = method()
            assert bound is not None  # A call is under way, so its group exists.
            return bound(*arguments, **named)

        return full_method

    def _be_hooked(self) -> None:
        """Let all further calls go through the dispatcher, since a hook waits for them, and undo `_shorten`."""
        self._registered.hooked = True
        while self._shortened:
            self.__dict__.pop(self._shortened.pop(), None)  # A method without an earlier name is listed twice.

    def _serve(self, name: str, arguments: Sequence[Any]) -> Any:
        """Call the method of this name on plain tensors, without another look for watchers, and return its result."""
        return getattr(type(self), name).unwatched(self, *map(plain, arguments))

    def get_group_store(self) -> Any:
        """Return the store of the group."""
        return self._store

    def merge_remote_group(self, *_: Any, **__: Any) -> Any:
        """Raise InputError, since groups of synth cannot be merged."""
        raise InputError("merge_remote_group: groups of synth cannot be merged; it must be a group of another back end")

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)
        self._registered.group._set_group_name(name)

    def _set_group_desc(self, text: str) -> None:
        super()._set_group_desc(text)
        self._registered.group._set_group_desc(text)

    def register_pre_hook(self, number: int, hook: Any) -> None:
        """Register a hook, by a number of torch's choice, that runs before each call; calls are watched from now on."""
        self._registered.group.register_pre_hook(number, hook)
        self._be_hooked()

    def register_post_hook(self, number: int, hook: Any) -> None:
        """Register a hook, by a number of torch's choice, that runs after each call; calls are watched from now on."""
        self._registered.group.register_post_hook(number, hook)
        self._be_hooked()

    def unregister_pre_hook(self, number: int) -> None:
        """Remove the hook of this number that runs before each call; calls are still watched."""
        self._registered.group.unregister_pre_hook(number)

    def unregister_post_hook(self, number: int) -> None:
        """Remove the hook of this number that runs after each call; calls are still watched."""
        self._registered.group.unregister_post_hook(number)
