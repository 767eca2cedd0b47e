"""The block spec: everything the compiler knows about one operation.

Verification, fusion, cost and code generation ask the spec and never switch on a block's name;
adding a block is adding one file that makes one `Block`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from fusedsl.diagnostics import did_you_mean
from fusedsl.ir.laws import Law
from fusedsl.ir.types import NAME, Dim, TensorType, is_fp32_range

if TYPE_CHECKING:
    from fusedsl.ir.builder import GraphBuilder

AttrValue = float | int | bool | str | Dim
OperandType = TensorType | float | None
Infer = Callable[[Mapping[str, OperandType], Mapping[str, AttrValue]], Any]
LawT = TypeVar("LawT", bound=Law)


class Kind(Enum):
    """Which loop a block lives in."""

    GEMM = "gemm"  # a projection: anchors a kernel
    ROW_REDUCTION = "row_reduction"  # one value per row
    POINTWISE = "pointwise"  # elementwise with broadcasting
    EPILOGUE = "epilogue"  # only inside a GEMM epilogue, or finishing what one left
    PACKING = "packing"  # weights only, evaluated once at bind time; no Triton
    COMPOSITE = "composite"  # expands into other blocks


class TypeProblem(Exception):
    """Raised by `Block.infer`: one mistake in the operand types, before it has a place."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        operand: str | None = None,
        expected: str | None = None,
        got: str | None = None,
        fix: str | None = None,
    ):
        super().__init__(message)
        self.code = code
        self.message = message
        self.operand = operand
        self.expected = expected
        self.got = got
        self.fix = fix


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


@dataclass(frozen=True)
class Attr:
    """One attribute: `kind` is float, int, bool, str or dim; `minimum` is exclusive; `of_index`
    says that it is a value of the index operand which the block treats on its own."""

    name: str
    kind: str
    default: AttrValue | _Required = REQUIRED
    choices: tuple[AttrValue, ...] = ()
    minimum: float | None = None
    of_index: bool = False
    doc: str = ""

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return isinstance(self.default, _Required)

    def expectation(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return "one of " + ", ".join(_show(c) for c in self.choices)
        text = {
            "float": "a number",
            "int": "an integer",
            "bool": "true or false",
            "str": "a name",
            "dim": "a dimension",
        }[self.kind]
        return f"{text} > {self.minimum:g}" if self.minimum is not None else text

    def __post_init__(self) -> None:
        if self.required:
            return
        default = _COERCE[self.kind](self.default)
        if default is None:
            raise ValueError(f"attribute {self.name!r}: {self.default!r} is not a {self.kind}")
        object.__setattr__(self, "default", default)

    def is_out_of_range(self, value: object) -> bool:
        """Whether a refused value is of the right kind, only too large or too small."""
        if isinstance(value, bool):
            return False
        if self.kind == "dim" and isinstance(value, int | str):
            try:
                return not Dim.parse(value).in_range
            except ValueError:
                return False
        if self.kind == "int" and isinstance(value, int):
            return abs(value) >= 1 << 63
        if isinstance(value, int) and self.kind == "float":
            return _float(value) is None
        return isinstance(value, float) and not is_fp32_range(value)

    def coerce(self, value: object) -> AttrValue | None:
        """The value in this attribute's kind, or None if it is not allowed."""
        result = _COERCE[self.kind](value)
        if result is None:
            return None
        if self.choices and result not in self.choices:
            return None
        if self.minimum is not None and not float(result) > self.minimum:  # type: ignore[arg-type]
            return None
        return result


def _show(value: AttrValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if is_fp32_range(number) else None


def _int(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if abs(value) < 1 << 63 else None


def _bool(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value) if isinstance(value, str) else None


def _str(value: object) -> str | None:
    return value if isinstance(value, str) and NAME.fullmatch(value) else None


def _dim(value: object) -> Dim | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, Dim | int | str) or isinstance(value, bool):
        return None
    try:
        dim = value if isinstance(value, Dim) else Dim.parse(value)
    except ValueError:
        return None
    return dim if dim.in_range else None


_COERCE: dict[str, Callable[[object], Any]] = {
    "float": _float,
    "int": _int,
    "bool": _bool,
    "str": _str,
    "dim": _dim,
}


@dataclass(frozen=True)
class OperandSpec:
    """One operand: `optional` may be left out, `scalar` may be a number literal, `index` is a
    vector of integers, one column of another operand for each row."""

    name: str
    optional: bool = False
    scalar: bool = False
    index: bool = False
    doc: str = ""


@dataclass(frozen=True)
class Reduction:
    """How a row reduction is computed in pieces: the four Triton functions and their references.

    The state of a piece is one or more fp32 columns; the number of elements it covers is passed
    beside it. All functions are `@triton.jit` on fp32 registers; a function that gives several
    values returns a tuple.

    Fields:
        identity: state of an empty piece.
        chunk: `(x, valid, count) -> state`; x is [rows, columns], zero where `valid` (broadcast
            [1, columns]) is false; `count` is the number of valid columns.
        merge: `(count_a, *state_a, count_b, *state_b) -> state`.
        merge_all: `(*states, counts) -> state`; states are [rows, pieces], `counts` is
            [1, pieces] in fp32, 0 for padding.
        finish: `(*state, WIDTH: constexpr) -> results`.
        lift: `x -> state` of single elements, each of x's shape; where a row is taken in several
            pieces, the states of its columns are merged lane by lane, and at last by `merge_all`.
        about: for a statistic about the row's mean, functions that take it in two sweeps over a row
            in registers: `(sums of lanes, count) -> centre`, `(x, valid, centre) -> lanes` that
            are summed over the pieces, `(centre, *lanes, count) -> state`. The centre may be the
            mean of some of the columns; it comes as [rows, 1].
        about_exact: the last of these where the centre is the mean of the whole row, right to its
            own rounding.
        chunk_reference: `x -> tuple of [M, 1]`, in torch.
        merge_reference: `(*states [M, pieces], counts [pieces], width) -> results [M, 1]`, in
            torch, finish included.
        owner: of a reduction by index, `(index, start, stop, WIDTH: constexpr) -> bool [rows]`:
            whether the piece of columns [start, stop) is the one of its row that gives the result,
            which needs no merging then. Its `chunk` takes `(x, valid, count, cols, index)`, its
            `lift` `(x, cols, index)` and its `finish` `(*state, index, WIDTH)`, with the columns'
            numbers [1, columns] and the index [rows, 1] as integers.
        adds: of a state of one column: states of pieces are merged by adding them, whatever their
            counts, and that of a zero is zero, so that zeros may stand past the end of a row.

    A function with a parameter `FAST` is told whether approximations are allowed.
    """

    identity: tuple[float, ...]
    chunk: Any
    merge: Any
    merge_all: Any
    finish: Any
    lift: Any
    chunk_reference: Callable[..., Any]
    merge_reference: Callable[..., Any]
    about: tuple[Any, ...] = ()
    about_exact: Any = None
    owner: Any = None
    adds: bool = False


@dataclass(frozen=True, eq=False)
class Block:
    """An expert-written block.

    Fields:
        name: what programs call it.
        kind: which loop it lives in.
        operands: names and forms of the operands, in positional order.
        infer: `(operand types, attrs) -> TensorType | tuple[TensorType, ...]`; literals come as
            floats, omitted operands as None; raises `TypeProblem`.
        reference: `(*operands, **attrs) -> Tensor | tuple` in torch, in the dtype it is given:
            run in fp64 it is the oracle. Omitted operands come as None.
        eager: what a user would write in plain torch in the declared dtypes, roundings included;
            `reference` where it is None.
        attrs: attributes in printing order. Every single-result block also takes `out_dtype`.
        laws: what rewrite rules may rely on; nothing by default.
        expand: for composites: `(builder, node operands by name, attrs, name) -> result name`,
            where `name` is the name the last node must carry.
        triton: a `@triton.jit` function on register tiles in fp32: operands first, then attributes
            by upper-case name, then `FAST` if it has such a parameter. None for anchors and
            reductions.
        reduction: how to compute it in pieces, for row reductions and their partial and merge
            forms.
        results: names of several results, in order; empty for one.
        infix, prefix: operator spelling in the language, if any.
        vjp: `(builder, node operands by name, attrs, result names, cotangent names) -> dict`
            from operand name to the name of its cotangent; None where no gradient is defined.
        internal: made by rules only; programs may still print and parse it.
        on_card: whether the one-page language card lists it; the page is kept short.
        flops: fp32 operations per element, for the cost model.
        doc: one line for people and language models.
    """

    name: str
    kind: Kind
    operands: tuple[OperandSpec, ...]
    infer: Infer
    reference: Callable[..., Any]
    eager: Callable[..., Any] | None = None
    attrs: tuple[Attr, ...] = ()
    laws: tuple[Law, ...] = ()
    expand: Callable[[GraphBuilder, dict[str, Any], dict[str, Any], str], str] | None = None
    triton: Any = None
    reduction: Reduction | None = None
    results: tuple[str, ...] = ()
    infix: str | None = None
    prefix: str | None = None
    vjp: Callable[..., dict[str, str]] | None = None
    internal: bool = False
    on_card: bool = True
    flops: int = 1
    doc: str = ""
    _by_name: dict[str, Attr] = field(init=False, repr=False, default_factory=dict[str, Attr])

    def __post_init__(self) -> None:
        for attr in self.attrs:
            self._by_name[attr.name] = attr
        if not self.results:
            self._by_name["out_dtype"] = OUT_DTYPE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def all_attrs(self) -> Mapping[str, Attr]:
        """Attributes by name, `out_dtype` included."""
        return self._by_name

    @property
    def min_operands(self) -> int:
        """Operands a call must give."""
        return sum(not op.optional for op in self.operands)

    def operand_index(self, name: str) -> int:
        """Position of an operand. Raises KeyError for an unknown one."""
        for index, op in enumerate(self.operands):
            if op.name == name:
                return index
        raise KeyError(name)

    def laws_of(self, kind: type[LawT]) -> tuple[LawT, ...]:
        """The declared laws of one type."""
        return tuple(law for law in self.laws if isinstance(law, kind))

    def has_law(self, kind: type[Law]) -> bool:
        """Whether a law of this type is declared."""
        return any(isinstance(law, kind) for law in self.laws)

    def signature(self) -> str:
        """`softcap(x, cap)`: for messages and documentation."""
        parts = [f"[{op.name}]" if op.optional else op.name for op in self.operands]
        for attr in self.attrs:
            parts.append(attr.name if attr.required else f"{attr.name}={_show_default(attr)}")
        return f"{self.name}({', '.join(parts)})"


def _show_default(attr: Attr) -> str:
    return _show(attr.default)  # type: ignore[arg-type]


#: The dtype a result is stored in where it is stored; "auto" follows torch's promotion.
OUT_DTYPE = Attr(
    "out_dtype",
    "str",
    default="auto",
    choices=("auto", "bf16", "fp16", "fp32"),
    doc="storage dtype of the result",
)


class BlockLibrary(Mapping[str, Block]):
    """The blocks by name, with the operators of the language."""

    def __init__(self, blocks: tuple[Block, ...]):
        self._blocks: dict[str, Block] = {}
        self.infix: dict[str, Block] = {}
        self.prefix: dict[str, Block] = {}
        for block in blocks:
            if block.name in self._blocks:
                raise ValueError(f"two blocks are called {block.name!r}")
            self._blocks[block.name] = block
            if block.infix:
                self.infix[block.infix] = block
            if block.prefix:
                self.prefix[block.prefix] = block

    def __getitem__(self, name: str) -> Block:
        return self._blocks[name]

    def __iter__(self):
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def public(self) -> tuple[Block, ...]:
        """Blocks that programs are meant to call, by name."""
        return tuple(b for _, b in sorted(self._blocks.items()) if not b.internal)

    def suggestion(self, name: str) -> str:
        """A did-you-mean line for an unknown block."""
        return did_you_mean(name, (b.name for b in self.public()), "blocks")
