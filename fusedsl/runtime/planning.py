"""Which plan runs: the program's own, the one for few rows, or one whose
projections are specialised. It depends on the sizes and on the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusedsl.codegen import can_specialise
from fusedsl.fuse import (
    Form,
    KernelPlan,
    Plan,
    adds_up,
    can_go,
    for_few_rows,
    has_few_rows,
    readers,
    without,
)
from fusedsl.schedule import Target, may_specialise, pays, pays_to_bring


@dataclass(frozen=True)
class Change:
    """Which row kernels go, and which projections are specialised, by name."""

    gone: tuple[str, ...] = ()
    specialised: tuple[str, ...] = ()


def planned(plan: Plan, env: Mapping[str, int], target: Target) -> Plan:
    """The plan that runs on a target where `env` binds the dims; one that was chosen before as it
    is."""
    if is_chosen(plan):
        return plan
    if has_few_rows(plan, env):
        return for_few_rows(plan)
    return changed(plan, change_of(plan, env, target))


def is_chosen(plan: Plan) -> bool:
    """Whether a plan is one that was made of another."""
    return any(kernel.form is not Form.TILED for kernel in plan.kernels)


def change_of(plan: Plan, env: Mapping[str, int], target: Target) -> Change:
    """What had better change on a target: row kernels go whose statistics the projections that read
    them take along, and projections have the tiles brought that their epilogues read."""
    if not may_specialise(target):
        return Change()
    gone = [k for k in plan.kernels if _goes(plan, k, env, target)]
    specialised = [reader for kernel in gone for reader in readers(plan, kernel)]
    specialised += [k for k in plan.kernels if _has_tile_brought(plan, k, env, target)]
    names = dict.fromkeys(kernel.name for kernel in specialised)
    return Change(tuple(kernel.name for kernel in gone), tuple(names))


def changed(plan: Plan, change: Change) -> Plan:
    """The plan with a change made."""
    if change == Change():
        return plan
    gone = [k for k in plan.kernels if k.name in change.gone]
    formed = [k for k in plan.kernels if k.name in change.specialised]
    return without(plan, gone, Form.SPECIALISED, formed)


def _has_tile_brought(
    plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target
) -> bool:
    return can_specialise(plan, kernel) and pays_to_bring(plan, kernel, env, target)


def _goes(plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target) -> bool:
    if not can_go(plan, kernel) or not adds_up(kernel):
        return False
    found = readers(plan, kernel)
    alone = all(_read_rows(plan, k) == set(kernel.writes) & set(k.reads) for k in found)
    return (
        alone
        and all(can_specialise(plan, k) for k in found)
        and pays(plan, kernel, found, env, target)
    )


def _read_rows(plan: Plan, kernel: KernelPlan) -> set[str]:
    """What a kernel reads of what row kernels write: one may go for each projection."""
    return {n for k in plan.kernels if can_go(plan, k) for n in set(k.writes) & set(kernel.reads)}
