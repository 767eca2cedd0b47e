"""A process that has imported torch and this package, has no CUDA context, and forks workers.

A worker that is forked starts in milliseconds; one that is started afresh takes seconds.
Protocol: one byte and a file descriptor in, the worker's process id (4 bytes) out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(descriptor: int) -> None:
    """Fork a worker for each request until the other end closes."""
    from fusedsl.judge import worker  # imports torch, once for all workers

    control = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.sendall(b"ready")
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            os.setsid()
            _die_with_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            try:
                worker.serve(Connection(descriptors[0]))
            finally:
                os._exit(0)
        os.close(descriptors[0])
        control.sendall(struct.pack("i", pid))


if __name__ == "__main__":
    main(int(sys.argv[1]))
