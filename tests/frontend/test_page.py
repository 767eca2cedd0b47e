"""docs/language.md: its programs are programs."""

from __future__ import annotations

import re
from pathlib import Path

from fusedsl.frontend import from_json, parse

PAGE = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for written, text in fences if written == language]


def test_the_programs_of_the_page():
    (text,) = blocks("")
    (data,) = blocks("json")
    (python,) = blocks("python")
    made: dict[str, object] = {}
    exec(python, made)
    assert made["graph"] == parse(text)
    assert from_json(data).outputs == ("y",)
