"""python -m dosa analyze, and its page in a real browser."""

from __future__ import annotations

import dataclasses
import html
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import dosa
from dosa._analyze import BUDGETS, SCHEMES, analyze
from dosa._report import page_text


@pytest.fixture(scope="module")
def analysis(sample_trace):
    return analyze(sample_trace, top_k=256, rows=4)


def test_numbers_of_the_analysis(analysis, sample_trace):
    trace = dosa.trace.read(sample_trace)
    assert analysis.rows_total == 32 and len(analysis.rows) == 4
    assert (analysis.survival >= 256 / analysis.visible - 1e-12).all() and (analysis.survival <= 1).all()
    assert (analysis.positive_heads == (trace.weights > 0).sum(1)).all()
    assert sum(analysis.advice.values()) == 32
    for row in analysis.rows:
        scores = dosa.scores(*trace.rows([row.row]).arrays)[0, : row.visible]
        ranked = np.sort(scores)[::-1]
        assert row.tau == ranked[255]
        assert row.gap == pytest.approx((float(ranked[255]) - float(ranked[256])) / np.std(scores, dtype=np.float64))
        assert row.score_counts.sum() == row.visible and row.winner_counts.sum() == 256
        # A bound below its key's score would be a lost winner.
        assert row.slack_winners[0] >= 0 and row.slack_others[0] >= 0
        # Every winner survives, and survivors are few.
        assert 256 / row.visible <= row.margin_survivors < 1
        for scheme in SCHEMES:
            recall = np.array(row.recall[scheme])
            assert ((recall >= 0) & (recall <= 1)).all() and len(recall) == len(BUDGETS)
            assert np.allclose(1 - np.array(row.missed[scheme]) / 256, recall)
            assert recall[-1] > recall[0]
    assert "sample_en_l03_h32: 32 rows" in analysis.summary()


def test_bounds_hold_for_every_number_of_heads(sample_trace):
    from dosa import _core

    trace = dosa.trace.read(sample_trace)
    inputs = _core.Inputs(*trace.arrays, None, None, None, None)
    for model in ("f64", "sm90"):
        scores = dosa.scores(*trace.rows([7]).arrays, model=model)[0]
        for r in (1, 5, 16, 31, 0):
            upper, retained, _, certified = _core.bounds(inputs, 7, 256, r, model, 3)
            assert certified and retained >= 1 and len(upper) == trace.ke[7]
            assert (upper >= scores[: len(upper)]).all()
    with pytest.raises(dosa.UsageError):
        _core.bounds(inputs, 32, 256, 0, "f64", 0)


def test_a_trace_without_anything_to_bound(call, tmp_path):
    c = call(rows=3, keys=40)
    dosa.trace.write(tmp_path / "short.safetensors", *c.arrays)
    result = analyze(tmp_path / "short.safetensors", top_k=64)
    assert result.rows == [] and "every key is selected" in result.summary()
    assert "nothing to bound" in page_text([result])


def test_prediction_and_what_is_screened_twice(analysis, sample_trace):
    trace = dosa.trace.read(sample_trace)
    reports = dosa.plan_for(*trace.arrays, top_k=256, path="dosa").run(*trace.arrays, row_reports=True).stats.row_reports()
    assert analysis.rescreened == sum(reports["rescreened"])
    for row in analysis.rows:
        # At or below the K-th score, or the row was screened again; never far off.
        assert (row.prediction_gap >= 0) != reports["rescreened"][row.row] and abs(row.prediction_gap) < 5
        assert row.prediction_gap * row.deviation == pytest.approx(row.tau - reports["predicted"][row.row])
    assert "predicted threshold" in analysis.summary()


def test_traces_of_one_name_are_told_apart(analysis):
    elsewhere = dataclasses.replace(analysis, name="b/sample_en_l03_h32.safetensors")
    other = dataclasses.replace(analysis, name="other.safetensors")
    text = page_text([analysis, elsewhere, other, elsewhere])
    headings = re.findall(r'<h2 id="(.*?)">(.*?)</h2>', text)
    assert [anchor for anchor, _ in headings] == [f"trace-{n}" for n in range(4)]
    titles = [html.unescape(title) for _, title in headings]
    assert titles[0].endswith("data/sample_en_l03_h32") and titles[1:] == [
        "b/sample_en_l03_h32", "other", "b/sample_en_l03_h32 (2)",
    ]  # fmt: skip
    assert re.findall(r'<a href="#(trace-\d)">', text) == [anchor for anchor, _ in headings]


def dump(browser, page, folder):
    return subprocess.run(
        [
            browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            f"--user-data-dir={folder}", "--enable-logging=stderr", "--log-level=0", "--window-size=1280,2400",
            "--virtual-time-budget=30000", "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A Chromium that shows a file of the tests' folder: Ubuntu's is a snap, absent in a container, confined elsewhere."""
    folder = tmp_path_factory.mktemp("browser")
    page = folder / "probe.html"
    page.write_text("<!doctype html><title>shown</title>")
    found = list(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    for candidate in found:
        if "<title>shown</title>" in dump(candidate, page, folder / "profile").stdout:
            return candidate
    why = f"no Chromium that shows a local file (tried: {', '.join(found) or 'none found'})"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{why}; Debian's package does, scripts/bootstrap check installs it")
    pytest.skip(why)


def visit(browser, page, folder):
    """(document after its scripts ran, lines that reached the console)."""
    done = dump(browser, page, folder)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_page_in_a_browser(sample_trace, browser, tmp_path):
    hostile = tmp_path / "trace <b>&'\"<script>.safetensors"
    trace = dosa.trace.read(sample_trace)
    dosa.trace.write(hostile, *trace.rows(slice(0, 6)).arrays, metadata={"text": "</script><h1>not a heading</h1>"})
    page = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, "-m", "dosa", "analyze", str(sample_trace), str(hostile), "--top-k", "512", "--rows", "3",
         "--html", str(page)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", outside), "the page must need no network"

    document, console = visit(browser, page, tmp_path / "profile")
    assert console == []
    body = re.search(r"<body([^>]*)>", document).group(1)
    data = {k: html.unescape(v) for k, v in re.findall(r'data-(\w+)="([^"]*)"', body)}
    assert json.loads(data["errors"]) == []
    charts = int(data["charts"])
    assert charts == 2 + 2 * 11 and data["drawn"] == data["charts"]
    # Each chart holds a drawing with a trace in it, not only axes.
    for number in range(charts):
        start = document.index(f'id="chart-{number}"')
        end = document.find('id="chart-', start + 10)
        part = document[start : end if end > 0 else None]
        assert 'class="main-svg"' in part, number
        assert re.search(r'class="(?:trace|hm|points|boxes|plot)[ "]', part), number
        assert re.search(r'<(?:path|image)[^>]*(?:d="M|href="data:image)', part), number
    assert "<h1>not a heading</h1>" not in document


def test_the_browser_check_sees_errors(browser, tmp_path):
    page = tmp_path / "broken.html"
    page.write_text("<!doctype html><body><script>console.error('told'); missing();</script></body>")
    _, console = visit(browser, page, tmp_path / "profile")
    assert len(console) == 2


def test_errors_of_the_command(tmp_path):
    done = subprocess.run([sys.executable, "-m", "dosa", "analyze", "/nowhere"], capture_output=True, text=True)
    assert done.returncode == 2 and "nowhere" in done.stderr


def test_what_a_report_needs_is_asked_before_the_work(sample_trace, tmp_path):
    def refused(page, before="pass"):
        code = f"import sys; {before}; from dosa.__main__ import main; sys.exit(main(sys.argv[1:]))"
        words = ["analyze", str(sample_trace), "--top-k", "256", "--rows", "1", "--html", str(page)]
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        assert done.returncode == 2 and done.stdout == "", done.stdout
        return done.stderr

    assert "dosa-indexer[report]" in refused(tmp_path / "r.html", "sys.modules['plotly'] = None")
    assert "nowhere" in refused(tmp_path / "nowhere" / "r.html")
    assert str(tmp_path) in refused(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_info_is_a_table():
    done = subprocess.run([sys.executable, "-m", "dosa", "info"], capture_output=True, text=True, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith(("  backend", "  instruction set"))]
    info = dosa.info()
    assert len(rows) == len(info.backends) + len(info.isas)
    assert len({re.search(r" (yes|no ) ", row).start() for row in rows}) == 1
