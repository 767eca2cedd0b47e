"""A program from a file: `.fdsl` is text, `.json` a JSON graph."""

from __future__ import annotations

import os
from pathlib import Path

from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.frontend.json_graph import from_json
from fusedsl.frontend.problems import shown
from fusedsl.frontend.text import parse
from fusedsl.ir import BlockLibrary, Graph


def load(path: str | os.PathLike[str], *, library: BlockLibrary | None = None) -> Graph:
    """Read a program. Raises FusedslError: F0102, and what `parse` or `from_json` raise."""
    file = Path(path)
    name = str(file)
    if file.suffix not in (".fdsl", ".json"):
        raise _unreadable(name, "a file of another kind", "name it .fdsl (text) or .json (graph)")
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        got = f"the byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise _unreadable(name, got, "save the file as UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        got = getattr(error, "strerror", None) or str(error)
        raise _unreadable(name, got.lower(), "check the path and its permissions") from None
    if file.suffix == ".json":
        return from_json(text, library=library, file=name)
    return parse(text, library=library, file=name)


def _unreadable(name: str, got: str, fix: str) -> FusedslError:
    return FusedslError(
        Diagnostic(
            "F0102",
            f"'{shown(name)}' cannot be read",
            expected="a readable UTF-8 file that ends in .fdsl or .json",
            got=got,
            fix=fix,
            file=name,
        )
    )
