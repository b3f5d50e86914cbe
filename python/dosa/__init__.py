"""dosa: the exact Top-K of DeepSeek Sparse Attention's lightning indexer, fast and the same bytes everywhere.

    selection = dosa.select(q, k, k_scale, weights, ks, ke, top_k=2048)
    selection.indices, selection.lengths

docs/python.md is the guide, docs/contract.md the contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ._core import DeviceCounters, Memory, Stats
from ._errors import (
    BadInputError,
    Error,
    InputTypeError,
    InternalError,
    IoError,
    NotAvailableError,
    UsageError,
)
from ._select import Plan, Selection, merge, plan, plan_for, scores, select
from ._types import RowReports

if TYPE_CHECKING:
    from . import trace
    from ._judge import Verdict, judge
    from ._quantize import decode, fold_weights, hadamard, quantize

__all__ = [
    "BadInputError",
    "DeviceCounters",
    "Error",
    "Info",
    "InputTypeError",
    "InternalError",
    "IoError",
    "Memory",
    "NotAvailableError",
    "Plan",
    "RowReports",
    "Selection",
    "Stats",
    "UsageError",
    "Verdict",
    "__version__",
    "decode",
    "fold_weights",
    "hadamard",
    "info",
    "judge",
    "merge",
    "plan",
    "plan_for",
    "quantize",
    "register_torch_op",
    "scores",
    "select",
    "trace",
]


class Info(NamedTuple):
    """What this build and this machine offer. backends, isas: word -> (available, why)."""

    version: str
    processor: str
    threads: int
    backends: dict[str, tuple[bool, str]]
    isas: dict[str, tuple[bool, str]]
    isa: str
    isa_why: str


def info() -> Info:
    """What this build and this machine offer, and which instruction set a call takes."""
    from ._core import info as words

    return Info(**words())


def register_torch_op() -> Any:
    """Registers `torch.ops.dosa.select` (torch.compile and CUDA graphs work with it) and returns it.

    Needs torch >= 2.4. Nothing else in dosa imports torch.
    """
    from ._torch import register

    return register()


_LAZY = {
    "Verdict": "._judge",
    "judge": "._judge",
    "decode": "._quantize",
    "fold_weights": "._quantize",
    "hadamard": "._quantize",
    "quantize": "._quantize",
}


def __getattr__(name: str) -> Any:
    # Lazy: these need NumPy, and `import dosa` must stay cheap.
    import importlib

    if name == "__version__":
        value: Any = info().version
    elif name == "trace":
        value = importlib.import_module(".trace", __name__)
    elif name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name], __name__), name)
    else:
        raise AttributeError(f"module 'dosa' has no attribute {name!r}")
    globals()[name] = value
    return value
