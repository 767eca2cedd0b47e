"""The record of a benchmark: one JSON object, and its rows as a Markdown table."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import torch
import triton

from fusedsl._version import __version__

Json = dict[str, Any]


def versions() -> dict[str, str]:
    """Versions that a figure depends on."""
    return {
        "fusedsl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def device_name() -> str:
    """The GPU, or "none" and the processor's architecture."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"none ({platform.machine()})"


def record(command: str, rows: Sequence[Json], **extra: Any) -> Json:
    """The object that every results file holds."""
    return {
        "command": command,
        "versions": versions(),
        "gpu": device_name(),
        "date": date.today().isoformat(),
        **extra,
        "rows": list(rows),
    }


def row(
    name: str,
    ours_ms: float,
    limit_ms: float,
    peers: Mapping[str, float],
    bar: float | None = None,
    **extra: Any,
) -> Json:
    """One row: it holds where ours is at most `bar` times the limit; without a bar that is null."""
    return {
        "name": name,
        "ours_ms": rounded(ours_ms),
        "limit_ms": rounded(limit_ms),
        "ratio": round(ours_ms / limit_ms, 4),
        "peers": {peer: rounded(ms) for peer, ms in peers.items()},
        "bar": bar,
        "holds": None if bar is None else ours_ms <= bar * limit_ms,
        **extra,
    }


def rounded(ms: float) -> float:
    """Milliseconds to five places, and never to nothing."""
    return round(ms, 5) if ms >= 1e-4 else float(f"{ms:.3g}")


def markdown(found: Mapping[str, Any]) -> str:
    """A record of `fusedsl bench` as a table: ours, the roofline, and every peer beside ours."""
    rows: Sequence[Json] = found["rows"]
    peers = _peers_of(rows)
    head = ["", "fusedsl, ms", "roofline, ms (of it)", "warm, ms", *(f"{p}, ms" for p in peers)]
    lines = [_line(head), _line(["---"] * len(head))]
    for r in rows:
        wrong = "" if r["verified"]["ours"]["ok"] else " **wrong**"
        cells = [
            r["name"],
            f"{ms(r['ours_ms'])}{wrong}",
            f"{ms(r['limit_ms'])} ({r['ratio']:.2f})",
            ms(r["warm_ms"]),
            *(_beside(r, p) for p in peers),
        ]
        lines.append(_line(cells))
    return "\n".join([*lines, "", *_notes(found), ""])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _peers_of(rows: Sequence[Json]) -> list[str]:
    return list(dict.fromkeys(p for r in rows for p in r["peers"]))


def _beside(r: Json, peer: str) -> str:
    if peer not in r["peers"]:
        return "-"
    theirs = r["peers"][peer]
    wrong = "" if r["verified"][peer]["ok"] else " **wrong**"
    return f"{ms(theirs)} ({theirs / r['ours_ms']:.2f}){wrong}"


def _notes(found: Mapping[str, Any]) -> list[str]:
    v = found["versions"]
    where = "Triton's interpreter" if found["interpreted"] else found["gpu"]
    lines = [
        f"{where}, torch {v['torch']}, triton {v['triton']}, {found['date']}: "
        f"`{found['command']}`. Medians of {found['rounds']} rounds, inputs rotated; behind a "
        "peer's time, how many times ours it is.",
    ]
    if found["interpreted"]:
        lines.append("**These are times of the interpreter on the CPU, not of the program.**")
    absent = {f"{p}: {why}" for r in found["rows"] for p, why in r["absent"].items()}
    return [*lines, *(f"Not measured: {text}." for text in sorted(absent))]


def ms(value: float) -> str:
    """Milliseconds with four figures at most, and at least three decimals where they are few."""
    return f"{value:.3f}" if value >= 0.1 else f"{value:.4f}"
