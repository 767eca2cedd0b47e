"""The default configuration of 16-bit projections on machines like the H100 and H200."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fusedsl.fuse import KernelPlan, Plan
from fusedsl.schedule import tables
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.legality import (
    epilogue_tiles,
    operand_bytes,
    problem,
    resident,
    shared_bytes,
)
from fusedsl.schedule.model import Work, gemm_time
from fusedsl.schedule.signature import Extent, family
from fusedsl.schedule.target import Target

#: (block_m, block_n, block_k, warps, most stages, most programs on a multiprocessor)
SHORTLIST = (
    (128, 256, 64, 8, 4, 1),
    (256, 128, 64, 8, 4, 1),
    (128, 128, 64, 8, 4, 1),
    (128, 128, 64, 4, 5, 1),
    (128, 128, 64, 4, 3, 2),
    (128, 128, 128, 8, 3, 1),
    (64, 256, 64, 4, 4, 1),
    (64, 128, 64, 4, 4, 2),
    (64, 128, 128, 4, 3, 1),
    (64, 64, 128, 4, 6, 1),
    (64, 64, 128, 4, 3, 2),
    (64, 64, 64, 4, 4, 3),
    (64, 32, 128, 4, 4, 3),
)
#: A table's entry may be this much slower, by the model, than the model's own choice: its bucket
#: was measured at another size.
_TRUST = 1.15
#: How much more a slow end of a class weighs than a fast one.
_WORST = 4


def applies(target: Target, main_loop: str, item: int) -> bool:
    """Whether the model is made for this machine, main loop and operand."""
    roomy = target.backend == "cuda" and target.shared_limit >= 200_000
    return roomy and main_loop != "pointer" and item == 2


def choose_hopper(
    plan: Plan, kernel: KernelPlan, at: Sequence[Extent], target: Target, main_loop: str
) -> TileConfig | None:
    """The configuration that is fastest all over a row class, by the shipped table, else by the
    model; None if nothing fits. `at` holds samples of the class, its upper end first."""
    works = [Work.of(plan, kernel, extent) for extent in at]
    options = list(shortlist(plan, kernel, target, main_loop))
    if not options:
        return None
    least = [min(gemm_time(config, work, target) for config in options) for work in works]

    def excess(config: TileConfig) -> float:
        ratios = [gemm_time(config, w, target) / t for w, t in zip(works, least, strict=True)]
        return sum(ratio**_WORST for ratio in ratios)

    best = min(options, key=excess)
    known = shipped(plan, kernel, at[0], target, main_loop)
    if known is not None and excess(known) <= _TRUST**_WORST * excess(best):
        return known
    return best


def shortlist(
    plan: Plan, kernel: KernelPlan, target: Target, main_loop: str
) -> Iterator[TileConfig]:
    """The legal ones of the list, with as many stages and programs as fit."""
    item, tiles = operand_bytes(plan, kernel), epilogue_tiles(plan, kernel, main_loop)
    # accumulators of a thread that fit beside a loaded tile, half as many where they come from
    # tensor memory, and half where two statistics are merged or left
    statistics = sum(node.block.reduction is not None for node in kernel.steps)
    held = (128 if target.name == "sm_90" else 64) // (1 if statistics < 2 else 2)
    for block_m, block_n, block_k, warps, most, share in SHORTLIST:
        if len(tiles) > 1 and block_m * block_n > held * 32 * warps:
            continue
        config = TileConfig(
            block_m,
            block_n,
            block_k,
            sides=1 if kernel.paired or block_n <= 64 else 2,
            warps=warps,
            programs=share * target.sms,
        )
        for stages in range(most, 1, -1):
            fitted = replace(config, stages=stages)
            used = shared_bytes(fitted, kernel.paired, item, tiles)
            crowded = used > target.shared_limit or resident(fitted, used, target) < share
            if not crowded and problem(plan, kernel, fitted, target, main_loop) is None:
                yield fitted
                break


def shipped(
    plan: Plan, kernel: KernelPlan, extent: Extent, target: Target, main_loop: str
) -> TileConfig | None:
    """The shipped table's configuration for this bucket, if it is legal here."""
    key = tables.key_of(family(plan, kernel), main_loop, extent.rows, extent.cols, extent.depth)
    entry = tables.table(target.name).get(key)
    if entry is None:
        return None
    config = replace(entry.config, programs=entry.config.programs * target.sms)
    return config if problem(plan, kernel, config, target, main_loop) is None else None
