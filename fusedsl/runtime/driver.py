"""The CUDA driver, called without a launcher in between.

A kernel's parameters lie packed in memory; a launch is one call of `cuLaunchKernelEx` on them.
That needs to know what the binary takes, which is Triton's business: `binary_of` works it out from
what Triton says of the kernel, holds it against what the driver says of the binary, and gives None
where they differ or where anything is not known. Triton's own launcher is used then.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, replace
from typing import Any

#: CUDA_ERROR_INVALID_CONTEXT: this thread has no current context yet.
NO_CONTEXT = 201

#: Bytes of a tensor map, and the alignment it is given.
_MAP = 128

_COOPERATIVE = 2
_CLUSTER = 4
_DEPENDENT_LAUNCH = 6

#: Attributes of a function, and of a device, by their numbers in the driver's header.
_MAX_THREADS, _STATIC_SHARED, _MAX_DYNAMIC_SHARED, _LARGE_CLUSTERS = 0, 1, 8, 14
_SHARED_OPT_IN = 97

#: Bytes of shared memory that a program may have unasked.
_SHARED_UNASKED = 48 * 1024
#: CU_FUNC_CACHE_PREFER_SHARED.
_PREFER_SHARED = 1

#: Bytes of the parameters that a binary takes, by Triton's name of the type.
_SIZES = {"i32": 4, "u32": 4, "i64": 8, "u64": 8, "pointer": 8, "map": _MAP}

#: Programs of a cluster that a function takes unasked.
_PORTABLE_CLUSTER = 8

#: Triton passes two more pointers at the end (global and profiler scratch); both are null here.
_SCRATCH = 2


class _Attribute(ctypes.Structure):
    _fields_ = (("id", c_uint), ("pad", c_uint), ("value", c_uint64 * 8))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


@dataclass(frozen=True)
class Parameter:
    """One parameter of a binary.

    `kind` is "pointer", "map" or an integer type; `position` is the argument of the kernel it comes
    from; `field` says which number of a descriptor it is: ("shape", axis) or ("strides", axis).
    """

    kind: str
    position: int
    field: tuple[str, int] | None = None


@dataclass(frozen=True)
class Binary:
    """A loaded kernel, and what one needs to launch it.

    `layouts` says how the tensor map of each descriptor argument is encoded, by position. So many
    programs in a row of the grid are a `cluster`.
    """

    function: int
    threads: int
    shared: int
    pdl: bool
    cooperative: bool
    parameters: tuple[Parameter, ...]
    layouts: Mapping[int, Mapping[str, Any]]
    cluster: int = 1


@functools.cache
def library() -> Any:
    """The driver's library with the functions used here, or None where there is none."""
    try:
        found = ctypes.CDLL("libcuda.so.1")
        launch, encode = found.cuLaunchKernelEx, found.cuTensorMapEncodeTiled
        sizes, text = found.cuFuncGetParamInfo, found.cuGetErrorString
        now, enter = found.cuCtxGetCurrent, found.cuCtxSetCurrent
        retain, load = found.cuDevicePrimaryCtxRetain, found.cuModuleLoadData
        name, of_device = found.cuModuleGetFunction, found.cuDeviceGetAttribute
        of_function, change = found.cuFuncGetAttribute, found.cuFuncSetAttribute
        prefer, clusters = found.cuFuncSetCacheConfig, found.cuOccupancyMaxActiveClusters
    except (OSError, AttributeError):
        return None
    encode.argtypes = (c_void_p, c_int, c_uint32, *[c_void_p] * 5, *[c_int] * 4)
    sizes.argtypes = (c_void_p, c_size_t, c_void_p, c_void_p)
    text.argtypes = (c_int, c_void_p)
    now.argtypes = enter.argtypes = (c_void_p,)
    retain.argtypes, load.argtypes = (c_void_p, c_int), (c_void_p, c_char_p)
    name.argtypes, of_device.argtypes = (c_void_p, c_void_p, c_char_p), (c_void_p, c_int, c_int)
    of_function.argtypes, change.argtypes = (c_void_p, c_int, c_void_p), (c_void_p, c_int, c_int)
    prefer.argtypes, clusters.argtypes = (c_void_p, c_int), (c_void_p, c_void_p, c_void_p)
    functions = (launch, encode, sizes, text, now, enter, retain, load, name)
    for function in (*functions, of_device, of_function, change, prefer, clusters):
        function.restype = c_int
    return found


def binary_of(compiled: Any, warp_size: int = 32, cluster: int = 1) -> Binary | None:
    """What launches a kernel that Triton has loaded, in clusters of so many programs, or None where
    something is not known."""
    if library() is None:
        return None
    try:
        found = _binary_of(compiled, warp_size)
        return replace(found, cluster=cluster) if found is not None else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _binary_of(compiled: Any, warp_size: int) -> Binary | None:
    data = compiled.metadata
    if data.num_ctas != 1 or data.global_scratch_size or data.profile_scratch_size:
        return None
    layouts = list(getattr(data, "tensordesc_meta", None) or ())
    parameters: list[Parameter] = []
    described: dict[int, Mapping[str, Any]] = {}
    for position, kind in enumerate(compiled.src.signature.values()):
        if kind == "constexpr":
            continue
        if kind.startswith("tensordesc<"):
            layout = described[position] = layouts[len(described)]
            if not _is_known(layout):
                return None
            parameters += _described(position, len(layout["block_size"]))
        else:
            parameters.append(Parameter("pointer" if kind[0] == "*" else kind, position))
    if len(described) != len(layouts) or not _agrees(compiled.function, parameters):
        return None
    return Binary(
        compiled.function,
        data.num_warps * warp_size,
        data.shared,
        bool(data.launch_pdl),
        bool(data.launch_cooperative_grid),
        tuple(parameters),
        described,
    )


def loaded(binary: Binary, name: str, image: bytes, device: int) -> Binary | None:
    """A binary described before, loaded onto a device from its image; None where the image is not
    what is described, or does not fit the device. It stays loaded as long as the process runs."""
    if library() is None or not all(_is_known(layout) for layout in binary.layouts.values()):
        return None
    enter(device)
    try:
        function = _load(name, image, binary.shared, binary.threads, device)
        if function is not None:
            allow_cluster(function, binary.cluster)
    except RuntimeError:
        return None
    if function is None or not _agrees(function, binary.parameters):
        return None
    return replace(binary, function=function)


def _load(name: str, image: bytes, shared: int, threads: int, device: int) -> int | None:
    """The function of that name, allowed the shared memory it uses, as Triton's loader does it."""
    driver, module, function = library(), c_void_p(), c_void_p()
    check(driver.cuModuleLoadData(ctypes.addressof(module), image), "cuModuleLoadData")
    status = driver.cuModuleGetFunction(ctypes.addressof(function), module, name.encode())
    check(status, "cuModuleGetFunction")
    if threads > _asked(driver.cuFuncGetAttribute, _MAX_THREADS, function):
        return None
    if shared > _SHARED_UNASKED:
        most = _asked(driver.cuDeviceGetAttribute, _SHARED_OPT_IN, device)
        if shared > most:
            return None
        check(driver.cuFuncSetCacheConfig(function, _PREFER_SHARED), "cuFuncSetCacheConfig")
        allowed = most - _asked(driver.cuFuncGetAttribute, _STATIC_SHARED, function)
        status = driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, allowed)
        check(status, "cuFuncSetAttribute")
    return function.value


def allow_cluster(function: int, cluster: int) -> None:
    """Let a function be launched in clusters of so many programs. Raises RuntimeError where the
    device does not have them."""
    if cluster > _PORTABLE_CLUSTER:
        status = library().cuFuncSetAttribute(function, _LARGE_CLUSTERS, 1)
        check(status, "cuFuncSetAttribute")


def most_clusters(binary: Binary) -> int:
    """How many clusters of a binary the device holds at a time. Raises RuntimeError."""
    attributes, count = _attributes(binary), c_int()
    config = _Config((binary.cluster, 1, 1), (binary.threads, 1, 1), binary.shared)
    config.attributes, config.count = ctypes.addressof(attributes), len(attributes)
    status = library().cuOccupancyMaxActiveClusters(
        ctypes.addressof(count), binary.function, ctypes.addressof(config)
    )
    check(status, "cuOccupancyMaxActiveClusters")
    return count.value


def _asked(ask: Callable[[int, int, Any], int], attribute: int, of: Any) -> int:
    """The value of a function's or a device's attribute."""
    value = c_int()
    check(ask(ctypes.addressof(value), attribute, of), f"asking for attribute {attribute}")
    return value.value


def _is_known(layout: Mapping[str, Any] | None) -> bool:
    known = {"swizzle", "elem_size", "elem_type", "block_size", "fp4_padded", "is_im2col"}
    if layout is None or not set(layout) <= known or layout["elem_type"] not in _host_types():
        return False
    return not layout["fp4_padded"] and not layout.get("is_im2col", False)


@functools.cache
def _host_types() -> Mapping[int, int]:
    """Triton's number of an element type → the driver's; empty where Triton does not say."""
    try:
        return importlib.import_module("triton.backends.nvidia.driver").TMA_DTYPE_DEVICE_TO_HOST
    except (ImportError, AttributeError):
        return {}


def _described(position: int, rank: int) -> list[Parameter]:
    """A descriptor is its tensor map, then its shape, then its strides."""
    shape = [Parameter("i32", position, ("shape", axis)) for axis in range(rank)]
    strides = [Parameter("i64", position, ("strides", axis)) for axis in range(rank)]
    return [Parameter("map", position), *shape, *strides]


def _agrees(function: int, parameters: Sequence[Parameter]) -> bool:
    """Whether the binary takes parameters of just these sizes."""
    sizes = [_SIZES[p.kind] for p in parameters] + [8] * _SCRATCH
    return parameter_sizes(function, len(sizes) + 1) == sizes


def parameter_sizes(function: int, most: int) -> list[int]:
    """The sizes in bytes of a binary's parameters, of which there are at most `most`."""
    offset, size = c_size_t(), c_size_t()
    found: list[int] = []
    while len(found) < most:
        status = library().cuFuncGetParamInfo(
            function, len(found), ctypes.addressof(offset), ctypes.addressof(size)
        )
        if status:
            break
        found.append(size.value)
    return found


class TensorMap:
    """An encoded tensor map in memory of its own."""

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(2 * _MAP)
        self.address = -(-ctypes.addressof(self._memory) // _MAP) * _MAP


def encode(
    pointer: int, layout: Mapping[str, Any], shape: Sequence[int], strides: Sequence[int]
) -> TensorMap:
    """The tensor map of a tensor at `pointer`: `shape` and `strides` in elements, rows first; reads
    outside give zeros. Raises RuntimeError where the driver refuses it."""
    rank, size = len(shape), layout["elem_size"]
    made = TensorMap()
    steps = [stride * size for stride in strides[:-1]]
    check(
        library().cuTensorMapEncodeTiled(
            made.address,
            _host_types()[layout["elem_type"]],
            rank,
            pointer,
            (c_uint64 * rank)(*reversed(shape)),
            (c_uint64 * rank)(*reversed(steps)),
            (c_uint32 * rank)(*reversed(layout["block_size"])),
            (c_uint32 * rank)(*[1] * rank),
            0,  # not interleaved
            layout["swizzle"],
            2,  # 128 bytes fetched into L2 at a time
            0,  # zeros outside
        ),
        "cuTensorMapEncodeTiled",
    )
    return made


class Packed:
    """The parameters of one launch, packed.

    `addresses` is where the pointers of the call's slots lie: parameters refer to it, so that a
    new pointer is written once, whichever kernels take it.
    """

    def __init__(
        self,
        binary: Binary,
        grid: tuple[int, int, int],
        stream: int,
        arguments: Sequence[Any],
        slots: Mapping[int, int],
        addresses: ctypes.Array[c_uint64],
    ):
        self._binary = binary
        self._addresses = addresses
        self._numbers: list[Any] = []
        self._attributes = _attributes(binary)
        self._config = _Config(
            grid,
            (binary.threads, 1, 1),
            binary.shared,
            stream,
            ctypes.addressof(self._attributes),
            len(self._attributes),
        )
        count = len(binary.parameters) + _SCRATCH
        self._params = (c_void_p * count)()
        #: Index of each tensor map among the parameters, by the argument's position.
        self.maps: dict[int, int] = {}
        self._held: dict[int, TensorMap] = {}
        base = ctypes.addressof(addresses)
        for index, parameter in enumerate(binary.parameters):
            if parameter.kind == "map":
                self.maps[parameter.position] = index
            elif parameter.kind == "pointer":
                self._params[index] = base + 8 * slots[parameter.position]
            else:
                self._params[index] = self._number(_value(parameter, arguments))
        for index in range(count - _SCRATCH, count):
            self._params[index] = self._number(0)
        #: What `cuLaunchKernelEx` takes; pointers need no conversion, which costs 0.1 µs.
        self.call = (
            c_void_p(ctypes.addressof(self._config)),
            c_void_p(binary.function),
            c_void_p(ctypes.addressof(self._params)),
        )

    def on(self, stream: int) -> None:
        """Launch on this stream from now on."""
        self._config.stream = stream

    def hold(self, index: int, made: TensorMap) -> None:
        """Pass this tensor map as the parameter of that index from now on."""
        self._held[index] = made
        self._params[index] = made.address

    def _number(self, value: int) -> int:
        """The address of a number; little endian, so narrower ones are read from its start."""
        cell = c_uint64(value & (1 << 64) - 1)
        self._numbers.append(cell)
        return ctypes.addressof(cell)


def _value(parameter: Parameter, arguments: Sequence[Any]) -> int:
    if parameter.field is None:
        return int(arguments[parameter.position])
    name, axis = parameter.field
    return int(arguments[parameter.position][name][axis])


def _attributes(binary: Binary) -> Any:
    wanted = [(_DEPENDENT_LAUNCH, 1, 0)] * binary.pdl + [(_COOPERATIVE, 1, 0)] * binary.cooperative
    # a cluster's three dimensions, of 32 bits each
    wanted += [(_CLUSTER, 1 << 32 | binary.cluster, 1)] * (binary.cluster > 1)
    made = (_Attribute * len(wanted))()
    for attribute, (which, *value) in zip(made, wanted, strict=True):
        attribute.id, attribute.value[:2] = which, value
    return made


def launcher() -> Callable[[c_void_p, c_void_p, c_void_p, None], int]:
    """`(config, function, parameters, None) -> status`; gives the interpreter lock free. It takes
    what it is given, unchecked."""
    return library().cuLaunchKernelEx


def context() -> int:
    """This thread's current context."""
    found = c_void_p()
    check(library().cuCtxGetCurrent(ctypes.addressof(found)), "cuCtxGetCurrent")
    return found.value or 0


def ensure(wanted: int) -> None:
    """Make a context current on a thread that has none: its first work on a device finds none."""
    if not context():
        check(library().cuCtxSetCurrent(wanted), "cuCtxSetCurrent")


def enter(device: int) -> None:
    """Make a device's own context current on a thread that has none."""
    if context():
        return
    found = c_void_p()
    status = library().cuDevicePrimaryCtxRetain(ctypes.addressof(found), device)
    check(status, "cuDevicePrimaryCtxRetain")
    check(library().cuCtxSetCurrent(found.value), "cuCtxSetCurrent")


def check(status: int, what: str) -> None:
    """Raise RuntimeError for a status other than success, with the driver's words."""
    if not status:
        return
    text = ctypes.c_char_p()
    library().cuGetErrorString(status, ctypes.addressof(text))
    raise RuntimeError(f"{what} failed with {status}: {(text.value or b'unknown').decode()}")
