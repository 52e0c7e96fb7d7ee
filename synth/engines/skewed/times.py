"""The order of a plan's rows (the sends of chunks), and their times in that order."""

from __future__ import annotations

from typing import Any


def sort_rows(
    rows: int, row_key: Any, buckets: int, bucket_ptr: Any, row_bucket: Any, sorted_key: Any, order: Any
) -> None:
    """Set the order of the rows by their keys; rows of equal keys stay as they are.

    Rows are sorted into buckets of equal width, and then by insertion, which moves few of them.

    Args:
        rows: Number of rows.
        row_key: Key of each row, 0 or more.
        buckets: Number of buckets.
        bucket_ptr: Workspace of `buckets` numbers.
        row_bucket: Workspace of a number a row.
        sorted_key: Workspace of a number a row, float64.
        order: Rows in their order, to be set.
    """
    most = 0.0
    for row in range(rows):
        most = max(most, row_key[row])
    scale = (buckets - 1) / most if most > 0.0 else 0.0
    for b in range(buckets):
        bucket_ptr[b] = 0
    for row in range(rows):
        b = int(row_key[row] * scale)
        row_bucket[row] = b
        bucket_ptr[b] += 1
    total = 0
    for b in range(buckets):
        count = bucket_ptr[b]
        bucket_ptr[b] = total
        total += count
    for row in range(rows):
        x = bucket_ptr[row_bucket[row]]
        order[x], sorted_key[x] = row, row_key[row]
        bucket_ptr[row_bucket[row]] += 1
    for x in range(1, rows):
        key, row = sorted_key[x], order[x]
        y = x
        while y > 0 and sorted_key[y - 1] > key:
            sorted_key[y], order[y] = sorted_key[y - 1], order[y - 1]
            y -= 1
        sorted_key[y], order[y] = key, row


def set_times(  # A loop that Numba compiles takes columns, however many.
    rows: int, chunks: int, order: Any, row_chunk: Any, row_link: Any, chunk_bytes: Any, alpha: Any, link_us: Any,
    row_step: Any, gap: Any, first_port: Any, last_port: Any, begins: float, ready: Any, free: Any, send_chunk: Any,
    send_link: Any, send_step: Any, send_start: Any,
) -> float:  # fmt: skip
    """Time the rows in their order, and set the columns of the sends; return the time in µs of the last arrival.

    A row starts when its chunk has arrived at its source and all resources of its link are free of the rows before it.

    Args:
        rows: Number of rows.
        chunks: Number of chunks.
        order: Rows in their order; those of a chunk in the order of its path.
        row_chunk: Chunk of each row.
        row_link: Link of each row.
        chunk_bytes: Bytes of each chunk.
        alpha: α of each link in µs.
        link_us: Time of a byte on each link in µs.
        row_step: Number of rows of its chunk before each row.
        gap: Time in µs for which each link's resources stay busy after a send.
        first_port: A resource of each link.
        last_port: Its other resource, or the same.
        begins: Time in µs before which nothing is sent.
        ready: Workspace of a number a chunk, float64.
        free: Workspace of a number a resource, float64.
        send_chunk: Chunk of each send, to be set, as the following ones.
        send_link: Link.
        send_step: Number of sends of its chunk before it.
        send_start: Time in µs at which it takes its link.
    """
    last = 0.0
    for c in range(chunks):
        ready[c] = begins
    for r in range(len(free)):
        free[r] = 0.0
    for x in range(rows):
        row = order[x]
        c, link = row_chunk[row], row_link[row]
        first, second = first_port[link], last_port[link]
        start = max(ready[c], free[first], free[second])
        end = start + chunk_bytes[c] * link_us[link]
        free[first] = free[second] = end + gap[link]
        ready[c] = end + alpha[link]
        last = max(last, ready[c])
        send_chunk[x], send_link[x], send_step[x], send_start[x] = c, link, row_step[row], start
    return last
