"""Tensors of a selection file (safetensors). Trace files go through the library's own reader."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy

from ._errors import BadInputError, IoError

_DTYPES = {"I32": "<i4", "I64": "<i8", "F32": "<f4", "U8": "|u1", "F8_E4M3": "|u1"}


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(tensors of known dtypes, metadata). Raises dosa.IoError, dosa.BadInputError."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        raise IoError(f"{name}: cannot read: {error.strerror}") from error
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > len(raw) - 8:
        raise BadInputError(f"{name}: found no safetensors header")
    try:
        header = json.loads(raw[8 : 8 + length])
        if not isinstance(header, dict):
            raise ValueError(f"{type(header).__name__}, wanted an object")
        data = memoryview(raw)[8 + length :]
        metadata = {str(key): str(value) for key, value in header.pop("__metadata__", {}).items()}
        tensors = {}
        for key, entry in header.items():
            if entry["dtype"] in _DTYPES:
                first, last = entry["data_offsets"]
                if any(type(extent) is not int or extent < 0 for extent in entry["shape"]):
                    raise ValueError(f'tensor "{key}" has shape {entry["shape"]}')
                if not 0 <= first <= last <= len(data):
                    raise ValueError(f'tensor "{key}" reaches past the end of the file')
                tensors[key] = numpy.frombuffer(data[first:last], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInputError(f"{name}: found a bad safetensors header: {error}") from error
    return tensors, metadata


def write_tensors(path: str | os.PathLike[str], tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    """Writes int32 and float32 arrays; beside the target first, then renamed."""
    words = {"int32": "I32", "float32": "F32"}
    header: dict[str, Any] = {"__metadata__": metadata}
    offset, blobs = 0, []
    for key, value in tensors.items():
        array = numpy.ascontiguousarray(value)
        if array.dtype.name not in words:
            raise BadInputError(f"{key}: found {array.dtype}, wanted int32 or float32")
        header[key] = {
            "dtype": words[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
        blobs.append(array.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{os.fspath(path)}.tmp-{os.getpid()}"
    try:
        with open(temporary, "xb") as file:
            file.write(len(text).to_bytes(8, "little") + text + b"".join(blobs))
        os.replace(temporary, path)
    except OSError as error:
        raise IoError(f"{os.fspath(path)}: cannot write: {error.strerror}") from error
