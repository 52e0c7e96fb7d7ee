"""What the executor computes in 32 bits, computed as it does: which operations go astray at a message size."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
WRAP = 1 << 32
PACKETS = {"cpkt", "upkt", "ppkt", "rppkt", "repkt", "recpkt", "respkt", "recspkt"}


def overflowing(plan: Json, message: int, allocation: int) -> list[tuple[int, int, int]]:
    """(rank, threadblock, operation) of those whose spans are cut or moved by 32 bits.

    message: bytes of the output for allgather, else of the input. allocation: bytes of that in which the input lies.
    """
    found = []
    for rank, gpu in enumerate(plan["gpus"]):
        inputs, outputs = gpu["input_chunks"], gpu["output_chunks"]
        input_bytes = message // outputs * inputs if plan["collective"] == "allgather" else message
        lines, factor = input_bytes // plan["buffer_alignment"], 2 if plan["protocol"] == "LL" else 1
        sized = max(min(allocation, plan["max_message_size"]), input_bytes)
        scratch = -(-sized // inputs) * gpu["scratch_chunks"] * factor * (2 if plan["use_double_scratch_buffer"] else 1)
        half = scratch // 2 if plan["use_double_scratch_buffer"] else 0
        for tb, block in enumerate(gpu["threadblocks"]):
            for at, op in enumerate(block["ops"]):
                for part in (*op.get("src_buff", ()), *op.get("dst_buff", ())):
                    first, last = (
                        (x * (lines // inputs) + min(x, lines % inputs)) * plan["buffer_alignment"]
                        for x in (part["index"], part["index"] + part["size"])
                    )
                    size = (last % WRAP - first % WRAP) % WRAP
                    reached = first * 2 + half if op["name"] in PACKETS else first
                    if size != last - first or last >= WRAP or half >= WRAP or reached >= WRAP:
                        found.append((rank, tb, at))
    return found
