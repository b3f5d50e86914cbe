from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import dosa
import oracle
from dosa._safetensors import write_tensors
from test_select import paged


@pytest.fixture
def c(call):
    return call(rows=6, keys=150)


@pytest.mark.parametrize("base", ["absolute", "window"])
@pytest.mark.parametrize("forced", [(0, 0), (3, 2)])
def test_ours_is_exact_in_any_order(c, base, forced):
    first, last = forced
    options = dict(index_base=base, always_first=first, always_last=last)
    found = dosa.select(*c.arrays, top_k=20, order="score", **options)
    verdict = dosa.judge(found.indices, found.lengths, *c.arrays, **options)
    assert verdict.verdict == "exact" and (verdict.recall == 1).all() and len(verdict.wrong_rows) == 0
    shuffled = np.random.default_rng(0).permuted(found.indices, axis=1)
    assert dosa.judge(shuffled, None, *c.arrays, row_chunk=2, **options).verdict == "exact"


def test_every_kind_of_mistake(c):
    found = dosa.select(*c.arrays, top_k=20, order="score")
    table = oracle.scores_f64(c.q, c.k, c.k_scale, c.weights)
    wrong = found.indices.copy()
    lengths = found.lengths.copy()
    outsider = next(i for i in range(c.ks[0], c.ke[0]) if i not in found.indices[0])
    wrong[0, 4] = outsider  # below the K-th score
    wrong[1, 7] = wrong[1, 6]  # twice
    wrong[2, 0] = c.ke[2]  # outside
    lengths[3] = 18  # too short
    verdict = dosa.judge(wrong, lengths, *c.arrays, top_k=20)
    assert verdict.verdict == "wrong"
    assert verdict.verdicts.tolist() == [2, 2, 2, 2, 0, 0]
    assert verdict.missing.tolist() == [1, 1, 1, 2, 0, 0]
    assert verdict.below.tolist() == [1, 0, 0, 0, 0, 0]
    assert verdict.duplicates.tolist() == [0, 1, 0, 0, 0, 0]
    assert verdict.outside.tolist() == [0, 0, 1, 0, 0, 0]
    gap = float(table[0, found.indices[0, -1]]) - float(table[0, outsider])
    assert verdict.shortfall[0] == pytest.approx(gap) and verdict.shortfall[0] > 0
    assert verdict.recall[0] == pytest.approx(0.95)
    text = verdict.summary()
    assert "2 exact, 0 right up to ties, 4 wrong" in text and "row 3: 2 of 20 missing" in text
    with pytest.raises(dosa.BadInputError):
        dosa.judge(wrong[:2], lengths[:2], *c.arrays)
    with pytest.raises(dosa.BadInputError):
        dosa.judge(wrong.astype(np.float32), lengths, *c.arrays)


def test_ties_are_forgiven_and_too_many_of_them_are_not(call):
    c = call(rows=1, keys=40, heads=2, head_dim=32)
    c.k[:] = c.k[0]  # all keys score the same up to their scale
    c.k_scale[:] = 1
    c.weights[:] = np.abs(c.weights)
    c.q[:] = c.k[0]
    c.k_scale[3] = 2  # one winner above the tie
    arguments = (c.q, c.k, c.k_scale, c.weights)
    right = dosa.select(*arguments, top_k=5).indices
    assert right.tolist() == [[0, 1, 2, 3, 4]]
    other = np.array([[3, 39, 20, 7, 11]], np.int32)
    verdict = dosa.judge(other, None, *arguments)
    assert verdict.verdict == "ties" and verdict.missing[0] == 0 and verdict.recall[0] == pytest.approx(0.2)
    without_winner = np.array([[0, 1, 2, 4, 5]], np.int32)
    verdict = dosa.judge(without_winner, None, *arguments)
    assert verdict.verdict == "wrong" and verdict.missing[0] == 1 and verdict.below[0] == 1
    short = dosa.judge(np.array([[3, 1, 2, -1, -1]], np.int32), None, *arguments, top_k=5)
    assert short.verdict == "wrong" and short.missing[0] == 2


def test_nan_scores_are_not_selectable(c):
    c.k_scale[c.ks[0]] = np.nan
    found = dosa.select(*c.arrays, top_k=20)
    assert dosa.judge(found.indices, found.lengths, *c.arrays).verdict == "exact"
    wrong = found.indices.copy()
    wrong[0, 0] = c.ks[0]
    verdict = dosa.judge(wrong, found.lengths, *c.arrays)
    assert verdict.unselectable[0] == 1 and verdict.verdicts[0] == 2


def test_slots_of_paged_keys(c):
    cache, table, _ = paged(c, page_size=16, requests=2)
    arguments = (c.q, cache, None, c.weights, c.ks, c.ke)
    found = dosa.select(*arguments, top_k=20, index_base="slot", block_table=table)
    assert dosa.judge(found.indices, None, *arguments, index_base="slot", block_table=table).verdict == "exact"
    wrong = found.indices.copy()
    wrong[0] = found.indices[5]  # another request's slots
    verdict = dosa.judge(wrong, None, *arguments, index_base="slot", block_table=table)
    assert verdict.outside[0] == 20 and verdict.verdicts.tolist() == [2, 0, 0, 0, 0, 0]


def command(*words):
    return subprocess.run([sys.executable, "-m", "dosa", *map(str, words)], capture_output=True, text=True)


def test_the_command(sample_trace, tmp_path):
    trace = dosa.trace.read(sample_trace)
    found = dosa.select(*trace.arrays, top_k=64)
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    write_tensors(good, {"indices": found.indices, "lengths": found.lengths}, {"top_k": "64", "model": "f64"})
    indices = found.indices.copy()
    indices[9, 5] = 0
    write_tensors(bad, {"indices": indices}, {})
    for files in ((sample_trace, good), (good, sample_trace)):
        done = command("judge", *files)
        assert done.returncode == 0 and done.stdout.startswith("exact: 32 rows under score model f64")
    done = command("judge", sample_trace, bad)
    assert done.returncode == 1 and "row 9: 1 of 64 missing" in done.stdout
    # Rows that a command line picked are in the selection's metadata.
    write_tensors(good, {"indices": found.indices[[2, 5, 6]]}, {"rows": "2,5:7"})
    assert command("judge", sample_trace, good).returncode == 0
    done = command("judge", sample_trace, sample_trace)
    assert done.returncode == 2 and 'no tensor "indices"' in done.stderr
    assert command("judge", sample_trace, tmp_path / "none").returncode == 2
    assert re.search(r"^  backend +cpu +yes ", command("info").stdout, re.M)


def test_real_traces_are_selected_exactly(shared_traces):
    files = sorted(shared_traces.glob("*.safetensors"))
    assert files
    for file in files:
        trace = dosa.trace.read(file)
        few = trace.rows(slice(None, None, max(1, trace.q.shape[0] // 3)))
        for model in ("f64", "sm90"):
            found = dosa.select(*few.arrays, top_k=2048, path="dosa", model=model, order="score")
            verdict = dosa.judge(found.indices, found.lengths, *few.arrays, model=model)
            assert verdict.verdict == "exact", f"{file.name}: {verdict}"
