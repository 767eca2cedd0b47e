"""Tables and plots of the README, made from `results/` alone.

python -m benchmarks.report            print the tables
python -m benchmarks.report --write    put them between the README's markers, draw docs/plots/*.svg

Drawing needs matplotlib. A plot holds the digest of the results that it shows.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS

ROOT = Path(__file__).parent.parent
README, PLOTS = ROOT / "README.md", ROOT / "docs" / "plots"
BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->\n"

Record = dict[str, Any]

#: Results with rows of `ours_ms`, `limit_ms` and peers: what they show, the limit's name, its
#: short name, and the unit that times are given in.
TIMED: dict[str, tuple[str, str, str, str]] = {
    "chains": ("bf16, forward", "bare cuBLAS projection", "bare", "ms"),
    "norms": ("norms, bf16, forward", "copy of the same size", "the copy", "ms"),
    "decode": ("decode, in a CUDA graph", "weights read once", "the limit", "us"),
    "lm_head": ("language-model head", "bare cuBLAS projection", "bare", "ms"),
    "host": ("host time of a call", "limit", "the limit", "us"),
    "cold": ("first call of a process", "limit", "the limit", "ms"),
}
_SCALE = {"ms": 1.0, "us": 1e3}


def load(name: str) -> Record | None:
    """One results file, or None where that benchmark has not been run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def timed(name: str, record: Record) -> str:
    """Ours beside the limit and every peer; torch.compile's modes as the better of them."""
    title, limit, short, unit = TIMED[name]
    peers = _peers(record)
    head = [f"{title}, {unit}", "fusedsl", limit, *peers, "bar"]
    lines = [_line(head), "|" + "---|" * len(head)]
    for r in record["rows"]:
        theirs = _of(r)
        cells = [
            r["name"],
            f"{_number(r['ours_ms'], unit)} ({r['ratio']:.2f} of {short})",
            _number(r["limit_ms"], unit),
            *(_number(theirs[p], unit) if p in theirs else "-" for p in peers),
            _bar(r),
        ]
        lines.append(_line(cells))
    return "\n".join(lines) + f"\n\n{_source(record)}\n"


def _bar(r: Record) -> str:
    return "-" if r["bar"] is None else f"{r['bar']:.2f}{'' if r['holds'] else ' **missed**'}"


def _of(r: Record) -> dict[str, float]:
    """The peers of a row, the modes of torch.compile as the better one."""
    compiled = [ms for name, ms in r["peers"].items() if name.startswith("torch.compile")]
    rest = {n: ms for n, ms in r["peers"].items() if not n.startswith("torch.compile")}
    return {**({"best torch.compile": min(compiled)} if compiled else {}), **rest}


def _peers(record: Record) -> list[str]:
    return list(dict.fromkeys(name for r in record["rows"] for name in _of(r)))


def _number(ms: float, unit: str) -> str:
    value = ms * _SCALE[unit]
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def defaults(record: Record) -> str:
    """The default configuration beside the tuned one, over all shapes."""
    speeds = sorted(r["limit_ms"] / r["ours_ms"] for r in record["rows"])
    lines = [
        "| untuned default, of the tuned speed | mean | least | median | shapes |",
        "|---|---|---|---|---|",
        f"| projections | {sum(speeds) / len(speeds):.3f} | {speeds[0]:.3f} "
        f"| {speeds[len(speeds) // 2]:.3f} | {len(speeds)} |",
    ]
    return "\n".join(lines) + f"\n\n{_source(record)}\n"


def accuracy(record: Record) -> str:
    """Largest error over eager's, by dtype, over all examples, rows and inputs."""
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


def _source(record: Record) -> str:
    v = record["versions"]
    return (
        f"{record['gpu']}, torch {v['torch']}, triton {v['triton']}, {record['date']}: "
        f"`{record['command']}`."
    )


def tables() -> str:
    """Everything between the markers: a table for each result, a picture where one is drawn."""
    parts: list[str] = []
    for name in TIMED:
        record = load(name)
        if record is not None:
            parts += [picture(plot) for plot in plots() if plot.startswith(name)]
            parts.append(timed(name, record))
    for name, make in (("defaults", defaults), ("accuracy_gpu", accuracy)):
        record = load(name)
        if record is not None:
            parts.append(make(record))
    return "\n".join(parts)


def picture(plot: str) -> str:
    """The README's line for a plot."""
    words = plot.replace("_", " ")
    return f"![{words}: fusedsl beside its peers](docs/plots/{plot}.svg)\n"


def placed(readme: str) -> str:
    """The README with its tables made anew. Raises ValueError where the markers are missing."""
    start, end = readme.index(BEGIN) + len(BEGIN), readme.index(END)
    return readme[:start] + "\n" + tables() + "\n" + readme[end:]


# plots ------------------------------------------------------------------------------------------
def plots() -> dict[str, Callable[[Path], None]]:
    """What can be drawn from the results that exist: name → `draw(path)`."""
    found: dict[str, Callable[[Path], None]] = {}
    for name in ("chains", "norms", "decode", "lm_head"):
        record = load(name)
        if record is None:
            continue
        found[name] = lambda path, n=name, r=record: bars(path, n, r)
        if "peak" in record and all("flops" in r for r in record["rows"]):
            found[f"{name}_roofline"] = lambda path, r=record: roofline(path, r)
    return found


def digest(record: Record) -> str:
    """Of the results that a plot shows."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def bars(path: Path, name: str, record: Record) -> None:
    """A group of bars for each row: how near to the limit's speed ours and the peers come."""
    from fusedsl.bench import plot

    rows, limit = record["rows"], TIMED[name][1]
    peers = _peers(record)
    times: dict[str, list[float | None]] = {"ours": [r["ours_ms"] for r in rows]}
    times |= {peer: [_of(r).get(peer) for r in rows] for peer in peers}
    height = 1.0 + 0.16 * len(rows) * len(times)
    with plot.figure(path, (8, height), about=digest(record)) as axes:
        plot.bars(axes, [r["name"] for r in rows], times, [r["limit_ms"] for r in rows], limit)
        axes.set_title(f"{TIMED[name][0]}: {record['gpu']}, {record['date']}")


def roofline(path: Path, record: Record) -> None:
    """The rows under the roofline that their run measured."""
    from fusedsl.bench import plot

    rows = [{**r, "peers": _of(r)} for r in record["rows"]]
    shown = {**record, "rows": rows}
    with plot.figure(path, (6.5, 4.5), about=digest(record)) as axes:
        plot.roofline(axes, shown, ["ours", *_peers(record)])


def draw() -> list[Path]:
    """Draw every plot, and drop those of results that are gone."""
    PLOTS.mkdir(parents=True, exist_ok=True)
    wanted = plots()
    for old in PLOTS.glob("*.svg"):
        if old.stem not in wanted:
            old.unlink()
    for name, make in wanted.items():
        make(PLOTS / f"{name}.svg")
    return [PLOTS / f"{name}.svg" for name in wanted]


def main() -> None:
    """Print or write."""
    if "--write" not in sys.argv:
        print(tables())
        return
    README.write_text(placed(README.read_text()))
    for path in (README, *draw()):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
