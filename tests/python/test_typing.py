"""The stubs say what the extension has, and the package and its users type-check."""

from __future__ import annotations

import ast
import os
import pathlib
import subprocess
import sys

import pytest

import dosa
from conftest import SOURCE

pytest.importorskip("mypy")
PACKAGE = pathlib.Path(dosa.__file__).parent


def mypy(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "MYPY_CACHE_DIR": str(PACKAGE.parent / ".mypy_cache")},
    )


def signatures(body):
    """name -> argument names, of the functions and classes of a stub."""
    found = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = signatures(node.body)
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = [argument.arg for argument in node.args.args]
    return found


def runtime(owner):
    found = {}
    for name in dir(owner):
        value = getattr(owner, name)
        if name.startswith("__") and not (name == "__init__" and hasattr(value, "__nb_signature__")):
            continue
        if isinstance(value, type):
            found[name] = runtime(value)
        elif hasattr(value, "__nb_signature__"):
            node = ast.parse(value.__nb_signature__[0][0].replace("std::", "") + ": ...").body[0]
            found[name] = [argument.arg for argument in node.args.args]
        elif isinstance(value, property):
            found[name] = ["self"]
    return found


def test_stub_and_extension_agree():
    from dosa import _core

    stub = signatures(ast.parse((PACKAGE / "_core.pyi").read_text()).body)
    assert runtime(_core) == stub


USER = """
import numpy as np
import dosa

q = np.zeros((2, 4, 32), np.uint8)
k = np.zeros((9, 32), np.uint8)
plan = dosa.plan(rows=2, heads=4, head_dim=32, keys=9, top_k=3, order="score")
selection = plan.run(q, k, np.ones(9, np.float32), np.ones((2, 4), np.float32))
model: str = selection.model
seconds: float = selection.stats.seconds
indices, lengths, scores, stats = selection
"""


def test_users_type_check(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    done = mypy("mypy", "--strict", "--follow-imports=silent", "user.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    (tmp_path / "wrong.py").write_text(USER.replace('"score"', '"sideways"').replace("model: str", "model: int"))
    done = mypy("mypy", "--strict", "--follow-imports=silent", "wrong.py", cwd=tmp_path)
    assert "sideways" in done.stdout and "int" in done.stdout and "Found 2 errors" in done.stdout


def test_the_package_type_checks():
    done = mypy("mypy", "--config-file", str(SOURCE / "pyproject.toml"), str(SOURCE / "python" / "dosa"))
    assert done.returncode == 0, done.stdout
