"""What torch.compile must not look into: it would make graphs of the calls themselves, and of who waits for whom.

It compiles each Python function that runs below a compiled one, also where torch's C++ calls back, unless it is told of
that function's code. Told without torch._dynamo, which takes a second to import.
"""

from __future__ import annotations

from inspect import getattr_static, isfunction
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

Function = TypeVar("Function")
Class = TypeVar("Class", bound=type)


def untraced(function: Function) -> Function:
    """Mark a function to run as it is, with all that it calls, and give it back."""
    marked: Any = function
    marked._torchdynamo_disable = True  # where it would be made part of its caller
    if hasattr(eval_frame, "set_code_exec_strategy"):  # since torch 2.7
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(marked.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function


def untraced_methods(of: Class) -> Class:
    """Mark all methods of a class, and those that it inherits from classes of ours, and give it back."""
    package = __name__.rpartition(".")[0]
    for name in dir(of):
        method = getattr_static(of, name)
        if isfunction(method) and method.__module__.startswith(package):
            untraced(method)
    return of
