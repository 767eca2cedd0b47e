"""The JSON form of a graph, closed: an unknown key is an error. Read by pydantic, strictly."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
)

from fusedsl.frontend.problems import MAX_NAME

_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"

Name = Annotated[str, StringConstraints(strict=True, pattern=_NAME, max_length=MAX_NAME)]
Size = Annotated[
    StrictInt | StrictStr, Field(description="an integer, a symbol 'M', or a multiple '2*M'")
]
Number = StrictInt | StrictFloat
AttrJson = StrictBool | StrictInt | StrictFloat | StrictStr


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ParamModel(_Closed):
    """A parameter. `weight`: it stays put between calls and may be folded or repacked once."""

    name: Name
    dtype: StrictStr = Field(description="bf16, fp16 or fp32; i32 or i64 for indices")
    shape: list[Size]
    weight: StrictBool = False


class NodeModel(_Closed):
    """One statement: operands in the block's order, attributes by name, names of the results."""

    op: StrictStr = Field(description="the name of a block")
    operands: list[Name | Number | None] = Field(
        default=[], description="a name, a number, or null for an operand that is left out"
    )
    attrs: dict[StrictStr, AttrJson] = Field(default={}, description="attributes by name")
    results: list[Name] = Field(min_length=1)
    types: list[StrictStr] | None = Field(
        default=None, description="types of the results, as 'bf16[M, 4096]'; checked if given"
    )


class GraphModel(_Closed):
    """A program."""

    fusedsl: StrictInt = Field(ge=1, le=1, description="version of this form")
    name: Name
    params: list[ParamModel]
    nodes: list[NodeModel]
    outputs: list[Name] = Field(min_length=1)


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a graph."""
    return GraphModel.model_json_schema()
