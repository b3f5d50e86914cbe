"""The stubs say what the extension has, and the package and its users type-check."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import sys
import typing

import numpy as np
import pytest

import dosa
from conftest import SOURCE
from dosa import _types

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


def test_help_says_what_the_stub_says():
    documented = [node for node in ast.parse((PACKAGE / "_core.pyi").read_text()).body if isinstance(node, ast.ClassDef)]
    for node in documented:
        owner = getattr(dosa, node.name, None)
        if owner is None or node.name == "Plan":
            continue  # dosa.Plan is Python's; the others are not public
        assert owner.__doc__ == ast.get_docstring(node)
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name != "__init__":
                wanted = ast.get_docstring(member)
                assert wanted and getattr(owner, member.name).__doc__.endswith(wanted), (node.name, member.name)
    for name in dosa.__all__:
        value = getattr(dosa, name)
        assert name == "__version__" or value.__doc__, name


def members(header, struct):
    """Names of a C++ struct's data members."""
    body = re.search(rf"struct {struct} {{\n(.*?)^}};", (SOURCE / "include" / "dosa" / header).read_text(), re.S | re.M).group(1)
    lines = [re.sub(r"///.*", "", line).strip() for line in body.splitlines()]
    declared = " ".join(line for line in lines if not line.startswith("//"))
    names = []
    for declaration in filter(str.strip, declared.split(";")):
        typed = re.sub(r"<[^<>]*>", "", declaration)
        names += [re.sub(r"=.*", "", part).split()[-1] for part in typed.split(",")]
    return names


def test_every_counter_of_the_library_is_there():
    assert members("device_counters.hpp", "DeviceCounters") == list(properties(dosa.DeviceCounters))
    assert set(members("plan.hpp", "Stats")) | {"model", "backend"} == set(properties(dosa.Stats)) | {"row_reports"}
    assert members("plan.hpp", "RowReport") == list(typing.get_type_hints(dosa.RowReports))


def properties(owner):
    return [name for name, value in vars(owner).items() if isinstance(value, property)]


def test_row_reports_are_as_typed(call):
    c = call(rows=5, keys=60)
    plan = dosa.plan_for(*c.arrays, top_k=9)
    columns = plan.run(*c.arrays, row_reports=True).stats.row_reports()
    hints = typing.get_type_hints(dosa.RowReports)
    assert list(columns) and set(columns) == set(hints)
    for name, values in columns.items():
        (wanted,) = typing.get_args(hints[name])
        allowed = typing.get_args(wanted) or (wanted,)
        assert len(values) == 5 and all(type(value) in allowed for value in values), name
        assert not any(value != value for value in values), f"{name}: NaN, which None stands for"
    assert all(not values for values in plan.run(*c.arrays).stats.row_reports().values())


def test_words_are_those_of_the_library(call):
    c = call(rows=2, keys=30)
    for word in ("model", "backend", "path", "order", "index_base", "isa"):
        with pytest.raises(dosa.UsageError) as caught:
            dosa.select(*c.arrays, top_k=3, **{word: "?"})
        listed = re.findall(r"[a-z0-9_]+", str(caught.value).partition("wanted one of")[2])
        literal = getattr(_types, word.title().replace("_", ""))
        assert listed == list(typing.get_args(literal)), word
    assert {"auto", *dosa.info().isas} == set(typing.get_args(_types.Isa))
    assert np.array_equal(dosa.select(*c.arrays, top_k=3, isa="auto").indices, dosa.select(*c.arrays, top_k=3).indices)


USER = """
import numpy as np
import dosa

q = np.zeros((2, 4, 32), np.uint8)
k = np.zeros((9, 32), np.uint8)
plan = dosa.plan(rows=2, heads=4, head_dim=32, keys=9, top_k=3, order="score")
selection = plan.run(q, k, np.ones(9, np.float32), np.ones((2, 4), np.float32))
model: str = selection.model
seconds: float = selection.stats.seconds
device: dosa.DeviceCounters | None = selection.stats.device
candidates: int = 0 if device is None else device.candidates
reports: dosa.RowReports = selection.stats.row_reports()
predicted: list[float] = reports["predicted"]
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
