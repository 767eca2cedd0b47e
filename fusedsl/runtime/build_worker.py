"""Compiles kernels ahead of time, in a process of its own: `python -m fusedsl.runtime.build_worker
JOBS RESULTS`.

Triton decides while it is imported whether kernels are interpreted or compiled, so a process that
may be interpreting starts this one with `TRITON_INTERPRET=0`. `JOBS` is a JSON list of
`build.Job` fields; `RESULTS` receives one JSON line for each, as soon as it is done: a job without
a line is the one that took the process down.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

_PTXAS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stores": re.compile(r"(\d+) bytes spill stores"),
    "loads": re.compile(r"(\d+) bytes spill loads"),
}
_AMD = {
    "registers": re.compile(r"\.vgpr_count:\s*(\d+)"),
    "vector_spills": re.compile(r"\.vgpr_spill_count:\s*(\d+)"),
    "scalar_spills": re.compile(r"\.sgpr_spill_count:\s*(\d+)"),
}


def main(jobs_file: str, results_file: str) -> None:
    """Compile every job and write its result."""
    jobs = json.loads(Path(jobs_file).read_text())
    with open(results_file, "a", encoding="utf-8") as results:
        for job in jobs:
            try:
                result = _compile(job)
            except Exception as error:  # a compiler's failure is this tool's result
                result = {"error": _told(error)[:2000]}
            results.write(json.dumps({"id": job["id"], **result}) + "\n")
            results.flush()


def _told(error: BaseException) -> str:
    """What failed: the first cause, which a compiler's errors stand around, and where."""
    cause = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    told = f"{type(error).__name__}: {error}"
    return told if cause is error else f"{type(cause).__name__}: {cause}; {told}"


def _compile(job: dict[str, Any]) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget

    arch = int(job["arch"]) if job["arch"].isdecimal() else job["arch"]
    kind, signature = _source_kind(job)
    source = kind(
        fn=getattr(_load(job["source"]), job["function"]),
        signature=signature,
        constexprs=job["constants"],
        attrs={(index,): [["tt.divisibility", 16]] for index in job["aligned"]},
    )
    target = GPUTarget(job["backend"], arch, job["warp_size"])
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        kernel = triton.compile(source, target=target, options=job["options"])
    out = Path(job["out"])
    out.mkdir(parents=True, exist_ok=True)
    files: list[str] = []
    for kind in ("cubin", "hsaco", "ptx", "amdgcn"):
        if kind in kernel.asm:
            path = out / f"{job['function']}.{kind}"
            content = kernel.asm[kind]
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            files.append(str(path))
    return {
        **(_nvidia(log.getvalue()) if "ptx" in kernel.asm else _amd(kernel.asm["amdgcn"])),
        "shared_memory": int(kernel.metadata.shared),
        "files": files,
    }


def _source_kind(job: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """What the compiler takes, and the arguments' types: those of Gluon's descriptors end with the
    layout of their box."""
    signature = dict(job["signature"])
    if not job["gluon"]:
        return importlib.import_module("triton.compiler").ASTSource, signature
    language = importlib.import_module("triton.experimental.gluon.language")
    for name, kind in signature.items():
        found = re.fullmatch(r"tensordesc<(\w+)\[([\d,]+)\]>", kind)
        if found is not None:
            element = {"bf16": language.bfloat16, "fp16": language.float16}[found[1]]
            shape = [int(size) for size in found[2].split(",")]
            layout = language.NVMMASharedLayout.get_default_for(shape, element)
            signature[name] = f"{kind[:-1]},{layout!r}>"
    runtime = importlib.import_module("triton.experimental.gluon._runtime")
    return runtime.GluonASTSource, signature


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _nvidia(log: str) -> dict[str, int]:
    """Registers per thread and spilled bytes, from the assembler's own report."""
    found = {key: [int(n) for n in pattern.findall(log)] for key, pattern in _PTXAS.items()}
    if not found["registers"]:
        raise RuntimeError("ptxas gave no register count")
    return {
        "registers": max(found["registers"]),
        "spills": sum(found["stores"]) + sum(found["loads"]),
    }


def _amd(assembly: str) -> dict[str, int]:
    """Vector registers per lane and spilled registers, from the kernel's metadata."""
    found = {key: [int(n) for n in pattern.findall(assembly)] for key, pattern in _AMD.items()}
    if not found["registers"]:
        raise RuntimeError("the assembly gives no register count")
    return {
        "registers": max(found["registers"]),
        "spills": sum(found["vector_spills"]) + sum(found["scalar_spills"]),
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
