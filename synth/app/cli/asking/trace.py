"""The option `--trace`: few files that serve all-to-alls whose sizes change at every call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import ArrayLike

from emit.library.saving.save import Saved, folder_of_problem, save, withdraw
from emit.targets import TARGETS
from synth.app.arguments import QuestionArguments
from synth.app.cli.asking.answer import (
    check_single,
    check_target,
    check_writable,
    clear_progress,
    progress_line,
    usual_folder,
    written_until,
)
from synth.app.cli.defects import say_defects
from synth.app.cli.options import SearchCommand, TraceOptions, print_json
from synth.app.present.layout import terminal_width, warn
from synth.app.present.trace import trace_table
from synth.app.question import make_question
from synth.app.synthesis import find_answer
from synth.bounds.borders import Borders, borders_of
from synth.engines.skewed.prepare import interpreted_s, planner_for, shape_for
from synth.engines.skewed.schedule import message_bytes
from synth.model.collective import Floats, Ints
from synth.model.compiled import choose_runner
from synth.model.deadline import TimeUp, limited, now
from synth.model.defects import collected
from synth.model.problem import Problem
from synth.model.sizes import read_trace
from synth.model.text import format_count, format_time
from synth.parallelism.capacities import Capacity, choose_capacities, even_capacity, padded_us
from synth.search.question import Question
from synth.search.result import Report, SearchResult
from synth.search.settings import AUTO, NONE
from synth.search.statement import described_question
from synth.solvers.workers import Workers
from topologies.costed import with_protocol
from topologies.errors import InputError

_CUTS = 0.1  # The share of the budget in which cuts of examples are looked for.


@dataclass(frozen=True, eq=False)
class Answered:
    """A capacity with the answer of its search.

    Attributes:
        capacity: The capacity.
        result: The search, with the times of the programs where there are files.
        saved: What was written; None for a capacity that is only compared with.
    """

    capacity: Capacity
    result: SearchResult
    saved: Saved | None

    @property
    def is_even(self) -> bool:
        """Return whether all blocks that are used have one size."""
        return int(self.capacity.cells.max()) == 1

    @property
    def target(self) -> str:
        """Return the target of the files; "" without files."""
        written = self.saved.new_files if self.saved is not None else []
        return next((file.entry.target for file in written if file is not None), "")

    def call_us(self, cell_bytes: int) -> float:
        """Return the time in µs with cells of so many bytes; inf where no file takes messages of that size."""
        size, saved = Capacity(self.capacity.cells, cell_bytes).buffer_bytes, self.saved
        offer = self.result.fastest(size)
        if saved is not None and saved.refused and saved.new_files[self.result.ranges.index(offer)] is None:
            return np.inf
        return np.inf if offer.library else offer.time_us(size)


@dataclass(frozen=True, eq=False)
class TraceAnswer:
    """All that is known of a trace.

    Attributes:
        options: What the command states about the trace.
        problem: The problem of the first capacity.
        borders: The borders that state the bound of each call.
        calls: The calls in which something is sent, int64, shape (m, k, k).
        held_out: Number of these calls, the last ones, for which no file was chosen.
        idle: Number of the calls in which nothing is sent.
        files: The capacities with files.
        even: Equal blocks; None where a file has them, or after Ctrl-C.
        is_cut: Whether Ctrl-C left capacities without an answer.
        unused: Number of the capacities that were left out, because no call takes their files.
    """

    options: TraceOptions
    problem: Problem
    borders: Borders
    calls: Ints
    held_out: int
    idle: int
    files: Sequence[Answered]
    even: Answered | None
    is_cut: bool
    unused: int = 0


def answer(command: SearchCommand, workers: Workers) -> Callable[[], None]:
    """Choose capacities for a trace, search and write files for each, and return a function that prints the report.

    Each capacity has an equal share of the budget, and so have equal blocks, with which the files are compared.

    Args:
        command: The call of the command, with a trace.
        workers: Solver processes.

    Raises:
        InputError: An option cannot be right, the trace cannot be read, or files cannot be written.
        KeyboardInterrupt: Ctrl-C came before there was an answer.
    """
    options = command.trace
    assert options is not None
    _check_options(command)
    progress = progress_line(command.begun)
    # Switches have nothing to multicast or to reduce in an all-to-all.
    stated = dataclasses.replace(command.question, switch_ops=False)
    members = make_question(dataclasses.replace(stated, collective="alltoall", target=NONE, chunks=None)).problem.group
    trace = read_trace(options.file, len(members))
    calls = trace[trace.any(axis=(1, 2))]
    chosen = len(calls) - round(options.holdout * len(calls))
    if not chosen:
        raise InputError(f"--holdout: leaves no call to choose files for, of {len(calls)}; it must be smaller")
    first = _question(stated, calls[0])
    progress("choosing capacities", None)
    borders = _borders(command, first.problem, stated, calls[:chosen])
    capacities = choose_capacities(calls[:chosen], options.files, borders, first.options.seed)
    even = even_capacity(calls[:chosen])
    is_even_chosen = any(np.array_equal(capacity.cells, even.cells) for capacity in capacities)
    with collected() as defects:
        answered = list(_answers(command, stated, capacities, [] if is_even_chosen else [even], workers, progress))
    say_defects(defects.values(), "its answers are missing")
    files, compared = answered[: len(capacities)], answered[len(capacities) :]
    held_out, idle = len(calls) - chosen, len(trace) - len(calls)
    trace_answer = TraceAnswer(
        options, first.problem, borders, calls, held_out, idle, files, compared[0] if compared else None,
        is_cut=len(files) < len(capacities) or not (is_even_chosen or compared),
    )  # fmt: skip
    return partial(_report, command, trace_answer if trace_answer.is_cut else _without_unused(trace_answer))


def _without_unused(answer: TraceAnswer) -> TraceAnswer:
    """Return what is known without the capacities that no call takes, and remove their new files.

    Capacities without files stay, since it is said why they have none.
    """
    owner = _served(answer.files, answer)[2]
    unused = [
        file
        for number, file in enumerate(answer.files)
        if number not in owner and file.saved is not None and not file.saved.refused and not file.saved.left
    ]
    for file in unused:
        assert file.saved is not None
        withdraw(file.saved)
    even = answer.even or next((file for file in unused if file.is_even), None)
    files = [file for file in answer.files if file not in unused]
    return dataclasses.replace(answer, files=files, even=even, unused=len(unused))


def _borders(command: SearchCommand, problem: Problem, stated: QuestionArguments, calls: Ints) -> Borders:
    """Return the borders of the group, with cuts of the mean call and of equal blocks if these are proved in time."""
    examples = [_question(stated, sizes).problem for sizes in (calls.mean(axis=0), calls.any(axis=0) * 1e6)]
    try:
        return limited(now() + _CUTS * command.budget_s, partial(borders_of, problem, examples))
    except TimeUp:
        return borders_of(problem)


def _answers(
    command: SearchCommand,
    stated: QuestionArguments,
    capacities: Sequence[Capacity],
    compared: Sequence[Capacity],
    workers: Workers,
    progress: Report,
) -> Iterator[Answered]:
    """Yield the answer for each capacity, with an equal share of the budget; files are written for `capacities` only.

    After Ctrl-C nothing more is yielded.

    Args:
        command: The call of the command.
        stated: The arguments of the question, whose sizes are replaced.
        capacities: The capacities of the files.
        compared: Further capacities, with which the files are compared.
        workers: Solver processes.
        progress: Receives what is tried.

    Raises:
        InputError: A search has no answer in time, or files cannot be written.
        KeyboardInterrupt: Ctrl-C came before there was an answer.
    """
    assert command.trace is not None
    all_capacities, is_first = [*capacities, *compared], True
    folder = _folder(command, _question(stated, capacities[0].blocks))
    check_writable(folder, stated.target)
    share_s = (command.begun + command.budget_s - now()) / len(all_capacities)
    for capacity in all_capacities:
        begun = now()
        arguments = dataclasses.replace(stated, budget=max(share_s, 1e-3), begun=begun)
        question = _question(arguments, capacity.blocks)
        # Messages speak of the budget of the whole command.
        question = dataclasses.replace(
            question, options=dataclasses.replace(question.options, stated_s=command.budget_s)
        )
        try:
            result = find_answer(question, workers, progress)
        except KeyboardInterrupt:
            if is_first:
                raise
            return
        if not result.ranges:
            raise InputError(f"{command.trace.file}: no algorithm was found in time; a larger --budget may help")
        # The algorithm for calls that fill the capacity also serves smaller ones, and larger ones with headroom.
        most = int(capacity.buffer_bytes * command.trace.headroom)
        result.ranges = [dataclasses.replace(offer, low=0, high=most) for offer in result.ranges]
        saved, end = None, min(begun + share_s, written_until(result.stop_reason, command))
        if capacity not in compared:
            saved = save(result, folder, question.settings, proof=command.proof, anew=command.replace, until=end)
        yield Answered(capacity, result if saved is None else saved.result, saved)
        is_first = False
        if result.stop_reason == "interrupted":
            return


def _check_options(command: SearchCommand) -> None:
    """Raise InputError for an option that does not go with a trace."""
    arguments = command.question
    for option, value, why in (
        ("--groups", command.groups, "a trace is of one group"),
        ("--compare", command.compare, "it compares searches for one question"),
        ("--size", arguments.size, "the trace states the sizes"),
        ("--steps", arguments.steps, "the k-synchronous model has chunks of one size"),
        ("--rounds", arguments.rounds, "the k-synchronous model has chunks of one size"),
    ):
        if value is not None:
            raise InputError(f"{option}: does not go with --trace; {why}")
    check_single(command)
    check_target(arguments.target)


def _question(stated: QuestionArguments, sizes: ArrayLike) -> Question:
    """Return the question of one matrix of sizes, shape (k, k), without the healthy network's."""
    table = np.asarray(sizes, dtype=np.float64)
    arguments = dataclasses.replace(stated, sizes=table, size=message_bytes(table))
    return dataclasses.replace(make_question(arguments), healthy=None)


def _folder(command: SearchCommand, question: Question) -> Path:
    """Return the folder of the files: that of `--out`, else the usual one."""
    if command.out is not None:
        return Path(command.out)
    problem = question.problem
    return usual_folder(problem.topology.name, [problem.group], problem.relays, folder_of_problem(problem))


def _report(command: SearchCommand, answer: TraceAnswer) -> None:
    """Print what the files do for the trace, as a table or as JSON.

    Args:
        command: The call of the command.
        answer: All that is known.

    Raises:
        SystemExit: With 130 after an interruption, with 3 if a named target lacks a file.
    """
    clear_progress()
    document = _statement(answer) | {"seconds": round(now() - command.begun, 3)}
    if command.as_json:
        print_json("trace", document)
    else:
        width = None if command.wide else terminal_width()
        click.echo(trace_table(document, answer.problem.topology.nranks, width))
    if answer.is_cut:
        raise SystemExit(130)
    missing = document["unsaved"]
    if missing and command.question.target not in (AUTO, NONE):
        warn(f"warning: --target {command.question.target}: no file: {missing}")
        raise SystemExit(3)


def _statement(answer: TraceAnswer) -> dict[str, Any]:
    """Return a trace's answer as plain values.

    Returns:
        A dictionary with the keys of `described_question` except `sizes`, and with:

        - calls, held_out, idle: Number of calls in which something is sent, of those among them that no file was chosen
          for, and of calls in which nothing is sent.
        - headroom: Factor on the capacities up to which a call fits.
        - files: For each capacity: sizes (rows of bytes from rank to rank), buffer_bytes (the fullest buffer), paths
          of its files, and the `_figures` of the calls that it serves, of those that files were chosen for.
        - chosen, held: `_figures` of the calls that files were chosen for, and of the held out (None without): with the
          files; with even blocks; with plans made for each call's own sizes, and sent straight. None where not known.
        - remarks: `_remarks`.
        - unsaved: Why a capacity lacks files, or "".
        - ended: "interrupted" if Ctrl-C left capacities without an answer, or "".
    """
    calls, split = answer.calls, len(answer.calls) - answer.held_out
    bound_us = answer.borders.bound_us(calls.astype(np.float64))
    times_us, padded, owner = _served(answer.files, answer)
    compared = {"files": (times_us, padded)}
    if answer.even is not None:
        compared["even"] = _served([answer.even], answer)[:2]
    planned, unplanned = _planned_us(answer.problem, calls)
    compared |= {name: (times, bound_us) for name, times in planned.items()}
    by_part = {}
    for part, rows in (("chosen", slice(0, split)), ("held", slice(split, len(calls)))):
        figures = {
            name: _figures(times[rows], bound_us[rows], with_padding[rows])
            for name, (times, with_padding) in compared.items()
        }
        empty = dict.fromkeys(("files", "even", "planned", "straight"))
        by_part[part] = None if part == "held" and not answer.held_out else empty | figures
    files = []
    for number, file in enumerate(answer.files):
        own_us = np.where(owner == number, times_us, np.inf)[:split]
        assert file.saved is not None
        files.append(
            {
                "sizes": file.capacity.blocks.tolist(),
                "buffer_bytes": file.capacity.buffer_bytes,
                "paths": [str(path) for path in file.saved.paths],
                **_figures(own_us, bound_us[:split], padded[:split]),
            }
        )
    question = {key: value for key, value in described_question(answer.problem).items() if key != "sizes"}
    refused = [file.saved.refused or file.saved.left for file in answer.files if file.saved is not None]
    return {
        **question,
        "calls": len(calls),
        "held_out": answer.held_out,
        "idle": answer.idle,
        "headroom": answer.options.headroom,
        "files": files,
        **by_part,
        "remarks": list(_remarks(answer, by_part["chosen"] or {}, unplanned)),
        "unsaved": next((why for why in refused if why), ""),
        "ended": "interrupted" if answer.is_cut else "",
    }


def _served(answers: Sequence[Answered], answer: TraceAnswer) -> tuple[Floats, Floats, Ints]:
    """Return each call's time in µs by its fastest file, its bound with that file's padding, and the file's number.

    Where a call fits no file, they are inf, inf and −1.

    A call fits if it needs at most `headroom` times a capacity's cells. The bound of the padded call tells which files
    cannot be the fastest, so that their programs need not be timed.
    """
    calls = answer.calls
    cell_bytes = np.stack([file.capacity.cell_bytes_for(calls) for file in answers])
    most = np.array([file.capacity.cell_bytes * answer.options.headroom for file in answers])[:, None]
    least_us = np.stack([padded_us(file.capacity, calls, answer.borders) for file in answers])
    least_us[(cell_bytes < 0) | (cell_bytes > most)] = np.inf
    (times_us, padded), owner = np.full((2, len(calls)), np.inf), np.full(len(calls), -1)
    for call in range(len(calls)):
        for number in np.argsort(least_us[:, call], kind="stable").tolist():
            if least_us[number, call] >= times_us[call]:
                break
            time_us = answers[number].call_us(int(cell_bytes[number, call]))
            if time_us < times_us[call]:
                times_us[call], padded[call], owner[call] = time_us, least_us[number, call], number
    return times_us, padded, owner


def _remarks(answer: TraceAnswer, chosen: dict[str, Any], unplanned: str) -> Iterator[str]:
    """Yield what the figures do not say, a sentence each: what has no row and why, and how to use the files.

    Args:
        answer: All that is known.
        chosen: Figures of the calls that files were chosen for (see `_statement`).
        unplanned: Why the calls are not planned, or "".
    """
    files, straight = chosen["files"], chosen["straight"]
    if straight is not None and files["served"] and files["time_us"] > straight["time_us"]:
        times = f"{format_time(straight['time_us'])} against {format_time(files['time_us'])}"
        yield f"sending straight is faster for these calls: {times} on average"
    even = next((number for number, file in enumerate(answer.files, start=1) if file.is_even), None)
    if answer.even is None and even is not None:
        yield f"even padding has no row of its own: the blocks of file {even} are equal"
    if unplanned:
        yield f"planned for each call and sent straight are not known here: {unplanned}"
    if answer.unused:
        yield f"left out: {format_count(answer.unused, 'file')} that no call would take"
    for name in sorted({file.target for file in answer.files} & TARGETS.keys()):
        target = TARGETS[name]
        if "=" in target.load and sum(file.target == name for file in answer.files) > 1:
            yield f"{target.reader} cannot tell these files apart, so a run loads the file of one row only"


def _planned_us(problem: Problem, calls: Ints) -> tuple[dict[str, Floats], str]:
    """Return the times of each call in µs, with a plan for its own sizes and with each block sent whole and straight.

    Returns:
        The times as `planned` and `straight`, and why there are none, or "".
    """
    if problem.relays:
        return {}, "plans are for groups without relays"
    names = problem.protocols or [""]
    topologies = [with_protocol(problem.topology, name) if name else problem.topology for name in names]
    try:
        shapes = [shape_for(topology, problem.group) for topology in topologies]
    except InputError as error:
        return {}, str(error)
    interpreted = choose_runner(len(calls) * sum(map(interpreted_s, shapes))).interpreted
    planners = [planner_for(shape, interpreted=interpreted) for shape in shapes]
    return {
        "planned": np.array([min(planner.plan(sizes).time_us for planner in planners) for sizes in calls]),
        "straight": np.array([min(planner.plan_straight(sizes).time_us for planner in planners) for sizes in calls]),
    }, ""


def _figures(times_us: Floats, bound_us: Floats, padded_bound_us: Floats) -> dict[str, Any]:
    """Return the figures of some calls.

    Args:
        times_us: Their times in µs, inf for a call that is not served, shape (m,).
        bound_us: Their bounds, shape (m,).
        padded_bound_us: Their bounds with the padding that they have, shape (m,).

    Returns:
        A dictionary with the keys served (number of calls), time_us and bound_us (means over the served), gap (the
        quotient of these), padding (mean bound with padding / bound_us), worst_us, and worst_gap (largest time / bound
        of a call). All but the first are None where no call is served.
    """
    is_served = np.isfinite(times_us)
    if not is_served.any():
        return {"served": 0} | dict.fromkeys(("time_us", "bound_us", "gap", "padding", "worst_us", "worst_gap"))
    times_us, bound_us = times_us[is_served], bound_us[is_served]
    return {
        "served": len(times_us),
        "time_us": float(times_us.mean()),
        "bound_us": float(bound_us.mean()),
        "gap": float(times_us.sum() / bound_us.sum()),
        "padding": float(padded_bound_us[is_served].sum() / bound_us.sum()),
        "worst_us": float(times_us.max()),
        "worst_gap": float((times_us / bound_us).max()),
    }
