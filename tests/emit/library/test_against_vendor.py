"""The shares of sizes at which a library is faster than a vendor's own choice, against the vendor's model."""

from __future__ import annotations

from pathlib import Path

from emit.library.index import load_index
from emit.library.selection.against_vendor import count_sizes
from synth import synthesize
from synth.baselines.vendors import LIBRARIES
from topologies.load import load

SIZES = [1 << exponent for exponent in range(10, 31)]


def test_sizes_are_counted_as_the_model_says(tmp_path: Path) -> None:
    """Check the counts of a file that is said to be as fast as NCCL, or a hundred times faster or slower."""
    synthesize("allreduce", "dgx-a100", (0, 2), engine="route", budget=1, target="mscclpp").save(tmp_path)
    entry = load_index(tmp_path)[0].restated(min_bytes=0, max_bytes=SIZES[-1])
    model = LIBRARIES["NCCL"].model(load("dgx-a100"), (0, 2))
    times_us = {size: model.choose("allreduce", size).time_us for size in SIZES}
    for factor, expected, words in (
        (0.01, "faster", "faster"),
        (1.0, "equal", "about equal"),
        (100, "slower", "slower"),
    ):
        rated = entry.restated(curve=[[size, times_us[size] * factor, 1e-9] for size in SIZES])
        counts = count_sizes([rated], "NCCL")
        assert (getattr(counts, expected), counts.faster + counts.equal + counts.slower) == (len(SIZES), len(SIZES))
        assert counts.sentence("NCCL").startswith(
            f"against NCCL, at the powers of two from 1 KiB to 1 GiB: {words} at 100 %;"
        )
        counts = count_sizes([rated.restated(max_bytes=1 << 20)], "NCCL")
        assert (getattr(counts, expected), counts.without_file) == (11, 10)
        assert f"{words} at 52 %, no file at 48 %" in counts.sentence("NCCL")
    assert count_sizes([], "NCCL").sentence("NCCL") == ""
