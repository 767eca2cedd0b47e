"""What the tools of the MCP server give back: closed, typed, and the same in every transport."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class SpanModel(BaseModel):
    """A half-open piece of the text; lines and columns from 1."""

    line: int
    column: int
    end_line: int
    end_column: int


class RelatedModel(BaseModel):
    """Another place that belongs to a mistake."""

    message: str
    span: SpanModel | None = None
    pointer: str | None = None


class FixModel(BaseModel):
    """A repair; `edits` are spans with replacements, or operations of RFC 6902."""

    title: str
    applicability: str = Field(
        description="machine-applicable, maybe-incorrect or has-placeholders"
    )
    edits: list[dict[str, Any]]


class DiagnosticModel(BaseModel):
    """One mistake of a program."""

    code: str
    title: str
    message: str
    expected: str | None = None
    got: str | None = None
    where: str | None = None
    fix: str | None = None
    suggestion: str | None = None
    file: str | None = None
    pointer: str | None = None
    span: SpanModel | None = None
    related: list[RelatedModel] = []
    fixes: list[FixModel] = []


class Result(BaseModel):
    """What every tool says: whether the program, and the request, were all right."""

    model_config = ConfigDict(extra="forbid")

    ok: bool = Field(description="whether the tool could do its work")
    diagnostics: list[DiagnosticModel] = Field(
        default=[], description="what is wrong with the program or the request, root causes only"
    )


class Checked(Result):
    """Of `check`."""

    name: str | None = None
    signature: str | None = Field(default=None, description="parameters and outputs with types")
    text: str | None = Field(default=None, description="the program in canonical form")


class KernelModel(BaseModel):
    """One kernel: the blocks it computes, the stored values it reads and writes."""

    name: str
    kind: str
    blocks: list[str]
    reads: list[str]
    writes: list[str]
    bytes: int


class RuleModel(BaseModel):
    """One rewrite rule at one place."""

    rule: str
    fired: bool
    outcome: str
    where: str
    origin: str
    precondition: str | None
    reason: str


class PairModel(BaseModel):
    """The same figure for eager and for fused."""

    eager: int
    fused: int


class Compiled(Result):
    """Of `compile`."""

    name: str | None = None
    kernels: list[str] = Field(default=[], description="the kernels, in launch order")
    code: str | None = Field(default=None, description="the emitted Triton, one file")
    main_loop: str | None = None


class Explained(Result):
    """Of `explain`; bytes and launches are counted at `dims`."""

    name: str | None = None
    dims: dict[str, int] = {}
    kernels: list[KernelModel] = []
    rules: list[RuleModel] = []
    bind: list[str] = []
    decisions: list[str] = []
    bytes: PairModel | None = None
    launches: PairModel | None = None


class CheckModel(BaseModel):
    """One output of one run. Errors are relative Frobenius norms against fp64."""

    case: str
    seed: int
    output: str
    error: float
    eager_error: float
    max_error: float
    max_eager_error: float
    finite: bool
    ok: bool
    ratio: float


class Verified(Result):
    """Of `verify`. `ok` says that it ran, `passed` that every check held."""

    name: str | None = None
    dims: dict[str, int] = {}
    device: str | None = None
    passed: bool | None = None
    checks: list[CheckModel] = []


class Benched(Result):
    """Of `bench`: median times of outputs that were checked. `passed`: none is worse than eager."""

    name: str | None = None
    dims: dict[str, int] = {}
    device: str | None = None
    interpreted: bool | None = Field(
        default=None, description="whether times are of Triton's interpreter, not of the program"
    )
    passed: bool | None = None
    fused_ms: float | None = None
    eager_ms: float | None = None
    speedup: float | None = None
    repeat: int | None = None
    checks: list[CheckModel] = []


class Fixed(Result):
    """Of `fix`: the mended program, what was applied, and in `diagnostics` what is left."""

    text: str | None = None
    applied: list[FixModel] = []
    rounds: int = 0
