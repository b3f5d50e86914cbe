"""torch.ops.dosa.select: dosa.select as a torch operator with a fake kernel. Imports torch; nothing else in dosa does."""

from __future__ import annotations

from typing import Any

from ._errors import NotAvailableError
from ._select import select

# torch 2.11 refuses tensors that can only be named, so those two may also stand in place.
_SCHEMA = (
    "(Tensor q, Tensor k, Tensor? k_scale, Tensor weights, Tensor? ks, Tensor? ke, int top_k, "
    "Tensor? block_table=None, Tensor? row_request=None, *, str order='index', str index_base='absolute', "
    "str? model=None, str? backend=None, str path='auto', int always_first=0, int always_last=0) "
    "-> (Tensor, Tensor, Tensor)"
)
_registered: Any = None


def _run(
    q: Any, k: Any, k_scale: Any, weights: Any, ks: Any, ke: Any, top_k: int,
    block_table: Any = None, row_request: Any = None, **options: Any,
) -> Any:
    options |= {"block_table": block_table, "row_request": row_request}
    return tuple(select(q, k, k_scale, weights, ks, ke, top_k=top_k, return_scores=True, **options)[:3])


def _fake(
    q: Any, k: Any, k_scale: Any, weights: Any, ks: Any, ke: Any, top_k: int,
    block_table: Any = None, row_request: Any = None, **options: Any,
) -> Any:
    import torch

    rows = q.shape[0]
    return (
        q.new_empty((rows, top_k), dtype=torch.int32),
        q.new_empty((rows,), dtype=torch.int32),
        q.new_empty((rows, top_k), dtype=torch.float32),
    )


def register() -> Any:
    """Registers the operator once; returns torch.ops.dosa.select -> (indices, lengths, scores)."""
    global _registered
    if _registered is None:
        try:
            import torch
        except ImportError as error:
            raise NotAvailableError("torch operator: found no torch, wanted torch 2.4 or newer") from error
        if not hasattr(torch.library, "custom_op"):
            raise NotAvailableError(f"torch operator: found torch {torch.__version__}, wanted 2.4 or newer")
        operator = torch.library.custom_op("dosa::select", _run, mutates_args=(), schema=_SCHEMA)
        operator.register_fake(_fake)
        _registered = torch.ops.dosa.select
    return _registered
