"""`fusedsl mcp`: the tools and the language's pages for agents, over the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from fusedsl.cli.output import note, print_errors
from fusedsl.diagnostics import Diagnostic, FusedslError


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(epilog="Examples: fusedsl mcp; fusedsl mcp --http 127.0.0.1:8765")(mcp)


def mcp(
    http: Annotated[
        str | None, typer.Option("--http", help="HOST:PORT to serve at /mcp; left out: stdio.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="Processes.")] = 2,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds of one compile, verify or bench.")
    ] = 120,
    memory: Annotated[
        int, typer.Option("--memory", min=0, help="Megabytes of one worker; 0: no limit.")
    ] = 8192,
) -> None:
    """Serve check, fix, compile, explain, verify and bench to agents (MCP)."""
    try:
        place = None if http is None else _place(http)
        from fusedsl.agents.mcp_pool import Limits
        from fusedsl.agents.mcp_server import serve

        if place is not None:
            note(f"http://{place[0]}:{place[1]}/mcp")
        serve(Limits(workers=workers, seconds=timeout, megabytes=memory), place)
    except FusedslError as error:
        print_errors(error, as_json=False)
        raise typer.Exit(1) from None


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise FusedslError(
            Diagnostic(
                "F0507",
                f"--http does not accept '{text}'",
                expected="HOST:PORT, with a port from 1 to 65535",
                got=text,
                fix="for example --http 127.0.0.1:8765",
            )
        )
    return host.removeprefix("[").removesuffix("]"), int(port)
