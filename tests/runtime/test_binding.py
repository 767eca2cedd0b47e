"""Folding, and never an old value in silence (integration_42)."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import fusedsl
from fusedsl import FusedslError
from fusedsl.ir import evaluate
from fusedsl.runtime.load import interprets

DEVICE = "cuda" if torch.cuda.is_available() and not interprets() else "cpu"

NORM_LINEAR = """
kernel norm_linear(x: bf16[M, 64], gain: weight bf16[64], w: weight bf16[32, 64])
    -> (y: bf16[M, 32]) {
  y = linear(rms_norm(x, gain, eps=1e-6), w);
}
"""


def weights_of(given):
    return {name: t for name, t in given.items() if name != "x"}


def oracle(program, given):
    return evaluate(program.graph("source"), given)["y"]


def test_a_bound_program_takes_the_activations(mlp, close):
    program, inputs = mlp
    given = inputs()
    bound = program.bind(weights_of(given))
    y = bound(given["x"])
    assert torch.equal(y, program(**given))
    assert torch.equal(y, bound(x=given["x"]))
    close(y, oracle(program, given))


def test_folding_is_rounded_once_and_counted(mlp):
    program, inputs = mlp
    given = inputs()
    bound = program.bind(weights_of(given))
    assert bound.folded_bytes == given["w_gate_up"].nbytes


def test_integration_42_an_optimiser_step_reaches_the_next_call(mlp, close):
    program, inputs = mlp
    given = inputs()
    weights = {n: torch.nn.Parameter(t) for n, t in weights_of(given).items()}
    bound = program.bind(weights)
    with torch.no_grad():
        before = bound(given["x"])
    for parameter in weights.values():
        parameter.grad = torch.randn_like(parameter)
    torch.optim.SGD(weights.values(), lr=0.5).step()
    with torch.no_grad():
        after = bound(given["x"])
    assert not torch.equal(before, after)
    close(after, oracle(program, {"x": given["x"], **{n: p.detach() for n, p in weights.items()}}))


class Module(torch.nn.Module):
    def __init__(self, given):
        super().__init__()
        for name, tensor in given.items():
            setattr(self, name, torch.nn.Parameter(tensor.clone()))


def test_integration_42_load_state_dict_reaches_the_next_call(mlp, close):
    program, inputs = mlp
    given, other = inputs(), inputs(seed=1)
    module = Module(weights_of(given))
    bound = program.bind(module)
    first = bound(given["x"])
    module.load_state_dict(Module(weights_of(other)).state_dict())
    second = bound(given["x"])
    assert not torch.equal(first, second)
    close(second, oracle(program, {**other, "x": given["x"]}))


@pytest.mark.parametrize("name", ["gain", "w_gate_up", "w_down"])
def test_integration_42_copy_into_one_weight(mlp, close, name):
    program, inputs = mlp
    given, other = inputs(), inputs(seed=1)
    bound = program.bind(weights_of(given))
    bound(given["x"])
    given[name].copy_(other[name])
    close(bound(given["x"]), oracle(program, given))
    close(bound(given["x"]), oracle(program, given))


def test_integration_42_a_view_of_a_bound_weight_is_written_to(close):
    program = fusedsl.compile(NORM_LINEAR)
    qkv = torch.randn(96, 64, device=DEVICE).bfloat16() / 8
    gain = torch.ones(64, device=DEVICE).bfloat16()
    x = torch.randn(4, 64, device=DEVICE).bfloat16()
    bound = program.bind(gain=gain, w=qkv[32:64])
    bound(x)
    qkv.mul_(-2)
    close(bound(x), oracle(program, {"x": x, "gain": gain, "w": qkv[32:64]}))


def test_integration_42_new_storage_under_a_parameter(mlp, close):
    program, inputs = mlp
    given, other = inputs(), inputs(seed=1)
    weights = {n: torch.nn.Parameter(t, False) for n, t in weights_of(given).items()}
    bound = program.bind(weights)
    bound(given["x"])
    for name, parameter in weights.items():
        parameter.data = other[name]
    close(bound(given["x"]), oracle(program, {**other, "x": given["x"]}))


def test_a_write_that_torch_does_not_count_needs_rebind(mlp, close):
    program, inputs = mlp
    given = inputs()
    weights = {n: torch.nn.Parameter(t, False) for n, t in weights_of(given).items()}
    bound = program.bind(weights)
    bound(given["x"])
    weights["gain"].data.mul_(3)
    bound.rebind()
    changed = {"x": given["x"], **{n: p.data for n, p in weights.items()}}
    close(bound(given["x"]), oracle(program, changed))


def test_folded_values_keep_their_addresses(mlp):
    """A captured CUDA graph goes on reading them."""
    program, inputs = mlp
    given = inputs()
    bound = program.bind(weights_of(given))
    before = {n: t.data_ptr() for n, t in bound._binding.values.items()}
    given["gain"].mul_(2)
    bound(given["x"])
    assert {n: t.data_ptr() for n, t in bound._binding.values.items()} == before


def test_a_tied_weight_is_never_written_to(mlp):
    program, inputs = mlp
    given = inputs()
    copies = {n: t.clone() for n, t in given.items()}
    versions = {n: t._version for n, t in given.items()}
    bound = program.bind(weights_of(given))
    bound(given["x"])
    program(**given)
    bound.rebind()
    for name, tensor in given.items():
        assert torch.equal(tensor, copies[name])
        assert tensor._version == versions[name]


def test_weights_that_kernels_read_are_used_in_place(mlp):
    program, inputs = mlp
    given = inputs()
    bound = program.bind(weights_of(given))
    assert bound._binding.values["w_down"] is given["w_down"]


def test_a_transposed_weight_is_copied_and_still_watched(mlp, close):
    program, inputs = mlp
    given = inputs()
    given["w_down"] = given["w_down"].t().contiguous().t()
    assert given["w_down"].stride(-1) != 1
    bound = program.bind(weights_of(given))
    close(bound(given["x"]), oracle(program, given))
    given["w_down"].mul_(2)
    close(bound(given["x"]), oracle(program, given))


def test_consume_lets_go_of_what_was_folded(mlp, close):
    program, inputs = mlp
    given = inputs()
    want = oracle(program, given)
    bound = program.bind(weights_of(given), consume=True)
    gone = weakref.ref(given["w_gate_up"])
    kept = given["w_down"]
    x = given["x"]
    given.clear()
    gc.collect()
    assert gone() is None
    assert set(bound.weights) == {"w_down"}
    close(bound(x), want)
    kept.mul_(0)
    close(bound(x), x)


def test_a_consumed_weight_is_refused(mlp):
    program, inputs = mlp
    given = inputs()
    bound = program.bind(weights_of(given), consume=True)
    with pytest.raises(FusedslError) as caught:
        bound(given["x"], gain=given["gain"])
    assert caught.value.codes == ("F0505",)
    with pytest.raises(FusedslError) as caught:
        bound.rebind()
    assert caught.value.codes == ("F0505",)


def test_a_bound_weight_is_no_argument(mlp):
    program, inputs = mlp
    given = inputs()
    bound = program.bind(weights_of(given))
    with pytest.raises(FusedslError) as caught:
        bound(**given)
    assert set(caught.value.codes) == {"F0501"}
    assert "'gain' is bound already" in str(caught.value)
    with pytest.raises(FusedslError):
        bound(*given.values())


def test_bind_reports_every_problem(mlp):
    program, inputs = mlp
    given = weights_of(inputs())
    with pytest.raises(FusedslError) as caught:
        program.bind(given, w_dwon=given["w_down"])
    assert caught.value.codes == ("F0501",)
    given["gain"] = given["gain"].float()
    given["w_down"] = given["w_down"][:-1]
    with pytest.raises(FusedslError) as caught:
        program.bind(given)
    assert sorted(caught.value.codes) == ["F0502", "F0503"]


def test_a_parameter_that_requires_grad_is_refused_where_gradients_are_on(mlp):
    program, inputs = mlp
    given = inputs()
    weights = {n: torch.nn.Parameter(t) for n, t in weights_of(given).items()}
    bound = program.bind(weights)
    with pytest.raises(FusedslError) as caught:
        bound(given["x"])
    assert caught.value.codes == ("F0508",)
    detached = program.bind({n: p.detach() for n, p in weights.items()})
    assert detached(given["x"]).grad_fn is None


def test_weights_given_per_call_are_folded_once(mlp, monkeypatch, close):
    program, inputs = mlp
    given = inputs()
    folds = count_folds(monkeypatch)
    for _ in range(3):
        program(**given)
    assert len(folds) == 1
    given["gain"].mul_(2)
    close(program(**given), oracle(program, given))
    assert len(folds) == 2
    given["gain"] = given["gain"].clone()
    program(**given)
    assert len(folds) == 3


def test_weights_given_per_call_are_not_kept_alive(mlp):
    program, inputs = mlp
    given = inputs()
    program(**given)
    refs = [weakref.ref(t) for t in given.values()]
    given.clear()
    gc.collect()
    assert all(ref() is None for ref in refs)


def test_inference_tensors_are_folded_on_every_call(mlp, close):
    """They count no versions, so that a change could not be noticed."""
    program, inputs = mlp
    with torch.inference_mode():
        given = {n: t.clone() for n, t in inputs().items()}
        program(**given)
        given["gain"].mul_(2)
        close(program(**given), oracle(program, given))


def test_bound_in_inference_mode_and_refreshed_outside(mlp, close):
    program, inputs = mlp
    given = inputs()
    with torch.inference_mode():
        bound = program.bind(weights_of(given))
        bound(given["x"])
    given["gain"].mul_(2)
    close(bound(given["x"]), oracle(program, given))


def test_an_output_known_at_bind_time_is_a_copy():
    program = fusedsl.compile(
        "kernel f(x: bf16[M, 16], g: weight bf16[16]) -> (y: bf16[M, 16], s: bf16[16]) {\n"
        "  s = g + 1.0;\n  y = x * s;\n}\n"
    )
    g = torch.zeros(16, device=DEVICE).bfloat16()
    bound = program.bind(g=g)
    x = torch.ones(2, 16, device=DEVICE).bfloat16()
    _, s = bound(x)
    s.fill_(7)
    y, again = bound(x)
    assert torch.equal(again, torch.ones_like(again))
    assert torch.equal(y, x)


def count_folds(monkeypatch) -> list[int]:
    from fusedsl.runtime import binding

    folds: list[int] = []
    real = binding.fold

    def counted(*args):
        folds.append(1)
        return real(*args)

    monkeypatch.setattr(binding, "fold", counted)
    return folds


def test_a_weight_given_twice_is_refused():
    program = fusedsl.compile(NORM_LINEAR)
    gain, w = torch.ones(64).bfloat16(), torch.ones(32, 64).bfloat16()
    with pytest.raises(FusedslError) as caught:
        program.bind({"gain": gain, "w": w}, w=w)
    assert caught.value.codes == ("F0501",)
