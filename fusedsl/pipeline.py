"""The stages in order: this page is the table of contents.

    parse -> expand -> rewrite -> fuse -> (schedule, emit, load, launch: at the first call)

Each stage is a function that can be called alone; `Program.graph(stage)` shows what it made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusedsl import frontend
from fusedsl.diagnostics import FusedslError
from fusedsl.fuse import fuse
from fusedsl.ir import Graph, verify
from fusedsl.rewrite import RewriteOptions, RewriteResult, expand, rewrite
from fusedsl.runtime.program import Options, Program, Stages, unknown_option

#: The values each option may have.
OPTIONS: dict[str, tuple[object, ...]] = {
    "numerics": ("moved", "as_written"),
    "fp32_shift": (False, True),
    "tf32": (False, True),
    "fast_math": (True, False),
}


def compile(
    program: str | Path | Graph | Mapping[str, Any] | Any,
    *,
    numerics: str = "moved",
    fp32_shift: bool = False,
    tf32: bool = False,
    fast_math: bool = True,
    tune: bool = False,
) -> Program:
    """Compile a program; no kernel is built before the first call.

    `program` is DSL text, a JSON graph (text or dict), a path to either, a `Graph`, or a builder.

    `numerics="moved"` lets a rewrite drop roundings (closer to fp64, not bit-equal to eager);
    "as_written" keeps every one and fuses what that allows. `fp32_shift` lets the mean of a
    LayerNorm in fp32 be moved past a projection, `tf32` lets fp32 projections use TF32: both cost
    digits. `fast_math` lets kernels whose tiles are all stored in 16 bits use the hardware's
    approximate tanh: the error of a result as a whole does not show it, but silu and sigmoid far
    below zero lose relative accuracy (up to abs(x) * 2^-12 absolute); `fast_math=False` uses the
    forms that fp32 results always get.

    `tune=True` times each kernel in a few configurations at the first call of every shape class
    (seconds to a minute) and keeps the fastest in the cache folder, where later processes find it
    without asking for it; `Program.tune` does the same ahead of any call.

    Raises FusedslError: F01xx to F04xx for the program, F0507 for an option.
    """
    options = checked_options(
        numerics=numerics, fp32_shift=fp32_shift, tf32=tf32, fast_math=fast_math
    )
    if type(tune) is not bool:
        raise FusedslError(unknown_option("value of tune", tune, (False, True)))
    source = read(program)
    expanded = verify(expand(source))
    rules = RewriteOptions(options.numerics, options.fp32_shift, options.tf32)
    rewritten = rewrite(expanded, rules)
    plan = fuse(verify(rewritten.graph))
    header = header_of(source, rewritten, options)
    return Program(Stages(source, expanded, rewritten, plan), options, header, tune=tune)


def read(program: str | Path | Graph | Mapping[str, Any] | Any) -> Graph:
    """The verified graph of anything `compile` accepts. A string is DSL text if it holds a line
    break or `kernel `, JSON if it begins with `{`, else a path."""
    if isinstance(program, Graph):
        return verify(program)
    if isinstance(program, Mapping):
        return verify(frontend.from_json(dict(program)))
    if isinstance(program, Path):
        return verify(frontend.load(program))
    if isinstance(program, str):
        if program.lstrip().startswith("{"):
            return verify(frontend.from_json(program))
        if "\n" in program or "kernel " in program:
            return verify(frontend.parse(program))
        return verify(frontend.load(Path(program)))
    build = getattr(program, "build", None) or getattr(program, "finish", None)
    if build is None:
        kinds = ("DSL text", "a JSON graph", "a path", "a Graph", "a builder")
        raise FusedslError(unknown_option("kind of program", type(program).__name__, kinds))
    return verify(build())


def checked_options(**given: Any) -> Options:
    """The options, or every unknown value at once. Raises FusedslError (F0507)."""
    problems = [
        unknown_option(f"value of {name}", value, OPTIONS[name])
        for name, value in given.items()
        if type(value) is not type(OPTIONS[name][0]) or value not in OPTIONS[name]
    ]
    if problems:
        raise FusedslError(problems)
    return Options(**given)


def header_of(source: Graph, rewritten: RewriteResult, options: Options) -> list[str]:
    """The comment at the top of the emitted file: the program, what fired, how to get it again."""
    text = str(source).rstrip().splitlines()
    fired = [f"{e.rule} at {e.where}: {e.reason}" for e in rewritten.trace if e.fired]
    flags = options.to_json()
    again = ", ".join(f"{name}={value!r}" for name, value in flags.items())
    return [
        f"{source.name}: emitted by fusedsl. Do not edit: compile the program instead.",
        "",
        *text,
        "",
        "Rules that fired:",
        *(f"  {line}" for line in fired or ["none"]),
        "",
        f"Again: fusedsl.compile({f'{source.name}.fdsl'!r}, {again}).source",
    ]
