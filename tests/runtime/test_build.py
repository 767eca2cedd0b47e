"""Binaries for machines that are not here: two kernels written by hand, then broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusedsl.blocks.gemm.linear import BLOCK as LINEAR
from fusedsl.codegen import Arg, KernelSource, ProgramSource
from fusedsl.diagnostics import FusedslError
from fusedsl.fuse import KernelPlan, Plan
from fusedsl.ir import BlockLibrary, Dim, GraphBuilder, Kind, tensor
from fusedsl.runtime.ahead import Schedule, compile_all
from fusedsl.runtime.build import BuildReport, BuiltKernel, compile_jobs, place
from fusedsl.schedule import Target, TileConfig

POINTER = """
import triton
import triton.language as tl


@triton.jit
def gemm(x, x_stride, w, w_stride, y, y_stride, M, K: tl.constexpr, N: tl.constexpr,
         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(x + rows[:, None] * x_stride + (k + ks)[None, :], mask=rows[:, None] < M)
        b = tl.load(w + cols[None, :] * w_stride + (k + ks)[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(y + rows[:, None] * y_stride + cols[None, :], acc.to(tl.bfloat16),
             mask=rows[:, None] < M)
"""

TMA = """
import triton
import triton.language as tl


@triton.jit
def gemm(x, w, y, M, K: tl.constexpr, N: tl.constexpr,
         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    row = tl.program_id(0) * BLOCK_M
    col = tl.program_id(1) * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = tl.dot(x.load([row, k]), w.load([col, k]).T, acc)
    y.store([row, col], acc.to(tl.bfloat16))
"""

SIZES = (Arg("K", "dim", "K"), Arg("N", "dim", "N"))
TILES = tuple(Arg(n, "config", n) for n in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))


def _plan() -> Plan:
    b = GraphBuilder(BlockLibrary((LINEAR,)), name="one_gemm")
    b.add_param("x", tensor("bf16", "M", "K"))
    b.add_param("w", tensor("bf16", "N", "K"), weight=True)
    b.call("linear", "x", "w", name="y")
    b.outputs.append("y")
    graph = b.finish()
    kernel = KernelPlan(
        name="gemm",
        kind=Kind.GEMM,
        rows=Dim(1, "M"),
        cols=Dim(1, "N"),
        anchor=graph.nodes[0],
        paired=False,
        steps=(),
        streamed=(),
        reads=("x", "w"),
        writes=("y",),
    )
    return Plan(graph, (), (kernel,))


def _emitted(plan: Plan, loop: str) -> ProgramSource:
    names = ("x", "w", "y")
    if loop == "tma":
        blocks = {"x": ("BLOCK_M", "BLOCK_K"), "w": ("BLOCK_N", "BLOCK_K")}
        args = [Arg(n, "descriptor", n, blocks.get(n, ("BLOCK_M", "BLOCK_N"))) for n in names]
        text = TMA
    else:
        pairs = ((Arg(n, "pointer", n), Arg(f"{n}_stride", "stride", n)) for n in names)
        args = [arg for pair in pairs for arg in pair]
        text = POINTER
    args += [Arg("M", "rows"), *SIZES, *TILES]
    return ProgramSource(text, loop, (KernelSource("gemm", plan.kernels[0], tuple(args)),))


def _build(tmp_path: Path, configs: dict[str, TileConfig]) -> BuildReport:
    plan = _plan()
    emitted = {loop: _emitted(plan, loop) for loop in ("tma", "pointer")}
    targets = [Target.parse(name) for name in configs]
    jobs, owners = [], []
    for target in targets:
        loops = {"gemm": target.main_loop}
        env = {"K": 512, "N": 1024}
        how = Schedule(target, loops, {"gemm": configs[target.name]}, env)
        jobs += place(plan, how, emitted, tmp_path / target.name)
        owners.append(target)
    return BuildReport(compile_jobs(owners, jobs))


def test_binaries_for_both_vendors_and_both_main_loops(tmp_path: Path) -> None:
    config = TileConfig(128, 128, 64, warps=8, stages=2)
    report = _build(tmp_path, {name: config for name in ("sm_80", "sm_90", "gfx942")})
    assert report.ok, report.diagnostics
    for kernel in report.kernels:
        assert kernel.registers > 0
        assert 0 < kernel.shared_memory <= kernel.shared_limit
        assert all(Path(f).stat().st_size > 0 for f in kernel.files)
        binary = ".hsaco" if kernel.target.startswith("gfx") else ".cubin"
        assert any(f.endswith(binary) for f in kernel.files)
        assert list(Path(kernel.files[0]).parent.glob("*.py"))
    ampere = next(k for k in report.kernels if k.target == "sm_80")
    ptx = Path(next(f for f in ampere.files if f.endswith(".ptx"))).read_text()
    assert "cp.async" in ptx, "pointers are not declared as aligned"
    hopper = next(k for k in report.kernels if k.target == "sm_90")
    ptx = Path(next(f for f in hopper.files if f.endswith(".ptx"))).read_text()
    assert "wgmma" in ptx and "cp.async.bulk.tensor" in ptx


def test_spills_and_too_much_shared_memory_are_errors(tmp_path: Path) -> None:
    report = _build(
        tmp_path,
        {
            "sm_80": TileConfig(256, 256, 32, warps=4, stages=1),
            "sm_90": TileConfig(128, 256, 128, warps=8, stages=4),
        },
    )
    assert not report.ok
    codes = {(d.code, (d.where or "").rsplit(" ", 1)[-1]) for d in report.diagnostics}
    assert {("F0605", "sm_80"), ("F0601", "sm_90")} <= codes
    assert {d["code"] for d in report.to_json()["diagnostics"]} == {"F0601", "F0605"}


def test_a_kernel_that_does_not_compile_is_reported_and_the_rest_go_on(tmp_path: Path) -> None:
    report = _build(
        tmp_path,
        {"sm_80": TileConfig(100, 128, 64), "sm_86": TileConfig(64, 64, 32)},
    )
    assert [d.code for d in report.diagnostics] == ["F0603"]
    assert report.kernels[0].error and report.kernels[1].registers > 0


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(FusedslError) as caught:
        _build(blocked, {"sm_80": TileConfig(64, 64, 32)})
    assert caught.value.codes == ("F0102",)


def test_nothing_to_compile() -> None:
    assert compile_all([]) == []
    assert BuildReport(()).ok


def test_a_report_is_plain_json() -> None:
    report = BuildReport((BuiltKernel("sm_90", "k", 100, 0, 1000, 2000, ("a.cubin",)),))
    assert report.to_json()["kernels"][0]["files"] == ["a.cubin"]
