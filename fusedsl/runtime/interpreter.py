"""Make Triton's interpreter right about bfloat16.

With ``TRITON_INTERPRET=1`` Triton runs kernels on the CPU with numpy, which has no bfloat16: the
interpreter holds the bits as ``uint16`` and works on them as if they were integers, and rounds
fp32 towards zero. `install` corrects that, once per process, by replacing a few methods of
``triton.runtime.interpreter``. Storage stays ``uint16``; what changes is the arithmetic:

- a cast rounds once, to nearest even; NaN stays NaN (quiet, sign kept) and Inf stays Inf;
- ``+ - * /``, comparisons, min, max and unary operations widen to fp32 and round the result, as
  torch does (fp32 has more than 2p + 2 bits, so that equals one rounding for normal results);
- ``fma`` rounds once;
- ``dot`` multiplies exactly and accumulates in fp32, whatever its input precision;
- a sum, maximum or scan runs in fp32 and rounds its result. A reduction with a combine function
  of one's own keeps Triton's meaning: bf16 at every step.

Moves (loads, stores, select, reshapes, bit casts) were right and are left alone. Atomics and
``dot_scaled`` on bf16 are not corrected; the latter is refused. fp8 conversions are Triton's own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import triton
import triton.language as tl
import triton.runtime.interpreter as ti
from triton import knobs

from fusedsl.diagnostics import Diagnostic, FusedslError

#: What `install` replaces, by class. A Triton that lacks one of these is refused.
_HOOKS: dict[str, tuple[str, ...]] = {
    "InterpreterBuilder": (
        "binary_op",
        "cast_impl",
        "create_clampf",
        "create_descriptor_load",
        "create_dot",
        "create_fma",
        "create_fp_to_fp",
        "create_maxnumf",
        "create_minnumf",
        "create_print",
        "unary_op",
    ),
    "ReduceOps": ("generic_reduce", "min_max", "sum"),
    "ScanOps": ("cumprod", "cumsum", "generic_scan"),
}


def install() -> None:
    """Correct bfloat16 in Triton's interpreter; does nothing when kernels are compiled.

    Call it before the first launch; calling it again is free.

    Raises:
        FusedslError: F0604, when the interpreter cannot be corrected or cannot run here: a
            method that this module replaces is missing or no longer used, triton was imported
            before ``TRITON_INTERPRET`` was set, or numpy is too new for this triton.
    """
    if not knobs.runtime.interpret or getattr(ti.InterpreterBuilder, "_fusedsl", False):
        return
    _check_environment()
    _check_hooks()
    builder: Any = ti.InterpreterBuilder
    for name in ("binary_op", "unary_op", "create_clampf"):
        setattr(builder, name, _in_fp32(getattr(builder, name)))
    builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)
    builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    builder.get_bf16 = lambda self, value: self.cast_impl(self.get_fp32(value), tl.bfloat16)
    builder.cast_impl = _cast_impl(builder.cast_impl)
    builder.create_fp_to_fp = _create_fp_to_fp(builder.create_fp_to_fp)
    builder.create_fma = _create_fma(builder.create_fma)
    builder.create_dot = _create_dot(builder.create_dot)
    builder.create_descriptor_load = _create_descriptor_load(builder.create_descriptor_load)
    builder.create_print = _create_print(builder.create_print)
    if hasattr(builder, "create_dot_scaled"):
        builder.create_dot_scaled = _create_dot_scaled(builder.create_dot_scaled)
    for owner, names in ((ti.ReduceOps, ("sum", "min_max")), (ti.ScanOps, ("cumsum", "cumprod"))):
        for name in names:
            setattr(owner, name, _reduce_in_fp32(getattr(owner, name)))
    for owner, name in ((ti.ReduceOps, "generic_reduce"), (ti.ScanOps, "generic_scan")):
        setattr(owner, name, _check_combine(getattr(owner, name)))
    if hasattr(ti, "_patch_builtin"):
        ti._patch_builtin = _patch_once(ti._patch_builtin)
    _check_result()
    builder._fusedsl = True


def _patch_once(original: Callable[..., None]) -> Callable[..., None]:
    """Replace a module's or class's functions only where they are not replaced yet.

    The interpreter replaces them for a kernel, and again for every call that the kernel makes of
    another function, when nothing is left to replace: finding that out took up to half its time.
    """
    names: dict[Any, tuple[str, ...]] = {}

    def replaced(owner: Any, *rest: Any) -> None:
        if not names.get(owner):
            members = inspect.getmembers(owner)
            names[owner] = tuple(name for name, m in members if tl.core.is_builtin(m))
        elif not any(tl.core.is_builtin(getattr(owner, name)) for name in names[owner]):
            return
        original(owner, *rest)

    return replaced


# --- numbers: fp32, fp64 and integers to bf16 bits and back ---------------------------------------


def widen(bits: np.ndarray) -> np.ndarray:
    """Return the fp32 values of bf16 bits (uint16); exact."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(values: np.ndarray) -> np.ndarray:
    """Round bool, integer, fp16, fp32 or fp64 values to bf16 bits (uint16), to nearest even.

    The value is rounded once (integers beyond 2**53 twice). NaN stays NaN and becomes quiet.
    """
    single = _to_fp32_odd(np.asarray(values))
    bits = single.view(np.uint32)
    with np.errstate(over="ignore"):  # only a NaN's bits wrap round, and they are not used
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(single), quiet, rounded).astype(np.uint16)


def _truncate(values: np.ndarray) -> np.ndarray:
    """Round fp32 or fp64 values to bf16 bits (uint16), towards zero."""
    single = _to_fp32_odd(np.asarray(values))
    bits = single.view(np.uint32) >> np.uint32(16)
    finite = np.isfinite(values)
    bits = np.where(finite & np.isinf(single), (bits & np.uint32(0x8000)) | np.uint32(0x7F7F), bits)
    return np.where(np.isnan(single), bits | np.uint32(0x40), bits).astype(np.uint16)


def _to_fp32_odd(values: np.ndarray) -> np.ndarray:
    """Convert to fp32; what fp32 cannot hold is rounded to odd, so a later rounding is right."""
    if values.dtype in (np.float32, np.float16, np.bool_):
        return values.astype(np.float32)
    wide = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        near = wide.astype(np.float32)
        return _nudge_to_odd(near, wide - near)


def _nudge_to_odd(near: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Turn a sum or cast rounded to nearest into one rounded to odd, given what it lost.

    Rounding to odd first makes a second rounding (to at least two bits fewer) equal to a single
    one: S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
    """
    even = (near.view(np.uint32 if near.dtype == np.float32 else np.uint64) & 1) == 0
    move = np.isfinite(near) & (error != 0) & even
    towards = np.copysign(near.dtype.type(np.inf), error).astype(near.dtype)
    return np.where(move, np.nextafter(near, towards), near)


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return bf16 bits of x * y + z rounded once; x, y and z are fp32 values that bf16 holds."""
    product = x.astype(np.float64) * y
    addend = z.astype(np.float64)
    total = product + addend
    with np.errstate(invalid="ignore"):  # Inf - Inf; such a total is not nudged
        part = total - product
        error = (product - (total - part)) + (addend - part)  # Knuth's TwoSum: exact
    return narrow(_nudge_to_odd(total, error))


# --- handles and tensors --------------------------------------------------------------------------


def _is_bf16(value: object) -> bool:
    return isinstance(value, ti.TensorHandle) and value.dtype.scalar == tl.bfloat16


def _widened(value: Any) -> Any:
    """Return a bf16 handle as fp32, and anything else as it is."""
    return ti.TensorHandle(widen(value.data), tl.float32) if _is_bf16(value) else value


def _narrowed(handle: Any) -> Any:
    """Return the result of an fp32 operation as bf16, or as int1 for a comparison."""
    if handle.data.dtype == np.bool_:
        return ti.TensorHandle(handle.data, tl.int1)
    return ti.TensorHandle(narrow(handle.data), tl.bfloat16)


def _retyped(tensor: Any, handle: Any) -> Any:
    """Return a tensor of the same shape that holds another handle."""
    dtype = handle.dtype.scalar
    kind = tl.block_type(dtype, list(tensor.shape)) if tensor.type.is_block() else dtype
    return tl.core.tensor(handle, kind)


# --- replacements; each takes the method that it replaces -----------------------------------------


def _in_fp32(method: Callable[..., Any]) -> Callable[..., Any]:
    """Run an arithmetic method on bf16 operands in fp32 and round its result."""

    @functools.wraps(method)
    def replaced(self: Any, *args: Any) -> Any:
        if not any(_is_bf16(arg) for arg in args):
            return method(self, *args)
        return _narrowed(method(self, *[_widened(arg) for arg in args]))

    return replaced


def _cast_impl(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if src.data.dtype == np.bool_:  # a comparison keeps its operands' type in the handle
            src = ti.TensorHandle(src.data, tl.int1)
        target = dst_type.scalar
        if target == tl.bfloat16:
            bits = src.data if _is_bf16(src) else narrow(src.data)
            return ti.TensorHandle(bits, tl.bfloat16)
        src = _widened(src)
        if not target.is_floating():
            return method(self, src, dst_type)
        with np.errstate(over="ignore"):  # too large for fp16 is Inf, as on a GPU
            return method(self, src, dst_type)

    return cast_impl


def _create_fp_to_fp(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if tl.bfloat16 not in (source, target) or source.is_fp8() or target.is_fp8():
            return method(self, src, dst_type, rounding_mode)
        if rounding_mode == ti._ir.ROUNDING_MODE.RTZ and target == tl.bfloat16:
            return ti.TensorHandle(_truncate(src.data), tl.bfloat16)
        if rounding_mode in (None, ti._ir.ROUNDING_MODE.RTNE):
            return self.cast_impl(src, dst_type)
        return method(self, _widened(src), dst_type, rounding_mode)

    return create_fp_to_fp


def _create_fma(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if not _is_bf16(z):
            return method(self, x, y, z)
        values = [_widened(handle).data for handle in (x, y, z)]
        return ti.TensorHandle(_fma(*values), tl.bfloat16)

    return create_fma


def _create_dot(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        result = method(self, _widened(a), _widened(b), _widened(d), *options)
        return _narrowed(result) if _is_bf16(d) else result

    return create_dot


def _create_dot_scaled(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def create_dot_scaled(self: Any, *args: Any) -> Any:
        if any(_is_bf16(arg) for arg in args):
            raise NotImplementedError("the interpreter has no dot_scaled on bfloat16 operands")
        return method(self, *args)

    return create_dot_scaled


def _create_descriptor_load(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def create_descriptor_load(self: Any, desc: Any, indices: Any, *cache: Any) -> Any:
        pads_nan = desc.padding == ti._ir.PADDING_OPTION.PAD_NAN
        if not pads_nan or desc.base.dtype.element_ty != tl.bfloat16:
            return method(self, desc, indices, *cache)
        pointers, mask = desc.materialize_pointers(indices)
        nan = np.full(pointers.data.shape, 0x7FC0, dtype=np.uint16)
        other = ti.TensorHandle(nan, tl.bfloat16)
        return self.create_masked_load(pointers, mask, other, *cache, False)

    return create_descriptor_load


def _create_print(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def create_print(self: Any, prefix: Any, hex: bool, values: Any, *rest: Any) -> Any:
        shown = values if hex else [_widened(value) for value in values]
        return method(self, prefix, hex, shown, *rest)

    return create_print


def _reduce_in_fp32(method: Callable[..., Any]) -> Callable[..., Any]:
    """Run a reduction or scan of one bf16 tensor in fp32 and round its values, not its indices."""

    @functools.wraps(method)
    def replaced(self: Any, input: Any, **options: Any) -> Any:
        if not _is_bf16(input.handle):
            return method(self, input, **options)
        result = method(self, _retyped(input, _widened(input.handle)), **options)
        if not isinstance(result, (tuple, list)):
            return _rounded(result)
        return type(result)(_rounded(item) for item in result)

    return replaced


def _rounded(tensor: Any) -> Any:
    if tensor.dtype != tl.float32:
        return tensor
    return _retyped(tensor, _narrowed(tensor.handle))


class _CheckedCombine:
    """A combine function that must return the types it is given.

    The interpreter stores what it returns into arrays of the inputs' types, so that an fp32 result
    for a bf16 input would be stored as an integer. The compiler refuses it as well.
    """

    def __init__(self, combine: Any) -> None:
        self._combine = combine

    def fn(self, *args: Any) -> Any:
        result = self._combine.fn(*args)
        items = result if isinstance(result, tuple) else (result,)
        pairs = [
            (a.dtype, r.dtype) for a, r in zip(args, items, strict=False) if hasattr(r, "dtype")
        ]
        for given, got in pairs:
            if given != got and tl.bfloat16 in (given, got):
                raise TypeError(f"the combine function returns {got} for {given}; cast its result")
        return result


def _check_combine(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def replaced(self: Any, input: Any) -> Any:
        combine = self.combine_fn
        self.combine_fn = _CheckedCombine(combine)
        try:
            return method(self, input)
        finally:
            self.combine_fn = combine

    return replaced


# --- refusals -------------------------------------------------------------------------------------


def _refuse(message: str, fix: str) -> FusedslError:
    where = f"triton {triton.__version__}, numpy {np.__version__}"
    return FusedslError(Diagnostic("F0604", message, where=where, fix=fix))


def _check_environment() -> None:
    if not isinstance(tl.standard._sum_combine, ti.InterpretedFunction):
        raise _refuse(
            "TRITON_INTERPRET was set after triton had been imported",
            "set TRITON_INTERPRET=1 before anything imports triton",
        )
    if _version(triton.__version__) < (3, 7) and _version(np.__version__) >= (2, 4):
        raise _refuse(
            "the interpreter of triton before 3.7 breaks with numpy 2.4 and later",
            "install 'numpy<2.4' or a newer triton",
        )


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _check_hooks() -> None:
    missing = [
        f"{owner}.{name}"
        for owner, names in _HOOKS.items()
        for name in names
        if not hasattr(getattr(ti, owner, None), name)
    ]
    if missing:
        raise _refuse(
            f"cannot correct bfloat16 in this triton's interpreter: it has no {', '.join(missing)}",
            "use a triton version that fusedsl supports, or run on a GPU",
        )


def _check_result() -> None:
    """Compute 1 + 2**-8 and the like through the methods that kernels call."""
    builder: Any = ti.InterpreterBuilder()
    one, tie = builder.get_bf16(1.0), builder.get_bf16(2.0**-8)
    block = ti.TensorHandle(np.full((2, 2), 0x3F80, np.uint16), tl.bfloat16)
    zero = ti.TensorHandle(np.zeros((2, 2), np.float32), tl.float32)
    above, three = builder.get_fp32(1 + 2.0**-8 + 2.0**-20), builder.get_int32(3)
    got = {
        "add": builder.create_fadd(one, tie).data[0] == 0x3F80,
        "multiply": builder.create_fmul(tie, tie).data[0] == 0x3780,
        "compare": bool(builder.create_fcmpOLT(builder.get_bf16(-2.0), one).data[0]),
        "maximum": builder.create_maximumf(one, builder.get_bf16(-2.0)).data[0] == 0x3F80,
        "fma": builder.create_fma(one, one, one).data[0] == 0x4000,
        "down-cast": builder.create_fp_trunc(above, tl.bfloat16).data[0] == 0x3F81,
        "up-cast": builder.create_fp_ext(one, tl.float32).data[0] == 1.0,
        "integer cast": builder.create_si_to_fp(three, tl.bfloat16).data[0] == 0x4040,
        "dot": bool((builder.create_dot(block, block, zero, None, 0).data == 2.0).all()),
    }
    wrong = [name for name, right in got.items() if not right]
    if wrong:
        raise _refuse(
            f"this triton's interpreter is still wrong about bfloat16: {', '.join(wrong)}",
            "use a triton version that fusedsl supports, or run on a GPU",
        )
