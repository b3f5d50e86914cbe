from os import PathLike
from typing import Any

from ._types import RowReports

class Memory:
    """Host bytes that a caller keeps between calls (workspace, carry), uninitialised. One call at a time."""

    def __init__(self, nbytes: int) -> None: ...
    @property
    def nbytes(self) -> int:
        """Size in bytes."""

class Options:
    @property
    def top_k(self) -> int: ...
    @property
    def model(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def order(self) -> str: ...
    @property
    def index_base(self) -> str: ...
    @property
    def always_first(self) -> int: ...
    @property
    def always_last(self) -> int: ...
    @property
    def scores(self) -> bool: ...
    @property
    def threads(self) -> int: ...
    @property
    def retained_heads(self) -> int: ...

class Inputs:
    def __init__(
        self,
        q: Any,
        k: Any,
        k_scale: Any | None,
        weights: Any,
        ks: Any | None,
        ke: Any | None,
        block_table: Any | None,
        row_request: Any | None,
        rows_per_request: int | None,
        stream: int | None,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def keys(self) -> int: ...
    @property
    def on_device(self) -> bool: ...
    def plan(self, options: Options) -> Plan: ...
    def scores(self, options: Options, out: Any) -> None: ...

class Plan:
    @property
    def options(self) -> Options: ...
    @property
    def rows(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def keys(self) -> int: ...
    @property
    def on_device(self) -> bool: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def carry_bytes(self) -> int: ...
    @property
    def why(self) -> str: ...
    def run(
        self,
        inputs: Inputs,
        indices: Any,
        lengths: Any,
        scores: Any | None,
        workspace: Any | None,
        carry: Any | None,
        reports: bool,
    ) -> Stats: ...

class DeviceCounters:
    """What the CUDA backend counted in one call over arrays in host memory."""

    @property
    def candidates(self) -> int:
        """(row, key) pairs that reached a candidate buffer."""
    @property
    def compactions(self) -> int:
        """Candidate buffers cut back to the best K because they were full."""
    @property
    def repeats(self) -> int:
        """Rows streamed again because a predicted threshold was too high."""
    @property
    def sampled_rows(self) -> int:
        """Rows whose first threshold came from a sample of their keys."""
    @property
    def stages_tma(self) -> int:
        """Key stages that the tensor copy engine brought."""
    @property
    def stages_plain(self) -> int:
        """Key stages that ordinary copies brought."""
    @property
    def status(self) -> int:
        """Bit 0: a row_request out of range (an empty row); bit 1: a visible page out of range."""

class Stats:
    """Counters of one call: plain sums over rows, the same at every thread count that memory has room for,
    except for `seconds`.

    A call over arrays on a device is queued and reads nothing back: of its counters only `rows` is set.
    """

    @property
    def model(self) -> str:
        """The score model whose bits were ranked: "f64" or "sm90"."""
    @property
    def backend(self) -> str:
        """Who computed: "reference", "cpu" or "cuda"."""
    @property
    def rows(self) -> int:
        """Q."""
    @property
    def rows_dense(self) -> int:
        """Rows whose keys were all screened with all heads."""
    @property
    def rows_dosa(self) -> int:
        """Rows whose keys were screened with the certificate's bound."""
    @property
    def rows_model(self) -> int:
        """Rows whose keys were all scored under the model, one by one: those of the CPU backend whose constants are not
        finite, and every row of the reference and of CUDA over arrays in host memory."""
    @property
    def rows_rescreened(self) -> int:
        """Rows that were screened again because their predicted threshold was too high."""
    @property
    def visible(self) -> int:
        """Keys in the windows."""
    @property
    def survivors(self) -> int:
        """Keys that the screen could not reject (dense rows: all that are visible)."""
    @property
    def exact(self) -> int:
        """Keys scored under the model, bit by bit."""
    @property
    def dot_products(self) -> float:
        """q . k products done, in units of one head and one key."""
    @property
    def dense_dot_products(self) -> float:
        """What all heads of all visible keys would take."""
    @property
    def seconds(self) -> float:
        """Wall time of the call in the library."""
    @property
    def device(self) -> DeviceCounters | None:
        """What the CUDA backend counted over arrays in host memory; None for every other call."""
    def row_reports(self) -> RowReports:
        """What happened to each row, as columns; empty lists unless Plan.run(row_reports=True)."""

def options(
    top_k: int,
    model: str | None,
    backend: str | None,
    path: str,
    isa: str,
    order: str,
    index_base: str,
    always_first: int,
    always_last: int,
    scores: bool,
    threads: int,
    retained_heads: int,
    shard: tuple[int, int] | None,
    on_device: bool,
) -> Options: ...
def plan(
    rows: int,
    heads: int,
    head_dim: int,
    keys: int,
    requests: int,
    pages: int,
    page_size: int,
    row_request: bool,
    cuda_device: int | None,
    options: Options,
) -> Plan: ...
def merge(
    parts: list[tuple[Any, Any, Any]],
    ks: Any,
    ke: Any,
    total_keys: int,
    options: Options,
    indices: Any,
    lengths: Any,
    scores: Any | None,
    k: Any | None,
    block_table: Any | None,
    row_request: Any | None,
) -> Stats: ...
def info() -> dict[str, Any]: ...
def read_trace(path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, str]]: ...
def write_trace(path: str | PathLike[str], inputs: Inputs, metadata: dict[str, str]) -> None: ...
def bounds(
    inputs: Inputs, row: int, top_k: int, retained_heads: int, model: str, seed: int
) -> tuple[Any, int, int, bool]: ...
