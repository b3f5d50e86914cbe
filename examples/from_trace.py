"""Fifteen lines: a recorded indexer call, selected with and without the certificate."""

import pathlib
import sys

import dosa

sample = pathlib.Path(__file__).parents[1] / "data" / "sample_en_l03_h32.safetensors"
trace = dosa.trace.read(sys.argv[1] if len(sys.argv) > 1 else sample)
dense = dosa.select(*trace.arrays, top_k=512, path="dense")
certified = dosa.select(*trace.arrays, top_k=512, path="dosa")
assert (dense.indices == certified.indices).all() and (dense.lengths == certified.lengths).all()
stats = certified.stats
print(f"{stats.rows} rows over {trace.k.shape[0]} keys: the same bytes")
print(f"keys that the bound could not reject: {stats.survivors / stats.visible:.1%}")
print(f"dot products of the dense path: {stats.dot_products / stats.dense_dot_products:.1%}")
