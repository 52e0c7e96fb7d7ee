"""A schedule as a program: a threadblock for each end of each link, and a step for every send."""

from __future__ import annotations

from collections import defaultdict

from emit.program import Gpu, Program, Step, ThreadBlock
from synth.model.problem import Problem
from synth.model.schedule import Schedule


def transcribed(problem: Problem, schedule: Schedule) -> Program:
    """Return a program that sends over each link in the order of rows, with the waits of `synth.timing.simulate`.

    The schedule must be timed and its chunks equal. The program only has the schedule's waits, which may be too few for
    a right result.
    """
    net, collective = problem.network, problem.collective
    rows = list(zip(schedule.chunk.tolist(), schedule.link.tolist(), schedule.step.tolist(), strict=True))
    arrive = (schedule.end_us + net.alpha_us[schedule.link]).tolist()
    by_link = defaultdict(list)
    into = defaultdict(list)
    for row, (chunk, link, _) in enumerate(rows):
        by_link[link].append(row)
        into[chunk, int(net.dst[link])].append(row)
    initial = {(c, r) for r, c in collective.pre.tolist()}
    ends = [{} for _ in range(problem.nranks)]  # From (peer, whether it sends) to the number of the threadblock.
    place_of_row = {}  # (threadblock, step) that receives each row.
    for link, sent in sorted(by_link.items()):
        u, v = int(net.src[link]), int(net.dst[link])
        ends[u][v, True] = len(ends[u])
        ends[v][u, False] = len(ends[v])
        for position, row in enumerate(sent):
            place_of_row[row] = (ends[v][u, False], position)
    blocks: list[list[ThreadBlock | None]] = [[None] * len(e) for e in ends]
    for link, sent in by_link.items():
        u, v = int(net.src[link]), int(net.dst[link])
        steps = []
        for row in sent:
            chunk, _, step = rows[row]
            arrivals = [r for r in into[chunk, u] if rows[r][2] < step]
            if not collective.reduces[chunk]:
                arrivals = [] if (chunk, u) in initial else [min(arrivals, key=lambda r: arrive[r])]
            steps += [Step("nop", dep_tb=place_of_row[r][0], dep_step=place_of_row[r][1]) for r in arrivals]
            steps.append(Step("s", "i", chunk, "i", chunk, 1))
        receives = [Step("r", "i", rows[row][0], "i", rows[row][0], 1, has_dep=True) for row in sent]
        blocks[u][ends[u][v, True]] = ThreadBlock(v, -1, 0, steps)
        blocks[v][ends[v][u, False]] = ThreadBlock(-1, u, 0, receives)
    gpus = [Gpu(collective.nchunks, 0, 0, [b for b in tbs if b is not None]) for tbs in blocks]
    nchunks = round(1 / float(collective.fraction[0]))
    return Program("transcribed", "custom", "LL", problem.nranks, nchunks, True, False, gpus)
