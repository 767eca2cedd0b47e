"""Every row reduction in every form it is emitted in, on ordinary rows and on hard ones.

Forms: "resident" (a row in registers), "looped" (passes over its columns), "centred" (the same,
with moments about the mean of the first columns), "partial" (a state per
column tile, left by the projection that makes the row and merged by the next kernel), "streamed"
(taken by a projection that reads the row anyway).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fusedsl.blocks import library
from fusedsl.ir import Dim, Graph, GraphBuilder, StatisticOf, TensorType, evaluate
from fusedsl.runtime.program import Program
from tests.codegen.harness import DEVICE, LOOPS, check_text, compiled, inputs_of, run, unrewritten

STATISTICS = ("row_sum", "row_mean", "row_max", "row_mean_square", "row_moments")
FORMS = ("resident", "looped", "centred", "partial", "streamed")

#: More than one step of each form: 4096 columns looped, 512 streamed, 64 per tile.
WIDTHS = {"resident": 300, "looped": 9000, "centred": 9000, "partial": 300, "streamed": 1200}

#: Against fp64, over the size of the row's statistic. Observed: 2e-7.
TOLERANCE = 2e-6


def rows(width: int) -> Tensor:
    """Finite rows that hurt: zeros, all equal, a mean of 1e4, tiny, huge, one outlier."""
    generator = torch.Generator().manual_seed(width)
    x = torch.randn((8, width), generator=generator)
    x[1] = 0.0
    x[2] = 3.25
    x[3] += 1e4
    x[4] *= 1e-15
    x[5] *= 1e9
    x[6, width // 2] = 1e6
    x[7] = -7.5
    return x.to(DEVICE)


def _results(b: GraphBuilder, name: str, x: str, form: str, width: int) -> list[str]:
    block = library()[name]
    if form != "partial":
        count = max(1, len(block.results))
        return list(b.call_all(block, [x], {}, [f"s{i}" for i in range(count)]))
    law = block.laws_of(StatisticOf)[0]
    partial, merge = library()[law.partial], library()[law.merge]
    states = [f"p{i}" for i in range(max(1, len(partial.results)))]
    b.call_all(partial, [x], {"tiles": Dim.parse("T")}, states)
    names = [f"s{i}" for i in range(max(1, len(merge.results)))]
    return list(b.call_all(merge, states, {"width": Dim(width)}, names))


def statistic(name: str, form: str, width: int) -> Graph:
    """A graph whose outputs y0, .. are the results of a statistic, times 1."""
    b = GraphBuilder(library(), "statistic")
    b.add_param("x", TensorType.parse(f"fp32[M, {width}]"))
    b.add_param("ones", TensorType.parse("fp32[M, 2]"))
    x, outputs = "x", []
    if form == "partial":
        b.add_param("a", TensorType.parse("fp32[M, 16]"))
        b.add_param("w", TensorType.parse(f"fp32[{width}, 16]"), weight=True)
        x = b.call("add", b.call("linear", "a", "w"), "x", name="row")
        outputs.append(x)
    if form == "streamed":
        b.add_param("w", TensorType.parse(f"fp32[5, {width}]"), weight=True)
        outputs.append(b.call("linear", x, "w", name="z"))
    results = _results(b, name, x, form, width)
    outputs += [b.call("mul", "ones", s, name=f"y{i}") for i, s in enumerate(results)]
    if form in ("resident", "looped", "centred"):
        outputs += results
    b.outputs = outputs
    return b.finish()


def _program(name: str, form: str, loop: str, request: pytest.FixtureRequest) -> Program:
    if form in ("looped", "centred"):
        request.getfixturevalue(form)
    program = unrewritten(statistic(name, form, WIDTHS[form]))
    program.main_loop = loop
    streamed = [n.block.name for k in program.kernels for n in k.streamed]
    assert streamed == ([name] if form == "streamed" else [])
    return program


def _run(program: Program, x: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    inputs = inputs_of(program.graph(), M=len(x))
    inputs |= {"x": x, "ones": torch.ones_like(inputs["ones"])}
    if "a" in inputs:
        inputs["a"] = torch.zeros_like(inputs["a"])
    exact = evaluate(program.graph(), inputs)
    return run(program, inputs), exact


ALL = pytest.mark.parametrize(
    ("name", "form", "loop"),
    [
        pytest.param(name, form, loop, id=f"{name}-{form}-{loop}")
        for name in STATISTICS
        for form in FORMS
        for loop in (LOOPS if form in ("partial", "streamed") else ("pointer",))
    ],
)


@ALL
def test_hard_rows(name: str, form: str, loop: str, request: pytest.FixtureRequest) -> None:
    program = _program(name, form, loop, request)
    x = rows(WIDTHS[form])
    got, exact = _run(program, x)
    size = x.double().abs().amax(dim=1, keepdim=True)
    for result in [n for n in got if n.startswith("y")]:
        # sums may cancel; a variance may not lose a digit to the mean
        mean = name in ("row_sum", "row_mean") or (name == "row_moments" and result == "y0")
        scale = exact[result].abs()
        if mean:
            scale = size * (x.shape[1] if name == "row_sum" else 1)
        worst = ((got[result].double() - exact[result]).abs() / scale.clamp_min(1e-38)).amax(dim=1)
        # means of pieces are rounded to steps of 1e-3 near 1e4; observed: 1.5e-5
        worst[3] *= 0.05 if (name, result) == ("row_moments", "y1") else 1.0
        assert float(worst.max()) < TOLERANCE, (result, worst)


@ALL
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_not_lost(
    name: str, form: str, loop: str, value: float, request: pytest.FixtureRequest
) -> None:
    program = _program(name, form, loop, request)
    x = rows(WIDTHS[form])[[0, 3, 0, 0]]
    for row, column in ((1, 0), (2, x.shape[1] - 1), (3, x.shape[1] // 2)):
        x[row, column] = value
    got, exact = _run(program, x)
    for result in [n for n in got if n.startswith("y")]:
        if name == "row_moments":  # a mean of inf is left as NaN: its variance is NaN anyway
            assert torch.equal(got[result].isfinite(), exact[result].isfinite())
        else:
            torch.testing.assert_close(
                got[result].double(), exact[result], rtol=1e-5, atol=1e-2, equal_nan=True
            )


@ALL
def test_other_rows_do_not_see_it(
    name: str, form: str, loop: str, request: pytest.FixtureRequest
) -> None:
    program = _program(name, form, loop, request)
    x = rows(WIDTHS[form])
    clean, _ = _run(program, x)
    x[3] = float("nan")
    dirty, _ = _run(program, x)
    keep = torch.arange(len(x)) != 3
    for result in [n for n in clean if n.startswith("y")]:
        assert torch.equal(clean[result][keep], dirty[result][keep])


# composites ------------------------------------------------------------------------------------
NORMS = {
    "softmax": "softmax({x})",
    "layer_norm": "layer_norm({x}, eps=1e-5)",
    "rms_norm": "rms_norm({x}, eps=1e-5)",
}
TORCH = {
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-5),
    "rms_norm": lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-5),
}


@pytest.mark.parametrize("form", ["resident", "looped"])
@pytest.mark.parametrize("name", NORMS)
def test_composites(name: str, form: str, request: pytest.FixtureRequest) -> None:
    if form in ("looped", "centred"):
        request.getfixturevalue(form)
    n = WIDTHS[form]
    program = compiled(
        f"kernel k(x: fp32[M, {n}]) -> (y: fp32[M, {n}]) {{ y = {NORMS[name].format(x='x')}; }}"
    )
    x = rows(n)
    x[0, 5] = 88.0
    got, want = run(program, {"x": x})["y"].double(), TORCH[name](x.double())
    # row 3 has a mean of 1e4, which fp32 rounds to steps of 1e-3
    torch.testing.assert_close(got[3], want[3], rtol=3e-5, atol=1e-3 if "layer" in name else 2e-6)
    rest = [0, 1, 2, *range(4, len(x))]
    torch.testing.assert_close(got[rest], want[rest], rtol=3e-5, atol=2e-6)


@pytest.mark.parametrize("form", ["resident", "looped"])
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_composites_of_what_is_not_finite(
    name: str, form: str, value: float, request: pytest.FixtureRequest
) -> None:
    if form in ("looped", "centred"):
        request.getfixturevalue(form)
    n = WIDTHS[form]
    program = compiled(
        f"kernel k(x: fp32[M, {n}]) -> (y: fp32[M, {n}]) {{ y = {NORMS[name].format(x='x')}; }}"
    )
    x = rows(n)[[0, 3, 0]]
    x[0, 7] = value
    x[1, -1] = value
    x[2] = value
    got, want = run(program, {"x": x})["y"], TORCH[name](x.cpu()).to(DEVICE)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=2e-3, equal_nan=True)


@pytest.mark.parametrize("form", ["resident", "looped"])
def test_chained_reductions(form: str, request: pytest.FixtureRequest) -> None:
    if form in ("looped", "centred"):
        request.getfixturevalue(form)
    n = WIDTHS[form]
    check_text(
        f"""
kernel k(x: bf16[M, {n}], c: fp32[M, 1], g: bf16[{n}])
    -> (y: bf16[M, {n}], z: bf16[M, {n}], s: fp32[M, 1], v: fp32[M, 1]) {{
  z = layer_norm(cast(x * c, dtype=bf16), g, eps=1e-3);
  y = softmax(rms_norm(z * z, eps=1e-3));
  s = row_mean_square(y - z);
  v = cast(row_max(y), dtype=fp32) / (row_sum(exp(z), out_dtype=fp32) + s);
}}""",
        M=6,
    )


@pytest.mark.parametrize("n", [1, 127, 129, 300, 1350, 2050])
def test_rows_in_several_segments(n: int) -> None:
    """Powers of two that cover a row closely: every kind of operand meets every segment."""
    check_text(
        f"""
kernel k(x: bf16[M, {2 * n}], g: bf16[{n}], s: bf16[1], c: fp32[M, 1])
    -> (y: bf16[M, {n}], h: bf16[{n}], m: fp32[M, 1], v: fp32[M, 1]) {{
  h = exp(g);
  z = swiglu(x) + h;
  m, v = row_moments(z * (s * s));
  y = cast(softmax((layer_norm(z, g, eps=1e-3) + z) * 0.0625) * c, dtype=bf16);
}}""",
        M=37,
    )


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("rows_", [1, 130])
def test_norms_between_projections(norm: str, rows_: int, loop: str) -> None:
    """Partials of a projection with residual, merged by the next projection and by a row kernel."""
    program = check_text(
        f"""
kernel k(a: bf16[M, 40], x: bf16[M, 300], w: weight bf16[300, 40], v: weight bf16[30, 300],
         g: weight bf16[300]) -> (y: bf16[M, 30], h: bf16[M, 300]) {{
  s = linear(a, w) + x;
  h = {norm}(s, g, eps=1e-4);
  y = linear({norm}(s * 2.0, eps=1e-4), v);
}}""",
        loop,
        M=rows_,
    )
    assert any("tiles" in n.attr_map for n in program.kernels[0].steps)


def test_moments_about_first_columns_of_what_another_statistic_scales() -> None:
    """Two norms in one kernel: the rough mean of the second is of columns that the first made."""
    check_text(
        """
kernel k(x: bf16[M, 65536], g: weight bf16[65536], b: weight bf16[65536]) -> (y: bf16[M, 65536]) {
  h = rms_norm(x, g, eps=1e-6);
  y = layer_norm(h + x, g, b);
}""",
        M=2,
    )
