#!/usr/bin/env python3
"""Runs what a Markdown file tells its reader to type, and compares what it shows with what comes out.

A fenced block of sh, console or cpp is preceded by one of two comments:
    <!-- check -->               it is run; see below
    <!-- not checked: REASON --> it is not
A block with neither is an error, and so is a file in which nothing is checked.

    sh       all lines run as one bash script; it must succeed
    console  lines that start with "$ " run; the lines after each are its output
    cpp      compiled with the flags given and run; a text block that follows directly is its output

Expected output is compared line by line. A line "..." stands for any number of lines, and "…" inside a line for any text
(times, sizes and names of a machine). Runs of spaces count as one, so a wildcard may change a column's width.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass

RUNNABLE = {"sh", "bash", "console", "cpp", "c++"}
FENCE = re.compile(r"^```([\w+-]*)\s*$")
MARKER = re.compile(r"^<!--\s*(check|not checked:\s*\S.*?)\s*-->$")


@dataclass
class Block:
    language: str
    line: int
    text: str
    marker: str | None


class Failure(Exception):
    pass


def blocks_of(text: str) -> list[Block]:
    found, marker, inside = [], None, None
    for number, line in enumerate(text.splitlines(), 1):
        if inside is not None:
            if line.rstrip() == "```":
                found.append(Block(inside[0], inside[1], "\n".join(inside[2]), marker))
                inside = marker = None
            else:
                inside[2].append(line)
            continue
        if fence := FENCE.match(line):
            inside = (fence[1], number, [])
        elif match := MARKER.match(line.strip()):
            marker = match[1]
        elif line.strip():
            marker = None
    if inside is not None:
        raise Failure(f"line {inside[1]}: the fence is never closed")
    return found


def line_matches(wanted: str, found: str) -> bool:
    parts = (r"\s+".join(map(re.escape, part.split())) for part in re.sub(r"\s*…\s*", "…", wanted.strip()).split("…"))
    return re.fullmatch(r"\s*.*?\s*".join(parts), found.strip()) is not None


def lines_match(wanted: list[str], found: list[str]) -> bool:
    if not wanted:
        return not found
    if wanted[0].strip() == "...":
        return any(lines_match(wanted[1:], found[skip:]) for skip in range(len(found) + 1))
    return bool(found) and line_matches(wanted[0], found[0]) and lines_match(wanted[1:], found[1:])


def compare(what: str, wanted: str, found: str) -> None:
    if not lines_match(wanted.rstrip().splitlines(), found.rstrip().splitlines()):
        raise Failure(f"{what}: output differs\n--- the file shows\n{wanted}\n--- what came out\n{found.rstrip()}")


class Runner:
    def __init__(self, folder: pathlib.Path, bin_folder: pathlib.Path, compile_command: list[str]):
        self.folder, self.compile_command = folder, compile_command
        self.environment = dict(os.environ, PATH=f"{bin_folder}{os.pathsep}{os.environ['PATH']}")

    def run(self, what: str, command: list[str], merge_errors: bool = True) -> str:
        done = subprocess.run(command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT if merge_errors else None, check=False)
        if done.returncode != 0:
            raise Failure(f"{what}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout

    def shell(self, what: str, script: str) -> str:
        return self.run(what, ["bash", "-euo", "pipefail", "-c", script])

    def console(self, what: str, text: str) -> None:
        command, wanted = None, []
        for line in [*text.splitlines(), "$ "]:
            if not line.startswith("$ "):
                wanted.append(line)
                continue
            if command is not None:
                compare(f"{what}: {command}", "\n".join(wanted), self.shell(f"{what}: {command}", command))
            elif wanted:
                raise Failure(f"{what}: output before the first command")
            command, wanted = line[2:], []

    def program(self, what: str, source: str, wanted: str | None) -> None:
        (self.folder / "example.cpp").write_text(source + "\n")
        self.run(f"{what}: compile", [*self.compile_command[:1], "example.cpp", "-o", "example", *self.compile_command[1:]])
        found = self.run(f"{what}: run", ["./example"])
        if wanted is not None:
            compare(what, wanted, found)


def check_file(path: pathlib.Path, runner: Runner) -> int:
    blocks, checked = blocks_of(path.read_text()), 0
    for block, after in zip(blocks, [*blocks[1:], None]):
        what = f"{path.name}:{block.line}"
        if block.language not in RUNNABLE:
            continue
        if block.marker is None:
            raise Failure(f"{what}: say <!-- check --> or <!-- not checked: why --> before it")
        if block.marker != "check":
            continue
        if block.language == "console":
            runner.console(what, block.text)
        elif block.language in ("cpp", "c++"):
            runner.program(what, block.text, after.text if after is not None and after.language == "text" else None)
        else:
            runner.shell(what, block.text)
        checked += 1
        print(f"{what}: {block.language} ok")
    return checked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=pathlib.Path, required=True, help="the checkout")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of the dosa command")
    parser.add_argument("--compile", required=True, help="compiler and flags for cpp blocks")
    parser.add_argument("files", nargs="+", help="Markdown files, relative to the checkout")
    arguments = parser.parse_args()
    source = arguments.source.resolve()
    checked = 0
    try:
        for name in arguments.files:
            with tempfile.TemporaryDirectory() as folder:
                # The reader stands in the checkout; what the commands write must not stay there.
                for entry in source.iterdir():
                    if entry.name not in (".git", "build"):
                        (pathlib.Path(folder) / entry.name).symlink_to(entry)
                (pathlib.Path(folder) / "build" / "release").mkdir(parents=True)
                (pathlib.Path(folder) / "build" / "release" / "bin").symlink_to(arguments.bin.resolve())
                checked += check_file(source / name,
                                      Runner(pathlib.Path(folder), arguments.bin.resolve(), shlex.split(arguments.compile)))
    except Failure as failure:
        print(f"readme_check: {failure}", file=sys.stderr)
        return 1
    if checked == 0:
        print("readme_check: nothing is marked for checking", file=sys.stderr)
        return 1
    print(f"readme_check: {checked} blocks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
