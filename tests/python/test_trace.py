from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import types

import ml_dtypes
import numpy as np
import pytest

import dosa


def test_read_the_sample(sample_trace):
    trace = dosa.trace.read(sample_trace)
    assert trace.q.shape == (32, 32, 128) and trace.k.shape == (8192, 128) and trace.q.dtype == np.uint8
    assert not trace.q.flags.writeable and trace.metadata
    found = dosa.select(*trace.arrays, top_k=2048)
    assert (found.lengths == 2048).all()
    some = trace.rows([3, 1])
    assert (dosa.select(*some.arrays, top_k=2048).indices == found.indices[[3, 1]]).all()


def test_arrays_outlive_the_trace_object(sample_trace):
    k = dosa.trace.read(sample_trace).k
    assert int(k.astype(np.int64).sum()) > 0


def test_round_trip(call, tmp_path):
    c = call(rows=3, keys=40)
    path = tmp_path / "a.safetensors"
    strided = np.repeat(c.q, 2, axis=0)[::2]
    dosa.trace.write(path, strided.view(ml_dtypes.float8_e4m3fn), *c.arrays[1:], metadata={"who": "test"})
    trace = dosa.trace.read(path)
    for name, array in zip(("q", "k", "k_scale", "weights", "ks", "ke"), c.arrays):
        assert getattr(trace, name).tobytes() == array.tobytes()
    assert trace.metadata["who"] == "test"
    assert os.listdir(tmp_path) == ["a.safetensors"]
    with pytest.raises(dosa.IoError):
        dosa.trace.write(tmp_path / "no" / "folder", *c.arrays)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(dosa.BadInputError):
        dosa.trace.read(path)


def indexer(q, k, k_scale, weights, ks, ke):
    return dosa.select(q, k, k_scale, weights, ks, ke, top_k=5)


def test_capture_layers_rows_and_limits(call, tmp_path):
    module = types.SimpleNamespace(indexer=indexer)
    c = call(rows=20, keys=50)
    layers = iter([0, 1, 0, 1, 0, 1, 0, 1])
    with dosa.trace.capture(tmp_path, name="m", layers={1}, rows=7, every=2, metadata={"model": "x"}) as capture:
        capture.patch(module, "indexer", layer=lambda *a, **k: next(layers))
        for _ in range(8):
            assert module.indexer(*c.arrays).indices.shape == (20, 5)
    assert module.indexer is indexer
    assert capture.recorded == 2 and capture.failed == 0
    files = sorted(os.listdir(tmp_path))
    assert [f.rsplit("_", 1)[0] for f in files] == ["m_l01_c000000", "m_l01_c000002"]
    trace = dosa.trace.read(tmp_path / files[0])
    assert trace.q.shape[0] == 7 and trace.metadata["layer"] == "1" and trace.metadata["model"] == "x"
    whole = {row.tobytes() for row in c.q}
    assert {row.tobytes() for row in trace.q} <= whole
    module.indexer(*c.arrays)
    assert len(os.listdir(tmp_path)) == 2


def test_capture_stops_at_its_size(call, tmp_path):
    c = call(rows=4, keys=50)
    with dosa.trace.capture(tmp_path, max_bytes=20000) as capture:
        wrapped = capture.wrap(indexer)
        for _ in range(10):
            wrapped(*c.arrays)
    assert 0 < capture.recorded < 10 and capture.skipped_full == 10 - capture.recorded
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 20000


def test_capture_understands_deep_gemm(call, tmp_path):
    c = call(rows=4, keys=50)

    def fp8_mqa_logits(q, kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, clean_logits=True):
        return dosa.scores(q, *kv, weights, cu_seq_len_k_start, cu_seq_len_k_end)

    with dosa.trace.capture(tmp_path) as capture:
        recorded = capture.wrap(fp8_mqa_logits, arguments=dosa.trace.deep_gemm_arguments)
        logits = recorded(c.q, (c.k, c.k_scale), c.weights, c.ks, cu_seq_len_k_end=c.ke, clean_logits=False)
    (file,) = tmp_path.iterdir()
    assert dosa.scores(*dosa.trace.read(file).arrays).tobytes() == logits.tobytes()


@pytest.mark.parametrize("per_row", [False, True])
def test_capture_understands_paged_calls(call, tmp_path, per_row):
    from test_select import paged

    c = call(rows=6, keys=80)
    cache, table, _ = paged(c, page_size=16, requests=3)
    context = np.array([80, 33, 5], np.int32)
    if per_row:
        context = np.stack([context - 2, context], axis=1)

    def fp8_paged_mqa_logits(q, kv_cache, weights, context_lens, block_table, schedule=None):
        return None

    with dosa.trace.capture(tmp_path) as capture:
        recorded = capture.wrap(fp8_paged_mqa_logits, arguments=dosa.trace.deep_gemm_paged_arguments)
        recorded(c.q.reshape(3, 2, 8, 64), cache, c.weights, context, block_table=table, schedule=1)
    (file,) = tmp_path.iterdir()
    trace = dosa.trace.read(file)
    assert len(trace.k) == 80 + 33 + 5
    seen = (context if per_row else np.stack([context - 1, context], axis=1)).reshape(-1).astype(np.int32)
    wanted = dosa.select(c.q, cache, None, c.weights, 0, seen, top_k=9, return_scores=True, block_table=table)
    found = dosa.select(*trace.arrays, top_k=9, index_base="window", return_scores=True)
    for a, b in zip(found[:3], wanted[:3]):
        assert a.tobytes() == b.tobytes()


def test_a_call_that_cannot_be_recorded_does_not_disturb(call, tmp_path):
    with dosa.trace.capture(tmp_path) as capture:
        wrapped = capture.wrap(lambda *a: "answer")
        with pytest.warns(RuntimeWarning, match="was not recorded"):
            assert wrapped("nonsense") == "answer"
        assert wrapped("nonsense") == "answer"
    assert capture.failed == 2 and not list(tmp_path.iterdir())
    with pytest.raises(dosa.UsageError):
        dosa.trace.Capture(tmp_path, every=0)


def test_a_killed_process_leaves_whole_files(tmp_path):
    code = textwrap.dedent(
        f"""
        import numpy as np, dosa
        q = np.full((64, 32, 128), 0x38, np.uint8); k = np.full((20000, 128), 0x38, np.uint8)
        with dosa.trace.capture({str(tmp_path)!r}, max_bytes=1 << 40) as capture:
            while True:
                capture.record(q=q, k=k, k_scale=np.ones(20000, np.float32), weights=np.ones((64, 32), np.float32))
        """
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*.safetensors"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) >= 5
    for file in files:
        assert dosa.trace.read(file).q.shape == (64, 32, 128)
    assert len(list(tmp_path.iterdir())) - len(files) <= 1


@pytest.mark.parametrize("kind", ["f32", "power_of_two"])
def test_quantize_is_ml_dtypes_rounding(kind):
    random = np.random.default_rng(4)
    x = (random.normal(size=(50, 3, 128)) * 10.0 ** random.integers(-6, 5, (50, 3, 1))).astype(np.float32)
    x[0, 0] = 0
    x[1, 0, 0] = np.nan
    codes, scales = dosa.quantize(x, scale=kind)
    assert codes.dtype == np.uint8 and codes.shape == x.shape and scales.shape == x.shape[:-1]
    with np.errstate(invalid="ignore"):
        wanted = np.clip(x / scales[..., None], -448, 448).astype(ml_dtypes.float8_e4m3fn)
    finite = np.isfinite(scales)
    assert (codes[finite] == wanted.view(np.uint8)[finite]).all()
    largest = np.maximum(np.abs(x[finite]).max(-1), np.float32(1e-4))
    if kind == "f32":
        assert (scales[finite] == largest / np.float32(448)).all()
    else:
        assert (np.frexp(scales[finite])[0] == 0.5).all()
        assert (scales[finite] >= largest / np.float32(448)).all()
        assert (scales[finite] / 2 < largest / np.float32(448)).all()


def test_every_value_rounds_as_ml_dtypes_does():
    # Everything between two codes matters at the halves and one step to their sides.
    values = np.unique(np.abs(dosa.decode(np.arange(127, dtype=np.uint8))))
    halves = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    x = np.concatenate([values, halves, np.nextafter(halves, np.float32(0)), np.nextafter(halves, np.float32(1e9))])
    x = np.concatenate([x, -x, [448]]).astype(np.float32)
    codes, scales = dosa.quantize(x[None])
    assert scales[0] == 1
    assert (codes[0] == x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)).all()


def test_decode_and_hadamard():
    every = np.arange(256, dtype=np.uint8)
    wanted = every.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(dosa.decode(every), wanted, equal_nan=True)
    x = np.random.default_rng(0).normal(size=(5, 128)).astype(np.float32)
    h = dosa.hadamard(x)
    assert np.allclose(h @ h.T, x @ x.T, atol=1e-3) and not np.allclose(h, x)
    assert np.allclose(dosa.hadamard(h), x, atol=1e-5)
    with pytest.raises(dosa.BadInputError, match="power of two"):
        dosa.hadamard(np.ones((2, 96), np.float32))
    assert (dosa.quantize(x, hadamard=True)[0] == dosa.quantize(h)[0]).all()
    assert dosa.quantize(x.astype(ml_dtypes.bfloat16))[0].shape == (5, 128)
    with pytest.raises(dosa.InputTypeError):
        dosa.quantize(np.ones((2, 4), np.int32))


def test_fold_weights():
    w, s = np.full((2, 4), 3, np.float32), np.full((2, 4), 0.5, np.float32)
    assert np.allclose(dosa.fold_weights(w, s, 64), 1.5 / 2 / 8)
    with pytest.raises(dosa.BadInputError):
        dosa.fold_weights(w, s[:1], 64)
