"""Kernels to compiler jobs, and jobs to processes that compile them.

Triton decides while it is imported whether kernels are interpreted or compiled, so jobs run in
processes of their own (`build_worker`), one for each core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fusedsl.codegen import (
    ALIGNMENT,
    Arg,
    KernelSource,
    ProgramSource,
    column_tiles,
    compile_time_value,
)
from fusedsl.fuse import Plan
from fusedsl.runtime.binding import padded_stride, streamed_names
from fusedsl.schedule import Target, TileConfig, choose, usable_loop


@dataclass(frozen=True)
class Job:
    """One kernel for one target, as `build_worker` reads it (plus an id).

    `aligned` lists the arguments that are divisible by 16, by position. `gluon`: the source is
    Gluon, whose descriptors have layouts.
    """

    function: str
    source: str
    out: str
    signature: dict[str, str]
    constants: dict[str, Any]
    aligned: list[int]
    backend: str
    arch: str
    warp_size: int
    options: dict[str, Any]
    gluon: bool = False


@dataclass(frozen=True)
class Schedule:
    """How every kernel of a plan is tiled for one target, with contiguous tensors.

    `env` holds the dims and the number of column tiles behind every per-tile statistic.
    """

    target: Target
    loops: Mapping[str, str]
    configs: Mapping[str, TileConfig]
    env: Mapping[str, int]


def schedule(plan: Plan, target: Target, env: Mapping[str, int], tma: ProgramSource) -> Schedule:
    """The default schedule for contiguous, aligned tensors.

    `tma` is the plan emitted with descriptors: a projection whose values no descriptor can
    express (outputs whose rows are not multiples of 16 bytes) uses pointers for them, as it would
    at run time.
    """
    full = dict(env)
    loops: dict[str, str] = {}
    configs: dict[str, TileConfig] = {}
    sources = {source.name: source for source in tma.kernels}
    for kernel in plan.kernels:
        if kernel.specialised:
            loops[kernel.name] = "specialised"
        else:
            described = [a for a in sources[kernel.name].args if a.role == "descriptor"]
            fits = {arg.name: _describable(plan, arg, full) for arg in described}
            loops[kernel.name] = usable_loop(target.main_loop, fits)
        configs[kernel.name] = choose(plan, kernel, full, target, loops[kernel.name]).on(target)
        for symbol, writer, _ in plan.tile_symbols():
            if writer is kernel:
                full[symbol] = column_tiles(kernel, configs[kernel.name], full)
    return Schedule(target, loops, configs, full)


def _describable(plan: Plan, arg: Arg, env: Mapping[str, int]) -> bool:
    """Whether every stride but the last is a multiple of 16 bytes.

    Rows of operands, and of what stays inside a call, are padded at run time.
    """
    kind = plan.type_of(arg.value)
    columns, item = kind.cols.bind(env), kind.dtype.bytes
    written = plan.writer(arg.value) is not None and arg.value not in plan.graph.outputs
    padded = written or arg.value in streamed_names(plan)
    rows = padded_stride(columns, item) if padded else columns
    return all(step * item % ALIGNMENT == 0 for step in arg.steps(rows, columns))


def job(kernel: KernelSource, plan: Plan, how: Schedule, file: Path) -> Job:
    """What the compiler must know to compile `kernel` from `file` into the folder beside it."""
    config = how.configs[kernel.plan.name]
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned: list[int] = []
    for index, arg in enumerate(kernel.args):
        if arg.role == "rows":
            signature[arg.name] = "i32"
        elif arg.role == "pointer":
            signature[arg.name] = f"*{_element(plan, arg)}"
            aligned.append(index)
        elif arg.role == "descriptor":
            block = ",".join(map(str, kernel.block_shape(arg, config)))
            signature[arg.name] = f"tensordesc<{_element(plan, arg)}[{block}]>"
        elif arg.role == "stride" and (columns := plan.type_of(arg.value).cols.bind(how.env)) != 1:
            signature[arg.name] = "i32"
            if columns % ALIGNMENT == 0:
                aligned.append(index)
        else:
            signature[arg.name] = "constexpr"
            constants[arg.name] = _constant(arg, kernel.name, plan, how)
    return Job(
        function=kernel.name,
        source=str(file),
        out=str(file.parent),
        signature=signature,
        constants=constants,
        aligned=aligned,
        backend=how.target.backend,
        arch=str(how.target.arch),
        warp_size=how.target.warp_size,
        options=config.options,
        gluon=kernel.plan.specialised,
    )


def _element(plan: Plan, arg: Arg) -> str:
    if "." in arg.value:  # a kernel's workspace
        return {"parts": "fp32", "arrived": "i32", "words": "i64"}[arg.value.rsplit(".", 1)[1]]
    return plan.type_of(arg.value).dtype.value


def _constant(arg: Arg, kernel: str, plan: Plan, how: Schedule) -> Any:
    """The value of a compile-time argument."""
    if arg.role in ("stride", "fixed_stride"):
        return plan.type_of(arg.value).cols.bind(how.env)
    return compile_time_value(arg, kernel, plan, how.configs, how.env)


# processes -------------------------------------------------------------------------------------
def compile_all(jobs: Sequence[Job], workers: int | None = None) -> list[dict[str, Any]]:
    """Each job's result, in order, from as many processes as there are cores to use.

    A result holds `registers`, `spills`, `shared_memory` and `files`, or `error`.
    """
    count = min(workers or os.cpu_count() or 1, len(jobs))
    if count == 0:
        return []
    numbered = [{"id": i, **asdict(job)} for i, job in enumerate(jobs)]
    found: dict[int, dict[str, Any]] = {}
    stop = threading.Event()
    with ThreadPoolExecutor(count) as pool:
        try:
            shares = [numbered[i::count] for i in range(count)]
            for results in pool.map(_run_worker, shares, [stop] * count):
                found.update(results)
        finally:  # an interrupt must not start the workers it ended anew
            stop.set()
    return [found[i] for i in range(len(jobs))]


def _run_worker(jobs: list[dict[str, Any]], stop: threading.Event) -> dict[int, dict[str, Any]]:
    """Run jobs in one process; a job that takes it down is recorded and the rest go on."""
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="fusedsl-build-") as scratch:
        while (left := [j for j in jobs if j["id"] not in found]) and not stop.is_set():
            todo, done = Path(scratch, "jobs.json"), Path(scratch, "results.jsonl")
            todo.write_text(json.dumps(left))
            done.write_text("")
            worker = subprocess.run(
                [sys.executable, "-m", "fusedsl.runtime.build_worker", str(todo), str(done)],
                env=_environment(scratch),
                capture_output=True,
                text=True,
                check=False,
            )
            for line in done.read_text().splitlines():
                result = json.loads(line)
                found[result.pop("id")] = result
            victim = next((job["id"] for job in left if job["id"] not in found), None)
            if victim is not None:
                tail = (worker.stderr or worker.stdout).strip()[-2000:]
                found[victim] = {"error": f"the compiler ended with {worker.returncode}: {tail}"}
    return found


def _environment(scratch: str) -> dict[str, str]:
    """A compiling Triton, an empty cache (a cached kernel reports no spills), our own package."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(Path(scratch, "cache")),
        "TRITON_DUMP_PTXAS_LOG": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
