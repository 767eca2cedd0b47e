"""Run blocks outside the compiler: their Triton functions in kernels written here, and programs
of expanded blocks node by node on those kernels."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton

from fusedsl.blocks import library
from fusedsl.ir import (
    Block,
    Dim,
    DType,
    Graph,
    GraphBuilder,
    Kind,
    Node,
    Reduction,
    TensorType,
    as_tuple,
    bind_dims,
    call_reference,
    tensor,
)

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
SOURCES = tempfile.TemporaryDirectory(prefix="blocks-")

M, K, N, F = 5, 12, 7, 6

#: Values for attributes that have no default, and others than the default.
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "cap": (3.0,),
    "slope": (0.2,),
    "eps": (1e-6,),
    "tiles": (Dim(3),),
    "width": (Dim(K),),
    "equals": (2,),
    "ignore_index": (-100, 2),
}

#: Shapes of operands, by block and operand, or by operand. Everything else is a tile.
SHAPES: dict[str, tuple[int, ...]] = {
    "linear.w": (N, K),
    "matmul.w": (K, N),
    "linear.bias": (N,),
    "matmul.bias": (N,),
    "gain": (K,),
    "bias": (K,),
    "half.x": (M, 2 * F),
    "gate": (M, 2 * F),
    "up": (M, 2 * F),
    "index": (M,),
    "target": (M,),
    "merge_log_sum.maxima": (M, 3),
    "merge_log_sum.sums": (M, 3),
    "merge_max.maxima": (M, 3),
    "merge_mean.sums": (M, 3),
    "merge_mean_square.sums": (M, 3),
    "merge_moments.mean": (M, 3),
    "merge_moments.m2": (M, 3),
    "merge_sum.sums": (M, 3),
    "mul_picked.w": (K, K),
    "weight_sum.w": (N, K),
    "fold_scale.w": (K, K),
    "fold_scale.scale": (K,),
    "project_vector.v": (K,),
    "project_vector.w": (K, K),
    "stack.a": (N, K),
    "stack.b": (N, K),
}


def shape_of(block: Block, operand: str) -> tuple[int, ...]:
    """An operand's example shape."""
    return SHAPES.get(f"{block.name}.{operand}", SHAPES.get(operand, (M, K)))


def random_operands(block: Block, seed: int = 0, *, optional: bool = False) -> list[Any]:
    """Normal fp64 operands in example shapes; optional ones on request, else None."""
    generator = torch.Generator().manual_seed(seed)
    values: list[Any] = []
    for spec in block.operands:
        data = torch.randn(shape_of(block, spec.name), generator=generator, dtype=torch.float64)
        if block.name in ("inv_rms", "merge_log_sum"):
            data = data.square()
        if spec.index:
            data = torch.randint(K, shape_of(block, spec.name), generator=generator)
        values.append(data if optional or not spec.optional else None)
    return values


def attr_variants(block: Block) -> Iterator[dict[str, Any]]:
    """Every combination of example attribute values (`out_dtype` left alone)."""
    names = [a.name for a in block.attrs]
    values = [a.choices or EXAMPLES[a.name] for a in block.attrs]
    for chosen in itertools.product(*values):
        yield dict(zip(names, chosen, strict=True))


def bound(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as a torch reference takes them: dims as integers."""
    return {k: v.factor if isinstance(v, Dim) else v for k, v in attrs.items() if k != "out_dtype"}


@cache
def load_module(source: str) -> ModuleType:
    """Import a generated module; Triton reads its source back from the file."""
    path = Path(SOURCES.name) / f"generated_{abs(hash(source)):x}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def imported(function: Any) -> str:
    """The import line of a jit function."""
    return f"from {function.fn.__module__} import {function.fn.__name__}\n"


PREAMBLE = "import triton\nimport triton.language as tl\n"


def pointwise_source(block: Block, attrs: Mapping[str, Any], fast: bool, literals: Any) -> str:
    """A kernel `kernel(out, *operands, SIZE)` that applies a pointwise block."""
    parameters = inspect.signature(block.triton.fn).parameters
    names = [op.name for op in block.operands]
    indices = {op.name for op in block.operands if op.index}
    args = [repr(literals[n]) if n in literals else f"tl.load(p_{n} + at)" for n in names]
    args = [f"{a}.to(tl.int64)" if n in indices else a for n, a in zip(names, args, strict=True)]
    args += [f"{a.name.upper()}={attrs[a.name]!r}" for a in block.attrs]
    args += [f"FAST={fast}"] if "FAST" in parameters else []
    pointers = "".join(f"p_{n}, " for n in names if n not in literals)
    return (
        f"{PREAMBLE}{imported(block.triton)}\n\n@triton.jit\n"
        f"def kernel(out, {pointers}SIZE: tl.constexpr):\n"
        f"    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)\n"
        f"    tl.store(out + at, {block.triton.fn.__name__}({', '.join(args)}))\n"
    )


def run_pointwise(
    block: Block, operands: list[Any], attrs: Mapping[str, Any], *, fast: bool = False
) -> torch.Tensor:
    """A pointwise block's Triton function on fp32 operands, broadcast; literals stay literals."""
    names = [op.name for op in block.operands]
    literals = {n: v for n, v in zip(names, operands, strict=True) if isinstance(v, float)}
    operands = [
        v[:, None] if op.index and isinstance(v, torch.Tensor) else v
        for op, v in zip(block.operands, operands, strict=True)
    ]
    tensors = torch.broadcast_tensors(*(v for v in operands if isinstance(v, torch.Tensor)))
    shape, count = tensors[0].shape, tensors[0].numel()
    size = min(1024, triton.next_power_of_2(max(count, 1)))
    programs = -(-count // size)
    padded = [torch.ones(programs * size, device=DEVICE) for _ in tensors]
    for into, value in zip(padded, tensors, strict=True):
        into[:count] = value.float().reshape(-1).to(DEVICE)
    out = torch.full((programs * size,), float("nan"), device=DEVICE)
    kernel = load_module(pointwise_source(block, attrs, fast, literals)).kernel
    kernel[(programs,)](out, *padded, SIZE=size)
    return out[:count].reshape(shape).cpu()


def reduction_source(reduction: Reduction, results: int) -> str:
    """Kernels `looped` (chunk, merge, finish over pieces) and `joined` (merge_all, finish)."""
    states = [f"s{i}" for i in range(len(reduction.identity))]
    pieces = [f"p{i}" for i in range(len(states))]
    outs = [f"o{i}" for i in range(results)]
    lines = [PREAMBLE]
    functions = {n: getattr(reduction, n) for n in ("chunk", "merge", "merge_all", "finish")}
    by_index = reduction.owner is not None
    pointer, at_index = ("index, ", ", (start + cols)[None, :], i") if by_index else ("", "")
    load = "    i = tl.load(index + rows)[:, None]\n" if by_index else ""
    lines += [imported(f) for f in functions.values()]
    call = {n: f.fn.__name__ for n, f in functions.items()}
    s, p, ys = ", ".join(states), ", ".join(pieces), ", ".join(f"y{i}" for i in range(results))
    store = "".join(f"    tl.store({o} + rows, y{i})\n" for i, o in enumerate(outs))
    known = f"{s}, i" if by_index else s
    finish = f"{load}    {ys} = {call['finish']}({known}, WIDTH=WIDTH)\n{store}"
    start = "".join(
        f"    {n} = tl.full([ROWS], float('{v}'), tl.float32)\n"
        for n, v in zip(states, reduction.identity, strict=True)
    )
    lines.append(f"""

@triton.jit
def looped(
    x, {pointer}{", ".join(outs)}, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
{start}{load}    done = 0
    for start in range(0, WIDTH, COLS):
        valid = (start + cols < WIDTH)[None, :]
        count = tl.minimum(WIDTH - start, COLS)
        at = rows[:, None] * WIDTH + start + cols[None, :]
        {p} = {call["chunk"]}(tl.load(x + at, mask=valid, other=0.0), valid, count{at_index})
        {s} = {call["merge"]}(done, {s}, count, {p})
        done += count
{finish}

@triton.jit
def joined(
    {p}, counts, {pointer}{", ".join(outs)}, PIECES, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    PADDED: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, PADDED)
    valid = (cols < PIECES)[None, :]
    at = rows[:, None] * PIECES + cols[None, :]
    n = tl.load(counts + cols, mask=cols < PIECES, other=0.0)[None, :]
{"".join(f"    {n} = tl.load({n} + at, mask=valid, other=0.0){chr(10)}" for n in pieces)}\
    {s} = {call["merge_all"]}({p}, n)
{finish}""")
    return "".join(lines)


def _padded_rows(x: torch.Tensor) -> torch.Tensor:
    rows = triton.next_power_of_2(x.shape[0])
    padded = torch.zeros((rows, x.shape[1]), device=DEVICE)
    padded[: x.shape[0]] = x.float().to(DEVICE)
    return padded


def run_reduction(
    block: Block, x: torch.Tensor, index: torch.Tensor | None = None, *, cols: int = 16
) -> tuple[torch.Tensor, ...]:
    """A reduction in pieces of `cols` columns (a power of two): [M, 1] fp32 per result."""
    reduction, results = block.reduction, max(1, len(block.results))
    assert reduction is not None
    padded = _padded_rows(x)
    outs = [torch.full((padded.shape[0],), float("nan"), device=DEVICE) for _ in range(results)]
    module = load_module(reduction_source(reduction, results))
    pointers = [padded, *outs]
    if index is not None:
        numbers = torch.zeros(len(padded), dtype=index.dtype)
        numbers[: x.shape[0]] = index
        pointers.insert(1, numbers.to(DEVICE))
    module.looped[(1,)](*pointers, WIDTH=x.shape[1], ROWS=padded.shape[0], COLS=cols)
    return tuple(o[: x.shape[0], None].cpu() for o in outs)


def run_merge_all(
    block: Block, states: tuple[torch.Tensor, ...], counts: torch.Tensor, width: int
) -> tuple[torch.Tensor, ...]:
    """Joins states [M, pieces] in one step: [M, 1] fp32 per result."""
    reduction, results = block.reduction, max(1, len(block.results))
    assert reduction is not None
    padded = [_padded_rows(s) for s in states]
    rows, pieces = padded[0].shape
    outs = [torch.full((rows,), float("nan"), device=DEVICE) for _ in range(results)]
    module = load_module(reduction_source(reduction, results))
    module.joined[(1,)](
        *padded,
        counts.float().to(DEVICE),
        *outs,
        pieces,
        WIDTH=width,
        ROWS=rows,
        PADDED=triton.next_power_of_2(pieces),
    )
    return tuple(o[: states[0].shape[0], None].cpu() for o in outs)


def program(
    operands: Mapping[str, TensorType | float | None],
    block: str,
    weights: tuple[str, ...] = (),
    **attrs: Any,
) -> Graph:
    """The graph of one call, expanded where the block is a composite; its output is `y`."""
    spec = library()[block]
    b = GraphBuilder(library())
    for name, value in operands.items():
        if isinstance(value, TensorType):
            b.add_param(name, value, weight=name in weights)
    given = {n: n if isinstance(v, TensorType) else v for n, v in operands.items()}
    passed = {n: v for n, v in given.items() if v is not None}
    if spec.expand is None:
        names = tuple(f"y{i}" for i in range(len(spec.results))) or ("y",)
        b.outputs = list(b.call_all(spec, [], {**passed, **attrs}, names))
        return b.finish()
    scratch = GraphBuilder(library(), types=dict(b.types))
    scratch.call(spec, name="y", **passed, **attrs)
    node = scratch.nodes[-1]
    every = {op.name: given.get(op.name) for op in spec.operands}
    b.outputs = [spec.expand(b, every, node.attr_map, "y")]
    return b.finish()


def run_on_kernels(
    graph: Graph, inputs: Mapping[str, torch.Tensor], *, as_written: bool = False, cols: int = 16
) -> torch.Tensor:
    """A graph node by node on the Triton functions, in fp32; with `as_written` every result is
    rounded to its dtype. Projections and halves run in torch, in fp32."""
    env = bind_dims(graph, inputs)
    values: dict[str, torch.Tensor] = {
        n: t.float() if t.is_floating_point() else t for n, t in inputs.items()
    }
    for node in graph.nodes:
        for result, value in zip(node.results, _run_node(node, values, env, cols), strict=True):
            kept = result.name not in graph.outputs and not as_written
            dtype = DType.FP32 if kept else result.type.dtype
            values[result.name] = value.to(dtype.torch).float()
    (output,) = graph.outputs
    return values[output].to(graph.types[output].dtype.torch)


def _run_node(
    node: Node, values: Mapping[str, torch.Tensor], env: Mapping[str, int], cols: int
) -> tuple[torch.Tensor, ...]:
    if node.block.kind is Kind.ROW_REDUCTION:
        return run_reduction(node.block, *(values[n] for n in node.inputs), cols=cols)
    if node.block.kind is Kind.POINTWISE:
        operands = [values[op] if isinstance(op, str) else op for op in node.operands]
        return (run_pointwise(node.block, operands, node.attr_map),)
    return as_tuple(call_reference(node, values, env, node.block.reference))


def types_like(block: Block, dtype: str, *, optional: bool) -> dict[str, TensorType | None]:
    """Example operand types in one dtype."""
    dtypes = {op.name: "i64" if op.index else dtype for op in block.operands}
    return {
        op.name: tensor(dtypes[op.name], *shape_of(block, op.name))
        if optional or not op.optional
        else None
        for op in block.operands
    }


def each(blocks: Callable[[Block], bool]) -> list[Any]:
    """Names of the blocks that fit, for parametrisation."""
    return [b.name for b in library().values() if blocks(b)]
