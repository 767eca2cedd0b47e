"""Heads with a loss: logits from a projection or from outside, hard rows and targets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fusedsl
from fusedsl.diagnostics import FusedslError
from fusedsl.frontend import Kernel
from fusedsl.ir import Kind, Layout, evaluate, evaluate_eager, random_inputs
from fusedsl.runtime.tune import random_tensors

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


def head(
    dtype: str = "bf16",
    *,
    columns: int = 200,
    index: str = "i64",
    logits: str = "softcap(linear(h, w), cap=5)",
    outputs: str = "loss: fp32[M, 1]",
) -> str:
    return f"""
kernel head(x: {dtype}[M, 64], gain: weight {dtype}[64], w: weight {dtype}[{columns}, 64],
            target: {index}[M]) -> ({outputs}) {{
  h = rms_norm(x, gain, eps=1e-6);
  logits = {logits};
  loss = cross_entropy(logits, target);
}}"""


def hard_targets(inputs: dict[str, Tensor], columns: int) -> None:
    """Ignored rows, the last column, and targets that are no column."""
    target = inputs["target"]
    beyond = 2**33 + 1 if target.dtype is torch.int64 else 2**31 - 1
    target[:6] = torch.tensor([-100, columns - 1, columns, -1, beyond, 0])


@pytest.mark.parametrize("loop", ["tma", "pointer"])
@pytest.mark.parametrize("index", ["i32", "i64"])
@pytest.mark.parametrize("columns", [32, 200, 515])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_the_loss_of_a_head(dtype: str, columns: int, index: str, loop: str, device: str) -> None:
    text = head(dtype, columns=columns, index=index)
    program = fusedsl.compile(text)
    program.main_loop = loop
    graph = program.graph()
    inputs = random_inputs(graph, {"M": 37}, seed=columns, device=device)
    hard_targets(inputs, columns)
    (loss,) = program.run_poisoned(*(inputs[p.name] for p in graph.params))
    exact, eager = evaluate(graph, inputs)["loss"], evaluate_eager(graph, inputs)["loss"]
    wrong = [2, 3, 4]
    assert loss[0] == 0 and loss[wrong].isnan().all()
    assert torch.equal(loss.isnan(), exact.isnan())
    rest = [i for i in range(37) if i not in wrong]
    error, eager_error = ((v.double() - exact)[rest].norm() for v in (loss, eager))
    assert error <= 1.2 * eager_error + 1e-6


def test_logits_are_never_stored() -> None:
    program = fusedsl.compile(head(columns=515))
    statistics, gemm, finish = program.kernels
    assert gemm.kind is Kind.GEMM and finish.kind is Kind.POINTWISE
    assert "logits" not in program.plan.stored and finish.cols.factor == 1
    assert set(statistics.writes) == {"inv_rms_1", "row_sum_1"}


def test_the_head_does_not_look_for_the_target_where_that_costs_more() -> None:
    """The row kernel picks the target's logit; of few columns, the projection does."""
    for columns, blocks in ((256, ("mul_picked", "row_sum")), (255, ())):
        program = fusedsl.compile(head(columns=columns))
        statistics, gemm, _ = program.kernels
        assert statistics.blocks[2:] == blocks and ("pick" in gemm.blocks) is not bool(blocks)
    picked = fusedsl.compile(head(columns=256)).kernels[0].picked
    assert picked == {"fold_scale_1"}
    plan = fusedsl.compile(head(columns=256)).plan
    # x, the rows of the weight, the target; the statistic, the logit
    assert plan.kernel_bytes(plan.kernels[0], {"M": 10}) == 10 * (2 * 64 + 2 * 64 + 8 + 4 + 4)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_loss_near_zero(dtype: str, device: str) -> None:
    """The picked logit is summed in another order than the maximum, which it is."""
    text = (
        head(dtype, columns=512, logits="linear(x, w)")
        .replace("  h = rms_norm(x, gain, eps=1e-6);\n", "")
        .replace(f"gain: weight {dtype}[64], ", "")
    )
    program = fusedsl.compile(text)
    assert any(fired.rule == "pick_of_projection" for fired in program.stages.rewritten.fired)
    inputs = random_inputs(program.graph(), {"M": 64}, seed=5, device=device)
    inputs["x"] *= 40
    inputs["target"][:] = (inputs["x"].double() @ inputs["w"].double().t()).argmax(1)
    loss = program(*(inputs[p.name] for p in program.graph().params))
    exact = evaluate(program.graph(), inputs)["loss"]
    assert isinstance(loss, Tensor) and (loss >= 0).all() and exact.min() < 1e-6
    torch.testing.assert_close(loss.double(), exact, rtol=1e-3, atol=2e-7)


@pytest.mark.parametrize("width", [64, 100, 3100])
def test_picked_logits_alone_need_no_projection(width: int, device: str) -> None:
    """Rows held in registers, and rows read in a loop."""
    columns = 4 * width
    program = fusedsl.compile(f"""
kernel picked(x: bf16[M, {width}], w: weight bf16[{columns}, {width}], t: i64[M])
    -> (y: fp32[M, 1]) {{
  y = pick(softcap(linear(x, w), cap=7), t, out_dtype=fp32);
}}""")
    assert [k.kind for k in program.kernels] == [Kind.ROW_REDUCTION]
    inputs = random_inputs(program.graph("source"), {"M": 7}, seed=3, device=device)
    hard_targets({"target": inputs["t"]}, columns)
    (found,) = program.run_poisoned(*(inputs[p.name] for p in program.graph("source").params))
    exact = evaluate(program.graph("source"), inputs)["y"]
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_logits_that_are_also_an_output(device: str) -> None:
    text = head(columns=300, outputs="loss: fp32[M, 1], logits: bf16[M, 300]")
    report = fusedsl.compile(text).verify({"M": 21}, seeds=(0,), device=device)
    assert report.ok, str(report)


def test_one_row(device: str) -> None:
    program = fusedsl.compile(head(columns=130))
    inputs = random_inputs(program.graph(), {"M": 1}, seed=4, device=device)
    loss = program(**inputs)
    assert isinstance(loss, Tensor)
    exact = evaluate(program.graph(), inputs)["loss"]
    torch.testing.assert_close(loss.double(), exact, rtol=0, atol=5e-3)


@pytest.mark.parametrize("rows", [21, 130])
def test_without_a_norm_or_softcap_and_as_written(rows: int, device: str) -> None:
    text = head(columns=130, logits="linear(h, w)")
    for numerics in ("moved", "as_written"):
        report = fusedsl.compile(text, numerics=numerics).verify({"M": rows}, device=device)
        assert report.ok, str(report)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("columns", [300, 40000])
def test_logits_from_outside(columns: int, dtype: str, device: str) -> None:
    """Rows held in registers, and rows read in a loop."""
    text = f"""
kernel rows(z: {dtype}[M, {columns}], target: i64[M])
    -> (loss: fp32[M, 1], whole: fp32[M, 1], chosen: {dtype}[M, 1]) {{
  loss = cross_entropy(z, target, ignore_index=-1);
  whole = log_sum_exp(z);
  chosen = pick(z, target);
}}"""
    program = fusedsl.compile(text)
    inputs = random_inputs(program.graph(), {"M": 8}, seed=1, device=device)
    z, target = inputs["z"], inputs["target"]
    z[1] = -torch.inf
    z[2, 3], target[2] = torch.inf, 3
    z[0, 3], target[0] = torch.inf, 4
    z[3, 5] = torch.nan
    z[4] *= 1000
    target[5], target[6] = columns, -1
    found = dict(zip(program.graph().outputs, program.run_poisoned(z, target), strict=True))
    exact = evaluate(program.graph(), inputs)
    for name, value in found.items():
        torch.testing.assert_close(
            value.double(), exact[name], rtol=1e-6, atol=2e-6, equal_nan=True, msg=name
        )
    assert found["loss"][6] == 0 and found["whole"][2] == torch.inf


def test_indices_for_tuning_name_columns() -> None:
    graph = fusedsl.compile(head(columns=150)).graph("source")
    target = random_tensors(graph, {"M": 500}, torch.device("cpu"))[-1]
    assert target.dtype is torch.int64 and target.min() >= 0 and 75 < target.max() < 150


def test_a_strided_target(device: str) -> None:
    program = fusedsl.compile(head())
    inputs = random_inputs(program.graph(), {"M": 9}, seed=2, device=device)
    plain = program(**inputs)
    wide = torch.stack([inputs["target"], torch.full_like(inputs["target"], 7)], dim=1)
    torch.testing.assert_close(
        program(**{**inputs, "target": wide[:, 0]}), plain, rtol=0, atol=0, equal_nan=True
    )


def test_a_value_minus_its_pick_waits_for_the_pick(device: str) -> None:
    """The pick is known in one tile of a row alone, so nothing in that kernel may read it."""
    text = """
kernel margin(x: fp32[M, 32], w: weight fp32[150, 32], target: i64[M]) -> (y: fp32[M, 150]) {
  z = linear(x, w);
  y = z - pick(z, target);
}"""
    report = fusedsl.compile(text).verify({"M": 19}, device=device)
    assert report.ok, str(report)


def test_a_target_of_another_dtype_is_refused(device: str) -> None:
    program = fusedsl.compile(head())
    inputs = random_inputs(program.graph(), {"M": 3}, seed=0, device=device)
    for wrong, fix in ((torch.int32, "or declare"), (torch.float32, "pass target.to(torch.int64)")):
        with pytest.raises(FusedslError) as caught:
            program(**{**inputs, "target": inputs["target"].to(wrong)})
        (found,) = caught.value.diagnostics
        assert found.code == "F0502" and found.expected == "i64" and fix in (found.fix or "")


MISTAKES = [
    ("t: i64[M]", "y = x + t;", "F0401", "holds indices"),
    ("t: fp32[M]", "y = x * pick(x, t);", "F0401", "must hold integers"),
    ("t: i64[N]", "y = x * pick(x, t);", "F0402", "one index for each row"),
    ("t: i64[M, 64]", "y = x * pick(x, t);", "F0403", "one integer per row"),
    ("t: weight i64[M]", "y = x * pick(x, t);", "F0403", "no weight"),
    ("t: int64[M]", "y = x * pick(x, t);", "F0206", "not a dtype"),
]


@pytest.mark.parametrize(("param", "body", "code", "words"), MISTAKES)
def test_mistakes_with_indices(param: str, body: str, code: str, words: str) -> None:
    with pytest.raises(FusedslError) as caught:
        fusedsl.parse(f"kernel f(x: fp32[M, 64], {param}) -> (y: fp32[M, 64]) {{ {body} }}")
    (found,) = caught.value.diagnostics
    assert found.code == code and words in found.message and found.fix


def test_the_same_program_in_every_form() -> None:
    k = Kernel("f")
    z = k.input("z", "bf16", "M", 96)
    t = k.input("t", torch.int64, "M")
    k.output(loss=k.cross_entropy(z, t, ignore_index=7))
    graph = k.graph()
    assert graph.types["t"].layout is Layout.COLUMN
    assert fusedsl.parse(str(graph)) == graph
    from fusedsl.frontend import from_json, to_json

    assert from_json(to_json(graph)) == graph
