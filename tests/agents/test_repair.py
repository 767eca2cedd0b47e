"""Every mistake of tests/agents/mistakes.py: found at its place, and how many mend themselves."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator

import pytest

from examples import SMALL, read
from fusedsl.agents.repair_loop import FixAgent, ModelAgent, program_in, prompt, run
from fusedsl.diagnostics import FusedslError
from fusedsl.frontend import parse
from fusedsl.frontend.repair import apply, mistakes, repair
from tests.agents.mistakes import MISTAKES, Mistake, same

#: Mistakes that need an author: what the program lacks stands nowhere in it.
NEED_AN_AUTHOR = {"call: an attribute forgotten", "type: three dimensions"}


def repaired(mistake: Mistake) -> bool:
    outcome = run(FixAgent(), mistake.text, rounds=1)
    return outcome.ok and same(outcome.text, mistake.correct)


def test_the_set():
    assert len(MISTAKES) == 40
    assert len({m.name for m in MISTAKES}) == 40
    assert len({m.text for m in MISTAKES}) == 40
    assert len({m.program for m in MISTAKES}) >= 7


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m.name for m in MISTAKES])
def test_a_mistake_is_found_at_its_place(mistake: Mistake):
    parse(mistake.correct)
    found = mistakes(mistake.text)
    places = [(d.span.line, d.span.column) for d in found if d.span]
    assert places == [mistake.place], "\n".join(d.render(mistake.text) for d in found)


def test_most_mistakes_mend_themselves_in_one_round():
    left = {m.name for m in MISTAKES if not repaired(m)}
    print(f"{len(MISTAKES) - len(left)} of {len(MISTAKES)} repaired in one round")
    assert left == NEED_AN_AUTHOR
    assert len(MISTAKES) - len(left) >= 36


def test_all_at_once():
    """Mistakes of one program do not hide each other."""
    text = read("llama_mlp")
    correct = text
    text = text.replace("rms_norm(x", "rmsnorm(x").replace("w_gate_up)", "w_gateup)")
    text = text.replace("+ x;", "+ x").replace("bf16[14336", "float16[14336")
    text = text.replace("weight bf16[4096, 14336]", "weight bfloat16[4096, 14336]")
    found = mistakes(text)
    assert [d.code for d in found] == ["F0206", "F0201", "F0202", "F0101"]
    assert same(apply(text, found), correct)


def test_a_repair_is_never_worse():
    for mistake in MISTAKES:
        result = repair(mistake.text)
        assert len(result.left) <= len(mistakes(mistake.text))
        assert result.left == mistakes(result.text)


def test_crlf_and_a_byte_order_mark_stay():
    text = "\ufeff" + read("llama_mlp").replace("rms_norm", "rmsnorm").replace("\n", "\r\n")
    fixed = repair(text)
    assert fixed.ok
    assert fixed.text == "\ufeff" + read("llama_mlp").replace("\n", "\r\n")


def test_a_model_is_asked_with_program_and_diagnostics():
    mistake = MISTAKES[0]
    asked: list[str] = []

    def complete(text: str) -> str:
        asked.append(text)
        return f"Here it is.\n\n```\n{mistake.correct}```\n"

    outcome = run(ModelAgent(complete), mistake.text)
    assert outcome.ok and outcome.rounds == 1 and len(outcome.steps) == 2
    assert "rmsnorm(x" in asked[0]
    listed = json.loads(asked[0].split("```json\n")[1].split("```")[0])
    assert listed[0]["fixes"][0]["applicability"] == "machine-applicable"


def test_a_model_is_not_asked_where_fixes_do():
    def never(text: str) -> str:
        raise AssertionError(text)

    assert run(ModelAgent(never, fixes_first=True), MISTAKES[0].text).ok


def test_a_model_that_does_not_help():
    broken = MISTAKES[0].text
    assert run(ModelAgent(lambda _: broken), broken).rounds == 0
    answers = iter(range(100))
    outcome = run(ModelAgent(lambda _: f"no {next(answers)}"), broken, rounds=3)
    assert not outcome.ok and outcome.rounds == 3


def test_the_program_in_an_answer():
    assert program_in("kernel") == "kernel"
    assert program_in("a\n```\nfirst\n```\nb\n```text\nsecond\n```\n") == "second\n"
    assert "```json" in prompt('{"fusedsl": 1}', ())


def test_unreadable_texts_do_not_break_the_loop():
    for text in ("", "{", "\0", "kernel", "}" * 300, "[" * 5000):
        outcome = run(FixAgent(), text)
        assert not outcome.ok
        with pytest.raises(FusedslError):
            parse(text)


def mutants(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Programs with one token taken out, doubled at its end, swapped inside, or another's, and
    the programs they come from."""
    rng = random.Random(seed)
    for _ in range(count):
        text = read(rng.choice(sorted(SMALL)))
        tokens = list(re.finditer(r"\w+|[^\w\s]", text[text.index("kernel") :]))
        token, other = rng.choice(tokens), rng.choice(tokens)
        word, at = token[0], text.index("kernel") + token.start()
        middle = rng.randrange(max(1, len(word) - 1))
        swapped = word[:middle] + word[middle : middle + 2][::-1] + word[middle + 2 :]
        new = rng.choice(("", word + word[-1], swapped, other[0]))
        yield text[:at] + new + text[at + len(word) :], text


def test_what_random_mutants_become():
    """Certain fixes mend what they were made for: few mend a program into another one."""
    whole = other = 0
    for text, correct in mutants(150, seed=0):
        found = mistakes(text)
        result = repair(text)
        assert len(result.left) <= len(found)
        if found and result.ok:
            whole += 1
            other += not same(result.text, correct)
    print(f"{whole} of 150 mended, {other} of them into another program")
    assert whole >= 40 and other <= whole // 10
