"""`fusedsl bench`: a program timed beside the roofline and its peers, every output verified.

| module | holds |
|---|---|
| `case` | the program at one size, over several sets of inputs |
| `peers`, `quack` | eager torch, torch.compile, the bare projections, Quack |
| `run` | verify, time in turn, verify what was timed |
| `record` | the record as JSON and as Markdown |
| `plot` | the record as a roofline and bars |
"""

from fusedsl.bench.peers import PEERS
from fusedsl.bench.record import device_name, markdown, record, row, versions
from fusedsl.bench.run import OURS, ROUNDS, Measured, measure

__all__ = [
    "OURS", "PEERS", "ROUNDS", "Measured", "device_name", "markdown", "measure", "record", "row",
    "versions",
]  # fmt: skip
