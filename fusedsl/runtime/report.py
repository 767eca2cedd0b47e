"""Checking a program against the fp64 oracle and against eager torch, on values that hurt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.ir import Graph, Layout, evaluate, evaluate_eager, random_inputs
from fusedsl.runtime.device import device_of
from fusedsl.runtime.explain import nominal_dims
from fusedsl.runtime.load import interprets

if TYPE_CHECKING:
    from fusedsl.runtime.program import Program

#: Error allowed against eager's: a moved rounding may fall either way on one value.
RATIO = 1.1
#: Roundings shared by a row make the errors of one row luck: over m rows, by about 1/sqrt(m).
LUCK = 1.0
#: Added to it: half a unit in the last place of fp32, which a whole row of a norm may share.
FLOOR = 2.0**-25

#: Kinds of input: fresh normal values, and the values that break kernels.
CASES = ("normal", "outlier columns", "zero rows", "large means")


@dataclass(frozen=True)
class Check:
    """One output of one run. Errors are relative Frobenius norms against fp64; `max_*` are the
    largest absolute errors over the largest absolute value."""

    case: str
    seed: int
    output: str
    error: float
    eager_error: float
    max_error: float
    max_eager_error: float
    finite: bool
    ok: bool

    @property
    def ratio(self) -> float:
        """This program's error over eager's; below 1 it is the more exact one."""
        return self.error / self.eager_error if self.eager_error else float(self.error > 0)


@dataclass(frozen=True)
class Report:
    """Every check of `Program.verify`."""

    name: str
    dims: dict[str, int]
    device: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)

    @property
    def worst(self) -> Check:
        """The check with the largest error relative to eager's."""
        return max(self.checks, key=lambda check: (not check.ok, check.ratio))

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.name,
            "dims": self.dims,
            "device": self.device,
            "ok": self.ok,
            "checks": [{**asdict(check), "ratio": check.ratio} for check in self.checks],
        }

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.device}: {'passed' if self.ok else 'FAILED'}"]
        for c in self.checks:
            verdict = "ok  " if c.ok else "FAIL"
            lines.append(
                f"  {verdict} {c.case}, seed {c.seed}, {c.output}: error {c.error:.2e}, "
                f"eager {c.eager_error:.2e} (ratio {c.ratio:.2f})"
                + ("" if c.finite else ", not finite where fp64 is")
            )
        return "\n".join(lines)


def verify(
    program: Program,
    dims: Mapping[str, int],
    *,
    seeds: Sequence[int] = (0, 1),
    device: Any = None,
) -> Report:
    """Run `program` on fresh inputs of every kind and compare; see `Program.verify`.

    A check passes if the error is at most `allowed_error` and the result is finite wherever the
    fp64 result fits its dtype. Buffers hold NaN before each run.
    """
    graph = program.stages.source
    default = 37 if interprets() else 509
    env = nominal_dims(graph, dims, default)
    where = device_of(device or ("cpu" if interprets() else "cuda"))
    seeds = _seeds(seeds)
    checks: list[Check] = []
    for case in CASES:
        for seed in seeds:
            inputs = hard_inputs(graph, env, case, seed, str(where))
            checks += _run(program, inputs, case, seed)
    return Report(graph.name, env, str(where), tuple(checks))


def _seeds(seeds: Any) -> list[int]:
    """The seeds; without one nothing would be checked. Raises FusedslError (F0507)."""
    found: list[Any] = list(seeds) if isinstance(seeds, Iterable) else []
    if found and all(isinstance(seed, int) for seed in found):
        return found
    raise FusedslError(
        Diagnostic(
            "F0507",
            f"there are no seeds in '{seeds}'",
            expected="at least one integer, in a sequence",
            got=str(seeds),
            fix="for example seeds=(0, 1)",
        )
    )


def hard_inputs(
    graph: Graph, env: Mapping[str, int], case: str, seed: int, device: str
) -> dict[str, Tensor]:
    """Fresh inputs; activations carry the case's values.

    "outlier columns": two columns times 1000. "zero rows": every third row. "large means": every
    other row gets a mean of 100 standard deviations.
    """
    inputs = random_inputs(graph, env, seed=seed, device=device)
    for param in graph.params:
        x = inputs[param.name]
        if param.weight or param.type.layout is not Layout.TILE or 0 in x.shape:
            continue
        if case == "outlier columns":
            x[:, seed % x.shape[1]] *= 1000
            x[:, -1] *= 1000
        elif case == "zero rows":
            x[::3] = 0
        elif case == "large means":
            x[::2] += 100
    return inputs


def _run(program: Program, inputs: Mapping[str, Tensor], case: str, seed: int) -> list[Check]:
    graph = program.stages.source
    with torch.no_grad(), _tf32(program.options.tf32):
        exact = evaluate(graph, inputs)
        eager = evaluate_eager(graph, inputs)
        given = tuple(inputs[p.name] for p in graph.params)
        outputs = program.run_poisoned(*given)
    return [
        check(got, exact[name], eager[name], name=name, case=case, seed=seed)
        for name, got in zip(graph.outputs, outputs, strict=True)
    ]


def check(got: Tensor, exact: Tensor, eager: Tensor, *, name: str, case: str, seed: int) -> Check:
    """Hold one output against fp64 and against eager torch."""
    error, largest = distance(got, exact)
    eager_error, eager_largest = distance(eager, exact)
    finite = _finite(got, exact)
    ok = finite and error <= allowed_error(eager_error, got.shape[0])
    return Check(case, seed, name, error, eager_error, largest, eager_largest, finite, ok)


def allowed_error(eager_error: float, rows: int) -> float:
    """The largest error that passes beside eager's, of a result with so many rows."""
    return RATIO * (1 + LUCK / max(1, rows) ** 0.5) * eager_error + FLOOR


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Eager fp32 products in the precision that the program was compiled for."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32 = before


def distance(got: Tensor, exact: Tensor) -> tuple[float, float]:
    """Relative Frobenius and relative maximum error against fp64, over the finite values."""
    if not got.numel():
        return 0.0, 0.0
    where = exact.isfinite() & got.isfinite()
    want = torch.where(where, exact, 0.0)
    error = torch.where(where, got.double(), 0.0) - want
    scale = float(want.norm()) or 1.0
    peak = float(want.abs().max()) or 1.0
    return float(error.norm()) / scale, float(error.abs().max()) / peak


def _finite(got: Tensor, exact: Tensor) -> bool:
    """Finite wherever the fp64 value fits the dtype."""
    fits = exact.abs() <= torch.finfo(got.dtype).max
    return bool((got.isfinite() | ~fits).all())
