"""Formulas in workload files: arithmetic over named numbers, as in "2 * layers * hidden / tp"."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping

from topologies.errors import InputError, did_you_mean
from topologies.text.fields import shown

_LONGEST = 2000
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"ceil": math.ceil, "min": min, "max": max}


def evaluate(text: str, values: Mapping[str, float], where: str) -> float:
    """Compute a formula of numbers, names, + - * /, parentheses, ceil(), min() and max().

    Args:
        text: The formula.
        values: Value of every name that the formula may use.
        where: Beginning of an error message: the file and the field.

    Raises:
        InputError: The formula contains anything else or an unknown name, is too long, divides by zero, or its value is
            not finite.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval") if len(text) <= _LONGEST else None
        if tree is None:
            raise SyntaxError
        value = float(_value(tree.body, values, where))
    except (SyntaxError, TypeError, ValueError, RecursionError, OverflowError, ZeroDivisionError) as error:
        if isinstance(error, InputError):
            raise
        why = "divides by zero" if isinstance(error, ZeroDivisionError) else "is no formula"
        if size := re.search(r"[\d.]+[KMGT]i?B?\b", text):
            raise InputError(
                f"{where}: {shown(text)}: {size[0]} cannot stand in a formula; write bytes, as 1024*1024"
            ) from None
        raise InputError(
            f"{where}: {shown(text)} {why}; it must be numbers and names with + - * / ( ) ceil min max"
        ) from None
    if not math.isfinite(value):
        raise InputError(f"{where}: {shown(text)} is not finite; it must be a number")
    return value


def _value(node: ast.expr, values: Mapping[str, float], where: str) -> float:
    """Compute the value of one node of a formula's syntax tree.

    Raises:
        InputError: A name has no value.
        SyntaxError: The node is anything that a formula may not contain.
        ZeroDivisionError: The formula divides by zero.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.Name):
        if node.id in values:
            return float(values[node.id])
        hint = did_you_mean(node.id, list(values), "; ")
        some_names = ", ".join(list(values)[:20]) + (", …" if len(values) > 20 else "") or "none"
        raise InputError(f"{where}: {shown(node.id)} has no value{hint}; it must be one of: {some_names}")
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, values, where), _value(node.right, values, where))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, values, where)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        if node.keywords or not node.args:
            raise SyntaxError
        return _FUNCTIONS[node.func.id](*(_value(part, values, where) for part in node.args))
    raise SyntaxError
