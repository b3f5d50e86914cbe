"""Trace files without any package but NumPy: 8 bytes of header length, a JSON header, raw little-endian tensors."""

from __future__ import annotations

import json
import pathlib

import numpy

DTYPES = {"F8_E4M3": numpy.uint8, "F32": numpy.dtype("<f4"), "I32": numpy.dtype("<i4")}


def load(path: pathlib.Path) -> dict[str, numpy.ndarray]:
    """All tensors of known dtype; E4M3 as codes (uint8)."""
    raw = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    header_bytes = int.from_bytes(raw[:8].tobytes(), "little")
    header = json.loads(raw[8 : 8 + header_bytes].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in DTYPES:
            continue
        first, last = (8 + header_bytes + offset for offset in entry["data_offsets"])
        tensors[name] = numpy.frombuffer(raw[first:last].tobytes(), DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def e4m3_values() -> numpy.ndarray:
    """F32 [256]: the value of every E4M3 code (the variant without infinities; 0x7f and 0xff are NaN)."""
    code = numpy.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    magnitude = numpy.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[(code & 0x7F) == 0x7F] = numpy.nan
    return numpy.where(code & 0x80, -magnitude, magnitude).astype(numpy.float32)
