"""What the commands are given: dims, tensors from files, devices. Every mistake has a code."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fusedsl.diagnostics import Diagnostic, Diagnostics, FusedslError, did_you_mean
from fusedsl.ir import Graph, bind_dims
from fusedsl.schedule import Target

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 1 << 31


def parse_dims(given: str | Sequence[str] | None) -> dict[str, int]:
    """`M=128,F=64` as a table, or several such texts as one. Raises FusedslError (F0105) with every
    malformed part, and with every dimension that is given two sizes."""
    bag = Diagnostics()
    dims: dict[str, int] = {}
    text = given if isinstance(given, str) else ",".join(given or ())
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"([A-Za-z_]\w*)\s*=\s*(\d+)", part)
        if match is None or not 0 < int(match[2]) < _LARGEST:
            bag.add(
                Diagnostic(
                    "F0105",
                    f"--dims does not accept '{part}'",
                    expected="NAME=SIZE with a positive integer, separated by commas",
                    got=part,
                    fix="for example --dims M=128,F=512",
                )
            )
        elif dims.setdefault(match[1], int(match[2])) != int(match[2]):
            bag.add(
                Diagnostic(
                    "F0105",
                    f"--dims gives '{match[1]}' two sizes",
                    expected=f"one size, such as {match[1]}={dims[match[1]]}",
                    got=f"{match[1]}={dims[match[1]]} and {part}",
                    fix="leave one of them out",
                )
            )
    bag.raise_if_any()
    return dims


def parse_shapes(text: str | None) -> list[dict[str, int]]:
    """`M=16;M=4096,F=512` as one table of dims per shape; no text is one shape without dims.

    Raises FusedslError (F0105) with every malformed part.
    """
    bag = Diagnostics()
    shapes: list[dict[str, int]] = []
    for part in filter(None, (p.strip() for p in (text or "").split(";"))):
        try:
            shapes.append(parse_dims(part))
        except FusedslError as error:
            for diagnostic in error.diagnostics:
                bag.add(diagnostic)
    bag.raise_if_any()
    return shapes or [{}]


def parse_targets(text: str) -> list[Target]:
    """`sm_90,gfx942` as targets. Raises FusedslError (F0602) with every unknown name."""
    bag = Diagnostics()
    targets: list[Target] = []
    for name in dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))):
        try:
            targets.append(Target.parse(name))
        except FusedslError as error:
            for diagnostic in error.diagnostics:
                bag.add(diagnostic)
    bag.raise_if_any()
    if not targets:
        Target.parse(text.strip())
    return targets


def complete_dims(graph: Graph, given: Mapping[str, int], default: int) -> dict[str, int]:
    """Every symbol of the signature with its value: as given, else `default`.

    Raises FusedslError (F0404) for a name that is no symbol of the program.
    """
    known = dict.fromkeys(s for p in graph.params for s in p.type.symbols)
    bag = Diagnostics()
    for name in given:
        if name not in known:
            bag.add(
                Diagnostic(
                    "F0404",
                    f"'{graph.name}' has no dimension '{name}'",
                    expected=", ".join(known) or "no symbolic dimensions",
                    got=name,
                    fix=did_you_mean(name, known, "dimensions"),
                )
            )
    bag.raise_if_any()
    return {name: given.get(name, default) for name in known}


def read_tensors(graph: Graph, given: Iterable[str]) -> dict[str, Tensor]:
    """`NAME=FILE` or `NAME=FILE:KEY` for each; FILE is .safetensors, .pt or .pth.

    Raises FusedslError: F0501 for an unknown name, F0102 for a file that cannot be read.
    """
    bag = Diagnostics()
    tensors: dict[str, Tensor] = {}
    names = [p.name for p in graph.params]
    for item in given:
        name, separator, place = item.partition("=")
        if not separator or not place:
            bag.add(_malformed(item))
        elif name not in names:
            bag.add(
                Diagnostic(
                    "F0501",
                    f"--input: there is no parameter '{name}'",
                    expected=", ".join(names),
                    got=name,
                    fix=did_you_mean(name, names, "parameters"),
                )
            )
        else:
            try:
                tensors[name] = _read_tensor(name, place)
            except FusedslError as error:
                for diagnostic in error.diagnostics:
                    bag.add(diagnostic)
    bag.raise_if_any()
    return tensors


def _malformed(item: str) -> Diagnostic:
    return Diagnostic(
        "F0507",
        f"--input does not accept '{item}'",
        expected="NAME=FILE or NAME=FILE:KEY",
        got=item,
        fix="for example --input x=activations.safetensors",
    )


def _read_tensor(name: str, place: str) -> Tensor:
    path, key = place, None
    if not Path(place).exists() and ":" in place:
        path, _, key = place.rpartition(":")
    if not Path(path).is_file():
        raise _unreadable(path, "no such file", "check the path")
    suffix = Path(path).suffix
    if suffix == ".safetensors":
        found = _read_safetensors(path)
    elif suffix in (".pt", ".pth"):
        found = _read_torch(path)
    else:
        raise _unreadable(path, f"a file called *{suffix}", "use .safetensors, .pt or .pth")
    if not isinstance(found, dict):
        return found
    if key is None:
        key = name if name in found else next(iter(found)) if len(found) == 1 else None
    if key not in found:
        fix = did_you_mean(key or name, found, "tensors in the file")
        raise _unreadable(path, f"no tensor '{key or name}' in it", f"{fix} (NAME=FILE:KEY)")
    return found[key]


def _read_safetensors(path: str) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise _unreadable(path, "safetensors is not installed", "pip install safetensors") from None
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, str(error), "write the file again") from None


def _read_torch(path: str) -> Tensor | dict[str, Tensor]:
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, pickle.PickleError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise _unreadable(path, reason[0], "save a tensor or a dict of tensors") from None
    if isinstance(found, torch.Tensor):
        return found
    if isinstance(found, dict):
        return {str(k): v for k, v in found.items() if isinstance(v, torch.Tensor)}
    raise _unreadable(path, type(found).__name__, "save a tensor or a dict of tensors")


def _unreadable(path: str, got: str, fix: str) -> FusedslError:
    return FusedslError(
        Diagnostic(
            "F0102",
            f"cannot read a tensor from '{path}'",
            expected="a .safetensors, .pt or .pth file",
            got=got,
            fix=fix,
            file=path,
        )
    )


def dims_of(graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The symbols that tensors from files bind; shapes that do not fit are left to the call."""
    fitting = {
        p.name: tensors[p.name]
        for p in graph.params
        if p.name in tensors and tensors[p.name].dim() == p.type.rank
    }
    return bind_dims(graph, fitting)


def find_device(name: str | None) -> str:
    """The device to run on: as asked, else CUDA where it is usable. Raises FusedslError (F0507)."""
    import torch

    usable = torch.cuda.is_available()
    if name is None:
        return "cuda" if usable else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind == "cpu" or (kind == "cuda" and usable):
        return name
    raise FusedslError(
        Diagnostic(
            "F0507",
            f"--device does not accept '{name}' here",
            expected="cpu, cuda or cuda:N" if usable else "cpu: no CUDA device is usable",
            got=name,
            fix="leave --device out" if kind == "cuda" else did_you_mean(name, _DEVICES, "devices"),
        )
    )


_DEVICES = ("cpu", "cuda")
