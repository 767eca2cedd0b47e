"""Tuning: every kernel of a call is timed in a few configurations, and the best is kept on disk.

Candidates come from `fusedsl.schedule.candidates`, best guess first. They are compiled in processes
of their own, one for each core, into Triton's cache. A candidate that does not compile or does not
fit is skipped; one whose results differ from those of the default is refused whatever its speed.
The rest are timed in turns, the L2 cache cleared before each call, and the fastest is chosen if it
beats the default by more than noise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from fusedsl.diagnostics import FusedslError
from fusedsl.fuse import KernelPlan
from fusedsl.ir import Graph, index_range
from fusedsl.runtime import tuned
from fusedsl.runtime.binding import Binding
from fusedsl.runtime.compile_ahead import Job, compile_ahead
from fusedsl.runtime.device import on_device, refuse_in_capture, stream_getter, target_of
from fusedsl.runtime.engine import Engine
from fusedsl.runtime.launch import Kernel, Wanted
from fusedsl.runtime.load import interprets
from fusedsl.runtime.recipe import Recipe
from fusedsl.runtime.timing import racing
from fusedsl.schedule import Extent, TileConfig, candidates

#: Configurations that are tried of each kernel, the default among them.
LIMIT = 14
#: A configuration must take at most this share of the default's time to replace it.
_BETTER = 0.99
#: Largest relative distance (Frobenius) between results of two configurations, by bytes per value.
_CLOSE = {1: 0.1, 2: 0.02, 4: 1e-3}

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Trial:
    """A configuration that was tried: its median, or why it was refused."""

    config: TileConfig
    ms: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class Tuned:
    """What tuning found for one kernel. `trials` holds the default first."""

    kernel: str
    main_loop: str
    extent: Extent
    config: TileConfig
    ms: float
    default_ms: float
    trials: tuple[Trial, ...] = ()
    saved: bool = False

    def to_json(self) -> dict[str, Any]:
        """Every field by name."""
        return asdict(self)


def random_tensors(graph: Graph, env: Mapping[str, int], device: torch.device) -> list[Tensor]:
    """Normal values for every parameter, made on the device: zeros would run faster. Indices are
    columns of the tile they are used on."""
    generator = torch.Generator(device).manual_seed(0)
    made: list[Tensor] = []
    for param in graph.params:
        shape, dtype = param.type.concrete(env), param.type.dtype.torch
        if param.type.dtype.is_index:
            stop = index_range(graph, param.name).stop(env)
            made.append(torch.randint(stop, shape, generator=generator, device=device, dtype=dtype))
            continue
        data = torch.empty(
            shape, dtype=torch.float32 if dtype.itemsize < 2 else dtype, device=device
        )
        data.normal_(generator=generator)
        if param.weight and len(shape) == 2:
            data /= math.sqrt(max(1, shape[-1]))
        made.append(data.to(dtype))
    return made


def tune(
    engine: Engine,
    binding: Binding,
    names: Sequence[str],
    given: Sequence[Tensor],
    env: dict[str, int],
    *,
    again: bool = True,
    limit: int = LIMIT,
    ahead: bool = True,
    progress: Progress | None = None,
) -> tuple[Tuned, ...]:
    """Tune every kernel of a call with these tensors, and keep what was found.

    Kernels that are tuned already are left out unless `again`. `limit` configurations are tried of
    each; with `ahead` they are compiled in processes of their own, else one by one as they are
    timed. `progress(step, done, total)` is told of every step. Nothing is tuned in the interpreter.
    Raises FusedslError: F0606 during a CUDA graph capture, and as the call itself does.
    """
    device = given[0].device if given else binding.device or torch.device("cpu")
    if interprets() or device.type != "cuda" or engine.is_empty(env):
        return ()
    refuse_in_capture(device, "kernels have to be tuned")
    with engine.lock, on_device(device), torch.no_grad():
        planned = engine.suited(binding, names, given, env, device)
        session = _Session(planned, binding, names, given, env, device, limit)
        found = session.run(again, ahead, progress or (lambda step, done, total: None))
        planned.configs.forget()
        engine.forget_prepared()
    return found


def compile_jobs(
    engine: Engine,
    binding: Binding,
    names: Sequence[str],
    given: Sequence[Tensor],
    env: dict[str, int],
    limit: int = LIMIT,
) -> list[Job]:
    """The jobs that `tune` would compile ahead: those of several calls can share the processes."""
    device = given[0].device
    with engine.lock, on_device(device), torch.no_grad():
        suited = engine.suited(binding, names, given, env, device)
        session = _Session(suited, binding, names, given, env, device, limit)
        return list(session.jobs(session.spaces(True)).values())


def tune_new(
    engine: Engine,
    binding: Binding,
    names: Sequence[str],
    given: Sequence[Tensor],
    env: dict[str, int],
) -> None:
    """Tune what is not tuned yet of a call that is about to be prepared."""
    tune(engine, binding, names, given, env, again=False)


@dataclass
class _Session:
    """One call being tuned."""

    engine: Engine
    binding: Binding
    names: Sequence[str]
    given: Sequence[Tensor]
    env: dict[str, int]
    device: torch.device
    limit: int
    overrides: dict[str, TileConfig] = field(default_factory=dict[str, TileConfig])

    def run(self, again: bool, ahead: bool, progress: Progress) -> tuple[Tuned, ...]:
        space = self.spaces(again)
        jobs = self.jobs(space) if ahead else {}
        report = functools.partial(progress, "compiling")
        answers = compile_ahead(list(jobs.values()), report)
        refused = {key: answer for key, answer in zip(jobs, answers, strict=True) if answer}
        found: list[Tuned] = []
        for index, kernel in enumerate(self.engine.plan.kernels):
            if kernel.name in space:
                progress(f"timing {kernel.name}", len(found), len(space))
                found.append(self.kernel(index, kernel, space[kernel.name], refused))
        progress("done", len(found), len(space))
        return tuple(found)

    def spaces(self, again: bool) -> dict[str, list[TileConfig]]:
        """The candidates of every kernel that is to be tuned."""
        plan, target = self.engine.plan, target_of(self.device)
        recipe = self.prepare({}, _nothing)
        found: dict[str, list[TileConfig]] = {}
        for kernel, loop in zip(plan.kernels, recipe.main_loops, strict=True):
            key = self.engine.configs.key(kernel, self.env, target, self.device, loop)
            if again or tuned.find(key, plan, kernel, target, loop) is None:
                found[kernel.name] = self.space(kernel, loop)
        return found

    def prepare(self, overrides: Mapping[str, TileConfig], compile: Any = None) -> Any:
        return self.engine.prepare(
            self.binding, self.names, self.given, self.env, self.device, overrides, compile
        )

    def space(self, kernel: KernelPlan, main_loop: str) -> list[TileConfig]:
        """The candidates as the engine would run them, the default first."""
        target = target_of(self.device)
        default = self.engine.configs.default(kernel, self.env, target, main_loop)
        others = candidates(self.engine.plan, kernel, self.env, target, main_loop)
        every = [default, *(self.engine.configs.adjusted(config) for config in others)]
        return list(dict.fromkeys(every))[: self.limit]

    def jobs(self, space: Mapping[str, list[TileConfig]]) -> dict[tuple[str, TileConfig], Job]:
        """What compiles every candidate, by kernel and configuration."""
        every = {(name, c): self.job(name, c) for name, configs in space.items() for c in configs}
        return {key: job for key, job in every.items() if job is not None}

    def job(self, name: str, config: TileConfig) -> Job | None:
        """What a worker must know to compile a kernel; None where its source is in no file."""
        found: list[Job | None] = []

        def record(wanted: Sequence[Wanted], device: torch.device) -> list[Kernel]:
            for one in wanted:
                if one.launcher.source.name == name:
                    found.append(Job.of(one.launcher, device, one.args))
            return _nothing(wanted, device)

        self.prepare({**self.overrides, name: config}, record)
        return found[0]

    # timing ----------------------------------------------------------------------------------
    def kernel(
        self,
        index: int,
        kernel: KernelPlan,
        configs: Sequence[TileConfig],
        refused: Mapping[tuple[str, TileConfig], str],
    ) -> Tuned:
        """Try the candidates of one kernel, the others as chosen so far, and keep the best."""
        pool: dict[Any, Tensor] = {}
        calls: dict[TileConfig, Callable[[], None]] = {}
        reasons: dict[TileConfig, str] = {}
        expected: tuple[Tensor, ...] = ()
        loop = ""
        for config in configs:
            reason = refused.get((kernel.name, config), "")
            if not reason:
                try:
                    recipe = self.prepare({**self.overrides, kernel.name: config})
                    running = _Running(recipe, self.given, pool)
                    results = running.results()
                    loop = recipe.main_loops[index]
                    expected = expected or results
                    reason = _differs(results, expected)
                    calls[config] = running.call(index)
                except FusedslError as error:
                    reason = "; ".join(d.message for d in error.diagnostics)
            if reason:
                calls.pop(config, None)
                reasons[config] = reason
        times = racing(calls, self.device)
        default_ms = times.get(configs[0], math.inf)
        best = min(times, key=times.__getitem__)
        best = best if times[best] < _BETTER * default_ms else configs[0]
        trials = tuple(Trial(c, times.get(c), reasons.get(c, "")) for c in configs)
        return self.keep(kernel, loop, best, times[best], default_ms, trials)

    def keep(
        self,
        kernel: KernelPlan,
        loop: str,
        best: TileConfig,
        ms: float,
        default_ms: float,
        trials: tuple[Trial, ...],
    ) -> Tuned:
        key = self.engine.configs.key(kernel, self.env, target_of(self.device), self.device, loop)
        saved = tuned.save(key, tuned.Entry(best, ms, default_ms))
        self.overrides[kernel.name] = best
        extent = Extent.of(self.engine.plan, kernel, self.env)
        return Tuned(kernel.name, loop, extent, best, ms, default_ms, trials, saved)


def _nothing(wanted: Sequence[Wanted], device: torch.device) -> list[Kernel]:
    """Stands in for the compiler where a call is only looked at."""
    return [Kernel(one.launcher.function_of, one.launcher.options) for one in wanted]


class _Running:
    """A prepared call with its buffers, to launch one of its kernels again and again.

    Buffers are shared through `pool` between the configurations of one kernel.
    """

    def __init__(self, recipe: Recipe, given: Sequence[Tensor], pool: dict[Any, Tensor]):
        self.recipe = recipe
        self.tensors = recipe.place(given)
        for buffer in recipe.buffers:
            key = (buffer.name, buffer.shape)
            if key not in pool:
                pool[key] = buffer.allocate(recipe.device)
            self.tensors.append(pool[key])
        self.pointers = [t.data_ptr() for t in self.tensors]

    def results(self) -> tuple[Tensor, ...]:
        """Run every kernel once over poisoned buffers; copies of the outputs."""
        for tensor in self.tensors[len(self.tensors) - len(self.recipe.buffers) :]:
            tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
        for index in range(len(self.recipe.launches)):
            self.call(index)()
        return tuple(self.tensors[slot].clone() for slot, _ in self.recipe.outputs)

    def call(self, index: int) -> Callable[[], None]:
        """One launch of one kernel on the current stream."""
        launch, index_of_device = self.recipe.launches[index], self.recipe.device.index
        stream_of = stream_getter()
        return lambda: launch.run(self.pointers, self.tensors, stream_of(index_of_device))


def _differs(results: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """Why results are not those of the default configuration, or nothing."""
    for got, wanted in zip(results, expected, strict=True):
        if not bool((torch.isfinite(got) == torch.isfinite(wanted)).all()):
            return "its results are not finite where the default's are"
        a = torch.nan_to_num(got.float(), posinf=0.0, neginf=0.0)
        b = torch.nan_to_num(wanted.float(), posinf=0.0, neginf=0.0)
        distance = float((a - b).norm()) / max(float(b.norm()), 1e-30)
        if distance > _CLOSE.get(wanted.dtype.itemsize, 1e-3):
            return f"its results differ from the default's by {distance:.1e}"
    return ""
