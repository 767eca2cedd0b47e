"""The table of blocks on the language card: shapes as inferred, laws as declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fusedsl.ir import (
    Attr,
    Block,
    BlockLibrary,
    Contracts,
    Dim,
    DType,
    Elementwise,
    HomogeneousIn,
    LinearIn,
    OperandType,
    Rowwise,
    StatisticOf,
    TensorType,
    TypeProblem,
)

_M, _K, _N = Dim(1, "M"), Dim(1, "K"), Dim(1, "N")


def table(library: BlockLibrary) -> Iterator[str]:
    """The blocks under their shape rules: those that take `x` alone share a line."""
    groups: dict[str, list[Block]] = {}
    for block in (b for b in library.public() if b.on_card):
        groups.setdefault(shape_rule(block), []).append(block)
    for rule, blocks in sorted(groups.items(), key=lambda g: (len(g[1]) == 1, -len(g[1]))):
        plain = [b for b in blocks if b.infix or (len(b.operands) == 1 and not b.attrs)]
        if len(blocks) == 1:
            yield f"{_line(blocks[0])}: {rule}"
            continue
        yield f"{rule}: {', '.join(map(_short_line, plain))}".rstrip()
        yield from (_line(block) for block in blocks if block not in plain)


def _short_line(block: Block) -> str:
    operands = ", ".join(op.name for op in block.operands)
    spelt = f"{operands[0]}{block.infix}{operands[-1]}" if block.infix else f"{block.prefix}x"
    shown = f"{block.name} {spelt}" if block.infix or block.prefix else block.name
    return shown + _tag(block)


def _line(block: Block) -> str:
    return f"{_signature(block)} = {_formula(block)}{_tag(block)}"


def _formula(block: Block) -> str:
    """The block's line without a remark behind a comma; that of a case is none."""
    formula = block.doc.partition(", ")[0]
    return block.doc if " where " in formula else formula


def _tag(block: Block) -> str:
    laws = laws_of(block)
    return f" [{', '.join(laws)}]" if laws else ""


def _signature(block: Block) -> str:
    operands = [f"{op.name}?" if op.optional else op.name for op in block.operands]
    return f"{block.name}({', '.join([*operands, *map(_attr, block.attrs)])})"


def _attr(attr: Attr) -> str:
    """`cap!` where it must be given, `eps=1e-05`, `cast=llama|gemma`: the default first."""
    given = [] if attr.required else [attr.default]
    named = [c for c in attr.choices if isinstance(c, str) or attr.required]
    values = [*given, *(c for c in named if c not in given)]
    shown = "|".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in values)
    return attr.name + "!" * attr.required + f"={shown}" * bool(shown)


def laws_of(block: Block) -> list[str]:
    """What rewriting may rely on, abbreviated: `lin` linear, `hom2` homogeneous of degree 2.

    `lin` is homogeneous too. A block without a mark stops a norm's scale.
    """
    linear = [law.operand for law in block.laws_of(LinearIn)]
    if linear:
        return [f"lin {' '.join(linear)}" if len(block.operands) > 1 else "lin"]
    return [f"hom{law.degree}" for law in block.laws_of(HomogeneousIn)]


# Shapes


def shape_rule(block: Block) -> str:
    """How the shape of the result follows from the operands, in words."""
    contracts = block.laws_of(Contracts)
    if contracts:
        law = contracts[0]
        weight = "[N,K]" if law.k_axis == 1 else "[K,N]"
        return f"[M,K], {weight}, [N] -> [M,N]"
    if any(op.index for op in block.operands):
        return "[M,N], i64[M] -> [M,1]"
    if block.has_law(StatisticOf):
        return "[M,N] -> [M,1]"
    tensors = [op for op in block.operands if not op.optional]
    if block.has_law(Elementwise):
        return "Broadcast, numbers too" if len(tensors) > 1 else "Shape of x"
    if not block.has_law(Rowwise):
        raise ValueError(f"the card has no shape rule for block {block.name!r}")
    return _probed(block)


def _probed(block: Block) -> str:
    """The shape that the block infers for a tile of an even number of columns."""
    wide = TensorType(DType.BF16, (_M, _N.doubled()))
    result = _infer(
        block, {op.name: None for op in block.operands} | {block.operands[0].name: wide}
    )
    if result == (_M, _N.doubled()):
        vectors = [op.name for op in block.operands[1:]]
        return f"{', '.join(vectors)} [N]" if vectors else "Shape of x"
    if result == (_M, Dim(1)):
        return "[M,N] -> [M,1]"
    if result == (_M, _N):
        return "[M,2N] -> [M,N]" + (", or gate, up [M,N]" if len(block.operands) > 1 else "")
    raise ValueError(f"the card has no shape rule for block {block.name!r}")


def _infer(block: Block, operands: Mapping[str, OperandType]) -> tuple[Dim, ...] | None:
    attrs = {
        name: attr.choices[0] if attr.required else attr.default
        for name, attr in block.all_attrs.items()
    }
    try:
        found = block.infer(operands, attrs)  # type: ignore[arg-type]
    except TypeProblem:
        return None
    return found.shape if isinstance(found, TensorType) else None
