"""When a norm may move past a projection: the preconditions that several rules share.

A projection's operand is a chain of steps (scales and shifts by vectors) over a base. Three laws
take steps off the chain: `layer_norm_shift` all of one with a shift, `commute_row_scale` one scale
by a column vector, `fold_gain` one by a row vector. Each pays only if the chain's values need not
be stored and the base is stored anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fusedsl.ir import DType, Kind, Node
from fusedsl.rewrite.editor import Editor
from fusedsl.rewrite.matcher import (
    Form,
    Projection,
    Step,
    contracts,
    epilogue,
    is_elementwise_tile,
    projection,
    step,
)
from fusedsl.rewrite.rule import Context, Refusal

#: Sentences of the shared preconditions.
NUMERICS = 'numerics is "moved": the values of the chain are no longer rounded'
DTYPE = "the value under the chain has the dtype of the projection's weight"
NOT_NEEDED = (
    "nothing needs the chain's values in memory: they are no output, and every other reader is "
    "elementwise or a projection that the chain can move past too"
)
STORED = (
    "the value under the chain is in memory anyway: a parameter, an output, made by a "
    "projection's epilogue, or read outside the norm"
)


@dataclass(frozen=True)
class Chain:
    """The steps between a projection and the base under them, outermost first."""

    projection: Projection
    steps: tuple[Step, ...]
    base: str
    stored: bool

    @property
    def operand(self) -> str:
        """The value the projection reads."""
        return self.projection.operand

    @property
    def values(self) -> tuple[str, ...]:
        """The values that the steps make."""
        return tuple(s.node.name for s in self.steps)

    @property
    def shifts(self) -> bool:
        """Whether a step is a shift."""
        return any(s.shifts for s in self.steps)

    @property
    def row_scale(self) -> Step | None:
        """The outermost scale by a column vector or a number."""
        return next((s for s in self.steps if s.form is Form.SCALE_ROWS), None)

    @property
    def gain(self) -> Step | None:
        """The outermost scale by a row vector."""
        return next((s for s in self.steps if s.form is Form.SCALE_COLUMNS), None)

    @property
    def law(self) -> Callable[[Context, Chain], Refusal | None] | None:
        """What stops the law that takes steps off this chain, readers aside; None: no such law."""
        if self.shifts:
            by_rows = any(s.form in (Form.SCALE_ROWS, Form.SHIFT_ROWS) for s in self.steps)
            return shift_problem if by_rows else None
        if self.row_scale is not None:
            return scale_problem
        return gain_problem if self.gain is not None else None


def chain_of(context: Context, node: Node) -> Chain | None:
    """The chain a projection reads, down to the first value that is stored anyway, or None."""
    found = projection(node)
    if found is None or found.operand in context.graph.weights:
        return None
    steps: list[Step] = []
    name = found.operand
    current = step(context.graph, name)
    while current is not None:
        steps.append(current)
        name = current.data
        if is_stored(context, name):
            return Chain(found, tuple(steps), name, stored=True)
        current = step(context.graph, name)
    return Chain(found, tuple(steps), name, stored=False) if steps else None


def is_stored(context: Context, name: str) -> bool:
    """Whether a value is in memory whatever becomes of the chain above it."""
    graph = context.graph
    if name not in graph.producers or name in graph.outputs:
        return True
    if not isinstance(epilogue(context, name), Refusal):
        return True
    return any(_reads_from_memory(context, node, name) for node in graph.readers[name])


def _reads_from_memory(context: Context, node: Node, name: str) -> bool:
    """Whether a reader is neither a step of a chain nor part of a statistic."""
    own = step(context.graph, node.name)
    if own is not None and own.data == name:
        return False
    return not _serves_statistics(context, node)


def _serves_statistics(context: Context, node: Node) -> bool:
    if is_statistic(node):
        return True
    if not is_elementwise_tile(node) or node.name in context.graph.outputs:
        return False
    return all(_serves_statistics(context, n) for n in context.graph.readers[node.name])


def may_move(context: Context, node: Node) -> bool:
    """Whether the chain a projection reads can be taken off, whoever else reads it."""
    chain = chain_of(context, node)
    return chain is not None and chain.law is not None and problem_of_move(context, chain) is None


def problem_of_move(context: Context, chain: Chain) -> Refusal | None:
    """Why the chain's law does not apply or pay, whoever else reads the chain; None if it does."""
    assert chain.law is not None
    return chain.law(context, chain) or stored_problem(context, chain)


def problem_of(context: Context, chain: Chain) -> Refusal | None:
    """Why the chain's law does not apply or pay, its other readers counted; None if it does."""
    assert chain.law is not None
    return (
        chain.law(context, chain)
        or needed_problem(context, chain)
        or stored_problem(context, chain)
    )


def is_statistic(node: Node) -> bool:
    """Whether the node reduces rows, whole or in pieces."""
    return node.block.reduction is not None or node.block.kind is Kind.ROW_REDUCTION


def scale_problem(context: Context, chain: Chain) -> Refusal | None:
    """What stops a row scale from moving past its projection, readers aside."""
    return numerics_problem(context, chain) or _dtype_problem(context, chain)


def gain_problem(context: Context, chain: Chain) -> Refusal | None:
    """What stops a gain from being folded into the weight, readers aside."""
    gain = chain.gain
    assert gain is not None
    return (
        numerics_problem(context, chain)
        or weights_problem(context, chain, [gain])
        or _dtype_problem(context, chain)
    )


def shift_problem(context: Context, chain: Chain) -> Refusal | None:
    """What stops a LayerNorm from moving past its projection, readers aside."""
    vectors = [s for s in chain.steps if s.form in (Form.SCALE_COLUMNS, Form.SHIFT_COLUMNS)]
    return (
        numerics_problem(context, chain)
        or _sixteen_bit_problem(context, chain)
        or weights_problem(context, chain, vectors)
        or _dtype_problem(context, chain)
    )


def numerics_problem(context: Context, chain: Chain) -> Refusal | None:
    """Refused where every rounding is to be kept."""
    if context.options.numerics == "moved":
        return None
    reason = f"numerics=\"as_written\" keeps the rounding of '{chain.operand}'"
    return Refusal("numerics", reason)


def weights_problem(context: Context, chain: Chain, vectors: list[Step]) -> Refusal | None:
    """Refused unless the projection's weight and these vectors are known at bind time."""
    names = [s.vector for s in vectors if isinstance(s.vector, str)]
    for name in [*names, chain.projection.weight]:
        if name not in context.graph.weights:
            reason = f"'{name}' is no weight: it may change on every call"
            return Refusal("weights", reason)
    return None


def _dtype_problem(context: Context, chain: Chain) -> Refusal | None:
    types = context.graph.types
    base, weight = types[chain.base].dtype, types[chain.projection.weight].dtype
    if base is weight:
        return None
    reason = (
        f"'{chain.base}' is {base} and '{chain.projection.weight}' is {weight}: "
        f"'{chain.base}' would have to be rounded first"
    )
    return Refusal("dtype", reason)


def _sixteen_bit_problem(context: Context, chain: Chain) -> Refusal | None:
    centred = any(s.form is Form.SHIFT_ROWS for s in chain.steps)
    wide = context.graph.types[chain.projection.weight].dtype is DType.FP32
    if not centred or not wide or context.options.fp32_shift:
        return None
    products = "in TF32 products of" if context.options.tf32 else "sums of fp32 products of"
    reason = (
        f"{products} '{chain.base}' and '{chain.projection.weight}' lose the digits that the mean "
        "takes off, where it is large against the deviation; fp32_shift=True accepts that"
    )
    return Refusal("sixteen_bit", reason)


def stored_problem(context: Context, chain: Chain) -> Refusal | None:
    """Refused where moving would only store another tile in place of the normed one."""
    if not chain.stored:
        reason = (
            f"'{chain.base}' is read by this chain alone and stored nowhere: storing it instead of "
            f"'{chain.operand}' gains nothing"
        )
        return Refusal("stored", reason)
    gains = [s for s in chain.steps if s.form is Form.SCALE_COLUMNS]
    if weights_problem(context, chain, gains) is None or producer_can_scale(context, chain):
        return None
    loose = weights_problem(context, chain, gains)
    assert loose is not None
    reason = (
        f"{loose.reason}, and no projection's epilogue could store '{chain.base}' with the gain"
    )
    return Refusal("stored", reason)


def producer_can_scale(context: Context, chain: Chain) -> bool:
    """Whether the kernel that makes the base could store it with the chain's gains as well."""
    made = epilogue(context, chain.base)
    if isinstance(made, Refusal):
        return False
    vectors = [s.vector for s in chain.steps if s.form is Form.SCALE_COLUMNS]
    return not any(isinstance(v, str) and context.depends(v, made.anchor) for v in vectors)


def needed_problem(context: Context, chain: Chain) -> Refusal | None:
    """Refused where a value of the chain has to be stored for somebody else."""
    graph = context.graph
    readers: list[Node] = [chain.projection.node, *(s.node for s in chain.steps)]
    for value, owner in zip(chain.values, readers, strict=False):
        if value in graph.outputs:
            return Refusal("not_needed", f"'{value}' is an output, so it is stored anyway")
        for node in graph.readers[value]:
            if node.name == owner.name:
                continue
            inner = is_statistic(node) and value != chain.operand
            if not inner and not reads_on_the_fly(context, node, value):
                reason = f"'{node.name}' ({node.block.name}) needs '{value}' in memory"
                return Refusal("not_needed", reason)
    return None


def reads_on_the_fly(context: Context, node: Node, value: str) -> bool:
    """Whether a reader can apply the chain under `value` itself, or moves it past itself."""
    if contracts(node, value):
        return may_move(context, node)
    shape = context.graph.types[value].shape
    return is_elementwise_tile(node) and node.type.shape == shape


def rebuild(edit: Editor, chain: Chain, without: Step, dtype: DType) -> str:
    """Add the chain over its base again, one step left out; gives the value the projection reads.

    The outermost node that is added is stored in `dtype`.
    """
    kept = [s for s in chain.steps if s is not without and s.form is not Form.SAME]
    value = chain.base
    for position, kept_step in reversed(list(enumerate(kept))):
        own = kept_step.node.type.dtype
        change = {kept_step.data: value}
        value = edit.again(kept_step.node, change, stored=own if position else dtype)
    return value
