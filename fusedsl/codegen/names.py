"""Variable names of emitted kernels: the program's own names, made unique."""

from __future__ import annotations

import keyword
import re

#: Names the skeletons use themselves.
SKELETON = frozenset(
    [
        "M", "N", "K", "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "SIDES", "FAST", "PRECISION",
        "WIDTH", "STREAM_M", "STREAM_K", "share", "term", "total", "lost",
        "tl", "triton", "tile", "tiles_m", "tiles_n", "group", "group_rows", "within",
        "tile_m", "tile_n", "row0", "col0", "acc", "a", "b", "step", "rows", "rows64", "row_live",
        "first", "second", "left", "right", "col", "cols", "col_live", "side", "part",
        "start", "min", "max", "range", "float", "lane", "a_rows", "a_live", "b_cols", "b_live",
        "number", "own", "lanes", "held", "shares", "slots", "turn", "turns", "groups", "mark",
        "here", "words_ptr", "PARTS", "PADDED_PARTS", "WAIT", "take_number", "publish",
        "words_at", "missing", "any_of", "states_of", "unbound", "part_cols", "part_live",
        "begin", "end", "last", "steps", "share_k", "turned", "finishes", "parts_ptr",
        "arrived_ptr", "clear_ptr", "ahead_n", "ahead_k", "ahead_size", "half_b", "half_acc",
        "half_lost", "both",
        "x_stage", "x_stages", "w_stages", "x_desc", "w_desc", "NUMBERS", "zeros", "nothing",
        "SIZE", "every", "n", "size", "w_ptr", "w_stride", "leave_part", "sum_parts", "share_of",
        "EARLY",
        "live", "piece", "UNROLL", "SPLIT", "AHEAD", "PDL",
        "admit_next", "await_earlier", "fetch_ahead", "gather_parts",
        "x_tile", "sums", "none", "stage", "phase", "tiles", "part0", "part1", "part2", "part3",
        "first0", "first1", "second0", "second1", "a_stages", "b_stages", "full", "empty", "staged",
        "staged0", "staged1", "loads", "i", "PART", "WIDE", "MMA", "PIECE", "ROWS", "COLS",
        "OPERAND", "STAGES", "tma", "mbarrier", "gluon", "widen", "sum_lanes", "halves", "tile_at",
        "next_stage", "put", "place", "BACKWARDS", "load_stages", "fence_async_shared", "core",
        "warpgroup_mma", "warpgroup_mma_wait", "warpgroup_mma_init",
        "top", "above", "below", "above0", "above1", "below0",
        "below1", "columns", "columns_above", "columns_below", "first_cols", "parts", "mine",
        "late", "row", "told", "at", "ahead", "head_cols", "head_live",
        "TILE", "TOLD", "OWNED", "READ", "LAG", "LOADS", "SLOTS", "WARPS", "EACH", "WORDS",
        "BARRIERS", "WHOLE", "LANES", "warp", "room", "own_cols", "places", "sizes", "loaded",
        "source", "past", "j", "peer", "tells", "there", "there_told", "mine_told", "slot", "free",
        "next_cols", "next_live", "widen_here", "shared_address", "of_peer", "make_barrier",
        "clear", "arrive_in_cluster", "wait_in_cluster", "expect", "pass_barrier", "begin_load",
        "expect_cluster",
        "end_reads", "tell", "part_at", "states_at", "shares_of", "load_head", "column_sums",
        "by_warps", "COPIES", "STRETCH", "warp_sums", "larger", "column_maxima", "warp_maxima",
        "over_columns", "join_exps",
        "stride", "skip_stages", "multiply_stage", "load_in_turn",
        "a_ptrs", "b_ptrs", "a_ptr", "b_ptr", "a_desc", "b_desc", "a_stride", "b_stride", "k_live",
    ]
)  # fmt: skip


class Namer:
    """Gives names that nothing else in the kernel has."""

    def __init__(self, taken: frozenset[str] = frozenset()):
        self._taken = set(SKELETON) | set(taken)

    def fresh(self, stem: str) -> str:
        """A new name that starts with `stem`."""
        base = re.sub(r"\W", "_", stem)
        base = f"n{base}" if base[0].isdigit() else base
        candidate, index = base, 1
        while candidate in self._taken or keyword.iskeyword(candidate):
            index += 1
            candidate = f"{base}_{index}"
        self._taken.add(candidate)
        return candidate
