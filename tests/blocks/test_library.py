"""The library as a whole: discovery, documentation, and functions that compile for a GPU."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fusedsl.blocks
from fusedsl.blocks import library
from fusedsl.ir import Block, Kind
from tests.blocks.harness import attr_variants, pointwise_source, reduction_source

PUBLIC = {
    "add", "cast", "cross_entropy", "div", "exp", "geglu", "gelu", "half", "layer_norm",
    "leaky_relu", "linear", "log_sum_exp", "matmul", "mul", "neg", "pick", "reglu", "relu",
    "rms_norm", "row_max", "row_mean", "row_mean_square", "row_moments", "row_sum", "sigmoid",
    "silu", "softcap", "softmax", "squared_relu", "sub", "swiglu", "tanh",
}  # fmt: skip


def test_public_blocks() -> None:
    assert {b.name for b in library().public()} >= PUBLIC


def test_each_block_is_named_like_its_file() -> None:
    found = 0
    for module in pkgutil.walk_packages(fusedsl.blocks.__path__, "fusedsl.blocks."):
        block = getattr(importlib.import_module(module.name), "BLOCK", None)
        if isinstance(block, Block):
            found += 1
            assert module.name.rsplit(".", 1)[1] == block.name
    assert found == len(library())


@pytest.mark.parametrize("name", list(library()))
def test_documented(name: str) -> None:
    block = library()[name]
    assert block.doc
    assert "\n" not in block.doc
    assert block.signature().startswith(f"{name}(")
    for operand in block.operands:
        assert operand.doc, operand.name
    for attr in block.all_attrs.values():
        assert attr.doc, attr.name


def test_operators() -> None:
    assert {op: b.name for op, b in library().infix.items()} == {
        "+": "add",
        "-": "sub",
        "*": "mul",
        "/": "div",
    }
    assert {op: b.name for op, b in library().prefix.items()} == {"-": "neg"}


@pytest.mark.parametrize("name", list(library()))
def test_each_kind_has_what_its_loop_needs(name: str) -> None:
    block = library()[name]
    if block.kind is Kind.POINTWISE:
        assert block.triton is not None
    if block.kind is Kind.ROW_REDUCTION:
        assert block.reduction is not None
    if block.kind is Kind.COMPOSITE:
        assert block.expand is not None
        assert block.triton is None
    if block.kind is Kind.PACKING:
        assert block.internal
        assert block.laws == ()


COMPILE = """
import importlib.util, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("generated", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("kernel", "looped", "joined"):
        if not hasattr(module, name):
            continue
        function = getattr(module, name)
        names = function.arg_names
        sizes = {"SIZE": 128, "WIDTH": 50, "ROWS": 4, "COLS": 16, "PADDED": 4}
        constants = {n: sizes[n] for n in names if n in sizes}
        signature = {n: "constexpr" if n in sizes else "*fp32" for n in names}
        signature.update({n: "i32" for n in names if n == "PIECES"})
        signature.update({n: "*i64" for n in names if n == "index"})
        source = ASTSource(function, signature, constants)
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
print("compiled")
"""


def test_every_triton_function_compiles_for_hopper(tmp_path: Path) -> None:
    """In its own process: this one may be interpreting."""
    sources: list[str] = []
    for block in library().values():
        if block.kind is Kind.POINTWISE:
            for attrs in attr_variants(block):
                if attrs.get("dtype") in (None, "bf16"):
                    sources += [pointwise_source(block, attrs, f, {}) for f in (False, True)]
        if block.kind is Kind.ROW_REDUCTION:
            assert block.reduction is not None
            sources.append(reduction_source(block.reduction, max(1, len(block.results))))
    paths: list[str] = []
    for index, source in enumerate(dict.fromkeys(sources)):
        paths.append(str(tmp_path / f"generated_{index}.py"))
        Path(paths[-1]).write_text(source, encoding="utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "c")}
    root = Path(fusedsl.blocks.__path__[0]).parents[1]
    environment["PYTHONPATH"] = str(root)
    run = subprocess.run(
        [sys.executable, "-c", COMPILE, *paths], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.strip() == "compiled"
