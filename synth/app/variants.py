"""Compare variants of a network: for each the time of collectives, the proved bound, and what it costs.

A topology, or its file, has parameters in braces, as in `dgx-h100:{nodes}`. Each variant and message size is a problem
of a library build without targets: it is solved by the same pools, kept in the same cache, and checked the same way.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from synth.app.clusters.answer_check import checked_answer
from synth.app.clusters.cluster import Cluster, ClusterGroup
from synth.app.clusters.local import WorkerPool
from synth.app.clusters.plan import WORKS_S, BuildShare, make_plan
from synth.app.clusters.task import Answer, unpacked
from synth.app.figures import matplotlib_module
from synth.model.text import format_short_size, format_time
from synth.parallelism.formula import evaluate
from synth.storage.cache import Cache
from topologies.errors import InputError
from topologies.importers import MAX_FILE_BYTES
from topologies.load import apply_costs, load
from topologies.text.fields import shown
from topologies.text.files import read_text
from topologies.topology import Topology

_MOST_VARIANTS = 1000
_SECONDS_OF_WORK = 3.0  # that a second of counted work takes, about
_LIMIT, _LEAST_LIMIT_S = 4.0, 15.0  # multiple of the budget after which the clock ends a problem, and its least
_RANKS = "ranks"  # Name of the number of ranks in formulas of costs.
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")  # where a parameter stands; an inline table of TOML has a "="
_LONGEST_VALUE = 60  # characters


@dataclass(frozen=True)
class Variant:
    """A network of a sweep.

    Attributes:
        values: Value of each parameter, as text, by name.
        topology: The network, with the costs of the sweep on.
        cost: What it costs, in the unit of the user's formula; None without a formula.
    """

    values: Mapping[str, str]
    topology: Topology
    cost: float | None


class VariantTime(NamedTuple):
    """The answer for one variant, collective and message size.

    Attributes:
        variant: The variant.
        collective: Name of the collective.
        size_bytes: Message size in bytes.
        time_us: Time of the best schedule in µs; None if there is no answer.
        bound_us: Time in µs that no schedule can beat; None if there is no answer.
        engine: What found the schedule.
        proof: What proves the bound.
        refused: Why there is no answer; "" if there is one.
    """

    variant: Variant
    collective: str
    size_bytes: int
    time_us: float | None = None
    bound_us: float | None = None
    engine: str = ""
    proof: str = ""
    refused: str = ""

    @property
    def gap(self) -> float | None:
        """Return time / bound, None without an answer."""
        return None if self.time_us is None or self.bound_us is None else self.time_us / self.bound_us


def parse_parameter(text: str) -> tuple[str, list[str]]:
    """Return the name and the values of a parameter that is written as NAME=VALUE,VALUE.

    Raises:
        InputError: The text is not of this form, or a value is empty, too long or listed twice.
    """
    name, equals, listed = text.partition("=")
    name, values = name.strip(), [value.strip() for value in listed.split(",")]
    if not equals:
        raise InputError(f"--vary {shown(text)}: must be NAME=VALUE,VALUE, as nodes=2,4,8")
    if not _PARAMETER.fullmatch(name):
        raise InputError(f"--vary {shown(text)}: a name has letters, digits and _, as nodes=2,4,8")
    if name == _RANKS:
        raise InputError(f"--vary {shown(text)}: {_RANKS} is the number of ranks in --cost; choose another name")
    if not all(0 < len(value) <= _LONGEST_VALUE for value in values):
        raise InputError(f"--vary {shown(text)}: each value must have 1 to {_LONGEST_VALUE} characters")
    if twice := next((value for value in values if values.count(value) > 1), None):
        raise InputError(f"--vary {shown(text)}: {twice} is listed twice; list each value once")
    return name, values


def make_variants(
    topo: str, parameters: Mapping[str, Sequence[str]], cost: str | None = None, costs: str = "auto"
) -> list[Variant]:
    """Return a variant for each combination of the values of parameters, the last parameter changing fastest.

    Args:
        topo: Name of a topology, or a file with or without a number of nodes (as `load` takes them). A parameter NAME
            stands in it, or in the text of the file, as {NAME}.
        parameters: Values of each parameter, as texts.
        cost: Formula of what a variant costs, over the parameters that are numbers, and `ranks`; None for no costs.
        costs: Costs of an executor, as `apply_costs` takes them.

    Raises:
        InputError: There are too many variants; a parameter stands nowhere; a variant's topology cannot be read; or the
            formula is wrong.
    """
    combinations = [dict(zip(parameters, values, strict=True)) for values in product(*parameters.values())]
    if not 0 < len(combinations) <= _MOST_VARIANTS:
        raise InputError(f"--vary: {len(combinations)} variants; it must be 1 to {_MOST_VARIANTS}")
    file, nodes = _file_of(topo)
    text = read_text(file, "a topology's file", MAX_FILE_BYTES) if file is not None else ""
    places = set(_PLACE.findall(topo + text))
    if file is None and not places:
        load(topo)  # It says what is wrong with a topology that does not exist.
    for name in parameters:
        if name not in places:
            raise InputError(f"--vary {name}: stands nowhere; write it as {{{name}}} in --topo or in its file")
    if places - parameters.keys():
        name = min(places - parameters.keys())
        raise InputError(f"{topo}: {{{name}}} has no values; add --vary {name}=…")
    variants = []
    with tempfile.TemporaryDirectory() as folder:
        for values in combinations:
            spec = _with_values(topo, values)
            if file is not None and (filled := _with_values(text, values)) != text:
                spec = str(Path(folder) / file.name) + _with_values(nodes, values)
                (Path(folder) / file.name).write_text(filled, encoding="utf-8")
            try:
                topology = apply_costs(load(spec), costs)
            except InputError as error:
                raise InputError(f"{describe_values(values)}: {str(error).replace(f'{folder}/', '')}") from None
            variants.append(Variant(values, topology, _cost_of(cost, values, topology.nranks)))
    return variants


def _file_of(topo: str) -> tuple[Path | None, str]:
    """Return the file that a topology's text names, None for none, and the text of its number of nodes, as ":4"."""
    name, colon, count = topo.rpartition(":")
    for path, nodes in ((topo, ""), (name, colon + count)):
        if path and Path(path).suffix and Path(path).is_file():
            return Path(path), nodes
    return None, ""


def _with_values(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the value of each parameter NAME in place of {NAME}."""
    return _PLACE.sub(lambda place: values[place[1]], text)


def describe_values(values: Mapping[str, str]) -> str:
    """Return the values of a variant as text, such as "nodes=2 nics=4"."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def _cost_of(formula: str | None, values: Mapping[str, str], nranks: int) -> float | None:
    """Return the value of a formula of costs for a variant; InputError if it is wrong or negative."""
    if formula is None:
        return None
    numbers = {_RANKS: float(nranks)}
    for name, value in values.items():
        try:
            numbers[name] = float(value)
        except ValueError:  # It may be a machine's name.
            if re.search(rf"\b{name}\b", formula):
                advice = "a formula takes parameters that are numbers"
                raise InputError(f"--cost {shown(formula)}: {name} is a text ({value}); {advice}") from None
    cost = evaluate(formula, numbers, "--cost")
    if cost < 0:
        raise InputError(f"--cost {shown(formula)}: is {cost:g} for {describe_values(values)}; it must be 0 or more")
    return cost


def unbeaten(results: Sequence[VariantTime]) -> set[int]:
    """Return the numbers of the results that no other beats: being better in time or cost, and as good in the other.

    Results of the same collective and size are compared. Without costs, all cost the same. A result without a time is
    always beaten.
    """
    figures: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
    for number, result in enumerate(results):
        if result.time_us is not None:
            row = result.time_us, result.variant.cost or 0.0, number
            figures.setdefault((result.collective, result.size_bytes), []).append(row)
    best = set()
    for rows in figures.values():
        least, time_of_least = math.inf, math.inf
        for time_us, cost, number in sorted(rows):
            if cost < least:
                least, time_of_least = cost, time_us
            if (time_us, cost) == (time_of_least, least):
                best.add(number)
    return best


@dataclass(eq=False)
class Sweep:
    """The problems of a sweep, and their answers as they come.

    Attributes:
        questions: Variant, collective and message size of each problem, in the order of results.
        shares: The share of a library build for each of them, or why there is none.
        times: Answers, by the number of the question.
        interrupted: Whether Ctrl-C ended it.
    """

    questions: list[tuple[Variant, str, int]]
    shares: list[BuildShare | str]
    times: dict[int, VariantTime] = field(default_factory=dict)
    interrupted: bool = False

    def results(self) -> list[VariantTime]:
        """Return the answers so far, in the order of questions."""
        return [self.times[number] for number in sorted(self.times)]

    def run(self, cache: Cache, pool: WorkerPool, report: Callable[[int, int], None]) -> None:
        """Answer all questions: from the cache, or by the processes of a pool; equal problems are solved once.

        An answer of the cache, or of other users' processes, is checked before it counts.

        Args:
            cache: The cache of answers.
            pool: The processes, which are stopped at the end.
            report: Is called with the numbers of answered and of all questions.
        """
        numbers: dict[str, list[int]] = {}
        for number, share in enumerate(self.shares):
            if isinstance(share, str):
                self._take(number, refused=share)
            else:
                numbers.setdefault(share.task.key, []).append(number)
        try:
            with pool:
                for key, same in numbers.items():
                    packed = cache.get(key)
                    if packed is None or not self._taken(same, packed, checks=True) or self.times[same[0]].refused:
                        pool.submit(self._share(same[0]).task)
                    report(len(self.times), len(self.questions))
                for finished in pool.results():
                    same = numbers[finished.task.key]
                    if finished.answer is None or not self._taken(same, finished.answer, checks=not pool.is_own):
                        for number in same:
                            self._take(number, refused=finished.why or "the answer of a worker did not pass its check")
                    elif self.times[same[0]].time_us is not None:  # Another run may find what is missing.
                        with suppress(OSError):  # A folder that cannot be written keeps nothing.
                            cache.put(finished.task.key, finished.answer)
                    report(len(self.times), len(self.questions))
        except KeyboardInterrupt:
            self.interrupted = True

    def _share(self, number: int) -> BuildShare:
        """Return the share of a question that has one."""
        share = self.shares[number]
        assert isinstance(share, BuildShare)
        return share

    def _taken(self, numbers: Sequence[int], packed: bytes, checks: bool) -> bool:
        """Take a packed answer for some questions; return False, and take nothing, if it is wrong.

        Args:
            numbers: Numbers of the questions, which are the same problem.
            packed: The answer.
            checks: Whether its schedules and proofs are checked, as others may have made it.
        """
        try:
            answer = unpacked(packed)
            answer = checked_answer(self._share(numbers[0]), answer) if checks else answer
        except InputError:
            return False
        row = next((row for row in (*answer.unfiled, *answer.rows) if "time_us" in row), None)
        for number in numbers:
            if row is None:
                self._take(number, refused=_why_without_schedule(answer))
            else:
                figures = {name: row[name] for name in ("time_us", "bound_us", "engine", "proof")}
                self._take(number, **figures)
        return True

    def _take(self, number: int, **figures: Any) -> None:
        """Record the answer of a question."""
        self.times[number] = VariantTime(*self.questions[number], **figures)


def make_sweep(variants: Sequence[Variant], collectives: Sequence[str], sizes: Sequence[int], budget_s: float) -> Sweep:
    """Return the problems of a sweep: every collective of all ranks of every variant, at every message size.

    Args:
        variants: The variants.
        collectives: Names of rows of `COLLECTIVE_KINDS`, of blocks of one size.
        sizes: Message sizes in bytes.
        budget_s: Seconds for the search of each problem. Its class of `WORKS_S` decides; the clock ends a problem after
            four times as long.
    """
    questions = list(product(variants, collectives, sizes))
    return Sweep(questions, list(_shares(questions, budget_s)))


def _why_without_schedule(answer: Answer) -> str:
    """Return in one line why an answer has no schedule: a part of synth that failed, or else what its rows state."""
    if answer.defects:
        return f"defect: {answer.defects[0]}; its answers are missing"
    return next((str(row["refused"]) for row in answer.unfiled if row.get("refused")), "there is no schedule")


def _shares(questions: Sequence[tuple[Variant, str, int]], budget_s: float) -> Iterator[BuildShare | str]:
    """Yield the share of a library build for each question, or why there is none; a question has `budget_s` seconds."""
    work_s = max((class_s for class_s in WORKS_S if class_s <= budget_s / _SECONDS_OF_WORK), default=WORKS_S[0])
    limit_s = max(_LEAST_LIMIT_S, _LIMIT * budget_s)
    for variant, collective, size in questions:
        topology = variant.topology
        group = ClusterGroup(tuple(range(topology.nranks)), "all")
        cluster = Cluster(topology, topology, (group,), (collective,), size, size, (), budget_s, switch_ops=True)
        try:
            share = make_plan(cluster, 1, work_s).shares[0]
        except InputError as error:
            yield str(error).split(f"{collective}: ", 1)[-1].removeprefix("group: ")
        else:
            share.task = replace(share.task, limit_s=limit_s, stated_s=budget_s)
            yield share


def draw_variants(results: Sequence[VariantTime]) -> Any:
    """Draw the time and the bound of each variant of a network, a panel for each collective and size.

    Args:
        results: The answers of a sweep; those without a time are left out.

    Returns:
        The figure of matplotlib.

    Raises:
        InputError: matplotlib is not installed.
    """
    panels: dict[tuple[str, int], list[VariantTime]] = {}
    for result in results:
        panels.setdefault((result.collective, result.size_bytes), []).append(result)
    figure = matplotlib_module("figure").Figure(figsize=(6, 3 * max(1, len(panels))), layout="constrained")
    for axes, ((collective, size), rows) in zip(
        figure.subplots(max(1, len(panels)), squeeze=False)[:, 0], panels.items(), strict=False
    ):
        answered = [row for row in rows if row.time_us is not None]
        names = [" ".join(row.variant.values.values()) for row in answered]
        axes.bar(names, [row.time_us for row in answered], color="0.8", label="time")
        axes.plot(names, [row.bound_us for row in answered], "k_", markersize=12, label="bound: nothing is faster")
        axes.yaxis.set_major_formatter(lambda time_us, _: format_time(time_us))
        axes.set_xlabel(" ".join(rows[0].variant.values))
        axes.set_title(f"{collective}, {format_short_size(size)}")
        axes.legend()
    return figure
