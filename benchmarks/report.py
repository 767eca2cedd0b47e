"""Markdown tables of the README, made from `results/` alone.

python -m benchmarks.report            print them
python -m benchmarks.report --write    put them between the README's markers
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->\n"


def load(name: str) -> dict[str, Any]:
    """One results file."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def chains() -> str:
    """Fused chains beside the bare projection, eager torch and torch.compile."""
    record = load("chains")
    lines = [
        "| bf16, forward, ms | fusedsl | bare cuBLAS projection | best torch.compile | eager |",
        "|---|---|---|---|---|",
    ]
    for r in record["rows"]:
        compiled = [ms for name, ms in r["peers"].items() if name.startswith("torch.compile")]
        best = f"{min(compiled):.3f}" if compiled else "not run"
        lines.append(
            f"| {r['name']} | {r['ours_ms']:.3f} ({r['ratio']:.2f} of bare) | {r['limit_ms']:.3f} "
            f"| {best} | {r['peers']['eager']:.3f} |"
        )
    return "\n".join(lines) + f"\n\n{_source(record)}\n"


def accuracy() -> str:
    """Largest error over eager's, by dtype, over all examples, rows and inputs."""
    record = load("accuracy_gpu")
    found: dict[str, list[float]] = {}
    for r in record["rows"]:
        found.setdefault(r["name"].split()[1], []).append(r["ratio"])
    lines = ["| error over eager's | median | largest | checks |", "|---|---|---|---|"]
    for dtype, ratios in found.items():
        ratios.sort()
        lines.append(
            f"| {dtype} | {ratios[len(ratios) // 2]:.2f} | {ratios[-1]:.3f} | {len(ratios)} |"
        )
    return "\n".join(lines) + f"\n\n{_source(record)}\n"


def _source(record: dict[str, Any]) -> str:
    v = record["versions"]
    return (
        f"{record['gpu']}, torch {v['torch']}, triton {v['triton']}, {record['date']}: "
        f"`{record['command']}`."
    )


def tables() -> str:
    """Everything between the markers."""
    return f"{chains()}\n{accuracy()}"


def placed(readme: str) -> str:
    """The README with its tables made anew. Raises ValueError where the markers are missing."""
    start, end = readme.index(BEGIN) + len(BEGIN), readme.index(END)
    return readme[:start] + "\n" + tables() + "\n" + readme[end:]


def main() -> None:
    """Print or write."""
    if "--write" in sys.argv:
        README.write_text(placed(README.read_text()))
    else:
        print(tables())


if __name__ == "__main__":
    main()
