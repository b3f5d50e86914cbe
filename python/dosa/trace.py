"""Trace files: one captured indexer call each, q, k, k_scale, weights, ks and ke in a safetensors file.

read() and write() go through the library's own checked reader and atomic writer. capture() records calls of a running
model, one file a call.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pathlib
import threading
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy

from . import _core
from ._errors import BadInputError, InputTypeError, IoError, UsageError
from ._interop import int32_rows, integer, metadata_of, path_of, to_host

Array = Any
__all__ = ["Capture", "Trace", "capture", "deep_gemm_arguments", "deep_gemm_paged_arguments", "read", "write"]


@dataclass(frozen=True)
class Trace:
    """One call: q uint8 codes [Q, H, D], k uint8 codes [N, D], k_scale float32 [N], weights float32 [Q, H], ks and ke
    int32 [Q]; read-only arrays over the mapped file. metadata: the file's own words."""

    q: Array
    k: Array
    k_scale: Array
    weights: Array
    ks: Array
    ke: Array
    metadata: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array, Array, Array]:
        """The six arrays in the order of dosa.select's arguments."""
        return self.q, self.k, self.k_scale, self.weights, self.ks, self.ke

    def rows(self, rows: Any) -> Trace:
        """The rows named by an index or a slice; keys are shared."""
        if integer(rows) is not None:
            rows = [rows]
        return Trace(
            self.q[rows], self.k, self.k_scale, self.weights[rows], self.ks[rows], self.ke[rows], self.metadata, self.name
        )


def read(path: str | os.PathLike[str]) -> Trace:
    """Maps a trace file. Raises dosa.IoError or dosa.BadInputError; the message names the tensor."""
    arrays, metadata = _core.read_trace(path_of(path))
    return Trace(**arrays, metadata=metadata, name=os.fspath(path))


def write(
    path: str | os.PathLike[str],
    q: Array,
    k: Array,
    k_scale: Array,
    weights: Array,
    ks: Array | int | None = None,
    ke: Array | int | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a trace file: beside the target first, then renamed, so that no reader sees half of it.

    Arguments as in dosa.select, of any framework and device; keys must be contiguous. Raises dosa.IoError.
    """
    host = [to_host(array) for array in (q, k, k_scale, weights)]
    first, last = (b if b is None or integer(b) is not None else to_host(b) for b in (ks, ke))
    inputs = _core.Inputs(host[0], host[1], host[2], host[3], first, last, None, None, None, None)
    _core.write_trace(path_of(path), inputs, metadata_of(metadata))


def deep_gemm_arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Arguments of a call of DeepGEMM's fp8_mqa_logits(q, (k, k_scale), weights, ks, ke, ...) as a trace wants them."""
    names = ("q", "kv", "weights", "cu_seq_len_k_start", "cu_seq_len_k_end")
    call = dict(zip(names, args)) | kwargs
    k, k_scale = call["kv"]
    return {
        "q": call["q"],
        "k": k,
        "k_scale": k_scale,
        "weights": call["weights"],
        "ks": call["cu_seq_len_k_start"],
        "ke": call["cu_seq_len_k_end"],
    }


def deep_gemm_paged_arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Arguments of a call of DeepGEMM's fp8_paged_mqa_logits(q, kv_cache, weights, context_lens, block_table, ...).

    A trace holds contiguous keys, so each request's visible keys are gathered on the host, one request after the other;
    ks and ke tell them apart. context_lens int32 [B, next_n] says what each row sees; of [B], the last of a request's
    next_n rows sees all, the one before it one key less.
    """
    names = ("q", "kv_cache", "weights", "context_lens", "block_table")
    call = dict(zip(names, args)) | kwargs
    q, cache, weights, table = (to_host(call[name]) for name in ("q", "kv_cache", "weights", "block_table"))
    lengths = to_host(call["context_lens"]).astype(numpy.int64)
    batch, next_n, heads, head_dim = q.shape
    if lengths.ndim == 1:
        lengths = numpy.maximum(lengths[:, None] + numpy.arange(1 - next_n, 1), 0)
    pages, page_size = cache.shape[:2]
    flat = numpy.ascontiguousarray(cache.reshape(pages, -1)).view(numpy.uint8)
    split = page_size * head_dim
    codes: list[Any] = []
    scales: list[Any] = []
    first: list[int] = []
    for request in range(batch):
        longest = int(lengths[request].max(initial=0))
        used = flat[table[request, : -(-longest // page_size)]]
        first.append(sum(len(part) for part in codes))
        codes.append(used[:, :split].reshape(-1, head_dim)[:longest])
        scales.append(numpy.ascontiguousarray(used[:, split : split + 4 * page_size]).view(numpy.float32).reshape(-1)[:longest])
    ks = numpy.repeat(numpy.array(first, numpy.int64), next_n)
    return {
        "q": q.reshape(batch * next_n, heads, head_dim),
        "k": numpy.concatenate(codes) if codes else numpy.empty((0, head_dim), numpy.uint8),
        "k_scale": numpy.concatenate(scales) if scales else numpy.empty(0, numpy.float32),
        "weights": weights,
        "ks": ks.astype(numpy.int32),
        "ke": (ks + lengths.reshape(-1)).astype(numpy.int32),
    }


class Capture:
    """Records calls of wrapped functions into `folder`, one trace file a recorded call. Made by capture()."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        name: str = "call",
        layers: Collection[int] | None = None,
        rows: int | None = None,
        every: int = 1,
        max_bytes: int = 1 << 30,
        seed: int = 0,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        # All of it now: in the model's calls a mistake would only be counted.
        for word, value, least in (("every", every, 1), ("rows", rows, 1), ("max_bytes", max_bytes, 0), ("seed", seed, 0)):
            if word == "rows" and value is None:
                continue
            number = integer(value)
            if number is None or number < least:
                raise UsageError(f"{word}: found {value!r}, wanted an integer of {least} or more")
        if layers is not None and (isinstance(layers, str) or not isinstance(layers, Collection)):
            raise InputTypeError(f"layers: found {layers!r} ({type(layers).__qualname__}), wanted a set of layer numbers")
        if not isinstance(name, str) or path_of(name).name != name:
            raise UsageError(f"name: found {name!r}, wanted a file name's first part, without a folder")
        self.folder = path_of(folder)
        self.name, self.layers, self.sample, self.every = name, layers, rows, every
        self.max_bytes, self.metadata = max_bytes, metadata_of(metadata)
        self.written_bytes = 0
        self.recorded = 0
        self.skipped_full = 0
        self.failed = 0
        self._seed = seed
        self._calls: dict[int | None, int] = {}
        self._lock = threading.Lock()
        self._open = True
        self._undo = contextlib.ExitStack()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise IoError(f"{self.folder}: cannot make the folder: {error.strerror}") from error

    def wrap(
        self,
        function: Callable[..., Any],
        *,
        layer: int | Callable[..., int] | None = None,
        arguments: Callable[..., Mapping[str, Any]] | None = None,
    ) -> Callable[..., Any]:
        """`function`, recording its calls before it runs.

        layer: the layer's number, or a function of the call's arguments. arguments: turns the call's arguments into
        {"q", "k", "k_scale", "weights", "ks", "ke"} (deep_gemm_arguments, say); None: they are called by these names.
        """

        if not callable(function):
            raise InputTypeError(f"function: found {type(function).__qualname__}, wanted something to call")

        @functools.wraps(function)
        def recording(*args: Any, **kwargs: Any) -> Any:
            if self._open:
                self._try_record(layer, arguments, args, kwargs)
            return function(*args, **kwargs)

        return recording

    def patch(self, owner: Any, attribute: str, **how: Any) -> None:
        """Replaces owner.attribute by its recording version until the capture ends. Arguments as in wrap()."""
        original = getattr(owner, attribute, None)
        if not callable(original):
            raise InputTypeError(f"{attribute}: found {type(original).__qualname__} in {owner!r}, wanted something to call")
        was_own = attribute in vars(owner)
        recording: Any = self.wrap(original, **how)
        if isinstance(owner, type) and isinstance(inspect.getattr_static(owner, attribute), (staticmethod, classmethod)):
            recording = staticmethod(recording)  # `original` is bound already, or wants no object
        # What is put back is what was there, a staticmethod and not the function in it.
        kept = vars(owner).get(attribute)
        setattr(owner, attribute, recording)

        def restore() -> None:
            if was_own:
                setattr(owner, attribute, kept)
            else:
                delattr(owner, attribute)

        self._undo.callback(restore)

    def record(self, layer: int | None = None, **arrays: Any) -> pathlib.Path | None:
        """Records one call now (sampling and limits apply); the file's path, or None where it was left out."""
        if not self._open or (self.layers is not None and layer not in self.layers):
            return None
        with self._lock:
            number = self._calls.get(layer, 0)
            self._calls[layer] = number + 1
        if number % self.every != 0:
            return None
        needed = ("q", "k", "k_scale", "weights")
        if not set(arrays) <= {*needed, "ks", "ke"} or any(arrays.get(key) is None for key in needed):
            raise BadInputError(f"record: found {sorted(arrays)}, wanted q, k, k_scale, weights and perhaps ks, ke")
        host = {key: to_host(arrays[key]) for key in needed}
        q, k = host["q"], host["k"]
        if q.ndim != 3 or k.ndim != 2:
            raise BadInputError(f"record: found q {list(q.shape)}, k {list(k.shape)}, wanted [Q, H, D] and [N, D]")
        total = q.shape[0]
        ks = int32_rows(arrays.get("ks"), "ks", total, 0)
        ke = int32_rows(arrays.get("ke"), "ke", total, k.shape[0])
        metadata = self.metadata | {"captured": self.name, "call": str(number), "rows_of_the_call": str(total)}
        if layer is not None:
            metadata["layer"] = str(layer)
        weights = host["weights"]
        if self.sample is not None and total > self.sample:
            random = numpy.random.default_rng([self._seed, number, zlib.crc32(str(layer).encode())])
            kept = numpy.sort(random.choice(total, self.sample, replace=False))
            q, weights, ks, ke = q[kept], weights[kept], ks[kept], ke[kept]
        label = self.name if layer is None else f"{self.name}_l{layer:02d}"
        stem, again = f"{label}_c{number:06d}_{os.getpid()}", 0
        path = self.folder / f"{stem}.safetensors"
        # Another capture of this process counts from 0 too, and so does a restarted one that got the same number.
        while path.exists():
            again += 1
            path = self.folder / f"{stem}-{again}.safetensors"
        # JSON writes a character in six bytes at most; what the file took is counted once it is there.
        words = 1024 + sum(6 * len(key.encode()) + 6 * len(value.encode()) + 8 for key, value in metadata.items())
        nbytes = q.nbytes + k.nbytes + host["k_scale"].nbytes + weights.nbytes + ks.nbytes + ke.nbytes + words
        with self._lock:
            if self.written_bytes + nbytes > self.max_bytes:
                self.skipped_full += 1
                return None
            self.written_bytes += nbytes
        taken = 0
        try:
            write(path, q, k, host["k_scale"], weights, ks, ke, metadata=metadata)
            taken = path.stat().st_size
        finally:
            with self._lock:
                self.written_bytes += taken - nbytes
        with self._lock:
            self.recorded += 1
        return path

    def _try_record(self, layer: Any, arguments: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A model must not fail because somebody watches it; what is lost is counted and said.
        try:
            number = layer(*args, **kwargs) if callable(layer) else layer
            if self.layers is not None and number not in self.layers:
                return
            names = ("q", "k", "k_scale", "weights", "ks", "ke")
            call = arguments(*args, **kwargs) if arguments is not None else dict(zip(names, args)) | kwargs
            self.record(number, **{name: call.get(name) for name in names})
        except Exception as error:  # whatever `layer` and `arguments` of other people raise
            with self._lock:
                self.failed += 1
                first = self.failed == 1
            if first:
                warnings.warn(f"dosa.trace.capture: a call was not recorded: {error}", RuntimeWarning, stacklevel=3)

    def close(self) -> None:
        """Ends recording and puts patched attributes back."""
        self._open = False
        self._undo.close()


@contextlib.contextmanager
def capture(folder: str | os.PathLike[str], **options: Any) -> Iterator[Capture]:
    """Records indexer calls of a running model into `folder` while the context lasts.

        with dosa.trace.capture("traces", name="glm", layers={3, 7}, rows=64, max_bytes=2 << 30) as capture:
            capture.patch(deep_gemm, "fp8_mqa_logits", arguments=dosa.trace.deep_gemm_arguments)
            model.generate(...)

    Args:
        name: first part of the files' names. layers: record these alone. rows: at most so many rows of a call, chosen
        at random (seed). every: of each layer's calls every n-th. max_bytes: stop at so many bytes (counted in
        `skipped_full`). metadata: written into each file.

    Each call becomes a file of its own, written beside its name and renamed, so a killed process leaves whole files
    only (and perhaps one `.tmp-*`). A call that cannot be recorded does not disturb the model: it is counted in
    `failed`, with a warning for the first.
    """
    recorder = Capture(folder, **options)
    try:
        yield recorder
    finally:
        recorder.close()
