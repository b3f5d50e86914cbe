from os import PathLike
from typing import Any

class Memory:
    """Host bytes that a caller keeps between calls (workspace, carry), uninitialised. One call at a time."""

    def __init__(self, nbytes: int) -> None: ...
    @property
    def nbytes(self) -> int: ...

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

class Stats:
    """Counters of one call: plain sums over rows, the same at every thread count except for `seconds`."""

    @property
    def model(self) -> str:
        """The score model whose bits were ranked: "f64" or "sm90"."""
    @property
    def backend(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def rows_dense(self) -> int: ...
    @property
    def rows_dosa(self) -> int: ...
    @property
    def rows_model(self) -> int: ...
    @property
    def rows_rescreened(self) -> int: ...
    @property
    def visible(self) -> int: ...
    @property
    def survivors(self) -> int: ...
    @property
    def exact(self) -> int: ...
    @property
    def dot_products(self) -> float: ...
    @property
    def dense_dot_products(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    def row_reports(self) -> dict[str, list[Any]]:
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
