"""The laws, one per file, in the order in which they are tried.

A rule is tried at every place before the next one is, and after a firing the first one is tried
again, so that an earlier rule always has the last word:

1. `gated_pair`: two projections of a norm are one reader of it, not two.
2. `shared_norm`: each reader gets a chain of its own, so that the next three may take it off.
3. `layer_norm_shift` before `commute_row_scale`: a chain with a shift is moved as a whole.
4. `commute_row_scale` before `fold_gain`: what is left under the scale is the gain.
5. `homogeneous_activation` hands a scale on to the next projection, where 4 goes on.
6. `pick_of_projection` when nothing moves any more: it reads the operand as it will be stored.
7. `statistics_in_producer` last: epilogues have their final shape.
"""

from fusedsl.rewrite.rule import Rule
from fusedsl.rewrite.rules import (
    commute_row_scale,
    fold_gain,
    gated_pair,
    homogeneous_activation,
    layer_norm_shift,
    pick_of_projection,
    shared_norm,
    statistics_in_producer,
)

RULES: tuple[Rule, ...] = (
    gated_pair.RULE,
    shared_norm.RULE,
    layer_norm_shift.RULE,
    commute_row_scale.RULE,
    fold_gain.RULE,
    homogeneous_activation.RULE,
    pick_of_projection.RULE,
    statistics_in_producer.RULE,
)
