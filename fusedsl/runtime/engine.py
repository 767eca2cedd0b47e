"""What the calls of one program share: emitted sources, compiled kernels, prepared calls."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fusedsl.codegen import (
    KernelSource,
    ProgramSource,
    emit,
)
from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.fuse import KernelPlan, Plan, for_few_rows, has_few_rows
from fusedsl.ir import Graph, evaluate
from fusedsl.runtime import cache
from fusedsl.runtime.binding import (
    Binding,
    gone,
)
from fusedsl.runtime.configure import Configurations
from fusedsl.runtime.device import on_device, target_of
from fusedsl.runtime.launch import KernelLauncher
from fusedsl.runtime.load import check_device, interprets, load
from fusedsl.runtime.planning import Change, change_of, changed, is_chosen
from fusedsl.runtime.preparation import Compile, Preparation
from fusedsl.runtime.recipe import EmptyRecipe, Recipe
from fusedsl.schedule import Target, TileConfig

#: Prepared calls kept per binding; the oldest goes first.
_RECIPES = 256


@dataclass(frozen=True)
class Emitted:
    """An emitted file. Its module is loaded when it is asked for: a binary from the cache needs
    none."""

    source: ProgramSource
    entry: cache.Entry

    @cached_property
    def module(self) -> ModuleType:
        """The module with the kernels."""
        return load(self.entry)

    def kernel(self, name: str) -> KernelSource:
        """The emitted kernel of that name."""
        return next(k for k in self.source.kernels if k.name == name)


@dataclass(eq=False)
class Engine:
    """Builds lazily, under a lock: two threads may make the first call at once."""

    source: Graph
    plan: Plan
    options: Mapping[str, Any]
    header: Sequence[str] = ()
    main_loop: str = "auto"
    tuner: Callable[..., Any] | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    _emitted: dict[str, Emitted] = field(default_factory=dict[str, Emitted])
    _launchers: dict[Any, KernelLauncher] = field(default_factory=dict[Any, KernelLauncher])
    _changed: dict[Change, Engine] = field(default_factory=dict[Change, "Engine"])
    _bindings: weakref.WeakSet[Binding] = field(default_factory=weakref.WeakSet[Binding])

    def __post_init__(self) -> None:
        self.configs = Configurations(self.plan, self.options)

    def emitted(self, main_loop: str) -> Emitted:
        """The emitted file for a main loop, written to the cache at first use."""
        with self.lock:
            if main_loop not in self._emitted:
                source = self.emit(main_loop)
                parts = {**self.options, "main_loop": main_loop, "program": str(self.source)}
                entry = cache.place(f"{self.source.name}-{main_loop}", source.text, parts)
                self._emitted[main_loop] = Emitted(source, entry)
            return self._emitted[main_loop]

    @cached_property
    def few_rows(self) -> Engine:
        """The same program planned for calls with few rows: an engine with kernels of its own."""
        plan = for_few_rows(self.plan)
        options = {**self.options, "rows": "few"}
        return Engine(self.source, plan, options, self.header, self.main_loop)

    def planned(self, env: Mapping[str, int], target: Target | None = None) -> Engine:
        """The engine that runs a call: this one, the one for few rows, or, on a target, one with
        specialised kernels."""
        if is_chosen(self.plan):
            return self
        plain = self.plain(env)
        if target is None or self.main_loop != "auto":
            return plain
        change = change_of(plain.plan, env, target)
        if change == Change():
            return plain
        if change not in self._changed:
            options = {**plain.options, "change": repr(change)}
            plan = changed(plain.plan, change)
            self._changed[change] = Engine(self.source, plan, options, self.header)
        return self._changed[change]

    def plain(self, env: Mapping[str, int]) -> Engine:
        """The engine of a call without specialised kernels: this one, or that for few rows."""
        if is_chosen(self.plan) or not has_few_rows(self.plan, env):
            return self
        self.few_rows.main_loop = self.main_loop
        return self.few_rows

    def suited(
        self,
        binding: Binding,
        names: Sequence[str],
        given: Sequence[Tensor],
        env: dict[str, int],
        device: torch.device,
    ) -> Engine:
        """The engine that runs a call with such tensors: `planned`, unless a specialised kernel
        cannot take them as they lie."""
        found = self.planned(env, target_of(device))
        if found is self or not any(kernel.specialised for kernel in found.plan.kernels):
            return found
        fits = Preparation(found, binding, names, given, env, device).fits()
        return found if fits else self.plain(env)

    def default_loop(self) -> str:
        """The main loop that is tried first in this process."""
        if self.main_loop != "auto":
            return self.main_loop
        usable = not interprets() and torch.cuda.is_available()
        return target_of(torch.device("cuda" if usable else "cpu")).main_loop

    def emit(self, main_loop: str) -> ProgramSource:
        """The emitted source alone; nothing is written or loaded."""
        return emit(
            self.plan,
            main_loop=main_loop,
            numerics=self.options["numerics"],
            header=list(self.header),
        )

    def specialised_source(self, env: Mapping[str, int]) -> str:
        """The emitted file of the kernels that a call specialises on sm_90."""
        made = self.planned(env, Target.parse("sm_90"))
        if not any(kernel.specialised for kernel in made.plan.kernels):
            sizes = ", ".join(f"{name}={size}" for name, size in env.items()) or "its sizes"
            raise FusedslError(
                Diagnostic(
                    "F0507",
                    f"no kernel of '{self.source.name}' is specialised at {sizes}",
                    expected="16-bit projections, weights [N, K], two rounds of tiles or more, or "
                    "norms of long rows of 16 bits",
                    got="other kernels, or fewer rows",
                    fix="ask for the code of another main loop, or for more rows",
                )
            )
        return made.emit("specialised").text

    def recipe(
        self, binding: Binding, names: Sequence[str], given: Sequence[Tensor], env: dict[str, int]
    ) -> Recipe | EmptyRecipe:
        """Prepare a call with tensors laid out like `given`, which `names` names in order."""
        with self.lock:
            device = given[0].device if given else binding.device or torch.device("cpu")
            check_device(device)
            if self.tuner is not None:
                self.tuner(self, binding, names, given, env)
            return self.prepare(binding, names, given, env, device)

    def prepare(
        self,
        binding: Binding,
        names: Sequence[str],
        given: Sequence[Tensor],
        env: dict[str, int],
        device: torch.device,
        overrides: Mapping[str, TileConfig] | None = None,
        compile: Compile | None = None,
    ) -> Recipe | EmptyRecipe:
        """`recipe` without tuning. `overrides` fixes configurations by kernel; `compile` stands in
        for the compiler."""
        if self.is_empty(env):
            return self._empty(binding, names, env, device)
        with on_device(device):
            engine = self.suited(binding, names, given, env, device)
            made = Preparation(engine, binding, names, given, env, device)
            made.overrides = overrides or {}
            made.compile = compile or made.compile
            return made.recipe()

    def keep(self, binding: Binding, key: Any, recipe: Any) -> None:
        """Remember a prepared call."""
        with self.lock:
            if len(binding.recipes) >= _RECIPES:
                binding.recipes.pop(next(iter(binding.recipes)))
            binding.recipes[key] = recipe
            self._bindings.add(binding)

    def forget_prepared(self) -> None:
        """Let every call be prepared anew: configurations changed."""
        with self.lock:
            self.configs.forget()
            for binding in self._bindings:
                binding.forget()

    def launcher(self, kernel: KernelPlan, main_loop: str, config: TileConfig) -> KernelLauncher:
        """The launcher of a kernel in one configuration."""
        key = (kernel.name, main_loop, config)
        if key not in self._launchers:
            emitted = self.emitted(main_loop)
            self._launchers[key] = KernelLauncher(
                emitted.kernel(kernel.name),
                config,
                emitted.entry.digest,
                lambda: getattr(emitted.module, kernel.name),
            )
        return self._launchers[key]

    def is_empty(self, env: Mapping[str, int]) -> bool:
        """Whether some value of a call has no elements."""
        graphs = (self.source, self.plan.graph)
        types = [t for graph in graphs for t in graph.types.values()]
        return any(
            (dim.symbol in env and dim.bind(env) == 0) or dim.factor == 0
            for t in types
            for dim in t.shape
        )

    def _empty(
        self, binding: Binding, names: Sequence[str], env: dict[str, int], device: torch.device
    ) -> EmptyRecipe:
        types = [self.source.types[name] for name in self.source.outputs]
        dtypes = tuple(t.dtype.torch for t in types)

        def compute(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
            inputs = {**binding.weights, **dict(zip(names, given, strict=True))}
            if binding.consumed:
                raise FusedslError(gone(binding.consumed))
            with torch.no_grad():
                values = evaluate(self.source, inputs)
            return tuple(values[n].to(d) for n, d in zip(self.source.outputs, dtypes, strict=True))

        return EmptyRecipe(tuple(t.concrete(env) for t in types), dtypes, device, compute)
