"""The grammar's own rules: those that keep it readable by constrained decoders as well."""

from __future__ import annotations

import random
import re

import pytest
from lark import Lark, UnexpectedInput
from lark.lexer import PatternStr

from fusedsl.diagnostics import Diagnostics
from fusedsl.frontend import grammar
from fusedsl.frontend.recover import parse_program
from fusedsl.frontend.syntax import Source, lark
from tests.frontend.programs import ALL
from tests.frontend.test_mutations import mutated

TEXT = "\n".join(line for line in grammar().split("\n") if not line.startswith("//"))


def plain_lark() -> Lark:
    """The grammar as any reader of it would load it: default lexer, root `start`, no tree."""
    return Lark(grammar(), parser="lalr")


def keywords() -> set[str]:
    """Terminals that a NAME could also spell."""
    name = next(t for t in lark().terminals if t.name == "NAME").pattern.value
    words = {"DTYPE"}
    words |= {
        t.name
        for t in lark().terminals
        if isinstance(t.pattern, PatternStr) and re.fullmatch(name, t.pattern.value)
    }
    return words


def test_the_keywords_are_known():
    assert keywords() == {"KERNEL", "WEIGHT", "DTYPE"}


def test_no_state_accepts_a_keyword_and_a_name():
    states = plain_lark().parser.parser._parse_table.states  # type: ignore[attr-defined]
    assert len(states) > 50
    for actions in states.values():
        assert not ("NAME" in actions and keywords() & set(actions)), actions


def test_no_state_accepts_both_kinds_of_numbers():
    states = plain_lark().parser.parser._parse_table.states  # type: ignore[attr-defined]
    assert not [a for a in states.values() if {"INT", "NUMBER"} <= set(a)]


@pytest.mark.parametrize(
    "pattern",
    [
        r"\(\?[=!<]",  # look-around
        r"[*+?}]\?",  # lazy quantifiers
        r"^[A-Za-z_]+\.-?\d+\s*:",  # priorities
        r"^[a-z_]+\{",  # templates
        r"%declare",
        r"%import",
        r"~",  # counted repetition of rules
        r"\{\d",  # counted repetition
        r"\\b",  # word boundaries are look-arounds too
    ],
)
def test_what_other_readers_lack_is_absent(pattern: str):
    assert not re.search(pattern, TEXT, re.MULTILINE)


def test_the_root_is_start_and_layout_means_nothing():
    assert re.search(r"^start:", TEXT, re.MULTILINE)
    assert "INDENT" not in TEXT


def test_no_terminal_matches_the_empty_text():
    for terminal in lark().terminals:
        assert not re.fullmatch(terminal.pattern.to_regexp(), ""), terminal


def test_comments_end_in_a_newline():
    comment = next(t for t in lark().terminals if t.name == "COMMENT").pattern.value
    assert re.fullmatch(comment, "# a\n")
    assert not re.fullmatch(comment, "# a")
    assert not re.fullmatch(comment, "# a\n b\n")


def verdict(text: str) -> bool:
    bag = Diagnostics()
    parse_program(Source(text), bag)
    return not bag


@pytest.mark.parametrize("name", ALL)
def test_our_parser_and_plain_lark_give_one_verdict(name: str):
    reader = plain_lark()
    rng = random.Random(name)
    tokens = re.findall(r"\w+|\s+|#[^\n]*\n|.", ALL[name])
    for _ in range(150):
        mutated = list(tokens)
        for _ in range(rng.randint(0, 2)):
            at = rng.randrange(len(mutated))
            mutated[at] = rng.choice([*tokens, "", "weight", "kernel", "fp8", ";", "2", "$"])
        text = "".join(mutated)
        if re.search(r"\b(?!bf16|fp16|fp32)\w+\[", text):
            continue  # an unknown dtype is a problem of names here (F0206)
        try:
            reader.parse(text)
        except UnexpectedInput:
            assert not verdict(text), text
        else:
            assert verdict(text), text


def core(text: str) -> str:
    """Without blanks and comments at both ends: decoders start and stop with the program."""
    text = re.sub(r"\A([ \t\r\n]|#[^\n]*\n)*", "", text)
    return re.sub(r"([ \t\r\n]|#[^\n]*\n)*\Z", "", text)


@pytest.mark.parametrize("name", ALL)
def test_a_constrained_decoder_accepts_what_lark_accepts(name: str):
    llguidance = pytest.importorskip("llguidance")
    reader = plain_lark()
    tokenizer = llguidance.LLTokenizer("byte")
    decoder = llguidance.LLMatcher.grammar_from_lark(grammar())
    assert llguidance.LLMatcher.validate_grammar(decoder, tokenizer) == ""
    rng = random.Random(f"decoder {name}")
    for number in range(150):
        text = core(mutated(ALL[name], rng) if number else ALL[name])
        if "\ud800" in text or text.rpartition("\n")[2].lstrip().startswith("#"):
            continue  # no UTF-8, or an open comment
        data = text.encode()
        matcher = llguidance.LLMatcher(tokenizer, decoder)
        accepted = matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting()
        try:
            reader.parse(text)
        except UnexpectedInput:
            assert not accepted, text
        else:
            assert accepted, text


def test_the_parser_is_built_once():
    assert lark() is lark()
