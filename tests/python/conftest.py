from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]


class Call:
    """Random inputs of one call, all on the host."""

    def __init__(self, rows=6, keys=200, heads=8, head_dim=64, seed=0, nan=False):
        random = np.random.default_rng(seed)
        self.q = random.integers(0, 256, (rows, heads, head_dim), dtype=np.uint8)
        self.k = random.integers(0, 256, (keys, head_dim), dtype=np.uint8)
        if not nan:
            self.q[(self.q & 0x7F) == 0x7F] = 0x30
            self.k[(self.k & 0x7F) == 0x7F] = 0x30
        self.k_scale = random.uniform(0.001, 0.1, keys).astype(np.float32)
        self.weights = random.normal(size=(rows, heads)).astype(np.float32)
        self.ks = random.integers(0, keys // 4 + 1, rows, dtype=np.int32)
        self.ke = random.integers(keys // 2, keys + 1, rows, dtype=np.int32)

    @property
    def arrays(self):
        return self.q, self.k, self.k_scale, self.weights, self.ks, self.ke


@pytest.fixture
def call():
    return Call


@pytest.fixture(scope="session")
def sample_trace():
    return SOURCE / "data" / "sample_en_l03_h32.safetensors"


@pytest.fixture(scope="session")
def shared_traces():
    folder = pathlib.Path(os.environ.get("DOSA_SHARED", SOURCE.parent / "shared")) / "traces"
    if not folder.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"no {folder}: set DOSA_SHARED")
        pytest.skip(f"no {folder}: set DOSA_SHARED")
    return folder


def pytest_collection_modifyitems(config, items):
    if "device" in (config.getoption("-m") or ""):
        return
    skip = pytest.mark.skip(reason="needs a CUDA device: pytest -m device")
    for item in items:
        if "device" in item.keywords:
            item.add_marker(skip)
