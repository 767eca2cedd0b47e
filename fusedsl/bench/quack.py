"""Quack's kernels as a peer: programs that are a chain of calls it has a function for.

A norm or softmax alone, an RMSNorm with the residual before it, a projection with what Quack's
GEMMs take into their epilogue (a bias and an activation, a gated unit, a residual), and a norm
before such a projection: a call of its own, as Quack's GEMMs scale rows by a statistic that only
the GEMM before them can have taken.

The first call of a shape tunes its GEMMs. Weights of gated units are interleaved, and those of
LayerNorm made fp32, as Quack wants them, once and outside of the calls.

Written against quack-kernels 0.6.5. It must be installed below a folder named `site-packages`: its
epilogues refuse what another folder holds ("no fail-closed semantic key").
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from torch import Tensor

from fusedsl.ir import Graph, Node, Operand

Values = dict[Any, Any]
Step = Callable[[Values], None]
Prepared = Callable[[], tuple[Tensor, ...]]

#: Activation → Quack's name for it.
_ACTIVATIONS = {"relu": "relu", "squared_relu": "relu_sq", "silu": "silu", "tanh": "tanh"}
_GATED = ("swiglu", "geglu", "reglu")

#: What `match` says where there is no Quack.
NOT_INSTALLED = "Quack is not installed"


def match(graph: Graph) -> str | Callable[[Mapping[str, Tensor]], Prepared]:
    """`inputs -> call`, or in words why there is none."""
    if importlib.util.find_spec("quack") is None:
        return NOT_INSTALLED
    steps = _steps(graph)
    if isinstance(steps, str):
        return f"Quack has no function for {steps}"

    def prepare(inputs: Mapping[str, Tensor]) -> Prepared:
        fixed = {**inputs, **_interleaved(graph, inputs), **_widened(graph, inputs)}

        def call() -> tuple[Tensor, ...]:
            values: Values = dict(fixed)
            for step in steps:
                step(values)
            return tuple(values[name] for name in graph.outputs)

        return call

    return prepare


def _steps(graph: Graph) -> str | list[Step]:
    """One step for each call of Quack, or the block that none covers."""
    steps: list[Step] = []
    done: set[str] = set()
    for node in graph.nodes:
        if node.name in done:
            continue
        follower = _only_reader(graph, node)
        step, taken = _step(graph, node, follower)
        if step is None:
            return f"'{node.block.name}' as '{node.name}' calls it"
        steps.append(step)
        done.update(n.name for n in taken)
    return steps


def _only_reader(graph: Graph, node: Node) -> Node | None:
    return graph.readers[node.name][0] if graph.is_read_once(node.name) else None


def _step(graph: Graph, node: Node, follower: Node | None) -> tuple[Step | None, tuple[Node, ...]]:
    """The call for a node, with the one that reads it where Quack does both at once."""
    kind = node.block.name
    if kind in ("rms_norm", "layer_norm", "softmax"):
        return _row_step(node), (node,)
    if kind == "add":
        return _residual_norm(graph, node)
    if kind not in ("linear", "matmul"):
        return None, ()
    if follower is not None:
        fused = _epilogue(graph, node, follower)
        if fused is not None:
            return fused, (node, follower)
    return _product(node), (node,)


def _row_step(node: Node) -> Step | None:
    kind, out = node.block.name, node.name
    operands = dict(zip((o.name for o in node.block.operands), node.operands, strict=True))
    if kind == "softmax":
        softmax = importlib.import_module("quack.softmax").softmax
        return lambda v: v.__setitem__(out, softmax(v[operands["x"]]))
    gain, eps = operands.get("gain"), node.attr("eps")
    if gain is None:
        return None
    if kind == "rms_norm":
        rmsnorm = _rmsnorm(node)
        return lambda v: v.__setitem__(out, rmsnorm(v[operands["x"]], v[gain]))
    if node.attr("offset"):
        return None
    layer_norm: Any = importlib.import_module("quack.rmsnorm").layernorm_fwd
    bias = operands.get("bias")

    def run(v: Values) -> None:
        shift = None if bias is None else _fp32(v, bias)
        v[out] = layer_norm(v[operands["x"]], _fp32(v, gain), shift, eps=eps)

    return run


def _rmsnorm(node: Node) -> Callable[..., Any]:
    """`(x, gain, **residual) -> y` with what an RMSNorm says."""
    module: Any = importlib.import_module("quack.rmsnorm")
    return partial(
        module.rmsnorm,
        eps=node.attr("eps"),
        out_dtype=node.type.dtype.torch,
        weight_offset=float(cast(int, node.attr("offset"))),
    )


def _residual_norm(graph: Graph, node: Node) -> tuple[Step | None, tuple[Node, ...]]:
    """A sum and the RMSNorm of it, in one call that gives both."""
    norms = [
        n
        for n in graph.readers[node.name]
        if n.block.name == "rms_norm" and n.operand("x") == node.name and n.operand("gain")
    ]
    a, b = node.inputs if len(node.inputs) == 2 else ("", "")
    if not norms or any(graph.types.get(name) != node.type for name in (a, b)):
        return None, ()
    norm, rmsnorm = norms[0], _rmsnorm(norms[0])

    def run(v: Values) -> None:
        gain = v[norm.operand("gain")]
        v[norm.name], v[node.name] = rmsnorm(v[a], gain, residual=v[b], prenorm=True)

    return run, (node, norm)


def _fp32(v: Values, name: Operand) -> Tensor:
    """A weight in fp32: made before the calls, unless a call makes the weight itself."""
    wide = v.get(f"{name}/fp32")
    return v[name].float() if wide is None else wide


def _wide(node: Node, v: Values) -> Tensor:
    """The weight as Quack takes it, [K, N]."""
    w = v[node.operand("w")]
    return w.t() if node.block.name == "linear" else w


def _bias(node: Node, v: Values) -> Tensor | None:
    name = node.operand("bias")
    return None if name is None else v[name]


def _product(node: Node) -> Step:
    gemms: Any = importlib.import_module("quack.gemm_interface")

    def run(v: Values) -> None:
        x, w, bias = v[node.operand("x")], _wide(node, v), _bias(node, v)
        v[node.name] = gemms.gemm(x, w, bias=bias, split_k=None, tuned=True)

    return run


def _epilogue(graph: Graph, node: Node, follower: Node) -> Step | None:
    gemms: Any = importlib.import_module("quack.gemm_interface")
    kind, out = follower.block.name, follower.name
    activation = _ACTIVATIONS.get(kind)
    if kind == "gelu" and follower.attr("approximate") == "tanh":
        activation = "gelu_tanh_approx"
    if activation is not None:

        def act(v: Values) -> None:
            v[out] = gemms.gemm_act(
                v[node.operand("x")],
                _wide(node, v),
                bias=_bias(node, v),
                activation=activation,
                store_preact=False,
                tuned=True,
            )[1]

        return act
    gated = getattr(gemms, "gemm_gated", gemms.gemm_act)
    erf = kind == "geglu" and follower.attr("approximate") != "tanh"
    if kind in _GATED and not erf and node.operand("bias") is None:
        weight = f"{node.operand('w')}/interleaved"

        def both(v: Values) -> None:
            x = v[node.operand("x")]
            v[out] = gated(x, v[weight], activation=kind, store_preact=False, tuned=True)[1]

        return both
    other = [o for o in follower.inputs if o != node.name and graph.types[o] == node.type]
    if kind == "add" and other:

        def add(v: Values) -> None:
            x, w, bias = v[node.operand("x")], _wide(node, v), _bias(node, v)
            v[out] = gemms.gemm_add(x, w, v[other[0]], bias=bias, split_k=None, tuned=True)

        return add
    return None


def _interleaved(graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stacked weights of gated units with their halves' columns in turn, as Quack reads them."""
    found: dict[str, Tensor] = {}
    for node in graph.nodes:
        follower = _only_reader(graph, node)
        gated = follower is not None and follower.block.name in _GATED
        name = node.operand("w") if node.block.name in ("linear", "matmul") else None
        if gated and isinstance(name, str) and name in inputs:
            w = inputs[name] if node.block.name == "linear" else inputs[name].t()
            stacked = w.reshape(2, w.shape[0] // 2, w.shape[1])
            in_turn = stacked.transpose(0, 1).reshape(w.shape).contiguous()
            found[f"{name}/interleaved"] = in_turn.t()
    return found


def _widened(graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of LayerNorm in fp32, as Quack wants them."""
    norms = [n for n in graph.nodes if n.block.name == "layer_norm"]
    names = {node.operand(o) for node in norms for o in ("gain", "bias")}
    return {f"{n}/fp32": inputs[n].float() for n in names if isinstance(n, str) and n in inputs}
