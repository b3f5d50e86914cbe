from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dosa
import oracle


def same(selection: dosa.Selection, wanted) -> None:
    assert selection.indices.tobytes() == wanted[0].tobytes()
    assert selection.lengths.tobytes() == wanted[1].tobytes()
    if selection.scores is not None:
        assert selection.scores.tobytes() == wanted[2].tobytes()


def test_ten_lines_of_numpy_agree(call):
    c = call()
    table = oracle.scores_f64(c.q, c.k, c.k_scale, c.weights)
    for order in ("index", "score"):
        for base in ("absolute", "window"):
            for backend in (None, "cpu", "reference"):
                found = dosa.select(
                    *c.arrays, top_k=20, order=order, index_base=base, return_scores=True, backend=backend
                )
                same(found, oracle.select(table, c.ks, c.ke, 20, order, base))
                assert found.model == "f64"


@pytest.mark.parametrize("path", ["auto", "dense", "dosa"])
def test_paths_forced_keys_and_poison(call, path):
    c = call(rows=5, keys=150, nan=True)
    c.k_scale[7] = np.nan
    c.weights[2, 3] = np.nan
    table = oracle.scores_f64(c.q, c.k, c.k_scale, c.weights)
    found = dosa.select(*c.arrays, top_k=30, return_scores=True, path=path, always_first=4, always_last=3)
    same(found, oracle.select(table, c.ks, c.ke, 30, first=4, last=3))


def test_scores_are_the_oracles(call):
    c = call(rows=4, keys=60, nan=True)
    wanted = oracle.scores_f64(c.q, c.k, c.k_scale, c.weights)
    found = dosa.scores(*c.arrays)
    assert found.dtype == np.float32 and found.shape == wanted.shape
    for t in range(4):
        inside = np.zeros(60, bool)
        inside[c.ks[t] : c.ke[t]] = True
        assert (found[t, ~inside] == -np.inf).all()
        nan = np.isnan(wanted[t, inside])
        assert (found[t, inside].view(np.uint32)[nan] == 0x7FFFFFFF).all()
        assert found[t, inside][~nan].tobytes() == wanted[t, inside][~nan].tobytes()


@st.composite
def calls(draw):
    rows = draw(st.integers(0, 4))
    keys = draw(st.integers(0, 40))
    heads = draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Few distinct codes make ties; the whole range makes NaN and subnormal codes.
    palette = draw(st.sampled_from([[0x00, 0x38, 0xB8], [0x01, 0x81, 0x08, 0x7E, 0xFE], list(range(256))]))
    q = random.choice(palette, (rows, heads, 32)).astype(np.uint8)
    k = random.choice(palette, (keys, 32)).astype(np.uint8)
    scale_kind = draw(st.sampled_from(["ones", "small", "wild"]))
    k_scale = {
        "ones": np.ones(keys),
        "small": random.uniform(0, 1e-38, keys),
        "wild": random.choice([0.0, 1e-45, 1.0, 3e38, np.inf, -1.0, np.nan, -0.0], keys),
    }[scale_kind].astype(np.float32)
    weights = random.choice([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 1e-30, 1e30], (rows, heads)).astype(np.float32)
    ks = random.integers(-3, keys + 3, rows).astype(np.int32)
    ke = random.integers(-3, keys + 3, rows).astype(np.int32)
    options = {
        "top_k": draw(st.integers(1, 45)),
        "order": draw(st.sampled_from(["index", "score"])),
        "index_base": draw(st.sampled_from(["absolute", "window"])),
        "always_first": draw(st.integers(0, 4)),
        "always_last": draw(st.integers(0, 4)),
        "path": draw(st.sampled_from(["auto", "dense", "dosa"])),
        "threads": draw(st.integers(0, 3)),
    }
    return (q, k, k_scale, weights, ks, ke), options


@settings(max_examples=60, deadline=None)
@given(calls())
def test_any_call_is_the_oracles(drawn):
    arrays, options = drawn
    q, k, k_scale, weights, ks, ke = arrays
    table = oracle.scores_f64(q, k, k_scale, weights)
    found = dosa.select(*arrays, return_scores=True, **options)
    wanted = oracle.select(
        table, ks, ke, options["top_k"], options["order"], options["index_base"], options["always_first"],
        options["always_last"],
    )  # fmt: skip
    same(found, wanted)


def paged(c, page_size=16, requests=2, seed=1, spare=3):
    """The keys of `c` once for each request, in shuffled pages with gaps between them; N is rounded up to pages."""
    random = np.random.default_rng(seed)
    keys, head_dim = c.k.shape
    columns = -(-keys // page_size)
    width = page_size * (head_dim + 4)
    stride = width + 28
    memory = random.integers(0, 256, ((requests * columns + spare) * stride), dtype=np.uint8)
    cache = np.lib.stride_tricks.as_strided(
        memory, (requests * columns + spare, page_size, 1, head_dim + 4), (stride, head_dim + 4, head_dim + 4, 1)
    )
    table = random.permutation(requests * columns + spare)[: requests * columns].reshape(requests, columns)
    for r in range(requests):
        for column in range(columns):
            base = table[r, column] * stride
            part = slice(column * page_size, (column + 1) * page_size)
            codes, scales = c.k[part], c.k_scale[part]
            memory[base : base + codes.size] = codes.reshape(-1)
            base += page_size * head_dim
            memory[base : base + 4 * len(scales)] = scales.view(np.uint8)
    return cache, table.astype(np.int32), stride


def test_paged_keys_are_the_same_keys(call):
    c = call(rows=6, keys=96)
    cache, table, _ = paged(c)
    plain = dosa.select(*c.arrays, top_k=17, return_scores=True)
    arguments = dict(top_k=17, return_scores=True, block_table=table)
    found = dosa.select(c.q, cache, None, c.weights, c.ks, c.ke, **arguments)
    same(found, plain[:3])
    same(dosa.select(c.q, cache, None, c.weights, c.ks, c.ke, rows_per_request=3, **arguments), plain[:3])
    same(dosa.select(c.q, cache[:, :, 0], None, c.weights, c.ks, c.ke, **arguments), plain[:3])
    request = np.array([1, 0, 1, 0, 0, 1], np.int32)
    named = dosa.select(c.q, cache, None, c.weights, c.ks, c.ke, row_request=request, **arguments)
    same(named, plain[:3])
    slots = dosa.select(
        c.q, cache, None, c.weights, c.ks, c.ke, row_request=request, index_base="slot", **arguments
    ).indices
    for t in range(6):
        i = plain.indices[t]
        assert (slots[t] == table[request[t], i // 16] * 16 + i % 16).all()


def test_shards_merge_to_the_whole(call):
    c = call(rows=7, keys=300)
    whole = dosa.select(*c.arrays, top_k=25, return_scores=True, order="score", always_first=2, always_last=3)
    parts = []
    for first, last in ((0, 90), (90, 91), (91, 300)):
        parts.append(
            dosa.select(
                c.q, c.k[first:last], c.k_scale[first:last], c.weights, c.ks, c.ke, top_k=25, return_scores=True,
                always_first=2, always_last=3, shard=(first, 300),
            )
        )  # fmt: skip
    merged = dosa.merge(
        parts, c.ks, c.ke, total_keys=300, top_k=25, return_scores=True, order="score", always_first=2, always_last=3
    )
    same(merged, whole[:3])
    with pytest.raises(dosa.BadInputError, match="two places"):
        dosa.merge([parts[0], parts[0]], c.ks, c.ke, total_keys=300, top_k=25)
    with pytest.raises(dosa.BadInputError, match="no scores"):
        dosa.merge([dosa.select(*c.arrays, top_k=3)], c.ks, c.ke, total_keys=300, top_k=3)


def test_plan_workspace_out_and_carry(call):
    c = call(rows=9, keys=400)
    wanted = dosa.select(*c.arrays, top_k=31, return_scores=True)
    plan = dosa.plan(rows=9, heads=8, head_dim=64, keys=400, top_k=31, return_scores=True)
    assert plan.workspace_bytes == dosa.plan_for(*c.arrays, top_k=31, return_scores=True).workspace_bytes
    assert "cpu" in plan.why and plan.options.model == "f64"
    workspace, carry = plan.new_workspace(), plan.new_carry()
    assert isinstance(workspace, dosa.Memory) and workspace.nbytes == plan.workspace_bytes
    indices = np.full((9, 40), 77, np.int32)[:, 3:34]
    lengths = np.zeros((9, 2), np.int32)[:, 0]
    scores = np.zeros((31, 9), np.float32).T
    for _ in range(3):
        found = plan.run(*c.arrays, out=(indices, lengths, scores), workspace=workspace, carry=carry, row_reports=True)
        assert found.indices is indices
        for a, b in zip(found[:3], wanted[:3]):
            assert np.ascontiguousarray(a).tobytes() == b.tobytes()
    assert (indices.base[:, :3] == 77).all() and (indices.base[:, 34:] == 77).all()
    reports = found.stats.row_reports()
    assert reports["visible"] == (c.ke - c.ks).tolist()
    assert found.stats.visible == sum(reports["visible"])
    raw = np.empty(plan.workspace_bytes + 1, np.uint8)[1:]
    same(plan.run(*c.arrays, workspace=raw), wanted[:3])
    with pytest.raises(dosa.BadInputError, match="workspace: found 1 bytes"):
        plan.run(*c.arrays, workspace=dosa.Memory(1))
    with pytest.raises(dosa.BadInputError, match="plan's"):
        plan.run(c.q[:3], c.k, c.k_scale, c.weights[:3], c.ks[:3], c.ke[:3])


def test_counters_of_a_host_call(call, sample_trace):
    c = call(rows=4, keys=90)
    for backend in ("cpu", "reference"):
        stats = dosa.select(*c.arrays, top_k=8, backend=backend).stats
        assert stats.device is None and stats.rows == 4 and stats.backend == backend
    # The first pass keeps what reaches a threshold predicted from a sample; a guess that proves too high is a second pass.
    trace = dosa.trace.read(sample_trace)
    for path in ("dosa", "dense"):
        stats = dosa.plan_for(*trace.arrays, top_k=256, path=path).run(*trace.arrays, row_reports=True).stats
        rows = stats.row_reports()
        assert stats.rows_rescreened == sum(rows["rescreened"])
        for predicted, threshold, again in zip(rows["predicted"], rows["threshold"], rows["rescreened"]):
            assert again or -np.inf < predicted <= threshold


def test_every_instruction_set_gives_the_same_bytes(call):
    c = call(rows=5, keys=300, heads=32, head_dim=128)
    wanted = dosa.select(*c.arrays, top_k=20, return_scores=True, backend="reference")
    for isa, (available, _) in dosa.info().isas.items():
        if available:
            for path in ("dense", "dosa"):
                found = dosa.select(*c.arrays, top_k=20, return_scores=True, isa=isa, path=path)
                same(found, wanted[:3])
            assert dosa.plan_for(*c.arrays, top_k=20, isa=isa).options.isa == isa
        else:
            with pytest.raises(dosa.NotAvailableError, match=isa):
                dosa.select(*c.arrays, top_k=20, isa=isa)


def test_defaults_of_the_window(call):
    c = call(rows=3, keys=50)
    everything = dosa.select(c.q, c.k, c.k_scale, c.weights, top_k=50)
    assert (everything.indices == np.arange(50)).all()
    assert (dosa.select(c.q, c.k, c.k_scale, c.weights, 10, 20, top_k=50).lengths == 10).all()


def test_info_and_version():
    info = dosa.info()
    assert info.version == dosa.__version__ and info.backends["cpu"][0] and info.isas["portable"][0]
    assert info.isas[info.isa][0]
