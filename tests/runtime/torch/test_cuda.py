"""CUDA tensors in groups of our back end: NCCL serves them, and the reason is counted. Needs a GPU."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch

from tests.runtime.torch.ranks import run_ranks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_collectives_of_cuda_tensors(tmp_path: Path) -> None:
    """Check collectives with a process for each GPU, which may be one."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SYNTH_")}
    results = [tmp_path / str(rank) for rank in range(torch.cuda.device_count())]
    ran = run_ranks(["tests.runtime.torch.cuda_ranks"], f"file://{tmp_path / 'store'}", results, plain)
    assert [code for code, _ in ran] == [0] * len(results), "\n".join(text for _, text in ran)
    assert all("tensors on cuda" in path.read_text() for path in results)
