"""Arrays of other people's frameworks: new ones beside theirs, theirs on the host. No framework is imported first."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._errors import BadInputError, InputTypeError, InternalError

if TYPE_CHECKING:
    import pathlib


def framework(array: Any) -> str:
    """ "numpy", "torch", "jax", "cupy" or "" (some other DLPack or buffer object)."""
    module = type(array).__module__.partition(".")[0]
    if module in ("numpy", "torch", "cupy"):
        return module
    if module in ("jax", "jaxlib"):
        return "jax"
    for base in type(array).__mro__[1:]:  # subclasses: numpy.memmap's children, torch.nn.Parameter
        module = base.__module__.partition(".")[0]
        if module in ("numpy", "torch", "cupy"):
            return module
    return ""


def code_bytes(array: Any) -> Any:
    """The bytes of a float8_e4m3fn array whose framework exports no such DLPack dtype; None for other dtypes."""
    dtype = str(getattr(array, "dtype", ""))
    if dtype.rpartition(".")[2] != "float8_e4m3fn":
        return None
    kind = framework(array)
    if kind == "torch":
        return array.view(sys.modules["torch"].uint8)
    if kind == "jax":
        import numpy

        if next(iter(array.devices())).platform == "cpu":
            return numpy.asarray(array).view(numpy.uint8)
    return array.view("uint8")


def empty(like: Any, shape: tuple[int, ...], dtype: str, on_device: bool, stream: int | None = None) -> Any:
    """An uninitialised array that a call may write, in the framework and on the device of `like`.

    `stream`: the CUDA stream that the caller named. torch and CuPy reuse memory in the order of one stream, so memory
    that is used on another one than theirs must come from that stream's pool.
    """
    kind = framework(like)
    if kind == "torch":
        torch = sys.modules["torch"]
        if on_device and stream is not None:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=like.device)):
                return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    if kind == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device.id):
            if stream is not None:
                with cupy.cuda.ExternalStream(stream):
                    return cupy.empty(shape, dtype)
            return cupy.empty(shape, dtype)
    if kind == "jax" and on_device:
        # JAX has no uninitialised arrays. Nobody else holds this buffer yet, so writing to it breaks no promise.
        jax = sys.modules["jax"]
        fresh = jax.device_put(jax.numpy.zeros(shape, dtype), next(iter(like.devices())))
        return fresh.block_until_ready()
    if on_device:
        raise InputTypeError(
            f"q: found {type(like).__module__}.{type(like).__qualname__} on a device, whose framework dosa cannot "
            "allocate in: give out= and workspace= (torch, CuPy and JAX need neither)"
        )
    import numpy

    if kind == "jax":
        # JAX takes over host memory without a copy where it is aligned to 64 bytes.
        items = 1
        for extent in shape:
            items *= extent
        raw = numpy.empty(items * numpy.dtype(dtype).itemsize + 64, numpy.uint8)
        skip = -raw.ctypes.data % 64
        return raw[skip : skip + items * numpy.dtype(dtype).itemsize].view(dtype).reshape(shape)
    try:
        return numpy.empty(shape, dtype)
    except ValueError as error:  # more bytes than an address has; what merely does not fit is a MemoryError already
        raise MemoryError(f"found no memory for a result of shape {list(shape)}") from error


class Writable:
    """A JAX array that `empty` made, for the call that fills it: exported without JAX's read-only mark."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream: int | None = None, max_version: Any = None) -> Any:
        return self.array.__dlpack__(stream=stream)  # the unversioned capsule has no flags


def writable(array: Any) -> Any:
    """What the extension may write through: the array itself, except for JAX's."""
    return Writable(array) if framework(array) == "jax" else array


def finished(like: Any, array: Any) -> Any:
    """What the caller gets for an array that `empty` made: the same, except that JAX's host arrays are wrapped."""
    if framework(like) == "jax" and framework(array) == "numpy":
        return sys.modules["jax"].dlpack.from_dlpack(array)
    return array


def stream_of(array: Any, stream: int | None) -> int | None:
    """The CUDA stream to work on: the one asked for, else the current one of a framework that the extension cannot ask.

    None where the extension finds it (DLPack's exchange table) or the framework has none to tell (JAX).
    """
    if stream is not None:
        return stream
    kind = framework(array)
    if kind == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    if kind == "torch" and array.is_cuda and not hasattr(type(array), "__dlpack_c_exchange_api__"):
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    return None


def settle(array: Any, stream: int | None) -> None:
    """Waits until what was queued before on the framework's stream (or `stream`) is done: for work on other streams."""
    kind = framework(array)
    if kind == "torch":
        cuda = sys.modules["torch"].cuda
        (cuda.current_stream(array.device) if stream is None else cuda.ExternalStream(stream, device=array.device)).synchronize()
    elif kind == "cupy":
        cuda = sys.modules["cupy"].cuda
        (cuda.get_current_stream() if stream is None else cuda.ExternalStream(stream)).synchronize()
    elif kind == "jax":
        array.block_until_ready()


def wait_for_default_stream() -> None:
    """Waits for CUDA's legacy default stream: JAX computes on streams of its own, which know nothing of a call's."""
    import ctypes

    legacy = ctypes.c_void_p(1)
    failed = ctypes.CDLL("libcuda.so.1").cuStreamSynchronize(legacy)
    if failed:
        raise InternalError(f"cuStreamSynchronize: CUDA error {failed}")


def path_of(path: Any) -> pathlib.Path:
    """A path from str, bytes or os.PathLike; InputTypeError for all else."""
    import pathlib

    try:
        text = os.fsdecode(path)
    except TypeError as error:
        raise InputTypeError(f"path: found {path!r} ({type(path).__qualname__}), wanted str, bytes or os.PathLike") from error
    if "\0" in text:
        raise BadInputError(f"path: found {text!r}, wanted a path without NUL")
    return pathlib.Path(text)


def metadata_of(metadata: Any) -> dict[str, str]:
    """A file's words: str to str, of characters that UTF-8 can write."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise InputTypeError(f"metadata: found {type(metadata).__qualname__}, wanted a mapping of str to str")
    for word in (word for item in metadata.items() for word in item):
        if not isinstance(word, str):
            raise InputTypeError(f"metadata: found {word!r} ({type(word).__qualname__}), wanted str to str")
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise BadInputError(f"metadata: found {word!r}, wanted characters that UTF-8 can write") from error
    return dict(metadata)


def integer(value: Any) -> int | None:
    """The int that `value` is, NumPy's integers and 0-d arrays included; None for everything else."""
    if isinstance(value, int):
        return value
    if getattr(value, "ndim", None) != 0 or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def int32_rows(value: Any, name: str, rows: int, default: int) -> Any:
    """int32 [rows] on the host from what people have as window bounds: None, an integer, or integers of any width.

    Values beyond int32 become its ends, which lie outside every sequence too.
    """
    import numpy

    ends = numpy.iinfo(numpy.int32)
    number = default if value is None else integer(value)
    if number is not None:
        return numpy.full(rows, min(max(number, int(ends.min)), int(ends.max)), numpy.int32)
    array = to_host(value)
    if array.dtype.kind not in "iu":
        raise InputTypeError(f"{name}: found {array.dtype} {list(array.shape)}, wanted int32 [Q], or an integer for all rows")
    if array.shape != (rows,):
        raise BadInputError(f"{name}: found shape {list(array.shape)}, wanted [{rows}]")
    return numpy.clip(array, ends.min, ends.max).astype(numpy.int32)


def to_host(array: Any) -> Any:
    """A NumPy array with the same contents (no copy for NumPy arrays); float8_e4m3fn becomes its codes (uint8)."""
    import numpy

    kind = framework(array)
    codes = code_bytes(array)
    if codes is not None:
        array = codes
    if kind == "torch":
        return array.detach().cpu().numpy()
    if kind == "cupy":
        return array.get()
    return numpy.asarray(array)
