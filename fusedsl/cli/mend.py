"""`fusedsl check --fix`: the machine-applicable fixes of a file, applied and read again."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from fusedsl.cli.output import print_errors
from fusedsl.diagnostics import Diagnostic, FusedslError


@dataclass(frozen=True)
class Mended:
    """What became of one file. `written`: whether it holds the new text now."""

    file: str
    applied: tuple[str, ...]
    left: tuple[Diagnostic, ...]
    text: str
    diff: str
    written: bool

    def to_json(self) -> dict[str, Any]:
        """The JSON form; the mistakes that are left stand beside it."""
        return {
            "file": self.file,
            "applied": list(self.applied),
            "written": self.written,
            "diff": self.diff,
        }


def mend(file: str, *, write: bool) -> Mended:
    """Apply the certain fixes of a file, as long as that makes nothing worse.

    The file is replaced in one step, if `write` and if anything changed; standard input never.
    Raises FusedslError (F0102) for a file that cannot be read or written.
    """
    from fusedsl.frontend import load
    from fusedsl.frontend.repair import repair

    if file == "-":
        text = sys.stdin.read()
    else:
        with contextlib.suppress(FusedslError):
            load(Path(file))  # nothing to mend, or F01xx to F04xx: `repair` finds them again
            return Mended(file, (), (), "", "", written=False)
        text = _read(file)
    result = repair(text)
    name = None if file == "-" else file
    left = tuple(replace(item, file=name) for item in result.left)
    changed = result.text != text
    if changed and write and file != "-":
        _replace(Path(file), result.text)
    titles = tuple(fix.title for fix in result.applied)
    diff = _diff(file, text, result.text)
    return Mended(file, titles, left, result.text, diff, changed and write and file != "-")


def _read(file: str) -> str:
    """The text as it is: line ends and byte order mark stay. A file that cannot be read raises
    what `load` says about it."""
    from fusedsl.frontend import load

    path = Path(file)
    try:
        if path.suffix in (".fdsl", ".json"):
            return path.read_bytes().decode("utf-8")
    except (OSError, ValueError):
        pass
    load(path)
    return ""


def _replace(path: Path, text: str) -> None:
    """Write beside the file and rename: it holds the old text or the new one, never a part."""
    target = Path(os.path.realpath(path))
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as out:
            out.write(text.encode("utf-8"))
        os.chmod(temporary, target.stat().st_mode & 0o7777)
        os.replace(temporary, target)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise FusedslError(_unwritable(str(path), error)) from None


def _unwritable(file: str, error: OSError) -> Diagnostic:
    return Diagnostic(
        "F0102",
        f"'{file}' cannot be written",
        expected="a file in a folder that can be written to",
        got=(error.strerror or str(error)).lower(),
        fix="check its permissions, or look at --fix --diff",
        file=file,
    )


def _diff(file: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), file, file
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def print_mended(result: Mended, diff: bool) -> None:
    """What became of a file; with `diff` the changes themselves."""
    if diff:
        typer.echo(result.diff, nl=False)
    elif result.file == "-":
        typer.echo(result.text, nl=False)
    elif result.applied:
        typer.echo(f"{result.file}: {len(result.applied)} fixed: {'; '.join(result.applied)}")
    elif not result.left:
        typer.echo(f"{result.file}: ok")
    if result.left:
        print_errors(FusedslError(result.left, result.text), as_json=False)
