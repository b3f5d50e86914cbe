#!/usr/bin/env python3
"""What a call from Python costs beside the work: empty problems, import, the wheel.

    bench/python_overhead.py [--json FILE]     with an installed dosa

Call overhead: medians over 20,000 calls of an empty problem (no rows) and of one row over 64 keys. Import: the least of
seven fresh processes, in seconds inside the process.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time


def median_us(call, laps: int = 20000) -> float:
    for _ in range(200):
        call()
    taken = []
    for _ in range(laps):
        start = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - start)
    return statistics.median(taken) / 1e3


def import_seconds() -> dict[str, float]:
    found = {}
    for name, before in (("dosa", ""), ("numpy", ""), ("dosa after numpy", "import numpy; ")):
        module = name.split()[0]
        code = f"{before}import time; s = time.perf_counter(); import {module}; print(time.perf_counter() - s)"
        found[name] = min(
            float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout) for _ in range(7)
        )
    return found


def main() -> None:
    import numpy as np

    import dosa

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()

    def arrays(rows: int, keys: int):
        return (
            np.full((rows, 32, 128), 0x38, np.uint8), np.full((keys, 128), 0x38, np.uint8), np.ones(keys, np.float32),
            np.ones((rows, 32), np.float32), np.zeros(rows, np.int32), np.full(rows, keys, np.int32),
        )  # fmt: skip

    try:
        here = pathlib.Path(__file__).parent
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=here).stdout.strip()
    except FileNotFoundError:
        commit = "unknown: no git here"
    results: dict[str, object] = {
        "dosa": dosa.__version__, "commit": commit, "processor": dosa.info().processor, "isa": dosa.info().isa,
        "threads": dosa.info().threads, "python": sys.version.split()[0], "numpy": np.__version__, "load": os.getloadavg(),
    }  # fmt: skip
    calls = {}
    for label, rows, keys in (("empty", 0, 64), ("one row, 64 keys", 1, 64)):
        call = arrays(rows, keys)
        plan = dosa.plan_for(*call, top_k=16)
        workspace = plan.new_workspace()
        out = np.empty((rows, 16), np.int32), np.empty(rows, np.int32)
        calls[f"{label}: plan.run, own workspace and outputs"] = median_us(lambda: plan.run(*call, out=out, workspace=workspace))
        calls[f"{label}: plan.run, own workspace"] = median_us(lambda: plan.run(*call, workspace=workspace))
        calls[f"{label}: dosa.select"] = median_us(lambda: dosa.select(*call, top_k=16), 2000)
    results["microseconds"] = calls
    results["import_seconds"] = import_seconds()
    folder = pathlib.Path(dosa.__file__).parent
    results["installed_bytes"] = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    for label, value in calls.items():
        print(f"{label:55} {value:8.2f} us")
    for label, value in results["import_seconds"].items():
        print(f"import {label:48} {1e3 * value:8.1f} ms")
    print(f"{'installed package':55} {results['installed_bytes'] / 1e6:8.2f} MB")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
