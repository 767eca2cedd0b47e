"""Kernels compiled into Triton's cache by processes of their own, one for each core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch

from fusedsl.runtime.launch import KernelLauncher
from fusedsl.runtime.tune_worker import described

#: Seconds after which a compiler counts as hung.
PATIENCE = 120.0
#: Processes at most: each has a context on the device.
WORKERS = 16


@dataclass(frozen=True)
class Job:
    """One kernel with its arguments described, as `tune_worker` reads it."""

    digest: str
    path: str
    kernel: str
    device: str
    args: list[dict[str, Any]]
    options: dict[str, Any]

    @staticmethod
    def of(launcher: KernelLauncher, device: torch.device, args: Sequence[Any]) -> Job | None:
        """The job of a launcher; None where its source lies in no file."""
        module = sys.modules[launcher.fn.fn.__module__]
        path = str(module.__file__)
        if not Path(path).is_file():
            return None
        digest = module.__name__.rpartition("_")[2]
        options = dict(launcher.options)
        return Job(digest, path, launcher.source.name, str(device), described(args), options)

    def line(self) -> str:
        """The job as one line of JSON."""
        return json.dumps(self.__dict__) + "\n"


def compile_ahead(
    jobs: Sequence[Job], progress: Callable[[int, int], None] = lambda done, total: None
) -> list[str]:
    """Compile every job; gives why each failed, in order, or nothing where it did not."""
    answers = [""] * len(jobs)
    queue: SimpleQueue[int] = SimpleQueue()
    for index in range(len(jobs)):
        queue.put(index)
    lock = threading.Lock()
    done = 0

    def work() -> None:
        nonlocal done
        worker = _Worker()
        try:
            while True:
                index = queue.get_nowait()
                answers[index] = worker.ask(jobs[index])
                with lock:
                    done += 1
                    progress(done, len(jobs))
        except Empty:
            pass
        finally:
            worker.end()

    count = min(WORKERS, os.cpu_count() or 1, len(jobs))
    if count == 0:
        return answers
    progress(0, len(jobs))
    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(work) for _ in range(count)]:
            future.result()
    return answers


class _Worker:
    """A `tune_worker` process, started when it is first asked, and anew after it died."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def ask(self, job: Job) -> str:
        """The answer to a job."""
        process = self.process = self.process or _start()
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(PATIENCE, process.kill)
        timer.start()
        try:
            process.stdin.write(job.line())
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        finally:
            timer.cancel()
        if answer:
            return answer.rstrip("\n")
        self.end()
        return f"the compiler died or took more than {PATIENCE:.0f} s"

    def end(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def _start() -> subprocess.Popen[str]:
    """A worker that finds this very package and compiles rather than interprets."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", "fusedsl.runtime.tune_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(paths)},
    )
