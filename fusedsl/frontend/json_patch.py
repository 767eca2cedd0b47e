"""Edits of a JSON graph: the operations of RFC 6902 that fixes use."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from fusedsl.diagnostics import Fix, JsonEdit


def patched(data: Any, fixes: Sequence[Fix]) -> Any:
    """A copy of the data after the fixes.

    Values are replaced first, list items removed last and from the back, so that every pointer
    means what it meant. A fix that moves a list item shifts the others: one is applied, and then
    nothing is removed.
    """
    changed = copy.deepcopy(data)
    edits = [e for fix in fixes for e in fix.edits if isinstance(e, JsonEdit)]
    edits = list(dict.fromkeys(edits))
    shifting = [e for e in edits if e.op == "move" and _last(e.pointer).isdecimal()]
    removals = [e for e in edits if e.op == "remove"]
    for edit in edits:
        if edit not in removals and edit not in shifting:
            _apply(changed, edit)
    for edit in shifting[:1]:
        _apply(changed, edit)
    for edit in sorted(removals, key=_from_the_back, reverse=True) if not shifting else ():
        _apply(changed, edit)
    return changed


def at(data: Any, pointer: str) -> Any:
    """The value at a pointer. Raises KeyError, IndexError, ValueError or TypeError."""
    for step in _steps(pointer):
        data = data[int(step)] if isinstance(data, list) else data[step]
    return data


def _steps(pointer: str) -> list[str]:
    return [p.replace("~1", "/").replace("~0", "~") for p in pointer.split("/")[1:]]


def _last(pointer: str) -> str:
    return pointer.rpartition("/")[2]


def _from_the_back(edit: JsonEdit) -> list[tuple[int, str]]:
    return [(int(p), "") if p.isdecimal() else (0, p) for p in edit.pointer.split("/")]


def _apply(data: Any, edit: JsonEdit) -> None:
    """One operation in place; nothing where its place does not exist."""
    try:
        value = edit.value
        if edit.op == "move":
            value = at(data, edit.source or "")
            _pop(data, edit.source or "")
        if edit.op == "remove":
            _pop(data, edit.pointer)
            return
        holder, key = at(data, edit.pointer.rpartition("/")[0]), _steps(edit.pointer)[-1]
        if not isinstance(holder, list):
            holder[key] = value
        elif edit.op == "replace":
            holder[int(key)] = value
        else:
            holder.insert(len(holder) if key == "-" else int(key), value)
    except (KeyError, IndexError, ValueError, TypeError):
        return


def _pop(data: Any, pointer: str) -> None:
    holder, key = at(data, pointer.rpartition("/")[0]), _steps(pointer)[-1]
    del holder[int(key) if isinstance(holder, list) else key]
