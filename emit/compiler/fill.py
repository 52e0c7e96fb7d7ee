"""Programs side by side until links are filled, where one threadblock moves less than a link carries.

Only where an executor's costs are on (`topologies.costs`): in α and bandwidth alone a threadblock fills any link.
"""

from __future__ import annotations

from dataclasses import replace

from emit.compiler.instances import side_by_side
from emit.compiler.ir import instructions_of
from emit.goal import Goal
from emit.program import Program
from emit.targets import Limits
from emit.timing.predict import Predictor
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

_FILLED = 1.02  # times the schedule's time, from which on more threadblocks are not worth theirs
_GAIN = 0.99  # of the time of half as many instances, that twice as many must come to
_MOST = 8  # instances


def filled(
    program: Program, goal: Goal | None, limits: Limits, algorithm: Algorithm, size_bytes: float
) -> tuple[int, Program]:
    """The program in as many instances as gain at a message size, a power of two of them, within the target's limits.

    Returns their number and the program: its cells are so many times as fine. One where the schedule's time, which no
    number of threadblocks can better, is reached; and of a goal of one's own, whose cells are what is asked.
    """
    problem, best, number = algorithm.problem, program, 1
    best_us = Predictor(program, problem.topology, problem.ranks).time_us(size_bytes)
    enough_us = _FILLED * algorithm.time_us(size_bytes)
    while goal is None and best_us > enough_us and 2 * number <= _MOST:
        ir = instructions_of(program, goal, False)
        try:
            made = side_by_side(program, replace(ir, instances=2 * number, interleaved=None), limits)
        except InputError:
            break
        made_us = Predictor(made, problem.topology, problem.ranks).time_us(size_bytes)
        if made_us > _GAIN * best_us:
            break
        best, best_us, number = made, made_us, 2 * number
    return number, best
