"""Instructions for more chunks than an executor takes at once become several."""

from __future__ import annotations

from emit.compiler.ir import NONE, Draft


def split(draft: Draft, most: int) -> Draft:
    """Every instruction for `most` chunks or fewer, in as few pieces as that takes, both ends of a message alike."""
    if all(count <= most for count in draft.count):
        return draft
    made = Draft(draft.like, draft.goal)
    first = [0] * len(draft)
    for n, count in enumerate(draft.count):
        first[n] = len(made)
        src, dst, source = draft.src[n], draft.dst[n], draft.source[n]
        for piece, at in enumerate(range(0, count, most)):
            made.add(
                draft.rank[n],
                draft.op[n],
                src + at if src != NONE else NONE,
                dst + at if dst != NONE else NONE,
                min(most, count - at),
                first[source] + piece if source != NONE else NONE,
                draft.lane[n],
            )
    return made
