"""Keep torch.compile from tracing this package: it would capture the calls themselves, and the waits between threads.

torch.compile compiles each Python function that runs below a compiled function, even if torch's C++ calls it back,
unless that function's code is marked. The marks are set without torch._dynamo, which takes a second to import.
"""

from __future__ import annotations

from inspect import getattr_static, isfunction
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

Function = TypeVar("Function")
Class = TypeVar("Class", bound=type)
PACKAGE = __name__.rsplit(".", 2)[0]  # `runtime.torch`, the package of all code that runs within a call.


def untraced(function: Function) -> Function:
    """Mark a function, in place, to run uncompiled, with all that it calls, and return it."""
    marked: Any = function
    marked._torchdynamo_disable = True  # It must not become a part of its caller.
    if hasattr(eval_frame, "set_code_exec_strategy"):  # It exists since torch 2.7.
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(marked.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function


def untraced_methods(marked_class: Class) -> Class:
    """Mark all methods of a class that this package defines, inherited ones too, and return the class."""
    for name in dir(marked_class):
        method = getattr_static(marked_class, name)
        if isfunction(method) and method.__module__.startswith(PACKAGE):
            untraced(method)
    return marked_class
