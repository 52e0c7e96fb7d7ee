"""How `synth bench` shows its rows: nccl-tests' table, or JSON."""

from __future__ import annotations

from typing import Any

from runtime.bench import Half, Row

HEAD = "\n".join(
    (
        f"#{'':>46}{'out-of-place':^35}{'in-place':^35}",
        f"#{'size':>12}{'count':>12}{'type':>10}{'redop':>7}{'root':>5}"
        + f"{'time':>11}{'algbw':>8}{'busbw':>8}{'#wrong':>8}" * 2
        + f"{'predicted':>11}{'bound':>11}  algorithm",
        f"#{'(B)':>12}{'(elements)':>12}{'':22}"
        + f"{'(us)':>11}{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}" * 2
        + f"{'(us)':>11}" * 2,
    )
)


def line(row: Row, name: str, predicted: float | None, bound: float | None) -> str:
    """A row of the table; `predicted`, `bound`: µs, None where not known."""

    def side(half: Half | None) -> str:
        if half is None:
            return f"{'N/A':>11}{'N/A':>8}{'N/A':>8}{'N/A':>8}"
        return f"{half.time_us:>11.1f}{row.algbw(half):>8.2f}{row.busbw(half):>8.2f}{half.wrong:>8}"

    last = "".join(f"{us:>11.1f}" if us is not None else f"{'–':>11}" for us in (predicted, bound))
    redop = row.op if row.reduces else "none"
    return (
        f" {row.size_bytes:>12}{row.count:>12}{row.kind:>10}{redop:>7}{row.root:>5}"
        f"{side(row.apart)}{side(row.inplace)}{last}  {name}"
    )


def said(row: Row, name: str, backend: str, predicted: float | None, bound: float | None) -> dict[str, Any]:
    """The same as an object of JSON."""

    def side(half: Half | None) -> dict[str, Any] | None:
        if half is None:
            return None
        return {
            "time_us": half.time_us,
            "algbw_gbs": row.algbw(half),
            "busbw_gbs": row.busbw(half),
            "wrong": half.wrong,
        }

    return {
        "algorithm": name,
        "backend": backend,
        "size_bytes": row.size_bytes,
        "count": row.count,
        "type": row.kind,
        "redop": row.op if row.reduces else "none",
        "root": row.root,
        "out_of_place": side(row.apart),
        "in_place": side(row.inplace),
        "predicted_us": predicted,
        "bound_us": bound,
    }
