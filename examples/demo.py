"""The demo: a Llama MLP from text to kernels, then a trained encoder. `python -m examples.demo`

Runs without a GPU in about a minute: Triton's interpreter then runs the same emitted kernels.
"""

from __future__ import annotations

import time

import torch
from rich.console import Console

import fusedsl
from examples import minilm, read
from examples.counting import Counts, counting_table

#: Rows of the small program; its columns are those of `examples.SMALL`.
ROWS = 37


def llama(device: str, console: Console) -> bool:
    """Compile, explain and verify `llama_mlp`; whether every check passed."""
    console.rule("llama_mlp: norm, gate and up, SwiGLU, down, residual")
    console.print(read("llama_mlp").split("\n", 2)[2].rstrip(), highlight=False, markup=False)
    full = fusedsl.compile(read("llama_mlp"))
    console.print(str(full.explain({"M": 4096})), highlight=False, markup=False, soft_wrap=True)
    table = counting_table("llama_mlp, M = 4096")
    table.add_row(full.name, *Counts.of(full, {"M": 4096}).cells())
    console.print(table)
    small = fusedsl.compile(read("llama_mlp", small=True))
    console.print(f"checking it at a small size on {device}, against fp64 and eager torch ...")
    report = small.verify({"M": ROWS}, seeds=(0,), device=device)
    console.print(str(report), highlight=False, markup=False)
    return report.ok


def main() -> None:
    console = Console()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    how = "compiled for the GPU" if device == "cuda" else "run by Triton's interpreter (no GPU)"
    console.print(f"fusedsl {fusedsl.__version__}; kernels are {how}")
    started = time.perf_counter()
    passed = llama(device, console)
    console.rule("all-MiniLM-L6-v2: trained weights, real sentences")
    with torch.no_grad():
        for dtype in ("fp32", "bf16"):
            passed = minilm.run(dtype, device, console) and passed
    console.print(
        f"{'all checks passed' if passed else 'A CHECK FAILED'}, "
        f"{time.perf_counter() - started:.0f} s"
    )
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
