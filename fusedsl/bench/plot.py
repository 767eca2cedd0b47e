"""The record of `fusedsl bench` as a picture: where each time lies under the roofline, and bars.

matplotlib is an optional package (`pip install 'fusedsl[plot]'`). The same record gives the same
SVG, byte for byte, with one version of matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fusedsl.diagnostics import Diagnostic, FusedslError, did_you_mean

#: What a picture may be saved as.
SUFFIXES = (".svg", ".png", ".pdf")

#: One colour and mark for each contender; ours first.
COLOURS = ("#c0392b", "#7f8c8d", "#2980b9", "#16a085", "#8e44ad", "#d68910", "#2c3e50")
_MARKS = "osD^vPX"

_INSTALL = "pip install 'fusedsl[plot]'"


def check_plot(path: Path) -> None:
    """Say before the run what would fail after it.

    Raises FusedslError: F0607 where matplotlib is missing, F0507 for a suffix it is not told of.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise FusedslError(
            Diagnostic(
                "F0507",
                f"--plot does not accept '{path.name}'",
                expected=f"a file called *{', *'.join(SUFFIXES)}",
                got=path.suffix or path.name,
                fix=did_you_mean(path.suffix, SUFFIXES, "suffixes"),
            )
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise FusedslError(
            Diagnostic(
                "F0607",
                "a plot needs matplotlib, which is not installed",
                expected="matplotlib",
                got="no such package",
                fix=_INSTALL,
            )
        ) from None


@contextmanager
def figure(
    path: Path,
    size: tuple[float, float],
    columns: Sequence[float] = (1.0,),
    about: str | None = None,
) -> Iterator[Any]:
    """A figure that is saved to `path` when the block ends; gives its axes, left to right.

    Nothing in the file depends on the time or on the machine. `about` goes into its description.
    """
    check_plot(path)
    import matplotlib

    look: Any = {
        "svg.hashsalt": "fusedsl",
        "svg.fonttype": "path",
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(look):
        made = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(made)
        grid = made.add_gridspec(1, len(columns), width_ratios=list(columns))
        axes = [made.add_subplot(grid[0, i]) for i in range(len(columns))]
        yield axes if len(axes) > 1 else axes[0]
        said: dict[str, dict[str, Any]] = {
            "svg": {"Date": None, "Description": about},
            "pdf": {"CreationDate": None, "Subject": about},
            "png": {"Description": about},
        }
        kind = path.suffix.lower().lstrip(".")
        kept = {k: v for k, v in said[kind].items() if v is not None or k.endswith("Date")}
        made.savefig(path, format=kind, dpi=150, metadata=kept)


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw a record of `fusedsl bench`. Raises as `check_plot` does, and OSError."""
    rows: Sequence[Mapping[str, Any]] = found["rows"]
    names = ["ours", *dict.fromkeys(p for r in rows for p in r["peers"])]
    height = max(3.6, 1.2 + 0.22 * len(rows) * len(names))
    with figure(path, (11, height), (1, 1)) as (left, right):
        roofline(left, found, names)
        times = {n: [_time(r, n) for r in rows] for n in names}
        labels = [_sizes(r) for r in rows]
        bars(right, labels, times, [r["limit_ms"] for r in rows])
        where = "Triton's interpreter on the CPU" if found["interpreted"] else found["gpu"]
        left.figure.suptitle(f"{found['program']}: {where}")


def roofline(axes: Any, found: Mapping[str, Any], names: Sequence[str]) -> None:
    """Arithmetic reached over arithmetic for each byte, under what the device was measured at.

    Programs without projections have no arithmetic that counts: their bytes in a second stand in.
    """
    rows = found["rows"]
    bandwidth = found["peak"]["bandwidth_gb_s"] * 1e9
    peaks = [t * 1e12 for t in found["peak"]["tflops"].values()]
    if not peaks:
        axes.axhline(bandwidth / 1e9, color="black", linewidth=1)
        for number, name in enumerate(names):
            points = [(r["bytes"], _time(r, name)) for r in rows]
            reached = [(b, b / t / 1e6) for b, t in points if t]
            _points(axes, reached, number, name)
        axes.set(xscale="log", yscale="log", xlabel="bytes of a call", ylabel="GB/s")
    else:
        low = min(r["flops"] / r["bytes"] for r in rows) / 4
        high = max(max(peaks) / bandwidth * 4, max(r["flops"] / r["bytes"] for r in rows) * 2)
        for peak in peaks:
            corner = peak / bandwidth
            xs = [min(low, corner / 4), corner, high]
            ys = [xs[0] * bandwidth / 1e12, peak / 1e12, peak / 1e12]
            axes.plot(xs, ys, color="black", linewidth=1)
        for number, name in enumerate(names):
            reached = [
                (r["flops"] / r["bytes"], r["flops"] / _time(r, name) / 1e9)
                for r in rows
                if _time(r, name)
            ]
            _points(axes, reached, number, name)
        axes.set(xscale="log", yscale="log", xlabel="operations for each byte", ylabel="TFLOP/s")
    axes.set_title("roofline, as measured in the run")
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(frameon=False, fontsize=8)


def _points(axes: Any, points: Sequence[tuple[float, float]], number: int, name: str) -> None:
    if not points:
        return
    xs, ys = zip(*points, strict=True)
    colour, mark = COLOURS[number % len(COLOURS)], _MARKS[number % len(_MARKS)]
    axes.plot(xs, ys, mark, color=colour, label=_label(name), markersize=6 if number else 8)


def bars(
    axes: Any,
    labels: Sequence[str],
    times: Mapping[str, Sequence[float | None]],
    limits: Sequence[float],
    limit: str = "roofline",
) -> None:
    """A group of bars for each label: the limit's time over each contender's, 1 being the limit."""
    share = 0.8 / max(1, len(times))
    for number, (name, values) in enumerate(times.items()):
        places = [i + (number - (len(times) - 1) / 2) * share for i in range(len(labels))]
        lengths = [least / t if t else 0.0 for t, least in zip(values, limits, strict=True)]
        colour = COLOURS[number % len(COLOURS)]
        axes.barh(places, lengths, share * 0.9, color=colour, label=_label(name))
        for place, length, value in zip(places, lengths, values, strict=True):
            text = "-" if value is None else f"{length:.2f}"
            axes.text(length, place, f" {text}", va="center", fontsize=6)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set(xlabel=f"speed, of the {limit}'s")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _label(name: str) -> str:
    return "fusedsl" if name == "ours" else name


def _time(r: Mapping[str, Any], name: str) -> float | None:
    return r["ours_ms"] if name == "ours" else r["peers"].get(name)


def _sizes(r: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} = {v}" for k, v in r["dims"].items()) or "fixed sizes"
