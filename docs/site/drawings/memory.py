"""A rank's memory under full_shard, by ranks."""
from . import style


def draw():
    found = style.data("docs/data/memory_by_ranks.json")
    ranks, measured, formula = found["ranks"], found["measured"], found["formula_values"]
    figure, axes = style.page(
        4.0, f"With fsdp a rank takes {measured[0]:.0f} MiB alone, and {measured[-1]:.0f} MiB as one of {ranks[-1]}",
        "24 × Linear(1024), AdamW, fp32, full_shard on one host; largest Pss of a rank less that of an empty model's. "
        "Formula: 16 P / N bytes, two units with their gradients, and 4 P / N for the mapped gather. "
        f"docs/benchmarks.md, {found['source']['time']}.", left=0.11)
    places = range(len(ranks))
    axes.bar(places, measured, 0.5, color=style.OURS)
    axes.hlines(formula, [place - 0.3 for place in places], [place + 0.3 for place in places], color=style.THIRD, linewidth=2.5)
    for place, has, may in zip(places, measured, formula):
        first = place == 0
        axes.text(place, has / 2, f"{has:g}", ha="center", va="center", fontweight="bold", color=style.PAPER)
        axes.text(place, has + 8, "measured" * first, ha="center", va="bottom", color=style.OURS)
        axes.text(place + 0.33, may, "formula " * first + f"{may:g}", ha="left", va="center", color=style.THIRD)
    axes.set_xticks(places, ranks)
    axes.set_xlabel("ranks")
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(ranks) - 0.3)
    axes.set_ylim(0, 540)
    axes.set_ylabel("memory of a rank, MiB")
    axes.grid(axis="y", color=style.GRID)
    return style.svg(figure)
