"""The language card: in step with its generator, short, and right in everything it shows."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

import fusedsl
from fusedsl.agents import language_card as made
from fusedsl.agents.card_content import FRAME, MISTAKES, PROGRAMS
from fusedsl.agents.card_shapes import shape_rule
from fusedsl.blocks import library
from fusedsl.diagnostics import CODES, FusedslError
from fusedsl.frontend import parse

ROOT = Path(__file__).parents[2]
CARD = fusedsl.card()
SIZES = {"M": 5, "D": 24, "F": 40, "G": 8, "N": 8, "V": 72}


def programs_on(card: str) -> list[str]:
    """The programs that a reader of the text finds: each begins with `kernel`."""
    fence = re.search(r"```fdsl\n(.*?)```", card, re.S)
    assert fence is not None
    return re.findall(r"^kernel .*?^}$", fence[1], re.M | re.S)


def mistakes_on(card: str) -> tuple[str, list[tuple[str, str, str]]]:
    """The frame, and (code, wrong, right) of each mistake."""
    frame = re.search(r"^## Mistakes in `(.*)`$", card, re.M)
    assert frame is not None
    found = re.findall(r"^(F\d{4}): (.*) => (.*)$", card, re.M)
    return frame[1].replace("...", "%s"), found


# In step ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/llms.txt", made.llms_txt()),
        ("fusedsl/.agents/skills/fusedsl/SKILL.md", made.skill()),
    ],
)
def test_the_files_are_what_the_generator_makes(
    path: str, text: str, request: pytest.FixtureRequest
):
    file = ROOT / path
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, "pytest --update-golden writes it anew"


def test_the_card_is_kept(golden):
    golden("agents/card.md", CARD)


def test_the_skill_is_in_the_package():
    skill = resources.files("fusedsl").joinpath(".agents/skills/fusedsl/SKILL.md")
    text = skill.read_text(encoding="utf-8")
    assert made.installed_skill() == text
    front = re.match(r"---\nname: ([a-z0-9-]{1,64})\ndescription: >-\n((?:  .*\n)+)---\n", text)
    assert front is not None and front[1] == skill.parent.name  # type: ignore[attr-defined]
    assert len(" ".join(front[2].split())) <= 1024
    assert len(text.splitlines()) < 500


def test_llms_txt_has_the_shape_of_one():
    lines = made.llms_txt().splitlines()
    assert lines[0] == "# fusedsl" and lines[2].startswith("> ")
    for name in re.findall(r"^- \[([\w.]+)\]\(\1\): ", made.llms_txt(), re.M):
        assert (ROOT / "docs" / name).exists(), name


def test_the_whole_card_is_in_the_other_texts():
    body = CARD.partition("\n")[2]
    assert body in made.llms_txt() and body in made.skill()


# Length ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("vocabulary", ["o200k_base", "cl100k_base"])
def test_the_card_is_short(vocabulary: str):
    bpe = pytest.importorskip("bpe_openai")
    assert len(bpe.get_encoding(vocabulary).encode(CARD)) <= made.MAX_TOKENS == 1500


# Complete --------------------------------------------------------------------------------------
def test_every_listed_block_and_no_other_is_on_the_card():
    section = CARD.partition("## Blocks")[2].partition("## Programs")[0]
    for block in library().values():
        named = re.search(rf"\b{block.name}\b", section) is not None
        assert named == (block.on_card and not block.internal), block.name


def test_named_choices_are_all_there():
    for block in (b for b in library().public() if b.on_card):
        for attr in block.attrs:
            assert all(str(c) in CARD for c in attr.choices if isinstance(c, str)), attr


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("relu", "Shape of x"),
        ("softmax", "Shape of x"),
        ("add", "Broadcast, numbers too"),
        ("row_max", "[M,N] -> [M,1]"),
        ("half", "[M,2N] -> [M,N]"),
        ("swiglu", "[M,2N] -> [M,N], or gate, up [M,N]"),
        ("linear", "[M,K], [N,K], [N] -> [M,N]"),
        ("matmul", "[M,K], [K,N], [N] -> [M,N]"),
        ("rms_norm", "gain [N]"),
        ("layer_norm", "gain, bias [N]"),
    ],
)
def test_shape_rules(name: str, rule: str):
    assert shape_rule(library()[name]) == rule


def test_a_block_of_an_unknown_shape_is_refused():
    with pytest.raises(ValueError, match="no shape rule"):
        shape_rule(library()["weight_sum"])


def test_the_brief_grammar_names_only_what_it_defines():
    text = made.brief_grammar()
    defined = set(re.findall(r"^(\w+):", text, re.M))
    bare = re.sub(r'"[^"]*"', " ", text)
    assert set(re.findall(r"\w+", bare)) == defined | {"NAME", "INT", "NUMBER"}
    assert "??" not in text and "*?" not in text


# Right -----------------------------------------------------------------------------------------
def test_the_card_shows_five_programs_and_ten_mistakes():
    assert len(programs_on(CARD)) == len(PROGRAMS) == 5
    frame, found = mistakes_on(CARD)
    assert frame == FRAME and [tuple(m) for m in MISTAKES] == found
    assert len({code for code, _, _ in found}) == 10 and {c for c, _, _ in found} <= set(CODES)


@pytest.mark.parametrize("index", range(5))
def test_programs_from_the_cards_text_alone_hold_against_fp64(index: int):
    program = fusedsl.compile(programs_on(CARD)[index])
    symbols = {s for p in program.graph().params for s in p.type.symbols}
    result = program.verify({name: SIZES[name] for name in symbols})
    assert result.ok, result


@pytest.mark.parametrize("index", range(10))
def test_each_mistake_has_its_code_alone_and_its_fix_repairs_it(index: int):
    frame, found = mistakes_on(CARD)
    code, wrong, right = found[index]
    with pytest.raises(FusedslError) as error:
        parse(frame % wrong)
    assert error.value.codes == (code,), error.value
    parse(frame % right)
