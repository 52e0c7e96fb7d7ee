"""A Plan as JSON text: one operation a line, the same plan always the same bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from emit.mscclpp.plan import SUMS, Op, Part, Plan, PlanBlock, PlanGpu

_NOP = '{"name": "nop"}'
_KEY = {"L": "type", "R": "buffer_id", "W": "switch_channel_id"}


def plan_text(plan: Plan) -> str:
    """The plan as the executor reads it, ended by a newline. Nothing is checked here."""
    head = {
        "name": plan.name,
        "collective": plan.collective,
        "protocol": plan.protocol,
        "inplace": plan.inplace,
        "reuse_resources": plan.reuse,
        "use_double_scratch_buffer": plan.double,
        "buffer_alignment": plan.alignment,
        "num_threads_per_block": plan.threads,
        "min_message_size": plan.min_bytes,
        "max_message_size": plan.max_bytes,
    }
    lines = [f" {_json(key)}: {_json(value)}," for key, value in head.items()]
    gpus = ",\n".join(_gpu(rank, gpu) for rank, gpu in enumerate(plan.gpus))
    return "{\n" + "\n".join(lines) + '\n "gpus": [\n' + gpus + "\n ]\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)


def _gpu(rank: int, gpu: PlanGpu) -> str:
    channels: list[dict[str, Any]] = [
        {"channel_type": kind, "connected_to": peers} for kind, peers in gpu.peers.items() if peers
    ]
    channels += [
        {
            "channel_type": "switch",
            "buffer_type": buffer,
            "rank_groups": [{"size": len(ranks), "ranks": ranks}],
        }
        for buffer, ranks in gpu.switches
    ]
    buffers = [{"rank": b.rank, "type": b.kind, "access_channel_types": list(b.types)} for b in gpu.buffers]
    head = {
        "id": rank,
        "input_chunks": gpu.input_chunks,
        "output_chunks": gpu.output_chunks,
        "scratch_chunks": gpu.scratch_chunks,
        "channels": channels,
        "remote_buffers": buffers,
        "semaphores": [{"init_value": held} for held in gpu.semaphores],
    }
    lines = [f"   {_json(key)}: {_json(value)}," for key, value in head.items()]
    blocks = ",\n".join(_block(number, block) for number, block in enumerate(gpu.blocks))
    inside = f"\n{blocks}\n   ]" if gpu.blocks else "]"
    return "  {\n" + "\n".join(lines) + '\n   "threadblocks": [' + inside + "\n  }"


def _block(number: int, block: PlanBlock) -> str:
    head = {
        "id": number,
        "channels": [{"channel_type": k, "channel_ids": ids} for k, ids in block.channels.items() if ids],
        "remote_buffer_refs": [
            {"access_channel_type": k, "remote_buffer_ids": ids} for k, ids in block.buffers.items() if ids
        ],
    }
    lines = [f"     {_json(key)}: {_json(value)}," for key, value in head.items()]
    ops = ",\n".join("      " + (_NOP if op.name == "nop" else _json(_op(op))) for op in block.ops)
    inside = f"\n{ops}\n     ]" if block.ops else "]"
    return "    {\n" + "\n".join(lines) + '\n     "ops": [' + inside + "\n    }"


def _op(op: Op) -> dict[str, Any]:
    made: dict[str, Any] = {"name": op.name}
    if op.src:
        made["src_buff"] = _parts(op.src)
    if op.dst:
        made["dst_buff"] = _parts(op.dst)
    if op.channels:
        made["channel_ids"] = list(op.channels)
    if op.channel_type:
        made["channel_type"] = op.channel_type
    if op.semaphores:
        made["semaphore_ids"] = list(op.semaphores)
    if op.name == "barrier":
        made["barrier_id"] = op.barrier
        made["num_threadblocks"] = op.blocks
    if op.name in SUMS:
        made["reduce_op"] = op.redop or "sum"
    if op.group != (0, 1):
        made["tbg_info"] = {"tb_id": op.group[0], "tbg_size": op.group[1]}
    if op.name == "pipeline":
        made["iter_context"] = {"unit_size": op.unit_bytes, "num_chunks": op.unit_chunks}
        made["ops"] = [_op(inner) for inner in op.ops]
    return made


def _parts(parts: Sequence[Part]) -> list[dict[str, Any]]:
    return [{_KEY[part.side]: part.at, "index": part.first, "size": part.size} for part in parts]
