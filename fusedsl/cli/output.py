"""What the commands print: results on stdout, mistakes on stderr, or everything as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from fusedsl.diagnostics import Diagnostic, FusedslError


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2, sort_keys=False))


def print_table(table: Table) -> None:
    """A table on stdout; as wide as it needs to be where stdout is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)


def table(*columns: str, numbers: Iterable[str] = (), title: str | None = None) -> Table:
    """An empty table; the columns in `numbers` are set flush right."""
    right = set(numbers)
    made = Table(title=title, title_justify="left")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left")
    return made


def note(text: str) -> None:
    """A remark on stderr, which leaves stdout to the result."""
    typer.echo(text, err=True)


def print_errors(error: FusedslError, *, as_json: bool) -> None:
    """Every diagnostic: JSON on stdout, or text with carets on stderr."""
    if as_json:
        print_json(failure(error.diagnostics))
    else:
        typer.echo(str(error), err=True)


def failure(diagnostics: Iterable[Diagnostic]) -> dict[str, Any]:
    """The JSON of any command that failed."""
    return {"ok": False, "diagnostics": [item.to_json() for item in diagnostics]}


def plan_text(program: Any) -> str:
    """The graph that was planned, with a comment above each kernel's nodes."""
    plan = program.plan
    lines = [str(plan.graph).rstrip(), ""]
    if plan.bind:
        lines.append(f"# once per binding: {', '.join(n.name for n in plan.bind)}")
    for kernel in plan.kernels:
        lines.append(f"# {kernel.name} ({kernel.kind.value}, {kernel.rows} x {kernel.cols}):")
        lines.append(f"#   {', '.join(kernel.reads)} -> {', '.join(kernel.writes)}")
        lines.append(f"#   {', '.join(kernel.blocks)}")
    return "\n".join(lines)


def print_build(report: Any, out: Path) -> None:
    """A row for each kernel of a build, and what is wrong with it."""
    numbers = ("registers", "spills", "shared memory", "of")
    rows = table("target", "kernel", *numbers, numbers=numbers)
    for k in report.kernels:
        if k.error is None:
            sizes = (f"{k.shared_memory:,}", f"{k.shared_limit:,}")
            rows.add_row(k.target, k.kernel, str(k.registers), str(k.spills), *sizes)
        else:
            rows.add_row(k.target, k.kernel, "failed")
    print_table(rows)
    typer.echo(f"in {out}")
    if not report.ok:
        print_errors(FusedslError(report.diagnostics), as_json=False)
