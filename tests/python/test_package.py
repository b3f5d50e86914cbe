"""What is installed: the wheel's tag and version, and the signature that people write against."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import sys
import sysconfig

import pytest

import dosa


def test_the_wheels_tag_and_version():
    try:
        installed = importlib.metadata.distribution("dosa-indexer")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("imported from a folder, not installed")
    assert installed.version == dosa.__version__ == dosa.info().version
    wheel = installed.read_text("WHEEL")
    (tag,) = re.findall(r"^Tag: (.*)$", wheel, re.M)
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    # nanobind has a stable ABI from 3.12 on; free-threaded builds have none.
    stable = sys.version_info >= (3, 12) and not sysconfig.get_config_var("Py_GIL_DISABLED")
    assert tag.split("-")[:2] == (["cp312", "abi3"] if stable else [here, here]) or tag.startswith(f"{here}-{here}t-")
    assert tag.split("-")[2] != "any" and "Root-Is-Purelib: false" in wheel
    if sys.platform == "linux":
        extension = dosa._core.__file__
        assert extension.endswith(".abi3.so" if stable else sysconfig.get_config_var("EXT_SUFFIX"))


def test_the_signature():
    written = (
        "q, k, k_scale, weights, ks=None, ke=None, *, top_k, order='index', index_base='absolute', return_scores=False, "
        "model=None, backend=None, path='auto', always_first=0, always_last=0, block_table=None, row_request=None, "
        "rows_per_request=None, out=None, workspace=None, carry=None, stream=None"
    )
    found = inspect.signature(dosa.select)
    plain = found.replace(
        parameters=[p.replace(annotation=p.empty) for p in found.parameters.values()], return_annotation=found.empty
    )
    assert str(plain).startswith(f"({written}")
    # What came later is optional: it breaks nobody's call.
    assert all(p.default is not p.empty for p in list(found.parameters.values())[len(written.split(",")) - 1 :])
    assert dosa.Selection._fields == ("indices", "lengths", "scores", "stats")
    assert list(inspect.signature(dosa.judge).parameters)[:6] == ["indices", "lengths", "q", "k", "k_scale", "weights"]
