"""What a call accepts, and how it refuses the rest: every problem at once, by code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fusedsl
from fusedsl import FusedslError
from fusedsl.runtime.load import interprets

DEVICE = "cuda" if torch.cuda.is_available() and not interprets() else "cpu"


def codes(call, *args, **named):
    with pytest.raises(FusedslError) as caught, torch.no_grad():
        call(*args, **named)
    return caught.value


def test_tensors_by_position_and_by_name_are_the_same_call(mlp):
    program, inputs = mlp
    given = inputs()
    by_position = program(*given.values())
    assert torch.equal(by_position, program(**given))
    x, *_ = given.values()
    rest = {k: v for k, v in reversed(given.items()) if k != "x"}
    assert torch.equal(by_position, program(x, **rest))


def test_a_missing_tensor_is_named(mlp):
    program, inputs = mlp
    given = inputs()
    del given["w_down"], given["gain"]
    error = codes(program, **given)
    assert error.codes == ("F0501", "F0501")
    assert "'gain' is missing" in str(error) and "'w_down' is missing" in str(error)


def test_an_unexpected_name_comes_with_a_suggestion(mlp):
    program, inputs = mlp
    given = inputs()
    given["w_dwon"] = given.pop("w_down")
    error = codes(program, **given)
    assert set(error.codes) == {"F0501"}
    assert "did you mean 'w_down'?" in str(error)


def test_a_tensor_given_twice(mlp):
    program, inputs = mlp
    given = inputs()
    error = codes(program, *given.values(), x=given["x"])
    assert error.codes == ("F0501",)
    assert "'x' is given twice" in str(error)


def test_too_many_tensors(mlp):
    program, inputs = mlp
    given = inputs()
    assert codes(program, *given.values(), given["x"]).codes == ("F0501",)


@pytest.mark.parametrize("value", [np.zeros((8, 64)), [[1.0]], 3.0, None])
def test_not_a_tensor(mlp, value):
    program, inputs = mlp
    error = codes(program, **{**inputs(), "x": value})
    assert error.codes == ("F0506",)
    assert type(value).__name__ in str(error)


def test_a_sparse_tensor_is_refused(mlp):
    program, inputs = mlp
    given = inputs()
    given["x"] = given["x"].float().to_sparse()
    assert codes(program, **given).codes == ("F0506",)


def test_a_wrong_dtype(mlp):
    program, inputs = mlp
    given = inputs()
    given["x"] = given["x"].half()
    error = codes(program, **given)
    assert error.codes == ("F0502",)
    assert "bf16" in str(error) and "fp16" in str(error)


def test_an_integer_tensor_is_a_wrong_dtype(mlp):
    program, inputs = mlp
    given = inputs()
    given["x"] = given["x"].int()
    error = codes(program, **given)
    assert "i32" in str(error)


def test_a_wrong_shape_names_only_the_failing_axis(mlp):
    program, inputs = mlp
    given = inputs()
    given["w_down"] = given["w_down"][:, :-1]
    error = codes(program, **given)
    assert error.codes == ("F0503",)
    text = str(error)
    assert "axis 1 of 'w_down'" in text and "47" in text and "axis 0" not in text


def test_a_symbol_says_who_bound_it():
    program = fusedsl.compile(
        "kernel f(x: bf16[M, K], y: bf16[M, K]) -> (z: bf16[M, K]) {\n  z = x + y;\n}\n"
    )
    x = torch.zeros(4, 16, dtype=torch.bfloat16, device=DEVICE)
    error = codes(program, x, torch.zeros(4, 17, dtype=torch.bfloat16, device=DEVICE))
    assert error.codes == ("F0503",)
    assert "K = 16 was bound by axis 1 of 'x'" in str(error)


def test_a_wrong_rank(mlp):
    program, inputs = mlp
    given = inputs()
    given["x"] = given["x"][None]
    error = codes(program, **given)
    assert error.codes == ("F0503",)
    assert "flatten(0, -2)" in str(error)


def test_every_problem_comes_at_once(mlp):
    program, inputs = mlp
    given = inputs()
    given["x"] = given["x"].half()[:, :-1]
    given["gain"] = None
    given["w_down"] = given["w_down"].float()
    assert sorted(codes(program, **given).codes) == ["F0502", "F0502", "F0503", "F0506"]


def test_a_meta_tensor_is_on_another_device(mlp):
    program, inputs = mlp
    given = inputs()
    given["w_down"] = given["w_down"].to("meta")
    error = codes(program, **given)
    assert error.codes == ("F0504",)
    assert "'w_down'" in str(error) and "meta" in str(error)


def test_a_tensor_that_requires_grad_is_refused_where_gradients_are_on(mlp):
    program, inputs = mlp
    given = inputs()
    given["x"].requires_grad_()
    with pytest.raises(FusedslError) as caught:
        program(**given)
    assert caught.value.codes == ("F0508",)
    assert "torch.no_grad()" in str(caught.value)
    with torch.no_grad():
        without = program(**given)
    with torch.inference_mode():
        assert torch.equal(without, program(**given))
    with pytest.raises(FusedslError):  # a prepared call does not hide it
        program(**given)


def test_a_refused_call_leaves_the_program_usable(mlp):
    program, inputs = mlp
    given = inputs()
    codes(program, **{**given, "x": 3})
    assert program(**given).shape == (8, 64)
