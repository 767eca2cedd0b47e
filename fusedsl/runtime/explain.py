"""What became of a program: kernels, rules, and the bytes and launches saved.

Eager, every block that the program's text calls is one kernel, which reads its operands and writes
its result, each in its declared dtype. Halves of a projection are views; what depends on weights
alone is not counted. PyTorch needs at least as many launches (an RMSNorm in its plain form is six),
so the count flatters eager.

Fused, every stored value that a kernel reads or writes counts once per kernel; bind-time values
count where kernels read them, not where they are made.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fusedsl.codegen import column_tiles
from fusedsl.diagnostics import Diagnostic, FusedslError, did_you_mean
from fusedsl.fuse import KernelPlan, Plan
from fusedsl.ir import MAX_DIM, Graph, HalvesOf, Node
from fusedsl.runtime.device import target_of
from fusedsl.runtime.planning import planned
from fusedsl.schedule import Target, choose

if TYPE_CHECKING:
    from fusedsl.runtime.program import Stages

#: What a symbol stands for where the caller does not say.
NOMINAL = 4096


@dataclass(frozen=True)
class KernelLine:
    """One kernel: the blocks it computes, the stored values it reads and writes."""

    name: str
    kind: str
    blocks: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes: int
    pdl: bool = False
    specialised: bool = False


@dataclass(frozen=True)
class RuleLine:
    """One rule at one place. `precondition` is None where it fired."""

    rule: str
    fired: bool
    where: str
    origin: str
    precondition: str | None
    reason: str

    @property
    def outcome(self) -> str:
        """The word for it: fired or refused."""
        return "fired" if self.fired else "refused"


@dataclass(frozen=True)
class Explanation:
    """See the module's docstring for how bytes and launches are counted."""

    name: str
    dims: dict[str, int]
    kernels: tuple[KernelLine, ...]
    rules: tuple[RuleLine, ...]
    bind: tuple[str, ...]
    decisions: tuple[str, ...]
    eager_bytes: int
    fused_bytes: int
    eager_launches: int
    fused_launches: int

    def to_json(self) -> dict[str, Any]:
        """The JSON form; the shape is described in docs/runtime.md."""
        return {
            "name": self.name,
            "dims": self.dims,
            "kernels": [
                {
                    "name": k.name,
                    "kind": k.kind,
                    "blocks": list(k.blocks),
                    "reads": list(k.reads),
                    "writes": list(k.writes),
                    "bytes": k.bytes,
                    "pdl": k.pdl,
                    "specialised": k.specialised,
                }
                for k in self.kernels
            ],
            "rules": [
                {
                    "rule": r.rule,
                    "fired": r.fired,
                    "outcome": r.outcome,
                    "where": r.where,
                    "origin": r.origin,
                    "precondition": r.precondition,
                    "reason": r.reason,
                }
                for r in self.rules
            ],
            "bind": list(self.bind),
            "decisions": list(self.decisions),
            "bytes": {"eager": self.eager_bytes, "fused": self.fused_bytes},
            "launches": {"eager": self.eager_launches, "fused": self.fused_launches},
        }

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=110, force_terminal=False)
        for part in (self._kernel_table(), self._rule_table()):
            console.print(part)
        for label, items in (("once per binding", self.bind), ("decided", self.decisions)):
            if items:
                console.print(f"{label}: {'; '.join(items)}", highlight=False, markup=False)
        at = ", ".join(f"{k} = {v}" for k, v in self.dims.items()) or "fixed sizes"
        console.print(
            f"at {at}: {_mb(self.eager_bytes)} and {self.eager_launches} launches with a kernel "
            f"for each block, {_mb(self.fused_bytes)} and {self.fused_launches} launches fused",
            highlight=False,
            markup=False,
        )
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())

    def _kernel_table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=f"{self.name}: kernels", title_justify="left")
        for column in ("kernel", "kind", "blocks", "reads", "writes", "MB"):
            table.add_column(column, justify="right" if column == "MB" else "left")
        for k in self.kernels:
            kind = f"{k.kind} (pdl)" if k.pdl else k.kind
            kind = f"{kind} (specialised)" if k.specialised else kind
            cells = (k.name, kind, ", ".join(k.blocks), ", ".join(k.reads), ", ".join(k.writes))
            table.add_row(*map(Text, cells), Text(f"{k.bytes / 1e6:.1f}"))
        return table

    def _rule_table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(title="rules", title_justify="left")
        for column in ("rule", "outcome", "where", "why"):
            table.add_column(column)
        for r in self.rules:
            why = r.reason if r.precondition is None else f"[{r.precondition}] {r.reason}"
            table.add_row(*map(Text, (r.rule, r.outcome, r.where, why)))
        return table


def explain(
    stages: Stages, dims: Mapping[str, int], device: torch.device | None = None
) -> Explanation:
    """Explain a compiled program at the given sizes, for a device (an H200 where none is named)."""
    graph = stages.source
    env = nominal_dims(graph, dims)
    target = Target.parse("sm_90") if device is None else target_of(device)
    plan = planned(stages.plan, env, target)
    full = with_tiles(plan, env, target)
    eager = [node for node in graph.run_time_nodes() if not node.block.has_law(HalvesOf)]
    lines = tuple(_kernel(plan, kernel, full, target) for kernel in plan.kernels)
    return Explanation(
        graph.name,
        env,
        lines,
        tuple(
            RuleLine(e.rule, e.fired, e.where, e.origin, e.precondition, e.reason)
            for e in stages.rewritten.trace
        ),
        tuple(f"{', '.join(r.name for r in n.results)} = {n.block.name}" for n in plan.bind),
        plan.decisions,
        sum(_eager_bytes(graph, node, env) for node in eager),
        sum(line.bytes for line in lines),
        len(eager),
        len(lines),
    )


def nominal_dims(graph: Graph, dims: Mapping[str, int], default: int = NOMINAL) -> dict[str, int]:
    """A value for every symbol of the signature.

    Raises FusedslError: F0404 for a name that is no symbol, F0105 for a size that is none.
    """
    symbols = {s: default for param in graph.params for s in param.type.symbols}
    given: dict[Any, Any] = dict(dims) if isinstance(dims, Mapping) else {"dims": dims}
    problems: list[Diagnostic] = []
    for name, size in given.items():
        if name not in symbols:
            problems.append(
                Diagnostic(
                    "F0404",
                    f"'{graph.name}' has no dimension '{name}'",
                    expected=", ".join(symbols) or "no symbolic dimensions",
                    got=str(name),
                    fix=did_you_mean(str(name), symbols, "dimensions"),
                )
            )
        elif not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_DIM:
            problems.append(
                Diagnostic(
                    "F0105",
                    f"dimension '{name}' is no size",
                    expected=f"an integer from 0 to {MAX_DIM}",
                    got=str(size)[:20],
                    fix=f'for example {{"{name}": {default}}}',
                )
            )
    if problems:
        raise FusedslError(problems)
    return {**symbols, **given}


def with_tiles(plan: Plan, env: Mapping[str, int], target: Target) -> dict[str, int]:
    """`env` and the number of column tiles of every kernel that leaves per-tile statistics."""
    full = dict(env)
    for symbol, kernel, _ in plan.tile_symbols():
        config = choose(plan, kernel, full, target, target.main_loop)
        full[symbol] = column_tiles(kernel, config, full)
    return full


def _kernel(plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target) -> KernelLine:
    size = plan.kernel_bytes(kernel, env)
    config = choose(plan, kernel, env, target, target.main_loop).on(target)
    return KernelLine(
        kernel.name,
        kernel.kind.value,
        kernel.blocks,
        kernel.reads,
        kernel.writes,
        size,
        config.pdl,
        kernel.specialised,
    )


def _eager_bytes(graph: Graph, node: Node, env: Mapping[str, int]) -> int:
    reads = sum(graph.types[name].nbytes(env) for name in dict.fromkeys(node.inputs))
    return reads + sum(result.type.nbytes(env) for result in node.results)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
