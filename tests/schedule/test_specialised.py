"""Groups of rows of tiles: what is in flight at a time reads few operands."""

import pytest

from fusedsl.schedule.specialised import TILE_M, group_of


def operand_rows(group: int, across: int, tiles: int, block_n: int) -> int:
    """Rows of both operands that the first `tiles` tiles read, counted tile by tile."""
    places = [(t // (group * across), t % (group * across)) for t in range(tiles)]
    taken = [(first * group + within % group, within // group) for first, within in places]
    above, beside = {row for row, _ in taken}, {col for _, col in taken}
    return len(above) * TILE_M + len(beside) * block_n


@pytest.mark.parametrize("tiles, block_n", [(132, 256), (264, 128)])
@pytest.mark.parametrize("cols", [256, 768, 2304, 6144, 16384, 151936])
def test_a_group_reads_about_as_little_as_any(cols: int, tiles: int, block_n: int) -> None:
    across = -(-cols // block_n)
    least = min(operand_rows(group, across, tiles, block_n) for group in range(1, 64))
    # tiles in flight are no whole number of groups: some percent more than the best
    assert operand_rows(group_of(cols, block_n, tiles), across, tiles, block_n) <= 1.15 * least


def test_of_equal_groups_the_smallest() -> None:
    assert group_of(256, 256, 132) == 8 and group_of(16384, 256, 132) == 16
