"""Calls that are wrong: each is refused with what was found and what was wanted, and none computes something else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

import dosa
from test_select import paged


@pytest.fixture
def c(call):
    return call(rows=6, keys=128, heads=4, head_dim=32)


INTEGERS = ("top_k", "always_first", "always_last", "threads", "retained_heads")


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", ["3", 2.0, None, np.float32(1), np.zeros(2, np.int32)])
def test_integers(c, name, value):
    with pytest.raises(dosa.InputTypeError, match=rf"^{name}: found .+ \({type(value).__name__}\), wanted an integer$"):
        dosa.select(*c.arrays, **{"top_k": 3, name: value})


def test_integers_that_are_ones(c):
    wanted = dosa.select(*c.arrays, top_k=7, always_first=2)
    for kind in (np.int64, np.uint8, np.array):
        found = dosa.select(*c.arrays, top_k=kind(7), always_first=kind(2))
        assert found.indices.tobytes() == wanted.indices.tobytes()
    for name in INTEGERS:
        with pytest.raises(dosa.UsageError, match=f"^{name}: found {1 << 70} "):
            dosa.select(*c.arrays, **{"top_k": 3, name: 1 << 70})
    for name in ("threads", "retained_heads"):
        with pytest.raises(dosa.UsageError, match=f"^{name}: found {1 << 40}, wanted an integer of 32 bits"):
            dosa.select(*c.arrays, **{"top_k": 3, name: 1 << 40})


@pytest.mark.parametrize("name", ["model", "backend", "path", "isa", "order", "index_base"])
@pytest.mark.parametrize("value", [3, b"cpu", ["auto"]])
def test_words(c, name, value):
    with pytest.raises(dosa.InputTypeError, match=rf"found '.*\({type(value).__name__}\)', wanted one of "):
        dosa.select(*c.arrays, top_k=3, **{name: value})
    with pytest.raises(dosa.UsageError, match=r"found '\\udcff', wanted one of"):
        dosa.select(*c.arrays, top_k=3, **{name: "\udcff"})


def test_flags_shards_and_streams(c):
    with pytest.raises(dosa.InputTypeError, match=r"return_scores: found 'no' \(str\), wanted True or False"):
        dosa.select(*c.arrays, top_k=3, return_scores="no")
    assert dosa.select(*c.arrays, top_k=3, return_scores=np.True_).scores is not None
    plan = dosa.plan_for(*c.arrays, top_k=3)
    with pytest.raises(dosa.InputTypeError, match="row_reports: found 1 "):
        plan.run(*c.arrays, row_reports=1)
    for shard in (5, "ab", (1,), (0, 1, 2), (0.0, 128)):
        with pytest.raises(dosa.InputTypeError, match="^shard: .*found "):
            dosa.select(*c.arrays, top_k=3, shard=shard)
    for stream in ("x", 1.5, object()):
        with pytest.raises(dosa.InputTypeError, match="^stream: found .* wanted a CUDA stream's handle"):
            dosa.select(*c.arrays, top_k=3, stream=stream)
    for stream in (-1, 1 << 64):
        with pytest.raises(dosa.UsageError, match=f"^stream: found {stream} "):
            plan.run(*c.arrays, stream=stream)


def test_integers_for_windows(c):
    wanted = dosa.select(*c.arrays[:4], np.full(6, 3, np.int32), np.full(6, 99, np.int32), top_k=9)
    for kind in (int, np.int64, np.uint16, np.array):
        found = dosa.select(*c.arrays[:4], kind(3), kind(99), top_k=9)
        assert found.indices.tobytes() == wanted.indices.tobytes()
        assert dosa.judge(found.indices, None, *c.arrays[:4], kind(3), kind(99)).verdict == "exact"
    for value in (3.0, "3", np.float32(3)):
        with pytest.raises(dosa.InputTypeError, match="^ke: found"):
            dosa.select(*c.arrays[:5], value, top_k=9)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"rows": 2.0}, "rows: found 2.0"),
        ({"keys": "9"}, "keys: found '9'"),
        ({"cuda_device": "0"}, "cuda_device: found '0'"),
        ({"page_size": 16, "keys": 129, "pages": 99}, "keys: found 129 with pages of 16, wanted a multiple"),
        ({"pages": 3}, "found without page_size"),
        ({"requests": 2}, "found without page_size"),
        ({"row_request": True}, "found without page_size"),
    ],
)
def test_plans(arguments, message):
    with pytest.raises(dosa.Error, match=message):
        dosa.plan(**{"rows": 4, "heads": 8, "head_dim": 64, "keys": 128, "top_k": 5, **arguments})


def test_rows_per_request(c):
    cache, table, _ = paged(c, page_size=16, requests=2)
    arguments = dict(q=c.q, k=cache, k_scale=None, weights=c.weights, block_table=table, top_k=5)
    wanted = dosa.select(**arguments)
    assert dosa.select(**arguments, rows_per_request=np.int64(3)).indices.tobytes() == wanted.indices.tobytes()
    for value in (3.0, "3"):
        with pytest.raises(dosa.InputTypeError, match="rows_per_request: found"):
            dosa.select(**arguments, rows_per_request=value)
    # 2^63 + 3 times 2 requests is 6 where 64 bits wrap around.
    for value in (2, 1 << 62, (1 << 63) + 3):
        with pytest.raises(dosa.Error, match=f"rows_per_request: found {value}"):
            dosa.select(**arguments, rows_per_request=value)


def test_results_that_no_memory_holds(c):
    for top_k in (1 << 61, (1 << 63) - 1):
        with pytest.raises(MemoryError, match="found no memory for a result of shape"):
            dosa.select(*c.arrays, top_k=top_k)
    with pytest.raises(MemoryError, match="found no memory for 4611686018427387904 bytes"):
        dosa.Memory(1 << 62)
    for value, kind in (("x", dosa.InputTypeError), (-1, dosa.UsageError), (1 << 64, dosa.UsageError)):
        with pytest.raises(kind, match="^nbytes: found"):
            dosa.Memory(value)


def test_outputs_that_are_no_pair_of_arrays(c):
    for out in (5, "ab", np.zeros((2, 6, 3), np.int32), {"a": 1, "b": 2}):
        with pytest.raises(dosa.InputTypeError, match=f"out: found {type(out).__name__}, wanted a tuple"):
            dosa.select(*c.arrays, top_k=3, out=out)


ALIASES = ["q", "k", "k_scale", "weights", "ks", "ke", "workspace", "carry"]


@pytest.mark.parametrize("written", ["indices", "lengths", "scores", "workspace", "carry"])
@pytest.mark.parametrize("name", [*ALIASES, "indices", "lengths", "scores"])
def test_memory_that_is_written_is_nobody_elses(c, written, name):
    plan = dosa.plan_for(*c.arrays, top_k=13, return_scores=True)
    memory = np.zeros(1 << 20, np.uint8)

    def placed(array, offset):
        view = memory[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        return view

    arrays = dict(zip(("q", "k", "k_scale", "weights", "ks", "ke"), c.arrays))
    arrays |= {
        "indices": np.zeros((6, 13), np.int32), "lengths": np.zeros(6, np.int32), "scores": np.zeros((6, 13), np.float32),
        "workspace": np.zeros(plan.workspace_bytes, np.uint8), "carry": np.zeros(plan.carry_bytes, np.uint8),
    }  # fmt: skip

    def run(call):
        call = dict(call)
        out = [call.pop(part) for part in ("indices", "lengths", "scores")]
        return plan.run(**call, out=out)

    wanted = [a.copy() for a in run(arrays)[:3]]
    if written == name:
        return
    # Side by side in one block is fine, and so is everything but a shared byte.
    beside = {**arrays, name: placed(arrays[name], 64)}
    beside[written] = placed(arrays[written], 64 + 4 * -(-arrays[name].nbytes // 4))
    for a, b in zip(run(beside)[:3], wanted):
        assert a.tobytes() == b.tobytes()
    shared = {**arrays, name: placed(arrays[name], 64)}
    shared[written] = placed(arrays[written], 64 + 4 * -(-arrays[name].nbytes // 4) - 4)
    before = memory.copy()
    with pytest.raises(dosa.BadInputError, match=r"found memory that \S+ also holds, wanted memory of its own"):
        run(shared)
    assert (memory == before).all()


def test_columns_of_one_table_are_separate_memory(c):
    wanted = dosa.select(*c.arrays, top_k=13, return_scores=True)
    table = np.zeros((6, 40), np.int32)
    table[:, 14], table[:, 15], table[:, 16:20] = c.ks, c.ke, c.weights.view(np.int32)
    out = table[:, :13], table[:, 13], table[:, 20:33].view(np.float32)
    inputs = (*c.arrays[:3], table[:, 16:20].view(np.float32), table[:, 14], table[:, 15])
    found = dosa.select(*inputs, top_k=13, return_scores=True, out=out)
    for a, b in zip(found[:3], wanted[:3]):
        assert np.ascontiguousarray(a).tobytes() == b.tobytes()
    assert not table[:, 33:].any()
    for column in (12, 14, 15, 19, 22):
        with pytest.raises(dosa.BadInputError, match="also holds"):
            dosa.select(*inputs, top_k=13, return_scores=True, out=(out[0], table[::-1][:, column], out[2]))


def test_scores_and_merge_write_into_memory_of_their_own(c):
    wide = np.zeros((6, 132), np.float32)
    weights = wide[:, 128:]
    weights[...] = c.weights
    arguments = (*c.arrays[:3], weights, *c.arrays[4:])
    assert dosa.scores(*arguments, out=wide[:, :128]).tobytes() == dosa.scores(*c.arrays).tobytes()
    with pytest.raises(dosa.BadInputError, match="out: found memory that weights also holds"):
        dosa.scores(*arguments, out=wide[:, 1:129])
    part = dosa.select(*c.arrays, top_k=9, return_scores=True)
    options = dict(total_keys=128, top_k=9)
    with pytest.raises(dosa.BadInputError, match="out.indices: found memory that part 0 indices also holds"):
        dosa.merge([part], c.ks, c.ke, **options, out=(part.indices, np.zeros(6, np.int32)))
    for parts, ks, message in (
        (part, c.ks, "parts: found Selection"), (5, c.ks, "parts: found int"), ([5], c.ks, "part 0: found int"),
        ([part], 0, "ks: found int"), ([part], None, "ks: found NoneType"), ([part], c.ks[None], "ks: found"),
    ):  # fmt: skip
        with pytest.raises(dosa.InputTypeError, match=message):
            dosa.merge(parts, ks, c.ke, **options)
    with pytest.raises(dosa.BadInputError, match="found without k"):
        dosa.merge([part], c.ks, c.ke, **options, row_request=c.ks)


def test_the_judge_checks_what_it_is_asked(c):
    found = dosa.select(*c.arrays, top_k=20)
    right = (found.indices, found.lengths, *c.arrays)
    for options, message in (
        ({"index_base": "windows"}, "'windows', wanted one of absolute, window, slot"),
        ({"always_first": -1}, "always_first: found -1"),
        ({"always_last": -2}, "always_last: found -2"),
        ({"top_k": "3"}, "top_k: found '3'"),
        ({"row_chunk": 0}, "row_chunk: found 0"),
        ({"rows_per_request": 3}, "rows_per_request"),
        ({"row_request": c.ks}, "row_request"),
        ({"progress": 5}, "progress: found int"),
    ):
        with pytest.raises(dosa.Error, match=message):
            dosa.judge(*right, **options)
    for position, value, message in (
        (1, found.lengths + 0.5, "lengths: found float64"), (1, found.lengths[:2], "lengths: found shape .2., 20 to 20"),
        (1, found.lengths + 1, r"lengths: found shape \[6\], 21 to 21, wanted \[6\] of 0..20"), (2, None, "q: found"),
        (3, None, "k: found"), (5, None, "weights: found"), (6, c.ks.astype(float), "ks: found float64"),
        (7, c.ke[:2], r"ke: found shape \[2\], wanted \[6\]"),
    ):  # fmt: skip
        arguments = list(right)
        arguments[position] = value
        with pytest.raises(dosa.BadInputError, match=message):
            dosa.judge(*arguments)


def test_the_commands_status_1_is_a_verdict_and_nothing_else(sample_trace, tmp_path, capsys):
    from dosa.__main__ import main
    from dosa._safetensors import write_tensors

    trace = dosa.trace.read(sample_trace)
    indices = dosa.select(*trace.arrays, top_k=16).indices
    file = tmp_path / "s.safetensors"

    def judged(tensors, metadata):
        write_tensors(file, tensors, metadata)
        return main(["judge", str(sample_trace), str(file)]), capsys.readouterr()

    assert judged({"indices": indices}, {"top_k": "16"})[0] == 0
    assert judged({"indices": indices[:, :8]}, {"top_k": "16"})[0] == 1
    for tensors, metadata, message in (
        ({"indices": indices}, {"top_k": "abc"}, "top_k: found 'abc', wanted an integer"),
        ({"indices": indices}, {"index_base": "slot"}, "found slot with contiguous keys"),
        ({"indices": indices}, {"rows": f"0:{10**18}"}, "wanted rows below 32"),
        ({"indices": indices}, {"rows": "0:32:0"}, "wanted rows below 32"),
        ({"indices": indices[:3]}, {}, "indices: found 3 rows, wanted 32"),
        ({"indices": indices[0]}, {}, "indices: found int32"),
        ({"lengths": indices[0]}, {}, 'no tensor "indices"'),
    ):
        status, told = judged(tensors, metadata)
        assert status == 2 and message in told.err and told.out == ""
    tensor = '"dtype":"I32","data_offsets":[0,16]'
    for header in (
        "[]", "[" * 100000, '{"__metadata__":5}', f'{{"indices":{{"shape":[-1,2],{tensor}}}}}',
        f'{{"indices":{{"shape":[2.0,2],{tensor}}}}}', f'{{"indices":{{"shape":[3,2],{tensor}}}}}',
    ):  # fmt: skip
        file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(16))
        assert main(["judge", str(sample_trace), str(file)]) == 2
        assert "found a bad safetensors header" in capsys.readouterr().err


def test_the_judge_takes_wide_integers_for_what_they_are(c):
    found = dosa.select(*c.arrays[:5], 1 << 40, top_k=20)
    # 2^32 + 7 is far beyond the last key; cut to 32 bits it would be 7.
    far = np.full(6, (1 << 32) + 7)
    assert dosa.judge(found.indices, None, *c.arrays[:4], c.ks.astype(np.int64), far).verdict == "exact"
    assert dosa.judge(found.indices, None, *c.arrays[:5], 1 << 40).verdict == "exact"
    beyond = found.indices.astype(np.uint64)
    beyond[2, 4] = 2**64 - 1
    verdict = dosa.judge(beyond, None, *c.arrays[:5], far)
    assert verdict.outside.tolist() == [0, 0, 1, 0, 0, 0] and verdict.missing.tolist() == [0, 0, 1, 0, 0, 0]


class Producer:
    """DLPack as somebody wrote it."""

    def __init__(self, array, device=(1, 0), raised=None):
        self.array, self.device, self.raised = array, device, raised

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        if self.raised is not None:
            raise self.raised
        return self.array.__dlpack__(**arguments)


def test_broken_dlpack_producers(c):
    assert dosa.select(Producer(c.q), *c.arrays[1:], top_k=3).lengths.tolist() == [3] * 6
    for device in (None, 5, "cpu", (), (1,), ("cpu", 0)):
        with pytest.raises(dosa.InputTypeError, match=r"q: found .* from __dlpack_device__, wanted \(device type, device index\)"):
            dosa.select(Producer(c.q, device), *c.arrays[1:], top_k=3)
    with pytest.raises(dosa.InputTypeError, match="q: found .*boom"):
        dosa.select(Producer(c.q, raised=RuntimeError("boom")), *c.arrays[1:], top_k=3)
    with pytest.raises(KeyboardInterrupt):
        dosa.select(Producer(c.q, raised=KeyboardInterrupt()), *c.arrays[1:], top_k=3)
    half = type("Half", (), {"__dlpack__": c.q.__dlpack__})()
    with pytest.raises(dosa.InputTypeError, match=r"q: found .*Half.*__dlpack_device__ beside __dlpack__"):
        dosa.select(half, *c.arrays[1:], top_k=3)


def test_a_scripts_own_arrays_leave_it_quiet(tmp_path):
    """nanobind tells of what is alive at exit; a class that dosa kept would keep the script's results."""
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, dosa\n"
        "class Own:\n"
        "    def __dlpack_device__(self): return (1, 0)\n"
        "    def __dlpack__(self, **words): return np.zeros((2, 4, 32), np.uint8).__dlpack__(**words)\n"
        "k, scale, weights = np.zeros((9, 32), np.uint8), np.ones(9, np.float32), np.ones((2, 4), np.float32)\n"
        "selection = dosa.select(Own(), k, scale, weights, top_k=3)\n"
        "workspace = dosa.Memory(5)\n"
        "print(selection.lengths.tolist())\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[3, 3]\n", "")


def test_codes_are_codes():
    floats = np.ones((3, 4), np.float32)
    for codes in (floats, [0x38], 0x38, np.zeros(3, np.int8), floats.astype(ml_dtypes.float8_e5m2)):
        with pytest.raises(dosa.InputTypeError, match="codes: found .* wanted uint8 or float8_e4m3fn"):
            dosa.decode(codes)
    assert (dosa.decode(floats.astype(ml_dtypes.float8_e4m3fn)[:, ::2]) == 1).all()
    assert (dosa.decode(np.full((3, 4), 0x38, np.uint8).T) == 1).all()


def test_what_quantize_takes(recwarn):
    x = np.zeros((2, 64), np.float32)
    for floor in (0, 1e-50, 1e-45, float("inf"), float("nan"), 1e300, "x"):
        with pytest.raises(dosa.UsageError, match="floor: found"):
            dosa.quantize(x, floor=floor)
    codes, scales = dosa.quantize(x, floor=1e-10)
    assert (codes == 0).all() and (scales == np.float32(1e-10) / np.float32(448)).all()
    for raw in (np.zeros((2, 4), "V4"), np.zeros((2, 4), "f4,f4"), np.zeros((2, 4), complex), None):
        with pytest.raises(dosa.InputTypeError, match="x: found"):
            dosa.quantize(raw)
    x[0, 5] = np.inf
    codes, scales = dosa.quantize(x)
    assert scales[0] == np.inf and codes[0, 5] & 0x7F == 0x7F and not codes[0, :5].any() and not codes[1].any()
    assert not recwarn.list
    for head_dim in (0, -4, "64", 1.5):
        with pytest.raises(dosa.UsageError, match="head_dim: found"):
            dosa.fold_weights(x, x, head_dim)
    with pytest.raises(dosa.BadInputError, match="one head or more"):
        dosa.fold_weights(x[:, :0], x[:, :0], 64)


def test_paths_and_words_of_files(c, tmp_path):
    for path in (5, None):
        with pytest.raises(dosa.InputTypeError, match="path: found"):
            dosa.trace.read(path)
    with pytest.raises(dosa.BadInputError, match="without NUL"):
        dosa.trace.read("a\0b")
    name = os.fsencode(tmp_path / "a") + b"\xff.safetensors"  # no UTF-8, and a file's name all the same
    with pytest.raises(dosa.IoError, match=re.escape("a\\xff.safetensors")):
        dosa.trace.read(name)
    dosa.trace.write(name, *c.arrays[:4], np.int64(0), 100)
    assert (dosa.trace.read(os.fsdecode(name)).ke == 100).all()
    assert dosa.trace.read(name).rows(2).q.tobytes() == c.q[2].tobytes()
    for metadata in ({"a": 5}, {5: "a"}, [1], {"a": "\udcff"}):
        with pytest.raises(dosa.BadInputError, match="metadata: found"):
            dosa.trace.write(tmp_path / "b", *c.arrays, metadata=metadata)
    assert [os.fsencode(p.name) for p in tmp_path.iterdir()] == [os.path.basename(name)]


@pytest.mark.parametrize(
    "options",
    [
        {"every": "2"}, {"rows": 2.5}, {"max_bytes": 1e9}, {"seed": "x"}, {"seed": -1}, {"layers": 3}, {"layers": "12"},
        {"name": "a/b"}, {"name": "a/"}, {"name": 5}, {"metadata": {"a": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_captures_are_checked_before_the_model_runs(tmp_path, options):
    (name,) = options
    with pytest.raises(dosa.Error, match=f"^{name}: found"):
        dosa.trace.Capture(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_a_capture_beside_a_file(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(dosa.IoError, match="taken: cannot make the folder"):
        dosa.trace.Capture(tmp_path / "taken")


def test_a_capture_keeps_to_itself(c, tmp_path):
    """Nothing that goes wrong in recording reaches the model, and nothing of the model stays changed."""

    class Engine:
        @staticmethod
        def plain(*arrays):
            return len(arrays)

        @classmethod
        def made(cls, *arrays):
            return cls, len(arrays)

    class Child(Engine):
        pass

    before = dict(vars(Engine))
    with dosa.trace.capture(tmp_path) as capture:
        capture.patch(Engine, "plain")
        capture.patch(Engine, "made")
        capture.patch(Child, "plain")
        assert Engine.plain(*c.arrays) == Engine().plain(*c.arrays) == Child().plain(*c.arrays) == 6
        assert Engine.made(*c.arrays) == (Engine, 6)
        with pytest.warns(RuntimeWarning, match="was not recorded"):
            assert capture.wrap(lambda *a: "answer", layer=lambda *a: a[99])(*c.arrays) == "answer"
        with pytest.raises(dosa.InputTypeError, match="nothing: found NoneType"):
            capture.patch(Engine, "nothing")
    assert dict(vars(Engine)) == before and "plain" not in vars(Child)
    assert capture.recorded == 5 and capture.failed == 1  # a call through Child is recorded twice: two patches
    assert capture.record(q=c.q, k=c.k, k_scale=c.k_scale, weights=c.weights) is None
    assert len(list(tmp_path.iterdir())) == 5


def test_captures_in_one_folder_keep_each_others_files(c, tmp_path):
    for value in (1, 2, 3):
        with dosa.trace.capture(tmp_path, metadata={"run": str(value)}) as capture:
            capture.record(q=c.q, k=c.k, k_scale=c.k_scale, weights=c.weights, ks=0, ke=np.int64(value))
    traces = [dosa.trace.read(path) for path in tmp_path.iterdir()]
    assert sorted(int(trace.ke[0]) for trace in traces) == [1, 2, 3]
    assert all(trace.metadata["run"] == str(trace.ke[0]) for trace in traces)


def test_a_captures_size_counts_what_was_written(c, tmp_path):
    arrays = dict(zip(("q", "k", "k_scale", "weights"), c.arrays))
    words = {"text": '"\n' * 3000}
    with dosa.trace.capture(tmp_path, metadata=words, max_bytes=60000) as capture:
        results = [capture.record(**arrays) for _ in range(9)]
    sizes = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 0 < capture.recorded == sum(r is not None for r in results) < 9
    assert capture.written_bytes == sizes <= 60000
    # What could not be written takes no room.
    wrong = {**arrays, "k_scale": c.k_scale.astype(np.float64)}
    with dosa.trace.capture(tmp_path / "other", max_bytes=30000) as capture:
        for _ in range(9):
            with pytest.raises(dosa.InputTypeError):
                capture.record(**wrong)
        assert capture.written_bytes == 0 and capture.record(**arrays) is not None


def test_captures_from_threads(c, tmp_path):
    with dosa.trace.capture(tmp_path) as capture:
        wrapped = capture.wrap(lambda *arrays: None, layer=3)
        threads = [threading.Thread(target=lambda: [wrapped(*c.arrays) for _ in range(10)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert capture.recorded == 40 and capture.failed == 0 and len(list(tmp_path.iterdir())) == 40
    assert capture.written_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
