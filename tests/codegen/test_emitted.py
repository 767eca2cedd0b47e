"""The emitted file: what it says, and that it stands alone."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import triton

import fusedsl
from examples import SMALL, read
from fusedsl.codegen import emit
from fusedsl.codegen.helpers import called_functions, function_name, source_of
from fusedsl.codegen.kernels import COLUMNS
from fusedsl.codegen.names import SKELETON
from tests.codegen.harness import LOOPS, calls_in
from tests.fuse.harness import plan_of

#: Longest line of an emitted kernel; a masked load of a tile with long names is that long.
LONGEST = 180

SOFTMAX = "kernel soft(x: bf16[M, 70]) -> (y: bf16[M, 70]) { y = softmax(x); }"
CASES = [(name, loop) for name in SMALL for loop in LOOPS]
EACH = pytest.mark.parametrize(("name", "loop"), CASES)


def text_of(name: str, loop: str) -> str:
    return fusedsl.compile(read(name, small=True)).source_for(loop)


def functions(text: str) -> dict[str, ast.FunctionDef]:
    return {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}


@pytest.mark.parametrize(
    ("name", "loop"), [("llama_mlp", "tma"), ("llama_mlp", "pointer"), ("decoder_stack", "tma"),
                       ("nemotron_mlp", "tma")],
)  # fmt: skip
def test_files(name: str, loop: str, golden: Callable[[str, str], None]) -> None:
    golden(f"codegen/{name}_{loop}.py", text_of(name, loop))


def test_softmax_file(golden: Callable[[str, str], None]) -> None:
    golden("codegen/softmax.py", fusedsl.compile(SOFTMAX).source_for("pointer"))


@EACH
def test_it_stands_alone(name: str, loop: str, tmp_path: Path) -> None:
    text = text_of(name, loop)
    path = tmp_path / "emitted.py"
    path.write_text(text)
    assert "fusedsl" not in "".join(line for line in text.splitlines() if line[:1] != "#")
    spec = importlib.util.spec_from_file_location("emitted", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for kernel in plan_of(read(name, small=True)).kernels:
        assert hasattr(module, kernel.name)


@EACH
def test_every_step_is_named_beside_its_statement(name: str, loop: str) -> None:
    program = fusedsl.compile(read(name, small=True))
    text = program.source_for(loop)
    for kernel, after in zip(program.kernels, [*program.kernels[1:], None], strict=True):
        end = text.index(f"def {after.name}(") if after else len(text)
        body = text[text.index(f"def {kernel.name}(") : end]
        for node in kernel.steps:
            assert f"# {node.block.name}: {node.origin or node.name}" in body
        comments = re.findall(r"^ +# (\w+): (.+)$", body, flags=re.M)
        counted = [block for block, _ in comments if block in kernel.blocks]
        paired = kernel.paired  # its anchor is split, not named
        assert len(counted) >= len(kernel.steps) + (kernel.anchor is not None and not paired)


@EACH
def test_lines(name: str, loop: str) -> None:
    for line in text_of(name, loop).splitlines():
        assert line == line.rstrip() and "\t" not in line
        assert len(line) <= LONGEST, line
        assert "{{" not in line and "{%" not in line


@EACH
def test_signatures_are_wrapped(name: str, loop: str) -> None:
    text = text_of(name, loop)
    for signature in re.findall(r"^def k\d+_\w+\(.*?\):$", text, flags=re.M | re.S):
        assert all(len(line) <= COLUMNS for line in signature.splitlines())


@EACH
def test_helpers_come_once_and_before_their_callers(name: str, loop: str) -> None:
    text = text_of(name, loop)
    order = [n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    assert len(order) == len(set(order))
    for position, function in enumerate(functions(text).values()):
        assert calls_in(function) & set(order) <= set(order[:position]), function.name


@EACH
def test_header_is_comments(name: str, loop: str) -> None:
    lines = text_of(name, loop).splitlines()
    header = lines[: lines.index("import triton")]
    assert all(line == "#" or line.startswith("# ") for line in header)
    text = "\n".join(line[2:] for line in header)
    assert f"kernel {name}(" in text and "Rules that fired:" in text and "fusedsl.compile(" in text


def test_no_header() -> None:
    assert emit(plan_of(SOFTMAX)).text.startswith("import triton\n")


def test_emission_is_deterministic() -> None:
    assert text_of("bert_layer", "tma") == text_of("bert_layer", "tma")


def test_docstrings_list_the_blocks() -> None:
    found = functions(text_of("llama_mlp", "tma"))
    assert ast.get_docstring(found["k2_linear"]) == "k2_linear: linear, add."


@pytest.mark.parametrize("numerics", ["moved", "as_written"])
def test_roundings_are_kept_where_asked(numerics: str) -> None:
    plan = plan_of(SOFTMAX.replace("softmax(x)", "(x * 2.0) + x"))
    text = emit(plan, numerics=numerics).text
    assert text.count(".to(tl.bfloat16).to(tl.float32)") == (2 if numerics == "as_written" else 0)


# names -----------------------------------------------------------------------------------------
@EACH
def test_skeletons_use_no_name_that_a_value_may_take(name: str, loop: str) -> None:
    """Every name that a kernel assigns is the skeleton's or was given by the namer."""
    program = fusedsl.compile(read(name, small=True))
    values = set(program.plan.graph.types)
    stems = sorted(values, key=len, reverse=True)
    for kernel in program.kernels:
        function = functions(program.source_for(loop))[kernel.name]
        stored = {
            n.id
            for n in ast.walk(function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        for variable in stored - SKELETON:
            assert any(variable.startswith(stem) for stem in stems), variable


HARD_NAMES = ["tl", "acc", "rows", "x_ptr", "x", "min", "float", "range", "lambda", "None", "piece"]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", HARD_NAMES)
def test_values_may_be_called_what_a_skeleton_calls_its_own(name: str, loop: str) -> None:
    text = fusedsl.compile(f"""
kernel k({name}: bf16[M, 64], w: weight bf16[64, 64], v: weight bf16[64, 64])
    -> (y: bf16[M, 64], soft: bf16[M, 64]) {{
  y = linear(squared_relu(linear(rms_norm({name}, eps=1e-6), w)), v) + {name};
  soft = softmax({name});
}}""").source_for(loop)
    for function in functions(text).values():
        stored = [n.arg for n in function.args.args]
        stored += [
            n.id
            for n in ast.walk(function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        ]
        if function.name.startswith("k"):
            assert not {"tl", "min", "float", "range"} & set(stored)
    compile(text, "emitted", "exec")


# helpers ---------------------------------------------------------------------------------------
def _twice(factor: int):
    if factor == 2:

        @triton.jit
        def scaled(x):
            return x * 2

    else:

        @triton.jit
        def scaled(x):
            return x * 3

    return scaled


@triton.jit
def _inner(x):
    return x + 1


@triton.jit
def _outer(x):
    return _inner(x) * _inner(x)


def test_two_functions_of_one_name_are_an_error() -> None:
    with pytest.raises(AssertionError, match="scaled"):
        called_functions("scaled(x)", [_twice(2), _twice(3)])


def test_functions_that_are_not_called_are_left_out() -> None:
    assert called_functions("nothing", [_outer]) == ()


def test_callees_come_first_and_once() -> None:
    found = called_functions("_outer(x) + _inner(x)", [_outer, _inner, _outer])
    assert [function_name(f) for f in found] == ["_inner", "_outer"]
    assert source_of(found[0]) == "@triton.jit\ndef _inner(x):\n    return x + 1"
