"""fusedsl: a compiler from a small language of GPU blocks to fused Triton kernels.

    import fusedsl
    program = fusedsl.compile("mlp.fdsl")
    mlp = program.bind(weights)     # folds what is known before any call
    y = mlp(x)

See `fusedsl.pipeline` for the stages, docs/architecture.md for what passes between them.
"""

from fusedsl import settings
from fusedsl._version import __version__

settings.choose_triton_mode()  # before anything below imports triton

from fusedsl.agents import card  # noqa: E402
from fusedsl.diagnostics import Diagnostic, FusedslError  # noqa: E402
from fusedsl.frontend import Kernel, parse  # noqa: E402
from fusedsl.ir import Graph  # noqa: E402
from fusedsl.pipeline import compile  # noqa: E402
from fusedsl.runtime.program import BoundProgram, Program  # noqa: E402

__all__ = [
    "BoundProgram",
    "Diagnostic",
    "FusedslError",
    "Graph",
    "Kernel",
    "Program",
    "__version__",
    "card",
    "compile",
    "parse",
]
