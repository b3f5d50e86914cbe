"""Is somebody else's Top-K right? Exactly, up to ties, or wrong, and then where and by how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy

from . import _core
from ._errors import BadInputError, InputTypeError, UsageError
from ._interop import int32_rows, integer, to_host
from ._select import _on_device
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
        ks, ke: as in dosa.select, of any integer dtype. Other arguments as in dosa.select.

    Returns:
        A Verdict. Its summary() is for people.

    Raises:
        dosa.BadInputError, dosa.UsageError as dosa.select does.
    """
    found = _integers(indices, "indices", 2, "integers [Q, K]")
    rows, width = found.shape
    if model is None:
        model = "sm90" if _on_device(q) else "f64"
    used = (found >= 0).sum(1) if lengths is None else _integers(lengths, "lengths", 1, "integers [Q]")
    if used.shape != (rows,) or (used < 0).any() or (used > width).any():
        least, most = (int(used.min()), int(used.max())) if used.size else (0, 0)
        raise BadInputError(f"lengths: found shape {list(used.shape)}, {least} to {most}, wanted [{rows}] of 0..{width}")
    host_q, host_k, host_weights = to_host(q), to_host(k), to_host(weights)
    if host_q.ndim == 3 and len(host_q) != rows:
        raise BadInputError(f"indices: found {rows} rows, wanted {len(host_q)} (those of q)")
    host_scale = None if k_scale is None else to_host(k_scale)
    table = None if block_table is None else to_host(block_table)
    named = None if row_request is None else to_host(row_request)
    first = int32_rows(ks, "ks", rows, 0)
    last = int32_rows(ke, "ke", rows, 2**31 - 1)
    # Shapes, dtypes and options are those of dosa.select, so the library checks them.
    options = _core.options(
        width if top_k is None else top_k, model, None, "auto", "auto", "index", index_base, always_first, always_last,
        False, 0, 0, None, False,
    )  # fmt: skip
    inputs = _core.Inputs(host_q, host_k, host_scale, host_weights, first, last, table, named, rows_per_request, None)
    inputs.plan(options)
    top_k, always_first, always_last = options.top_k, options.always_first, options.always_last
    keys = inputs.keys
    if row_chunk is not None and (integer(row_chunk) or 0) < 1:
        raise UsageError(f"row_chunk: found {row_chunk!r}, wanted an integer of 1 or more")
    if progress is not None and not callable(progress):
        raise InputTypeError(f"progress: found {type(progress).__qualname__}, wanted a function of (done, total)")
    if host_scale is None:
        assert table is not None
        page_size = int(host_k.shape[1])
        request = numpy.arange(rows) // max(rows // max(table.shape[0], 1), 1) if named is None else named
    else:
        page_size, request = 0, None
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


def _integers(array: Array, name: str, axes: int, wanted: str) -> Any:
    """int64 on the host."""
    found = to_host(array)
    if found.ndim != axes or found.dtype.kind not in "iu":
        raise InputTypeError(f"{name}: found {found.dtype} {list(found.shape)}, wanted {wanted}")
    if found.dtype == numpy.uint64:  # an index of no key stays one
        found = numpy.minimum(found, numpy.uint64(2**63 - 1))
    return found.astype(numpy.int64)


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
