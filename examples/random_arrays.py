"""Fifteen lines: random q and k, quantised as DeepSeek does it, and the exact Top-K of every row."""

import numpy as np

import dosa

random = np.random.default_rng(0)
rows, keys, heads, head_dim = 8, 4096, 32, 128
q, q_scale = dosa.quantize(random.normal(size=(rows, heads, head_dim)).astype(np.float32))
k, k_scale = dosa.quantize(random.normal(size=(keys, head_dim)).astype(np.float32))
weights = dosa.fold_weights(random.normal(size=(rows, heads)).astype(np.float32), q_scale, head_dim)
ke = np.arange(keys - rows + 1, keys + 1, dtype=np.int32)  # causal: each row sees the keys up to itself
selection = dosa.select(q, k, k_scale, weights, 0, ke, top_k=512)
print("best keys of the first row:", selection.indices[0, :5], "of", selection.lengths[0])
print("score model:", selection.model)
print(dosa.judge(selection.indices, selection.lengths, q, k, k_scale, weights, 0, ke))
