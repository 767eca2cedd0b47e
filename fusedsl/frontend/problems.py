"""The diagnostics of the frontends, one function each; the assembler gives them their place."""

from __future__ import annotations

from collections.abc import Collection

from fusedsl.diagnostics import Diagnostic, closest, did_you_mean
from fusedsl.ir import MAX_DIM, Dim, DType, TensorType

#: Longest name, in characters.
MAX_NAME = 128

#: What other systems call the dtypes.
OTHER_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "int32": "i32",
    "int": "i32",
    "int64": "i64",
    "long": "i64",
}


def shown(text: str) -> str:
    """A piece of a program fit for a message: short, and printable."""
    clean = "".join(c if c.isprintable() else "?" for c in text[:61])
    return clean if len(text) <= 60 else clean[:57] + "..."


def bad_name(name: str) -> Diagnostic:
    """A name that the language does not have."""
    long = len(name) > MAX_NAME
    return Diagnostic(
        "F0101",
        "a name is too long" if long else f"'{shown(name)}' is not a name",
        expected=f"a letter or '_', then letters, digits and '_'; at most {MAX_NAME} characters",
        got=f"{len(name)} characters" if long else f"'{shown(name)}'",
        fix="choose a shorter name" if long else "use letters, digits and '_' only",
    )


def unknown_dtype(text: str) -> Diagnostic:
    """A dtype that the language does not have."""
    names = [d.value for d in DType]
    meant = OTHER_DTYPES.get(text.lower()) or closest(text, names)
    return Diagnostic(
        "F0206",
        f"'{shown(text)}' is not a dtype of the language",
        expected=", ".join(names),
        got=shown(text),
        fix=f"did you mean '{meant}'?" if meant else f"use one of {', '.join(names)}",
        suggestion=meant,
    )


def dim_out_of_range(dim: Dim) -> Diagnostic:
    """A dimension of 0, or one that no tensor has."""
    what = "an integer" if dim.symbol is None else "a factor"
    low = dim.factor < 1
    return Diagnostic(
        "F0105",
        "a dimension is out of range",
        expected=f"{what} from 1 to {MAX_DIM}",
        got=str(dim) if dim.factor <= MAX_DIM else f"more than {MAX_DIM}",
        fix="write a size of at least 1, or a name for a size known at the call"
        if low
        else f"write at most {MAX_DIM}",
    )


def bad_rank(rank: int) -> Diagnostic:
    """A tensor with too many dimensions, or none."""
    return Diagnostic(
        "F0403",
        "a tensor of the language has one or two dimensions",
        expected="[columns] or [rows, columns]",
        got=f"{rank} dimensions",
        fix="flatten the leading dimensions into one" if rank else "write [1]",
    )


def bad_index(type: TensorType, weight: bool) -> Diagnostic:
    """A parameter of integers that is no vector of one index per row, or a weight."""
    rows = type.shape[0]
    return Diagnostic(
        "F0403",
        "indices are one integer per row, and no weight",
        expected=f"{type.dtype}[{rows}]",
        got=f"{'weight ' if weight else ''}{type}",
        fix=f"declare it as {type.dtype}[{rows}], and pass tensor.view(-1)",
    )


def used_too_early(name: str, in_itself: bool) -> Diagnostic:
    """A name used above its assignment, or inside it."""
    fix = f"move the statement that assigns '{name}' above this one"
    if in_itself:
        fix = f"give the result another name than '{name}': a name is assigned once"
    return Diagnostic(
        "F0104",
        f"'{name}' is used to compute itself"
        if in_itself
        else f"'{name}' is used before it is assigned",
        expected="statements in order: each name assigned above its uses",
        got=f"the assignment of '{name}' {'here' if in_itself else 'below this use'}",
        fix=fix,
    )


def unknown_name(name: str, known: Collection[str]) -> Diagnostic:
    """A name that nothing defines."""
    return Diagnostic(
        "F0202",
        f"'{name}' is not defined here",
        expected="a parameter or a name assigned above",
        got=name,
        fix=did_you_mean(name, known, "names"),
        suggestion=closest(name, known),
    )


def name_of_dimension(name: str, other: str) -> Diagnostic:
    """A value that is called like a dimension; `other` is a free name."""
    return Diagnostic(
        "F0203",
        f"'{name}' names both a value and a dimension",
        expected="names of values that no dimension has",
        got=f"'{name}' in a shape",
        fix=f"use another name, for example '{other}'",
        suggestion=other,
    )


def not_a_weight(block: str, name: str) -> Diagnostic:
    """A block of bind time that reads what changes on every call."""
    return Diagnostic(
        "F0407",
        f"'{block}' works on weights only",
        expected="a parameter with the qualifier 'weight'",
        got=f"'{name}', which changes on every call",
        fix=f"declare '{name}: weight ...', or do without '{block}'",
    )


def unbound_dimension(symbol: str, bound: Collection[str]) -> Diagnostic:
    """A dimension that no parameter binds."""
    near = closest(symbol, bound)
    fix = f"did you mean '{near}'?" if near else "write an integer"
    if bound and not near:
        fix += f", or one of {', '.join(sorted(bound)[:40])}"
    return Diagnostic(
        "F0404",
        f"the dimension '{symbol}' is not bound by any parameter",
        expected="a name in the shape of a parameter",
        got=symbol,
        fix=fix,
        suggestion=near,
    )


def unassigned(name: str, is_param: bool) -> Diagnostic:
    """An output that no statement assigns."""
    fix = f"assign '{name}', or take it out of the outputs"
    if is_param:
        fix = f"compute something from '{name}', or take it out of the outputs"
    return Diagnostic(
        "F0204",
        f"output '{name}' is never assigned",
        expected=f"a statement that assigns '{name}'",
        got=f"the parameter '{name}'" if is_param else "none",
        fix=fix,
    )


def declared_otherwise(name: str, declared: TensorType, computed: TensorType) -> Diagnostic:
    """An output, or a node with a written type, whose computed type is another."""
    return Diagnostic(
        "F0405",
        f"'{name}' is declared {declared} and computed as {computed}",
        expected=str(computed),
        got=str(declared),
        fix=f"declare '{name}: {computed}'",
        suggestion=str(computed),
    )


def unused_value(name: str) -> Diagnostic:
    """A statement whose results nobody reads."""
    return Diagnostic(
        "F0205",
        f"'{name}' is never used",
        expected="every value read by a statement or given back",
        got=f"no reader of '{name}'",
        fix=f"take the statement out, or add '{name}' to the outputs",
    )


def unused_param(name: str) -> Diagnostic:
    """A parameter that nobody reads."""
    return Diagnostic(
        "F0205",
        f"parameter '{name}' is never used",
        expected="every parameter read by a statement",
        got=f"no reader of '{name}'",
        fix=f"take '{name}' out of the signature, or use it",
    )


def given_twice(key: str) -> Diagnostic:
    """An attribute written twice in one call."""
    return Diagnostic(
        "F0303",
        f"'{key}' is given twice",
        expected="each attribute once",
        got=f"a second {key}=",
        fix=f"leave one {key}= out",
    )


def no_operator(operator: str, known: Collection[str]) -> Diagnostic:
    """An operator that no block of the library has."""
    return Diagnostic(
        "F0201",
        f"no block of the library is written '{operator}' here",
        expected=" ".join(sorted(known)) or "no operators",
        got=operator,
        fix="call a block by its name",
    )


def another_kernel(name: str, theirs: str, ours: str) -> Diagnostic:
    """A value used outside the kernel it belongs to."""
    return Diagnostic(
        "F0202",
        f"'{name}' belongs to another kernel",
        expected=f"a value of kernel '{ours}'",
        got=f"a value of kernel '{theirs}'",
        fix=f"declare it with input(...) or weight(...) in '{ours}', or call both on one kernel",
    )


def not_an_operand(value: object, expected: str) -> Diagnostic:
    """A Python value that is neither a tensor of the kernel nor a number."""
    got = type(value).__name__
    fix = "declare tensors with input(...) or weight(...)"
    if isinstance(value, str):
        fix = "pass the Value, not its name: attributes are given by keyword"
    elif isinstance(value, tuple):
        fix = "unpack the results first: a, b = ..."
    return Diagnostic("F0301", "not an operand", expected=expected, got=got, fix=fix)


def bad_dim(value: object) -> Diagnostic:
    """A Python value that is no dimension."""
    expected = "an integer, a symbol 'M' or a multiple '2*M'"
    return Diagnostic(
        "F0101",
        "not a dimension",
        expected=expected,
        got=shown(repr(value)),
        fix=f"pass {expected}",
    )


def output_twice(name: str, first: str) -> Diagnostic:
    """One value given back under two names."""
    return Diagnostic(
        "F0203",
        f"the value '{first}' is an output already",
        expected="each value given back once",
        got=f"a second name, '{name}'",
        fix=f"leave '{name}' out, or compute it by a call of its own",
    )


def nameless_output() -> Diagnostic:
    """An output that nobody named."""
    return Diagnostic(
        "F0204",
        "an output needs a name",
        expected="output(y=value), or a value made with name=",
        got="a value without a name",
        fix="write output(y=value)",
    )


def no_outputs() -> Diagnostic:
    """A kernel that gives nothing back."""
    return Diagnostic(
        "F0204",
        "the kernel has no outputs",
        expected="at least one output",
        got="none",
        fix="call output(y=value) first",
    )
