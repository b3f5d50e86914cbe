#!/usr/bin/env python3
"""The tables of what device_bench and device_check wrote: FILE.json -> FILE.md. Only Python's standard library.

    bench/device_table.py bench/results/hopper_few.json ...
"""

from __future__ import annotations

import json
import pathlib
import sys


def size(value: int) -> str:
    return f"{value / 2**20:.1f} MiB" if value >= 2**17 else f"{value} B"


def timed(report: dict) -> list[str]:
    lines = ["| case | H | D | keys | rows | K | ms, median | ms, p10 to p90 | runs | candidates a row | compactions "
             "| rows streamed again | workspace |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in report["results"]:
        lines.append(
            f"| {r['case']} | {r['heads']} | {r['head_dim']} | {r['keys']:,} | {r['rows']:,} | {r['top_k']:,} "
            f"| {r['ms_median']:.4f} | {r['ms_p10']:.4f} to {r['ms_p90']:.4f} | {r['repeats']} "
            f"| {r['candidates'] / max(r['rows'], 1):,.0f} | {r['compactions']:,} | {r['repeated_rows']:,} "
            f"| {size(r['workspace_bytes'])} |")
    return lines


def compared(report: dict) -> list[str]:
    lines = ["| section | compared | differ | seconds |", "|---|---|---|---|"]
    lines += [f"| {s['name']} | {s['compared']:,} | {s['differ']:,} | {s['seconds']:.1f} |" for s in report["sections"]]
    return lines


def table(report: dict) -> str:
    head = (f"{report['device']}, {report['multiprocessors']} SMs, driver {report['driver']}, runtime {report['runtime']}, "
            f"commit {report['commit']}; {report['conditions']}.")
    return "\n".join([head, "", *(timed(report) if "results" in report else compared(report)), ""])


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip(), file=sys.stdout if len(sys.argv) > 1 else sys.stderr)
        return 0 if len(sys.argv) > 1 else 2
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        path.with_suffix(".md").write_text(table(json.loads(path.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
