"""The contract in NumPy, written from docs/contract.md alone: score model f64, window, total order, forced keys."""

from __future__ import annotations

import math

import numpy as np

if hasattr(math, "fma"):
    fma = np.frompyfunc(math.fma, 3, 1)
else:
    # w * dot has 24 + 44 significant bits at most and acc 53: the 64-bit mantissa of x87 is not enough for their sum,
    # so the sum is taken exactly as fractions and rounded once.
    from fractions import Fraction

    def _fma(a: float, b: float, c: float) -> float:
        if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
            return a * b + c
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if exact == 0:
            return a * b + c  # the sign of zero follows IEEE's rules
        try:
            return float(exact)
        except OverflowError:
            return math.copysign(math.inf, exact)

    fma = np.frompyfunc(_fma, 3, 1)


def values() -> np.ndarray:
    """float64 [256]: what each E4M3 code is worth."""
    table = np.empty(256)
    for code in range(256):
        exponent, mantissa = (code >> 3) & 15, code & 7
        magnitude = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        if code & 0x7F == 0x7F:
            magnitude = math.nan
        table[code] = -magnitude if code & 0x80 else magnitude
    return table


VALUES = values()


def scores_f64(q: np.ndarray, k: np.ndarray, k_scale: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """float32 [Q, N]. q uint8 [Q,H,D], k uint8 [N,D]."""
    dots = np.einsum("qhd,nd->qhn", VALUES[q], VALUES[k])  # exact in binary64 in any order
    relu = np.where(np.isnan(dots), np.nan, np.maximum(dots, 0.0))
    total = np.zeros((q.shape[0], k.shape[0]))
    with np.errstate(all="ignore"):
        for h in range(q.shape[1]):
            total = fma(weights[:, h, None].astype(np.float64), relu[:, h], total).astype(np.float64)
        return (k_scale.astype(np.float64) * total).astype(np.float32)


def select(
    scores: np.ndarray, ks, ke, top_k: int, order: str = "index", base: str = "absolute", first: int = 0, last: int = 0
):
    """(indices, lengths, scores) of a score matrix [Q, N]; NaN is not selectable."""
    rows, keys = scores.shape
    indices = np.full((rows, top_k), -1, np.int32)
    lengths = np.zeros(rows, np.int32)
    written = np.full((rows, top_k), -np.inf, np.float32)
    for t in range(rows):
        begin, end = max(int(ks[t]), 0), min(int(ke[t]), keys)
        end = max(end, begin)
        candidates = []
        for i in range(begin, end):
            forced = i < begin + first or i >= end - last
            score = math.inf if forced else float(scores[t, i])
            if not math.isnan(score):
                candidates.append((not forced, 0.0 if forced else -score, i, score))
        kept = sorted(candidates)[:top_k]
        if order == "index":
            kept.sort(key=lambda entry: entry[2])
        lengths[t] = len(kept)
        for slot, (_, _, i, score) in enumerate(kept):
            indices[t, slot] = i - (begin if base == "window" else 0)
            written[t, slot] = score
    return indices, lengths, written
