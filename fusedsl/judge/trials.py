"""Whether a program's values are right: the calls it has to survive before it is timed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fusedsl.judge.compare import Distance, bar, check, distance
from fusedsl.judge.draw import digest, draw, packed
from fusedsl.judge.process import Worker
from fusedsl.judge.task import BadTask, Dims, Task
from fusedsl.judge.verdict import Code, Error, Rejection

#: Seeds come from the system, after a candidate was loaded.
_SYSTEM = random.SystemRandom()

#: With so few rows, eager's error in one draw is luck: more draws make the bar.
_FEW_ROWS, _MORE_DRAWS = 8, 3


@dataclass(frozen=True)
class Truth:
    """What one draw of inputs has to give."""

    dims: Dims
    case: str
    seed: int
    digest: str
    exact: tuple[Tensor, ...]
    eager: tuple[Tensor, ...]
    allowed: tuple[Distance, ...]


#: What a (dims, case, number) has to give.
Truths = Callable[[Dims, str, int], Truth]


def fresh_seed() -> int:
    """A seed that nobody can know beforehand."""
    return _SYSTEM.getrandbits(48)


def truth(
    task: Task,
    device: str,
    dims: Dims,
    case: str,
    seed: int | None = None,
    weights: int | None = None,
) -> Truth:
    """Draw, and evaluate the reference in fp64 and in eager torch; weights may have a seed of
    their own. Raises BadTask."""
    seed = fresh_seed() if seed is None else seed
    print_, exact, eager = _evaluated(task, device, dims, case, seed, weights)
    far = [distance(e, x) for e, x in zip(eager, exact, strict=True)]
    if exact[0].dim() == 0 or exact[0].shape[0] < _FEW_ROWS:
        for _ in range(_MORE_DRAWS):
            _, other, rounded = _evaluated(task, device, dims, case, fresh_seed(), weights)
            more = [distance(e, x) for e, x in zip(rounded, other, strict=True)]
            far = [a.worst(b) for a, b in zip(far, more, strict=True)]
    allowed = tuple(bar(d, e.dtype, e.shape) for d, e in zip(far, eager, strict=True))
    return Truth(dims, case, seed, print_, exact, eager, allowed)


def _evaluated(
    task: Task, device: str, dims: Dims, case: str, seed: int, weights: int | None
) -> tuple[str, tuple[Tensor, ...], tuple[Tensor, ...]]:
    inputs = draw(task, dims, case, seed, device)
    if weights is not None:
        pairs = zip(inputs, draw(task, dims, case, weights, device), task.inputs, strict=True)
        inputs = [w if item.weight else x for x, w, item in pairs]
    fingerprint = digest(inputs)
    with torch.no_grad():
        try:
            exact, eager = task.exact(inputs), task.eager(inputs)
        except Exception as error:
            raise BadTask(f"{task.name}: the reference fails at {dims}: {error}") from error
    for e, x in zip(eager, exact, strict=True):
        if x.dtype != torch.float64 or e.shape != x.shape:
            raise BadTask(f"{task.name}: the reference does not compute in its inputs' dtype")
        if case == "normal" and not bool(x.isfinite().all()):
            raise BadTask(f"{task.name}: the reference is not finite on normal inputs")
    if digest(inputs) != fingerprint:
        raise BadTask(f"{task.name}: the reference changes its inputs")
    return fingerprint, exact, eager


@dataclass
class Trials:
    """The calls of one candidate. `truths` gives what a (dims, case, number) has to give."""

    task: Task
    worker: Worker
    truths: Truths
    cases: Sequence[str]
    errors: dict[str, Error] = field(default_factory=dict[str, Error])
    _seen: list[tuple[Truth, list[Tensor]]] = field(
        default_factory=list[tuple[Truth, list[Tensor]]]
    )

    def shape(self, dims: Dims) -> None:
        """Every call at one shape. Raises Rejection."""
        self._seen.clear()
        first, second = self.truths(dims, "normal", 0), self.truths(dims, "normal", 1)
        self._expect(first)
        self._fill("a", first, fresh=True)
        values = self._call("a", first, "first")
        repeated = self._call("a", first)
        self._untouched(first, values)
        if self.task.deterministic and not _same(repeated, values):
            text = "two calls on the same inputs differ"
            raise self._rejection(first, Code.NOT_DETERMINISTIC, text)
        self._fill("b", second, fresh=True)
        self._call("b", second)
        self._untouched(first, values)
        self._fill("a", second, fresh=False)
        self._call("a", second)
        for case in self.cases:
            if case == "normal":
                continue
            hard = self.truths(dims, case, 0)
            self._fill("a", hard, fresh=False)
            self._call("a", hard)
        if self.worker.device != "cpu":
            late = self.truths(dims, "normal", 2)
            self._fill("a", late, fresh=False)
            self._call("a", late, late=True)

    def _untouched(self, first: Truth, values: list[Tensor]) -> None:
        """The result of the first call is left alone by later ones."""
        live = self.worker.tensors({"do": "send", "keep": "first", "live": True}, values)
        if not _same(live, values):
            raise self._rejection(first, Code.OUTPUT_REUSED, "a later call changes its result")

    def _expect(self, first: Truth) -> None:
        outputs = [[list(t.shape), _dtype(t)] for t in first.eager]
        self.worker.ask({"do": "expect", "outputs": outputs})

    def _fill(self, slot: str, what: Truth, *, fresh: bool) -> None:
        self.worker.ask(
            {
                "do": "fill",
                "slot": slot,
                "dims": what.dims,
                "case": what.case,
                "seed": what.seed,
                "fresh": fresh,
            }
        )

    def _call(
        self, slot: str, what: Truth, keep: str = "latest", *, late: bool = False
    ) -> list[Tensor]:
        """One call, held against what it has to give."""
        try:
            answer = self.worker.ask({"do": "run", "slot": slot, "keep": keep, "late": late})
        except Rejection as error:
            raise self._rejection(
                what, error.reason.code, error.reason.message, detail=error.reason.detail
            ) from None
        refuse_patches(answer)
        self._looks_right(what, answer.get("outputs"))
        values = self.worker.tensors({"do": "send", "keep": keep, "live": False}, list(what.eager))
        if answer.get("digest") != what.digest:
            raise self._rejection(what, Code.INPUT_MUTATED, "it changes its inputs")
        self._hold(what, values, late)
        self._seen.append((what, values))
        return values

    def _hold(self, what: Truth, values: list[Tensor], late: bool) -> None:
        held = zip(values, what.exact, what.eager, what.allowed, strict=True)
        for number, (got, exact, eager, allowed) in enumerate(held):
            found = check(got, exact, eager, allowed, what.case)
            if found is None:
                self._note(what.case, distance(got, exact).total, distance(eager, exact).total)
                continue
            code, message = found.code, found.message
            if late:
                code = Code.SIDE_STREAM
                message = f"work is not ordered with the current stream: {message}"
            elif self._is_old(what, values):
                code = Code.RESULT_CACHED
                message = "the result of an earlier call, on inputs that hold new values"
            raise self._rejection(what, code, message, output=number)

    def _is_old(self, what: Truth, values: list[Tensor]) -> bool:
        return any(old.seed != what.seed and _same(before, values) for old, before in self._seen)

    def _note(self, case: str, error: float, eager: float) -> None:
        known = self.errors.get(case)
        if known is None or error > known.error:
            self.errors[case] = Error(case, error, eager)

    def _looks_right(self, what: Truth, outputs: Any) -> None:
        """Count, kind, shape, dtype and device of the outputs."""
        if not isinstance(outputs, list) or len(outputs) != len(what.eager):
            count = len(outputs) if isinstance(outputs, list) else 0
            raise self._rejection(
                what, Code.WRONG_COUNT, f"{count} outputs instead of {len(what.eager)}"
            )
        for number, (meta, want) in enumerate(zip(outputs, what.eager, strict=True)):
            if not isinstance(meta, list) or len(meta) != 3:
                raise self._rejection(
                    what, Code.NOT_A_TENSOR, f"the output is a {meta}", output=number
                )
            pairs = (
                (Code.WRONG_SHAPE, meta[0], list(want.shape)),
                (Code.WRONG_DTYPE, meta[1], _dtype(want)),
                (Code.WRONG_DEVICE, meta[2], want.device.type),
            )
            for code, mine, theirs in pairs:
                if mine != theirs:
                    text = f"{mine} instead of {theirs}"
                    raise self._rejection(what, code, text, output=number)

    def _rejection(self, what: Truth, code: Code, message: str, **where: Any) -> Rejection:
        return Rejection(code, message, case=what.case, dims=what.dims, **where)


def refuse_patches(answer: dict[str, Any]) -> None:
    """Raise Rejection where watched functions were replaced."""
    patched = answer.get("patched")
    if patched:
        names = ", ".join(map(str, patched))
        raise Rejection(Code.CLOCK_TAMPERED, f"it replaces {names}")


def _same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Equal bit for bit."""
    return all(
        torch.equal(packed(x).view(torch.uint8), packed(y).view(torch.uint8))
        if x.dim()
        else torch.equal(x.reshape(1).view(torch.uint8), y.reshape(1).view(torch.uint8))
        for x, y in zip(a, b, strict=True)
    )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
