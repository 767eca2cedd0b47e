"""Graph → Graph by laws, with a trace.

| module | holds |
|---|---|
| `expand` | composites into primitives; equal nodes shared |
| `driver` | rules to the fixpoint, and the trace |
| `rules` | one law per file, in the order they are tried |
| `rule` | what a rule is: preconditions, examples, outcomes, options |
| `trace` | what fired, what was refused and why |
| `matcher` | reading a graph by laws: projections, steps, epilogues |
| `moving` | when a norm may move past a projection |
| `describe` | the rules as documentation |
| `editor` | nodes in place of others |
| `cleanup` | equal nodes, dead nodes, order |
"""

from fusedsl.rewrite.describe import describe_rules
from fusedsl.rewrite.driver import rewrite
from fusedsl.rewrite.expand import expand
from fusedsl.rewrite.rule import CounterExample, RewriteOptions, Rule
from fusedsl.rewrite.rules import RULES
from fusedsl.rewrite.trace import RewriteResult, TraceEntry

__all__ = [
    "RULES",
    "CounterExample",
    "RewriteOptions",
    "RewriteResult",
    "Rule",
    "TraceEntry",
    "describe_rules",
    "expand",
    "rewrite",
]
