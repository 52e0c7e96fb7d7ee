"""Rates with units, such as 12.5GB/s and 100Gbps: B is bytes, b is bits, 8 b are 1 B."""

from __future__ import annotations

import re

# A prefix of bytes or bits has the powers of 1000 that data rates have everywhere; Ki, Mi and Gi those of 1024.
_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_BITS = {
    f"{prefix}{unit}": factor for prefix, factor in _PREFIXES.items() for unit in ("bps", "b/s", "bit/s", "bits/s")
}
_BYTES = {f"{prefix}{unit}": factor for prefix, factor in _PREFIXES.items() for unit in ("Bps", "B/s")}
GBS_OF_UNIT = {unit: bits / 8e9 for unit, bits in _BITS.items()} | {unit: size / 1e9 for unit, size in _BYTES.items()}
_RATE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})\s*([A-Za-z/]{1,10})")


def parse_rate(text: str) -> float | None:
    """Return the GB/s (10^9 bytes/s) of a number with a unit, such as 12.5GB/s, 12.5GBps, 100Gbps or 100Gbit/s.

    The case of a unit counts, since only it tells bytes (B) from bits (b). Returns None where the text is no such rate.
    """
    rate = _RATE.fullmatch(text)
    if rate is None or rate[2] not in GBS_OF_UNIT:
        return None
    # Rounding to 12 digits makes 0.4Gbps and 400Mbps the same number.
    return float(f"{float(rate[1]) * GBS_OF_UNIT[rate[2]]:.12g}")
