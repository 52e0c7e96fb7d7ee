"""What scripts that measure calls of torch.distributed in jobs have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec


def work_or_options(
    about: str | None, rounds: int, work: Callable[[int], None], least_rounds: int = 1
) -> argparse.Namespace | None:
    """Return what a script that measures calls in jobs was asked for; None if this is a rank, whose work is then done.

    Args:
        about: The script's own words about itself.
        rounds: Rounds without --rounds.
        work: Function that is a rank's work, from the number of rounds.
        least_rounds: The fewest rounds that give every row of the table a time.

    Returns:
        `ranks`, numbers of ranks of the jobs, and `rounds`.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"{least_rounds} at least; default: {rounds}")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < least_rounds:
        parser.error(f"--rounds {options.rounds}: too few; it must be at least {least_rounds}")
    if find_spec("torch") is None:
        raise SystemExit("PyTorch is not installed: pip install '.[torch]'")
    if not options.work:
        return options
    work(options.work)
    return None
