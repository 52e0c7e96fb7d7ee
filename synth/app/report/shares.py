"""The share of equal pieces of time in which something is in use, as small tables for a page."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from topologies.arrays import Floats, Ints

MOST_ROWS = 256  # rows of a timeline with a bar for every send; more rows are drawn as a heat map
MOST_HEAT_ROWS = 512


def shares_of_time(row: Ints, start: Floats, end: Floats, nrows: int, nbins: int, span: float) -> Floats:
    """Return the share of each bin of 0..span in which a row's intervals lie, float, shape (nrows, nbins).

    Overlapping intervals add, so that a share can be over 1. All shares are 0 if `span` is not positive.

    Args:
        row: Row of each interval.
        start: Start of each interval, in the unit of `span`.
        end: End of each interval.
        nrows: Number of rows.
        nbins: Number of equal bins.
        span: End of the last bin.
    """
    if span <= 0 or not len(row):
        return np.zeros((nrows, nbins))
    width = span / nbins
    # The sum of times since each start, minus that since each end, is the time inside the intervals so far.
    since = _since(row, start / width, nrows, nbins) - _since(row, end / width, nrows, nbins)
    shares: Floats = np.clip(np.diff(since, axis=1), 0.0, None)
    return shares


def _since(row: Ints, times: Floats, nrows: int, nbins: int) -> Floats:
    """Return Σ max(0, edge − time) over a row's times, at the edges 0, 1, …, nbins, shape (nrows, nbins + 1).

    Args:
        row: Row of each time.
        times: Times in bins.
        nrows: Number of rows.
        nbins: Number of bins.
    """
    bin_ = np.clip(np.floor(times).astype(np.int64), 0, nbins - 1)
    cell = row * nbins + bin_
    size = nrows * nbins
    count = np.bincount(cell, minlength=size).reshape(nrows, nbins)
    # Within its bin a time counts from its place in the bin; these numbers are small, so no digits cancel.
    remainder = np.bincount(cell, weights=np.clip(bin_ + 1 - times, 0.0, 1.0), minlength=size).reshape(nrows, nbins)
    out = np.zeros((nrows, nbins + 1))
    before = np.cumsum(count, axis=1) - count
    out[:, 1:] = np.cumsum(remainder + before, axis=1)
    return out


def pack_table(shares: Floats) -> dict[str, Any]:
    """Return a table of shares for a page, which holds each distinct row once.

    Args:
        shares: Numbers, shape (rows, bins); they are clipped to 0..1.

    Returns:
        A dictionary with these keys:

        - bins: Number of columns.
        - row: For each row, its index among the distinct rows.
        - data: The distinct rows in base64, each number as a byte: the share times 255, rounded.
    """
    coarse = np.round(np.clip(shares, 0.0, 1.0) * 255).astype(np.uint8)
    kinds, which = np.unique(coarse, axis=0, return_inverse=True)
    data = base64.b64encode(kinds.tobytes()).decode("ascii")
    return {"bins": int(shares.shape[1]), "row": which.reshape(-1).tolist(), "data": data}


def timeline_rows(
    names: list[str], load: Floats, shares: Floats, copies: int, links: int, all_listed: bool
) -> tuple[dict[str, Any], Ints]:
    """Return the timeline's rows: bars for each row, or bands of rows as a heat map if there are too many.

    There are bars if all sends are listed and there are at most 256 rows. A heat map has at most 512 bands, each with
    the mean of its rows.

    Args:
        names: Name of each row.
        load: Load of each row.
        shares: Shares of time of each row, shape (rows, bins).
        copies: Number of links that a row stands for.
        links: Number of links in all.
        all_listed: True if the page lists all sends.

    Returns:
        The page's data (copies, links, used: number of links with a load, names, load, and heat: a packed table, or
        None for bars), and the index of the page's row that has each given row.
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
    """Return the highest rate, and each rank's sending and receiving rates over time as shares of it.

    Args:
        out: Sending rates, shape (ranks, bins).
        into: Receiving rates, of the same shape.

    Returns:
        The highest rate in the arguments' unit, at least 0; and a dictionary with two packed tables (see `pack_table`),
        out and in.
    """
    top = max(float(out.max(initial=0.0)), float(into.max(initial=0.0)))
    scale = top if top > 0 else 1.0
    return top, {"out": pack_table(out / scale), "in": pack_table(into / scale)}


def round_value(value: float) -> float:
    """Return a value rounded to seven significant digits, more than a page can show."""
    return float(f"{value:.7g}")


def round_all(values: Floats) -> list[float]:
    """Return the values of an array as a list, each rounded to seven significant digits."""
    return [round_value(value) for value in values.tolist()]
