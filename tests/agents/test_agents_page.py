"""docs/agents.md: its snippets run as written, and what it says of the command line holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fusedsl
from fusedsl.agents import ENGINES, export_grammar, strict_schema
from fusedsl.cli.app import app
from fusedsl.frontend import json_schema
from tests.agents.strict_rules import violations

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)


def invoke(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout


def test_the_page_has_the_three_ways():
    assert re.findall(r"^## (.*)$", PAGE, re.M) == ["Constrained text", "Tool call", "MCP"]
    assert len(SNIPPETS) == 4


@pytest.mark.parametrize("index", range(4))
def test_snippets_run_as_written(index: int, capsys: pytest.CaptureFixture[str]):
    for engine in ("llguidance", "xgrammar"):
        if re.search(rf"^(import|from) {engine}\b", SNIPPETS[index], re.M):
            pytest.importorskip(engine)
    found: dict[str, Any] = {}
    exec(compile(SNIPPETS[index], f"docs/agents.md[{index}]", "exec"), found)
    if "openai_tool" in found:
        assert violations(found["openai_tool"]["parameters"]) == []
        assert violations(found["anthropic_tool"]["input_schema"]) == []
        assert fusedsl.parse(capsys.readouterr().out) == found["graph"]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_of_the_page_is_exported(engine: str):
    assert f"`{engine}`" in PAGE
    assert invoke("grammar", "--for", engine) == export_grammar(engine).rstrip() + "\n"
    printed = json.loads(invoke("grammar", "--for", engine, "--json"))
    assert printed == {"for": engine, "layout": "free", "text": export_grammar(engine)}


def test_an_unknown_engine_is_a_coded_mistake():
    printed = json.loads(invoke("grammar", "--for", "larc", "--json", code=1))
    assert printed["diagnostics"][0]["code"] == "F0507"
    invoke("grammar", "--for", "openai", "--layout", "wide", code=1)


def test_the_schemas():
    assert json.loads(invoke("schema")) == json_schema()
    assert json.loads(invoke("schema", "--strict")) == strict_schema()
    assert json.loads(invoke("schema", "--strict", "--json")) == strict_schema()


def test_the_card():
    assert invoke("card").rstrip() == fusedsl.card().rstrip()
    assert json.loads(invoke("card", "--json")) == {"text": fusedsl.card()}
