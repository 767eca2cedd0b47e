"""JSON to Graph and back, losslessly. Mistakes come with JSON pointers, all in one go."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn, cast

from pydantic import ValidationError

from fusedsl.blocks import library as standard_library
from fusedsl.diagnostics import LIMIT, Diagnostic, Diagnostics, FusedslError, Place, Span
from fusedsl.frontend import problems
from fusedsl.frontend.assemble import Assembler, Output, Target, Value
from fusedsl.frontend.json_fixes import JsonFacts, with_json_fixes
from fusedsl.frontend.json_model import GraphModel, NodeModel, ParamModel, schema
from fusedsl.frontend.json_order import evaluation_order
from fusedsl.ir import AttrValue, BlockLibrary, Dim, Graph, Node, TensorType, print_node

VERSION = 1


def to_json(graph: Graph) -> dict[str, Any]:
    """The JSON form: plain dicts, lists, strings, numbers; `from_json` gives the same graph."""
    return {
        "fusedsl": VERSION,
        "name": graph.name,
        "params": [
            {
                "name": p.name,
                "dtype": p.type.dtype.value,
                "shape": [_dim_json(d) for d in p.type.shape],
                "weight": p.weight,
            }
            for p in graph.params
        ],
        "nodes": [_node_json(node) for node in graph.nodes],
        "outputs": list(graph.outputs),
    }


def _node_json(node: Node) -> dict[str, Any]:
    specs = node.block.all_attrs
    return {
        "op": node.block.name,
        "operands": list(node.operands),
        "attrs": {
            name: _attr_json(value)
            for name, value in node.attrs
            if specs[name].required or value != specs[name].default
        },
        "results": [r.name for r in node.results],
        "types": [str(r.type) for r in node.results],
    }


def _dim_json(dim: Dim) -> int | str:
    return dim.factor if dim.symbol is None else str(dim)


def _attr_json(value: AttrValue) -> AttrValue:
    return _dim_json(value) if isinstance(value, Dim) else value


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the form that `from_json` reads."""
    return schema()


def from_json(
    data: Mapping[str, Any] | str, *, library: BlockLibrary | None = None, file: str | None = None
) -> Graph:
    """Read a graph from JSON text, or from the value of such a text.

    Raises FusedslError with every independent mistake, placed by JSON pointer (malformed text by
    line and column): F0103, F0104, F0105, F0201 to F0206, F0301 to F0304, F0403 to F0405, F0407
    and the codes of the blocks' own checks.
    """
    bag = Diagnostics(file=file)
    source = data if isinstance(data, str) else None
    value = _decode(data, bag) if isinstance(data, str) else data
    bag.raise_if_any(source)
    blocks = library or standard_library()
    reader: _Reader | None = None
    try:
        reader = _Reader(bag, _model(value, file), blocks)
        return reader.run()
    except FusedslError as error:
        facts = JsonFacts(
            value,
            reader.model if reader else None,
            reader.out if reader else None,
            error.diagnostics,
            lambda other: _mistakes(other, blocks),
        )
        raise with_json_fixes(error, facts) from None


def _mistakes(data: object, library: BlockLibrary) -> tuple[Diagnostic, ...]:
    """The diagnostics of a value, without fixes."""
    try:
        _Reader(Diagnostics(), _model(data, None), library).run()
    except FusedslError as error:
        return error.diagnostics
    return ()


def _model(value: object, file: str | None) -> GraphModel:
    """The value in the shape of a graph. Raises FusedslError (F0103)."""
    try:
        return GraphModel.model_validate(value)
    except ValidationError as error:
        found = list(_shape_problems(error, value))[:LIMIT]
        raise FusedslError(replace(item, file=file) for item in found) from None


def _decode(text: str, bag: Diagnostics) -> Any:
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        repeated.extend(key for key in set(keys) if keys.count(key) > 1)
        return dict(items)

    try:
        value = json.loads(
            text.removeprefix("\ufeff"), object_pairs_hook=pairs, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        span = Span(error.lineno, error.colno, error.lineno, error.colno + 1)
        bag.add(_malformed(error.msg).at(Place(span)))
        return None
    except RecursionError:
        bag.add(_malformed("brackets nested too deeply"))
        return None
    except ValueError:  # NaN, Infinity, or an integer of thousands of digits
        bag.add(_malformed("a number that no double holds"))
        return None
    for key in sorted(repeated):
        bag.add(_malformed(f"the key '{problems.shown(key)}' appears twice in one object"))
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _malformed(what: str) -> Diagnostic:
    return Diagnostic(
        "F0103",
        f"not the JSON of a graph: {what[0].lower()}{what[1:]}",
        expected="a JSON object",
        got="text that is not",
        fix="write it with a JSON library",
    )


def _shape_problems(error: ValidationError, data: object) -> Iterator[Diagnostic]:
    """One problem a place: the branches of a union are one mistake."""
    seen: set[str] = set()
    for item in error.errors(include_url=False, include_input=False):
        pointer, value = _resolve(data, item["loc"])
        key = str(item["loc"][-1]) if item["type"] in ("missing", "extra_forbidden") else ""
        if (pointer + key) in seen:
            continue
        seen.add(pointer + key)
        yield _shape_problem(item["type"], key, pointer, value, item["msg"])


def _shape_problem(kind: str, key: str, pointer: str, value: object, text: str) -> Diagnostic:
    expected = _expected(pointer) or text[:1].lower() + text[1:]
    got, fix = _described(value), f"write {expected}"
    message = f"'{pointer}' is not {expected}" if pointer else "not the JSON of a graph"
    if kind == "missing":
        message, expected = f"the key '{key}' is missing", f"the key '{key}'"
        got, fix = "no such key", f"add '{key}'"
    elif kind == "extra_forbidden":
        message, expected = f"the key '{problems.shown(key)}' is not known here", "known keys only"
        got, fix = f"'{problems.shown(key)}'", "take it out; json_schema() lists the keys"
    return Diagnostic("F0103", message, expected=expected, got=got, fix=fix, pointer=pointer)


def _expected(pointer: str) -> str | None:
    """What belongs there, in words."""
    *path, last = pointer.split("/")
    if "attrs" in path:
        return "a number, true, false or a name"
    if last.isdecimal():
        return _ITEMS.get(path[-1])
    return f"a list, each item {_ITEMS[last]}" if last in _ITEMS else _EXPECTED.get(last)


#: What each key holds, and what each item of a list.
_EXPECTED = {
    "": "a JSON object with 'fusedsl', 'name', 'params', 'nodes' and 'outputs'",
    "fusedsl": "the version of the form, 1",
    "name": "a name (letters, digits, '_')",
    "dtype": "a dtype: 'bf16', 'fp16' or 'fp32', or 'i32' or 'i64' for indices",
    "weight": "true or false",
    "op": "the name of a block",
    "attrs": "an object of attributes by name",
}
_ITEMS = {
    "params": "an object with 'name', 'dtype', 'shape' and 'weight'",
    "shape": "an integer, a symbol 'M' or a multiple '2*M'",
    "nodes": "an object with 'op', 'operands', 'attrs' and 'results'",
    "operands": "a name, a number or null",
    "results": "a name (letters, digits, '_')",
    "types": "a type as 'bf16[M, 4096]'",
    "outputs": "a name (letters, digits, '_')",
}


def _resolve(data: object, loc: tuple[int | str, ...]) -> tuple[str, object]:
    """The pointer to the part that exists, and the part: tags of unions lead nowhere."""
    pointer, value = "", data
    for step in loc:
        if not isinstance(value, dict | list):
            break
        try:
            value = cast(Any, value)[step]
        except (KeyError, IndexError, TypeError):
            break
        pointer += "/" + _escaped(str(step))
    return pointer, value


def _described(value: object) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return problems.shown(json.dumps(value))
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else problems.shown(type(value).__name__)


class _Reader:
    """A graph of the right shape, checked for what it says."""

    def __init__(self, bag: Diagnostics, model: GraphModel, library: BlockLibrary):
        self.bag = bag
        self.model = model
        names = {name for node in model.nodes for name in node.results}
        self.out = Assembler(library, bag, model.name, assigned=frozenset(names))

    def run(self) -> Graph:
        for index, param in enumerate(self.model.params):
            self._param(param, f"/params/{index}")
        self.out.check_symbols()
        order = evaluation_order(self.model, self.bag)
        self.out.excused = order.cyclic
        for index in order.indices:
            if self.bag.full:
                break
            self._node(self.model.nodes[index], f"/nodes/{index}")
        outputs = [
            Output(name, Place(pointer=f"/outputs/{index}"))
            for index, name in enumerate(self.model.outputs)
        ]
        return self.out.finish(outputs)

    def _param(self, param: ParamModel, pointer: str) -> None:
        dtype = self.out.dtype(param.dtype, Place(pointer=f"{pointer}/dtype"))
        dims = [self._dim(d, f"{pointer}/shape/{i}") for i, d in enumerate(param.shape)]
        type = self.out.tensor_type(dtype, dims, Place(pointer=f"{pointer}/shape"))
        self.out.param(param.name, type, param.weight, Place(pointer=f"{pointer}/name"))
        if type is None:
            self.out.bind(d.symbol for d in dims if d and d.symbol)

    def _dim(self, value: int | str, pointer: str) -> Dim | None:
        try:
            dim = Dim.parse(value)
        except ValueError:
            self.bag.add(_wrong(pointer, _ITEMS["shape"], value))
            return None
        return self.out.dim(dim, Place(pointer=pointer))

    def _node(self, node: NodeModel, pointer: str) -> None:
        block = self.out.block(node.op, Place(pointer=f"{pointer}/op"))
        places = {"": Place(pointer=pointer)}
        operands: list[Value] = []
        for index, operand in enumerate(node.operands):
            place = Place(pointer=f"{pointer}/operands/{index}")
            known = block is not None and index < len(block.operands)
            places.setdefault(block.operands[index].name if block and known else "*", place)
            operands.append(self._operand(operand, place))
        attrs: dict[str, Any] = {}
        for key, value in node.attrs.items():
            place = Place(pointer=f"{pointer}/attrs/{_escaped(key)}")
            if block is not None and any(op.name == key for op in block.operands):
                self.bag.add(_operand_among_attrs(key).at(place))
                continue
            attrs[key], places[key] = value, place
        targets = [
            Target(name, Place(pointer=f"{pointer}/results/{index}"))
            for index, name in enumerate(node.results)
        ]
        written = self._types(node, pointer)
        if self.out.apply(block, operands, attrs, places, targets) is not None:
            self._added(written, pointer)

    def _operand(self, operand: str | float | None, place: Place) -> Value:
        if isinstance(operand, str):
            return self.out.read(operand, place)
        try:
            return None if operand is None else float(operand)
        except OverflowError:
            return float("inf")

    def _types(self, node: NodeModel, pointer: str) -> list[TensorType | None]:
        """The written types; None for one that is no type."""
        out: list[TensorType | None] = []
        for index, text in enumerate(node.types or ()):
            try:
                out.append(TensorType.parse(text))
            except ValueError:
                self.bag.add(_wrong(f"{pointer}/types/{index}", _ITEMS["types"], text))
                out.append(None)
        if node.types is not None and len(out) != len(node.results):
            expected = f"a list of {len(node.results)}, a type for each result"
            self.bag.add(_wrong(f"{pointer}/types", expected, node.types))
        return out

    def _added(self, written: list[TensorType | None], pointer: str) -> None:
        """Stamp the node just added with its origin, and hold its types against the written."""
        nodes = self.out.builder.nodes
        nodes[-1] = node = replace(nodes[-1], origin=print_node(nodes[-1]))
        for index, (type, result) in enumerate(zip(written, node.results, strict=False)):
            if type is not None and type != result.type:
                problem = problems.declared_otherwise(result.name, type, result.type)
                self.bag.add(problem.at(Place(pointer=f"{pointer}/types/{index}")))


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _wrong(pointer: str, expected: str, value: object) -> Diagnostic:
    return Diagnostic(
        "F0103",
        f"'{pointer}' is not {expected}",
        expected=expected,
        got=_described(value),
        fix=f"write {expected}",
        pointer=pointer,
    )


def _operand_among_attrs(key: str) -> Diagnostic:
    return Diagnostic(
        "F0302",
        f"'{key}' is an operand, not an attribute",
        expected="operands in the list 'operands', in the block's order",
        got=f"'{key}' in 'attrs'",
        fix=f"move '{key}' to 'operands', with null for operands left out before it",
    )
