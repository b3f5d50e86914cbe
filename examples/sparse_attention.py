"""A small causal attention layer with a lightning indexer, end to end: its output equals dense attention under a mask.

The indexer projects the hidden states to q, k and head weights, quantises them to E4M3 and selects the keys; attention
then gathers those keys alone. The check computes attention over all keys with a mask from an independent Top-K.
"""

import numpy as np

import dosa

TOKENS, HIDDEN, INDEX_HEADS, INDEX_DIM, TOP_K = 600, 256, 16, 64, 64
random = np.random.default_rng(7)


def linear(inputs: int, outputs: int) -> np.ndarray:
    return (random.normal(size=(inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)


x = random.normal(size=(TOKENS, HIDDEN)).astype(np.float32)
wq, wk, wv = (linear(HIDDEN, HIDDEN) for _ in range(3))
index_q, index_k, index_w = linear(HIDDEN, INDEX_HEADS * INDEX_DIM), linear(HIDDEN, INDEX_DIM), linear(HIDDEN, INDEX_HEADS)


def index() -> tuple[tuple, dosa.Selection]:
    """The lightning indexer: its quantised inputs, and which keys each token attends to."""
    q, q_scale = dosa.quantize((x @ index_q).reshape(TOKENS, INDEX_HEADS, INDEX_DIM), hadamard=True)
    k, k_scale = dosa.quantize(x @ index_k, hadamard=True, scale="power_of_two")
    weights = dosa.fold_weights(x @ index_w, q_scale, INDEX_DIM)
    inputs = q, k, k_scale, weights, np.zeros(TOKENS, np.int32), np.arange(1, TOKENS + 1, dtype=np.int32)
    return inputs, dosa.select(*inputs, top_k=TOP_K)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def sparse_attention(selection: dosa.Selection) -> np.ndarray:
    q, k, v = (x.astype(np.float64) @ w for w in (wq, wk, wv))
    out = np.empty_like(q)
    for t in range(TOKENS):
        keys = selection.indices[t, : selection.lengths[t]]
        out[t] = softmax(q[t] @ k[keys].T / np.sqrt(HIDDEN)) @ v[keys]
    return out


def masked_attention(inputs: tuple) -> np.ndarray:
    scores = dosa.scores(*inputs)
    mask = np.full((TOKENS, TOKENS), -np.inf)
    for t in range(TOKENS):
        ranked = sorted(range(t + 1), key=lambda i: (-scores[t, i], i))  # higher score first, then smaller index
        mask[t, ranked[:TOP_K]] = 0
    q, k, v = (x.astype(np.float64) @ w for w in (wq, wk, wv))
    return softmax(q @ k.T / np.sqrt(HIDDEN) + mask) @ v


if __name__ == "__main__":
    inputs, selection = index()
    difference = np.abs(sparse_attention(selection) - masked_attention(inputs)).max()
    print(f"{TOKENS} tokens, K = {TOP_K}: largest difference from dense attention under the mask {difference:.1e}")
    # The same keys and the same binary64 sums in another order: a wrong key would differ by 1e-3 and more.
    assert difference < 1e-12
