"""`fusedsl bench`: a program timed beside the roofline and its peers."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fusedsl.cli.compare import LONG, reporting_memory
from fusedsl.cli.inputs import complete_dims, find_device
from fusedsl.cli.output import note, print_table, table
from fusedsl.diagnostics import Diagnostic, Diagnostics, FusedslError, did_you_mean
from fusedsl.frontend.shrink import shrink

if TYPE_CHECKING:
    from fusedsl.bench import Measured
    from fusedsl.ir import Graph

#: Sizes of symbols that nobody gives: enough for every tile of a GPU; few for the interpreter.
ROWS = {"cuda": 4096, "cpu": 16}
#: Sizes of one run, at most.
_MOST = 64
#: Factors that a program is shrunk by where it is too large for the interpreter.
_FACTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def parse_shapes(graph: Graph, text: str | None, default: int) -> list[dict[str, int]]:
    """`M=1,4096,F=512` as every combination of the sizes of the symbols, the last one first.

    Raises FusedslError: F0105 for what is no size, or too many; F0404 for unknown symbols.
    """
    sizes: dict[str, list[int]] = {}
    name = None
    bag = Diagnostics()
    for part in filter(None, (p.strip() for p in (text or "").split(","))):
        match = re.fullmatch(r"(?:([A-Za-z_]\w*)\s*=\s*)?(\d{1,10})", part)
        name = match[1] or name if match else name
        if match is None or name is None or not 0 < int(match[2]) < 1 << 31:
            bag.add(_no_shape(part))
            continue
        sizes.setdefault(name, [])
        if int(match[2]) not in sizes[name]:
            sizes[name].append(int(match[2]))
    bag.raise_if_any()
    complete_dims(graph, {name: found[0] for name, found in sizes.items()}, default)
    if math.prod(map(len, sizes.values())) > _MOST:
        raise FusedslError(_too_many(math.prod(map(len, sizes.values()))))
    combined = [
        dict(zip(sizes, values, strict=True)) for values in itertools.product(*sizes.values())
    ]
    return [complete_dims(graph, dims, default) for dims in combined]


def _no_shape(part: str) -> Diagnostic:
    return Diagnostic(
        "F0105",
        f"--shapes does not accept '{part}'",
        expected="NAME=SIZE,SIZE,.. with positive integers, for one symbol after another",
        got=part,
        fix="for example --shapes M=1,4096,8192",
    )


def _too_many(count: int) -> Diagnostic:
    return Diagnostic(
        "F0105",
        "--shapes names too many combinations",
        expected=f"at most {_MOST}",
        got=str(count),
        fix="give fewer sizes, or split the run",
    )


def parse_against(text: str) -> list[str]:
    """`eager,bare` as names of peers. Raises FusedslError (F0507) for an unknown one."""
    from fusedsl.bench import PEERS

    names = list(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    bag = Diagnostics()
    for name in names:
        if name not in PEERS:
            bag.add(
                Diagnostic(
                    "F0507",
                    f"--against does not accept '{name}'",
                    expected=", ".join(PEERS),
                    got=name,
                    fix=did_you_mean(name, PEERS, "peers"),
                )
            )
    bag.raise_if_any()
    return names


def run(
    graph: Graph,
    *,
    against: str,
    shapes: str | None,
    device: str | None,
    numerics: str,
    factor: int | None,
    rounds: int | None,
    plot: Path | None,
    quiet: bool,
) -> dict[str, Any]:
    """Measure `graph` and give the record. Raises FusedslError as a call does."""
    import fusedsl
    from fusedsl.bench import ROUNDS, measure, record
    from fusedsl.bench.plot import check_plot

    peers = parse_against(against)
    if plot is not None:
        check_plot(plot)
    where = find_device(device)
    kind = "cuda" if where.startswith("cuda") else "cpu"
    parse_shapes(graph, shapes, ROWS[kind])
    factor = _factor(graph, shapes, kind) if factor is None else factor
    graph = shrink(graph, factor)
    every = parse_shapes(graph, shapes, ROWS[kind])
    program = fusedsl.compile(graph, numerics=numerics)
    count = ROUNDS[kind] if rounds is None else rounds
    measured: list[Measured] = []
    with _progress(graph.name, every, quiet) as show:
        for dims in every:
            with reporting_memory(dims):
                told = show(dims)
                measured.append(measure(program, dims, where, peers, rounds=count, progress=told))
    return record(
        shlex.join(["fusedsl", *sys.argv[1:]]),
        [m.to_json() for m in measured],
        program=graph.name,
        device=where,
        interpreted=kind == "cpu",
        shrink=factor,
        numerics=numerics,
        rounds=count,
        peak=_peak(graph, where),
        ok=all(m.ok for m in measured),
    )


def _factor(graph: Graph, shapes: str | None, kind: str) -> int:
    """What a program is shrunk by before the interpreter takes minutes for it."""
    from fusedsl.runtime.roofline import flops_of

    if kind == "cuda":
        return 1
    for factor in _FACTORS:
        try:
            small = shrink(graph, factor)
        except FusedslError:
            break
        work = max(flops_of(small, dims) for dims in parse_shapes(small, shapes, ROWS["cpu"]))
        if work <= LONG / 100:
            if factor > 1:
                note(f"note: shrunk by {factor} for the interpreter; --shrink 1 takes it whole")
            return factor
    return 1


def _peak(graph: Graph, where: str) -> dict[str, Any]:
    """What the rooflines of the rows were made of."""
    from fusedsl.rewrite import expand
    from fusedsl.runtime.roofline import copy_bandwidth, product_flops, projections

    expanded = expand(graph)
    dtypes = dict.fromkeys(expanded.types[x].dtype for _, x, _ in projections(expanded))
    return {
        "bandwidth_gb_s": round(copy_bandwidth(where) / 1e9, 1),
        "tflops": {str(d): round(product_flops(where, d.torch) / 1e12, 3) for d in dtypes},
    }


@contextlib.contextmanager
def _progress(name: str, every: Sequence[Mapping[str, int]], quiet: bool) -> Iterator[Any]:
    """A bar on stderr: a step for each contender and round, the sizes one after another."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )

    def start(dims: Mapping[str, int]) -> Any:
        at = ", ".join(f"{k} = {v}" for k, v in dims.items())
        number = f"[{every.index(dims) + 1}/{len(every)}] " if len(every) > 1 else ""
        title = f"{number}{name}{f' at {at}' if at else ''}".replace("[", "\\[")
        task = bar.add_task(title, total=None)

        def told(what: str, steps: int) -> None:
            bar.update(task, description=f"{title}: {what}")
            if steps:
                bar.update(task, total=steps, advance=1)

        return told

    with bar:
        yield start


def show(found: Mapping[str, Any]) -> None:
    """The record for a person."""
    peers = list(dict.fromkeys(p for r in found["rows"] for p in r["peers"]))
    numbers = ("ours", "roofline", "of it", "warm", "host us", *peers)
    rows = table("sizes", *numbers, "", numbers=numbers, title=f"{found['program']}, milliseconds")
    for r in found["rows"]:
        wrong = [n for n, v in r["verified"].items() if not v["ok"]]
        rows.add_row(
            ", ".join(f"{k} = {v}" for k, v in r["dims"].items()) or "fixed",
            _ms(r["ours_ms"]),
            f"{_ms(r['limit_ms'])} ({r['limit_by']})",
            f"{r['ratio']:.2f}",
            _ms(r["warm_ms"]),
            f"{r['host_us']['ours']:.1f}",
            *(_beside(r, p) for p in peers),
            f"WRONG: {', '.join(wrong)}" if wrong else "all verified",
        )
    print_table(rows)
    peak = ", ".join(f"{d} {t:.1f} TFLOP/s" for d, t in found["peak"]["tflops"].items())
    print(
        f"{found['gpu']}: copy {found['peak']['bandwidth_gb_s']:.0f} GB/s"
        f"{', product ' if peak else ''}{peak}; behind a peer's time, how many times ours it is"
    )
    for text in sorted({f"{p}: {why}" for r in found["rows"] for p, why in r["absent"].items()}):
        note(f"note: not measured: {text}")
    for r in found["rows"]:
        for flag in r["flags"]:
            note(f"note: {r['name']}: {flag}: do not believe it")
    if found["interpreted"]:
        note("note: on the CPU these are times of Triton's interpreter, not of the program")


def _ms(value: float) -> str:
    from fusedsl.bench.record import ms

    return ms(value)


def _beside(r: Mapping[str, Any], peer: str) -> str:
    if peer not in r["peers"]:
        return "-"
    return f"{_ms(r['peers'][peer])} ({r['peers'][peer] / r['ours_ms']:.2f})"


def write(found: Mapping[str, Any], markdown: Path | None, plot: Path | None) -> list[Path]:
    """Write the files that were asked for, and say which.

    Raises FusedslError (F0102) for one that cannot be written.
    """
    from fusedsl.bench import markdown as as_markdown
    from fusedsl.bench.plot import draw

    written: list[Path] = []
    for path in (markdown, plot):
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path is plot:
                draw(found, path)
            else:
                path.write_text(as_markdown(found), encoding="utf-8")
        except OSError as error:
            raise FusedslError(_unwritable(path, error)) from None
        written.append(path)
    return written


def _unwritable(path: Path, error: OSError) -> Diagnostic:
    return Diagnostic(
        "F0102",
        f"cannot write '{path}'",
        expected="a path that can be written",
        got=error.strerror or str(error),
        fix="give another path",
        file=str(path),
    )
