"""Applying rules until none fires, with a trace of what fired and what was refused and why."""

from __future__ import annotations

from collections.abc import Sequence

from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.ir import Graph, Layout, Node, verify
from fusedsl.rewrite.cleanup import drop_dead, share_equal
from fusedsl.rewrite.rule import Context, Fired, Refusal, RewriteOptions, Rule
from fusedsl.rewrite.rules import RULES
from fusedsl.rewrite.trace import RewriteResult, TraceEntry

#: Firings per node of the graph that went in. Each rule takes something off a finite stock (pairs,
#: readers, steps under a projection, scales under an activation, statistics) and none adds to the
#: stock of an earlier one without end; the bound only turns a mistake in a rule into an error.
_FIRINGS_PER_NODE = 20


def rewrite(
    graph: Graph,
    options: RewriteOptions | None = None,
    rules: Sequence[Rule] = RULES,
) -> RewriteResult:
    """Rewrite an expanded graph by laws, to the fixpoint.

    The result is verified and means the same as `graph` (up to roundings that options.numerics
    lets go). The trace holds every firing in order, then every refusal that holds for the result,
    once for each rule, place and precondition. Deterministic; a second rewrite changes nothing.

    Raises FusedslError (F0901) if rules do not come to an end, and what `verify` raises.
    """
    options = options or RewriteOptions()
    trace: list[TraceEntry] = []
    left = _FIRINGS_PER_NODE * (len(graph.nodes) + 1)
    position = 0
    while position < len(rules):
        rule = rules[position]
        changed, entries = _apply_everywhere(graph, options, rule, left)
        trace += entries
        left -= len(entries)
        if left <= 0:
            raise FusedslError(_no_end(graph, rule))
        graph = changed
        position = 0 if entries else position + 1
    trace += _remarks(graph, options, rules)
    return RewriteResult(verify(graph), tuple(trace))


def _apply_everywhere(
    graph: Graph, options: RewriteOptions, rule: Rule, limit: int
) -> tuple[Graph, list[TraceEntry]]:
    """One rule at every place that the graph had when it began, each as often as it fires."""
    entries: list[TraceEntry] = []
    context = Context(graph, options)
    for name in [node.name for node in graph.nodes]:
        while len(entries) < limit:
            node = context.graph.producers.get(name)
            outcome = rule.apply(context, node) if node and node.name == name else None
            if node is None or not isinstance(outcome, Fired) or outcome.graph is None:
                break
            entries.append(_entry(rule, node, outcome))
            graph = drop_dead(outcome.graph)
            context = Context(verify(graph) if options.verify_each else graph, options)
    return _share_vectors(context.graph) if entries else graph, entries


def _share_vectors(graph: Graph) -> Graph:
    """Equal vectors and packed weights made one, but no tiles: `shared_norm` copies those."""
    known = graph.weights
    return share_equal(graph, lambda n: n.name in known or n.type.layout is Layout.COLUMN)


def _remarks(graph: Graph, options: RewriteOptions, rules: Sequence[Rule]) -> list[TraceEntry]:
    """What the rules have to say about a graph in which none of them changes anything."""
    context = Context(graph, options)
    found: dict[tuple[str, str, str | None], TraceEntry] = {}
    for rule in rules:
        for node in graph.nodes:
            outcome = rule.apply(context, node)
            if outcome is not None:
                entry = _entry(rule, node, outcome)
                found.setdefault((rule.name, entry.where, entry.precondition), entry)
    return sorted(found.values(), key=lambda entry: not entry.fired)


def _entry(rule: Rule, node: Node, outcome: Fired | Refusal) -> TraceEntry:
    fired = isinstance(outcome, Fired)
    return TraceEntry(
        rule.name,
        fired,
        node.name,
        node.origin,
        None if isinstance(outcome, Fired) else outcome.precondition,
        outcome.what if isinstance(outcome, Fired) else outcome.reason,
        node.span,
    )


def _no_end(graph: Graph, rule: Rule) -> Diagnostic:
    return Diagnostic(
        "F0901",
        f"the rewrite of '{graph.name}' does not come to an end",
        expected=f"at most {_FIRINGS_PER_NODE} firings per node",
        got=f"more, the last by '{rule.name}'",
        fix="report the program: a rule undoes what another one does",
    )
