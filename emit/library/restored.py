"""Restoring of a lowered program from its file: it is checked and timed here, and nothing else is believed.

Lowering looks for the best of many programs, which takes seconds. Its result is a file, and whether a file is right and
how long it takes follows from the file, the algorithm and the network.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from emit.compiler.lower import named_chunks_per_loop
from emit.formats import PROGRAM_FORMATS
from emit.library.entry import IndexEntry
from emit.library.library_file import read_right, requirement_of
from emit.library.lowered import Lowered, exact_scale
from emit.library.programs import Programs
from emit.program import Program
from emit.targets import most_bytes
from synth.model.common_chunk import CommonChunk, common_chunk, cut_blocks
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

_MOST_CELLS = 1 << 16  # cells of a block that a file may have


def restored_program(entry: IndexEntry, algorithm: Algorithm, programs: Programs) -> Lowered:
    """Return the program in a library's file as the lowering of an algorithm, replayed and timed on the network.

    The result keeps the file's text.

    Args:
        entry: The file's entry in an index. It only tells what the file is for.
        algorithm: Algorithm from which the file should have been lowered.
        programs: Lowers algorithms of this problem, for the same target and form of calls.

    Raises:
        InputError: If the file is not right, is for something else, or cannot be lowered from this algorithm.
    """
    text, program = read_right(entry, requirement_of(programs))
    target, form = programs.target, PROGRAM_FORMATS[programs.target.format]
    if program.inplace != programs.inplace:
        raise InputError(f"{entry.file}: is for the other form of calls, in or out of place")
    predictor = form.predictor(text, program, algorithm.problem.topology, algorithm.problem.ranks)
    common, parts = _cells(entry, program, algorithm)
    chunk_share = predictor.chunk_bytes(1.0) / program.cells_a_chunk
    scale = exact_scale(float(common.cells.fraction[0]) / float(parts) / chunk_share)
    if entry.goal() is None and not common.padding and scale != 1.0:
        raise InputError(f"{entry.file}: is for messages {scale:.3g} times as large as the schedule's")
    if form.holds_program:
        largest = most_bytes(program, target.limits)
    else:  # The text is limited to the sizes that it serves.
        largest = form.writer.largest_message(form.writer.restate(text, entry.file, 1, None, target))
    return Lowered(target, program, entry.goal(), predictor, common, scale, largest, text)


def _cells(entry: IndexEntry, program: Program, algorithm: Algorithm) -> tuple[CommonChunk, Fraction]:
    """Return the cells of a program, and the number of parts into which the compiler cut each of them.

    It is less than 1 where chunks of the schedule that go the same way became one chunk.

    Raises:
        InputError: If the program's chunks are not the schedule's, cut into equal parts or merged.
    """
    collective, goal = algorithm.problem.collective, entry.stated_goal
    plain = common_chunk(collective)
    if goal is None:
        ratio = Fraction(program.nchunks_per_loop, named_chunks_per_loop(plain.cells))
    else:
        ratio = Fraction(len(goal["initial"][0]), len(plain.cells.pre))
    is_uniform = np.ptp(collective.fraction) == 0 and collective.nchunks % collective.chunks == 0
    cells = ratio * plain.cells.chunks
    is_whole = (cells if is_uniform else ratio).denominator == 1
    is_merged = is_uniform and is_whole and 0 < cells < collective.chunks and collective.chunks % int(cells) == 0
    if not is_whole or not (is_merged or collective.chunks <= cells <= _MOST_CELLS):
        raise InputError(f"{entry.file}: its chunks are not those of the schedule")
    if is_merged:
        return plain, cells / collective.chunks
    if not is_uniform:
        return plain, ratio
    width, wider = divmod(int(cells), collective.chunks)
    widths = [width + (chunk < wider) for chunk in range(collective.chunks)]
    return (plain if int(cells) == collective.chunks else cut_blocks(collective, widths)), Fraction(1)
