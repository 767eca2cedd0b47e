"""Which plan runs: the program's own, the one for few rows, or one whose
projections are specialised. It depends on the sizes and on the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusedsl.codegen import can_ring, can_share_in_cluster, can_specialise, can_take_turns
from fusedsl.fuse import (
    Form,
    KernelPlan,
    LeftSum,
    Plan,
    adds_up,
    alternate,
    can_go,
    for_few_rows,
    has_few_rows,
    left_sums,
    readers,
    without,
    without_sums,
)
from fusedsl.schedule import (
    Target,
    fills,
    may_specialise,
    pays,
    pays_in_cluster,
    pays_in_ring,
    pays_in_turn,
)


@dataclass(frozen=True)
class Change:
    """Which partial sums are not left, which row kernels go, which projections are specialised
    beside their readers, which by groups that take tiles in turn, which row kernels have their
    rows shared by clusters, and which projections of few rows have their weights go through a ring;
    by name."""

    sums: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    specialised: tuple[str, ...] = ()
    in_turn: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    ring: tuple[str, ...] = ()


def planned(plan: Plan, env: Mapping[str, int], target: Target) -> Plan:
    """The plan that runs on a target where `env` binds the dims; one that was chosen before as it
    is."""
    if is_chosen(plan):
        return plan
    if has_few_rows(plan, env):
        plan = for_few_rows(plan)
    return changed(plan, change_of(plan, env, target))


def is_chosen(plan: Plan) -> bool:
    """Whether a plan is one that was made of another."""
    return any(kernel.form is not Form.TILED for kernel in plan.kernels)


def change_of(plan: Plan, env: Mapping[str, int], target: Target) -> Change:
    """What had better change on a target: projections take along the statistics of what they
    stream, so that no kernel before does; heavy epilogues lie under another tile's products, and
    others have what they move beside their results moved by warps with tasks of their own."""
    if not may_specialise(target):
        return Change()
    if has_few_rows(plan, env):
        return Change(ring=tuple(k.name for k in plan.kernels if _rings(plan, k, env, target)))
    sums = [left for left in left_sums(plan) if _taken(plan, left, env, target)]
    plan = without_sums(plan, sums, Form.SPECIALISED)
    gone = [k.name for k in plan.kernels if _goes(plan, k, env, target)]
    heavy = [k.name for k in plan.kernels if _takes_turns(plan, k, env, target)]
    light = (k for k in plan.kernels if k.name not in heavy)
    formed = [k.name for k in light if _moves_more(plan, k, env, target)]
    taking = {k.name for k in plan.kernels if k.name in formed or k.specialised}
    taking |= {r.name for k in plan.kernels if k.name in gone for r in readers(plan, k)}
    turned = [name for name in heavy if name not in taking]
    rest = (k for k in plan.kernels if k.name not in gone)
    shared = [k.name for k in rest if _in_cluster(plan, k, target)]
    names = (left.node.name for left in sums)
    return Change(tuple(names), tuple(gone), tuple(formed), tuple(turned), tuple(shared))


def changed(plan: Plan, change: Change) -> Plan:
    """The plan with a change made."""
    if change == Change():
        return plan
    if change.ring:
        ringed = (replace(k, form=Form.RING) if k.name in change.ring else k for k in plan.kernels)
        return replace(plan, kernels=tuple(ringed))
    sums = [left for left in left_sums(plan) if left.node.name in change.sums]
    plan = without_sums(plan, sums, Form.SPECIALISED)
    gone = [k for k in plan.kernels if k.name in change.gone]
    formed = [k for k in plan.kernels if k.name in change.specialised]
    formed += [reader for kernel in gone for reader in readers(plan, kernel)]
    forms = dict.fromkeys(change.in_turn, Form.IN_TURN)
    forms |= dict.fromkeys(change.cluster, Form.CLUSTER)
    kernels = (replace(k, form=forms[k.name]) if k.name in forms else k for k in plan.kernels)
    plan = without(replace(plan, kernels=tuple(kernels)), gone, Form.SPECIALISED, formed)
    return alternate(plan)


def _taken(plan: Plan, left: LeftSum, env: Mapping[str, int], target: Target) -> bool:
    """Whether the readers of partial sums can take them, and fill the machine."""
    plan = without_sums(plan, [left], Form.SPECIALISED)
    found = [k for k in plan.kernels if k.name in left.readers]
    return all(can_specialise(plan, k) and fills(plan, k, env, target) for k in found)


def _moves_more(plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target) -> bool:
    """Whether the epilogue reads a tile, leaves states or merges some, and the projection can be
    specialised and fills the machine."""
    more = plan.tiles_read(kernel) or kernel.states_left or kernel.states_merged
    if kernel.anchor is None or not more:
        return False
    return can_specialise(plan, kernel) and fills(plan, kernel, env, target)


def _takes_turns(plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target) -> bool:
    """Whether two groups of warps had better take the tiles of a projection in turn."""
    return can_take_turns(plan, kernel) and pays_in_turn(plan, kernel, env, target)


def _rings(plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target) -> bool:
    """Whether the weights of a projection of few rows had better go through a ring of stages."""
    return can_ring(plan, kernel) and pays_in_ring(plan, kernel, env, target)


def _in_cluster(plan: Plan, kernel: KernelPlan, target: Target) -> bool:
    """Whether clusters of programs had better share the rows of a row kernel."""
    return can_share_in_cluster(plan, kernel) and pays_in_cluster(plan, kernel, target)


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
