"""The page of `python -m dosa analyze --html`: one file, no network, every chart explained in a sentence."""

from __future__ import annotations

import html
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy

from ._analyze import BLOCK, SCHEMES, TIMED_CALLS, Analysis
from ._errors import IoError, NotAvailableError

INK, MUTED, GRID = "#1c2333", "#667085", "#e7eaf0"
BLUE, ORANGE, GREEN, RED, VIOLET, GREY = "#2f6fed", "#f0803c", "#1f9d6b", "#d6405c", "#7a5af5", "#a9b2c3"
SCHEME_COLOURS = dict(zip(SCHEMES, (ORANGE, VIOLET, RED)))
DIVERGING = [[0, "#d6405c"], [0.5, "#f7f8fb"], [1, "#2f6fed"]]
SEQUENTIAL = [[0, "#f7f8fb"], [0.35, "#b9cdf9"], [0.7, "#5b8df2"], [1, "#17409b"]]

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f4f6fa; color: #1c2333; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto,
  "DejaVu Sans", sans-serif; }
header, main, footer { max-width: 1240px; margin: 0 auto; padding: 0 28px; }
header { padding-top: 40px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.02em; }
h2 { font-size: 22px; margin: 52px 0 4px; letter-spacing: -0.01em; }
h3 { font-size: 15px; margin: 0 0 2px; }
p.lead { color: #475067; max-width: 78ch; margin: 0 0 6px; }
.meta { color: #667085; font-size: 13px; margin: 0 0 16px; }
nav { display: flex; flex-wrap: wrap; gap: 8px; margin: 18px 0 0; }
nav a { background: #fff; border: 1px solid #e0e4ec; border-radius: 999px; padding: 4px 14px; font-size: 13px;
  color: #2f6fed; text-decoration: none; }
.grid { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 18px; }
.card { background: #fff; border: 1px solid #e4e8f0; border-radius: 12px; padding: 18px 18px 8px; min-width: 0;
  box-shadow: 0 1px 2px rgba(16, 24, 40, 0.04); }
.card.wide { grid-column: 1 / -1; }
.card p { color: #667085; font-size: 13px; line-height: 1.45; margin: 0 0 6px; min-height: 38px; }
.chart { width: 100%; height: 330px; }
.chart.tall { height: 460px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 14px 0 18px; }
.figure { background: #fff; border: 1px solid #e4e8f0; border-radius: 12px; padding: 12px 16px; }
.figure b { display: block; font-size: 22px; letter-spacing: -0.02em; font-variant-numeric: tabular-nums; }
.figure span { color: #667085; font-size: 12.5px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { text-align: right; padding: 8px 10px; border-bottom: 1px solid #eef1f6; white-space: nowrap; }
th { color: #667085; font-weight: 600; font-size: 12.5px; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
td:last-child { white-space: normal; min-width: 150px; }
tr:last-child td { border-bottom: 0; }
footer { color: #667085; font-size: 13px; padding-top: 36px; padding-bottom: 48px; }
@media (max-width: 820px) { .grid { grid-template-columns: 1fr; } header, main, footer { padding-left: 16px;
  padding-right: 16px; } }
"""

SCRIPT = """
const errors = [];
window.addEventListener("error", (event) => errors.push(String(event.message)));
const state = document.body.dataset;
const report = () => { state.errors = JSON.stringify(errors); };
const base = {
  font: { family: 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif', size: 12, color: "#1c2333" },
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 58, r: 18, t: 12, b: 46 },
  hoverlabel: { font: { size: 12 } },
  legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 12 } },
};
const axis = { gridcolor: "#e7eaf0", zerolinecolor: "#d5dae4", linecolor: "#c6cddb", ticks: "outside", ticklen: 4,
  tickcolor: "#c6cddb", automargin: true, title: { standoff: 10 } };
const merge = (a, b) => {
  const out = { ...a };
  for (const key of Object.keys(b)) {
    const both = b[key] && a[key] && typeof b[key] === "object" && typeof a[key] === "object" && !Array.isArray(b[key]);
    out[key] = both ? merge(a[key], b[key]) : b[key];
  }
  return out;
};
const figures = JSON.parse(document.getElementById("figures").textContent);
Promise.all(figures.map((figure) => {
  const layout = merge(base, figure.layout);
  for (const name of Object.keys(layout)) if (/^[xy]axis/.test(name)) layout[name] = merge(axis, layout[name]);
  return Plotly.newPlot(figure.id, figure.data, layout, { responsive: true, displayModeBar: false });
})).then(
  (drawn) => { state.drawn = drawn.length; report(); },
  (failure) => { errors.push(String(failure)); report(); },
);
"""


def _numbers(values: Any) -> list[Any]:
    return [None if not numpy.isfinite(v) else float(v) for v in numpy.asarray(values, numpy.float64).ravel()]


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.{0 if seconds >= 0.1 else 1}f}"


class _Page:
    def __init__(self) -> None:
        self.figures: list[dict[str, Any]] = []
        self.parts: list[str] = []

    def chart(
        self, title: str, note: str, data: list[dict[str, Any]], layout: dict[str, Any], wide: bool = False, tall: bool = False
    ) -> None:
        number = f"chart-{len(self.figures)}"
        self.figures.append({"id": number, "data": data, "layout": {"xaxis": {}, "yaxis": {}} | layout})
        self.parts.append(
            f'<div class="card{" wide" if wide else ""}"><h3>{html.escape(title)}</h3><p>{html.escape(note)}</p>'
            f'<div class="chart{" tall" if tall else ""}" id="{number}"></div></div>'
        )


def _line(x: float, name: str, colour: str, share: float = 1.0) -> tuple[dict[str, Any], dict[str, Any]]:
    shape = {
        "type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": share,
        "line": {"color": colour, "width": 1.5, "dash": "dash"},
    }  # fmt: skip
    label = {
        "x": x, "yref": "paper", "y": share, "text": name, "showarrow": False, "xanchor": "left", "xshift": 4,
        "yanchor": "top", "font": {"color": colour, "size": 12},
    }  # fmt: skip
    return shape, label


def _centres(edges: Any) -> list[Any]:
    return _numbers((edges[1:] + edges[:-1]) / 2)


def _overview(page: _Page, results: Sequence[Analysis]) -> None:
    drawn = [result for result in results if result.rows]
    if not drawn:
        return
    names = [result.title for result in drawn]
    page.parts.append('<div class="grid">')
    page.chart(
        "What survives the certificate, row by row",
        "Share of a row's keys that could not be rejected by their bound. The black tick is K / N: no method that returns K "
        "keys can do better.",
        [
            {
                "type": "box", "name": result.title, "x": _numbers(result.survival), "y0": result.title, "orientation": "h",
                "boxpoints": False, "marker": {"color": BLUE}, "line": {"width": 1.5}, "fillcolor": "#cfdcfb",
                "hoverinfo": "x", "showlegend": False,
            }
            for result in drawn
        ]
        + [
            {
                "type": "scatter", "mode": "markers", "name": "K / N", "y": names,
                "x": [result.top_k / float(result.visible.mean()) for result in drawn],
                "marker": {"symbol": "line-ns-open", "size": 22, "color": INK, "line": {"width": 2.5}}, "showlegend": False,
                "hovertemplate": "K / N %{x:.1%}<extra></extra>",
            }
        ],
        {"xaxis": {"tickformat": ".0%", "rangemode": "tozero", "title": {"text": "surviving keys"}},
         "yaxis": {"autorange": "reversed"}},
    )  # fmt: skip
    middle = min(range(len(drawn[0].budgets)), key=lambda b: abs(drawn[0].budgets[b] - 0.5))
    page.chart(
        f"Winners that approximations lose at {_percent(drawn[0].budgets[middle], 0)} of the dense work",
        "Share of the exact Top-K that is missing, mean over the sampled rows. The certificate loses none: what it cannot "
        "reject is scored.",
        [
            {
                "type": "bar", "orientation": "h", "name": scheme, "y": names,
                "x": [1 - result.mean_recall(scheme)[middle] for result in drawn],
                "marker": {"color": SCHEME_COLOURS[scheme]}, "hovertemplate": "%{x:.2%}<extra>" + scheme + "</extra>",
            }
            for scheme in SCHEMES
        ],
        {"xaxis": {"tickformat": ".0%", "rangemode": "tozero", "title": {"text": "winners lost"}},
         "yaxis": {"autorange": "reversed"}, "barmode": "group", "legend": {"traceorder": "normal"}},
    )  # fmt: skip
    page.parts.append("</div>")


def _table(results: Sequence[Analysis]) -> str:
    head = ("trace", "rows", "keys", "heads", "positive heads", "K / N", "survival", "work of dense", "mean r",
            "median gap, std", "dense, ms", "dosa, ms", "auto, ms", "the cost model's advice")  # fmt: skip
    rows = []
    for result in results:
        words = ", ".join(f"{reason} ({count})" for reason, count in sorted(result.advice.items()))
        if not result.rows:
            figures = ["", "", "", "", "", ""]
        else:
            figures = [
                f"{result.positive_heads.mean():.1f}", _percent(result.top_k / float(result.visible.mean())),
                _percent(float(result.survival.mean())), _percent(float(result.cost.mean())),
                f"{result.retained.mean():.1f}", f"{numpy.median([row.gap for row in result.rows]):.1e}",
            ]  # fmt: skip
        cells = [
            result.title, f"{result.rows_total:,}", f"{result.keys:,}", f"{result.heads}", *figures,
            *(_milliseconds(result.seconds[path]) for path in ("dense", "dosa", "auto")), words,
        ]  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    header = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    return (
        f'<div class="card wide scroll" style="margin-bottom:18px"><table><thead><tr>{header}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _section(page: _Page, number: int, result: Analysis) -> None:
    where = ", ".join(f"{key}: {value}" for key, value in sorted(result.metadata.items()) if len(value) < 90)
    page.parts.append(f'<h2 id="trace-{number}">{html.escape(result.title)}</h2>')
    page.parts.append(
        f'<p class="meta">{result.rows_total:,} rows, {result.keys:,} keys, {result.heads} heads of {result.head_dim}, '
        f"K = {result.top_k:,}. {html.escape(where)}</p>"
    )
    if not result.rows:
        page.parts.append("<p>No row sees more than K keys: every key is selected and there is nothing to bound.</p>")
        return
    own_cost = float(result.cost.mean())
    nearest = min(range(len(result.budgets)), key=lambda b: abs(result.budgets[b] - own_cost))
    figures = [
        (_percent(float(result.survival.mean())), "of the keys survive the bound"),
        (_percent(own_cost), "of the dense dot products are done"),
        (f"{result.retained.mean():.1f}", f"of {result.heads} heads retained"),
        (f"{result.seconds['dense'] / result.seconds['dosa']:.2f}×", "dosa against dense, time on this machine"),
        (f"{result.positive_heads.mean():.1f}", "positive weights in a row"),
        (
            _percent(1 - max(result.mean_recall(scheme)[nearest] for scheme in SCHEMES), 2),
            f"lost by the best approximation at {_percent(result.budgets[nearest], 0)} of the work",
        ),
    ]
    page.parts.append(
        '<div class="figures">'
        + "".join(f'<div class="figure"><b>{b}</b><span>{html.escape(s)}</span></div>' for b, s in figures)
        + '</div><div class="grid">'
    )

    counts, edges = numpy.histogram(result.survival, numpy.linspace(0, 1.04 * float(result.survival.max()), 61))
    shape, label = _line(result.top_k / float(result.visible.mean()), "K / N", INK)
    page.chart(
        "Survival of the rows",
        "How many rows keep which share of their keys after the screen, over all rows of the trace.",
        [{"type": "bar", "x": _centres(edges), "y": _numbers(counts), "marker": {"color": BLUE}, "width": float(edges[1] - edges[0]),
          "hovertemplate": "%{x:.1%}: %{y} rows<extra></extra>"}],
        {"xaxis": {"tickformat": ".0%", "title": {"text": "surviving keys"}, "rangemode": "tozero"},
         "yaxis": {"title": {"text": "rows"}}, "bargap": 0, "shapes": [shape], "annotations": [label], "showlegend": False},
    )  # fmt: skip

    shape, label = _line(float(result.retained.mean()), "chosen, mean", INK)
    page.chart(
        "Retained heads against survival",
        "More heads cost more for every key and let fewer keys through. Work counts both in dot products; the cost model "
        "minimises time.",
        [
            {"type": "scatter", "mode": "lines+markers", "name": "survival", "x": result.sweep_r, "y": _numbers(result.sweep_survival),
             "line": {"color": BLUE, "width": 2.5}, "hovertemplate": "r %{x}: %{y:.1%}<extra>survival</extra>"},
            {"type": "scatter", "mode": "lines+markers", "name": "work", "x": result.sweep_r, "y": _numbers(result.sweep_cost),
             "line": {"color": ORANGE, "width": 2.5}, "hovertemplate": "r %{x}: %{y:.1%}<extra>work</extra>"},
        ],
        {"xaxis": {"title": {"text": "retained heads r"}}, "yaxis": {"tickformat": ".0%", "rangemode": "tozero",
         "title": {"text": "share of keys, of dense work"}}, "shapes": [shape], "annotations": [label]},
    )  # fmt: skip

    middle = result.rows[len(result.rows) // 2]
    shape, label = _line(middle.tau, "τ", RED)
    x, width = _centres(middle.score_edges), float(middle.score_edges[1] - middle.score_edges[0])
    rest = numpy.where(middle.score_counts > 0, middle.score_counts, numpy.nan)
    won = numpy.where(middle.winner_counts > 0, middle.winner_counts, numpy.nan)
    page.chart(
        f"Scores of row {middle.row}",
        f"All {middle.visible:,} visible keys and the {result.top_k:,} winners; τ is the score of the K-th.",
        [
            {"type": "bar", "name": "all keys", "x": x, "y": _numbers(rest), "width": width, "marker": {"color": GREY},
             "hovertemplate": "%{x:.3g}: %{y} keys<extra></extra>"},
            {"type": "bar", "name": "winners", "x": x, "y": _numbers(won), "width": width, "marker": {"color": BLUE},
             "hovertemplate": "%{x:.3g}: %{y} winners<extra></extra>"},
        ],
        {"xaxis": {"title": {"text": "score"}}, "yaxis": {"type": "log", "title": {"text": "keys"}, "dtick": 1},
         "barmode": "overlay", "bargap": 0,
         "shapes": [shape], "annotations": [label]},
    )  # fmt: skip

    slack = sum((row.slack_counts for row in result.rows), numpy.zeros(len(result.slack_edges) - 1))
    share = slack / max(float(slack.sum()), 1)
    reach = result.slack_edges[min(int(numpy.searchsorted(numpy.cumsum(share), 0.998)) + 2, len(share))]
    data = [{"type": "bar", "x": _centres(result.slack_edges), "y": _numbers(share), "marker": {"color": GREEN},
             "width": float(result.slack_edges[1] - result.slack_edges[0]),
             "hovertemplate": "%{x:.2f} std: %{y:.1%}<extra></extra>"}]  # fmt: skip
    medians = [row.slack_winners[3] for row in result.rows if row.slack_winners is not None]
    extra: dict[str, Any] = {}
    if medians:
        shape, label = _line(float(numpy.median(medians)), "median of winners", INK)
        extra = {"shapes": [shape], "annotations": [label]}
    page.chart(
        "Slack of the certificate",
        "Bound minus score, in standard deviations of the row's scores: what the certificate gives away. It is never "
        "negative.",
        data,
        {"xaxis": {"title": {"text": "bound − score, std"}, "range": [0, float(reach)]}, "yaxis": {"tickformat": ".1%",
         "title": {"text": "keys"}, "range": [0, 1.15 * float(share.max()) or 1]}, "bargap": 0, "showlegend": False} | extra,
    )  # fmt: skip

    series = {
        "rank K to K + 1": (BLUE, "circle", [row.gap for row in result.rows]),
        "prediction to K": (ORANGE, "diamond", [row.prediction_gap for row in result.rows]),
    }
    drawn = {name: numpy.array(gaps) for name, (_, _, gaps) in series.items()}
    positive_gaps = numpy.concatenate([gaps[gaps > 0] for gaps in drawn.values()] or [numpy.ones(1)])
    if len(positive_gaps) == 0:
        positive_gaps = numpy.ones(1)
    decades = [float(numpy.floor(numpy.log10(positive_gaps.min()))), float(numpy.ceil(numpy.log10(positive_gaps.max()) + 0.01))]
    page.chart(
        "Gaps at the threshold",
        "Rank K to K + 1: kernels that round coarser select another set. Prediction to K: reserve of the first pass; "
        f"rows screened twice: {result.rescreened:,}.",
        [{"type": "scatter", "mode": "markers", "x": [row.row for row in result.rows],
          "y": _numbers(numpy.where(gaps > 0, gaps, numpy.nan)), "name": name,
          "marker": {"color": series[name][0], "symbol": series[name][1], "size": 9, "line": {"color": "#fff", "width": 1}},
          "cliponaxis": False, "hovertemplate": "row %{x}: %{y:.2e} std<extra>" + name + "</extra>"} for name, gaps in drawn.items()],
        {"xaxis": {"title": {"text": "row"}}, "yaxis": {"type": "log", "exponentformat": "power", "dtick": 1, "range": decades,
         "title": {"text": "gap, std"}}},
    )  # fmt: skip

    positive = (result.weights > 0).mean(0)
    order = numpy.argsort(-positive, kind="stable")
    page.chart(
        "Signs of the weights, head by head",
        "Share of rows in which a head's weight is positive or negative. Negative heads can only lower a score, so a "
        "bound may leave them out at no risk.",
        [
            {"type": "bar", "name": "positive", "x": [f"{h}" for h in order], "y": _numbers(positive[order]),
             "marker": {"color": BLUE}, "hovertemplate": "head %{x}: %{y:.0%}<extra>positive</extra>"},
            {"type": "bar", "name": "negative", "x": [f"{h}" for h in order], "y": _numbers(-(result.weights < 0).mean(0)[order]),
             "marker": {"color": RED}, "customdata": _numbers((result.weights < 0).mean(0)[order]),
             "hovertemplate": "head %{x}: %{customdata:.0%}<extra>negative</extra>"},
        ],
        {"barmode": "relative", "bargap": 0.15, "xaxis": {"title": {"text": "head"}, "type": "category", "tickangle": 0,
         "nticks": 17}, "yaxis": {"title": {"text": "rows"}, "range": [-1, 1],
         "tickvals": [-1, -0.5, 0, 0.5, 1], "ticktext": ["100 %", "50 %", "0", "50 %", "100 %"]}},
    )  # fmt: skip

    winners = numpy.array([row.active_winners for row in result.rows])
    others = numpy.array([row.active_others for row in result.rows])
    mean_weight = result.weights[[row.row for row in result.rows]].mean(0)
    order = numpy.argsort(mean_weight, kind="stable")
    page.chart(
        "Activation of the winners",
        "Share of a row's winners with q · k > 0, by head (most negative weight below, most positive above) and sampled "
        "row.",
        [{"type": "heatmap", "z": [_numbers(line) for line in winners.T[order]], "x": [f"{row.row}" for row in result.rows],
          "y": [f"{h}" for h in order], "colorscale": SEQUENTIAL, "zmin": 0, "zmax": 1,
          "colorbar": {"tickformat": ".0%", "thickness": 12, "outlinewidth": 0}, "xgap": 1,
          "hovertemplate": "row %{x}, head %{y}: %{z:.0%}<extra></extra>"}],
        {"xaxis": {"type": "category", "title": {"text": "row"}}, "yaxis": {"type": "category", "title": {"text": "head"},
         "nticks": 17}},
        tall=True,
    )  # fmt: skip
    limit = float(numpy.abs(mean_weight).max()) or 1.0
    page.chart(
        "Winners against other keys",
        "Each dot is a head. Above the line it is active more often on winners: heads that tell them apart. Colour is "
        "the mean weight.",
        [
            {"type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "line": {"color": GREY, "dash": "dot", "width": 1.5},
             "hoverinfo": "skip"},
            {"type": "scatter", "mode": "markers", "x": _numbers(others.mean(0)), "y": _numbers(winners.mean(0)),
             "text": [f"head {h}" for h in range(result.heads)],
             "marker": {"size": 11, "color": _numbers(mean_weight), "colorscale": DIVERGING, "cmin": -limit, "cmax": limit,
                        "line": {"color": "#7b859b", "width": 1},
                        "colorbar": {"thickness": 12, "outlinewidth": 0, "title": {"text": "weight"}, "exponentformat": "e",
                                     "nticks": 5}},
             "hovertemplate": "%{text}: winners %{y:.0%}, others %{x:.0%}<extra></extra>"},
        ],
        {"xaxis": {"tickformat": ".0%", "range": [-0.03, 1.03], "title": {"text": "active on other keys"}},
         "yaxis": {"tickformat": ".0%", "range": [-0.03, 1.03], "title": {"text": "active on winners"}}, "showlegend": False},
        tall=True,
    )  # fmt: skip

    paths = ("dense", "dosa", "auto")
    words = "; ".join(f"{reason}: {count} rows" for reason, count in sorted(result.advice.items()))
    page.chart(
        "The cost model's advice",
        f"auto decided: {words}. Time is the best of {TIMED_CALLS} calls on this machine, work is dot products.",
        [
            {"type": "bar", "name": "time", "x": list(paths), "y": _numbers([result.seconds[p] / result.seconds["dense"] for p in paths]),
             "marker": {"color": BLUE}, "text": [f"{_milliseconds(result.seconds[p])} ms" for p in paths], "textposition": "outside",
             "cliponaxis": False, "hovertemplate": "%{y:.1%}<extra>time</extra>"},
            {"type": "bar", "name": "work", "x": list(paths), "y": _numbers([result.dots[p] for p in paths]), "marker": {"color": ORANGE},
             "text": [_percent(result.dots[p], 0) for p in paths], "textposition": "outside", "cliponaxis": False,
             "hovertemplate": "%{y:.1%}<extra>work</extra>"},
        ],
        {"barmode": "group", "xaxis": {"type": "category"}, "yaxis": {"tickformat": ".0%", "title": {"text": "of dense"},
         "rangemode": "tozero"}},
    )  # fmt: skip

    page.chart(
        "Recall of approximate schemes at equal work",
        "Share of the exact Top-K found when so much of the dense work is spent. The diamond is the certificate: exact, at "
        "its own cost.",
        [
            {"type": "scatter", "mode": "lines+markers", "name": scheme, "x": result.budgets, "y": _numbers(result.mean_recall(scheme)),
             "line": {"color": SCHEME_COLOURS[scheme], "width": 2.5},
             "hovertemplate": "%{x:.0%} of the work: %{y:.2%}<extra>" + scheme + "</extra>"}
            for scheme in SCHEMES
        ]
        + [{"type": "scatter", "mode": "markers", "name": "dosa (exact)", "x": [own_cost], "y": [1.0],
            "marker": {"symbol": "diamond", "size": 13, "color": BLUE, "line": {"color": "#fff", "width": 1.5}},
            "hovertemplate": "%{x:.1%} of the work, exact<extra>dosa</extra>", "cliponaxis": False}],
        {"xaxis": {"tickformat": ".0%", "title": {"text": "work, of dense"}}, "yaxis": {"tickformat": ".0%",
         "title": {"text": "recall"}}},
    )  # fmt: skip

    page.chart(
        f"Missed winners of each sampled row at {_percent(result.budgets[nearest], 0)} of the work",
        f"Out of {result.top_k:,}; the budget next to what the certificate spent ({_percent(own_cost)}).",
        [
            {"type": "box", "name": scheme, "y": [row.missed[scheme][nearest] for row in result.rows], "boxpoints": "all",
             "jitter": 0.5, "pointpos": 0, "marker": {"color": SCHEME_COLOURS[scheme], "size": 6}, "line": {"width": 1.5},
             "fillcolor": "rgba(0,0,0,0)"}
            for scheme in SCHEMES
        ],
        {"yaxis": {"title": {"text": "missed winners"}, "rangemode": "tozero"}, "showlegend": False},
        wide=True,
    )  # fmt: skip
    page.parts.append("</div>")


def _told_apart(results: Sequence[Analysis]) -> list[Analysis]:
    """Charts and links know a trace by its title: files of one name in several folders get their whole paths."""
    titles = Counter(result.title for result in results)
    labelled = [replace(r, label=os.path.splitext(r.name)[0]) if titles[r.title] > 1 else r for r in results]
    seen: Counter[str] = Counter()
    for at, result in enumerate(labelled):
        seen[result.title] += 1
        if seen[result.title] > 1:
            labelled[at] = replace(result, label=f"{result.title} ({seen[result.title]})")
    return labelled


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise NotAvailableError("report: found no plotly, wanted it: pip install 'dosa-indexer[report]'") from error
    return str(get_plotlyjs())


def check_report(path: str | os.PathLike[str]) -> None:
    """Raises what write_report would, before anybody works for it."""
    _plotly()
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise IoError(f"{os.fspath(path)}: found a folder that cannot be written to, or a folder of that name, wanted a file")


def page_text(results: Sequence[Analysis]) -> str:
    """The whole page as HTML. Raises dosa.NotAvailableError where Plotly is not installed."""
    import dosa

    script = _plotly()
    results = _told_apart(results)
    page = _Page()
    _overview(page, results)
    overview = "".join(page.parts)
    page.parts = []
    for number, result in enumerate(results):
        _section(page, number, result)
    links = "".join(f'<a href="#trace-{number}">{html.escape(r.title)}</a>' for number, r in enumerate(results))
    # "<" never appears inside the data, so nothing in a file's name or metadata can end the element.
    figures = json.dumps(page.figures, allow_nan=False).replace("<", "\\u003c")
    info = dosa.info()
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>dosa: indexer traces</title><link rel="icon" href="data:,"><style>{STYLE}</style></head>
<body data-charts="{len(page.figures)}">
<header><h1>What these indexer traces allow</h1>
<p class="lead">The lightning indexer scores every key with all heads and keeps the best K. DoSA's certificate computes
some of the heads, bounds the rest from above, and rejects the keys whose bound stays below a score that K keys are proven to
reach. The selection is exact: the figures below say how much work that saves here, and what schemes that only approximate
would lose.</p>
<nav>{links}</nav></header>
<main><h2>Overview</h2>{_table(results)}{overview}{"".join(page.parts)}</main>
<footer>dosa {html.escape(info.version)}, {html.escape(info.processor)}, {info.threads} threads, {html.escape(info.isa)},
score model f64. Approximations work on blocks of {BLOCK} keys: “few heads” takes the heads with the largest weighted
activation on block means (the idea of MISA), “page min/max” the pages with the largest upper bound from per-dimension
extremes (Quest), “pooled blocks” the blocks whose mean key scores highest (HISA); each is charged for its own look at the
blocks. They are models of the ideas, not of the published kernels.</footer>
<script>{script}</script>
<script type="application/json" id="figures">{figures}</script>
<script>{SCRIPT}</script>
</body></html>
"""


def write_report(path: str | os.PathLike[str], results: Sequence[Analysis]) -> None:
    """Writes the page beside its name, then renames it. Raises dosa.IoError, dosa.NotAvailableError."""
    text = page_text(results)
    temporary = f"{os.fspath(path)}.tmp-{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise IoError(f"{os.fspath(path)}: cannot write: {error.strerror}") from error
