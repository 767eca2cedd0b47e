"""From emitted source to results: load, bind, launch, check.

| module | does |
|---|---|
| `program` | the public objects: `Program`, `BoundProgram` |
| `check` | what a caller passed, held against the signature |
| `binding` | bind-time values, and whether they are still right |
| `engine` | prepares calls: layouts, configurations, arguments |
| `recipe` | a prepared call: allocate, fill in, launch |
| `launch` | one kernel, in microseconds |
| `device` | the current device, its stream, its captures |
| `load`, `cache` | emitted sources to files and modules |
| `interpreter` | bfloat16 in Triton's interpreter |
| `explain`, `report` | what a program became; how exact it is |
| `build` | binaries for other machines |
"""
