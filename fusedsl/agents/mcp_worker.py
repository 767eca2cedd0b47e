"""A worker: one process that does what a tool asks, under limits of memory and processor time.

It reads one JSON request a line on standard input and answers each with one line. What anything
else prints goes to standard error. It ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import sys
from typing import Any, NoReturn

from fusedsl.agents import mcp_work
from fusedsl.diagnostics import Diagnostic

#: Set by tests alone: lets a program called fault_hang, fault_crash or fault_memory have its way.
_FAULTS = "_FUSEDSL_WORKER_FAULTS"

_OUT_OF_MEMORY = re.compile("out of memory|not enough memory|can't allocate|alloc.*memory", re.I)


def main() -> None:
    """Serve until the input ends. Arguments: megabytes beyond what imports take, or 0."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory(int(sys.argv[1]))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        answer = _answer(json.loads(line))
        try:
            text = json.dumps(answer)
        except (MemoryError, ValueError) as error:
            text = json.dumps({"error": type(error).__name__})
        print(text, file=answers, flush=True)
        if "error" in answer or "memory" in answer:
            return  # a process that has been out of memory is not used again


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """The result of a request; `memory` or `error` where there is none."""
    try:
        _limit_time(request["seconds"])
        if os.environ.get(_FAULTS):
            _fault(str(request["arguments"].get("program", "")))
        return {"result": mcp_work.run(request["tool"], request["arguments"])}
    except MemoryError:
        return {"memory": "MemoryError"}
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if _OUT_OF_MEMORY.search(text):
            return {"memory": text.splitlines()[0][:200]}
        return {"error": text[:2000]}


def _limit_memory(megabytes: int) -> None:
    """So much memory beyond what the process has now. The address space of a process that uses
    CUDA says nothing about its memory, so only private pages count there."""
    if not megabytes:
        return
    import torch

    kinds = [resource.RLIMIT_DATA]
    if not torch.cuda.is_available():
        kinds.append(resource.RLIMIT_AS)
    limit = _mapped_bytes() + megabytes * (1 << 20)
    for kind in kinds:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))


def _mapped_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 4 << 30


def _limit_time(seconds: float) -> None:
    """End by itself if nobody is left to end it: processor time of all threads, generously."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    allowed = int(used.ru_utime + used.ru_stime + seconds * (os.cpu_count() or 1)) + 5
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (allowed, hard))


def _fault(program: str) -> None:
    if "kernel fault_hang(" in program:
        _hang()
    if "kernel fault_crash(" in program:
        os.abort()
    if "kernel fault_memory(" in program:
        blocks: list[bytearray] = []
        while True:
            blocks.append(bytearray(1 << 26))


def _hang() -> NoReturn:
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def too_slow(seconds: float) -> Diagnostic:
    """F0608: the time is up."""
    return Diagnostic(
        "F0608",
        "the request took too long and was ended",
        expected=f"an answer within {seconds:g} s",
        got="none",
        fix="give smaller dims, divide the fixed ones (shrink=64), or raise the server's --timeout",
    )


def too_large(megabytes: int, reason: str) -> Diagnostic:
    """F0608: the memory is used up."""
    return Diagnostic(
        "F0608",
        "the request needs too much memory",
        expected=f"at most {megabytes:,} MB",
        got=reason,
        fix="give smaller dims, divide the fixed ones (shrink=64), or raise the server's --memory",
    )


if __name__ == "__main__":
    main()
