"""`run`: one call on random or given inputs, held against fp64 and against eager torch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from fusedsl.cli.inputs import (
    complete_dims,
    dims_of,
    find_device,
    parse_dims,
    read_tensors,
)
from fusedsl.cli.output import note, print_table, table
from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.frontend.shrink import shrink

if TYPE_CHECKING:
    from torch import Tensor

    from fusedsl.ir import Graph

#: What a symbol stands for where neither --dims nor an input says.
ROWS = 128

#: Multiplications and additions above which a run in the interpreter takes long.
LONG = 4e9


@dataclass(frozen=True)
class Run:
    """One run. Errors are relative Frobenius norms against fp64, the largest over the outputs;
    times are medians in milliseconds."""

    name: str
    device: str
    dims: dict[str, int]
    error: float
    eager_error: float
    ok: bool
    kernels: dict[str, int]
    ms: float
    eager_ms: float
    outputs: dict[str, dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Every field by name."""
        return asdict(self)


def run(
    graph: Graph,
    *,
    dims: Sequence[str] | None,
    given: list[str],
    seed: int,
    device: str | None,
    numerics: str,
    factor: int,
    repeat: int,
) -> Run:
    """Compile and run `graph`, shrunk by `factor`. Raises FusedslError as a call does."""
    import fusedsl

    graph = shrink(graph, factor)
    where = find_device(device)
    loaded = read_tensors(graph, given)
    env = complete_dims(graph, {**dims_of(graph, loaded), **parse_dims(dims)}, ROWS)
    program = fusedsl.compile(graph, numerics=numerics)
    _warn(graph, env, where, factor)
    with reporting_memory(env):
        return _measure(program, graph, env, where, seed, loaded, repeat)


@contextlib.contextmanager
def reporting_memory(env: Mapping[str, int]) -> Iterator[None]:
    """What does not fit in memory is a mistake with a code (F0105)."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
            raise FusedslError(_too_large(env, str(error))) from None
        raise


_OUT_OF_MEMORY = re.compile(
    "out of memory|not enough memory|can't allocate|alloc.*memory|size.*overflow", re.I
)


def _too_large(env: Mapping[str, int], reason: str) -> Diagnostic:
    return Diagnostic(
        "F0105",
        "the tensors do not fit in memory",
        expected="sizes that fit, weights and their fp64 copies included",
        got=f"{', '.join(f'{k} = {v}' for k, v in env.items())}: {reason.splitlines()[0][:200]}"
        if reason
        else None,
        fix="give smaller --dims, or --shrink the program",
    )


def _measure(
    program: Any,
    graph: Graph,
    env: dict[str, int],
    where: str,
    seed: int,
    loaded: Mapping[str, Tensor],
    repeat: int,
) -> Run:
    import torch

    from fusedsl.ir import evaluate, evaluate_eager, random_inputs
    from fusedsl.runtime.timing import wall_ms

    inputs = random_inputs(graph, env, seed=seed, device=where)
    inputs.update({name: tensor.to(where) for name, tensor in loaded.items()})
    tensors = tuple(inputs[p.name] for p in graph.params)
    with torch.no_grad():
        outputs = _outputs(program, tensors)
        exact = evaluate(graph, inputs)
        eager = evaluate_eager(graph, inputs)
        ms = wall_ms(lambda: program(*tensors), where, repeat)
        eager_ms = wall_ms(lambda: evaluate_eager(graph, inputs), where, repeat)
    lines = program.explain(env)
    compared = _compare(dict(zip(graph.outputs, outputs, strict=True)), exact, eager)
    return Run(
        graph.name,
        where,
        env,
        max(o["error"] for o in compared.values()),
        max(o["eager_error"] for o in compared.values()),
        all(o["ok"] for o in compared.values()),
        {"fused": lines.fused_launches, "eager": lines.eager_launches},
        ms,
        eager_ms,
        compared,
    )


def _outputs(program: Any, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    result = program(*tensors)
    return result if isinstance(result, tuple) else (result,)


def _compare(
    got: Mapping[str, Tensor], exact: Mapping[str, Tensor], eager: Mapping[str, Tensor]
) -> dict[str, dict[str, Any]]:
    """Each output against fp64, by the measure and the bar of `Program.verify`."""
    from fusedsl.runtime.report import check

    compared: dict[str, dict[str, Any]] = {}
    for name, tensor in got.items():
        held = check(tensor, exact[name], eager[name], name=name, case="given", seed=0)
        compared[name] = {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "error": held.error,
            "eager_error": held.eager_error,
            "finite": held.finite,
            "ok": held.ok,
        }
    return compared


def show(result: Run) -> None:
    """A run for a person."""
    numbers = ("error", "eager's error")
    rows = table("output", "shape", *numbers, "", numbers=numbers)
    for name, output in result.outputs.items():
        verdict = "ok" if output["ok"] else "WORSE THAN EAGER" if output["finite"] else "NOT FINITE"
        shape = f"{output['dtype']} {output['shape']}"
        rows.add_row(name, shape, f"{output['error']:.3e}", f"{output['eager_error']:.3e}", verdict)
    at = ", ".join(f"{k} = {v}" for k, v in result.dims.items())
    typer.echo(f"{result.name} on {result.device}{f' at {at}' if at else ''}")
    print_table(rows)
    launches = result.kernels
    typer.echo(
        f"{launches['fused']} kernels, {launches['eager']} with one for each block; "
        f"{result.ms:.3f} ms, eager {result.eager_ms:.3f} ms"
    )
    if result.device == "cpu":
        note("note: on the CPU these are times of Triton's interpreter, not of the program")


def _warn(graph: Graph, env: Mapping[str, int], device: str, factor: int) -> None:
    """Say so before a run that will take minutes in the interpreter."""
    from fusedsl.runtime.roofline import flops_of

    if not device.startswith("cpu"):
        return
    work = flops_of(graph, env)
    if work > LONG:
        hint = "" if factor > 1 else "; --shrink 64 gives a quick look"
        note(f"note: {work / 1e9:.0f} GFLOP in Triton's interpreter on the CPU takes long{hint}")
