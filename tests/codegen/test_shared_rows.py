"""Rows over several programs, on the interpreter: it runs programs one after another, so that a
launch that does not wait is repeated, in the same workspace, until every step's states are there.
A slot holds the last of every fourth turn of a group, and a turn of no row comes after the last, so
that a group can take three rows here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fusedsl.codegen import words, words_of
from fusedsl.ir import evaluate, evaluate_eager
from fusedsl.runtime.load import interprets
from fusedsl.runtime.program import Options, Program
from fusedsl.schedule import TileConfig
from tests.codegen.harness import DEVICE, arguments, compiled, error, inputs_of

pytestmark = pytest.mark.skipif(not interprets(), reason="the interpreter alone needs no waiting")

#: Body, and the statistics of it that depend on each other.
PROGRAMS = {
    "rms_norm": ("y = rms_norm(x, g, eps=1e-6);", 1),
    "layer_norm": ("y = layer_norm(x, g, eps=1e-5);", 1),
    "softmax": ("y = softmax(x * g);", 2),
    "residual": ("h = x * 2.0; y = rms_norm(h, g, eps=1e-6);", 1),
    "three": ("y = softmax(layer_norm(x, g, eps=1e-3));", 3),
}


def turned(program: Program) -> Program:
    """The same program, its one kernel from the last row to the first."""
    (kernel,) = program.stages.plan.kernels
    plan = replace(program.stages.plan, kernels=(replace(kernel, backwards=True),))
    made = Program(replace(program.stages, plan=plan), Options())
    made.main_loop = program.main_loop
    return made


def launch(
    text: str,
    x: Tensor,
    g: Tensor,
    config: TileConfig,
    groups: int,
    times: int,
    backwards: bool = False,
) -> Any:
    """Outputs of the one kernel of a program, launched so often with `config`."""
    program = compiled(text, "pointer")
    if backwards:
        program = turned(program)
    config = replace(config, programs=groups * config.parts)
    (source,) = program._engine.emitted("pointer").source.kernels
    fn = getattr(program._engine.emitted("pointer").module, source.name)
    graph, plan = program.graph(), program.stages.plan
    env = {"M": len(x)}
    values = {"x": x, "g": g}
    for name in graph.outputs:
        kind = graph.types[name]
        values[name] = torch.full(kind.concrete(env), math.nan, dtype=kind.dtype.torch)
    count = words(source.plan, config)
    values[words_of(source.name)] = torch.zeros(count, dtype=torch.int64)
    args = arguments(source, plan, config, values, len(x))
    args[[arg.name for arg in source.args].index("WAIT")] = False
    for _ in range(times):
        fn[(config.programs, 1, 1)](*args)
    return program, {name: values[name] for name in graph.outputs}


@pytest.mark.parametrize(
    ("width", "block", "parts", "rows", "block_m", "backwards"),
    [
        (1024, 256, 4, 2, 1, False),
        (1000, 256, 4, 4, 1, False),
        (700, 256, 3, 5, 1, False),
        (130, 32, 5, 1, 1, False),
        (300, 512, 1, 6, 1, False),
        (300, 128, 3, 22, 4, False),
        (700, 256, 3, 5, 1, True),
        (300, 128, 3, 10, 4, True),
        (300, 128, 3, 3, 4, True),
    ],
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_of_a_row(
    name: str,
    width: int,
    block: int,
    parts: int,
    rows: int,
    block_m: int,
    backwards: bool,
    shared: None,
) -> None:
    outputs = "y: bf16[M, {n}]" + (", h: bf16[M, {n}]" if name == "residual" else "")
    body, levels = PROGRAMS[name]
    text = f"kernel k(x: bf16[M, {{n}}], g: bf16[{{n}}]) -> ({outputs}) {{{{ {body} }}}}"
    text = text.format(n=width)
    graph = compiled(text).graph()
    inputs = inputs_of(graph, M=rows)
    x = (inputs["x"].float() * 2 + 30).bfloat16()
    config = TileConfig(block_m, block, parts=parts)
    groups = -(-rows // (3 * block_m))
    program, got = launch(text, x, inputs["g"], config, groups, levels + 1, backwards)
    assert ("last = turns - 1" in program._engine.emitted("pointer").source.text) == backwards
    given = {"x": x, "g": inputs["g"]}
    exact, eager = evaluate(program.graph(), given), evaluate_eager(program.graph(), given)
    for output, value in got.items():
        assert torch.isfinite(value).all()
        allowed = 1.6 * error(eager[output], exact[output]) + 3e-7
        assert error(value, exact[output]) <= allowed, output


def test_parts_do_not_see_each_other_before_they_publish(shared: None) -> None:
    """One launch alone leaves rows of the first parts that lack the last ones' states."""
    text = "kernel k(x: bf16[M, 1024], g: bf16[1024]) -> (y: bf16[M, 1024]) { y = rms_norm(x, g); }"
    x = torch.randn(2, 1024, device=DEVICE).bfloat16()
    g = torch.ones(1024, device=DEVICE).bfloat16()
    config = TileConfig(1, 256, parts=4)
    _, once = launch(text, x, g, config, 2, 1)
    _, twice = launch(text, x, g, config, 2, 2)
    assert not torch.equal(once["y"], twice["y"])


@pytest.mark.parametrize("body", ["x", "x * 2.0"])
def test_moments_about_the_first_columns(body: str, shared: None) -> None:
    """Far from zero, with an outlier first or last, constant, and with what makes a row NaN."""
    text = "kernel k(x: bf16[M, 4096], g: bf16[4096]) -> (y: bf16[M, 4096]) "
    text += f"{{ y = layer_norm({body}, g); }}"
    x = torch.randn(9, 4096, device=DEVICE)
    x[1] += 1000
    x[2, 3], x[3, -1], x[4, :32] = 30_000, 30_000, 500
    x[5] = 3.14
    x[6, 7], x[7, -1], x[8, 2000] = math.inf, -math.inf, math.nan
    x, g = x.bfloat16(), torch.rand(4096, device=DEVICE).bfloat16() + 0.5
    program, got = launch(text, x, g, TileConfig(1, 1024, parts=4), 3, 2)
    assert "moments_about" in program._engine.emitted("pointer").source.text
    given = {"x": x, "g": g}
    exact, eager = evaluate(program.graph(), given), evaluate_eager(program.graph(), given)
    for row in range(6):
        allowed = 1.6 * error(eager["y"][row], exact["y"][row]) + 3e-7
        assert error(got["y"][row], exact["y"][row]) <= allowed, row
    assert got["y"][6:].isnan().all()
    assert eager["y"][6:].isnan().all()


def test_moments_that_are_stored_in_fp32_are_of_each_part(shared: None) -> None:
    text = (
        "kernel k(x: fp32[M, 4096], g: fp32[4096]) -> (y: fp32[M, 4096]) { y = layer_norm(x, g); }"
    )
    x, g = torch.randn(3, 4096, device=DEVICE), torch.ones(4096, device=DEVICE)
    x[0, 3], x[1, -1] = 1e4, 1e4
    program, got = launch(text, x, g, TileConfig(1, 1024, parts=4), 1, 2)
    given = {"x": x, "g": g}
    exact, eager = evaluate(program.graph(), given), evaluate_eager(program.graph(), given)
    assert error(got["y"], exact["y"]) <= 1.6 * error(eager["y"], exact["y"]) + 3e-7
