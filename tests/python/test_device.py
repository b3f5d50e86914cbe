"""CUDA tensors of torch, CuPy and JAX (pytest -m device, on a machine with a GPU and a dosa built with CUDA).

Every result must equal, byte for byte, what the CPU backend computes under the same score model.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

import dosa
from dosa._interop import to_host

pytestmark = pytest.mark.device


@pytest.fixture(scope="module", autouse=True)
def cuda():
    available, why = dosa.info().backends["cuda"]
    if not available:
        pytest.fail(f"no cuda backend: {why}")


@pytest.fixture
def c(call):
    return call(rows=48, keys=5000, heads=32, head_dim=128, seed=5)


OPTIONS = dict(top_k=512, return_scores=True)


@pytest.fixture
def wanted(c):
    return [a.tobytes() for a in dosa.select(*c.arrays, model="sm90", backend="cpu", **OPTIONS)[:3]]


def bytes_of(selection):
    return [to_host(a).tobytes() for a in selection[:3]]


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.fail("torch sees no GPU")
    return torch


def on_device(torch, arrays, float8=True):
    tensors = [torch.from_numpy(a.copy()).cuda() for a in arrays]
    if float8:
        tensors[:2] = [t.view(torch.float8_e4m3fn) for t in tensors[:2]]
    return tensors


@pytest.mark.parametrize("float8", [False, True])
def test_torch(torch, c, wanted, float8):
    tensors = on_device(torch, c.arrays, float8)
    found = dosa.select(*tensors, **OPTIONS)
    assert found.indices.device == tensors[0].device and found.scores.dtype == torch.float32
    assert found.model == "sm90" and found.stats.backend == "cuda"
    assert bytes_of(found) == wanted


def test_torch_windows_left_out(torch, c):
    tensors = on_device(torch, c.arrays)
    found = dosa.select(*tensors[:4], **OPTIONS)
    right = dosa.select(*c.arrays[:4], model="sm90", backend="cpu", **OPTIONS)
    assert bytes_of(found) == [a.tobytes() for a in right[:3]]


def test_torch_strides(torch, c, wanted):
    q, k, k_scale, weights, ks, ke = on_device(torch, c.arrays)
    wide_q = torch.zeros((48, 3, 32, 128), dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    wide_q[:, 1].view(torch.uint8).copy_(q.view(torch.uint8))
    wide_w = torch.zeros((48, 40), device="cuda")
    wide_w[:, 4:36] = weights
    found = dosa.select(wide_q[:, 1], k, k_scale, wide_w[:, 4:36], ks, ke, **OPTIONS)
    assert bytes_of(found) == wanted


def test_torch_side_stream_and_out(torch, c, wanted):
    tensors = on_device(torch, c.arrays)
    plan = dosa.plan_for(*tensors, **OPTIONS)
    workspace = plan.new_workspace(like=tensors[0])
    out = (
        torch.empty((48, 512), dtype=torch.int32, device="cuda"),
        torch.empty(48, dtype=torch.int32, device="cuda"),
        torch.empty((48, 512), device="cuda"),
    )
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        current = plan.run(*tensors, out=out, workspace=workspace)
    side.synchronize()
    assert current.indices is out[0] and bytes_of(current) == wanted
    for tensor in out:
        tensor.zero_()
    torch.cuda.synchronize()
    plan.run(*tensors, out=out, workspace=workspace, stream=side.cuda_stream)
    side.synchronize()
    assert [to_host(a).tobytes() for a in out] == wanted


def test_torch_graph_replays_with_other_inputs(torch, c, wanted):
    tensors = on_device(torch, c.arrays)
    plan = dosa.plan_for(*tensors, **OPTIONS)
    workspace = plan.new_workspace(like=tensors[0])
    plan.run(*tensors, workspace=workspace)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = plan.run(*tensors, workspace=workspace)
    graph.replay()
    torch.cuda.synchronize()
    assert bytes_of(found) == wanted
    tensors[4].zero_()
    graph.replay()
    torch.cuda.synchronize()
    right = dosa.select(*c.arrays[:4], 0, c.ke, model="sm90", backend="cpu", **OPTIONS)
    assert bytes_of(found) == [a.tobytes() for a in right[:3]]


def test_torch_operator_compiled(torch, c, wanted):
    operator = dosa.register_torch_op()
    tensors = on_device(torch, c.arrays)
    compiled = torch.compile(lambda *arguments: operator(*arguments, 512), fullgraph=True, backend="aot_eager")
    assert bytes_of(compiled(*tensors)) == wanted


def test_torch_errors(torch, c):
    tensors = on_device(torch, c.arrays)
    with pytest.raises(dosa.BadInputError, match="another device"):
        dosa.select(*tensors[:2], tensors[2].cpu(), *tensors[3:], **OPTIONS)
    with pytest.raises(dosa.InputTypeError, match="ks: found int64"):
        dosa.select(*tensors[:4], tensors[4].long(), tensors[5], **OPTIONS)
    with pytest.raises(dosa.Error):
        dosa.select(*tensors, backend="cpu", **OPTIONS)


def test_torch_scores(torch, c):
    tensors = on_device(torch, c.arrays)
    found = dosa.scores(*tensors)
    wanted = dosa.scores(*c.arrays, model="sm90", backend="cpu")
    assert found.is_cuda and to_host(found).tobytes() == wanted.tobytes()


def test_torch_paged(torch, call):
    from test_select import paged

    c = call(rows=6, keys=640, heads=32, head_dim=128, seed=8)
    cache, table, stride = paged(c, page_size=64, requests=2)
    wanted = dosa.select(
        c.q, cache, None, c.weights, c.ks, c.ke, block_table=table, index_base="slot", model="sm90", backend="cpu", **OPTIONS
    )
    memory = torch.from_numpy(np.ascontiguousarray(cache)).cuda()
    q, _, _, weights, ks, ke = on_device(torch, c.arrays)
    found = dosa.select(
        q, memory, None, weights, ks, ke, block_table=torch.from_numpy(table).cuda(), index_base="slot", **OPTIONS
    )
    assert bytes_of(found) == [a.tobytes() for a in wanted[:3]]


def test_host_arrays_on_the_cuda_backend(c, wanted):
    found = dosa.select(*c.arrays, backend="cuda", **OPTIONS)
    assert isinstance(found.indices, np.ndarray) and found.model == "sm90" and bytes_of(found) == wanted


def test_cupy(c, wanted):
    cupy = pytest.importorskip("cupy")
    arrays = [cupy.asarray(a) for a in c.arrays]
    found = dosa.select(*arrays, **OPTIONS)
    assert isinstance(found.indices, cupy.ndarray) and bytes_of(found) == wanted
    with cupy.cuda.Stream(non_blocking=True) as stream:
        found = dosa.select(*arrays, **OPTIONS)
        stream.synchronize()
    assert bytes_of(found) == wanted


def test_jax(c, wanted):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    arrays = [jax.numpy.asarray(a) for a in c.arrays]
    found = dosa.select(*arrays, **OPTIONS)
    assert isinstance(found.indices, jax.Array)
    from_torch = pytest.importorskip("torch")
    from_torch.cuda.synchronize()
    assert bytes_of(found) == wanted


def test_call_overhead_is_told(torch, c):
    tensors = on_device(torch, [a[:0] if n != 1 and n != 2 else a for n, a in enumerate(c.arrays)])
    plan = dosa.plan_for(*tensors, top_k=512)
    workspace = plan.new_workspace(like=tensors[0])
    out = torch.empty((0, 512), dtype=torch.int32, device="cuda"), torch.empty(0, dtype=torch.int32, device="cuda")
    laps = []
    for _ in range(2000):
        start = time.perf_counter()
        plan.run(*tensors, out=out, workspace=workspace)
        laps.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    print(f"empty CUDA call: median {1e6 * np.median(laps):.1f} us")
