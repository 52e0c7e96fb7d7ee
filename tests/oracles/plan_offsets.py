"""The 32-bit arithmetic of the plan executor, to find operations that go wrong at a message size."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
WRAP = 1 << 32
PACKETS = {"cpkt", "upkt", "ppkt", "rppkt", "repkt", "recpkt", "respkt", "recspkt", "gstorepkt"}


def overflowing(plan: Json, message: int, allocation: int) -> list[tuple[int, int, int]]:
    """Return (rank, threadblock, operation) of operations whose spans are cut or moved by 32 bits.

    Args:
        plan: The plan.
        message: Bytes of the output for allgather, else of the input.
        allocation: Bytes of the allocation in which the input lies.
    """
    operations = []
    for rank, gpu in enumerate(plan["gpus"]):
        inputs, outputs = gpu["input_chunks"], gpu["output_chunks"]
        input_bytes = message // outputs * inputs if plan["collective"] == "allgather" else message
        lines, factor = input_bytes // plan["buffer_alignment"], 2 if plan["protocol"] == "LL" else 1
        sized = max(min(allocation, plan["max_message_size"]), input_bytes)
        scratch = -(-sized // inputs) * gpu["scratch_chunks"] * factor * (2 if plan["use_double_scratch_buffer"] else 1)
        half = scratch // 2 if plan["use_double_scratch_buffer"] else 0
        for tb, block in enumerate(gpu["threadblocks"]):
            for position, op in enumerate(block["ops"]):
                for part in (*op.get("src_buff", ()), *op.get("dst_buff", ())):
                    first, last = (
                        (x * (lines // inputs) + min(x, lines % inputs)) * plan["buffer_alignment"]
                        for x in (part["index"], part["index"] + part["size"])
                    )
                    size = (last % WRAP - first % WRAP) % WRAP
                    reached = first * 2 + half if op["name"] in PACKETS else first
                    if size != last - first or last >= WRAP or half >= WRAP or reached >= WRAP:
                        operations.append((rank, tb, position))
    return operations
