"""The commands and their options. Work is imported where it is needed: `--help` stays quick."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from fusedsl.cli import judge, language, mcp
from fusedsl.cli.mend import Mended, mend, print_mended
from fusedsl.cli.output import (
    failure,
    note,
    plan_text,
    print_build,
    print_errors,
    print_json,
)
from fusedsl.diagnostics import Diagnostic, FusedslError

app = typer.Typer(
    name="fusedsl",
    help="Compile programs of GPU blocks to fused Triton kernels.",
    epilog="Example: fusedsl explain examples/llama_mlp.fdsl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[
    str, typer.Argument(help="A program: .fdsl text, .json, or - for text on standard input.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; schemas in docs/cli.md.")]
Dims = Annotated[
    list[str] | None, typer.Option("--dims", help="Sizes of symbolic dimensions: M=128,F=512.")
]
Numerics = Annotated[
    str,
    typer.Option("--numerics", help="moved: roundings may go; as_written: every rounding stays."),
]
Shrink = Annotated[
    int,
    typer.Option(
        "--shrink", min=1, help="Divide the fixed dimensions by this: a quick look without a GPU."
    ),
]

#: What `show` can show.
STAGES = ("source", "expand", "rewrite", "plan", "code")


Command = TypeVar("Command", bound=Callable[..., None])


def _reporting(command: Command) -> Command:
    """A mistake ends a command with its diagnostics and exit code 1, not with a traceback."""

    @functools.wraps(command)
    def reporting(*args: Any, as_json: bool = False, **options: Any) -> None:
        try:
            command(*args, as_json=as_json, **options)
        except FusedslError as error:
            print_errors(error, as_json=as_json)
            raise typer.Exit(1) from None

    return cast(Command, reporting)


def _version(asked: bool) -> None:
    if asked:
        import fusedsl

        typer.echo(f"fusedsl {fusedsl.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Compile programs of GPU blocks to fused Triton kernels."""


@app.command(epilog="Examples: fusedsl check examples/*.fdsl; fusedsl check mlp.fdsl --fix --diff")
@_reporting
def check(
    files: Annotated[list[str], typer.Argument(help="Programs; - reads one from standard input.")],
    fix: Annotated[
        bool, typer.Option("--fix", help="Apply the fixes that are certain; report what is left.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="With --fix: print the change and write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Report every mistake in every file; exit with 1 if there is one.

    With --fix a file is replaced only by a text with no more mistakes than it had.
    """
    found: list[Diagnostic] = []
    mended: list[Mended] = []
    for file in files:
        try:
            if fix or diff:
                mended.append(mend(file, write=fix and not diff))
                found += mended[-1].left
                if not as_json:
                    print_mended(mended[-1], diff)
                continue
            _load(file)
        except FusedslError as error:
            found += error.diagnostics
            if not as_json:
                print_errors(error, as_json=False)
        else:
            if not as_json:
                typer.echo(f"{file}: ok")
    if as_json:
        changes = {"fixed": [m.to_json() for m in mended]} if mended else {}
        print_json({**(failure(found) if found else {"ok": True, "diagnostics": []}), **changes})
    if found:
        raise typer.Exit(1)


@app.command(epilog="Example: fusedsl explain examples/nemotron_mlp.fdsl --dims M=8192")
@_reporting
def explain(
    file: File, dims: Dims = None, numerics: Numerics = "moved", as_json: Json = False
) -> None:
    """Say which kernels a program becomes, which rules fired or were refused, and why."""
    from fusedsl.cli.inputs import complete_dims, parse_dims

    program = _compile(file, numerics)
    explanation = program.explain(complete_dims(program.graph(), parse_dims(dims), 4096))
    if as_json:
        print_json(explanation.to_json())
    else:
        typer.echo(str(explanation))


@app.command(epilog="Example: fusedsl show examples/llama_mlp.fdsl --stage code")
@_reporting
def show(
    file: File,
    stage: Annotated[str, typer.Option("--stage", help=f"One of {', '.join(STAGES)}.")] = "code",
    main_loop: Annotated[
        str | None, typer.Option("--main-loop", help="Of the code: tma, pointer or specialised.")
    ] = None,
    dims: Dims = None,
    numerics: Numerics = "moved",
    as_json: Json = False,
) -> None:
    """Print a program after one stage: source, expand, rewrite and plan as text, code as Triton."""
    from fusedsl.cli.inputs import parse_dims

    if stage not in STAGES:
        raise FusedslError(_not_allowed("--stage", stage, STAGES))
    program = _compile(file, numerics)
    if stage == "code":
        sizes = parse_dims(dims)
        text = program.source if main_loop is None else program.source_for(main_loop, dims=sizes)
    else:
        text = plan_text(program) if stage == "plan" else str(program.graph(stage))
    if as_json:
        print_json({"name": program.name, "stage": stage, "text": text})
    else:
        typer.echo(text.rstrip())


@app.command(
    epilog="Examples: fusedsl run examples/llama_mlp.fdsl --shrink 64; "
    "fusedsl run mlp.fdsl --input x=x.safetensors --input w=model.pt:layers.0.w"
)
@_reporting
def run(
    file: File,
    dims: Dims = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="NAME=FILE or NAME=FILE:KEY with a .safetensors, .pt or .pth file; random else.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the random inputs.")] = 0,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu (interpreted) or cuda; cuda if usable.")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Timed calls.")] = 3,
    shrink: Shrink = 1,
    numerics: Numerics = "moved",
    as_json: Json = False,
) -> None:
    """Run a program; print its error and eager torch's against fp64, launches and milliseconds.

    Exits with 1 if its error is larger than eager's.
    """
    from fusedsl.cli import compare

    result = compare.run(
        _load(file),
        dims=dims,
        given=given or [],
        seed=seed,
        device=device,
        numerics=numerics,
        factor=shrink,
        repeat=repeat,
    )
    if as_json:
        print_json(result.to_json())
    else:
        compare.show(result)
    if not result.ok:
        raise typer.Exit(1)


@app.command(
    epilog="Examples: fusedsl bench examples/llama_mlp.fdsl --shapes M=1,64,4096; "
    "fusedsl bench norm.fdsl --against compile,bare --plot norm.svg"
)
@_reporting
def bench(
    file: File,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            help="Peers: eager, compile (torch.compile, two modes), bare (the projections in "
            "cuBLAS, or a copy where there are none), quack.",
        ),
    ] = "eager,compile,bare",
    shapes: Annotated[
        str | None,
        typer.Option("--shapes", help="Sizes of symbolic dimensions, a row each: M=1,4096,F=512."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu (interpreted) or cuda; cuda if usable.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Rounds that medians are taken over.")
    ] = None,
    shrink: Annotated[
        int | None,
        typer.Option(
            "--shrink",
            min=1,
            help="Divide the fixed dimensions by this; on a CPU, by what it takes to be quick.",
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Write the rows as a table to this file.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw a roofline and bars: .svg, .png or .pdf (matplotlib)."),
    ] = None,
    numerics: Numerics = "moved",
    as_json: Json = False,
) -> None:
    """Time a program beside its peers and the roofline, everything verified, in one run.

    Times are medians of the device's, the inputs rotated and not in the cache; warm ones stand
    beside them. Every output is held against fp64 before the timing, and what was timed after it.
    Exits with 1 if an output of the program is worse than eager's.
    """
    from fusedsl.cli import bench as work

    found = work.run(
        _load(file),
        against=against,
        shapes=shapes,
        device=device,
        numerics=numerics,
        factor=shrink,
        rounds=rounds,
        plot=plot,
        quiet=as_json,
    )
    if as_json:
        print_json(found)
    else:
        work.show(found)
    for path in work.write(found, markdown, plot):
        note(f"in {path}")
    if not found["ok"]:
        raise typer.Exit(1)


@app.command(
    epilog="Example: fusedsl build examples/llama_mlp.fdsl --target sm_90,gfx942 --out build"
)
@_reporting
def build(
    file: File,
    target: Annotated[
        str, typer.Option("--target", help="GPUs, separated by commas, for example sm_80,gfx942.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for binaries, assembly and source.")],
    dims: Dims = None,
    numerics: Numerics = "moved",
    as_json: Json = False,
) -> None:
    """Compile a program's kernels for GPUs that need not be here; exit with 1 if one is unfit.

    Reports registers, spills and shared memory for each target and kernel.
    """
    from fusedsl.cli.inputs import complete_dims, parse_dims, parse_targets
    from fusedsl.pipeline import header_of
    from fusedsl.runtime.build import build as build_plan

    targets = parse_targets(target)
    program = _compile(file, numerics)
    env = complete_dims(program.graph(), parse_dims(dims), 4096)
    header = header_of(program.stages.source, program.stages.rewritten, program.options)
    report = build_plan(program.plan, targets, env, out, numerics=numerics, header=header)
    if as_json:
        print_json(report.to_json())
    else:
        print_build(report, out)
    if not report.ok:
        raise typer.Exit(1)


@app.command(epilog='Example: fusedsl tune examples/llama_mlp.fdsl --shapes "M=16;M=8192"')
@_reporting
def tune(
    file: File,
    shapes: Annotated[
        str | None,
        typer.Option("--shapes", help="Dims of each shape, by semicolons: M=16;M=4096,F=512."),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cuda or cuda:N.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Leave out what is tuned already.")] = False,
    numerics: Numerics = "moved",
    as_json: Json = False,
) -> None:
    """Time a program's kernels in a few configurations and keep the fastest for later processes."""
    from fusedsl.cli.tune import print_tuned
    from fusedsl.cli.tune import tune as tune_shapes

    program = _compile(file, numerics)
    lines = tune_shapes(program, shapes=shapes, device=device, again=not new)
    if as_json:
        print_json({"ok": True, "name": program.name, "kernels": [x.to_json() for x in lines]})
    else:
        print_tuned(lines)


judge.register(app)
language.register(app)
mcp.register(app)


def _load(file: str) -> Any:
    from fusedsl import frontend

    if file == "-":
        return frontend.parse(sys.stdin.read())
    return frontend.load(Path(file))


def _compile(file: str, numerics: str) -> Any:
    import fusedsl

    return fusedsl.compile(_load(file), numerics=numerics)


def _not_allowed(option: str, got: str, choices: tuple[str, ...]) -> Diagnostic:
    from fusedsl.diagnostics import did_you_mean

    return Diagnostic(
        "F0507",
        f"{option} does not accept '{got}'",
        expected=", ".join(choices),
        got=got,
        fix=did_you_mean(got, choices, "values"),
    )


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit; plain `fusedsl` shows the help."""
    app((sys.argv[1:] if arguments is None else arguments) or ["--help"], prog_name="fusedsl")
