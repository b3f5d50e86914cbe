#!/usr/bin/env python3
"""dosa against what a NumPy user would write, on trace files, in one run and with the same threads.

NumPy, row by row in float32: matmul (heads x keys of the window), maximum with 0, weighted sum over the heads, scale,
argpartition for the K largest. Decoding E4M3 and loading are left out on both sides. dosa: the complete calls of
`dosa bench`. The two take turns for some rounds; times are medians over the rounds, per row.

NumPy's selection is not exact (float32 sums in another order than the contract's): how many of its rows agree with
dosa's as sets is part of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def restart_with_threads(threads: int) -> None:
    """BLAS reads its environment when it is loaded, so it has to be right before NumPy is imported."""
    wanted = dict(os.environ) | dict.fromkeys(THREAD_VARIABLES, str(threads))
    # A machine's profile may pin OpenBLAS to an older kernel; the two belong together. NumPy gets the real one.
    wanted.pop("OPENBLAS_CORETYPE", None)
    wanted.pop("OPENBLAS_L2_SIZE", None)
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], wanted)


def blas_in_use() -> list[dict[str, object]]:
    try:
        import threadpoolctl
    except ImportError:
        return []
    keys = ("internal_api", "version", "architecture", "num_threads")
    return [{key: info.get(key) for key in keys} for info in threadpoolctl.threadpool_info() if info.get("user_api") == "blas"]


class NumpyIndexer:
    def __init__(self, path: pathlib.Path, top_k: int):
        import numpy
        from safetensors_file import e4m3_values, load

        self.numpy, self.top_k = numpy, top_k
        trace = load(path)
        values = e4m3_values()
        self.q, self.scales, self.weights = values[trace["q"]], trace["k_scale"], trace["weights"]
        # Keys by column: the layout that suits matmul best here, chosen in NumPy's favour.
        self.keys = numpy.ascontiguousarray(values[trace["k"]].T)
        self.windows = [(max(int(first), 0), min(int(last), self.keys.shape[1]))
                        for first, last in zip(trace["ks"], trace["ke"])]
        self.rows, self.heads, self.head_dim = self.q.shape
        self.buffer = numpy.empty((self.heads, self.keys.shape[1]), numpy.float32)

    def select(self, row: int):
        numpy = self.numpy
        first, last = self.windows[row]
        dots = self.buffer[:, : last - first]
        numpy.matmul(self.q[row], self.keys[:, first:last], out=dots)
        numpy.maximum(dots, 0, out=dots)
        scores = (self.weights[row] @ dots) * self.scales[first:last]
        if last - first <= self.top_k:
            return numpy.arange(first, last)
        return first + numpy.argpartition(scores, last - first - self.top_k)[last - first - self.top_k :]

    def seconds(self) -> float:
        start = time.perf_counter()
        for row in range(self.rows):
            self.select(row)
        return time.perf_counter() - start


def run_dosa(dosa: pathlib.Path, path: pathlib.Path, top_k: int, threads: int, folder: pathlib.Path) -> dict[str, object]:
    report = folder / "bench.json"
    subprocess.run([dosa, "bench", path, "--top-k", str(top_k), "--threads", str(threads), "--json", report],
                   check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return json.loads(report.read_text())


def agreeing_rows(dosa: pathlib.Path, path: pathlib.Path, indexer: NumpyIndexer, threads: int, folder: pathlib.Path) -> int:
    from safetensors_file import load

    selection = folder / "selection.safetensors"
    subprocess.run([dosa, "select", path, "--top-k", str(indexer.top_k), "--threads", str(threads), "--out", selection],
                   check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    found = load(selection)
    return sum(set(found["indices"][row][: found["lengths"][row]].tolist()) == set(indexer.select(row).tolist())
               for row in range(indexer.rows))


def compare(arguments: argparse.Namespace, path: pathlib.Path, folder: pathlib.Path) -> dict[str, object]:
    indexer = NumpyIndexer(path, arguments.top_k)
    indexer.select(0)
    numpy_seconds, dosa_seconds, benches = [], {}, []
    for _ in range(arguments.rounds):
        numpy_seconds.append(indexer.seconds())
        benches.append(run_dosa(arguments.dosa, path, arguments.top_k, arguments.threads, folder))
        for name, seconds in path_seconds(benches[-1]).items():
            dosa_seconds.setdefault(name, []).append(seconds)
    numpy_row = statistics.median(numpy_seconds) / indexer.rows
    dosa_row = {name: statistics.median(seconds) / indexer.rows for name, seconds in dosa_seconds.items()}
    return {
        "file": path.name, "rows": indexer.rows, "keys": indexer.keys.shape[1], "heads": indexer.heads,
        "head_dim": indexer.head_dim, "top_k": arguments.top_k, "isa": benches[-1]["isa"],
        "numpy_seconds_per_row": numpy_row, "numpy_seconds_spread": [min(numpy_seconds), max(numpy_seconds)],
        "dosa_seconds_per_row": dosa_row, "speedup": {name: numpy_row / seconds for name, seconds in dosa_row.items()},
        "numpy_rows_with_the_exact_set": agreeing_rows(arguments.dosa, path, indexer, arguments.threads, folder),
    }


def path_seconds(bench: dict[str, object]) -> dict[str, float]:
    """Seconds of a complete call for each path of the CPU backend in `dosa bench --json`."""
    return {name: entry["median"] for name, entry in bench["seconds"].items() if name != "reference"}


def main() -> None:
    shared = pathlib.Path(os.environ.get("DOSA_SHARED", pathlib.Path(__file__).resolve().parents[2] / "shared"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="traces (default: all 64K traces of $DOSA_SHARED/traces)")
    parser.add_argument("--dosa", type=pathlib.Path, default=pathlib.Path("build/release/bin/dosa"))
    parser.add_argument("--top-k", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    restart_with_threads(arguments.threads)

    import numpy

    files = arguments.files or sorted(path for path in (shared / "traces").glob("*.safetensors") if "tiny" not in path.name)
    if not files:
        parser.error(f"no traces in {shared / 'traces'}: set DOSA_SHARED or name files")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for path in files:
            results.append(compare(arguments, path, pathlib.Path(folder)))
            row = results[-1]
            times = "  ".join(f"{name} {1e3 * seconds:.3f} ms ({row['speedup'][name]:.1f}x)"
                              for name, seconds in row["dosa_seconds_per_row"].items())
            print(f"{row['file']:32} H={row['heads']:<3} numpy {1e3 * row['numpy_seconds_per_row']:.3f} ms  {times}  "
                  f"NumPy's sets exact: {row['numpy_rows_with_the_exact_set']}/{row['rows']}", flush=True)
    summary = {"numpy": numpy.__version__, "blas": blas_in_use(), "threads": arguments.threads, "results": results}
    print(f"NumPy {numpy.__version__}, {summary['blas']}, {arguments.threads} threads, K = {arguments.top_k}, times per row")
    if arguments.json:
        arguments.json.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
