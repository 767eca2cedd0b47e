"""A few worker processes and a queue: requests wait, limits hold, and the dead are replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fusedsl.agents.mcp_worker import too_large, too_slow
from fusedsl.diagnostics import Diagnostic

#: Seconds that a worker may take to start: it imports torch and triton.
STARTING = 180.0


@dataclass(frozen=True)
class Limits:
    """Of a pool. `seconds` are wall-clock time of one request, `megabytes` memory beyond what the
    imports take (0: no limit), `waiting` requests that may wait."""

    workers: int = min(4, os.cpu_count() or 1)
    seconds: float = 120.0
    megabytes: int = 8192
    waiting: int = 1000


class WorkerDied(Exception):
    """A worker ended, or could not start, and it was not the fault of the program."""

    def __init__(self, reason: str):
        self.diagnostic = Diagnostic(
            "F0609",
            "a worker process died; the server goes on with another one",
            expected="an answer",
            got=reason,
            fix="try again; if it dies again, please report the program",
        )
        super().__init__(self.diagnostic.render())


class Busy(Exception):
    """The queue is full."""


class _TimeUp(Exception):
    pass


class Pool:
    """Runs tools in worker processes. `run` may be called from any event loop, by many at once."""

    def __init__(self, limits: Limits | None = None):
        self.limits = limits or Limits()
        self._threads = ThreadPoolExecutor(self.limits.workers, thread_name_prefix="fusedsl-worker")
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False

    async def run(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of a tool. Raises WorkerDied and Busy; a limit that is hit is a result."""
        with self._lock:
            if self._waiting >= self.limits.waiting or self._closed:
                raise Busy(f"{self._waiting} requests are waiting; try again later")
            self._waiting += 1
        future = self._threads.submit(self._work, tool, arguments)
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End every worker."""
        with self._lock:
            self._closed = True
            workers = list(self._all)
        for worker in workers:
            worker.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, _: Future[Any]) -> None:
        with self._lock:
            self._waiting -= 1

    def _work(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        worker = self._take()
        try:
            answer = worker.ask(tool, arguments, self.limits.seconds)
        except _TimeUp:
            self._drop(worker)
            return _limit(too_slow(self.limits.seconds))
        except BaseException:
            self._drop(worker)
            raise
        if "result" in answer:
            self._give(worker)
            return answer["result"]
        self._drop(worker)
        if "memory" in answer:
            return _limit(too_large(self.limits.megabytes, answer["memory"]))
        raise WorkerDied(answer["error"])

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        worker = _Worker(self.limits.megabytes)
        with self._lock:
            self._all.add(worker)
            closed = self._closed
        if closed:
            worker.kill()
        try:
            worker.wait_ready()
        except (_TimeUp, WorkerDied):
            self._drop(worker)
            raise
        return worker

    def _give(self, worker: _Worker) -> None:
        with self._lock:
            self._idle.append(worker)

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.kill()


def _limit(diagnostic: Diagnostic) -> dict[str, Any]:
    return {"ok": False, "diagnostics": [diagnostic.to_json()]}


class _Worker:
    """One process in a group of its own, asked one thing at a time."""

    def __init__(self, megabytes: int):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fusedsl.agents.mcp_worker", str(megabytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    def wait_ready(self) -> None:
        """Wait until it has imported everything."""
        self._line(STARTING)

    def ask(self, tool: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
        """One request, one answer. Raises _TimeUp and WorkerDied."""
        request = {"tool": tool, "arguments": arguments, "seconds": seconds}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerDied(self._last_words()) from None
        return json.loads(self._line(seconds))

    def kill(self) -> None:
        """End it and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _line(self, seconds: float) -> bytes:
        out = self._process.stdout
        assert out is not None
        deadline = time.monotonic() + seconds
        try:
            while b"\n" not in self._rest:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([out], [], [], left)[0]:
                    raise _TimeUp
                piece = os.read(out.fileno(), 1 << 16)
                if not piece:
                    raise WorkerDied(self._last_words())
                self._rest += piece
        except (OSError, ValueError):  # closed by another thread
            raise WorkerDied("ended with the server") from None
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """How it ended, and the last line it printed."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, self._errors.tell() - 2000))
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            if lines:
                return f"{how}: {lines[-1][:300]}"
        return how
