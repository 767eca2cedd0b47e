"""Quack's kernels as a peer: programs that are a chain of calls it has a function for.

A norm or softmax alone, a projection with what Quack's GEMMs take into their epilogue (a bias and
an activation, a gated unit, a residual), and a norm before such a projection.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from fusedsl.ir import Graph, Node

Values = dict[Any, Any]
Step = Callable[[Values], None]
Prepared = Callable[[], tuple[Tensor, ...]]

#: Activation → Quack's name for it.
_ACTIVATIONS = {"relu": "relu", "squared_relu": "relu_sq"}
_GATED = ("swiglu", "geglu", "reglu")


def match(graph: Graph) -> str | Callable[[Mapping[str, Tensor]], Prepared]:
    """`inputs -> call`, or in words why there is none."""
    if importlib.util.find_spec("quack") is None:
        return "Quack is not installed"
    steps = _steps(graph)
    if isinstance(steps, str):
        return f"Quack has no function for {steps}"

    def prepare(inputs: Mapping[str, Tensor]) -> Prepared:
        fixed = {**inputs, **{f"{n}/interleaved": w for n, w in _interleaved(graph, inputs)}}

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
    module: Any = importlib.import_module("quack.rmsnorm")
    if gain is None:
        return None
    if kind == "rms_norm":
        if node.attr("offset"):
            return None
        norm = module.rmsnorm
        return lambda v: v.__setitem__(out, norm(v[operands["x"]], v[gain], eps=eps))
    layer_norm = module.layernorm_fwd
    shift = next((operands[n] for n in ("shift", "bias") if operands.get(n)), None)

    def run(v: Values) -> None:  # it takes its weights in fp32
        bias = None if shift is None else v[shift].float()
        v[out] = layer_norm(v[operands["x"]], v[gain].float(), bias, eps=eps)

    return run


def _wide(node: Node, v: Values) -> Tensor:
    """The weight as Quack takes it, [K, N]."""
    w = v[node.operand("w")]
    return w.t() if node.block.name == "linear" else w


def _bias(node: Node, v: Values) -> Tensor | None:
    name = node.operand("bias")
    return None if name is None else v[name].float()


def _product(node: Node) -> Step:
    gemms: Any = importlib.import_module("quack.gemm_interface")

    def run(v: Values) -> None:
        x = v[node.operand("x")]
        v[node.name] = gemms.gemm(x, _wide(node, v), bias=_bias(node, v), tuned=True)

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
    if kind == "add" and node.operand("bias") is None and other:

        def add(v: Values) -> None:
            v[out] = gemms.gemm_add(v[node.operand("x")], _wide(node, v), v[other[0]], tuned=True)

        return add
    return None


def _interleaved(graph: Graph, inputs: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Stacked weights of gated units with their halves' columns in turn, as Quack reads them."""
    found: list[tuple[str, Tensor]] = []
    for node in graph.nodes:
        follower = _only_reader(graph, node)
        gated = follower is not None and follower.block.name in _GATED
        name = node.operand("w") if node.block.name in ("linear", "matmul") else None
        if gated and isinstance(name, str) and name in inputs:
            w = inputs[name] if node.block.name == "linear" else inputs[name].t()
            stacked = w.reshape(2, w.shape[0] // 2, w.shape[1])
            found.append((name, stacked.transpose(0, 1).reshape(w.shape).contiguous().t()))
    return found
