"""Ahead-of-time binaries for machines that are not here; needs no GPU and no driver.

`build` emits a plan's kernels for each target, compiles them, and holds the result against the
target: shared memory over its limit is F0601, spilled registers are F0605, a compiler's failure
is F0603.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fusedsl.codegen import ProgramSource, emit
from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.fuse import Plan
from fusedsl.runtime.ahead import Job, Schedule, compile_all, job, schedule
from fusedsl.runtime.planning import planned
from fusedsl.schedule import Target


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
    """What `build` made, in the order of targets and kernels, and what is wrong with it.

    `sources` lists the emitted files of each target.
    """

    kernels: tuple[BuiltKernel, ...]
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

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
            "sources": {target: list(files) for target, files in self.sources.items()},
            "diagnostics": [item.to_json() for item in self.diagnostics],
        }


def build(
    plan: Plan,
    targets: Sequence[Target],
    dims: Mapping[str, int],
    out: Path,
    *,
    numerics: str = "moved",
    header: Sequence[str] = (),
    workers: int | None = None,
) -> BuildReport:
    """Compile a plan for each target; write binary, assembly and source below `out/<target>`.

    `dims` binds every symbol. The rows stay a run-time argument: their value only chooses the
    tiles. Raises FusedslError (F0102) where `out` cannot be written.
    """
    jobs: list[Job] = []
    owners: list[Target] = []
    sources: dict[str, tuple[str, ...]] = {}
    for target in targets:
        chosen = planned(plan, dims, target)
        emitted = {
            loop: emit(chosen, main_loop=loop, numerics=numerics, header=header)
            for loop in ("tma", "mixed", "pointer", "specialised")
        }
        how = schedule(chosen, target, dims, emitted["tma"])
        made = place(chosen, how, emitted, out / target.name)
        sources[target.name] = tuple(dict.fromkeys(j.source for j in made))
        jobs += made
        owners += [target] * len(made)
    return BuildReport(compile_jobs(owners, jobs, workers), sources)


def place(
    plan: Plan, how: Schedule, emitted: Mapping[str, ProgramSource], folder: Path
) -> list[Job]:
    """Write the emitted files that a schedule uses; gives a job for every kernel, in order."""
    jobs: list[Job] = []
    for kernel in plan.kernels:
        loop = how.loops[kernel.name]
        file = folder / f"{plan.graph.name}_{loop}.py"
        _write(file, emitted[loop].text)
        source = next(k for k in emitted[loop].kernels if k.plan.name == kernel.name)
        jobs.append(job(source, plan, how, file))
    return jobs


def compile_jobs(
    owners: Sequence[Target], jobs: Sequence[Job], workers: int | None = None
) -> tuple[BuiltKernel, ...]:
    """Compile jobs, each for the target that owns it."""
    results = compile_all(jobs, workers)
    return tuple(_built(*found) for found in zip(owners, jobs, results, strict=True))


def _built(target: Target, made: Job, result: Mapping[str, Any]) -> BuiltKernel:
    if "error" in result:
        return BuiltKernel(target.name, made.function, error=result["error"])
    return BuiltKernel(
        target.name,
        made.function,
        result["registers"],
        result["spills"],
        result["shared_memory"],
        target.shared_limit,
        tuple(result["files"]),
    )


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
                fix="give another folder for the output",
            )
        ) from None


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
