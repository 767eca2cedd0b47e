"""Ahead-of-time binaries for machines that are not here; needs no GPU and no driver.

`build` emits a plan's kernels for each target, compiles them in processes of their own (a process
that interprets kernels cannot compile them), and holds the result against the target: shared
memory over its limit is F0601, spilled registers are F0605, a compiler's failure is F0603.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fusedsl.codegen import KernelSource, ProgramSource
from fusedsl.diagnostics import Diagnostic, FusedslError, did_you_mean
from fusedsl.fuse import Plan
from fusedsl.schedule import TileConfig


@dataclass(frozen=True)
class BuildTarget:
    """A GPU to compile for. `shared_limit` is the most shared memory one program may use, bytes.

    Sources of the limits: CUDA C++ Programming Guide, "Compute Capabilities" (maximum shared
    memory per thread block); AMD's ISA guides (LDS per work-group).
    """

    name: str
    backend: str
    arch: str
    warp_size: int
    shared_limit: int
    main_loop: str


TARGETS: dict[str, BuildTarget] = {
    target.name: target
    for target in (
        BuildTarget("sm_80", "cuda", "80", 32, 166_912, "pointer"),
        BuildTarget("sm_86", "cuda", "86", 32, 101_376, "pointer"),
        BuildTarget("sm_89", "cuda", "89", 32, 101_376, "pointer"),
        BuildTarget("sm_90", "cuda", "90", 32, 232_448, "tma"),
        BuildTarget("sm_100", "cuda", "100", 32, 232_448, "tma"),
        BuildTarget("sm_120", "cuda", "120", 32, 101_376, "tma"),
        BuildTarget("gfx90a", "hip", "gfx90a", 64, 65_536, "pointer"),
        BuildTarget("gfx942", "hip", "gfx942", 64, 65_536, "pointer"),
        BuildTarget("gfx950", "hip", "gfx950", 64, 163_840, "pointer"),
    )
}


@dataclass(frozen=True)
class Job:
    """One kernel for one target, as `build_worker` reads it (plus an id)."""

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
class BuiltKernel:
    """One compiled kernel.

    Fields:
        registers: per thread (NVIDIA) or vector registers per lane (AMD).
        spills: bytes of spill code (NVIDIA) or spilled registers (AMD); 0 is the aim.
        shared_memory, shared_limit: bytes one program uses, and may use.
        files: the binary and its assembly.
        error: the compiler's message; the numbers are 0 then.
    """

    target: str
    kernel: str
    registers: int = 0
    spills: int = 0
    shared_memory: int = 0
    shared_limit: int = 0
    files: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class BuildReport:
    """What `build` made, in the order of targets and kernels, and what is wrong with it."""

    kernels: tuple[BuiltKernel, ...]
    sources: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """F0601, F0603 and F0605, one per broken kernel and reason."""
        return tuple(item for kernel in self.kernels for item in _problems(kernel))

    @property
    def ok(self) -> bool:
        """Whether every kernel compiled, fits and spills nothing."""
        return not self.diagnostics

    def to_json(self) -> dict[str, Any]:
        """`ok`, `kernels`, `sources` (by target) and `diagnostics`."""
        return {
            "ok": self.ok,
            "kernels": [{**asdict(k), "files": list(k.files)} for k in self.kernels],
            "sources": dict(self.sources),
            "diagnostics": [item.to_json() for item in self.diagnostics],
        }


def find_target(name: str) -> BuildTarget:
    """The target of that name. Raises FusedslError (F0602) with the nearest known name."""
    target = TARGETS.get(name.strip())
    if target is None:
        raise FusedslError(
            Diagnostic(
                "F0602",
                f"there is no target '{name}'",
                expected=", ".join(TARGETS),
                got=name,
                fix=did_you_mean(name.strip().lower(), TARGETS, "targets"),
            )
        )
    return target


@dataclass(frozen=True)
class TargetSource:
    """A program emitted and configured for one target."""

    target: BuildTarget
    source: ProgramSource
    configs: Mapping[str, TileConfig]


def build(
    plan: Plan, parts: Sequence[TargetSource], env: Mapping[str, int], out: Path
) -> BuildReport:
    """Compile every kernel of every part; write binary, assembly and source below `out/<target>`.

    `env` binds every symbolic dimension but the rows, which stay a run-time argument.
    Raises FusedslError (F0102) where `out` cannot be written.
    """
    jobs: list[Job] = []
    sources: dict[str, str] = {}
    for part in parts:
        folder = out / part.target.name
        file = folder / f"{plan.graph.name}.py"
        _write(file, part.source.text)
        sources[part.target.name] = str(file)
        jobs += [_job(part, kernel, plan, env, file) for kernel in part.source.kernels]
    names = [part.target for part in parts for _ in part.source.kernels]
    kernels = tuple(
        BuiltKernel(
            target.name,
            job.function,
            shared_limit=target.shared_limit,
            **{key: tuple(v) if key == "files" else v for key, v in result.items()},
        )
        for target, job, result in zip(names, jobs, compile_all(jobs), strict=True)
    )
    return BuildReport(kernels, sources)


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FusedslError(
            Diagnostic(
                "F0102",
                f"cannot write '{file}'",
                expected="a folder that can be written",
                got=error.strerror or str(error),
                fix="give another folder with --out",
            )
        ) from None


def _job(
    part: TargetSource, kernel: KernelSource, plan: Plan, env: Mapping[str, int], file: Path
) -> Job:
    config = part.configs[kernel.plan.name]
    constants = _constants(kernel, plan, part.configs, env)
    signature: dict[str, str] = {}
    aligned: list[int] = []
    for index, arg in enumerate(kernel.args):
        if arg.name in constants:
            signature[arg.name] = "constexpr"
            continue
        if arg.role == "rows":
            signature[arg.name] = "i32"
            continue
        dtype = plan.type_of(arg.value).dtype.value
        if arg.role == "pointer":
            signature[arg.name] = f"*{dtype}"
            aligned.append(index)
        elif arg.role == "stride":
            signature[arg.name] = "i32"
            if plan.type_of(arg.value).cols.bind(env) % 16 == 0:
                aligned.append(index)
        elif arg.role == "descriptor":
            names = {**config.constants(), **constants}
            block = [names[size] if isinstance(size, str) else size for size in arg.block]
            signature[arg.name] = f"tensordesc<{dtype}[{','.join(map(str, block))}]>"
    return Job(
        function=kernel.name,
        source=str(file),
        out=str(file.parent),
        signature=signature,
        constants=constants,
        aligned=aligned,
        backend=part.target.backend,
        arch=part.target.arch,
        warp_size=part.target.warp_size,
        options={"num_warps": config.warps, "num_stages": config.stages},
    )


def _constants(
    kernel: KernelSource,
    plan: Plan,
    configs: Mapping[str, TileConfig],
    env: Mapping[str, int],
) -> dict[str, Any]:
    """The compile-time arguments of a kernel by name."""
    values: dict[str, Any] = {}
    own = configs[kernel.plan.name].constants()
    for arg in kernel.args:
        if arg.role == "config":
            values[arg.name] = own[arg.value or arg.name]
        elif arg.role == "dim":
            values[arg.name] = env[arg.value] if arg.value in env else int(arg.value)
        elif arg.role in ("tiles", "tiles_padded", "tile_width"):
            writer = plan.writer(arg.value)
            assert writer is not None, f"'{arg.value}' has no kernel that writes it"
            width = configs[writer.name].piece_width(writer.paired)
            tiles = -(-writer.cols.bind(env) // width)
            padded = 1 << (tiles - 1).bit_length()
            values[arg.name] = {"tiles": tiles, "tiles_padded": padded}.get(arg.role, width)
    return values


def compile_all(jobs: Sequence[Job], workers: int | None = None) -> list[dict[str, Any]]:
    """Each job's result, in order, from as many processes as there are cores to use."""
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


def _problems(kernel: BuiltKernel) -> list[Diagnostic]:
    where = f"kernel '{kernel.kernel}' for {kernel.target}"
    if kernel.error is not None:
        return [
            Diagnostic(
                "F0603",
                f"'{kernel.kernel}' does not compile for {kernel.target}",
                got=kernel.error,
                where=where,
                fix="the emitted source lies in the output folder",
            )
        ]
    found: list[Diagnostic] = []
    if kernel.shared_memory > kernel.shared_limit:
        found.append(
            Diagnostic(
                "F0601",
                f"'{kernel.kernel}' needs more shared memory than {kernel.target} has",
                expected=f"at most {kernel.shared_limit:,} bytes",
                got=f"{kernel.shared_memory:,} bytes",
                where=where,
                fix="use smaller tiles or fewer stages",
            )
        )
    if kernel.spills:
        unit = "registers" if kernel.target.startswith("gfx") else "bytes of spill code"
        found.append(
            Diagnostic(
                "F0605",
                f"'{kernel.kernel}' spills registers on {kernel.target}",
                expected="no spills",
                got=f"{kernel.spills} {unit} at {kernel.registers} registers",
                where=where,
                fix="use smaller tiles or more warps",
            )
        )
    return found
