"""What the tools do, as plain functions from JSON to JSON; a bad program is a result."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fusedsl.bench import OURS, measure
from fusedsl.diagnostics import Diagnostic, FusedslError, did_you_mean
from fusedsl.frontend import from_json, parse
from fusedsl.frontend.repair import repair
from fusedsl.frontend.shrink import shrink
from fusedsl.ir import Graph
from fusedsl.pipeline import compile as compile_program
from fusedsl.pipeline import read

#: Characters of a program, at most.
LONGEST = 1_000_000
#: Rows where nobody says how many: enough for every tile on a GPU, few for the interpreter.
ROWS = {"cpu": 32, "cuda": 4096}

Json = dict[str, Any]


def check(program: str) -> Json:
    """The signature and the canonical text of a program."""
    graph = _read(program)
    outputs = ", ".join(f"{name}: {graph.types[name]}" for name in graph.outputs)
    params = ", ".join(f"{p.name}: {'weight ' * p.weight}{p.type}" for p in graph.params)
    signature = f"kernel {graph.name}({params}) -> ({outputs})"
    return {"name": graph.name, "signature": signature, "text": str(graph)}


def compile(program: str, numerics: str = "moved", main_loop: str | None = None) -> Json:
    """The emitted source of a program, and its kernels."""
    compiled = compile_program(_read(program), numerics=numerics)
    code = compiled.source if main_loop is None else compiled.source_for(main_loop)
    kernels = [kernel.name for kernel in compiled.kernels]
    return {"name": compiled.name, "kernels": kernels, "code": code, "main_loop": main_loop}


def explain(program: str, dims: Mapping[str, int], numerics: str = "moved") -> Json:
    """Kernels, rules, bytes and launches."""
    graph = _read(program)
    env = _complete(graph, dims, 4096)
    return compile_program(graph, numerics=numerics).explain(env).to_json()


def verify(
    program: str,
    dims: Mapping[str, int],
    numerics: str = "moved",
    device: str | None = None,
    seeds: int = 2,
    factor: int = 1,
) -> Json:
    """Run on fresh and hard inputs, and compare with fp64 and with eager torch."""
    graph = shrink(_read(program), factor)
    where = _device(device)
    env = _complete(graph, dims, ROWS[where.partition(":")[0]])
    compiled = compile_program(graph, numerics=numerics)
    report = compiled.verify(env, seeds=range(seeds), device=where)
    data = report.to_json()
    return {**data, "ok": True, "passed": report.ok}


def bench(
    program: str,
    dims: Mapping[str, int],
    numerics: str = "moved",
    device: str | None = None,
    repeat: int = 10,
    factor: int = 1,
) -> Json:
    """Median milliseconds of one call, fused and eager, of outputs that were checked: before the
    timing, and those that were timed."""
    graph = shrink(_read(program), factor)
    where = _device(device)
    env = _complete(graph, dims, ROWS[where.partition(":")[0]])
    compiled = compile_program(graph, numerics=numerics)
    found = measure(compiled, env, where, ("eager",), rounds=repeat, roofline=False)
    fused_ms, eager_ms = (found.times[name].cold_ms for name in (OURS, "eager"))
    return {
        "name": graph.name,
        "dims": env,
        "device": where,
        "interpreted": where.startswith("cpu"),
        "passed": found.ok,
        "fused_ms": fused_ms,
        "eager_ms": eager_ms,
        "speedup": eager_ms / fused_ms,
        "repeat": repeat,
        "checks": [{**vars(c), "ratio": c.ratio} for c in found.checks[OURS]],
    }


def fix(program: str) -> Json:
    """The program after its machine-applicable fixes, and what is left."""
    _fits(program)
    result = repair(program)
    return {
        "ok": result.ok,
        "diagnostics": [item.to_json() for item in result.left],
        "text": result.text,
        "applied": [item.to_json() for item in result.applied],
        "rounds": result.rounds,
    }


#: The tools by name.
TOOLS: dict[str, Callable[..., Json]] = {
    "check": check,
    "compile": compile,
    "explain": explain,
    "verify": verify,
    "bench": bench,
    "fix": fix,
}


def run(tool: str, arguments: Json) -> Json:
    """The result of a tool: `ok`, `diagnostics` and what it made."""
    try:
        made = TOOLS[tool](**arguments)
    except FusedslError as error:
        return failure(*error.diagnostics)
    return {"ok": True, "diagnostics": [], **made}


def failure(*diagnostics: Diagnostic) -> Json:
    """The result where a program or a request is wrong."""
    return {"ok": False, "diagnostics": [item.to_json() for item in diagnostics]}


def _fits(program: str) -> None:
    if len(program) > LONGEST:
        raise FusedslError(
            Diagnostic(
                "F0101",
                "the program is too long",
                expected=f"at most {LONGEST:,} characters",
                got=f"{len(program):,}",
                fix="one kernel a text; split it into several",
            )
        )


def _read(program: str) -> Graph:
    """Text or a JSON graph; never a path: a client has no business with files of the server."""
    _fits(program)
    if program.lstrip("\ufeff \t\r\n").startswith("{"):
        return read(from_json(program))
    return read(parse(program))


def _complete(graph: Graph, given: Mapping[str, int], default: int) -> dict[str, int]:
    known = dict.fromkeys(s for p in graph.params for s in p.type.symbols)
    for name, size in given.items():
        if name not in known:
            raise FusedslError(
                Diagnostic(
                    "F0404",
                    f"'{graph.name}' has no dimension '{name}'",
                    expected=", ".join(known) or "no symbolic dimensions",
                    got=name,
                    fix=did_you_mean(name, known, "dimensions"),
                )
            )
        if not 0 < size < 1 << 31:
            raise FusedslError(
                Diagnostic(
                    "F0105",
                    f"dimension '{name}' is out of range",
                    expected="an integer from 1 to 2147483647",
                    got=str(size)[:20],
                    fix=f"give '{name}' a size that fits in memory",
                )
            )
    return {name: given.get(name, default) for name in known}


def _device(name: str | None) -> str:
    """The device asked for, else CUDA where it is usable. Raises FusedslError (F0507)."""
    import torch

    usable = torch.cuda.is_available()
    if name is None:
        return "cuda" if usable else "cpu"
    match = re.fullmatch(r"cuda(?::(\d{1,3}))?", name)
    here = usable and match and int(match[1] or 0) < torch.cuda.device_count()
    if name == "cpu" or here:
        return name
    raise FusedslError(
        Diagnostic(
            "F0507",
            f"there is no device '{name[:40]}' here",
            expected="cpu, cuda or cuda:N" if usable else "cpu: no CUDA device is usable",
            got=name[:40],
            fix="leave 'device' out",
        )
    )
