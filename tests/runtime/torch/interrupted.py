"""A rank that waits for another one at Ctrl-C, and then leaves its group; run by test_process_group.py.

python -m tests.runtime.torch.interrupted RANK ADDRESS at-once|later
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import runtime.torch.process_group as ours


def main(rank: int, address: str, when: str) -> None:
    """Wait on rank 0 in a call that rank 1 never makes, leave before rank 1, and print the seconds that this took."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dist.init_process_group(
        "cpu:synth,cuda:synth", init_method=address, rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    tensor = torch.ones(1000)
    with ours.using("synth"):
        dist.all_reduce(tensor)
        left_mark = Path(address.removeprefix("file://") + "-left")
        if not rank:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            if rank:
                while not left_mark.exists():
                    time.sleep(0.02)
                os.kill(os.getpid(), signal.SIGINT)
            elif when == "later":
                dist.all_reduce(tensor, async_op=True).wait()
            else:
                dist.all_reduce(tensor)
        except KeyboardInterrupt:
            begun = time.monotonic()
            dist.destroy_process_group()
            print(time.monotonic() - begun)
            left_mark.touch()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
