"""A schedule as a program, word for word: a threadblock for each end of each link, every send a step of its own."""

from __future__ import annotations

from collections import defaultdict

from emit.program import Gpu, Program, Step, ThreadBlock
from synth.model.problem import Problem
from synth.model.schedule import Schedule


def transcribed(problem: Problem, schedule: Schedule) -> Program:
    """Sends over a link in the order of their rows; each waits for the arrivals that `synth.timing.simulate`
    has it wait for.

    The schedule must be timed, its chunks equal. The program only has the schedule's waits, not a right result's.
    """
    net, collective = problem.network, problem.collective
    rows = list(zip(schedule.chunk.tolist(), schedule.link.tolist(), schedule.step.tolist(), strict=True))
    arrive = (schedule.end_us + net.alpha_us[schedule.link]).tolist()
    by_link = defaultdict(list)
    into = defaultdict(list)
    for row, (chunk, link, _) in enumerate(rows):
        by_link[link].append(row)
        into[chunk, int(net.dst[link])].append(row)
    held = {(c, r) for r, c in collective.pre.tolist()}
    ends = [{} for _ in range(problem.nranks)]  # (peer, sends) → number of the threadblock
    place = {}  # of each row: where it is received
    for link, sent in sorted(by_link.items()):
        u, v = int(net.src[link]), int(net.dst[link])
        ends[u][v, True] = len(ends[u])
        ends[v][u, False] = len(ends[v])
        for at, row in enumerate(sent):
            place[row] = (ends[v][u, False], at)
    blocks: list[list[ThreadBlock | None]] = [[None] * len(e) for e in ends]
    for link, sent in by_link.items():
        u, v = int(net.src[link]), int(net.dst[link])
        steps = []
        for row in sent:
            chunk, _, step = rows[row]
            came = [r for r in into[chunk, u] if rows[r][2] < step]
            if not collective.reduces[chunk]:
                came = [] if (chunk, u) in held else [min(came, key=lambda r: arrive[r])]
            steps += [Step("nop", dep_tb=place[r][0], dep_step=place[r][1]) for r in came]
            steps.append(Step("s", "i", chunk, "i", chunk, 1))
        got = [Step("r", "i", rows[row][0], "i", rows[row][0], 1, has_dep=True) for row in sent]
        blocks[u][ends[u][v, True]] = ThreadBlock(v, -1, 0, steps)
        blocks[v][ends[v][u, False]] = ThreadBlock(-1, u, 0, got)
    gpus = [Gpu(collective.nchunks, 0, 0, [b for b in tbs if b is not None]) for tbs in blocks]
    whole = round(1 / float(collective.fraction[0]))
    return Program("transcribed", "custom", "LL", problem.nranks, whole, True, False, gpus)
