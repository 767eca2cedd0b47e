"""Triton helpers of the main loop for few rows (decoding): launch order, partial sums.

A kernel of this kind may start before the kernel ahead of it on the stream has ended. Until it has
waited it only asks for weights to be brought into the L2 cache, which gives no value to anybody: so
it reads nothing that may still be written, weights included, and writes nothing that may still be
read. Every program waits, so a kernel ends after all kernels before it have ended, and what comes
after a wait is ordered as if each kernel had been launched on its own. It lets the next one start
when it has waited: whatever starts early then finds all but one of the kernels before it ended, the
one of the same program that is ahead of it.
"""

# releases of triton type their functions differently
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fetch_ahead(pointers, size):
    """Ask for `size` bytes (a multiple of 16) from each of `pointers` in L2; no value arrives."""
    aligned = pointers.to(tl.int64) & -16
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,r",
        [aligned, tl.full(aligned.shape, size, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def admit_next():
    """Let the next kernel start as soon as there is room for it: it waits for this one's end."""
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def await_earlier():
    """Wait until the kernels before this one have ended, and their writes are seen."""
    tl.extra.cuda.gdc_wait()


@triton.jit
def gather_parts(acc, parts_ptr, arrived_ptr, tile, part, live, SPLIT: tl.constexpr):
    """Leave this program's partial sums [BN, BM]; the last of the SPLIT to arrive adds them up.

    Gives (sum, whether this program is the last). The order of the addition is that of the parts,
    whoever comes last, so that results repeat bit for bit. `live` [1, BM] masks the rows.
    """
    BN: tl.constexpr = acc.shape[0]
    BM: tl.constexpr = acc.shape[1]
    spots = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
    mine = (tile * SPLIT + part).to(tl.int64) * (BN * BM)
    tl.store(parts_ptr + mine + spots, acc, mask=live)
    # every thread's part is written before the program counts as arrived
    tl.debug_barrier()
    last = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") == SPLIT - 1
    # as many loads at a time as registers hold
    UNROLL: tl.constexpr = max(1, 8192 // (BN * BM))
    total = tl.zeros((BN, BM), tl.float32)
    if last:
        first = (tile * SPLIT).to(tl.int64) * (BN * BM)
        for number in tl.range(0, SPLIT, loop_unroll_factor=UNROLL):
            at = parts_ptr + first + number * (BN * BM) + spots
            # past the L1 cache, which does not see what other processors write
            total += tl.load(at, mask=live, other=0.0, cache_modifier=".cg")
    return total, last
