"""The judge's side of a worker: requests with a deadline and a memory limit.

Replies are JSON and raw bytes, never pickles: what a candidate's process sends is only data here.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusedsl.judge.task import BadTask, Task
from fusedsl.judge.verdict import Code, Rejection

#: Taken before any candidate exists; a candidate never runs in this process.
_clock = time.monotonic

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STARTING = 120.0

#: Of the process that forks: it must make no CUDA context, not even to count devices.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}

#: Memory of the host that CUDA's libraries may take beside the budget.
_LIBRARIES = 6 << 30


class _Zygote:
    """The process that workers are forked from, started once."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fusedsl.judge.zygote", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": path, **_ENVIRONMENT},
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        self.control = ours
        ours.settimeout(_STARTING)
        if ours.recv(5) != b"ready":
            raise RuntimeError("the process that starts workers did not start")

    def fork(self, descriptor: int) -> int:
        """A new worker that talks through `descriptor`; its process id."""
        socket.send_fds(self.control, [b"w"], [descriptor])
        return struct.unpack("i", self.control.recv(4, socket.MSG_WAITALL))[0]

    def close(self) -> None:
        """End it."""
        self.control.close()
        self.process.kill()
        self.process.wait()


_zygote: _Zygote | None = None
_lock = threading.Lock()


def _fork(descriptor: int) -> int:
    global _zygote
    with _lock:
        if _zygote is None or _zygote.process.poll() is not None:
            _zygote = _Zygote()
            atexit.register(_zygote.close)
        return _zygote.fork(descriptor)


class Worker:
    """A process with one candidate in it. Raises Rejection where the candidate fails."""

    def __init__(self, task: Task, device: str):
        self.task, self.device = task, device
        self._spent, self._closed = 0.0, False
        self._connection, theirs = multiprocessing.Pipe()
        try:
            self._pid = _fork(theirs.fileno())
        finally:
            theirs.close()
        self._base = 0  # no limit yet
        self.takes_out = False
        self._host_memory = task.memory + (0 if device == "cpu" else _LIBRARIES)
        self._start()

    def _start(self) -> None:
        """Set the process up, which is not part of any candidate's budget."""
        message = {
            "do": "start",
            "task": str(self.task.file),
            "device": self.device,
            "threads": torch.get_num_threads(),
            "memory": self.task.memory,
        }
        try:
            self.ask(message, seconds=_STARTING)
        except Rejection as rejection:
            self.close()
            raise BadTask(f"no process for a program: {rejection}") from rejection
        self._base, self._spent = self._resident(), 0.0

    def load(self, spec: Mapping[str, str]) -> dict[str, Any]:
        """Load a candidate: nothing has been drawn yet, so it can know no input."""
        answer = self.ask({"do": "load", "candidate": dict(spec)})
        self.takes_out = bool(answer.get("takes_out"))
        return answer

    def ask(self, message: Mapping[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """One request and its answer, within the task's budget or these seconds."""
        started = _clock()
        left = seconds or min(self.task.call_seconds, self.task.seconds - self._spent)
        try:
            self._connection.send_bytes(json.dumps(message).encode())
            reply = self._answer(started + left)
        except (OSError, EOFError):
            self.close()
            raise Rejection(Code.CRASHED, "the program's process ended") from None
        finally:
            self._spent += _clock() - started
        return _understood(reply)

    def tensors(self, message: Mapping[str, Any], like: list[Tensor]) -> list[Tensor]:
        """One request whose answer is the bytes of tensors shaped as `like`."""
        self.ask(message)
        found: list[Tensor] = []
        for item in like:
            size = item.numel() * item.element_size()
            data = self._receive(size + 1)
            if len(data) != size:
                raise Rejection(Code.WRONG_SHAPE, f"{len(data)} bytes for an output of {size}")
            flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if size else None
            empty = torch.empty(item.shape, dtype=item.dtype)
            found.append(empty if flat is None else flat.view(item.dtype).reshape(item.shape))
        return [t.to(item.device) for t, item in zip(found, like, strict=True)]

    def stop(self) -> None:
        """Let it do nothing, in any of its threads, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process and whatever it started."""
        self._signal(signal.SIGKILL)
        self._closed = True
        self._connection.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _signal(self, number: int) -> None:
        if self._closed:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    def _receive(self, limit: int) -> bytes:
        if not self._connection.poll(self.task.call_seconds):
            self.close()
            raise Rejection(Code.TIMED_OUT, "the outputs did not arrive")
        try:
            return self._connection.recv_bytes(limit)
        except (OSError, EOFError):
            self.close()
            raise Rejection(Code.CRASHED, "the outputs did not arrive whole") from None

    def _answer(self, deadline: float) -> bytes:
        while not self._connection.poll(0.05):
            if _clock() > deadline:
                self.close()
                raise Rejection(Code.TIMED_OUT, "the program did not answer within its budget")
            if not os.path.exists(f"/proc/{self._pid}") and not self._connection.poll(0):
                raise EOFError
            if self._base and self._resident() - self._base > self._host_memory:
                self.close()
                raise Rejection(
                    Code.OUT_OF_MEMORY, f"the program took more than {self.task.memory:,} bytes"
                )
        return self._connection.recv_bytes(1 << 24)

    def _resident(self) -> int:
        try:
            with open(f"/proc/{self._pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0


def _understood(reply: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(reply)
        failed = answer.get("failed")  # an object, or AttributeError
    except (ValueError, AttributeError):
        raise Rejection(Code.CRASHED, "the program's process sent no answer") from None
    if failed is None:
        return answer
    if failed == "BAD_TASK":
        raise BadTask(str(answer.get("message")))
    codes = {code.value for code in Code}
    code = Code(failed) if failed in codes else Code.CRASHED
    detail = answer.get("detail")
    raise Rejection(code, str(answer.get("message")), detail=detail and str(detail)[-4000:])


def number(answer: Mapping[str, Any], key: str) -> float:
    """A number of an answer; what else may stand there is the candidate's doing."""
    value = answer.get(key)
    if not isinstance(value, (int, float)):
        raise Rejection(Code.CLOCK_TAMPERED, f"its process answers without '{key}'")
    return float(value)
