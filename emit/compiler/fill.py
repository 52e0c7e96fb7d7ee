"""Programs side by side until links are filled, where one threadblock moves less than a link carries.

Only where an executor's costs are on (`topologies.costs`): in α and bandwidth alone a threadblock fills any link.
"""

from __future__ import annotations

import math
from dataclasses import replace

from emit.compiler.instances import side_by_side
from emit.compiler.ir import instructions_of
from emit.compiler.lower import Lowering
from emit.program import Program
from emit.targets import Limits
from emit.timing.predict import Predictor
from synth.model.deadline import now
from topologies.errors import InputError

_FILLED = 1.02  # times the schedule's time, from which on more threadblocks are not worth theirs
_GAIN = 0.99  # of the best time, that more instances must come to
_MOST = 16  # instances


def filled(
    lowering: Lowering, program: Program, limits: Limits, low: int, high: int, until: float = math.inf
) -> tuple[int, Program]:
    """A lowered program in as many instances as gain for messages of `high` bytes, within the target's limits.

    First of the program itself; then of the one on fewest channels, for where chunks that go one behind the other
    through several ranks are spread over channels, a pipeline becomes shorter: instances have one each.

    Returns how many, a power of two, and the program: its cells are so many times as fine. One where the schedule's
    time, which no number of threadblocks can better, is reached; and of a goal of one's own, whose cells are what is
    asked. until: of `synth.model.deadline.now`, when no more are made.
    """
    problem = lowering.algorithm.problem
    enough_us = _FILLED * lowering.algorithm.time_us(high)

    def time_us(made: Program) -> float:
        return Predictor(made, problem.topology, problem.ranks).time_us(high)

    best, best_us, number = program, time_us(program), 1
    for narrow in (False, True):
        if lowering.goal is not None or best_us <= enough_us or now() >= until:
            break
        try:
            one = lowering.program(program.protocol, min_bytes=low, max_bytes=high, narrow=True) if narrow else program
        except InputError:
            break
        if narrow and one.nchannels == program.nchannels:
            break
        last_us, instances = time_us(one), 2
        while instances <= _MOST and best_us > enough_us and now() < until:
            ir = replace(instructions_of(one, None, False), instances=instances, interleaved=None)
            try:
                made = side_by_side(one, ir, limits)
            except InputError:
                break
            made_us = time_us(made)
            if made_us <= _GAIN * best_us:
                best, best_us, number = made, made_us, instances
            elif made_us > _GAIN * last_us:
                break
            last_us, instances = made_us, 2 * instances
    return number, best
