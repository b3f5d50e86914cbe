"""Selection, scores and merging: what `import dosa` offers to call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from . import _core, _interop
from ._core import Memory, Stats
from ._errors import BadInputError, InputTypeError, UsageError
from ._types import Backend, IndexBase, Isa, Model, Order, Path

Array = Any
"""NumPy, torch, JAX or CuPy array, or any object with the buffer protocol or `__dlpack__`."""


class Selection(NamedTuple):
    """What a call selected. Arrays are of the framework and on the device of q.

    indices: int32 [Q, top_k], -1 past the row's length. lengths: int32 [Q]. scores: float32 [Q, top_k], -inf past the
    length, or None where they were not asked for. stats: counters of the call; `stats.model` names the score model.
    """

    indices: Array
    lengths: Array
    scores: Array | None
    stats: Stats

    @property
    def model(self) -> str:
        """The score model whose bits were ranked: "f64" or "sm90"."""
        return self.stats.model


class Plan:
    """A validated decision for one shape and one set of options: immutable, usable from any thread.

    Made by dosa.plan or dosa.plan_for. A workspace serves one call at a time; a Plan serves any number.
    """

    __slots__ = ("_core", "_scores", "_top_k")

    def __init__(self, core: _core.Plan) -> None:
        self._core = core
        options = core.options
        self._top_k = options.top_k
        self._scores = options.scores

    @property
    def workspace_bytes(self) -> int:
        """Bytes that run() needs beside inputs and outputs."""
        return self._core.workspace_bytes

    @property
    def carry_bytes(self) -> int:
        """Bytes that a caller may keep between calls of this plan; 0 where nothing is carried."""
        return self._core.carry_bytes

    @property
    def why(self) -> str:
        """One sentence: backend, instruction set, threads, and the reason."""
        return self._core.why

    @property
    def options(self) -> _core.Options:
        """The options with nothing left automatic but the path."""
        return self._core.options

    def new_workspace(self, like: Array | None = None) -> Array:
        """Memory for run(workspace=): dosa.Memory on the host; on a device, uint8 in the framework of `like`."""
        return self._memory(self._core.workspace_bytes, like)

    def new_carry(self, like: Array | None = None) -> Array:
        """Memory for run(carry=). Its contents are never trusted: any bytes give the same result."""
        return self._memory(self._core.carry_bytes, like)

    def _memory(self, nbytes: int, like: Array | None) -> Array:
        if not self._core.on_device:
            return Memory(nbytes)
        if like is None:
            raise UsageError("like: found None for a plan on a device, wanted an array of the framework to allocate in")
        return _interop.empty(like, (nbytes,), "uint8", True)

    def run(
        self,
        q: Array,
        k: Array,
        k_scale: Array | None,
        weights: Array,
        ks: Array | int | None = None,
        ke: Array | int | None = None,
        *,
        block_table: Array | None = None,
        row_request: Array | None = None,
        rows_per_request: int | None = None,
        out: Sequence[Array] | None = None,
        workspace: Array | None = None,
        carry: Array | None = None,
        stream: int | None = None,
        row_reports: bool = False,
    ) -> Selection:
        """Computes a selection. Arguments as in dosa.select; shapes must be the plan's.

        Without `workspace` one is allocated for this call. `row_reports=True` fills `stats.row_reports()`.
        """
        work_on = stream
        if self._core.on_device:
            ks, ke = _bounds(q, k, k_scale, block_table, ks, ke)
            work_on = _interop.stream_of(q, stream)
        inputs = _core.Inputs(q, k, k_scale, weights, ks, ke, block_table, row_request, rows_per_request, work_on)
        return self._run(inputs, q, out, workspace, carry, stream, row_reports)

    def _run(
        self,
        inputs: _core.Inputs,
        q: Array,
        out: Sequence[Array] | None,
        workspace: Any,
        carry: Any,
        stream: int | None,
        reports: bool,
    ) -> Selection:
        core = self._core
        on_device = core.on_device
        if on_device and workspace is None:
            workspace = _interop.empty(q, (core.workspace_bytes,), "uint8", True, stream)
        if out is not None:
            indices, lengths, scores = _outputs(out, self._scores)
            stats = core.run(inputs, indices, lengths, scores, workspace, carry, reports)
            return Selection(indices, lengths, scores, stats)
        shape = (core.rows, self._top_k)
        indices = _interop.empty(q, shape, "int32", on_device, stream)
        lengths = _interop.empty(q, shape[:1], "int32", on_device, stream)
        scores = _interop.empty(q, shape, "float32", on_device, stream) if self._scores else None
        if _interop.framework(q) != "jax":
            stats = core.run(inputs, indices, lengths, scores, workspace, carry, reports)
        elif on_device:
            made = [None if array is None else _interop.writable(array) for array in (indices, lengths, scores)]
            stats = core.run(inputs, made[0], made[1], made[2], _interop.writable(workspace), carry, reports)
            _interop.wait_for_default_stream()
        else:
            stats = core.run(inputs, indices, lengths, scores, workspace, carry, reports)
            indices, lengths = _interop.finished(q, indices), _interop.finished(q, lengths)
            scores = None if scores is None else _interop.finished(q, scores)
        return Selection(indices, lengths, scores, stats)

    def __repr__(self) -> str:
        core = self._core
        return (
            f"dosa.Plan(rows={core.rows}, heads={core.heads}, head_dim={core.head_dim}, keys={core.keys}, "
            f"top_k={self._top_k}, model={core.options.model!r}: {core.why})"
        )


def _outputs(out: Sequence[Array], scores: bool) -> tuple[Array, Array, Array | None]:
    wanted = 3 if scores else 2
    if not isinstance(out, (tuple, list)):
        raise InputTypeError(f"out: found {type(out).__qualname__}, wanted a tuple of arrays (indices, lengths, scores)")
    if len(out) == 4 and isinstance(out, Selection):
        out = out[:3]
    if len(out) == 3 and out[2] is None:
        out = out[:2]
    if len(out) != wanted:
        names = "indices, lengths, scores" if scores else "indices, lengths"
        raise BadInputError(f"out: found {len(out)} arrays, wanted {wanted} ({names})")
    return out[0], out[1], out[2] if scores else None


def _bounds(q: Array, k: Array, k_scale: Array | None, block_table: Array | None, ks: Any, ke: Any) -> tuple[Any, Any]:
    """Windows as arrays where q lies on a device (on the host the extension takes None and integers)."""
    first, last = _interop.integer(ks), _interop.integer(ke)
    if not (ks is None or ke is None or first is not None or last is not None) or not _on_device(q):
        return ks, ke
    if k_scale is None:
        keys = int(k.shape[1]) * int(block_table.shape[1]) if block_table is not None else 0
    else:
        keys = int(k.shape[0])
    rows = int(q.shape[0])

    def filled(value: Any, number: int | None, default: int) -> Any:
        if value is not None and number is None:
            return value
        kind = _interop.framework(q)
        value = default if number is None else max(min(number, 2**31 - 1), -(2**31))
        if kind == "torch":
            import torch

            return torch.full((rows,), value, dtype=torch.int32, device=q.device)
        if kind == "cupy":
            import cupy

            return cupy.full((rows,), value, "int32")
        if kind == "jax":
            import jax

            return jax.device_put(jax.numpy.full((rows,), value, "int32"), next(iter(q.devices())))
        return value

    return filled(ks, first, 0), filled(ke, last, keys)


def _on_device(array: Any) -> bool:
    kind = _interop.framework(array)
    if kind == "numpy":
        return False
    if kind == "torch":
        return bool(array.is_cuda)
    if kind == "cupy":
        return True
    device = getattr(array, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in (2, 13)


def select(
    q: Array,
    k: Array,
    k_scale: Array | None,
    weights: Array,
    ks: Array | int | None = None,
    ke: Array | int | None = None,
    *,
    top_k: int,
    order: Order = "index",
    index_base: IndexBase = "absolute",
    return_scores: bool = False,
    model: Model | None = None,
    backend: Backend | None = None,
    path: Path = "auto",
    always_first: int = 0,
    always_last: int = 0,
    block_table: Array | None = None,
    row_request: Array | None = None,
    rows_per_request: int | None = None,
    out: Sequence[Array] | None = None,
    workspace: Array | None = None,
    carry: Array | None = None,
    stream: int | None = None,
    shard: tuple[int, int] | None = None,
    threads: int = 0,
    isa: Isa = "auto",
    retained_heads: int = 0,
) -> Selection:
    """The exact Top-K of every query row, the same bytes on every machine, backend, path and thread count.

    score(t, i) = k_scale[i] * sum over h of weights[t, h] * relu(q[t, h] . k[i]), for max(ks, 0) <= i < min(ke, N).
    A row gets the first min(top_k, selectable keys) of its visible keys: higher score first, equal scores by smaller
    index. A key whose score is NaN is not selectable. docs/contract.md states the whole contract.

    Args:
        q: float8_e4m3fn [Q, H, D], or its codes as uint8. H 1..128; D a multiple of 32 in 32..256.
        k: float8_e4m3fn or uint8 codes [N, D], shared by the heads. Paged keys (k_scale=None): uint8
            [pages, P, 1, D + 4], where a page holds P*D code bytes, then P float32 scales (DeepGEMM's layout).
        k_scale: float32 [N], or None for paged keys.
        weights: float32 [Q, H], signed, with the query scales and every constant factor folded in.
        ks, ke: int32 [Q], or one integer for all rows. None: 0 and N.
        top_k: K >= 1. There is no default.
        order: "index" writes ascending indices, "score" the total order.
        index_base: what indices count from: "absolute", "window" (ks), or "slot" (paged keys: physical slot).
        return_scores: also return float32 scores [Q, K].
        model: "f64" (portable: exact dots, binary64 over the heads) or "sm90" (the bits that DeepGEMM writes on
            Hopper). None: sm90 for CUDA tensors or backend="cuda", else f64. The result names it.
        backend: "auto", "reference", "cpu" or "cuda"; one that is asked for and absent is an error.
        path: "auto", "dense" or "dosa": how the work is done. The result does not change.
        always_first, always_last: so many first and last visible keys rank before all others.
        block_table: int32 [R, pages], physical page of each request's logical page (paged keys).
        row_request: int32 [Q], the request of each row. None: Q / R consecutive rows belong to each request
            (`rows_per_request` states that number and is checked).
        out: (indices, lengths) or (indices, lengths, scores) to write into; any strides, no shared elements, no
            byte of another argument (so for workspace and carry).
        workspace: dosa.Memory or uint8 array of at least plan.workspace_bytes. None: allocated for the call.
        carry: memory kept between calls of successive rows; makes later calls faster and changes no byte.
        stream: CUDA stream handle. None: the current stream of q's framework.
        shard: (first_key, total_keys) where k holds a part of a longer sequence; ks, ke speak of the whole.
        threads: 0 for as many as the process may use, fewer where memory holds no more.
        retained_heads: of the certificate; 0 chosen by measurement.
        isa: "portable", "avx2", "avx512", "avx512bf16" (AVX-512 with bf16 products) or "amx": one that this machine lacks
            is an error, and dosa.info().isas says which and why. "auto": DOSA_ISA from the environment, else the best.

    Returns:
        Selection(indices, lengths, scores, stats), in q's framework and on its device, without copies of inputs.

    Raises:
        dosa.UsageError, dosa.BadInputError (dosa.InputTypeError for dtypes), dosa.NotAvailableError: before anything
        is written. The GIL is released while the library works.
    """
    ks, ke = _bounds(q, k, k_scale, block_table, ks, ke)
    work_on = _interop.stream_of(q, stream)
    inputs = _core.Inputs(q, k, k_scale, weights, ks, ke, block_table, row_request, rows_per_request, work_on)
    options = _core.options(
        top_k, model, backend, path, isa, order, index_base, always_first, always_last, return_scores, threads,
        retained_heads, shard, inputs.on_device,
    )  # fmt: skip
    return Plan(inputs.plan(options))._run(inputs, q, out, workspace, carry, stream, False)


def plan(
    *,
    rows: int,
    heads: int,
    head_dim: int,
    keys: int,
    top_k: int,
    order: Order = "index",
    index_base: IndexBase = "absolute",
    return_scores: bool = False,
    model: Model | None = None,
    backend: Backend | None = None,
    path: Path = "auto",
    always_first: int = 0,
    always_last: int = 0,
    page_size: int = 0,
    pages: int = 0,
    requests: int = 1,
    row_request: bool = False,
    cuda_device: int | None = None,
    shard: tuple[int, int] | None = None,
    threads: int = 0,
    isa: Isa = "auto",
    retained_heads: int = 0,
) -> Plan:
    """Decides backend, instruction set, threads and memory from sizes alone; validates all of it.

    Args:
        rows, heads, head_dim, keys: Q, H, D and N (paged keys: columns of the block table times page_size).
        page_size, pages, requests, row_request: paged keys: P, physical pages, rows of the block table, and whether
            calls name each row's request.
        cuda_device: index of the device that the tensors lie on; None for host memory.
        Other arguments as in dosa.select.

    Raises:
        dosa.UsageError, dosa.BadInputError, dosa.NotAvailableError.
    """
    options = _core.options(
        top_k, model, backend, path, isa, order, index_base, always_first, always_last, return_scores, threads,
        retained_heads, shard, cuda_device is not None,
    )  # fmt: skip
    return Plan(
        _core.plan(rows, heads, head_dim, keys, requests, pages, page_size, row_request, cuda_device, options)
    )


def plan_for(
    q: Array,
    k: Array,
    k_scale: Array | None,
    weights: Array,
    ks: Array | int | None = None,
    ke: Array | int | None = None,
    *,
    top_k: int,
    order: Order = "index",
    index_base: IndexBase = "absolute",
    return_scores: bool = False,
    model: Model | None = None,
    backend: Backend | None = None,
    path: Path = "auto",
    always_first: int = 0,
    always_last: int = 0,
    block_table: Array | None = None,
    row_request: Array | None = None,
    rows_per_request: int | None = None,
    shard: tuple[int, int] | None = None,
    threads: int = 0,
    isa: Isa = "auto",
    retained_heads: int = 0,
) -> Plan:
    """The plan that dosa.select would make for these arrays. Only shapes, dtypes and devices are looked at."""
    ks, ke = _bounds(q, k, k_scale, block_table, ks, ke)
    inputs = _core.Inputs(q, k, k_scale, weights, ks, ke, block_table, row_request, rows_per_request, None)
    options = _core.options(
        top_k, model, backend, path, isa, order, index_base, always_first, always_last, return_scores, threads,
        retained_heads, shard, inputs.on_device,
    )  # fmt: skip
    return Plan(inputs.plan(options))


def scores(
    q: Array,
    k: Array,
    k_scale: Array | None,
    weights: Array,
    ks: Array | int | None = None,
    ke: Array | int | None = None,
    *,
    model: Model | None = None,
    backend: Backend | None = None,
    block_table: Array | None = None,
    row_request: Array | None = None,
    rows_per_request: int | None = None,
    out: Array | None = None,
    stream: int | None = None,
    threads: int = 0,
    isa: Isa = "auto",
) -> Array:
    """All scores, float32 [Q, N], under the model: -inf outside each row's window, NaN as 0x7fffffff.

    Arguments and errors as in dosa.select. With tensors on a device the call waits until the scores are there.
    """
    ks, ke = _bounds(q, k, k_scale, block_table, ks, ke)
    work_on = _interop.stream_of(q, stream)
    inputs = _core.Inputs(q, k, k_scale, weights, ks, ke, block_table, row_request, rows_per_request, work_on)
    options = _core.options(
        1, model, backend, "auto", isa, "index", "absolute", 0, 0, False, threads, 0, None, inputs.on_device
    )
    made = _interop.empty(q, (inputs.rows, inputs.keys), "float32", inputs.on_device, stream) if out is None else out
    if inputs.on_device:
        # Scores of device tensors are computed on the default stream; the library waits for them itself.
        _interop.settle(q, stream)
    inputs.scores(options, _interop.writable(made) if out is None else out)
    if out is not None:
        return out
    return _interop.finished(q, made)


def _arrays_of(parts: Iterable[Any]) -> Iterator[tuple[Array, Array, Array]]:
    for index, part in enumerate(parts):
        if not isinstance(part, (tuple, list)):
            raise InputTypeError(f"part {index}: found {type(part).__qualname__}, wanted (indices, lengths, scores)")
        if isinstance(part, Selection):
            part = part[:3]
        if len(part) != 3 or part[2] is None:
            raise BadInputError(f"part {index}: found no scores, wanted (indices, lengths, scores)")
        yield part


def merge(
    parts: Iterable[Any],
    ks: Array,
    ke: Array,
    *,
    total_keys: int,
    top_k: int,
    order: Order = "index",
    index_base: IndexBase = "absolute",
    return_scores: bool = False,
    always_first: int = 0,
    always_last: int = 0,
    k: Array | None = None,
    block_table: Array | None = None,
    row_request: Array | None = None,
    out: Sequence[Array] | None = None,
) -> Selection:
    """Joins the selections of key shards: forced keys first, then the total order. Host memory.

    Args:
        parts: Selections, or (indices, lengths, scores), of calls with `shard=`, index base absolute, scores on. A
            shard must hold at least min(top_k, its selectable keys) entries, or the result is not the Top-K.
        ks, ke: int32 [Q], of the whole sequence, which has total_keys keys.
        k, block_table, row_request: paged keys, for index_base="slot" alone.
        Other arguments as in dosa.select.

    Raises:
        dosa.BadInputError for shapes that disagree, indices outside the window and duplicates.
    """
    if isinstance(parts, Selection) or not isinstance(parts, Iterable):
        raise InputTypeError(f"parts: found {type(parts).__qualname__}, wanted a list of Selections")
    collected = list(parts)
    models = sorted({part.stats.model for part in collected if isinstance(part, Selection)})
    if len(models) > 1:
        raise BadInputError(f"parts: found score models {' and '.join(models)}, wanted one")
    options = _core.options(
        top_k, models[0] if models else None, None, "auto", "auto", order, index_base, always_first, always_last,
        return_scores, 0, 0, None, False,
    )  # fmt: skip
    if k is None and (block_table is not None or row_request is not None):
        raise BadInputError("block_table, row_request: found without k, wanted the paged keys that they belong to")
    if out is None:
        bounds = None if ks is None or _interop.integer(ks) is not None else _interop.to_host(ks)
        if bounds is None or bounds.ndim != 1:
            raise InputTypeError(f"ks: found {type(ks).__qualname__}, wanted int32 [Q]")
        shape = len(bounds), max(options.top_k, 0)
        indices = _interop.empty(None, shape, "int32", False)
        lengths = _interop.empty(None, shape[:1], "int32", False)
        found = _interop.empty(None, shape, "float32", False) if options.scores else None
    else:
        indices, lengths, found = _outputs(out, options.scores)
    stats = _core.merge(
        list(_arrays_of(collected)), ks, ke, total_keys, options, indices, lengths, found, k, block_table, row_request
    )
    return Selection(indices, lengths, found, stats)
