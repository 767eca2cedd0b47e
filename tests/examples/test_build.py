"""The examples' kernels for GPUs that are not here: they compile, fit and spill nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fusedsl
from examples import SMALL, read
from fusedsl.codegen import emit
from fusedsl.runtime.ahead import schedule
from fusedsl.runtime.build import build
from fusedsl.runtime.planning import planned
from fusedsl.schedule import Target

HOPPER = Target.parse("sm_90")
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")

#: Together these have every kind of kernel: gated pairs, statistics taken in the main loop, left
#: per tile and merged, moved LayerNorms, both weight layouts, row and pointwise kernels.
DISTINCT = ("decoder_stack", "bert_layer", "nemotron_mlp", "gpt2_mlp")


def _check(name: str, targets: tuple[str, ...], dtype: str, rows: int, out: Path) -> None:
    program = fusedsl.compile(read(name, dtype=dtype))
    parsed = [Target.parse(t) for t in targets]
    report = build(program.plan, parsed, {"M": rows}, out)
    assert report.ok, "\n".join(d.render() for d in report.diagnostics)
    plans = [planned(program.plan, {"M": rows}, target) for target in parsed]
    assert len(report.kernels) == sum(len(plan.kernels) for plan in plans)
    for kernel in report.kernels:
        assert kernel.spills == 0 and kernel.registers > 0
        assert kernel.shared_memory <= kernel.shared_limit
        assert all(Path(f).stat().st_size for f in kernel.files)
        assert not any(_multiplies_registers(Path(f)) for f in kernel.files)


def _multiplies_registers(file: Path) -> bool:
    """Whether the tensor core reads an operand of an asynchronous product from registers: triton
    3.6 then loads the next step's over them while products are pending."""
    if file.suffix != ".ptx":
        return False
    return bool(re.search(r"wgmma\.mma_async[^{]*\{[^}]*\},\s*\{", file.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTINCT)
def test_kernels_fit_the_targets(name: str, tmp_path: Path) -> None:
    _check(name, TARGETS, "bf16", 4096, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2048, 32768])
def test_kernels_of_other_heights_fit_hopper(rows: int, tmp_path: Path) -> None:
    """A projection that merges statistics, reads a tile and leaves statistics."""
    _check("bert_layer", ("sm_90",), "bf16", rows, tmp_path)


@pytest.mark.slow
def test_specialised_kernels_fit_hopper(tmp_path: Path) -> None:
    plan = planned(fusedsl.compile(read("rmsnorm_qkv")).plan, {"M": 8192}, HOPPER)
    assert any(kernel.specialised for kernel in plan.kernels)
    _check("rmsnorm_qkv", ("sm_90",), "bf16", 8192, tmp_path)


def test_specialised_kernels_of_a_stack_are_among_those_above() -> None:
    """They are the same at 4096 rows, at which they are built, and at 8192."""
    plan = fusedsl.compile(read("decoder_stack")).plan
    low, high = (planned(plan, {"M": rows}, HOPPER) for rows in (4096, 8192))
    assert sum(kernel.specialised for kernel in low.kernels) > 1
    assert low == high
    sources = emit(low, main_loop="tma")
    low_how, high_how = (schedule(low, HOPPER, {"M": rows}, sources) for rows in (4096, 8192))
    assert (low_how.loops, low_how.configs) == (high_how.loops, high_how.configs)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("name", ["llama_mlp", "gpt2_mlp"])
def test_kernels_of_few_rows_fit_hopper(name: str, rows: int, tmp_path: Path) -> None:
    _check(name, ("sm_90",), "bf16", rows, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("name", SMALL)
def test_every_kernel_fits_every_target(name: str, tmp_path: Path) -> None:
    for dtype in ("bf16", "fp16", "fp32"):
        for rows in (16, 4096):
            _check(name, Target.names(), dtype, rows, tmp_path / dtype / str(rows))
