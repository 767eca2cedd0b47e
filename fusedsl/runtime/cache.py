"""Emitted sources on disk: content-addressed, written atomically, checked when read.

A source must lie in a real file: Triton reads a kernel's text with `inspect`, and a traceback is
only readable where the file is. An entry's name is the digest of everything that decides its
text, its last line the digest of the text itself, so that a truncated or edited entry is noticed
and written anew. Writers put a temporary file beside the entry and rename it, which is atomic:
readers, and other processes that write the same entry, see the old file or the new one.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import linecache
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import triton

import fusedsl.blocks
from fusedsl import settings
from fusedsl._version import __version__

_TRAILER = "# text sha256: "


@dataclass(frozen=True)
class Entry:
    """A source in the cache. `path` is a real file unless the folder cannot be written."""

    digest: str
    path: str
    text: str


def place(name: str, text: str, parts: Mapping[str, object]) -> Entry:
    """Put an emitted source where `inspect` finds it and say where that is.

    `parts` is what decided the text (program, options, main loop, target); versions and the block
    library are added here. Where the cache folder cannot be written the source is only kept in
    memory, after one warning per process.
    """
    digest = key_of(text, parts)
    sealed = seal(text)
    path = settings.current().cache_dir / "sources" / f"{name}-{digest[:20]}.py"
    if read(path) != sealed and not write(path, sealed):
        return _in_memory(name, digest, sealed)
    return Entry(digest, str(path), sealed)


def key_of(text: str, parts: Mapping[str, object]) -> str:
    """The digest of everything that decides what an entry compiles to."""
    content = {
        "parts": {key: str(value) for key, value in parts.items()},
        "text": text,
        "versions": versions(),
        "blocks": library_digest(),
    }
    return _sha(json.dumps(content, sort_keys=True))


def seal(text: str) -> str:
    """The text with its own digest as the last line."""
    body = text if text.endswith("\n") else text + "\n"
    return f"{body}{_TRAILER}{_sha(body)}\n"


def read(path: Path) -> str | None:
    """A sealed text, or None if it is absent, unreadable, truncated or edited."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    body, found, digest = text.rpartition(_TRAILER)
    return text if found and digest == f"{_sha(body)}\n" else None


@functools.cache
def library_digest() -> str:
    """Digest of every file of the block library: its functions are part of what is compiled."""
    root = Path(fusedsl.blocks.__file__).parent
    hasher = hashlib.sha256()
    for file in sorted(root.rglob("*.py*")):
        if file.suffix in (".py", ".jinja"):
            hasher.update(str(file.relative_to(root)).encode())
            hasher.update(file.read_bytes())
    return hasher.hexdigest()


def versions() -> dict[str, str]:
    """The versions that decide what an entry compiles to."""
    return {"fusedsl": __version__, "torch": torch.__version__, "triton": triton.__version__}


def write(path: Path, content: str | bytes) -> bool:
    """Write atomically; False where the folder cannot be written."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp"
        )
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            if temporary:
                os.unlink(temporary)
        _warn_once(str(path.parent), str(error))
        return False
    return True


def _in_memory(name: str, digest: str, text: str) -> Entry:
    """Register the text with `linecache`, which `inspect` and tracebacks read."""
    path = f"<fusedsl {name}-{digest[:20]}>"
    # A modification time of None keeps the entry from being dropped as a file that vanished.
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    return Entry(digest, path, text)


@functools.cache
def _warn_once(folder: str, reason: str) -> None:
    warnings.warn(
        f"the cache folder {folder} cannot be written ({reason}); what would lie there is kept in "
        "memory. Set FUSEDSL_CACHE_DIR to a folder that can be written.",
        RuntimeWarning,
        stacklevel=3,
    )


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
