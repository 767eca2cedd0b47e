"""The result of judging: stable codes, reasons, times, errors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Code(str, Enum):
    """Why a program is rejected, or a task refused. A code never changes its meaning."""

    LOAD_FAILED = "LOAD_FAILED"
    EXCEPTION = "EXCEPTION"
    CRASHED = "CRASHED"
    TIMED_OUT = "TIMED_OUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NOT_A_TENSOR = "NOT_A_TENSOR"
    WRONG_COUNT = "WRONG_COUNT"
    WRONG_SHAPE = "WRONG_SHAPE"
    WRONG_DTYPE = "WRONG_DTYPE"
    WRONG_DEVICE = "WRONG_DEVICE"
    WRONG_VALUES = "WRONG_VALUES"
    LOW_PRECISION = "LOW_PRECISION"
    NOT_FINITE = "NOT_FINITE"
    STALE_OUTPUT = "STALE_OUTPUT"
    NAN_NOT_PROPAGATED = "NAN_NOT_PROPAGATED"
    INPUT_MUTATED = "INPUT_MUTATED"
    RESULT_CACHED = "RESULT_CACHED"
    OUTPUT_REUSED = "OUTPUT_REUSED"
    NOT_DETERMINISTIC = "NOT_DETERMINISTIC"
    SIDE_STREAM = "SIDE_STREAM"
    CLOCK_TAMPERED = "CLOCK_TAMPERED"
    ABOVE_ROOFLINE = "ABOVE_ROOFLINE"
    TOO_SLOW = "TOO_SLOW"
    NON_DISCRIMINATING = "NON_DISCRIMINATING"


@dataclass(frozen=True)
class Reason:
    """One reason: its code, a sentence, and where it showed (case, dims, output) if known."""

    code: Code
    message: str
    case: str | None = None
    dims: dict[str, int] | None = None
    output: int | None = None
    detail: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Every field by name."""
        return {**asdict(self), "code": self.code.value}


class Rejection(Exception):
    """Raised inside the procedure where a candidate fails; ends up in the verdict."""

    def __init__(self, code: Code, message: str, **where: Any):
        self.reason = Reason(code, message, **where)
        super().__init__(f"{code.value}: {message}")


@dataclass(frozen=True)
class Speed:
    """Medians in seconds for one call, by the judge's own clock, at the timed dims.

    `at_best` is what the device would need for the bytes and the arithmetic alone.
    """

    seconds: float
    baseline_seconds: float
    at_best: float
    rounds: int
    calls: int
    dims: dict[str, int]

    @property
    def speedup(self) -> float:
        """Times faster than the baseline."""
        return self.baseline_seconds / self.seconds if self.seconds > 0 else float("inf")

    def to_json(self) -> dict[str, Any]:
        """Every field by name, and the speed-up."""
        return {"speedup": self.speedup, **asdict(self)}


@dataclass(frozen=True)
class Error:
    """The largest relative Frobenius error against fp64 in one case, and eager's there."""

    case: str
    error: float
    eager_error: float


@dataclass(frozen=True)
class Verdict:
    """`status` is accepted, rejected (the program failed) or refused (the task is no use)."""

    status: str
    task: str
    program: str
    device: str
    reasons: tuple[Reason, ...] = ()
    errors: tuple[Error, ...] = ()
    speed: Speed | None = None
    shapes: tuple[dict[str, int], ...] = ()
    mutants: tuple[str, ...] = field(default=())

    @property
    def accepted(self) -> bool:
        """Whether the program is right, and its time can be believed."""
        return self.status == "accepted"

    @property
    def code(self) -> Code | None:
        """The code of the first reason."""
        return self.reasons[0].code if self.reasons else None

    @property
    def exit_code(self) -> int:
        """0 accepted, 1 rejected, 2 refused."""
        return {"accepted": 0, "rejected": 1}.get(self.status, 2)

    def to_json(self) -> dict[str, Any]:
        """The JSON form; docs/judge.md has its keys."""
        return {
            "status": self.status,
            "accepted": self.accepted,
            "task": self.task,
            "program": self.program,
            "device": self.device,
            "reasons": [reason.to_json() for reason in self.reasons],
            "errors": [asdict(error) for error in self.errors],
            "speed": self.speed.to_json() if self.speed else None,
            "shapes": list(self.shapes),
            "mutants": list(self.mutants),
        }
