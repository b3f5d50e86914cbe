"""Is somebody else's Top-K right? Exactly, up to ties, or wrong, and then where and by how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy

from ._errors import BadInputError, UsageError
from ._interop import to_host
from ._select import scores as _scores
from ._types import Model

Array = Any
EXACT, TIES, WRONG = "exact", "ties", "wrong"
_NAMES = (EXACT, TIES, WRONG)


@dataclass(frozen=True)
class Verdict:
    """What dosa.judge found. Arrays have one entry a row, int64 unless said.

    verdicts: 0 exact (the very set of the total order), 1 right up to ties (another choice among keys whose score
    equals the last selected one's), 2 wrong. missing: keys of the right set that a row lacks, ties forgiven.
    duplicates, outside (of the window or the cache), unselectable (NaN score), below (real keys that do not belong).
    shortfall float64: the worst selected key's score below the K-th score (0 where none is). recall float64: share of
    the exact set that was found.
    """

    verdicts: Array
    expected_lengths: Array
    lengths: Array
    missing: Array
    duplicates: Array
    outside: Array
    unselectable: Array
    below: Array
    shortfall: Array
    recall: Array
    model: str

    @property
    def verdict(self) -> Literal["exact", "ties", "wrong"]:
        """The worst row's verdict; "exact" for no rows."""
        return _NAMES[int(self.verdicts.max(initial=0))]  # type: ignore[return-value]

    @property
    def wrong_rows(self) -> Array:
        """Numbers of the rows that are wrong."""
        return numpy.flatnonzero(self.verdicts == 2)

    def summary(self) -> str:
        """A few lines for people."""
        rows = len(self.verdicts)
        counts = [int((self.verdicts == v).sum()) for v in range(3)]
        lines = [
            f"{self.verdict}: {rows} rows under score model {self.model}: "
            f"{counts[0]} exact, {counts[1]} right up to ties, {counts[2]} wrong"
        ]
        if counts[2]:
            wrong = self.wrong_rows
            worst = wrong[numpy.argsort(-self.missing[wrong], kind="stable")][:5]
            lines.append(
                f"entries: {int(self.missing.sum())} missing, {int(self.below.sum())} below the K-th score, "
                f"{int(self.duplicates.sum())} duplicates, {int(self.outside.sum())} outside the window, "
                f"{int(self.unselectable.sum())} with a NaN score; mean recall {float(self.recall.mean()):.6f}"
            )
            for t in worst:
                lines.append(
                    f"  row {int(t)}: {int(self.missing[t])} of {int(self.expected_lengths[t])} missing, "
                    f"{int(self.below[t])} below (by up to {float(self.shortfall[t]):.6g}), "
                    f"{int(self.duplicates[t])} duplicates, {int(self.outside[t])} outside, "
                    f"length {int(self.lengths[t])}"
                )
            if len(wrong) > len(worst):
                lines.append(f"  and {len(wrong) - len(worst)} more wrong rows")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()


def judge(
    indices: Array,
    lengths: Array | None,
    q: Array,
    k: Array,
    k_scale: Array | None,
    weights: Array,
    ks: Array | int | None = None,
    ke: Array | int | None = None,
    *,
    top_k: int | None = None,
    model: Model | None = None,
    index_base: Literal["absolute", "window", "slot"] = "absolute",
    always_first: int = 0,
    always_last: int = 0,
    block_table: Array | None = None,
    row_request: Array | None = None,
    rows_per_request: int | None = None,
    row_chunk: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verdict:
    """Compares a selection with the scores themselves, in any order of its entries.

    The scores come from dosa.scores; which set is right follows from them in NumPy, independently of dosa's selector.

    Args:
        indices: int [Q, K'], any entries past a row's length, negative entries are padding. lengths: int [Q], or None:
            a row's length is its number of entries that are not negative.
        top_k: K; None: the width of `indices`. model: None: "f64", or "sm90" for CUDA tensors.
        row_chunk: rows scored at a time (default: so many as fit 256 MiB of scores). progress(done, total) is called
        after each.
        Other arguments as in dosa.select.

    Returns:
        A Verdict. Its summary() is for people.

    Raises:
        dosa.BadInputError, dosa.UsageError as dosa.select does.
    """
    found = to_host(indices)
    if found.ndim != 2 or found.dtype.kind not in "iu":
        raise BadInputError(f"indices: found {found.dtype} {list(found.shape)}, wanted integers [Q, K]")
    found = found.astype(numpy.int64)
    rows = found.shape[0]
    host_q = to_host(q)
    if host_q.shape[0] != rows:
        raise BadInputError(f"indices: found {rows} rows, wanted {host_q.shape[0]} (those of q)")
    if model is None:
        from ._select import _on_device

        model = "sm90" if _on_device(q) else "f64"
    top_k = found.shape[1] if top_k is None else top_k
    if top_k < 1:
        raise UsageError(f"top_k: found {top_k}, wanted 1 or more")
    used = (found >= 0).sum(1) if lengths is None else to_host(lengths).astype(numpy.int64).reshape(-1)
    if used.shape != (rows,) or (used < 0).any() or (used > found.shape[1]).any():
        raise BadInputError(f"lengths: wanted [Q] of 0..{found.shape[1]}")
    host_k, host_weights = to_host(k), to_host(weights)
    host_scale = None if k_scale is None else to_host(k_scale)
    table = None if block_table is None else to_host(block_table)
    if host_scale is None:
        if table is None:
            raise BadInputError("block_table: found None with paged keys (k_scale=None), wanted int32 [R, pages]")
        page_size = int(host_k.shape[1])
        keys = int(table.shape[1]) * page_size
        request = (
            numpy.arange(rows) // max(rows // max(table.shape[0], 1), 1) if row_request is None else to_host(row_request)
        )
    else:
        page_size, keys, request = 0, int(host_k.shape[0]), None
        if index_base == "slot":
            raise UsageError("index base: found slot with contiguous keys, wanted paged keys")

    def bound(value: Any, default: int) -> Any:
        if value is None or isinstance(value, int):
            return numpy.full(rows, default if value is None else value, numpy.int32)
        return to_host(value).astype(numpy.int32, copy=False)

    first, last = bound(ks, 0), bound(ke, keys)
    result = {
        name: numpy.zeros(rows, numpy.int64)
        for name in ("verdicts", "expected_lengths", "missing", "duplicates", "outside", "unselectable", "below")
    }
    shortfall, recall = numpy.zeros(rows), numpy.ones(rows)
    chunk = row_chunk or max(1, (1 << 26) // max(keys, 1))
    for start in range(0, rows, chunk):
        part = slice(start, min(start + chunk, rows))
        table_of_scores = _scores(
            host_q[part], host_k, host_scale, host_weights[part], first[part], last[part], model=model, block_table=table,
            row_request=None if request is None else numpy.ascontiguousarray(request[part].astype(numpy.int32)),
        )  # fmt: skip
        for t in range(part.start, part.stop):
            entries = found[t, : used[t]]
            begin = max(int(first[t]), 0)
            end = max(min(int(last[t]), keys), begin)
            if index_base == "window":
                entries = numpy.where(entries >= 0, entries + begin, entries)
            elif index_base == "slot":
                entries = _logical(entries, table[int(request[t])], page_size, begin, end)  # type: ignore[index]
            row = _judge_row(entries, table_of_scores[t - start], begin, end, top_k, always_first, always_last)
            for name, value in row.items():
                if name in result:
                    result[name][t] = value
            shortfall[t], recall[t] = row["shortfall"], row["recall"]
        if progress is not None:
            progress(part.stop, rows)
    return Verdict(lengths=used, shortfall=shortfall, recall=recall, model=model, **result)


def _logical(slots: Any, pages: Any, page_size: int, begin: int, end: int) -> Any:
    """Logical keys of physical slots; -1 for slots of no visible page."""
    columns = numpy.arange(begin // page_size, (end - 1) // page_size + 1) if end > begin else numpy.arange(0)
    order = numpy.argsort(pages[columns], kind="stable")
    known = pages[columns][order]
    if len(known) == 0:
        return numpy.full_like(slots, -1)
    where = numpy.minimum(numpy.searchsorted(known, slots // page_size), len(known) - 1)
    hit = (known[where] == slots // page_size) & (slots >= 0)
    return numpy.where(hit, columns[order][where] * page_size + slots % page_size, -1)


def _judge_row(
    entries: Any, scores: Any, begin: int, end: int, top_k: int, always_first: int, always_last: int
) -> dict[str, Any]:
    inside = (entries >= begin) & (entries < end)
    real = entries[inside]
    unique = numpy.unique(real)
    window = scores[begin:end].astype(numpy.float64)
    size = end - begin
    # Rank by numbers: forced keys as +inf above +inf, in index order; ties among them are decided, not free.
    forced = numpy.zeros(size, bool)
    forced[: min(always_first, size)] = True
    if always_last:
        forced[max(size - always_last, 0) :] = True
    selectable = forced | ~numpy.isnan(window)
    forced_keys = numpy.flatnonzero(forced)[:top_k]
    free = numpy.flatnonzero(selectable & ~forced)
    slots = min(top_k - len(forced_keys), len(free))
    ranked = free[numpy.lexsort((free, -window[free]))][:slots]
    right = numpy.zeros(size, bool)
    right[forced_keys] = True
    right[ranked] = True
    kth = window[ranked[-1]] if slots else numpy.inf
    mine = unique - begin
    chosen = numpy.zeros(size, bool)
    chosen[mine] = True
    # Ties: a free key whose score equals the K-th may stand in for another one.
    tied = numpy.zeros(size, bool)
    if slots and slots < len(free):
        tied[free[window[free] == kth]] = True
    tied_right = int((right & tied).sum())
    missing = int((right & ~tied & ~chosen).sum()) + max(tied_right - int((chosen & tied).sum()), 0)
    excess_ties = max(int((chosen & tied).sum()) - tied_right, 0)
    bad = chosen & ~right & ~tied
    nan = bad & ~selectable
    below = bad & selectable
    expected = int(right.sum())
    duplicates = len(real) - len(unique)
    outside = int((~inside).sum())
    clean = missing == 0 and excess_ties == 0 and not bad.any() and duplicates == 0 and outside == 0
    exact = clean and bool((chosen == right).all())
    with numpy.errstate(invalid="ignore"):
        gap = float(kth - window[below].min()) if below.any() and numpy.isfinite(kth) else 0.0
    return {
        "verdicts": 0 if exact else 1 if clean else 2,
        "expected_lengths": expected,
        "missing": missing,
        "duplicates": duplicates,
        "outside": outside,
        "unselectable": int(nan.sum()),
        "below": int(below.sum()) + excess_ties,
        "shortfall": gap,
        "recall": float((chosen & right).sum() / expected) if expected else 1.0,
    }
