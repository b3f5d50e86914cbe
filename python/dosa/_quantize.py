"""From bf16 or float q and k to what an indexer call takes, as DeepSeek's code does it; in NumPy, for any framework."""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy

from ._errors import BadInputError, InputTypeError, UsageError
from ._interop import framework, integer, to_host

Array = Any
_LARGEST = 448.0


def _code_values() -> Any:
    code = numpy.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    magnitude = numpy.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[(code & 0x7F) == 0x7F] = numpy.nan
    return numpy.where(code & 0x80, -magnitude, magnitude).astype(numpy.float32)


_VALUES = _code_values()


def decode(codes: Array) -> Array:
    """float32 values of E4M3 codes (uint8, or float8_e4m3fn of ml_dtypes, torch, JAX), same shape; 0x7f, 0xff are NaN."""
    found = to_host(codes)
    if found.dtype != numpy.uint8:
        raise InputTypeError(f"codes: found {found.dtype} {list(found.shape)}, wanted uint8 or float8_e4m3fn")
    return _VALUES[found]


def _encode(values: Any) -> Any:
    """E4M3 codes of float32 values: to nearest, ties to even, beyond 448 cut to 448, NaN to 0x7f with its sign."""
    bits = values.view(numpy.uint32)
    sign = (bits >> 24).astype(numpy.uint8) & 0x80
    magnitude = numpy.minimum(numpy.abs(values), numpy.float32(_LARGEST))
    # Normal results: keep 3 mantissa bits of the 23, rounding half to even in integers; a carry moves the exponent.
    raw = magnitude.view(numpy.uint32)
    rounded = (raw + 0x7FFFF + ((raw >> 20) & 1)) >> 20
    normal = rounded.astype(numpy.int64) - ((127 - 7) << 3)
    # Subnormal results (below 2^-6) are multiples of 2^-9; rint rounds half to even. 8 is the first normal code.
    small = magnitude < numpy.float32(2.0**-6)
    subnormal = numpy.rint(numpy.where(small, magnitude, 0) * numpy.float32(512)).astype(numpy.int64)
    code = numpy.where(small, subnormal, normal)
    code = numpy.where(numpy.isnan(values), 0x7F, code).astype(numpy.uint8)
    return code | sign


def hadamard(x: Array) -> Array:
    """The orthonormal Walsh-Hadamard transform of the last axis (a power of two), float32, as DeepSeek applies to q and
    k before quantising: it spreads outliers and changes no dot product."""
    values = _floats(x, "x")
    size = values.shape[-1]
    if size < 1 or size & (size - 1):
        raise BadInputError(f"x: found a last axis of {size}, wanted a power of two")
    shape = values.shape
    step = 1
    while step < size:
        pairs = values.reshape(*shape[:-1], size // (2 * step), 2, step)
        values = numpy.stack((pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]), axis=-2)
        values = values.reshape(shape)
        step *= 2
    return values * numpy.float32(size**-0.5)


def _floats(x: Array, name: str) -> Any:
    if framework(x) == "torch":
        x = x.detach().float().cpu().numpy()
    elif framework(x) == "cupy":
        x = x.get()
    values = numpy.asarray(x)
    # ml_dtypes' types are of kind V, as raw bytes and structures are.
    if values.dtype.kind != "f" and not str(values.dtype).startswith(("bfloat", "float")):
        raise InputTypeError(f"{name}: found {values.dtype}, wanted floating point values")
    if values.ndim < 1:
        raise BadInputError(f"{name}: found a number, wanted an array with a last axis to scale by")
    return values.astype(numpy.float32)


def quantize(
    x: Array,
    *,
    scale: Literal["f32", "power_of_two"] = "f32",
    hadamard: bool = False,
    floor: float = 1e-4,
) -> tuple[Array, Array]:
    """E4M3 codes and one scale for each row (last axis): x is about decode(codes) * scale[..., None].

    scale = max(|x|, floor) / 448; with scale="power_of_two" rounded up to a power of two (the ue8m0 format).
    Values are divided by the scale, cut to +-448 and rounded to nearest even, in float32.

    Args:
        x: float32, float16, bfloat16 (ml_dtypes or torch) [..., D].
        hadamard: first apply dosa.hadamard to the last axis.
        floor: least row maximum (DeepSeek's kernels 1e-4, vLLM 1e-10), so that a zero row has a scale.

    Returns:
        (codes uint8 [..., D], scales float32 [...]); NumPy arrays, torch tensors for torch input.
    """
    if scale not in ("f32", "power_of_two"):
        raise UsageError(f"scale: found {scale!r}, wanted 'f32' or 'power_of_two'")
    if not isinstance(hadamard, (bool, numpy.bool_)):
        raise InputTypeError(f"hadamard: found {hadamard!r}, wanted True or False")
    number = isinstance(floor, (int, float, numpy.integer, numpy.floating))
    if not (number and 0 < floor < 1e38 and numpy.float32(floor) / numpy.float32(_LARGEST) > 0):
        raise UsageError(f"floor: found {floor!r}, wanted a number above 0 whose 448th part is one in float32, below 1e38")
    values = globals()["hadamard"](x) if hadamard else _floats(x, "x")
    largest = numpy.maximum(numpy.max(numpy.abs(values), axis=-1, initial=0.0), numpy.float32(floor))
    scales = (largest / numpy.float32(_LARGEST)).astype(numpy.float32)
    if scale == "power_of_two":
        mantissa, exponent = numpy.frexp(scales)
        rounded = numpy.ldexp(numpy.float32(1), numpy.where(mantissa == 0.5, exponent - 1, exponent))
        scales = numpy.where(numpy.isfinite(scales), rounded, scales).astype(numpy.float32)
    with numpy.errstate(invalid="ignore"):  # a row with an infinity has an infinite scale, and NaN where it was
        codes = _encode((values / scales[..., None]).astype(numpy.float32))
    if framework(x) == "torch":
        torch = sys.modules["torch"]
        return torch.from_numpy(codes).to(x.device), torch.from_numpy(numpy.asarray(scales)).to(x.device)
    return codes, scales


def fold_weights(weights: Array, q_scale: Array, head_dim: int) -> Array:
    """float32 [Q, H]: weights * q_scale * H^-0.5 * D^-0.5, the constants that dosa.select wants folded in."""
    raw = _floats(weights, "weights")
    if raw.ndim != 2:
        raise BadInputError(f"weights: found {list(raw.shape)}, wanted [Q, H]")
    scales = _floats(q_scale, "q_scale")
    if scales.shape != raw.shape:
        raise BadInputError(f"q_scale: found {list(scales.shape)}, wanted {list(raw.shape)} (one scale a row and head)")
    if raw.shape[1] < 1:
        raise BadInputError(f"weights: found {list(raw.shape)}, wanted one head or more")
    if (integer(head_dim) or 0) < 1:
        raise UsageError(f"head_dim: found {head_dim!r}, wanted an integer of 1 or more")
    folded = (raw * scales * numpy.float32(raw.shape[1] ** -0.5 * head_dim**-0.5)).astype(numpy.float32)
    if framework(weights) == "torch":
        return sys.modules["torch"].from_numpy(folded).to(weights.device)
    return folded
