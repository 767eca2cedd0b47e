"""Tuned configurations on disk: one small file per kernel, shape class and device.

An entry's name is the digest of its key, so entries never share a file: writers of different keys
do not meet, and of two writers of one key the last wins. Files are written beside their place and
renamed (`cache.write`): readers see the old entry or the new one, never a torn one. An entry is
used only if its seal is whole, its key is the one asked for (device and versions included) and its
configuration is legal for the kernel; anything else is warned about once and counts as absent, so
that the next tuning replaces it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fusedsl import settings
from fusedsl.fuse import KernelPlan, Plan
from fusedsl.runtime import cache
from fusedsl.schedule import Extent, Target, TileConfig, problem, row_class, signature


@dataclass(frozen=True)
class Entry:
    """A tuned configuration, with the medians that chose it."""

    config: TileConfig
    ms: float
    default_ms: float


def key_of(
    plan: Plan,
    kernel: KernelPlan,
    env: Mapping[str, int],
    target: Target,
    main_loop: str,
    options: Mapping[str, Any],
    device: str,
) -> dict[str, Any]:
    """Everything a tuned configuration depends on; rows count through their class."""
    extent = Extent.of(plan, kernel, env)
    return {
        "kernel": signature(plan, kernel),
        "rows": row_class(extent.rows),
        "cols": extent.cols,
        "depth": extent.depth,
        "main_loop": main_loop,
        "options": {name: str(value) for name, value in sorted(options.items())},
        "device": device,
        "target": [target.name, target.sms, target.shared_limit],
        "versions": cache.versions(),
        "blocks": cache.library_digest(),
    }


def path_of(key: Mapping[str, Any]) -> Path:
    """Where the entry of a key lies."""
    return settings.current().cache_dir / "tuned" / f"{_digest(key)[:32]}.json"


def save(key: Mapping[str, Any], entry: Entry) -> bool:
    """Write an entry; False, after one warning, where the cache folder cannot be written."""
    body = {"key": dict(key), **asdict(entry)}
    sealed = {**body, "sha256": _digest(body)}
    return cache.write(path_of(key), json.dumps(sealed, indent=1, sort_keys=True) + "\n")


def find(
    key: Mapping[str, Any], plan: Plan, kernel: KernelPlan, target: Target, main_loop: str
) -> Entry | None:
    """The entry of a key, if there is a sound and legal one."""
    path = path_of(key)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        _warn_once(str(path), str(error))
        return None
    try:
        entry = _parse(text, key)
    except (ValueError, TypeError, KeyError) as error:
        _warn_once(str(path), str(error) or type(error).__name__)
        return None
    wrong = problem(plan, kernel, entry.config, target, main_loop)
    if wrong is not None:
        _warn_once(str(path), wrong)
        return None
    return entry


def _parse(text: str, key: Mapping[str, Any]) -> Entry:
    """The entry in a file's text. Raises ValueError, TypeError or KeyError on any damage."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    seal = found.pop("sha256", None)
    if seal != _digest(found):
        raise ValueError("its seal is broken")
    if found["key"] != json.loads(json.dumps(key)):
        raise ValueError("it is the entry of another key")
    return Entry(config_of(found["config"]), float(found["ms"]), float(found["default_ms"]))


def config_of(given: Mapping[str, Any]) -> TileConfig:
    """A configuration from JSON. Raises ValueError where a field is missing or of a wrong type."""
    kinds = {f.name: type(getattr(_EXAMPLE, f.name)) for f in fields(TileConfig)}
    if set(given) != set(kinds) or any(type(given[n]) is not kind for n, kind in kinds.items()):
        raise ValueError("its configuration has other fields")
    return TileConfig(**given)


_EXAMPLE = TileConfig(16, 16)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@functools.cache
def _warn_once(path: str, reason: str) -> None:
    warnings.warn(
        f"the tuned configuration {path} is not used ({reason}); tuning again replaces it",
        RuntimeWarning,
        stacklevel=3,
    )
