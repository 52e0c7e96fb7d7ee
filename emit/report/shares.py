"""In what part of each of equal pieces of time something is in use, as small tables for a page."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from topologies.arrays import Floats, Ints

MOST_ROWS = 256  # of a timeline with a bar for every send; more are drawn as a heat map
MOST_HEAT_ROWS = 512


def shares_of_time(row: Ints, start: Floats, end: Floats, nrows: int, nbins: int, span: float) -> Floats:
    """The part of each bin of 0..span in which a row's intervals lie, shape (nrows, nbins); overlaps add."""
    if span <= 0 or not len(row):
        return np.zeros((nrows, nbins))
    width = span / nbins
    # time since each start, summed, is a sum over starts so far; that of ends taken off leaves the time in between
    since = _since(row, start / width, nrows, nbins) - _since(row, end / width, nrows, nbins)
    shares: Floats = np.clip(np.diff(since, axis=1), 0.0, None)
    return shares


def _since(row: Ints, when: Floats, nrows: int, nbins: int) -> Floats:
    """Σ max(0, edge − when) over a row's times, at the edges 0, 1, …, nbins."""
    bin_ = np.clip(np.floor(when).astype(np.int64), 0, nbins - 1)
    cell = row * nbins + bin_
    size = nrows * nbins
    count = np.bincount(cell, minlength=size).reshape(nrows, nbins)
    # within its bin a time counts from its place in it: small numbers, so that nothing cancels
    left = np.bincount(cell, weights=np.clip(bin_ + 1 - when, 0.0, 1.0), minlength=size).reshape(nrows, nbins)
    out = np.zeros((nrows, nbins + 1))
    before = np.cumsum(count, axis=1) - count
    out[:, 1:] = np.cumsum(left + before, axis=1)
    return out


def pack_table(shares: Floats) -> dict[str, Any]:
    """A table of shares (0..1) as a page holds it: each different row once, and which of them each row is."""
    coarse = np.round(np.clip(shares, 0.0, 1.0) * 255).astype(np.uint8)
    kinds, which = np.unique(coarse, axis=0, return_inverse=True)
    data = base64.b64encode(kinds.tobytes()).decode("ascii")
    return {"bins": int(shares.shape[1]), "row": which.reshape(-1).tolist(), "data": data}


def timeline_rows(
    names: list[str], load: Floats, shares: Floats, copies: int, links: int, all_listed: bool
) -> tuple[dict[str, Any], Ints]:
    """The timeline's rows: one each with its bars, or, where those are too many, bands of rows as a heat map.

    copies: links that a row stands for.  links: that there are.  all_listed: whether the page lists all sends. Returns
    what the page holds (heat: a table, or None for bars), and which of its rows each of those given is part of.
    """
    nrows = len(names)
    view: dict[str, Any] = {"copies": copies, "links": links, "used": int((load > 0).sum()) * copies}
    if all_listed and nrows <= MOST_ROWS:
        return view | {"names": names, "load": round_all(load), "heat": None}, np.arange(nrows)
    band = np.arange(nrows) * min(MOST_HEAT_ROWS, nrows) // max(nrows, 1)
    count = np.bincount(band, minlength=1)
    start = np.cumsum(count) - count
    titles = [
        names[low] if many == 1 else f"{names[low]} … {names[low + many - 1]}"
        for low, many in zip(start.tolist(), count.tolist(), strict=True)
    ]
    heat = pack_table(np.add.reduceat(shares, start, axis=0) / count[:, None])
    loads = np.add.reduceat(load, start) / count
    return view | {"names": titles, "load": round_all(loads), "heat": heat}, band


def rank_rates(out: Floats, into: Floats) -> tuple[float, dict[str, Any]]:
    """What every rank sends and gets in each piece of time, as tables of shares of the most; and that most."""
    top = max(float(out.max(initial=0.0)), float(into.max(initial=0.0)))
    scale = top if top > 0 else 1.0
    return top, {"out": pack_table(out / scale), "in": pack_table(into / scale)}


def round_value(value: float) -> float:
    """Seven digits: more than a page can show."""
    return float(f"{value:.7g}")


def round_all(values: Floats) -> list[float]:
    """`round_value` of each."""
    return [round_value(value) for value in values.tolist()]
