"""What a measurement names beside its figures: machine, compiler, commit, load."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return f"unknown: no {command[0]} here"


def cache_entry(build: pathlib.Path, name: str) -> str:
    found = re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    return found[1] if found else ""


def conditions(dosa: pathlib.Path, build: pathlib.Path) -> dict[str, object]:
    compiler = cache_entry(build, "CMAKE_CXX_COMPILER")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
        "commit": output_of("git", "rev-parse", "HEAD"),
        "uncommitted_changes": bool(output_of("git", "status", "--porcelain", "--untracked-files=no")),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "compiler": output_of(compiler, "--version").splitlines()[0],
        "build_type": cache_entry(build, "CMAKE_BUILD_TYPE"),
        "dosa": output_of(str(dosa), "info"),
    }


def named(conditions: dict[str, object]) -> str:
    """The conditions as the first words of a table's text."""
    changed = " with uncommitted changes" if conditions["uncommitted_changes"] else ""
    return f"{conditions['date']}, commit {str(conditions['commit'])[:12]}{changed}, {conditions['compiler']}, {conditions['build_type']}"


def write(report: dict[str, object], text: str, folder: pathlib.Path, kind: str, isa: str) -> pathlib.Path:
    """Writes <kind>-<processor>-<isa>-<date>.json and .md; returns the path without its ending."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{report['processor']} {isa}".lower()).strip("-")
    stem = folder / f"{kind}-{words}-{report['conditions']['date'][:10]}"
    folder.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    return stem
