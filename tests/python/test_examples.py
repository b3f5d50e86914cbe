from __future__ import annotations

import re
import subprocess
import sys

import pytest

from conftest import SOURCE


def run(path, *words, cwd=None):
    done = subprocess.run([sys.executable, str(path), *words], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_random_arrays():
    out = run(SOURCE / "examples" / "random_arrays.py")
    assert "exact: 8 rows under score model f64: 8 exact" in out


def test_from_trace():
    assert "32 rows over 8192 keys: the same bytes" in run(SOURCE / "examples" / "from_trace.py")


def test_sparse_attention():
    assert "largest difference" in run(SOURCE / "examples" / "sparse_attention.py")


def test_overhead_bench_runs(tmp_path):
    import json

    import dosa

    run(SOURCE / "bench" / "python_overhead.py", "--json", str(tmp_path / "o.json"))
    found = json.loads((tmp_path / "o.json").read_text())
    # Times are for the bench to tell (a machine under load must not turn a test red); size is no question of load.
    # The CUDA backend brings kernels and CUDA's runtime along.
    built = not dosa.info().backends["cuda"][1].startswith("not built")
    assert found["installed_bytes"] < (25e6 if built else 5e6) and len(found["microseconds"]) == 6


def blocks(name):
    text = (SOURCE / name).read_text()
    return [code for kind, code in re.findall(r"^```(\w+)\n(.*?)^```", text, re.S | re.M) if kind == "python"]


@pytest.mark.parametrize("number", range(len(blocks("docs/python.md"))))
def test_blocks_of_the_guide(number, tmp_path):
    code = blocks("docs/python.md")[number]
    missing = [m for m in ("torch", "jax", "cupy") if f"import {m}" in code]
    for module in missing:
        pytest.importorskip(module)
    if ".cuda()" in code:
        pytest.skip("needs a CUDA device")
    # As in the checkout's folder, but what a block writes does not stay there.
    (tmp_path / "data").symlink_to(SOURCE / "data")
    (tmp_path / "block.py").write_text(code)
    run(tmp_path / "block.py", cwd=tmp_path)


def test_blocks_of_the_readme(tmp_path):
    (code,) = blocks("README.md")
    (tmp_path / "block.py").write_text(code)
    assert "exact: 32 rows" in run(tmp_path / "block.py", cwd=SOURCE)
