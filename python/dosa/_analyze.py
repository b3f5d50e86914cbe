"""What a trace says about certificates and about approximations: the numbers behind the report."""

from __future__ import annotations

import os
import pathlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy

from . import _core, trace
from ._errors import BadInputError, UsageError
from ._quantize import decode
from ._select import plan_for, scores, select
from ._types import Path, RowReports

BLOCK = 64
TIMED_CALLS = 3
BUDGETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
SCHEMES = ("few heads", "page min/max", "pooled blocks")


@dataclass
class Row:
    """One sampled row."""

    row: int
    visible: int
    tau: float
    gap: float  # score of rank K minus rank K + 1, in standard deviations of the row's scores
    prediction_gap: float  # score of rank K minus the predicted threshold, likewise; NaN where none was predicted
    deviation: float
    score_counts: Any  # histogram over `score_edges`, all visible keys
    winner_counts: Any
    score_edges: Any
    slack_winners: Any  # (bound - score) / deviation, quantiles
    slack_others: Any
    slack_counts: Any
    margin_survivors: float  # share of keys whose bound reaches tau
    active_winners: Any  # [H] share of winners with q . k > 0
    active_others: Any
    recall: dict[str, list[float]]
    missed: dict[str, list[int]]


@dataclass
class Analysis:
    """Everything that the report draws for one trace."""

    name: str
    metadata: dict[str, str]
    rows_total: int
    keys: int
    heads: int
    head_dim: int
    top_k: int
    weights: Any
    positive_heads: Any
    survival: Any  # [Q] path dosa
    cost: Any  # [Q] dot products done over dense
    retained: Any
    visible: Any
    advice: dict[str, int]
    rescreened: int  # rows of path dosa whose predicted threshold was too high
    seconds: dict[str, float]
    dots: dict[str, float]
    sweep_r: list[int]
    sweep_survival: list[float]
    sweep_cost: list[float]
    slack_edges: Any
    budgets: list[float]
    rows: list[Row] = field(default_factory=list)
    label: str = ""

    @property
    def title(self) -> str:
        """The file's name without folder and ending, or what `label` says instead."""
        return self.label or pathlib.Path(self.name).stem

    def mean_recall(self, scheme: str) -> list[float]:
        """Mean over the sampled rows, one number a budget."""
        return [float(numpy.mean([row.recall[scheme][b] for row in self.rows])) for b in range(len(self.budgets))]

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [
            f"{self.title}: {self.rows_total} rows, {self.keys} keys, {self.heads} heads of {self.head_dim}, K {self.top_k}"
        ]
        if not self.rows:
            lines.append("  no row sees more than K keys: every key is selected, nothing to bound")
            return "\n".join(lines)
        lines.append(
            f"  positive heads {self.positive_heads.mean():.1f} of {self.heads}; survival {self.survival.mean():.4f} "
            f"(K/N {self.top_k / self.visible.mean():.4f}); work {self.cost.mean():.3f} of dense; "
            f"gap {numpy.median([row.gap for row in self.rows]):.2e} std"
        )
        predicted = [row.prediction_gap for row in self.rows if numpy.isfinite(row.prediction_gap)]
        if predicted:
            lines.append(
                f"  predicted threshold: {numpy.median(predicted):.2f} std below the K-th score; "
                f"rows screened again {self.rescreened}"
            )
        words = ", ".join(f"{reason} {count}" for reason, count in self.advice.items())
        lines.append(f"  cost model: {words}")
        lines.append(
            "  time: " + ", ".join(f"{path} {1e3 * seconds:.1f} ms" for path, seconds in self.seconds.items())
        )
        middle = len(self.budgets) // 2
        losses = ", ".join(f"{scheme} {100 * (1 - self.mean_recall(scheme)[middle]):.2f} %" for scheme in SCHEMES)
        lines.append(f"  winners lost by approximations at {100 * self.budgets[middle]:.0f} % of dense work: {losses}")
        return "\n".join(lines)


def _top(values: Any, count: int) -> Any:
    """A mask of the `count` largest, ties by smaller index."""
    order = numpy.lexsort((numpy.arange(len(values)), -values))[: max(count, 0)]
    mask = numpy.zeros(len(values), bool)
    mask[order] = True
    return mask


def _approximations(
    dots: Any, values: Any, q: Any, weights: Any, scale: Any, exact: Any, winners: Any, top_k: int, budgets: list[float]
) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    """Recall of three approximate schemes whose dot products cost `budget` of the dense ones.

    few heads: the r heads that matter most on block means, all keys (MISA's idea). page min/max: pages of 64 keys by an
    upper bound from per-dimension extremes, then exact inside the best pages (Quest's). pooled blocks: blocks of 64
    keys by the score of their mean key, then exact inside the best blocks (HISA's).
    """
    heads, keys = dots.shape
    blocks = -(-keys // BLOCK)
    starts = numpy.arange(0, keys, BLOCK)
    sizes = numpy.diff(numpy.append(starts, keys))
    mean_key = numpy.add.reduceat(values, starts, axis=0) / sizes[:, None]
    mean_scale = numpy.add.reduceat(scale, starts) / sizes
    most_scale = numpy.maximum.reduceat(scale, starts)
    pooled = numpy.maximum(q @ mean_key.T, 0)  # [H, blocks]
    importance = numpy.abs(weights) * (pooled * mean_scale).mean(axis=1)
    by_importance = numpy.argsort(-importance, kind="stable")
    block_score = (weights @ pooled) * mean_scale
    low, high = numpy.minimum.reduceat(values, starts, axis=0), numpy.maximum.reduceat(values, starts, axis=0)
    q_up, q_down = numpy.maximum(q, 0), numpy.minimum(q, 0)
    most = numpy.maximum(q_up @ high.T + q_down @ low.T, 0)
    least = numpy.maximum(q_up @ low.T + q_down @ high.T, 0)
    page_bound = (numpy.maximum(weights, 0) @ most + numpy.minimum(weights, 0) @ least) * most_scale
    wanted = int(winners.sum())
    recall: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    missed: dict[str, list[int]] = {scheme: [] for scheme in SCHEMES}

    def note(scheme: str, chosen: Any) -> None:
        hit = int((chosen & winners).sum())
        recall[scheme].append(hit / wanted)
        missed[scheme].append(wanted - hit)

    def inside(block_mask: Any) -> Any:
        allowed = numpy.repeat(block_mask, sizes)
        return _top(numpy.where(allowed, exact, -numpy.inf), min(top_k, int(allowed.sum()))) & allowed

    for budget in budgets:
        kept = by_importance[: max(1, min(heads, round((budget - 1 / BLOCK) * heads)))]
        partial = (weights[kept] @ numpy.maximum(dots[kept], 0)) * scale
        note(SCHEMES[0], _top(partial, top_k))
        note(SCHEMES[1], inside(_top(page_bound, round((budget - 2 / BLOCK) * blocks))))
        note(SCHEMES[2], inside(_top(block_score, round((budget - 1 / BLOCK) * blocks))))
    return recall, missed


def _sweep_heads(heads: int) -> list[int]:
    step = max(1, heads // 16)
    return sorted({*range(step * 3, heads, step * 2), max(1, heads - step)})


def analyze(
    path: str | os.PathLike[str],
    *,
    top_k: int = 2048,
    rows: int = 12,
    progress: Callable[[int, int], None] | None = None,
) -> Analysis:
    """Measures one trace under score model f64.

    Args:
        path: a trace file. top_k: K. rows: so many rows, spread evenly, are looked at key by key; survival, cost and
            advice come from all rows.

    Raises:
        dosa.IoError, dosa.BadInputError, dosa.UsageError.
    """
    if rows < 1:
        raise UsageError(f"rows: found {rows}, wanted 1 or more")
    call = trace.read(path)
    q, k, k_scale, weights, ks, ke = call.arrays
    total, heads, head_dim = q.shape
    keys = k.shape[0]
    if total == 0:
        raise BadInputError(f"{os.fspath(path)}: found no rows")
    first = numpy.maximum(ks.astype(numpy.int64), 0)
    last = numpy.maximum(numpy.minimum(ke.astype(numpy.int64), keys), first)

    # All rows: what the certificate does, what the cost model says, and how long it takes.
    seconds: dict[str, float] = {}
    dots_done: dict[str, float] = {}
    reports: dict[str, RowReports] = {}
    words: tuple[Path, ...] = ("dense", "dosa", "auto")
    plans = {word: plan_for(*call.arrays, top_k=top_k, path=word) for word in words}
    workspaces = {word: plan.new_workspace() for word, plan in plans.items()}
    # In turns: what else the machine does then falls on all paths alike.
    for _ in range(TIMED_CALLS):
        for word, plan in plans.items():
            start = time.perf_counter()
            found = plan.run(*call.arrays, workspace=workspaces[word], row_reports=True)
            seconds[word] = min(seconds.get(word, numpy.inf), time.perf_counter() - start)
            dots_done[word] = found.stats.dot_products / max(found.stats.dense_dot_products, 1)
            reports[word] = found.stats.row_reports()
    del workspaces
    visible = numpy.array(reports["dosa"]["visible"], numpy.float64)
    bounded = visible > top_k
    result = Analysis(
        name=os.fspath(path),
        metadata=dict(call.metadata),
        rows_total=total,
        keys=keys,
        heads=heads,
        head_dim=head_dim,
        top_k=top_k,
        weights=numpy.asarray(weights),
        positive_heads=(weights > 0).sum(1),
        survival=numpy.array(reports["dosa"]["survivors"])[bounded] / visible[bounded],
        cost=numpy.array(reports["dosa"]["dot_products"])[bounded] / (visible[bounded] * heads),
        retained=numpy.array(reports["dosa"]["retained_heads"])[bounded],
        visible=visible,
        advice=dict(Counter(reports["auto"]["reason"])),
        rescreened=sum(reports["dosa"]["rescreened"]),
        seconds=seconds,
        dots=dots_done,
        sweep_r=[],
        sweep_survival=[],
        sweep_cost=[],
        slack_edges=numpy.linspace(0, 6, 241),
        budgets=list(BUDGETS),
    )
    candidates = numpy.flatnonzero(bounded)
    if len(candidates) == 0:
        return result
    picked = candidates[numpy.unique(numpy.linspace(0, len(candidates) - 1, min(rows, len(candidates))).astype(int))]

    # r against survival, at the thresholds of real runs.
    few = call.rows(picked)
    for r in _sweep_heads(heads):
        found = plan_for(*few.arrays, top_k=top_k, path="dosa", retained_heads=r).run(*few.arrays, row_reports=True)
        columns = found.stats.row_reports()
        share = numpy.array(columns["survivors"]) / numpy.array(columns["visible"])
        work = numpy.array(columns["dot_products"]) / (numpy.array(columns["visible"]) * heads)
        result.sweep_r.append(r)
        result.sweep_survival.append(float(share.mean()))
        result.sweep_cost.append(float(work.mean()))

    every = decode(numpy.asarray(k))
    inputs = _core.Inputs(q, k, k_scale, weights, ks, ke, None, None, None, None)
    for number, t in enumerate(picked):
        begin, end = int(first[t]), int(last[t])
        exact = scores(q[t : t + 1], k[begin:end], k_scale[begin:end], weights[t : t + 1])[0].astype(numpy.float64)
        finite = numpy.isfinite(exact)
        exact = numpy.where(finite, exact, numpy.nan)
        winners = numpy.zeros(end - begin, bool)
        chosen = select(*call.rows([t]).arrays, top_k=top_k).indices[0]
        winners[chosen[chosen >= 0] - begin] = True
        ranked = -numpy.sort(-numpy.where(finite, exact, -numpy.inf))
        deviation = float(numpy.nanstd(exact)) or 1.0
        tau = float(exact[winners].min())
        predicted = reports["dosa"]["predicted"][t]
        upper, _, _, certified = _core.bounds(inputs, int(t), top_k, 0, "f64", int(t))
        values, queries, signed = every[begin:end], decode(numpy.asarray(q[t])), numpy.asarray(weights[t])
        dots = queries @ values.T
        scale = numpy.asarray(k_scale[begin:end])
        edges = numpy.linspace(ranked[finite.sum() - 1], ranked[0], 121)
        if certified:
            slack = (upper.astype(numpy.float64) - exact) / deviation
            slack = numpy.where(numpy.isfinite(slack), slack, numpy.nan)
        else:
            slack = numpy.full(len(exact), numpy.nan)
        quantiles = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
        plain = numpy.where(finite, exact, -numpy.inf)
        recall, missed = _approximations(
            dots, values, queries, signed, scale, plain, winners, top_k, result.budgets
        )
        result.rows.append(
            Row(
                row=int(t),
                visible=end - begin,
                tau=tau,
                gap=float(ranked[top_k - 1] - ranked[top_k]) / deviation,
                prediction_gap=(tau - predicted) / deviation if numpy.isfinite(predicted) else float("nan"),
                deviation=deviation,
                score_counts=numpy.histogram(exact[finite], edges)[0],
                winner_counts=numpy.histogram(exact[winners], edges)[0],
                score_edges=edges,
                slack_winners=numpy.nanquantile(slack[winners], quantiles) if certified else None,
                slack_others=numpy.nanquantile(slack[~winners], quantiles) if certified else None,
                slack_counts=numpy.histogram(slack[numpy.isfinite(slack)], result.slack_edges)[0],
                margin_survivors=float((upper >= tau).mean()) if certified else 1.0,
                active_winners=(dots[:, winners] > 0).mean(1),
                active_others=(dots[:, ~winners] > 0).mean(1),
                recall=recall,
                missed=missed,
            )
        )
        if progress is not None:
            progress(number + 1, len(picked))
    return result
