"""Reading and writing safetensors with the standard library alone: what the tests compare and forge."""

from __future__ import annotations

import json
import pathlib
import struct

SIZES = {"F8_E4M3": 1, "U8": 1, "F32": 4, "I32": 4}


def load(path: pathlib.Path) -> tuple[dict[str, tuple], dict[str, str]]:
    """{name: (dtype, shape, values)} and the metadata; floats as bit patterns, so that equality is equality of bits."""
    raw = pathlib.Path(path).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    data = raw[8 + length :]
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        size = SIZES[entry["dtype"]]
        code = {"I32": "i", "F32": "I"}.get(entry["dtype"], "B")
        tensors[name] = (entry["dtype"], entry["shape"], struct.unpack(f"<{(end - begin) // size}{code}", data[begin:end]))
    return tensors, metadata


def pack(tensors: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str] | None = None) -> bytes:
    """A file of {name: (dtype, shape, raw bytes)}, laid out in the order given."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    body = b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def tiny_trace(rows: int = 2, keys: int = 40, heads: int = 4, head_dim: int = 32) -> dict[str, tuple]:
    """Raw tensors of a small trace whose scores are all different."""
    q = bytes(0x30 + (i * 7) % 16 for i in range(rows * heads * head_dim))
    k = bytes(0x30 + (i * 5 + i // head_dim) % 16 for i in range(keys * head_dim))
    return {
        "k_scale": ("F32", [keys], struct.pack(f"<{keys}f", *(1 + i / 64 for i in range(keys)))),
        "weights": ("F32", [rows, heads], struct.pack(f"<{rows * heads}f", *([0.5, -0.25, 1.0, -0.125] * (rows * heads))[: rows * heads])),
        "ks": ("I32", [rows], struct.pack(f"<{rows}i", *([0] * rows))),
        "ke": ("I32", [rows], struct.pack(f"<{rows}i", *([keys] * rows))),
        "k": ("F8_E4M3", [keys, head_dim], k),
        "q": ("F8_E4M3", [rows, heads, head_dim], q),
    }
