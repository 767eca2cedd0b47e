"""`tune`: time a program's kernels in a few configurations at given shapes and keep the best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fusedsl.cli.inputs import complete_dims, find_device, parse_shapes
from fusedsl.cli.output import note, print_table, table
from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.schedule import TileConfig


@dataclass(frozen=True)
class Line:
    """One kernel at one shape: milliseconds by default and tuned."""

    dims: dict[str, int]
    found: Any

    def to_json(self) -> dict[str, Any]:
        """The dims and everything that was found."""
        return {"dims": self.dims, **self.found.to_json()}


def tune(program: Any, *, shapes: str | None, device: str | None, again: bool) -> list[Line]:
    """Tune at every shape in turn, with a progress bar on stderr where that is a terminal.

    Raises FusedslError: F0105 and F0404 for shapes, F0604 without a GPU.
    """
    wanted = [complete_dims(program.graph(), dims, 4096) for dims in parse_shapes(shapes)]
    place = find_device(device)
    if not place.startswith("cuda"):
        raise FusedslError(
            Diagnostic(
                "F0604",
                "there is nothing to tune without a GPU",
                expected="a CUDA device",
                got=f"device '{place}'",
                fix="run it on the machine that the program will run on",
            )
        )
    lines: list[Line] = []
    for dims in wanted:
        title = ", ".join(f"{k} = {v}" for k, v in dims.items()) or program.name
        with _bar(title) as step:
            found = program.tune(dims, device=place, again=again, progress=step)
        lines += [Line(dims, kernel) for kernel in found]
    return lines


@contextmanager
def _bar(title: str) -> Iterator[Any]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def step(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{title}: {what}", completed=done, total=total)

        yield step


def brief(config: TileConfig) -> str:
    """A configuration in few words: `128x256x64 w8 s4 p132 g8`."""
    tile = "x".join(str(n) for n in (config.block_m, config.block_n, config.block_k) if n)
    rest = f"w{config.warps} s{config.stages}"
    if config.programs:
        rest += f" p{config.programs}"
    return f"{tile} {rest} g{config.group_m}" if config.block_k else f"{tile} w{config.warps}"


def print_tuned(lines: list[Line]) -> None:
    """A row for each kernel at each shape."""
    numbers = ("default ms", "tuned ms", "of default")
    rows = table("dims", "kernel", *numbers, "configuration", "tried", numbers=numbers)
    for line in lines:
        k = line.found
        dims = ", ".join(f"{name}={size}" for name, size in line.dims.items())
        times = (f"{k.default_ms:.4f}", f"{k.ms:.4f}", f"{k.ms / k.default_ms:.3f}")
        rows.add_row(dims, k.kernel, *times, brief(k.config), str(len(k.trials)))
    print_table(rows)
    if not all(line.found.saved for line in lines):
        note("warning: the cache folder cannot be written: nothing is kept")
