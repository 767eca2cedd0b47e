"""A verdict on the correctness and the speed of a program, made to withstand gaming.

    from fusedsl.judge import judge
    verdict = judge("examples/tasks/rms_norm.py", "mine.py:rms_norm")

| module | holds |
|---|---|
| `task` | what is asked: reference, inputs, dims, budget |
| `verdict` | the codes, and the result |
| `procedure` | `judge`: proof of the task, values, then speed |
| `proof`, `mutants` | whether a task tells right from wrong |
| `trials`, `compare` | values against fp64, at a bar made from eager's own error |
| `timing`, `roofline` | speed, by the clock of this process, and what the device could do at best |
| `process`, `zygote`, `worker`, `candidate` | the process that a candidate runs in |
| `draw` | inputs, hard inputs, poison |

docs/judge.md describes the procedure.
"""

from fusedsl.judge.procedure import judge
from fusedsl.judge.task import BadTask, Input, Task, load_task
from fusedsl.judge.verdict import Code, Reason, Verdict

__all__ = ["BadTask", "Code", "Input", "Reason", "Task", "Verdict", "judge", "load_task"]
