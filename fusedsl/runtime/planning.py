"""Which plan runs: the program's own, the one for few rows, or one whose projections take
statistics along or whose warps take tiles in turn. It depends on the sizes and on the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusedsl.codegen import can_specialise, can_take_turns
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
from fusedsl.schedule import Target, may_specialise, pays, pays_in_turn


def planned(plan: Plan, env: Mapping[str, int], target: Target) -> Plan:
    """The plan that runs on a target where `env` binds the dims; one that was chosen before as it
    is."""
    if is_chosen(plan):
        return plan
    if has_few_rows(plan, env):
        return for_few_rows(plan)
    gone = taken_along(plan, env, target)
    return taking_along(in_turn(plan, taken_in_turn(plan, gone, env, target)), gone)


def is_chosen(plan: Plan) -> bool:
    """Whether a plan is one that was made of another."""
    return any(kernel.form is not Form.TILED for kernel in plan.kernels)


def taken_along(plan: Plan, env: Mapping[str, int], target: Target) -> tuple[KernelPlan, ...]:
    """The row kernels whose statistics the projections that read them had better take along."""
    if not may_specialise(target):
        return ()
    return tuple(k for k in plan.kernels if _goes(plan, k, env, target))


def taking_along(plan: Plan, gone: tuple[KernelPlan, ...]) -> Plan:
    """The plan without these row kernels: their readers are specialised projections."""
    if not gone:
        return plan
    formed = [k for kernel in gone for k in readers(plan, kernel)]
    return without(plan, gone, Form.SPECIALISED, formed)


def taken_in_turn(
    plan: Plan, gone: tuple[KernelPlan, ...], env: Mapping[str, int], target: Target
) -> tuple[KernelPlan, ...]:
    """The projections whose tiles two groups of warps had better take in turn, among those that
    take nothing along of the row kernels `gone`."""
    if not may_specialise(target):
        return ()
    taking = [k for kernel in gone for k in readers(plan, kernel)]
    return tuple(
        k
        for k in plan.kernels
        if k not in taking and can_take_turns(plan, k) and pays_in_turn(plan, k, env, target)
    )


def in_turn(plan: Plan, turned: tuple[KernelPlan, ...]) -> Plan:
    """The plan with these projections taken in turn."""
    if not turned:
        return plan
    kernels = (replace(k, form=Form.IN_TURN) if k in turned else k for k in plan.kernels)
    return replace(plan, kernels=tuple(kernels))


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
