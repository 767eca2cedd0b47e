"""A process that compiles kernels into Triton's cache: `python -m fusedsl.runtime.tune_worker`.

Reads one job a line on standard input and answers each with one line: empty, or why it failed.
Arguments are described, not passed: what a kernel is compiled for depends on dtypes, alignment and
numbers, so tensors of one element stand for those of the call.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from fusedsl.codegen import ALIGNMENT
from fusedsl.runtime.cache import Entry
from fusedsl.runtime.gluon import is_laid_out, layout_of
from fusedsl.runtime.launch import describe
from fusedsl.runtime.load import load

#: The fields of a descriptor that are described as they are.
_FIELDS = ("shape", "strides", "block_shape", "padding", "round_f32_to_tf32")


def described(args: Sequence[Any]) -> list[dict[str, Any]]:
    """Arguments of a kernel as JSON."""
    return [_described(arg) for arg in args]


def _described(arg: Any) -> dict[str, Any]:
    if isinstance(arg, TensorDescriptor) or is_laid_out(arg):
        fields = {name: getattr(arg, name) for name in _FIELDS if hasattr(arg, name)}
        return {"fields": fields, "dtype": str(arg.base.dtype), "laid_out": is_laid_out(arg)}
    if isinstance(arg, torch.Tensor):
        return {"dtype": str(arg.dtype), "aligned": arg.data_ptr() % ALIGNMENT == 0}
    return {"value": arg}


def stand_in(arg: dict[str, Any], device: torch.device) -> Any:
    """An argument that Triton specialises on as on the one described."""
    if "value" in arg:
        return arg["value"]
    dtype = getattr(torch, arg["dtype"].removeprefix("torch."))
    tensor = torch.empty(2 * ALIGNMENT, dtype=dtype, device=device)
    if "fields" in arg:
        fields = dict(arg["fields"])
        if arg["laid_out"]:  # the shape decides the layout
            fields["layout"] = layout_of(fields["block_shape"], dtype)
        return describe(tensor, fields)
    return tensor if arg["aligned"] else tensor[1:]


def compile_one(job: dict[str, Any]) -> str:
    """Compile a job's kernel into Triton's cache; gives why it failed, or nothing."""
    try:
        device = torch.device(job["device"])
        entry = Entry(job["digest"], job["path"], Path(job["path"]).read_text(encoding="utf-8"))
        fn = getattr(load(entry), job["kernel"])
        with torch.cuda.device(device):
            args = [stand_in(arg, device) for arg in job["args"]]
            fn.run(*args, grid=(1, 1, 1), warmup=True, **job["options"])
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:400]
    return ""


def main() -> None:
    """Answer jobs until standard input ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a compiler prints is no answer
    for line in sys.stdin:
        answers.write(compile_one(json.loads(line)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
