"""The engine `messages`: few messages between nodes, each of as many chunks as can leave together.

An executor's cost of a message (the gap) counts at small sizes more than its bytes. Programs send several chunks that
leave together in one message. The engine tries phases of messages between nodes with several radixes, messages of
growing width, one or more links for each message, and waves that follow each other in a pipeline, as long as these
help.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import permutations, product
from operator import itemgetter

import numpy as np

from synth.engines.flow.csr_network import CsrNetwork, carrier_network
from synth.engines.messages.estimate import doors_of, estimated_us, lag_of
from synth.engines.messages.exchange import exchanging, factors_of, shards_of
from synth.engines.messages.merging import evened, growing
from synth.engines.messages.nodes import Nodes, nodes_of
from synth.engines.messages.ordering import ordered
from synth.engines.messages.plans import MessagePlan, MessagesForm, moving, spreading
from synth.engines.messages.tuning import TUNING, MessagesTuning
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.collective import Floats
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.phases.prune import prune_copies
from synth.phases.reversal import backwards, reverse, reversible
from synth.phases.split import join, split
from synth.timing.simulate import predict_us

NAME = "messages"


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty where it accepts the problem.

    It accepts a problem of one process group, without quotient and with one chunk a block, that copies to all, sums
    from all or both, or moves chunks, in a network whose nodes are all linked with a gap. It takes no pinned shape.
    """
    if problem.quotient is not None or problem.allowed_holders is not None or problem.collective.chunks != 1:
        return "messages takes one group, no quotient problems and one chunk a block"
    if options.pinned:
        return "messages pins no chunks, steps or rounds; leave --chunks, --steps and --rounds out"
    if not _kind(problem):
        return "messages is for collectives that copy to all, sum from all or both, or move chunks"
    if nodes_of(problem.network) is None:
        return "messages needs nodes whose messages have a gap, all linked with each other (--costs)"
    return ""


def _kind(problem: Problem) -> str:
    """Return how a problem is planned: spread, gather, both or move; empty where it cannot be.

    "spread" copies to all ranks, "gather" sums from all ranks, "both" is an all-reduce, and "move" has one holder and
    one goal a chunk.
    """
    collective = problem.collective
    if collective.kind.in_shares:
        return "both"
    holders, goals = (np.diff(table[0]) for table in (collective.holders, collective.goals))
    if not collective.reducing and (holders == 1).all():
        return "spread" if (goals == collective.nranks).all() else "move" if (goals == 1).all() else ""
    everywhere = reversible(collective) and (holders == collective.nranks).all()
    return "gather" if everywhere and (goals == 1).all() else ""


def solve(problem: Problem, request: Request, tuning: MessagesTuning = TUNING) -> Iterator[Outcome]:
    """Yield for each size better and better schedules, and progress."""
    nodes = nodes_of(problem.network)
    assert nodes is not None  # `accepts` has looked.
    search = _MessagesSearch(problem, request, tuning, nodes)
    for size in request.sizes:
        yield from search.run(size)


@dataclass
class _MessagesSearch:
    """The search for the best form and number of waves.

    Attributes:
        problem: The problem.
        request: The request.
        tuning: Settings of the engine.
        nodes: The nodes of the problem's network.
        best_us: Best time so far at the present size.
        name: Name of the engine in its answers.
    """

    problem: Problem
    request: Request
    tuning: MessagesTuning
    nodes: Nodes
    best_us: float = np.inf
    name: str = NAME
    _best: tuple[int, MessagesForm, int] | None = None
    _net: CsrNetwork | None = None
    _plans: dict[tuple[int, int, MessagesForm], MessagePlan | None] = field(default_factory=dict)

    def run(self, size: int) -> Iterator[Outcome]:
        """Yield better and better schedules for a message size in bytes.

        For programs, trees are searched apart: they have many messages whose order counts, which programs do not keep.
        They come first, because they have few sends.
        """
        forms, trees, best_us = self._forms(size), self._trees(size), self.request.knowledge.best_us(size)
        if self.request.most_sends:
            yield from self._run(f"{NAME}, trees", trees, size, np.inf)
        yield from self._run(NAME, forms if self.request.most_sends else forms + trees, size, best_us)

    def _run(self, name: str, forms: list[tuple[int, MessagesForm]], size: int, best_us: float) -> Iterator[Outcome]:
        """Yield better and better schedules of some forms.

        Args:
            name: Name of the engine in these answers.
            forms: Chunks a block with each form.
            size: Message size in bytes.
            best_us: Time in µs that they must beat.
        """
        self.name, self._best, self.best_us = name, None, best_us
        reached: list[tuple[float, int, MessagesForm]] = []
        kind, worth = _kind(self.problem), self.tuning.worth
        least_us_of = {
            form: estimated_us(self.problem, self.nodes, form, kind, size) for form in {form: None for _, form in forms}
        }
        ordered_forms = sorted((least_us_of[form], place, parts, form) for place, (parts, form) in enumerate(forms))
        for least_us, _, parts, form in ordered_forms[: self.tuning.forms]:
            if least_us < self.best_us * worth:
                time = yield from self._try(parts, form, 1, size)
                reached.append((time, parts, form))
        for time, parts, form in sorted(reached):
            if form.trees or time >= self.tuning.hopeless * self.best_us:
                continue
            if form.distributed:
                yield from self._while_it_gains(
                    [(parts * finer, form._replace(parts=form.parts * finer), 1) for finer in self.tuning.finer], size
                )
                continue
            yield from self._while_it_gains([(parts, form, waves) for waves in self.tuning.waves], size)
            if not form.exchanged and len(self.nodes.members[0]) > 2 and _kind(self.problem) != "move":
                scattered = form._replace(scattered=True)
                yield from self._while_it_gains([(parts, scattered, waves) for waves in self.tuning.waves], size)
        if self._best is not None:
            yield from self._try(*self._best, size, self.tuning.orders_at_last)

    def _while_it_gains(self, trials: list[tuple[int, MessagesForm, int]], size: int) -> Iterator[Outcome]:
        """Yield schedules of trials (chunks a block, form, waves), until two trials in a row gain nothing."""
        before_us, idle = np.inf, 0
        for parts, form, waves in trials:
            time = yield from self._try(parts, form, waves, size)
            idle = 0 if time < before_us else idle + 1
            if idle > 1:
                return
            before_us = min(before_us, time)

    @property
    def _has_root(self) -> bool:
        """Return whether the collective has a root with one buffer for all ranks."""
        return self.problem.collective.kind.rooted and self.problem.collective.nchunks == 1

    def _carriers(self) -> list[int]:
        """Return the numbers of links over which a message is spread that are tried, ascending."""
        count, places = len(self.nodes), max(len(members) for members in self.nodes.members)
        powers = [1 << e for e in range(places.bit_length()) if 1 << e <= places]
        most = max(len(links) for links in self.nodes.between.values())
        return sorted({min(most, k) for k in (*powers, places, max(1, places // max(1, count - 1)))})

    def _forms(self, size: int) -> list[tuple[int, MessagesForm]]:
        """Return (chunks a block, form) for the forms to try at a message size in bytes, without trees."""
        count, places = len(self.nodes), max(len(members) for members in self.nodes.members)
        collective = self.problem.collective
        radixes = list(dict.fromkeys([count, *(r for r in self.tuning.radixes if r < count)]))
        is_uneven = collective.block is not None and _kind(self.problem) != "move"
        if is_uneven and count > 2:
            radixes.insert(1, 1)
        forms = [MessagesForm(*figures) for figures in product(radixes, self._carriers())]
        if is_uneven and not self._has_root:
            return [(parts, form) for form in forms for parts in self.tuning.uneven_parts]
        if collective.kind.in_shares and self.problem.relays:
            return [(collective.nranks, form) for form in forms]
        if collective.kind.in_shares:
            ways = factors_of(count)
            exchanged = [(places, MessagesForm(count, places, exchanged=True, radixes=radixes)) for radixes in ways]
            halved = [
                MessagesForm(count, places, exchanged=True, radixes=radixes, halved=halved)
                for way in ways for radixes in sorted(set(permutations(way))) for halved in range(1, len(way) + 1)
            ]  # fmt: skip
            exchanged += [(places * shards_of(form), form) for form in halved]
            gathered = [
                MessagesForm(count, 1 << (places // (radixes[0] - 1)).bit_length() - 1, scattered,
                             exchanged=True, radixes=radixes, gathered=True)
                for radixes in ways if 2 < radixes[0] <= places + 1 for scattered in (False, True)
            ]  # fmt: skip
            exchanged += [(form.carriers * shards_of(form), form) for form in gathered]
            return exchanged + [(collective.nranks, form) for form in (*forms, *self._merged(size))]
        if self._has_root:
            return self._rooted(forms)
        return [(1, form) for form in (*forms, *self._merged(size))]

    def _merged(self, size: int) -> list[MessagesForm]:
        """Return the forms whose messages grow, for a message size in bytes; none for collectives that move chunks."""
        if _kind(self.problem) == "move":
            return []
        doors, count = doors_of(self.nodes, size), len(self.nodes)
        plain = [growing(count, doors, widest) for widest in self.tuning.widths if widest < count]
        phases = dict.fromkeys(own for phases in plain for own in (phases, evened(phases, doors.places)))
        return [MessagesForm(count, 1, merged=own) for own in phases]

    def _rooted(self, forms: list[MessagesForm]) -> list[tuple[int, MessagesForm]]:
        """Return (chunks, form) for a root's buffer, of which the nodes get parts first or all at once."""
        other_nodes = len(self.nodes) - 1
        rooted = [(parts, form) for form in forms for parts in sorted({1, form.carriers, len(self.nodes.members[0])})]
        if other_nodes < 2:
            return rooted
        spread = [
            MessagesForm(other_nodes, carriers, distributed=True, parts=parts)
            for carriers in dict.fromkeys(form.carriers for form in forms)
            for parts in self.tuning.parts
        ]
        return rooted + [(self._chunks(other_nodes * form.carriers * form.parts), form) for form in spread]

    def _trees(self, size: int) -> list[tuple[int, MessagesForm]]:
        """Return (chunks, form) for forms in which parts of a root's buffer of `size` bytes go over trees of their own.

        There is none for a collective without a root's one buffer.
        """
        if not self._has_root:
            return []
        counts = [trees for trees in self.tuning.trees if trees * (len(self.nodes) - 1) <= self.tuning.most_hands]
        forms = [MessagesForm(2, links, trees=trees) for links in self._carriers() for trees in counts]
        doors = len(self.nodes.doors)
        if 0 < doors * (len(self.nodes) - 1) <= self.tuning.most_edges:
            forms += [MessagesForm(2, 1, trees=waves * doors, doors=doors) for waves in counts]
        forms = [form._replace(lag=lag_of(self.nodes, form, size)) for form in forms]
        return [(self._chunks(form.carriers * form.trees), form) for form in forms]

    def _chunks(self, messages: int) -> int:
        """Return into how many chunks a root's buffer is cut for a number of messages to nodes.

        It is that number, or for programs a larger power of two, unless it is a power of two already.
        """
        if not self.request.most_sends or messages.bit_count() == 1:
            return messages
        # Programs need chunks that divide the usual message sizes; many of them can be shared out nearly equally.
        return 1 << (self.tuning.chunks_of_message * messages - 1).bit_length()

    def _try(
        self, parts: int, form: MessagesForm, waves: int, size: int, orders: int | None = None
    ) -> Generator[Outcome, None, float]:
        """Yield the candidate of a form if it is the fastest so far, and progress.

        Args:
            parts: Chunks a block.
            form: The form.
            waves: Parts into which each of these chunks is cut.
            size: Message size in bytes.
            orders: List schedules to try; None for the usual number.

        Returns:
            Its time in µs; inf without time, where there is no such schedule, or it has too many sends or too small
            chunks.
        """
        chunks, collective, most = parts * waves, self.problem.collective, self.tuning.most_sends
        copies = 1 + 2 * self.nodes.depth if _kind(self.problem) == "move" else self.problem.nranks
        sends = chunks * collective.nchunks * copies
        smallest = float(collective.fraction.min()) * size / chunks
        # A chunk for each rank's share is no refinement, and serves any size.
        is_refined = chunks > (collective.nranks if collective.kind.in_shares else 1)
        too_small = chunks > 1 and smallest < max(1, (self.request.options.least_bytes or 0) * is_refined)
        too_many = sends > min(most, self.request.most_sends or most)
        if now() >= self.request.deadline or too_many or too_small:
            return np.inf
        schedule = self._schedule(parts, form, waves)
        if schedule is None:
            return np.inf
        whole = self.problem.with_chunks(parts).with_equal_parts(waves)
        turn = (np.arange(whole.collective.nchunks) % waves + self._turn(parts, form)) / waves
        if (net := self._net) is None:
            net = self._net = carrier_network(whole.network)
        in_time = ordered(whole, schedule, size, turn, net, orders or self.tuning.orders, self.request.deadline)
        time, schedule = min(
            ((predict_us(whole, candidate, size), candidate) for candidate in (in_time, schedule)), key=itemgetter(0)
        )
        if time < self.best_us:
            self.best_us, self._best = time, (parts, form, waves)
            yield Candidate(whole, schedule, self.name, size, supersedes=True)
        yield Progress(f"messages: waves {waves}, {time / self.request.bound.at(size)[0]:.3f} × the bound")
        return time

    def _schedule(self, parts: int, form: MessagesForm, waves: int) -> Schedule | None:
        """Return the untimed schedule of a form in waves; None where the form does not suit the nodes."""
        problem, kind = self.problem.with_chunks(parts), _kind(self.problem)
        if form.exchanged:
            plan = self._plan(0, problem, form)
            return None if plan is None else plan.schedule(waves)
        if kind == "both":
            summing, copying = split(problem)
            sums = self._planned(1, reverse(summing), form, waves)
            copies = self._planned(2, copying, form, waves)
            if sums is None or copies is None:
                return None
            return join(backwards(problem.with_equal_parts(waves), sums), copies)
        schedule = self._planned(0, reverse(problem) if kind == "gather" else problem, form, waves)
        if schedule is None or kind != "gather":
            return schedule
        return backwards(problem.with_equal_parts(waves), schedule)

    def _planned(self, key: int, problem: Problem, form: MessagesForm, waves: int) -> Schedule | None:
        """Return the schedule of a form; relays get only what they pass on. None where the form does not suit."""
        plan = self._plan(key, problem, form)
        if plan is None:
            return None
        schedule = plan.schedule(waves)
        return prune_copies(problem.with_equal_parts(waves), schedule) if problem.relays else schedule

    def _turn(self, parts: int, form: MessagesForm) -> Floats:
        """Return when each chunk leaves the root within its wave, from 0 to 1, shape (chunks,).

        It is one 0 where all chunks leave at once.
        """
        plan = self._plans.get((0, self.problem.with_chunks(parts).collective.nchunks, form))
        return np.zeros(1) if plan is None or plan.turn is None else plan.turn

    def _plan(self, key: int, problem: Problem, form: MessagesForm) -> MessagePlan | None:
        """Return the plan of a problem in a form, None where there is none; `key` tells a search's problems apart."""
        place = key, problem.collective.nchunks, form
        if place not in self._plans:
            nodes = nodes_of(problem.network)
            if nodes is None:
                plan = None
            elif form.exchanged:
                plan = exchanging(nodes, form)
            else:
                build = moving if _kind(self.problem) == "move" else spreading
                plan = build(nodes, problem.collective, form)
            self._plans[place] = plan
        return self._plans[place]
