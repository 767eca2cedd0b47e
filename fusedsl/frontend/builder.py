"""Programs in Python: the same graph as the text, call by call.

k = Kernel("block")
x = k.input("x", "bf16", "M", 4096)
w = k.weight("w", "bf16", 4096, 4096)
k.output(y=k.linear(k.rms_norm(x, eps=1e-6), w) + x)
graph = k.graph()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import torch

from fusedsl.blocks import library as standard_library
from fusedsl.diagnostics import NOWHERE, Diagnostics, FusedslError
from fusedsl.frontend import problems
from fusedsl.frontend.assemble import Assembler, Output, Target
from fusedsl.ir import (
    NAME,
    Block,
    BlockLibrary,
    Dim,
    DType,
    Graph,
    Node,
    Result,
    TensorType,
    dtype_from_torch,
    print_node,
)

_FRESH = "%"  # begins the names of results until `Kernel.graph` names them


class UnknownBlock(FusedslError, AttributeError):
    """`k.nosuchblock`: F0201, and an AttributeError for `hasattr`."""


class Value:
    """A parameter or a result inside one kernel. The operators + - * / and unary - call blocks."""

    __array_ufunc__ = None  # numpy scalars leave `2 * x` to us

    def __init__(self, kernel: Kernel, name: str, type: TensorType):
        self.kernel = kernel
        self._name = name
        self.type = type

    @property
    def name(self) -> str | None:
        """The name it was given; None for a result that `Kernel.graph` will name."""
        return None if self._name.startswith(_FRESH) else self._name

    def __repr__(self) -> str:
        return f"<{self._name.removeprefix(_FRESH)}: {self.type}>"

    def __add__(self, other: Value | float) -> Value:
        return self.kernel.operator("+", self, other)

    def __radd__(self, other: float) -> Value:
        return self.kernel.operator("+", other, self)

    def __sub__(self, other: Value | float) -> Value:
        return self.kernel.operator("-", self, other)

    def __rsub__(self, other: float) -> Value:
        return self.kernel.operator("-", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return self.kernel.operator("*", self, other)

    def __rmul__(self, other: float) -> Value:
        return self.kernel.operator("*", other, self)

    def __truediv__(self, other: Value | float) -> Value:
        return self.kernel.operator("/", self, other)

    def __rtruediv__(self, other: float) -> Value:
        return self.kernel.operator("/", other, self)

    def __neg__(self) -> Value:
        return self.kernel.operator("-", self)


class Kernel:
    """A kernel under construction. Every block of the library is a method.

    `k.rms_norm(x, gain, eps=1e-6, name="h")` gives a `Value`, a block with several results a tuple
    (with `name=("mean", "var")`). Mistakes raise FusedslError at the call that makes them.
    """

    def __init__(self, name: str, *, library: BlockLibrary | None = None):
        _check_name(name)
        self._library = library or standard_library()
        self._name = name
        self._out = Assembler(self._library, Diagnostics(), name)
        self._outputs: dict[str, str] = {}

    def input(self, name: str, dtype: str | DType | torch.dtype, *shape: Dim | int | str) -> Value:
        """Declare a parameter that changes on every call.

        `shape` holds integers, symbols such as "M", and multiples such as "2*M". Raises
        FusedslError: F0101, F0105, F0203, F0206, F0403.
        """
        return self._param(name, dtype, shape, weight=False)

    def weight(self, name: str, dtype: str | DType | torch.dtype, *shape: Dim | int | str) -> Value:
        """Declare a parameter that stays put between calls. Raises as `input` does."""
        return self._param(name, dtype, shape, weight=True)

    def call(
        self, block: str, *operands: Any, name: str | Sequence[str] | None = None, **named: Any
    ) -> Any:
        """Apply a block: `k.call("softcap", x, cap=30.0)` is `k.softcap(x, cap=30.0)`.

        Raises FusedslError: F0101, F0201 to F0203, F0301 to F0304, F0404, F0407 and the codes of
        the block's own check.
        """
        spec = self._out.block(block, NOWHERE)
        self._raise()
        assert spec is not None
        return self._apply(spec, operands, named, name)

    def operator(self, symbol: str, *operands: Any) -> Value:
        """What the operators of `Value` do."""
        table = self._library.infix if len(operands) == 2 else self._library.prefix
        if symbol not in table:
            raise FusedslError(problems.no_operator(symbol, table))
        return self._apply(table[symbol], operands, {}, None)

    def output(self, *values: Value, **named: Value) -> None:
        """Give values back, under their own names or, by keyword, under new ones.

        Raises FusedslError: F0202 (another kernel's value), F0203, F0204 (a parameter), F0301.
        """
        given = [(value.name if isinstance(value, Value) else "", value) for value in values]
        for name, value in (*given, *named.items()):
            if name is None:
                raise FusedslError(problems.nameless_output())
            internal = self._operand(value)
            if not isinstance(internal, str):
                raise FusedslError(problems.not_an_operand(value, "a value of this kernel"))
            if internal in self._out.params:
                raise FusedslError(problems.unassigned(name, is_param=True))
            if internal in self._outputs:
                raise FusedslError(problems.output_twice(name, self._outputs[internal]))
            if name != internal:
                self._check_free(name)
                self._out.places[name] = NOWHERE
            self._outputs[internal] = name

    def graph(self) -> Graph:
        """The finished graph. Raises FusedslError: F0204, F0205."""
        if not self._outputs:
            raise FusedslError(problems.no_outputs())
        out = _with_final_names(self._out, self._outputs)
        return out.finish([Output(name) for name in self._outputs.values()])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        block = self._library.get(name)
        if block is None:
            raise UnknownBlock(self._out.builder.unknown_block(name))

        def call(*operands: Any, name: str | Sequence[str] | None = None, **named: Any) -> Any:
            return self._apply(block, operands, named, name)

        call.__name__ = call.__qualname__ = block.name
        call.__doc__ = f"{block.signature()}: {block.doc}"
        return call

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(b.name for b in self._library.public())]

    # Inside

    def _param(self, name: str, dtype: object, shape: Sequence[Any], weight: bool) -> Value:
        self._check_free(name)
        out = self._out
        known = dtype_from_torch(dtype) if isinstance(dtype, torch.dtype) else dtype
        text = known.value if isinstance(known, DType) else str(dtype)
        dims = [self._dim(d) for d in shape]
        type = out.tensor_type(out.dtype(text, NOWHERE), dims, NOWHERE)
        self._raise()
        assert type is not None
        for word in sorted({*out.symbols, *type.symbols} & {name, *out.places}):
            out.bag.add(problems.name_of_dimension(word, out.builder.fresh(word)))
        self._raise()
        out.param(name, type, weight, NOWHERE)
        return Value(self, name, type)

    def _dim(self, value: object) -> Dim | None:
        dim = value if isinstance(value, Dim) else None
        if isinstance(value, int | str) and not isinstance(value, bool):
            try:
                dim = Dim.parse(value)
            except ValueError:
                dim = None
        if dim is None:
            self._out.bag.add(problems.bad_dim(value))
            return None
        return self._out.dim(dim, NOWHERE)

    def _apply(
        self,
        block: Block,
        operands: Sequence[Any],
        named: dict[str, Any],
        name: str | Sequence[str] | None,
    ) -> Any:
        names = (name,) if isinstance(name, str) else tuple(name or ())
        for given in names:
            self._check_free(given)
        keys = {op.name for op in block.operands}
        values = [self._operand(v) for v in operands]
        keywords = {k: self._operand(v) if k in keys else _attr(v) for k, v in named.items()}
        keywords = {k: v for k, v in keywords.items() if v is not None or k not in keys}
        builder = self._out.builder
        serial = len(builder.nodes)
        stems = block.results or (block.name,)
        chosen = names or tuple(f"{_FRESH}{stem}_{serial}" for stem in stems)
        results = self._out.apply(block, values, keywords, {}, [Target(n) for n in chosen])
        if results is None:
            for given in set(chosen) - set(builder.types):
                self._out.places.pop(given, None)
                self._out.poisoned.discard(given)
        self._raise()
        assert results is not None
        made = tuple(Value(self, n, builder.types[n]) for n in results)
        return made if block.results else made[0]

    def _operand(self, value: Any) -> str | float | None:
        if value is None:
            return None
        if isinstance(value, Value):
            if value.kernel is not self:
                name, theirs = value.name or repr(value), value.kernel._name
                raise FusedslError(problems.another_kernel(name, theirs, self._name))
            return value._name
        if isinstance(value, bool) or not isinstance(value, Real):
            raise FusedslError(
                problems.not_an_operand(value, "a value of this kernel, or a number")
            )
        try:
            return float(value)
        except OverflowError:
            return float("inf")

    def _check_free(self, name: str) -> None:
        _check_name(name)
        if name in self._out.places:
            raise FusedslError(self._out.builder.duplicate_name(name))
        if name in self._out.symbols:
            other = self._out.builder.fresh(name)
            raise FusedslError(problems.name_of_dimension(name, other))

    def _raise(self) -> None:
        bag = self._out.bag
        if bag:
            self._out.bag = Diagnostics()
            bag.raise_if_any()


def _with_final_names(made: Assembler, outputs: dict[str, str]) -> Assembler:
    """A copy with final names: outputs as asked for, then fresh ones in order."""
    fresh = [r.name for n in made.builder.nodes for r in n.results if r.name.startswith(_FRESH)]
    names = dict(outputs)
    taken = {*made.params, *made.symbols, *outputs.values()}
    taken |= {r.name for n in made.builder.nodes for r in n.results if r.name not in names}
    out = replace(made, bag=Diagnostics(), reserved=frozenset(taken), places=dict(made.params))
    for name in fresh:
        if name not in names:
            stem = name.removeprefix(_FRESH).rpartition("_")[0]
            names[name] = out.builder.fresh(stem)
            out.builder.reserved.add(names[name])
    out.builder.params = list(made.builder.params)
    for node in made.builder.nodes:
        out.builder.nodes.append(_renamed(node, names))
    out.builder.types = {names.get(n, n): t for n, t in made.builder.types.items()}
    out.used = {op for node in out.builder.nodes for op in node.inputs}
    return out


def _renamed(node: Node, names: dict[str, str]) -> Node:
    operands = tuple(names.get(op, op) if isinstance(op, str) else op for op in node.operands)
    results = tuple(Result(names.get(r.name, r.name), r.type) for r in node.results)
    renamed = Node(node.block, operands, node.attrs, results)
    return replace(renamed, origin=print_node(renamed))


def _attr(value: Any) -> object:
    """Attribute values as the spec reads them; a torch dtype by its name here."""
    if isinstance(value, torch.dtype):
        known = dtype_from_torch(value)
        return known.value if known else str(value)
    if isinstance(value, DType):
        return value.value
    if isinstance(value, Value):
        return repr(value)
    return value


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise FusedslError(problems.bad_name(str(name)))
    if not NAME.fullmatch(name) or len(name) > problems.MAX_NAME:
        raise FusedslError(problems.bad_name(name))
