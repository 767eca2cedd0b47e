"""The command line: `fusedsl run | check | explain | show | build`.

| module | holds |
|---|---|
| `app` | the commands and their options |
| `mend` | `check --fix` |
| `mcp` | `mcp`: the server for agents |
| `bench` | `bench`: sizes, progress, tables |
| `compare` | `run`: outputs and times against fp64 and eager torch |
| `inputs` | dims, tensor files, devices |
| `output` | tables, JSON, diagnostics |

A mistake ends in coded diagnostics and an exit code, never in a traceback: 0 fine, 1 the program,
its inputs or its result are wrong, 2 the command line is, 130 interrupted.
"""

from fusedsl.cli.app import main

__all__ = ["main"]
