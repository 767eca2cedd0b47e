"""What language models are given: `fusedsl grammar | schema | card`."""

from __future__ import annotations

from typing import Annotated

import typer

from fusedsl.cli.output import print_errors, print_json
from fusedsl.diagnostics import FusedslError

Json = Annotated[bool, typer.Option("--json", help="Print JSON; schemas in docs/cli.md.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(epilog="Example: fusedsl grammar --for openai")(grammar)
    app.command(epilog="Example: fusedsl schema --strict")(schema)
    app.command(epilog="Example: fusedsl card")(card)


def grammar(
    engine: Annotated[
        str, typer.Option("--for", help="lark, llguidance, openai, xgrammar or gbnf.")
    ] = "lark",
    layout: Annotated[
        str,
        typer.Option(
            "--layout", help="free: any blanks and comments; compact: single blanks and breaks."
        ),
    ] = "free",
    as_json: Json = False,
) -> None:
    """Print the grammar for a parser, or for a decoder that constrains a model."""
    from fusedsl.agents import export_grammar

    try:
        text = export_grammar(engine, layout=layout)
    except FusedslError as error:
        print_errors(error, as_json=as_json)
        raise typer.Exit(1) from None
    if as_json:
        print_json({"for": engine, "layout": layout, "text": text})
    else:
        typer.echo(text.rstrip())


def schema(
    strict: Annotated[
        bool, typer.Option("--strict", help="The form of tool calls, for strict modes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the JSON Schema of a program: of .json files, or of strict tool calls."""
    from fusedsl.agents import strict_schema
    from fusedsl.frontend import json_schema

    del as_json  # it is JSON in any case
    print_json(strict_schema() if strict else json_schema())


def card(as_json: Json = False) -> None:
    """Print the language on one page, for the prompt of a model."""
    from fusedsl.agents import card as language_card

    if as_json:
        print_json({"text": language_card()})
    else:
        typer.echo(language_card().rstrip())
