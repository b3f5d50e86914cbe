"""DLPack's C exchange table, which torch >= 2.10 offers: a table made with ctypes, so that no torch is needed."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import dosa


class DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


VIEW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Table(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("view_object", VIEW),
        ("current_stream", STREAM),
    ]


CODES = {"uint8": 1, "int32": 0, "float32": 2, "float8_e4m3fn": 10}


class Plain:
    """Has the table, and nothing else that dosa could read."""

    views = 0

    def __init__(self, array, dtype=None, device=1):
        self.array, self.dtype, self.device = array, dtype or array.dtype.name, device
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))


@VIEW
def view(owner, out):
    Plain.views += 1
    out[0].data = owner.array.ctypes.data - 8
    out[0].byte_offset = 8
    out[0].device_type, out[0].device_index = owner.device, 0
    out[0].ndim = owner.array.ndim
    out[0].dtype = DType(CODES[owner.dtype], 8 * owner.array.itemsize, 1)
    out[0].shape, out[0].strides = owner.shape, owner.strides
    return 0


@STREAM
def stream(device_type, device_index, out):
    out[0] = 0x5EED
    return 0


TABLE = Table(1, 3, None, None, None, None, view, stream)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
NAME = ctypes.create_string_buffer(b"dlpack_exchange_api")  # a capsule keeps the pointer
Plain.__dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(TABLE), ctypes.addressof(NAME), None)


def test_arrays_come_through_the_table(call):
    c = call(rows=5, keys=70)
    wanted = dosa.select(*c.arrays, top_k=8)
    arrays = [Plain(a) for a in c.arrays]
    arrays[0] = Plain(np.repeat(c.q, 2, axis=1)[:, ::2], "float8_e4m3fn")
    before = Plain.views
    found = dosa.select(*arrays, top_k=8)
    assert Plain.views - before == 6
    assert (found.indices == wanted.indices).all()
    with pytest.raises(dosa.InputTypeError, match=r"ks: found float32 \[70\]"):
        dosa.select(*c.arrays[:4], Plain(c.k_scale), c.ke, top_k=8)


def test_a_device_tensor_is_one(call):
    c = call(rows=2, keys=20)
    q, k, k_scale, weights, ks, ke = [Plain(a, device=2) for a in c.arrays]
    with pytest.raises(dosa.BadInputError, match="ks: found a number on the host"):
        dosa._core.Inputs(q, k, k_scale, weights, None, ke, None, None, None, None)
    inputs = dosa._core.Inputs(q, k, k_scale, weights, ks, ke, None, None, None, None)
    assert inputs.on_device
    if not dosa.info().backends["cuda"][0]:
        with pytest.raises(dosa.NotAvailableError):
            dosa.plan_for(q, k, k_scale, weights, ks, ke, top_k=3)
    with pytest.raises(dosa.BadInputError, match="weights: .*another device.*: found memory of cuda:0, wanted host memory"):
        dosa.select(*c.arrays[:3], weights, ks, ke, top_k=3)
    for name in ("workspace", "carry"):
        lent = Plain(np.zeros(1 << 20, np.uint8), device=2)
        with pytest.raises(dosa.BadInputError, match=f"{name}: .*found memory of cuda:0, wanted host memory"):
            dosa.select(*c.arrays, top_k=3, **{name: lent})
    with pytest.raises(dosa.BadInputError, match="k: found DLPack device type 7, wanted CPU or CUDA memory"):
        dosa.select(c.q, Plain(c.k, device=7), *c.arrays[2:], top_k=3)
