"""The MCP server, driven by the SDK's own client: in-process, over stdio, over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples import read

pytest.importorskip("mcp_types", reason="needs the MCP SDK, 2.0 or later")

from mcp import Client, MCPError, StdioServerParameters
from typer.testing import CliRunner

from fusedsl.agents.card_content import PROGRAMS
from fusedsl.agents.language_card import card
from fusedsl.agents.mcp_pool import Busy, Limits, Pool
from fusedsl.agents.mcp_server import make_server
from fusedsl.cli.app import app

ROOT = Path(__file__).parents[2]
LLAMA = read("llama_mlp", small=True)
BROKEN = LLAMA.replace("rms_norm", "rmsnorm")
SMALL = "kernel f(x: bf16[M, 64]) -> (y: bf16[M, 64]) { y = rms_norm(x); }"
SERVE = [sys.executable, "-m", "fusedsl", "mcp", "--workers", "1"]

Server = tuple[Any, Pool]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made, pool = make_server(Limits(workers=1, seconds=60))
    yield made, pool
    pool.close()


def using(target: Any, script: Callable[[Client], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with Client(target, **options) as client:
            return await script(client)

    return asyncio.run(run())


def call(target: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    result = using(target, lambda client: client.call_tool(tool, arguments))
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def test_the_tools_and_their_schemas(server: Server):
    tools = using(server[0], lambda client: client.list_tools()).tools
    assert {t.name for t in tools} == {"check", "fix", "compile", "explain", "verify", "bench"}
    for tool in tools:
        assert tool.description
        assert tool.input_schema["required"] == ["program"]
        assert {"ok", "diagnostics"} <= tool.output_schema["properties"].keys()
        assert tool.annotations.read_only_hint


def test_the_resources(server: Server):
    async def everything(client: Client) -> dict[str, str]:
        listed = (await client.list_resources()).resources
        pages = {str(r.uri): await client.read_resource(str(r.uri)) for r in listed}
        return {uri: page.contents[0].text for uri, page in pages.items()}

    pages = {uri.removeprefix("fusedsl://"): t for uri, t in using(server[0], everything).items()}
    assert set(pages) == {"card", "grammar", "schema", "schema/strict", "blocks", "examples"}
    assert pages["card"] == card()
    assert "start: header" in pages["grammar"]
    assert json.loads(pages["schema"])["title"] == "GraphModel"
    assert {"rms_norm", "linear"} <= {b["name"] for b in json.loads(pages["blocks"])}
    for name, text in json.loads(pages["examples"]).items():
        one = using(server[0], lambda c, n=name: c.read_resource(f"fusedsl://examples/{n}"))
        assert one.contents[0].text == text and text in PROGRAMS


def test_an_example_that_does_not_exist(server: Server):
    async def script(client: Client) -> None:
        with pytest.raises(MCPError, match="there is no example 'no'"):
            await client.read_resource("fusedsl://examples/no")

    using(server[0], script)


def test_check_and_fix(server: Server):
    assert call(server[0], "check", program=LLAMA)["name"] == "llama_mlp"
    found = call(server[0], "check", program=BROKEN)
    assert not found["ok"]
    (item,) = found["diagnostics"]
    assert item["code"] == "F0201"
    assert item["fixes"][0]["applicability"] == "machine-applicable"
    fixed = call(server[0], "fix", program=BROKEN)
    assert fixed["ok"] and fixed["text"] == LLAMA and fixed["rounds"] == 1
    assert fixed["applied"][0]["title"] == "write 'rms_norm'"


def test_a_path_is_no_program(server: Server):
    path = str(ROOT / "examples" / "llama_mlp.fdsl")
    assert call(server[0], "check", program=path)["diagnostics"][0]["code"] == "F0101"
    assert call(server[0], "compile", program=path)["diagnostics"][0]["code"] == "F0101"


def test_compile_and_explain(server: Server):
    made = call(server[0], "compile", program=LLAMA)
    assert made["ok"] and "@triton.jit" in made["code"] and len(made["kernels"]) >= 2
    told = call(server[0], "explain", program=LLAMA, dims={"M": 128})
    assert told["dims"] == {"M": 128} and told["launches"]["fused"] < told["launches"]["eager"]
    assert any(rule["fired"] for rule in told["rules"])
    assert call(server[0], "compile", program=BROKEN)["diagnostics"][0]["code"] == "F0201"
    wrong = call(server[0], "explain", program=LLAMA, dims={"N": 1})
    assert wrong["diagnostics"][0]["code"] == "F0404"


def test_verify_and_bench(server: Server):
    checked = call(
        server[0], "verify", program=read("llama_mlp"), dims={"M": 8}, seeds=1, shrink=64
    )
    assert checked["ok"] and checked["passed"] and len(checked["checks"]) == 4
    timed = call(server[0], "bench", program=LLAMA, dims={"M": 8}, repeat=2)
    assert timed["passed"] and timed["fused_ms"] > 0 and timed["eager_ms"] > 0
    assert timed["interpreted"] == (timed["device"] == "cpu")
    assert (
        call(server[0], "bench", program=LLAMA, device="tpu")["diagnostics"][0]["code"] == "F0507"
    )
    wrong = call(server[0], "verify", program=LLAMA, dims={"M": 0})
    assert wrong["diagnostics"][0]["code"] == "F0105"


def test_wrong_arguments_are_an_error(server: Server):
    for arguments in ({}, {"program": SMALL, "numerics": "exact"}):
        result = using(server[0], lambda c, a=arguments: c.call_tool("compile", a))
        assert result.is_error


def test_two_hundred_calls_at_once(server: Server):
    async def calls(client: Client) -> list[Any]:
        texts = [LLAMA, BROKEN] * 100
        return await asyncio.gather(*(client.call_tool("check", {"program": t}) for t in texts))

    results = using(server[0], calls)
    assert [r.structured_content["ok"] for r in results] == [True, False] * 100


def test_two_hundred_calls_wait_for_one_worker(server: Server):
    async def calls(client: Client) -> list[Any]:
        program = {"program": SMALL}
        return await asyncio.gather(*(client.call_tool("explain", program) for _ in range(200)))

    assert all(r.structured_content["ok"] for r in using(server[0], calls))


def test_a_full_queue_says_so():
    pool = Pool(Limits(workers=1, waiting=0))
    with pytest.raises(Busy):
        asyncio.run(pool.run("check", {"program": SMALL}))
    pool.close()


def test_hanging_crashing_and_greedy_workers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("_FUSEDSL_WORKER_FAULTS", "1")
    made, pool = make_server(Limits(workers=1, seconds=3, megabytes=512))

    async def script(client: Client) -> dict[str, Any]:
        def compiled(name: str) -> Awaitable[Any]:
            return client.call_tool("compile", {"program": SMALL.replace("f(", f"{name}(", 1)})

        names = ("fault_hang", "fault_crash", "fault_memory")
        running = [asyncio.ensure_future(compiled(name)) for name in names]
        await asyncio.sleep(0.5)
        quick = await client.call_tool("check", {"program": SMALL})
        after = asyncio.ensure_future(compiled("fine"))
        done = dict(zip((*names, "fine"), await asyncio.gather(*running, after), strict=True))
        return {**done, "quick": quick}

    try:
        results = using(made, script)
    finally:
        pool.close()
    for name, word in (("fault_hang", "too long"), ("fault_memory", "too much memory")):
        (item,) = results[name].structured_content["diagnostics"]
        assert item["code"] == "F0608" and word in item["message"]
    assert results["fault_crash"].is_error
    assert "F0609" in results["fault_crash"].content[0].text
    assert "SIGABRT" in results["fault_crash"].content[0].text
    assert results["quick"].structured_content["ok"] and results["fine"].structured_content["ok"]


def test_workers_end_with_the_server():
    pool = Pool(Limits(workers=1))
    assert asyncio.run(pool.run("check", {"program": SMALL}))["ok"]
    (worker,) = pool._all
    pool.close()
    assert worker._process.poll() is not None
    with pytest.raises(Busy):
        asyncio.run(pool.run("check", {"program": SMALL}))


def test_over_stdio():
    server = StdioServerParameters(command=SERVE[0], args=SERVE[1:], cwd=str(ROOT))

    async def script(client: Client) -> tuple[Any, Any]:
        checked = await client.call_tool("check", {"program": BROKEN})
        return checked, await client.call_tool("compile", {"program": SMALL})

    checked, compiled = using(server, script)
    assert checked.structured_content["diagnostics"][0]["code"] == "F0201"
    assert compiled.structured_content["ok"]


def test_over_http():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*SERVE, "--http", f"127.0.0.1:{port}"], cwd=ROOT)
    try:
        _await_port(port)
        found = call(f"http://127.0.0.1:{port}/mcp", "check", program=BROKEN)
        assert found["diagnostics"][0]["code"] == "F0201"
        assert call(f"http://127.0.0.1:{port}/mcp", "explain", program=SMALL)["ok"]
    finally:
        process.terminate()
        assert process.wait(timeout=20) is not None


def _await_port(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the server does not listen")


def test_the_snippets_of_the_page():
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    section = page[page.index("## MCP") :]
    serving, repairing = re.findall(r"^```py\n(.*?)^```$", section, re.M | re.S)
    found: dict[str, Any] = {}
    exec(compile(serving, "docs/agents.md", "exec"), found)
    assert "rms_norm(x)" in found["text"]
    exec(compile(repairing, "docs/agents.md", "exec"), {})


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    result = CliRunner().invoke(app, ["mcp"])
    assert result.exit_code == 1
    assert "error[F0607]" in result.stderr and "pip install 'fusedsl[mcp]'" in result.stderr


def test_an_address_that_is_none():
    for place in ("8765", "host:", "host:0", ":1", "host:99999"):
        result = CliRunner().invoke(app, ["mcp", "--http", place])
        assert result.exit_code == 1 and "error[F0507]" in result.stderr
