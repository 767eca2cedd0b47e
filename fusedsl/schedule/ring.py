"""Projections of few rows whose weights go through a ring of stages: where they are made, and how
they are tiled (measured on an H200; docs/performance.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusedsl.fuse import KernelPlan, Plan, anchor_operands
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.few_rows import FEWEST_STEPS, MOST_SHARED_TILES
from fusedsl.schedule.sizes import RESERVED, power_of_two
from fusedsl.schedule.specialised import may_specialise
from fusedsl.schedule.target import Target

#: Columns of a tile of weights, of which the tensor core takes 64 at a time, and step of K.
COLUMNS, STEP = 64, 128

#: Most stages: what is in flight beyond that gains nothing.
_DEEPEST = 12

#: Most programs that share the K of a tile.
_MOST_SPLIT = 16

#: The most programs of a multiprocessor, and the most registers of a thread where there are two.
_MOST_PROGRAMS, _REGISTERS = 2, 128

#: Columns of the weights that a program asks for where it must not load them yet.
_AHEAD = 256

#: Bytes of shared memory beside the stages: barriers, and what changes its layout in the epilogue.
_BESIDE = 128


def pays_in_ring(plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target) -> bool:
    """Whether a projection of few rows had better be made so: tensor maps express the operands,
    and all its programs are there at a time."""
    if not may_specialise(target) or _depth(plan, kernel, env) % 8 != 0:
        return False
    programs = _tiles(kernel, env) * _split(plan, kernel, env, target)
    return programs <= _MOST_PROGRAMS * target.sms


def choose_ring(
    plan: Plan, kernel: KernelPlan, rows: int, env: Mapping[str, int], target: Target
) -> TileConfig:
    """Their configuration for at most `rows` rows.

    One program for each multiprocessor, or two, with as many stages as its memory holds: what lies
    in them is what the device memory delivers while one kernel ends and the next begins. The first
    weights are loaded early by all but the first kernel of a program, ahead of which another may
    run that writes them.
    """
    block_m = max(16, power_of_two(rows))
    config = TileConfig(
        block_m,
        COLUMNS * (1 + kernel.paired),
        STEP,
        warps=4,
        pdl=True,
        split=_split(plan, kernel, env, target),
    )
    room = target.shared_limit
    if _tiles(kernel, env) * config.split > target.sms:
        room = (room + RESERVED) // _MOST_PROGRAMS - RESERVED
        config = replace(config, registers=_REGISTERS)
    if kernel.name == plan.kernels[0].name:
        config = replace(config, ahead=_AHEAD)
    else:
        config = replace(config, early=True)
    stages = (room - _beside(config)) // _stage_bytes(config)
    return replace(config, stages=max(2, min(_DEEPEST, stages)))


def ring_variants(
    plan: Plan, kernel: KernelPlan, default: TileConfig, target: Target
) -> list[TileConfig]:
    """Configurations worth timing: fewer stages, and fewer programs to a tile."""
    found = [replace(default, stages=default.stages - 1)]
    if default.split > 1:
        found.append(replace(default, split=default.split - 1))
    return [c for c in found if ring_problem(plan, kernel, c, target) is None]


def ring_problem(plan: Plan, kernel: KernelPlan, config: TileConfig, target: Target) -> str | None:
    """Why such a projection cannot have a configuration, or None if it can."""
    if not may_specialise(target):
        return f"no specialised projections on {target.name}"
    shape = (config.block_n, config.block_k, config.warps, config.sides, config.precision)
    if shape != (COLUMNS * (1 + kernel.paired), STEP, 4, 1, "ieee"):
        return f"a tile of {shape}"
    if config.block_m not in (16, 32, 64) or config.programs or config.ahead < 0:
        return f"{config.block_m} rows, {config.programs} programs, {config.ahead} columns ahead"
    first = plan.kernels[0].name == kernel.name
    if not 1 <= config.split <= (1 if first else _MOST_SPLIT):
        return f"K shared by {config.split} programs"
    used = config.stages * _stage_bytes(config) + _beside(config)
    if config.stages < 2 or used > target.shared_limit:
        return f"{used} of {target.shared_limit} bytes of shared memory"
    return None


def _stage_bytes(config: TileConfig) -> int:
    """Shared memory of a step of K, all of 16-bit values, and its barriers."""
    return (config.block_m + config.block_n) * config.block_k * 2 + 16


def _beside(config: TileConfig) -> int:
    """Shared memory beside the stages: fp32 sums of a tile change their layout there."""
    return _BESIDE + COLUMNS * config.block_m * 4


def _tiles(kernel: KernelPlan, env: Mapping[str, int]) -> int:
    return -(-max(1, kernel.cols.bind(env)) // COLUMNS)


def _depth(plan: Plan, kernel: KernelPlan, env: Mapping[str, int]) -> int:
    assert kernel.anchor is not None
    return max(1, plan.type_of(anchor_operands(kernel.anchor)[0]).cols.bind(env))


def _split(plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target) -> int:
    """As many programs to a tile as there are multiprocessors for; the counters of a program's
    first kernel are cleared by none (`codegen.few_rows`)."""
    tiles, first = _tiles(kernel, env), next(k for k in plan.kernels if k.few_rows)
    if kernel.name == first.name or tiles > MOST_SHARED_TILES:
        return 1
    steps = -(-_depth(plan, kernel, env) // STEP)
    return max(1, min(target.sms // tiles, steps // FEWEST_STEPS, _MOST_SPLIT))
