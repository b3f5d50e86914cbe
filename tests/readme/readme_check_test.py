#!/usr/bin/env python3
"""The checker must notice: each sample is a Markdown text and whether it holds."""

import pathlib
import subprocess
import sys
import tempfile

CHECKER = pathlib.Path(__file__).with_name("readme_check.py")
SAMPLES = {
    "true output": ("<!-- check -->\n```console\n$ printf 'a  1\\nb 22\\n'\na 1\nb …\n```\n", True),
    "lines left out": ("<!-- check -->\n```console\n$ seq 9\n1\n...\n9\n```\n", True),
    "other output": ("<!-- check -->\n```console\n$ echo a\nb\n```\n", False),
    "output that is missing": ("<!-- check -->\n```console\n$ true\nb\n```\n", False),
    "output that is extra": ("<!-- check -->\n```console\n$ echo a; echo b\na\n```\n", False),
    "second command differs": ("<!-- check -->\n```console\n$ echo a\na\n$ echo b\nc\n```\n", False),
    "command that fails": ("<!-- check -->\n```sh\nfalse\ntrue\n```\n", False),
    "block without a marker": ("<!-- check -->\n```sh\ntrue\n```\n\n```sh\ntrue\n```\n", False),
    "block left out with a reason": ("<!-- check -->\n```sh\ntrue\n```\n<!-- not checked: slow -->\n```sh\nfalse\n```\n", True),
    "nothing checked": ("words\n", False),
    "open fence": ("<!-- check -->\n```sh\ntrue\n", False),
    "program": ('<!-- check -->\n```cpp\n#include <cstdio>\nint main() { std::puts("a"); }\n```\ngives\n```text\na\n```\n', True),
    "program with other output": ('<!-- check -->\n```cpp\n#include <cstdio>\nint main() { std::puts("a"); }\n```\n```text\nb\n```\n',
                                  False),
    "program that does not compile": ("<!-- check -->\n```cpp\nint main() { return x; }\n```\n", False),
}

wrong = 0
for title, (text, holds) in SAMPLES.items():
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "sample.md").write_text(text)
        done = subprocess.run([sys.executable, CHECKER, "--source", folder, "--bin", folder, "--compile", "c++ -O0", "sample.md"],
                              capture_output=True, text=True, check=False)
    if (done.returncode == 0) != holds:
        wrong += 1
        print(f"{title}: wanted {'success' if holds else 'failure'}, got exit code {done.returncode}\n{done.stdout}{done.stderr}")
print(f"{len(SAMPLES) - wrong} passed, {wrong} failed")
sys.exit(wrong > 0)
