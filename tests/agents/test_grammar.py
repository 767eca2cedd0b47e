"""The exports of the grammar: read by the engines, and one language in all of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator

import pytest

from benchmarks import grammar_fuzz as fuzz
from benchmarks.common import RESULTS
from fusedsl.agents import ENGINES, LAYOUTS, export_grammar
from fusedsl.agents.grammar_tree import (
    Choice,
    Grammar,
    Item,
    Pattern,
    Ref,
    Repeat,
    Sequence,
    read_grammar,
    with_gaps,
    without_left_recursion,
)
from fusedsl.diagnostics import FusedslError
from fusedsl.frontend import grammar, parse

COUNT = 1500

EXPLICIT = ("llguidance", "openai")
EBNF = ("xgrammar", "gbnf")
PROGRAMS = fuzz.programs()


def test_lark_is_the_file_itself():
    assert export_grammar("lark") == grammar()


@pytest.mark.parametrize("engine", ENGINES)
def test_every_export_is_kept(engine: str, golden):
    golden(f"agents/grammar_{engine}.txt", export_grammar(engine))


def test_one_form_serves_two_engines_each():
    assert export_grammar("llguidance") == export_grammar("openai")
    assert export_grammar("xgrammar") == export_grammar("gbnf")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_explicit_form_has_nothing_that_a_hosted_model_refuses(layout: str):
    text = export_grammar("openai", layout=layout)
    for absent in ("%ignore", "%import", "%declare", "->  ", "(?", "*?", "+?", "~"):
        assert absent not in text, absent
    assert not re.search(r"^\?|^\w+\.\d|^\s*//", text, re.MULTILINE)
    assert not re.search(r"-> [a-z]", text)  # aliases
    assert text.startswith("start: ")


@pytest.mark.parametrize(
    ("engine", "layout", "code"),
    [("larc", "free", "F0507"), ("openai", "tight", "F0507"), ("lark", "compact", "F0507")],
)
def test_unknown_forms_are_refused_with_a_fix(engine: str, layout: str, code: str):
    with pytest.raises(FusedslError) as error:
        export_grammar(engine, layout=layout)
    assert error.value.codes == (code,) and error.value.diagnostics[0].fix


@pytest.mark.parametrize(
    "text",
    [
        "start: a{b}\na{x}: x\nb: /c/",
        "start: A\nA.2: /a/",
        "start: A~2\nA: /a/",
        "start: A\nA: /a/i",
        "start: A\n%import common.WS\nA: /a/",
        "start: A\nA: /a/\n%ignore /b/",
    ],
)
def test_what_cannot_be_carried_over_is_refused(text: str):
    with pytest.raises(ValueError, match=r"export|own"):
        read_grammar(text)


@pytest.mark.parametrize("regex", ["a(?=b)", "a{2}", r"\bx", "^a", ".", r"\d"])
def test_patterns_without_an_ebnf_form_are_refused(regex: str, monkeypatch: pytest.MonkeyPatch):
    changed = grammar().replace("INT: /[0-9]+/", f"INT: /{regex}/")
    monkeypatch.setattr("fusedsl.agents.grammar.grammar_text", lambda: changed)
    with pytest.raises(ValueError, match="not exported"):
        export_grammar("gbnf")


# EBNF ------------------------------------------------------------------------------------------
def nullable(item: Item) -> bool:
    if isinstance(item, Repeat):
        return item.operator in "*?" or nullable(item.item)
    if isinstance(item, Sequence):
        return all(map(nullable, item.items))
    return isinstance(item, Choice) and any(map(nullable, item.items))


def first_rules(item: Item) -> Iterator[str]:
    """Rules that can stand first."""
    if isinstance(item, Ref):
        yield item.name
    elif isinstance(item, Repeat):
        yield from first_rules(item.item)
    elif isinstance(item, Choice):
        for part in item.items:
            yield from first_rules(part)
    elif isinstance(item, Sequence):
        for part in item.items:
            yield from first_rules(part)
            if not nullable(part):
                break


def left_recursive(given: Grammar) -> set[str]:
    def reach(name: str, seen: set[str]) -> set[str]:
        for other in first_rules(given.rules[name]):
            if other in given.rules and other not in seen:
                seen.add(other)
                reach(other, seen)
        return seen

    return {name for name in given.rules if name in reach(name, set())}


def test_the_ebnf_form_has_no_left_recursion():
    """llama.cpp refuses it."""
    plain = with_gaps(read_grammar(grammar()), "gap")
    assert left_recursive(plain) == {"expression", "product"}
    assert left_recursive(without_left_recursion(plain)) == set()


def test_every_name_of_the_ebnf_form_is_defined():
    text = export_grammar("gbnf")
    defined = set(re.findall(r"^([a-z-]+) ::=", text, re.MULTILINE))
    bare = re.sub(r'"(\\.|[^"\\])*"|\[(\\.|[^\]\\])*\]', " ", text)
    assert set(re.findall(r"[a-z][a-z-]*", bare)) == defined
    assert "root" in defined and all("_" not in name for name in defined)


# Engines ---------------------------------------------------------------------------------------
def reader(engine: str, layout: str) -> fuzz.Verdict:
    pytest.importorskip("xgrammar" if engine in EBNF else "llguidance")
    make = fuzz.xgrammar_verdict if engine in EBNF else fuzz.llguidance_verdict
    return make(engine, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("engine", ["lark", *EXPLICIT])
def test_llguidance_reads_it_without_a_warning(engine: str, layout: str):
    llguidance = pytest.importorskip("llguidance")
    if engine == "lark" and layout != "free":
        return
    form = llguidance.LLMatcher.grammar_from_lark(export_grammar(engine, layout=layout))
    tokenizer = llguidance.LLTokenizer("byte")
    assert llguidance.LLMatcher.validate_grammar_with_warnings(form, tokenizer) == (False, [])


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_the_compact_layout_is_the_printers(engine: str):
    """What the printer writes is in; comments and long blanks are out."""
    verdict = reader(engine, "compact")
    for text in PROGRAMS[: -len(fuzz.MORE)]:
        assert verdict(str(parse(text)).strip()), text
    short = "kernel f(x: bf16[M, 8]) -> (y: bf16[M, 8]) { y = relu(x); }"
    assert verdict(short) and verdict(short.replace(" ", "").replace("kernel", "kernel "))
    for other in ("  ", "\t", "\n\n", " # c\n", "\n" + 9 * " "):
        assert not verdict(short.replace(" { ", f" {{{other}")), repr(other)


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_the_compact_layout_lets_nothing_more_in(engine: str):
    verdict, whole = reader(engine, "compact"), fuzz.lark_verdict()
    rng = random.Random(engine)
    bases = [str(parse(text)) for text in PROGRAMS[: -len(fuzz.MORE)]]
    accepted = 0
    for _ in range(200):
        text = fuzz.core(fuzz.mutated(rng.choice(bases), rng))
        if verdict(text):
            accepted += 1
            assert whole(text), text
    assert accepted > 20


def test_all_readers_give_one_verdict():
    pytest.importorskip("llguidance")
    pytest.importorskip("xgrammar")
    counts = fuzz.differential(COUNT, "test", fuzz.engines())
    assert counts["accepted"] > COUNT // 5 and counts["refused"] > COUNT // 5


@pytest.mark.parametrize(
    ("text", "core"),
    [
        (" \n# a\n x # b\n\t# c # d\n", "x"),
        ("x", "x"),
        ("x # open", "x # open"),
        ("# only\n", ""),
        ("x\n#\n#\n  ", "x"),
    ],
)
def test_the_core_of_a_text(text: str, core: str):
    assert fuzz.core(text) == core


def test_the_record_of_the_full_run():
    record = json.loads((RESULTS / "grammar_fuzz.json").read_text(encoding="utf-8"))
    (found,) = record["rows"]
    assert found["differences"] == 0 and found["accepted"] + found["refused"] >= 20_000


def test_patterns_stay_patterns():
    assert isinstance(read_grammar(grammar()).terminals["NAME"], Pattern)
