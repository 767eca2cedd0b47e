"""What holds for every rule: its example, its counter-examples, its description."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusedsl.frontend import parse
from fusedsl.rewrite import (
    RULES,
    RewriteOptions,
    RewriteResult,
    Rule,
    describe_rules,
    expand,
    rewrite,
)
from tests.rewrite.harness import assert_same_meaning, fired, refusals

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"

EACH = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
COUNTERS = [
    pytest.param(rule, name, id=f"{rule.name}-{name}")
    for rule in RULES
    for name in rule.preconditions
]


def counter(rule: Rule, precondition: str) -> RewriteResult:
    example = rule.counter_examples[precondition]
    return rewrite(expand(parse(example.program)), example.options)


@EACH
def test_example_fires_and_keeps_the_meaning(rule: Rule) -> None:
    graph = expand(parse(rule.example))
    result = rewrite(graph, RewriteOptions(verify_each=True))
    assert rule.name in fired(result)
    assert_same_meaning(graph, result.graph)


@EACH
def test_rule_alone_keeps_the_meaning(rule: Rule) -> None:
    graph = expand(parse(rule.example))
    result = rewrite(graph, RewriteOptions(verify_each=True), rules=[rule])
    assert_same_meaning(graph, result.graph)


@pytest.mark.parametrize(("rule", "precondition"), COUNTERS)
def test_counter_example_is_refused_for_that_alone(rule: Rule, precondition: str) -> None:
    result = counter(rule, precondition)
    assert refusals(result, rule.name) == {precondition}
    places = [entry.where for entry in result.refused if entry.rule == rule.name]
    assert len(places) == len(set(places))
    before = expand(parse(rule.counter_examples[precondition].program))
    assert_same_meaning(before, result.graph)


@pytest.mark.parametrize(("rule", "precondition"), COUNTERS)
def test_reasons_name_what_they_speak_of(rule: Rule, precondition: str) -> None:
    result = counter(rule, precondition)
    names = {f"'{name}'" for name in result.graph.types}
    for entry in result.refused:
        if entry.rule == rule.name:
            assert any(name in entry.reason for name in names), entry


@EACH
def test_rule_describes_itself(rule: Rule) -> None:
    assert rule.before and rule.after and rule.doc
    assert set(rule.counter_examples) == set(rule.preconditions)


def test_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


@EACH
def test_as_written_drops_no_rounding(rule: Rule) -> None:
    graph = expand(parse(rule.example))
    result = rewrite(graph, RewriteOptions(numerics="as_written"))
    assert set(fired(result)) <= {"gated_pair", "statistics_in_producer"}


def test_unknown_numerics() -> None:
    with pytest.raises(ValueError, match="as_written"):
        RewriteOptions(numerics="exact")


def test_page_is_what_the_rules_say(request: pytest.FixtureRequest) -> None:
    reasons: dict[tuple[str, str], str] = {}
    for rule in RULES:
        for name in rule.preconditions:
            found = [
                entry.reason
                for entry in counter(rule, name).refused
                if (entry.rule, entry.precondition) == (rule.name, name)
            ]
            reasons[rule.name, name] = found[0]
    page = describe_rules(reasons)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(page, encoding="utf-8")
    assert page == PAGE.read_text(encoding="utf-8"), "pytest --update-golden writes docs/rules.md"
