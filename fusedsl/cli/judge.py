"""`fusedsl judge`: the verdict on a program, as JSON or for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.panel import Panel

from fusedsl.cli.output import print_json, print_table, table

if TYPE_CHECKING:
    from fusedsl.judge import Verdict


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(epilog="Example: fusedsl judge examples/tasks/rms_norm.py mine.py:rms_norm")(judge)


def judge(
    task: Annotated[str, typer.Argument(help="A Python file with an object `task`.")],
    program: Annotated[
        str, typer.Argument(help="A .fdsl or .json file, path.py:function, or reference.")
    ],
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or cuda:N; CUDA where it is usable.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; its keys are in docs/judge.md.")
    ] = False,
) -> None:
    """Say whether a program is right and how fast it is; exit with 1 if it is rejected.

    The exit code is 2 where the task is no use.
    """
    from fusedsl.judge import BadTask
    from fusedsl.judge import judge as verdict_on

    try:
        verdict = verdict_on(task, program, device=device)
    except BadTask as error:
        if as_json:
            print_json({"status": "error", "accepted": False, "message": str(error)})
        else:
            typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        print_json(verdict.to_json())
    else:
        _print(verdict)
    raise typer.Exit(verdict.exit_code)


def _print(verdict: Verdict) -> None:
    console = Console()
    colour = {"accepted": "green", "rejected": "red"}.get(verdict.status, "yellow")
    lines = [f"{verdict.program} on {verdict.device}"]
    for reason in verdict.reasons:
        place = [f"{k} = {v}" for k, v in (reason.dims or {}).items()]
        if reason.case:
            place.insert(0, f"{reason.case} inputs")
        if reason.output is not None:
            place.append(f"output {reason.output}")
        lines.append(f"{reason.code.value}: {reason.message}")
        if place:
            lines.append(f"  at {', '.join(place)}")
    speed = verdict.speed
    if speed is not None:
        lines.append(
            f"{speed.seconds * 1e6:.1f} us, the baseline {speed.baseline_seconds * 1e6:.1f} us: "
            f"{speed.speedup:.2f} times as fast"
        )
    title = f"{verdict.task}: {verdict.status}"
    console.print(Panel("\n".join(lines), title=title, border_style=colour, highlight=False))
    if verdict.errors:
        numbers = ("error", "eager's error")
        rows = table("inputs", *numbers, numbers=numbers)
        for error in verdict.errors:
            rows.add_row(error.case, f"{error.error:.2e}", f"{error.eager_error:.2e}")
        print_table(rows)
    if verdict.mutants and verdict.status != "refused":
        typer.echo(f"the task rejects {len(verdict.mutants)} wrong versions of its reference")
