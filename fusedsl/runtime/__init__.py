"""From emitted source to results: load, bind, launch, check.

| module | does |
|---|---|
| `program` | the public objects: `Program`, `BoundProgram` |
| `check` | what a caller passed, held against the signature |
| `binding`, `weight_set` | bind-time values, and whether they are still right |
| `engine` | what the calls of a program share: sources, kernels, prepared calls |
| `planning` | which plan runs, by sizes and target |
| `preparation` | prepares a call: layouts, configurations, arguments |
| `recipe` | a call that can run: allocate, fill in, launch |
| `prepared`, `driver` | a call that has run: guard, packed parameters, the CUDA driver |
| `launch` | one kernel, compiled and launched through Triton |
| `gluon` | descriptors for kernels in Gluon |
| `device` | the current device, its stream, its captures |
| `load`, `cache` | emitted sources to files and modules |
| `interpreter` | bfloat16 in Triton's interpreter |
| `explain`, `report` | what a program became; how exact it is |
| `build` | binaries for other machines |
"""
