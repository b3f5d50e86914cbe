"""Arrays as people have them: strides, broadcasts, read-only, misaligned, other dtypes and frameworks."""

from __future__ import annotations

import array as array_module

import ml_dtypes
import numpy as np
import pytest

import dosa


@pytest.fixture
def c(call):
    return call(rows=6, keys=120, heads=4, head_dim=32)


def strided(a: np.ndarray, axis: int) -> np.ndarray:
    """The same values with gaps along one axis."""
    shape = list(a.shape)
    shape[axis] *= 3
    wide = np.full(shape, 0x7F, a.dtype)
    view = wide[tuple(slice(1, None, 3) if i == axis else slice(None) for i in range(a.ndim))]
    view[...] = a
    return view


def bytes_of(selection):
    return [np.asarray(a).tobytes() for a in selection[:2]]


@pytest.fixture
def wanted(c):
    return bytes_of(dosa.select(*c.arrays, top_k=13))


def test_ml_dtypes_are_their_codes(c, wanted):
    e4m3 = ml_dtypes.float8_e4m3fn
    found = dosa.select(c.q.view(e4m3), c.k.view(e4m3), *c.arrays[2:], top_k=13)
    assert bytes_of(found) == wanted


def test_gaps_and_broadcasts(c, wanted):
    found = dosa.select(
        strided(c.q, 0), strided(c.k, 0), strided(c.k_scale, 0), strided(c.weights, 0), strided(c.ks, 0),
        strided(c.ke, 0), top_k=13,
    )  # fmt: skip
    assert bytes_of(found) == wanted
    assert bytes_of(dosa.select(strided(c.q, 1), *c.arrays[1:], top_k=13)) == wanted
    backwards = dosa.select(c.q[::-1], c.k, c.k_scale, c.weights[::-1], c.ks[::-1], c.ke[::-1], top_k=13)
    assert np.array_equal(backwards.indices[::-1], dosa.select(*c.arrays, top_k=13).indices)
    one_row = dosa.select(
        np.broadcast_to(c.q[:1], c.q.shape), c.k, np.broadcast_to(c.k_scale[:1], c.k_scale.shape),
        np.broadcast_to(c.weights[:1], c.weights.shape), np.broadcast_to(np.int32(3), 6), 100, top_k=13,
    )  # fmt: skip
    assert (one_row.indices == one_row.indices[0]).all() and (one_row.lengths == 13).all()


def test_read_only_inputs_are_fine_and_read_only_outputs_are_not(c, wanted):
    frozen = [a.copy() for a in c.arrays]
    for a in frozen:
        a.flags.writeable = False
    assert bytes_of(dosa.select(*frozen, top_k=13)) == wanted
    out = np.zeros((6, 13), np.int32), np.zeros(6, np.int32)
    out[0].flags.writeable = False
    with pytest.raises(dosa.BadInputError, match="out.indices: found a read-only array"):
        dosa.select(*c.arrays, top_k=13, out=out)
    assert not out[1].any()


@pytest.mark.parametrize(
    "indices",
    [
        np.broadcast_to(np.zeros(13, np.int32), (6, 13)).copy()[:1].repeat(6, 0),
        np.lib.stride_tricks.as_strided(np.zeros(80, np.int32), (6, 13), (0, 4), writeable=True),
        np.lib.stride_tricks.as_strided(np.zeros(80, np.int32), (6, 13), (20, 4), writeable=True),
    ],
    ids=["separate", "broadcast", "overlapping"],
)
def test_outputs_must_not_share_memory(c, indices, request):
    out = indices, np.zeros(6, np.int32)
    if request.node.callspec.id == "separate":
        dosa.select(*c.arrays, top_k=13, out=out)
    else:
        with pytest.raises(dosa.BadInputError, match="share memory"):
            dosa.select(*c.arrays, top_k=13, out=out)


def test_misaligned_floats_are_refused_and_misaligned_codes_are_not(c, wanted):
    def shifted(a):
        raw = np.empty(a.nbytes + 1, np.uint8)[1:]
        view = raw.view(a.dtype).reshape(a.shape)
        view[...] = a
        return view

    assert bytes_of(dosa.select(shifted(c.q), shifted(c.k), *c.arrays[2:], top_k=13)) == wanted
    with pytest.raises(dosa.BadInputError, match="k_scale: found an address that is not a multiple of 4"):
        dosa.select(c.q, c.k, shifted(c.k_scale), *c.arrays[3:], top_k=13)
    packed = np.zeros(6, np.dtype([("a", "u1"), ("ks", "i4")]))
    with pytest.raises(dosa.BadInputError, match="ks: found a stride of 5 bytes"):
        dosa.select(*c.arrays[:4], packed["ks"], c.ke, top_k=13)


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("q", lambda a: a.astype(np.float32), r"q: found float32 \[6, 4, 32\], wanted float8_e4m3fn"),
        ("q", lambda a: a.view(ml_dtypes.float8_e5m2), r"q: found float8_e5m2, wanted a dtype that its framework exports \(.+\)"),
        ("q", lambda a: a[0], r"q: found uint8 \[4, 32\], wanted .* \[Q, H, D\]"),
        ("q", lambda a: a.view(np.int8), r"q: found int8 \[6, 4, 32\], wanted float8_e4m3fn, or its codes as uint8"),
        ("k", lambda a: a.astype(np.float16), r"k: found float16 \[120, 32\], wanted float8_e4m3fn, .* \[N, D\]"),
        ("k_scale", lambda a: a.astype(np.float64), r"k_scale: found float64 \[120\], wanted float32 \[N\]"),
        ("k_scale", lambda a: a.astype(np.complex64), "k_scale: found buffer format 'Zf'"),
        ("k_scale", lambda a: a.astype(">f4"), r"k_scale: found buffer format '>f' \[120\], wanted float32 \[N\]"),
        ("weights", lambda a: a.astype(ml_dtypes.bfloat16), r"weights: found bfloat16, wanted a dtype"),
        ("ks", lambda a: a.astype(np.int64), r"ks: found int64 \[6\], wanted int32 \[Q\]"),
        ("ke", lambda a: a.astype(np.uint32), r"ke: found uint32 \[6\], wanted int32 \[Q\]"),
        ("ke", lambda a: a.tolist(), "ke: found <class 'list'>, wanted an array"),
        ("q", lambda a: None, "q: found <class 'NoneType'>, wanted an array"),
    ],
)
def test_wrong_dtypes_are_type_errors(c, name, change, message):
    arguments = dict(zip(("q", "k", "k_scale", "weights", "ks", "ke"), c.arrays))
    arguments[name] = change(arguments[name])
    with pytest.raises(dosa.InputTypeError, match=message) as caught:
        dosa.select(**arguments, top_k=3)
    assert isinstance(caught.value, (TypeError, ValueError)) and isinstance(caught.value, dosa.Error)


def test_every_kind_of_error(c):
    with pytest.raises(dosa.UsageError, match="top_k: found 0"):
        dosa.select(*c.arrays, top_k=0)
    with pytest.raises(dosa.UsageError, match="'fast', wanted one of"):
        dosa.select(*c.arrays, top_k=3, path="fast")
    with pytest.raises(ValueError, match=r"weights: found shape \[6, 2\], wanted \[6, 4\]"):
        dosa.select(c.q, c.k, c.k_scale, c.weights[:, :2], top_k=3)
    with pytest.raises(dosa.BadInputError, match="stride"):
        dosa.select(strided(c.q, 2), c.k, c.k_scale, c.weights, top_k=3)
    with pytest.raises(dosa.BadInputError, match="block_table: found None"):
        dosa.select(c.q, np.zeros((2, 4, 1, 36), np.uint8), None, c.weights, top_k=3)
    with pytest.raises(dosa.BadInputError, match="paged keys"):
        dosa.select(*c.arrays, top_k=3, row_request=c.ks)
    with pytest.raises(dosa.BadInputError, match="found page 9"):
        dosa.select(
            c.q, np.zeros((2, 4, 1, 36), np.uint8), None, c.weights, top_k=3, block_table=np.full((1, 2), 9, np.int32)
        )
    if not dosa.info().backends["cuda"][0]:
        with pytest.raises(dosa.NotAvailableError, match="cuda"):
            dosa.select(*c.arrays, top_k=3, backend="cuda")
    with pytest.raises(OSError, match="nowhere"):
        dosa.trace.read("/nowhere/at.all")
    with pytest.raises(dosa.BadInputError, match="out: found 1"):
        dosa.select(*c.arrays, top_k=3, out=(c.ks,))
    with pytest.raises(dosa.InputTypeError, match="out.indices: found int64"):
        dosa.select(*c.arrays, top_k=3, out=(np.zeros((6, 3), np.int64), np.zeros(6, np.int32)))


def test_a_refused_call_writes_nothing(c):
    out = np.full((6, 13), 5, np.int32), np.full(6, 5, np.int32)
    with pytest.raises(dosa.BadInputError):
        dosa.select(c.q, c.k[:, :16], *c.arrays[2:], top_k=13, out=out)
    assert (out[0] == 5).all() and (out[1] == 5).all()


def test_plain_buffers(c, wanted):
    ks, ke = array_module.array("i", c.ks.tolist()), memoryview(c.ke)
    assert bytes_of(dosa.select(*c.arrays[:4], ks, ke, top_k=13)) == wanted


class OnlyDlpack:
    """A framework of its own: __dlpack__ as NumPy does it, the old protocol or the new one."""

    def __init__(self, array, versioned):
        self.array, self.versioned, self.exports = array, versioned, 0

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **arguments):
        if not self.versioned and arguments:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.exports += 1
        return self.array.__dlpack__(**arguments)


@pytest.mark.parametrize("versioned", [False, True])
def test_any_dlpack_producer(c, wanted, versioned):
    arrays = [OnlyDlpack(a, versioned) for a in c.arrays]
    found = dosa.select(*arrays, top_k=13)
    assert isinstance(found.indices, np.ndarray) and bytes_of(found) == wanted
    assert [a.exports for a in arrays] == [1] * 6


def test_exported_tensors_are_given_back(c):
    import gc
    import sys

    before = sys.getrefcount(c.k_scale)
    for _ in range(50):
        dosa.select(OnlyDlpack(c.q, True), c.k, OnlyDlpack(c.k_scale, True), *c.arrays[3:], top_k=3)
    gc.collect()
    after = sys.getrefcount(c.k_scale)
    assert after == before


class FakeCuda(OnlyDlpack):
    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, stream=None, **arguments):
        raise BufferError("no device here")


def test_a_producer_that_refuses_names_the_argument(c):
    with pytest.raises(dosa.InputTypeError, match="k_scale: .*no device here"):
        dosa.select(c.q, c.k, FakeCuda(c.k_scale, True), c.weights, top_k=3)


def test_jax_on_the_host(c, wanted):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    arrays = [jnp.asarray(a) for a in c.arrays]
    found = dosa.select(*arrays, top_k=13, return_scores=True)
    assert isinstance(found.indices, jax.Array) and isinstance(found.scores, jax.Array)
    assert bytes_of(found) == wanted
    e4m3 = ml_dtypes.float8_e4m3fn
    arrays[0], arrays[1] = jnp.asarray(c.q.view(e4m3)), jnp.asarray(c.k.view(e4m3))
    assert arrays[0].dtype == e4m3
    assert bytes_of(dosa.select(*arrays, top_k=13)) == wanted
    assert isinstance(dosa.scores(*arrays), jax.Array)


def test_torch_on_the_host(c, wanted):
    torch = pytest.importorskip("torch")
    arrays = [torch.from_numpy(a.copy()) for a in c.arrays]
    found = dosa.select(*arrays, top_k=13, return_scores=True)
    assert isinstance(found.indices, torch.Tensor) and found.scores.dtype == torch.float32
    assert bytes_of(found) == wanted
    arrays[0], arrays[1] = (a.view(torch.float8_e4m3fn) for a in arrays[:2])
    assert bytes_of(dosa.select(*arrays, top_k=13)) == wanted
