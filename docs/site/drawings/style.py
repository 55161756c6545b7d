"""What the plots have in common. The same data give the same bytes: no date, no random ids, text stays text in the reader's sans-serif."""
import io
import json
import pathlib
import re
import textwrap

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
WIDTH = 7.3  # inches: 700 px of a page
PAPER, INK, FAINT, GRID = "#ffffff", "#1f2328", "#57606a", "#dfe3e8"
OURS, OURS_LIGHT, PEER, THIRD, KILL = "#1d5fa8", "#a9c8ea", "#a3abb5", "#c2701c", "#b3261e"

pyplot.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "troupe", "font.family": "sans-serif", "font.size": 10, "axes.labelsize": 10, "xtick.labelsize": 9.5,
    "ytick.labelsize": 10, "axes.edgecolor": FAINT, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "figure.facecolor": PAPER, "axes.facecolor": PAPER, "axes.axisbelow": True,
})


def data(path):
    return json.loads((ROOT / path).read_text())


def rows():
    return data("bench/results.json")["rows"]


def days(times):
    """2026-11-23, or 2026-11-23 to 25: of times of one month."""
    first, last = min(times)[:10], max(times)[:10]
    return first if first == last else f"{first} to {last[8:]}"


def number(value):
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def page(height, title, note, columns=1, left=0.1, right=0.97, **gaps):
    """A figure with its finding above and its conditions below."""
    title, note = textwrap.fill(title, 72), textwrap.fill(note, 106)
    figure, axes = pyplot.subplots(1, columns, figsize=(WIDTH, height))
    lines, below = title.count("\n") + 1, note.count("\n") + 1
    figure.subplots_adjust(left=left, right=right, top=1 - (0.28 + 0.2 * lines) / height, bottom=(0.62 + 0.155 * below) / height, **gaps)
    figure.text(0.018, 1 - 0.1 / height, title, ha="left", va="top", fontsize=12, fontweight="bold", linespacing=1.3)
    figure.text(0.018, 0.09 / height, note, ha="left", va="bottom", fontsize=8.5, color=FAINT, linespacing=1.35)
    return figure, axes


def svg(figure):
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    generic = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", text.getvalue())
    return "\n".join(line.rstrip() for line in generic.splitlines()) + "\n"
