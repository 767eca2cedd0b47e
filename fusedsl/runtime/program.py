"""The public objects: a compiled program, and one whose weights are bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fusedsl.diagnostics import Diagnostic, FusedslError, did_you_mean
from fusedsl.fuse import KernelPlan, Plan
from fusedsl.ir import Graph, Param
from fusedsl.rewrite import RewriteResult
from fusedsl.runtime import binaries
from fusedsl.runtime.binding import Binding, folded_names
from fusedsl.runtime.check import Dims, arrange, check_tensors, no_gradients
from fusedsl.runtime.device import device_of, on_device, refuse_in_capture, stream_getter
from fusedsl.runtime.engine import Engine
from fusedsl.runtime.explain import Explanation, explain, nominal_dims
from fusedsl.runtime.launch import get_ready
from fusedsl.runtime.load import interprets
from fusedsl.runtime.prepared import Call, Prepared
from fusedsl.runtime.recipe import Recipe
from fusedsl.runtime.report import Report, verify
from fusedsl.runtime.tune import Progress, Tuned, random_tensors, tune_new
from fusedsl.runtime.tune import tune as tune_call
from fusedsl.runtime.weight_set import WeightSet

#: Sets of weights, given per call, whose folded values are kept.
_WEIGHT_SETS = 8

#: How projections move their tiles; see `Program.main_loop`.
MAIN_LOOPS = ("tma", "mixed", "pointer")

#: What `bind` takes.
KINDS = ("a mapping", "a module")

Output = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Options:
    """How a program was compiled; see `fusedsl.compile`."""

    numerics: str = "moved"
    fp32_shift: bool = False
    tf32: bool = False
    fast_math: bool = True

    def to_json(self) -> dict[str, Any]:
        """The options by name."""
        return asdict(self)


@dataclass(frozen=True)
class Stages:
    """What the stages made, for inspection."""

    source: Graph
    expanded: Graph
    rewritten: RewriteResult
    plan: Plan


class _Caller:
    """A program with some of its parameters left to give: the fast way from a call to a recipe."""

    def __init__(self, engine: Engine, params: Sequence[Param]):
        self._engine = engine
        self._params = tuple(params)
        self._names = tuple(p.name for p in params)
        #: The last call and what it ran on: tried first.
        self._last: tuple[Call, Binding] | None = None
        #: Parameters that must be the same tensors, unchanged, for a prepared call to hold.
        self._fixed: frozenset[str] = frozenset()

    def _run(
        self, binding: Binding, tensors: Sequence[Any], env: Dims, poison: bool = False
    ) -> tuple[Tensor, ...]:
        try:
            key = (torch.is_grad_enabled(), *map(_layout, tensors))
            recipe = binding.recipes.get(key)
        except (AttributeError, RuntimeError, TypeError):  # not a dense tensor: said below
            key = recipe = None
        if recipe is None:
            dims = check_tensors(self._params, tensors, env, device=binding.device)
            recipe = self._engine.recipe(binding, self._names, tensors, dims.values)
            if key is not None:
                self._engine.keep(binding, key, recipe)
        prepared = recipe.prepared
        if prepared is not None and not poison:
            outputs = prepared.call(binding, tensors)
            if outputs is not None:
                self._last = prepared.call, binding
                return outputs
        if binding.device is not None and binding.device.type == "cuda":
            binding.wait(stream_getter()(binding.device.index))
        outputs = recipe.run(tensors, poison=poison)
        if prepared is None and isinstance(recipe, Recipe):
            fixed = [i for i, name in enumerate(self._names) if name in self._fixed]
            recipe.prepared = Prepared.of(recipe, binding, tensors, fixed)
        return outputs

    def _count(self, tensors: Sequence[Any], named: Mapping[str, Any]) -> bool:
        return not named and len(tensors) == len(self._names)


def _layout(t: Tensor) -> tuple[Any, ...]:
    """Everything about a tensor that a prepared call depends on."""
    return (t.shape, t.stride(), t.dtype, t.device, t.data_ptr() & 15, t.requires_grad)


class Program(_Caller):
    """A compiled program. Call it with all its tensors, or `bind` the weights first.

    Nothing is compiled to machine code before the first call; calls are safe from several threads.
    """

    def __init__(
        self, stages: Stages, options: Options, header: Sequence[str] = (), *, tune: bool = False
    ):
        self.stages = stages
        self.options = options
        if torch.cuda.is_initialized() and not interprets() and not binaries.folder().is_dir():
            get_ready()  # no process has kept a kernel here: there will be something to compile
        engine = Engine(stages.source, stages.plan, options.to_json(), header)
        engine.tuner = tune_new if tune else None
        super().__init__(engine, stages.source.params)
        self._folding = self._fixed = folded_names(stages.plan)
        self._weights = tuple(p for p in stages.source.params if p.weight)
        self._plain: Binding | None = None
        self._sets: list[WeightSet] = []

    @property
    def name(self) -> str:
        """The name in the program's text."""
        return self.stages.source.name

    def __call__(self, *tensors: Tensor, **named: Tensor) -> Output:
        """Run on all parameters, by position or by name, activations and weights alike.

        Gives one tensor, or a tuple in the order of the signature; always new tensors. Weights
        that are folded are folded once for each set of weights (the same tensor objects,
        unchanged). Raises FusedslError: F0501 to F0508, F0601, F0603, F0604, F0606.
        """
        last = self._last
        outputs = None if named or last is None else last[0](last[1], tensors)
        if outputs is None:
            given = self._given(tensors, named)
            outputs = self._run(self._binding_for(given), given, Dims())
        return outputs[0] if len(outputs) == 1 else outputs

    def bind(
        self,
        weights: Mapping[str, Tensor] | Any = None,
        /,
        *,
        consume: bool = False,
        frozen: bool = False,
        **named: Tensor,
    ) -> BoundProgram:
        """Fix the weights: a mapping, a module (its `state_dict()`), keywords, or a mixture.

        Folded values are computed now. Later in-place changes of a weight are noticed at the next
        call. `consume=True` lets go of originals that are only needed folded: memory is saved,
        their changes can no longer be noticed. `frozen=True` says that no work on the GPU writes to
        the weights while calls are queued: kernels of few rows then read them before what is queued
        ahead has ended. The device is waited for now, and by a call that notices a change. Raises
        FusedslError: F0501 to F0504, F0506, and F0606 for frozen weights during a capture.
        """
        if weights is not None and not isinstance(weights, Mapping):
            if not hasattr(weights, "state_dict"):
                raise FusedslError(unknown_option("kind of weights", type(weights).__name__, KINDS))
            weights = weights.state_dict()
        listed = {str(name): w for name, w in (weights or {}).items()}
        doubled = [_given_twice(name) for name in listed if name in named]
        if doubled:
            raise FusedslError(doubled)
        both = {**listed, **named}
        given = arrange(self._weights, (), both)
        with torch.no_grad():
            dims = check_tensors(self._weights, given, Dims())
        table = dict(zip((p.name for p in self._weights), given, strict=True))
        device = given[0].device if given else torch.device("cpu")
        with on_device(device):
            plan = self.stages.plan
            binding = Binding.make(plan, table, dims, hold=True, consume=consume, frozen=frozen)
        return BoundProgram(self, binding)

    def warmup(self, *tensors: Tensor, **named: Tensor) -> None:
        """Run once and drop the result: after it, the same call captures into a CUDA graph."""
        self(*tensors, **named)

    def tune(
        self,
        dims: Mapping[str, int] | None = None,
        *,
        device: Any = "cuda",
        again: bool = True,
        progress: Progress | None = None,
    ) -> tuple[Tuned, ...]:
        """Time every kernel in a few configurations at these dims, and keep the fastest.

        They are kept in the cache folder and used by later calls and processes for every number of
        rows of the same class. `dims` gives symbols a value (4096 where it does not). Kernels that
        are tuned already are timed anew if `again`. `progress(step, done, total)` is told of every
        step. Without a GPU nothing is tuned. Raises FusedslError: F0105, F0404, F0507, F0606.
        """
        if interprets():
            nominal_dims(self.stages.source, dims or {})
            return ()
        place = device_of(device)
        env = nominal_dims(self.stages.source, dims or {})
        given = random_tensors(self.stages.source, env, place)
        with torch.no_grad():
            known = check_tensors(self._params, given, Dims())
            binding = self._binding_for(given)
        return tune_call(
            self._engine, binding, self._names, given, known.values, again=again, progress=progress
        )

    def explain(self, dims: Mapping[str, int] | None = None, *, device: Any = None) -> Explanation:
        """Which kernels it became, which rules fired or were refused, and the bytes it moves.

        `dims` gives symbols a value (4096 where it does not). Raises FusedslError: F0105, F0404.
        """
        target = None if device is None else device_of(device)
        return explain(self.stages, dims or {}, target)

    def verify(
        self,
        dims: Mapping[str, int] | None = None,
        *,
        seeds: Sequence[int] = (0, 1),
        device: Any = None,
    ) -> Report:
        """Run on fresh random and hard inputs and hold the results against fp64 and eager torch.

        Raises FusedslError as a call does, and F0105, F0404 and F0507 for dims, seeds and devices
        that are none; failing values are in the report, not raised.
        """
        return verify(self, dims or {}, seeds=seeds, device=device)

    def graph(self, stage: str = "source") -> Graph:
        """The graph after a stage: source (or parse), expand, rewrite, plan. F0507 otherwise."""
        stages = self.stages
        made = {
            "source": stages.source,
            "parse": stages.source,
            "expand": stages.expanded,
            "rewrite": stages.rewritten.graph,
            "plan": stages.plan.graph,
        }
        if stage not in tuple(made):
            raise FusedslError(unknown_option("stage", stage, tuple(made)))
        return made[stage]

    @property
    def plan(self) -> Plan:
        """The kernels and bind-time nodes."""
        return self.stages.plan

    @property
    def kernels(self) -> tuple[KernelPlan, ...]:
        """The kernel plans, in launch order."""
        return self.stages.plan.kernels

    @property
    def source(self) -> str:
        """The emitted file, with the main loop that this process would use first."""
        return self.source_for(self._engine.default_loop())

    def source_for(
        self, main_loop: str, *, few_rows: bool = False, dims: Mapping[str, int] | None = None
    ) -> str:
        """The emitted file for "tma", "mixed" or "pointer"; with `few_rows` the one that calls with
        at most `fuse.FEW_ROWS` rows in every projection use. "specialised": the Gluon file with the
        kernels that calls of sizes `dims` (4096 where none is given) specialise on sm_90.

        Raises FusedslError: F0507 for another loop, or where no kernel is specialised; F0404,
        F0105 for `dims`.
        """
        if main_loop == "specialised":
            return self._engine.specialised_source(nominal_dims(self.graph("source"), dims or {}))
        if main_loop not in MAIN_LOOPS:
            raise FusedslError(unknown_option("main loop", main_loop, MAIN_LOOPS))
        engine = self._engine.few_rows if few_rows else self._engine
        return engine.emit(main_loop).text

    @property
    def main_loop(self) -> str:
        """Which loop projections use: "auto", "tma", "mixed" or "pointer".

        "auto" is what the device allows. Both it and "tma" use "mixed", pointers for the tiles of
        the epilogue, where rows of those are no multiples of 16 bytes, and the pointer loop where
        an operand's are not.
        """
        return self._engine.main_loop

    @main_loop.setter
    def main_loop(self, value: str) -> None:
        if value not in ("auto", *MAIN_LOOPS):
            raise FusedslError(unknown_option("main loop", value, ("auto", *MAIN_LOOPS)))
        with self._engine.lock:
            self._engine.main_loop = value
            self._plain, self._sets, self._last = None, [], None

    def run_poisoned(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """A call whose every buffer holds NaN before the first launch."""
        given = self._given(tensors, {})
        return self._run(self._binding_for(given), given, Dims(), poison=True)

    def __repr__(self) -> str:
        kernels = ", ".join(k.name for k in self.kernels)
        return f"Program({self.name!r}, kernels=[{kernels}])"

    def _given(self, tensors: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        if self._count(tensors, named):
            return tensors
        return arrange(self._params, tensors, named)

    def _binding_for(self, given: Sequence[Any]) -> Binding:
        """The binding of weights given per call; folding is repeated only for changed weights."""
        if not self._folding:
            if self._plain is None:
                self._plain = Binding(self.stages.plan, Dims())
            return self._plain
        folded = [(n, t) for n, t in zip(self._names, given, strict=True) if n in self._folding]
        for entry in self._sets:
            if entry.matches(folded):
                return entry.binding
        return self._fold(folded, given)

    def _fold(self, folded: Sequence[tuple[str, Any]], given: Sequence[Any]) -> Binding:
        dims = check_tensors(self._params, given, Dims())
        table = dict(folded)
        device = folded[0][1].device
        refuse_in_capture(device, "weights have to be folded")
        with self._engine.lock, on_device(device):
            known = next((e for e in self._sets if e.matches(folded)), None)
            if known is not None:
                return known.binding
            binding = Binding.make(self.stages.plan, table, dims, hold=False)
            entry = WeightSet.of(folded, binding)
            self._sets = [entry, *(e for e in self._sets if e.alive())][:_WEIGHT_SETS]
            return binding


class BoundProgram(_Caller):
    """A program whose weights are bound: call it with the activations, in signature order."""

    def __init__(self, program: Program, binding: Binding):
        super().__init__(program._engine, [p for p in program.stages.source.params if not p.weight])
        self.program = program
        self._binding = binding
        self._grad = tuple(n for n, t in binding.weights.items() if t.requires_grad)

    def __call__(self, *tensors: Tensor, **named: Tensor) -> Output:
        """Run on the activations, by position or by name; see `Program.__call__`.

        A bound weight that was written to in place is noticed here, and folded anew. Raises also
        F0505 where such a weight was folded together with a consumed one.
        """
        last = self._last
        outputs = None if named or last is None else last[0](last[1], tensors)
        if outputs is None:
            given = self._given(tensors, named)
            outputs = self._run(self._fresh(), given, self._binding.dims)
        return outputs[0] if len(outputs) == 1 else outputs

    def warmup(self, *tensors: Tensor, **named: Tensor) -> None:
        """Run once and drop the result: after it, the same call captures into a CUDA graph."""
        self(*tensors, **named)

    def rebind(self) -> None:
        """Fold the weights anew from what they hold now.

        Needed only after writes that torch does not count: `param.data.copy_(...)`, or writes
        from outside torch. Folded values keep their addresses, so captured graphs see the new
        ones. Raises FusedslError: F0505 if a weight that would be needed was consumed.
        """
        with self._engine.lock:
            self._binding.refresh(force=True)

    @property
    def folded_bytes(self) -> int:
        """Bytes that folded values take, beside the original weights."""
        return self._binding.folded_bytes

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The original weights that are still held, by name."""
        return dict(self._binding.weights)

    def __repr__(self) -> str:
        return f"BoundProgram({self.program.name!r}, activations={list(self._names)})"

    def _given(self, tensors: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        if self._count(tensors, named):
            return tensors
        weights = frozenset(p.name for p in self.program.stages.source.params if p.weight)
        consumed = self._binding.consumed
        return arrange(self._params, tensors, named, bound=weights, consumed=consumed)

    def _fresh(self) -> Binding:
        binding = self._binding
        if binding.is_stale():
            with self._engine.lock, on_device(binding.device or torch.device("cpu")):
                if binding.is_stale():
                    binding.refresh()
        if self._grad and torch.is_grad_enabled():
            raise FusedslError(no_gradients(self._grad))
        return binding


def _given_twice(name: str) -> Diagnostic:
    return Diagnostic(
        "F0501",
        f"weight '{name}' is given twice",
        expected="each weight once",
        got=f"'{name}' among the weights and by keyword",
        fix=f"leave out {name}=",
    )


def unknown_option(kind: str, got: object, allowed: Sequence[object]) -> Diagnostic:
    """F0507 for an option value that does not exist."""
    names = [str(value) for value in allowed]
    return Diagnostic(
        "F0507",
        f"unknown {kind} '{got}'",
        expected=", ".join(names),
        got=str(got),
        fix=did_you_mean(str(got), names, "one of"),
    )
