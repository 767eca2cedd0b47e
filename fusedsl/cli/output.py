"""What the commands print: results on stdout, mistakes on stderr, or everything as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
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
