"""The oracle: a graph evaluated node by node in torch, in fp64 or as an eager user would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fusedsl.ir.graph import Graph, Node
from fusedsl.ir.indices import index_range
from fusedsl.ir.types import Dim, DType


def evaluate(
    graph: Graph, inputs: Mapping[str, Tensor], *, keep: bool = False
) -> dict[str, Tensor]:
    """Evaluate in fp64. Returns the outputs by name (every value with `keep`), float64.

    Shapes as in the signature; inputs of any float dtype are widened exactly. Values are never
    rounded to their declared dtypes: this is what the program means.
    """
    env = bind_dims(graph, inputs)
    values = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in inputs.items()
    }
    for node in graph.nodes:
        store(values, node, call_reference(node, values, env, node.block.reference))
    return values if keep else {name: values[name] for name in graph.outputs}


def evaluate_eager(graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Evaluate as the same chain in eager torch would: every statement rounds to its dtype."""
    env = bind_dims(graph, inputs)
    values = dict(inputs)
    for node in graph.nodes:
        run = node.block.eager or node.block.reference
        results = call_reference(node, values, env, run)
        rounded = tuple(
            t.to(r.type.dtype.torch) for t, r in zip(as_tuple(results), node.results, strict=True)
        )
        store(values, node, rounded)
    return {name: values[name] for name in graph.outputs}


def call_reference(
    node: Node, values: Mapping[str, Tensor], env: Mapping[str, int], run: Any
) -> Any:
    """Call a block's torch function on this node's operands; dims in attributes are bound.

    A symbol that no input binds (a number of column tiles, which a schedule chooses) comes as None.
    """
    operands = [values[op] if isinstance(op, str) else op for op in node.operands]
    attrs = {
        name: _bound(value, env) if isinstance(value, Dim) else value
        for name, value in node.attrs
        if name != "out_dtype"
    }
    return run(*operands, **attrs)


def _bound(dim: Dim, env: Mapping[str, int]) -> int | None:
    return dim.bind(env) if dim.symbol is None or dim.symbol in env else None


def as_tuple(value: Any) -> tuple[Tensor, ...]:
    """One result or several, as a tuple."""
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]


def store(values: dict[str, Tensor], node: Node, results: Any) -> None:
    """Record a node's results by name."""
    for result, tensor in zip(node.results, as_tuple(results), strict=True):
        values[result.name] = tensor


def bind_dims(graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, int]:
    """The value of every symbol, from the shapes of the inputs (assumed to be consistent)."""
    env: dict[str, int] = {}
    for param in graph.params:
        if param.name not in inputs:
            continue
        for dim, size in zip(param.type.shape, inputs[param.name].shape, strict=True):
            if dim.symbol is not None:
                env.setdefault(dim.symbol, size // dim.factor)
    return env


def random_inputs(
    graph: Graph, env: Mapping[str, int], *, seed: int, device: str = "cpu"
) -> dict[str, Tensor]:
    """Fresh normal inputs; a matrix weight is scaled by 1/sqrt of its last axis, a vector lies
    near 1 so that gains look like gains. Indices are columns of the tile they are used on."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    inputs: dict[str, Tensor] = {}
    for param in graph.params:
        shape = param.type.concrete(env)
        if param.type.dtype.is_index:
            stop = index_range(graph, param.name).stop(env)
            drawn = torch.randint(stop, shape, generator=generator)
            inputs[param.name] = drawn.to(param.type.dtype.torch).to(device)
            continue
        data = torch.randn(shape, generator=generator, dtype=torch.float32)
        if param.weight and len(shape) == 2:
            data = data / max(1, shape[-1]) ** 0.5
        elif param.weight:
            data = 1.0 + 0.1 * data
        inputs[param.name] = data.to(DType(param.type.dtype).torch).to(device)
    return inputs
