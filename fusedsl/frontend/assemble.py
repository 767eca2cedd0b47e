"""What the three frontends share: named, placed, checked assembly of one graph.

A mistake is recorded and poisons what depends on it, so that every independent mistake comes out
in one go and none is reported twice under another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusedsl.diagnostics import NOWHERE, Diagnostics, Place
from fusedsl.frontend import problems
from fusedsl.ir import (
    Block,
    BlockLibrary,
    Call,
    Dim,
    DType,
    Graph,
    GraphBuilder,
    Kind,
    Places,
    TensorType,
    TypeProblem,
    arrange_call,
    infer_types,
)

#: Ranks a parameter may have.
RANKS = (1, 2)


class Faulty:
    """Stands for an operand that has been reported already."""


FAULTY = Faulty()
Value = str | float | None | Faulty


@dataclass(frozen=True)
class Target:
    """A name that a statement assigns."""

    name: str
    place: Place = NOWHERE


@dataclass(frozen=True)
class Output:
    """A name the kernel gives back, with the declared type where the form has one."""

    name: str
    place: Place = NOWHERE
    type: TensorType | None = None
    type_place: Place = NOWHERE


@dataclass(frozen=True)
class Failure:
    """A call whose types do not fit: what a repair starts from."""

    problem: TypeProblem
    block: Block
    call: Call
    places: Places


@dataclass
class Assembler:
    """Collects parameters and nodes; `finish` gives the graph or raises all that was found.

    `assigned` are the names that some statement assigns, wherever it stands, and `assigning` those
    of the statement at hand; `excused` are names in text that could not be read, which are taken
    as defined and used. `doubtful` are names assigned twice: which value a later use means is not
    known, so nothing is said about it.
    """

    library: BlockLibrary
    bag: Diagnostics
    name: str = "program"
    assigned: frozenset[str] = frozenset()
    excused: frozenset[str] = frozenset()
    assigning: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()
    poisoned: set[str] = field(default_factory=set[str])
    doubtful: set[str] = field(default_factory=set[str])
    failures: list[Failure] = field(default_factory=list[Failure])
    used: set[str] = field(default_factory=set[str])
    symbols: dict[str, None] = field(default_factory=dict[str, None])
    weights: set[str] = field(default_factory=set[str])
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    params: dict[str, Place] = field(default_factory=dict[str, Place])

    def __post_init__(self) -> None:
        self.builder = GraphBuilder(self.library, self.name, reserved=set(self.reserved))

    # Parameters

    def dtype(self, text: str, place: Place) -> DType | None:
        """The dtype of that name; reports F0206."""
        if any(text == d.value for d in DType):
            return DType(text)
        self.bag.add(problems.unknown_dtype(text).at(place))
        return None

    def dim(self, dim: Dim, place: Place) -> Dim | None:
        """The dimension, if it is in range; reports F0105."""
        if dim.in_range:
            return dim
        self.bag.add(problems.dim_out_of_range(dim).at(place))
        return None

    def tensor_type(
        self, dtype: DType | None, dims: Sequence[Dim | None], place: Place
    ) -> TensorType | None:
        """The type of a parameter or output, None if a part was reported; reports F0403."""
        if len(dims) not in RANKS:
            self.bag.add(problems.bad_rank(len(dims)).at(place))
            return None
        known = tuple(d for d in dims if d is not None)
        return TensorType(dtype, known) if dtype and len(known) == len(dims) else None

    def param(self, name: str, type: TensorType | None, weight: bool, place: Place) -> None:
        """Declare a parameter; None for a type that was reported. Reports F0203."""
        if name in self.places:
            self.bag.add(self.builder.duplicate_name(name).at(place))
            return
        self.places[name] = self.params[name] = place
        if type is None:
            self.poisoned.add(name)
            return
        if type.dtype.is_index and (weight or not type.is_index_vector):
            self.bag.add(problems.bad_index(type, weight).at(place))
            self.poisoned.add(name)
            self.bind(type.symbols)
            return
        self.builder.span = place.span
        self.builder.add_param(name, type, weight)
        self.bind(type.symbols)
        if weight:
            self.weights.add(name)

    def bind(self, symbols: Iterable[str]) -> None:
        """Take symbols as bound (those of a parameter whose type was reported, too)."""
        self.symbols.update(dict.fromkeys(symbols))

    def check_symbols(self) -> None:
        """No parameter may share its name with a dimension; reports F0203."""
        for name, place in self.params.items():
            self._not_a_symbol(name, place)

    def check_bound(self, dim: Dim, place: Place) -> bool:
        """Whether some parameter binds the symbol; reports F0404."""
        if dim.symbol is None or dim.symbol in self.symbols:
            return True
        self.bag.add(problems.unbound_dimension(dim.symbol, self.symbols).at(place))
        return False

    # Statements

    def read(self, name: str, place: Place) -> Value:
        """A use of a name: the name, or FAULTY. Reports F0104 and F0202."""
        self.used.add(name)
        if name in self.builder.types and name not in self.doubtful:
            return name
        if name in self.poisoned or name in self.doubtful or name in self.excused:
            return FAULTY
        if name in self.assigned:
            in_itself = name in self.assigning
            self.bag.add(problems.used_too_early(name, in_itself).at(place))
        else:
            known = {*self.builder.types, *self.poisoned}
            self.bag.add(problems.unknown_name(name, known).at(place))
        return FAULTY

    def block(self, name: str, place: Place) -> Block | None:
        """The block of that name; reports F0201."""
        block = self.library.get(name)
        if block is None:
            self.bag.add(self.builder.unknown_block(name).at(place))
        return block

    def apply(
        self,
        block: Block | None,
        positional: Sequence[Value],
        named: Mapping[str, Any],
        places: Places,
        targets: Sequence[Target] = (),
    ) -> tuple[str, ...] | None:
        """Add a node; gives its result names, or None where something was wrong with it.

        Without `targets` the result gets a fresh name and must be the only one. `named` holds
        attributes, and operands given by keyword.
        """
        free = self._claim(targets)
        checked = self._check(block, positional, named, places, targets) if block else None
        if block is None or checked is None or not free:
            self.poisoned.update(t.name for t in targets if t.name not in self.builder.types)
            return None
        call, types = checked
        names = self.builder.append(block, call, types, [t.name for t in targets])
        if not targets:
            self.used.update(names)
        inputs = [op for op in call.operands if isinstance(op, str)]
        if inputs and self.weights.issuperset(inputs):
            self.weights.update(names)
        return names

    def _claim(self, targets: Sequence[Target]) -> bool:
        free = True
        for target in targets:
            free &= self._not_a_symbol(target.name, target.place)
            if target.name in self.places:
                self.bag.add(self.builder.duplicate_name(target.name).at(target.place))
                self.doubtful.add(target.name)
                free = False
            self.places.setdefault(target.name, target.place)
        return free

    def _not_a_symbol(self, name: str, place: Place) -> bool:
        if name not in self.symbols:
            return True
        self.bag.add(problems.name_of_dimension(name, self.builder.fresh(name)).at(place))
        return False

    def _check(
        self,
        block: Block,
        positional: Sequence[Value],
        named: Mapping[str, Any],
        places: Places,
        targets: Sequence[Target],
    ) -> tuple[Call, tuple[TensorType, ...]] | None:
        faulty = any(isinstance(v, Faulty) for v in (*positional, *named.values()))
        call, found = arrange_call(
            block,
            ["?" if isinstance(v, Faulty) else v for v in positional],
            {k: "?" if isinstance(v, Faulty) else v for k, v in named.items()},
            places,
        )
        for problem in found:
            self.bag.add(problem)
        counted = self._check_count(block, targets, places)
        if call is None or faulty or not counted:
            return None
        fitting = self._check_weights(block, call, places)
        if not block.internal:  # the compiler's own blocks may name sizes that it chooses
            fitting &= self._check_dims(call, places)
        if not fitting:
            return None
        try:
            types = infer_types(block, call, self.builder.types)
        except TypeProblem as problem:
            self.bag.add(self.builder.located(block, problem, places))
            self.failures.append(Failure(problem, block, call, places))
            return None
        sizes = [self.dim(d, places.get("", NOWHERE)) for t in types for d in t.shape]
        return None if None in sizes else (call, types)

    def _check_count(self, block: Block, targets: Sequence[Target], places: Places) -> bool:
        got = len(targets) or 1
        if got == max(1, len(block.results)):
            return True
        place = targets[0].place if targets else places.get("", NOWHERE)
        self.bag.add(self.builder.result_count(block, got).at(place))
        return False

    def _check_weights(self, block: Block, call: Call, places: Places) -> bool:
        if block.kind is not Kind.PACKING:
            return True
        good = True
        for spec, name in zip(block.operands, call.operands, strict=True):
            if isinstance(name, str) and name not in self.weights:
                place = places.get(spec.name, NOWHERE)
                self.bag.add(problems.not_a_weight(block.name, name).at(place))
                good = False
        return good

    def _check_dims(self, call: Call, places: Places) -> bool:
        dims = [(key, value) for key, value in call.attrs if isinstance(value, Dim)]
        return all([self.check_bound(dim, places.get(key, NOWHERE)) for key, dim in dims])

    # The end

    def finish(self, outputs: Sequence[Output], source: str | None = None) -> Graph:
        """The graph. Raises FusedslError with all that was found."""
        if self.bag.full:
            self.bag.raise_if_any(source)
        seen: set[str] = set()
        for output in outputs:
            if output.name in seen:
                self.bag.add(self.builder.duplicate_name(output.name).at(output.place))
                continue
            seen.add(output.name)
            self._check_output(output)
        self._check_uses()
        self.bag.raise_if_any(source)
        self.builder.outputs = [o.name for o in outputs]
        return self.builder.finish()

    def _check_output(self, output: Output) -> None:
        name, declared = output.name, output.type
        self.used.add(name)
        bound = [self.check_bound(d, output.type_place) for d in declared.shape] if declared else []
        computed = self.builder.types.get(name)
        if name in self.params:
            self.bag.add(problems.unassigned(name, is_param=True).at(output.place))
        elif computed is None:
            if name not in self.poisoned and name not in self.excused:
                self.bag.add(problems.unassigned(name, is_param=False).at(output.place))
        elif name in self.doubtful:
            return
        elif declared is not None and all(bound) and declared != computed:
            problem = problems.declared_otherwise(name, declared, computed)
            self.bag.add(problem.at(output.type_place))

    def _check_uses(self) -> None:
        used = self.used | self.excused
        for node in self.builder.nodes:
            if not any(r.name in used for r in node.results):
                place = self.places.get(node.name, NOWHERE)
                self.bag.add(problems.unused_value(node.name).at(place))
        for name, place in self.params.items():
            if name not in used:
                self.bag.add(problems.unused_param(name).at(place))
