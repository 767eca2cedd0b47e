"""f(r ⊙ z) → r^p ⊙ f(z): a row scale moves past an activation, towards the next projection."""

from __future__ import annotations

from dataclasses import dataclass

from fusedsl.ir import DType, HomogeneousIn, LinearIn, Node
from fusedsl.rewrite.editor import Editor
from fusedsl.rewrite.matcher import (
    Form,
    Step,
    contracts,
    epilogue,
    is_elementwise_tile,
    is_positive,
    step,
    steps_below,
    tile_operands,
)
from fusedsl.rewrite.rule import (
    Context,
    CounterExample,
    Fired,
    Outcome,
    Refusal,
    RewriteOptions,
    Rule,
)


@dataclass(frozen=True)
class _Scaled:
    """An operand that carries a row scale: the steps over it, outermost first, and the scale."""

    operand: str
    above: tuple[Step, ...]
    scale: Step

    @property
    def shift(self) -> Step | None:
        """The outermost shift over the scale."""
        return next((s for s in self.above if s.shifts), None)


def _apply(context: Context, node: Node) -> Outcome:
    graph = context.graph
    if not is_elementwise_tile(node) or node.name in graph.weights or step(graph, node.name):
        return None
    tiles = tile_operands(graph, node)
    carried = [found for op in tiles if (found := _scaled(context, op))]
    if not carried or len(carried) != len(tiles):
        return None
    if len(tiles) > 1 and not _multilinear(node, tiles):
        return None
    problem = _problem(context, node, carried)
    return problem or _move(context, node, carried)


def _scaled(context: Context, name: str) -> _Scaled | None:
    steps = steps_below(context.graph, name)
    for position, one in enumerate(steps):
        if one.form is Form.SCALE_ROWS and isinstance(one.vector, str):
            return _Scaled(name, steps[:position], one)
    return None


def _multilinear(node: Node, tiles: tuple[str, ...]) -> bool:
    linear = {node.operand(law.operand) for law in node.block.laws_of(LinearIn)}
    return linear.issuperset(tiles) and all(node.operands.count(t) == 1 for t in tiles)


def _degree(node: Node, operand: str) -> int | None:
    """p with f(c ⊙ x) = c^p ⊙ f(x) in this operand, or None."""
    if node.operands.count(operand) != 1:
        return None
    for law in node.block.laws_of(HomogeneousIn):
        if node.operand(law.operand) == operand and law.degree >= 1:
            return law.degree
    linear = any(node.operand(law.operand) == operand for law in node.block.laws_of(LinearIn))
    return 1 if linear else None


def _problem(context: Context, node: Node, carried: list[_Scaled]) -> Refusal | None:
    for one in carried:
        factor = f"'{one.scale.vector}'"
        if _degree(node, one.operand) is None:
            reason = (
                f"{node.block.name}(r ⊙ z) is no power of r times {node.block.name}(z): {factor} "
                f"stays under '{node.name}'"
            )
            return Refusal("homogeneous", reason)
        if one.shift:
            reason = (
                f"'{one.shift.node.name}' adds '{one.shift.vector}' between {factor} and "
                f"'{node.name}'"
            )
            return Refusal("unbiased", reason)
        if len(carried) == 1 and not is_positive(context.graph, one.scale.vector):
            return Refusal("positive", f"{factor} is not known to be positive")
    if context.options.numerics != "moved":
        reason = f"numerics=\"as_written\" keeps the rounding of '{carried[0].operand}'"
        return Refusal("numerics", reason)
    stop = _no_profit(context, node, carried)
    if stop:
        return Refusal("projection_after", stop)
    if not node.type.dtype.wide_range:
        size = "an unscaled square" if _power(node, carried) > 1 else "an unscaled value"
        reason = f"'{node.name}' is {node.type.dtype}, and {size} leaves its range (65,504)"
        return Refusal("range", reason)
    return None


def _power(node: Node, carried: list[_Scaled]) -> int:
    return sum(_degree(node, one.operand) or 0 for one in carried)


def _no_profit(context: Context, node: Node, carried: list[_Scaled]) -> str | None:
    """Why no projection would get the scale, or None if one would."""
    for one in carried:
        if isinstance(epilogue(context, one.scale.data), Refusal):
            return f"'{one.scale.data}' is not made in the epilogue of a projection"
    return _towards_projection(context, node.name)


def _towards_projection(context: Context, name: str) -> str | None:
    graph = context.graph
    if name in graph.outputs:
        return f"'{name}' is an output: no projection after it could take the scale"
    for reader in graph.readers[name]:
        if contracts(reader, name):
            continue
        if not is_elementwise_tile(reader) or _degree(reader, name) is None:
            return f"'{reader.name}' ({reader.block.name}) reads '{name}' and could not pass it on"
        others = [op for op in tile_operands(graph, reader) if op != name]
        if not all(_carries(context, op) for op in others):
            return f"'{reader.name}' joins '{name}' to a value without such a scale"
        stop = _towards_projection(context, reader.name)
        if stop:
            return stop
    return None


def _carries(context: Context, name: str) -> bool:
    """Whether a row scale is over this value, or could be brought there."""
    found = _scaled(context, name)
    if found is not None:
        return found.shift is None
    node = context.graph.producers.get(name)
    if node is None or not is_elementwise_tile(node):
        return False
    tiles = tile_operands(context.graph, node)
    if not tiles or any(_degree(node, op) is None for op in tiles):
        return False
    return all(_carries(context, op) for op in tiles)


def _move(context: Context, node: Node, carried: list[_Scaled]) -> Fired:
    edit = Editor(context.graph, node)
    change: dict[str, str] = {}
    power: str | None = None
    for one in carried:
        value = one.scale.data
        for kept in reversed(one.above):
            value = edit.again(kept.node, {kept.data: value})
        change[one.operand] = value
        factor = str(one.scale.factor(edit))
        for _ in range(_degree(node, one.operand) or 0):
            power = edit.emit("mul", power, factor, stored=DType.FP32) if power else factor
    assert power is not None
    inner = edit.again(node, change)
    edit.emit("mul", inner, power, stored=node.type.dtype, name=node.name)
    inputs = " and ".join(f"'{value}'" for value in change.values())
    what = f"'{power}' scales {node.block.name} of {inputs}, which carry no scale any more"
    return Fired(edit.finish(), what)


_SIGNATURE = """x: {d}[M, 64], w_up: weight {d}[128, 64], b: weight {d}[128],
               w_down: weight {d}[64, 128]"""


def _program(activation: str, bias: str = "", dtype: str = "bf16") -> str:
    signature = _SIGNATURE.format(d=dtype)
    if not bias:
        signature = signature.replace(f" b: weight {dtype}[128],", "")
    return f"""
kernel program({signature}) -> (y: {dtype}[M, 64]) {{
  h = rms_norm(x, eps=1e-5);
  a = {activation}(linear(h, w_up{bias}));
  y = linear(a, w_down);
}}"""


RULE = Rule(
    name="homogeneous_activation",
    before="f(r ⊙ z)",
    after="r^p ⊙ f(z)",
    doc="""relu and leaky_relu have p = 1, squared relu has p = 2. The scale can then pass the next
projection too, so that the first needs no statistics at all. A product of two tiles that both
carry a scale (a gated relu) passes on the product of the scales. Powers of r are column vectors in
fp32. f(z) is rounded without its scale, which costs nothing where the exponent range is fp32's.""",
    preconditions={
        "homogeneous": "f declares f(c ⊙ z) = c^p ⊙ f(z) for c > 0",
        "unbiased": "nothing is added between the scale and f",
        "positive": "every element of r is positive, by its block's law",
        "numerics": 'numerics is "moved": f(z) is rounded unscaled',
        "projection_after": "z is made in a projection's epilogue, and every reader of f is a "
        "projection, or hands the scale on to one",
        "range": "f's result is stored in bf16 or fp32: unscaled values may leave fp16's range",
    },
    apply=_apply,
    example=_program("squared_relu"),
    counter_examples={
        "homogeneous": CounterExample(_program("gelu")),
        "unbiased": CounterExample(_program("relu", bias=", b")),
        "positive": CounterExample("""
kernel counter(x: bf16[M, 64], r: fp32[M, 1], w_up: weight bf16[128, 64],
               w_down: weight bf16[64, 128]) -> (y: bf16[M, 64]) {
  z = linear(x, w_up);
  y = linear(relu(mul(z, r, out_dtype=bf16)), w_down);
}"""),
        "numerics": CounterExample(
            """
kernel counter(x: bf16[M, 64], w_up: weight bf16[128, 64], w_down: weight bf16[64, 128])
    -> (y: bf16[M, 64]) {
  z = linear(x, w_up);
  y = linear(relu(rms_norm(z, eps=1e-5)), w_down);
}""",
            RewriteOptions(numerics="as_written"),
        ),
        "projection_after": CounterExample("""
kernel counter(x: bf16[M, 64], w: weight bf16[128, 64]) -> (y: bf16[M, 128]) {
  y = relu(linear(rms_norm(x, eps=1e-5), w));
}"""),
        "range": CounterExample(_program("squared_relu", dtype="fp16")),
    },
)
