"""The screen: a statement as the table people read."""

from __future__ import annotations

from typing import Any

from synth.present.statement import count, size_words, statement, time_words
from synth.search.result import Found

_MANY = 16


def _ranks(ranks: list[int]) -> str:
    if len(ranks) <= _MANY:
        return " ".join(map(str, ranks))
    return " ".join(map(str, ranks[: _MANY - 1])) + f" … {ranks[-1]}"


def heading(found: Found, said: dict[str, Any]) -> str:
    """`allreduce · dgx-a100 · group 0 2 4 6 (4 of 8 …)`."""
    total = found.problem.topology.nranks
    group = said["group"]
    whole = group == list(range(total))
    who = f"all {total} ranks" if whole else f"group {_ranks(group)}"
    count = "" if whole else f"{len(group)} of "
    extras = [f"{count}{said['summary'] or str(total) + ' ranks'}", said["alpha"]]
    if said["root"] is not None:
        extras.append(f"root {said['root']}")
    if said["relays"]:
        extras.append(f"relays {_ranks(said['relays'])}")
    return f"{said['collective']} · {said['topology']} · {who} ({', '.join(extras)})"


def _served(row: dict[str, Any]) -> str:
    low, high = row["min_bytes"], row["max_bytes"]
    if high is None:
        return f"from {size_words(low)}" if low else "all sizes"
    if low == high:
        return size_words(low)
    return f"{size_words(low)} to {size_words(high)}" if low else f"up to {size_words(high)}"


def table(found: Found) -> str:
    """Heading, one line an algorithm, and what is proved in the k-synchronous model."""
    said = statement(found)
    titles: tuple[str, ...] = (
        "message size",
        "steps",
        "rounds",
        "chunks",
        "predicted",
        "bound",
        "gap",
        "vs baseline",
        "proof",
    )
    hurt = any(row["vs_healthy"] is not None for row in said["algorithms"])
    if hurt:
        titles = (*titles[:-1], "vs healthy", titles[-1])
    lines: list[tuple[str, ...]] = [titles]
    for row in said["algorithms"]:
        short = size_words(row["shown_bytes"]).replace(" ", "").replace("iB", "")
        versus = "–" if row["vs_baseline"] is None else f"{row['vs_baseline']:.2f} ×"
        lines.append(
            (
                _served(row),
                str(row["steps"]),
                str(row["rounds"]),
                str(row["chunks"]),
                f"{time_words(row['time_us'])} @ {short}",
                time_words(row["bound_us"]),
                f"{row['gap']:.3f}",
                versus,
                *([f"{row['vs_healthy']:.2f} ×" if row["vs_healthy"] else "–"] if hurt else []),
                row["proof"],
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    text = [heading(found, said), ""]
    for line in lines:
        cells = [
            cell.ljust(width) if i in (0, len(titles) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(cells).rstrip())
    proved = _proved(said)
    return "\n".join([*text, *([""] if proved else []), *proved])


def _proved(said: dict[str, Any]) -> list[str]:
    """One line for every number of steps of which something is proved."""
    lines = []
    for claim in said["k_synchronous"]:
        if not claim["proved"] or claim["rounds"] is None:
            continue
        part = f" ({claim['part']})" if claim["part"] else ""
        lines.append(
            f"k-synchronous{part}: {count(claim['rounds'], 'round')} / {count(claim['chunks'], 'chunk')}"
            f" is the least in {count(claim['steps'], 'step')} {claim['proof']}"
        )
    for claim in said["time_slots"]:
        lines.append(
            f"time slots: with {count(claim['chunks'], 'chunk')} a block no schedule of {size_words(claim['bytes'])}"
            f" takes less than {time_words(claim['bound_us'])}, by {claim['solver']}'s dual bound"
        )
    return lines
