"""torch.ops.dosa.select on the host; test_device.py has it on a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dosa


def test_without_torch_it_says_what_is_missing():
    code = (
        "import sys; sys.modules['torch'] = None; import dosa\n"
        "try: dosa.register_torch_op()\n"
        "except dosa.NotAvailableError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "wanted torch 2.4" in done.stdout


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not hasattr(torch.library, "custom_op"):
        pytest.skip("torch before 2.4 has no custom_op")
    return torch


def tensors(torch, call):
    return [torch.from_numpy(a.copy()) for a in call(rows=5, keys=80).arrays]


def test_operator(torch, call):
    operator = dosa.register_torch_op()
    assert dosa.register_torch_op() is operator
    arrays = tensors(torch, call)
    wanted = dosa.select(*arrays, top_k=9, return_scores=True)
    for found, right in zip(torch.ops.dosa.select(*arrays, 9), wanted[:3]):
        assert torch.equal(found, right)
    torch.library.opcheck(operator, (*arrays, 9))


def test_compiled(torch, call):
    operator = dosa.register_torch_op()
    arrays = tensors(torch, call)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def model(*arguments):
        indices, lengths, scores = operator(*arguments, 9, order="score")
        return indices + 1, lengths * 2, scores

    found = model(*arrays)
    right = dosa.select(*arrays, top_k=9, order="score", return_scores=True)
    assert torch.equal(found[0], right.indices + 1) and torch.equal(found[1], right.lengths * 2)
    assert torch.equal(found[2], right.scores)
