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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fusedsl.codegen import Arg, KernelSource
from fusedsl.fuse import KernelPlan, Plan
from fusedsl.ir import Dim, Kind
from fusedsl.schedule import Target, TileConfig, choose

#: What Triton specialises pointers and strides on.
_ALIGNMENT = 16


@dataclass(frozen=True)
class Job:
    """One kernel for one target, as `build_worker` reads it (plus an id).

    `aligned` lists the arguments that are divisible by 16, by position.
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
    options: dict[str, int]


@dataclass(frozen=True)
class Schedule:
    """How every kernel of a plan is tiled for one target, with contiguous tensors.

    `env` holds the dims and the number of column tiles behind every per-tile statistic.
    """

    target: Target
    loops: Mapping[str, str]
    configs: Mapping[str, TileConfig]
    env: Mapping[str, int]


def schedule(plan: Plan, target: Target, env: Mapping[str, int]) -> Schedule:
    """The default schedule; a projection whose rows are not 16-byte multiples uses pointers."""
    full = dict(env)
    loops: dict[str, str] = {}
    configs: dict[str, TileConfig] = {}
    for kernel in plan.kernels:
        described = kernel.kind is Kind.GEMM and _rows_are_aligned(plan, kernel, full)
        loops[kernel.name] = target.main_loop if described else "pointer"
        configs[kernel.name] = choose(plan, kernel, full, target, loops[kernel.name])
        for symbol, writer, _ in plan.tile_symbols():
            if writer is kernel:
                full[symbol] = _tiles(kernel, configs[kernel.name], full)
    return Schedule(target, loops, configs, full)


def _rows_are_aligned(plan: Plan, kernel: KernelPlan, env: Mapping[str, int]) -> bool:
    types = [plan.type_of(name) for name in (*kernel.reads, *kernel.writes)]
    tiles = [t for t in types if t.rank == 2 and t.cols.bind(env) > 1]
    if kernel.paired and kernel.cols.bind(env) * tiles[0].dtype.bytes % _ALIGNMENT:
        return False
    return all(t.cols.bind(env) * t.dtype.bytes % _ALIGNMENT == 0 for t in tiles)


def _tiles(kernel: KernelPlan, config: TileConfig, env: Mapping[str, int]) -> int:
    return -(-kernel.cols.bind(env) // config.piece_width(kernel.paired))


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
            if columns % _ALIGNMENT == 0:
                aligned.append(index)
        else:
            signature[arg.name] = "constexpr"
            constants[arg.name] = _constant(arg, config, plan, how)
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
        options={"num_warps": config.warps, "num_stages": config.stages},
    )


def _element(plan: Plan, arg: Arg) -> str:
    return plan.type_of(arg.value).dtype.value


def _constant(arg: Arg, config: TileConfig, plan: Plan, how: Schedule) -> Any:
    """The value of a compile-time argument."""
    if arg.role == "stride":
        return 1
    if arg.role == "dim":
        return Dim.parse(arg.value).bind(how.env)
    if arg.role == "config":
        return config.constants()[arg.name]
    writer = plan.writer(arg.value)
    assert writer is not None, f"no kernel writes '{arg.value}'"
    if arg.role == "tile_width":
        return how.configs[writer.name].piece_width(writer.paired)
    tiles = _tiles(writer, how.configs[writer.name], how.env)
    return tiles if arg.role == "tiles" else 1 << max(0, tiles - 1).bit_length()


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
    with ThreadPoolExecutor(count) as pool:
        for results in pool.map(_run_worker, (numbered[i::count] for i in range(count))):
            found.update(results)
    return [found[i] for i in range(len(jobs))]


def _run_worker(jobs: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Run jobs in one process; a job that takes it down is recorded and the rest go on."""
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="fusedsl-build-") as scratch:
        while left := [job for job in jobs if job["id"] not in found]:
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
