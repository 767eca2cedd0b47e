"""An MCP server: check, fix, compile, explain, verify and bench for agents.

A bad program is a result with diagnostics; an environment that does not work is an error. What
runs a compiler or a program does so in a worker process under limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field

from fusedsl import __version__
from fusedsl.agents import mcp_models as models
from fusedsl.agents import mcp_work
from fusedsl.agents.card_content import PROGRAMS
from fusedsl.agents.grammar import export_grammar
from fusedsl.agents.language_card import card
from fusedsl.agents.mcp_pool import Busy, Limits, Pool, WorkerDied
from fusedsl.agents.strict_schema import strict_schema
from fusedsl.blocks import library
from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.frontend import json_schema, parse

if TYPE_CHECKING:
    from mcp.server import MCPServer

#: Programs longer than this are read in a worker too.
INLINE = 20_000

Program = Annotated[
    str, Field(description="DSL text, or a JSON graph (it begins with '{'); never a path")
]
Dims = Annotated[
    dict[str, int],
    Field(description="sizes of symbolic dimensions, as {'M': 128}; the rest get a default"),
]
Numerics = Annotated[
    Literal["moved", "as_written"],
    Field(description="moved: rewrites may drop roundings; as_written: every one stays"),
]
Device = Annotated[
    str | None,
    Field(description="cpu (Triton's interpreter: small sizes) or cuda; best by default"),
]
Shrink = Annotated[
    int,
    Field(ge=1, description="divide the fixed dimensions by this, for a large program on a CPU"),
]

INSTRUCTIONS = """\
Write a transformer block in a small language and get fused Triton kernels. Read fusedsl://card
first: the language on one page. Then: check (every mistake with exact fixes), fix (applies those
that are certain), explain (what is fused and what is not, and why), compile (the Triton code),
verify (against fp64 and eager torch), bench (fused against eager)."""

ResultT = TypeVar("ResultT", bound=models.Result)


def missing_package() -> Diagnostic:
    """F0607 for the MCP SDK."""
    return Diagnostic(
        "F0607",
        "the package 'mcp' is not installed",
        expected="the MCP SDK, 2.0 or later",
        got="no such package, or an older one",
        fix="pip install 'fusedsl[mcp]'",
    )


class Tools:
    """The tools over one pool; the docstrings are what a model reads."""

    def __init__(self, pool: Pool):
        self.pool = pool

    async def check(self, program: Program) -> models.Checked:
        """Report every mistake of a program with its place and exact fixes; else its signature and
        canonical text."""
        return await self._quick(models.Checked, "check", program)

    async def fix(self, program: Program) -> models.Fixed:
        """Apply the machine-applicable fixes of a program and report what is left."""
        return await self._quick(models.Fixed, "fix", program)

    async def compile(
        self,
        program: Program,
        numerics: Numerics = "moved",
        main_loop: Annotated[
            Literal["tma", "pointer"] | None, Field(description="of projections; by device if null")
        ] = None,
    ) -> models.Compiled:
        """Compile a program to one file of fused Triton kernels."""
        arguments = {"program": program, "numerics": numerics, "main_loop": main_loop}
        return await self._in_worker(models.Compiled, "compile", arguments)

    async def explain(
        self, program: Program, dims: Dims | None = None, numerics: Numerics = "moved"
    ) -> models.Explained:
        """Say which kernels a program becomes, which rules fired or were refused and why, and the
        bytes and launches that are saved."""
        arguments = {"program": program, "dims": dims or {}, "numerics": numerics}
        return await self._in_worker(models.Explained, "explain", arguments)

    async def verify(
        self,
        program: Program,
        dims: Dims | None = None,
        numerics: Numerics = "moved",
        device: Device = None,
        seeds: Annotated[int, Field(ge=1, le=10)] = 2,
        shrink: Shrink = 1,
    ) -> models.Verified:
        """Run a program on fresh and hard inputs (outliers, zero rows, large means) and hold its
        outputs against fp64 and against the same statements in eager torch."""
        arguments = _run_arguments(program, dims, numerics, device, shrink) | {"seeds": seeds}
        return await self._in_worker(models.Verified, "verify", arguments)

    async def bench(
        self,
        program: Program,
        dims: Dims | None = None,
        numerics: Numerics = "moved",
        device: Device = None,
        repeat: Annotated[int, Field(ge=1, le=1000)] = 10,
        shrink: Shrink = 1,
    ) -> models.Benched:
        """Check the outputs of a program, then time it against eager torch (median of `repeat`
        calls). On a CPU the times are of Triton's interpreter and say nothing about a GPU."""
        arguments = _run_arguments(program, dims, numerics, device, shrink) | {"repeat": repeat}
        return await self._in_worker(models.Benched, "bench", arguments)

    async def _quick(self, model: type[ResultT], tool: str, program: str) -> ResultT:
        """Reading is quick: a thread here does it, a worker where the text is long."""
        if len(program) > INLINE:
            return await self._in_worker(model, tool, {"program": program})
        work = partial(mcp_work.run, tool, {"program": program})
        return model.model_validate(await asyncio.to_thread(work))

    async def _in_worker(
        self, model: type[ResultT], tool: str, arguments: dict[str, Any]
    ) -> ResultT:
        from mcp.server.mcpserver.exceptions import ToolError

        try:
            return model.model_validate(await self.pool.run(tool, arguments))
        except (WorkerDied, Busy) as error:
            raise ToolError(str(error)) from None


def _run_arguments(
    program: str, dims: dict[str, int] | None, numerics: str, device: str | None, factor: int
) -> dict[str, Any]:
    return {
        "program": program,
        "dims": dims or {},
        "numerics": numerics,
        "device": device,
        "factor": factor,
    }


def examples() -> dict[str, str]:
    """The example programs by name."""
    return {parse(text).name: text for text in PROGRAMS}


def blocks() -> list[dict[str, Any]]:
    """The blocks that programs call: signature, operands, attributes, what they compute."""
    return [
        {
            "name": block.name,
            "kind": block.kind.value,
            "signature": block.signature(),
            "doc": block.doc,
            "operands": [
                {"name": op.name, "optional": op.optional, "number": op.scalar, "doc": op.doc}
                for op in block.operands
            ],
            "attributes": [
                {
                    "name": attr.name,
                    "type": attr.kind,
                    "accepts": attr.expectation(),
                    "required": attr.required,
                    "default": None if attr.required else str(attr.default),
                    "doc": attr.doc,
                }
                for attr in block.all_attrs.values()
            ],
            "results": list(block.results) or [block.name],
            "operator": block.infix or block.prefix,
        }
        for block in library().public()
    ]


#: Pages without parameters: address, title, form, how it is made.
_PAGES: tuple[tuple[str, str, str, Callable[[], str]], ...] = (
    ("card", "The language on one page", "text/markdown", card),
    ("grammar", "The grammar, in lark's form", "text/plain", lambda: export_grammar("lark")),
    ("schema", "JSON Schema of a program", "application/json", lambda: json.dumps(json_schema())),
    (
        "schema/strict",
        "JSON Schema of a program as a strict tool call",
        "application/json",
        lambda: json.dumps(strict_schema()),
    ),
    ("blocks", "The blocks of programs", "application/json", lambda: json.dumps(blocks())),
    ("examples", "Programs by name", "application/json", lambda: json.dumps(examples())),
)


def _add_resources(server: MCPServer) -> None:
    for path, title, mime, make in _PAGES:
        about = server.resource(
            f"fusedsl://{path}", name=path, title=title, description=title, mime_type=mime
        )
        about(_page(make))

    @server.resource("fusedsl://examples/{name}", title="One example program")
    def example(name: str) -> str:
        """The text of one example program."""
        from mcp.server.mcpserver.exceptions import ResourceNotFoundError

        known = examples()
        if name not in known:
            raise ResourceNotFoundError(f"there is no example '{name}': {', '.join(known)}")
        return known[name]


def _page(make: Callable[[], str]) -> Callable[[], str]:
    def page() -> str:
        return make()

    return page


def make_server(limits: Limits | None = None) -> tuple[MCPServer, Pool]:
    """The server and its pool, which the caller closes. Raises FusedslError (F0607)."""
    try:
        from mcp.server import MCPServer
        from mcp_types import ToolAnnotations
    except ImportError:
        raise FusedslError(missing_package()) from None
    pool = Pool(limits)
    server = MCPServer(
        "fusedsl",
        title="fusedsl",
        description="A compiler from a small language of GPU blocks to fused Triton kernels",
        instructions=INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
    )
    tools = Tools(pool)
    about = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool in (tools.check, tools.fix, tools.compile, tools.explain, tools.verify, tools.bench):
        server.add_tool(tool, annotations=about, structured_output=True)
    _add_resources(server)
    return server, pool


@contextlib.asynccontextmanager
async def serving(limits: Limits | None = None) -> AsyncIterator[MCPServer]:
    """A server whose workers end with the block."""
    server, pool = make_server(limits)
    try:
        yield server
    finally:
        pool.close()


def serve(limits: Limits, http: tuple[str, int] | None = None) -> None:
    """Serve on standard input and output, or on HTTP at /mcp, until that ends."""

    async def run() -> None:
        async with serving(limits) as server:
            if http is None:
                await server.run_stdio_async()
            else:
                await server.run_streamable_http_async(
                    host=http[0], port=http[1], stateless_http=True
                )

    asyncio.run(run())
