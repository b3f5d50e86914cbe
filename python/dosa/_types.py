"""Words and records that signatures name."""

from __future__ import annotations

from typing import Literal, TypedDict

Model = Literal["f64", "sm90"]
Backend = Literal["auto", "reference", "cpu", "cuda"]
Path = Literal["auto", "dense", "dosa"]
Isa = Literal["auto", "portable", "avx2", "avx512", "avx512bf16", "amx"]
Order = Literal["index", "score"]
IndexBase = Literal["absolute", "window", "slot"]


class RowReports(TypedDict):
    """What happened to each row of a call, as columns. Thresholds are -inf where there was none: JSON has no such number."""

    path: list[str]
    """Path taken: "dense" or "dosa"."""
    reason: list[str]
    """Why this path."""
    retained_heads: list[int]
    """Heads that the certificate computed; the rest was bounded (dense rows: all heads)."""
    aggregates: list[int]
    """Sums of heads that were computed beside them, as one head each."""
    visible: list[int]
    """Keys in the window."""
    survivors: list[int]
    """Keys that the screen could not reject (dense rows: visible)."""
    exact: list[int]
    """Keys scored under the model, bit by bit."""
    seeds: list[int]
    """Winners of earlier rows, distinct and visible here, that gave the first threshold; 0 where no seeds were asked."""
    first_threshold: list[float]
    """Threshold that the seeds alone proved; -inf without seeds."""
    threshold: list[float]
    """Proven lower bound of the K-th score: keys whose upper bound is smaller were rejected; -inf where none was needed."""
    last_score: list[float | None]
    """Exact score of the K-th key; None where it was not needed."""
    predicted: list[float]
    """Keys whose upper bound is below this were dropped in the first pass; -inf where all were kept."""
    rescreened: list[bool]
    """The threshold proved to be below `predicted`, so the row was screened again."""
    dot_products: list[float]
    """q . k products done, in units of one head and one key."""
