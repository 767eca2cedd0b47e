"""What a program is. Knows no concrete block.

| module | holds |
|---|---|
| `types` | dtypes, symbolic dims, tensor types, layouts |
| `laws` | what a block may declare about itself |
| `block` | the block spec and the library |
| `graph` | params, nodes, outputs: frozen, SSA |
| `builder` | the one checked way to add nodes |
| `indices` | which integers a parameter of indices may hold |
| `printer` | canonical text |
| `verify` | validity, before and after every stage |
| `interpret` | the fp64 oracle and the eager chain |
"""

from fusedsl.ir.block import (
    REQUIRED,
    Attr,
    AttrValue,
    Block,
    BlockLibrary,
    Kind,
    OperandSpec,
    OperandType,
    Reduction,
    TypeProblem,
)
from fusedsl.ir.builder import Call, GraphBuilder, Places, arrange_call, infer_types
from fusedsl.ir.graph import Graph, Node, Operand, Param, Result
from fusedsl.ir.indices import IndexRange, index_range
from fusedsl.ir.interpret import (
    as_tuple,
    bind_dims,
    call_reference,
    evaluate,
    evaluate_eager,
    random_inputs,
)
from fusedsl.ir.laws import (
    Contracts,
    Elementwise,
    FactorsOut,
    Gathers,
    HalvesOf,
    HomogeneousIn,
    Law,
    LinearIn,
    Picks,
    Positive,
    Rowwise,
    Scales,
    Shifts,
    StatisticOf,
)
from fusedsl.ir.printer import print_graph, print_node, print_operand, print_value
from fusedsl.ir.types import (
    MAX_DIM,
    NAME,
    NUMBERS,
    ONE,
    Dim,
    DType,
    Layout,
    TensorType,
    dtype_from_torch,
    promote,
    tensor,
)
from fusedsl.ir.verify import verify

__all__ = [
    "MAX_DIM", "NAME", "NUMBERS", "ONE", "REQUIRED", "Attr", "AttrValue", "Block", "BlockLibrary",
    "Call", "Contracts", "DType", "Dim", "Elementwise", "FactorsOut", "Gathers", "Graph",
    "GraphBuilder", "HalvesOf", "HomogeneousIn", "IndexRange", "Kind", "Law", "Layout", "LinearIn",
    "Node", "Operand", "OperandSpec", "OperandType", "Param", "Picks", "Places", "Positive",
    "Reduction", "Result", "Rowwise", "Scales", "Shifts", "StatisticOf", "TensorType",
    "TypeProblem", "arrange_call", "as_tuple", "bind_dims", "call_reference", "dtype_from_torch",
    "evaluate", "evaluate_eager", "index_range", "infer_types", "print_graph", "print_node",
    "print_operand", "print_value", "promote", "random_inputs", "tensor", "verify",
]  # fmt: skip
