"""Give the answers of a search the times of a target's programs: what `run_by` does for a saved or asked answer."""

from __future__ import annotations

import math
from dataclasses import replace

from emit.library.lowered import Lowered
from emit.library.programs import Programs
from synth.search.budget import Budget
from synth.search.offer import Offer
from synth.search.plans import LIBRARY_PATIENCE
from synth.search.pool import Pool
from synth.search.result import SearchResult

INTERRUPTED = "interrupted before it was lowered"
_AT_ONCE = 300  # sends of an algorithm that is lowered after Ctrl-C: a few tenths of a second


def run_by(result: SearchResult, programs: Programs, until: float = math.inf) -> SearchResult:
    """Return a search's answers with the times, ranges and gaps of a target's programs, unless they have them already.

    `result` itself is returned if they have, or if its search had no time for programs; otherwise it is copied, and
    `programs.of_other_form` is set to the programs that it has for the other form of calls.

    Args:
        result: The search. After Ctrl-C only one of its small algorithms is lowered; if it has none, all ranges are
            marked as refused.
        programs: Lowering of its algorithms.
        until: Time of `synth.model.deadline.now`; algorithms that are not lowered and written by then are left out of
            the ranges and stand in `refused` with the reason, unless none has a program.
    """
    lowered = [program for served in result.ranges if isinstance(program := served.execution, Lowered)]
    untried = [offer for offer in result.ranges if offer.execution is None and not offer.refused]
    is_same_target = (
        program.target == programs.target and program.program.inplace == programs.inplace for program in lowered
    )
    is_out_of_time = result.stop_reason == "budget" and until < math.inf  # What had no time before is not tried again.
    if (lowered or is_out_of_time) and not untried and all(is_same_target):
        return result
    # The best number of instances hardly depends on the form of the calls, and trying several takes long.
    programs.of_other_form = {
        offer.algorithm: offer.execution
        for offer in (*result.ranges, *result.unused)
        if isinstance(offer.execution, Lowered) and offer.execution.target == programs.target
    }
    offers = [*result.ranges, *(() if result.stop_reason else result.unused)]
    if result.stop_reason == "interrupted":
        offers = [offer for offer in offers if len(offer.algorithm.schedule) <= _AT_ONCE]
        if not offers:
            return replace(result, ranges=[offer.without_program(INTERRUPTED) for offer in result.ranges])
        until = 0.0  # One program is enough.
    spent_s = result.seconds if until > 0 else 0.0
    untried_offers = {
        offer.algorithm: Offer(offer.algorithm, least_size=offer.least_size) for offer in reversed(offers)
    }
    patience = 0.0 if programs.patience_s == math.inf else LIBRARY_PATIENCE
    pool = Pool(programs, Budget.until(until, spent_s, patience), offers=[*reversed(untried_offers.values())])
    pinned = [served.low for served in result.ranges if served.low == served.high]
    ranges = pool.files(pinned[0] if pinned else None)
    stop_reason = result.stop_reason or ("budget" if pool.is_hurried else "")
    return replace(result, ranges=ranges, refused=[*result.refused, *pool.refused], stop_reason=stop_reason)
