"""A step's time beside DDP's and FSDP2's."""
from . import style

ROWS = {
    "ddp.mlp/b16": "8 × Linear(1024),\n16 samples a rank", "ddp.mlp/b64": "8 × Linear(1024),\n64 samples a rank",
    "ddp.gpt": "GPT, 6 layers,\nwidth 512", "ddp.resnet": "small ResNet,\n32 samples a rank",
    "fsdp.mlp/b16": "8 × Linear(1024),\n16 samples a rank", "fsdp.gpt": "GPT, 6 layers,\nwidth 512",
}


def draw():
    found = style.rows()
    chosen = {row: found[row] for row in ROWS}
    faster = [1 / row["ratio"] for row in chosen.values() if row["spread"][1] < 1]
    version = chosen["ddp.mlp/b16"]["versions"]["torch"]
    figure, axes = style.page(
        5.3, f"Two CPU ranks: {min(faster):.1f} to {max(faster):.1f} times faster than PyTorch in {len(faster)} of {len(chosen)} jobs",
        f"2 processes with 1 thread each on 2 cores (AMD EPYC, virtual machine), fp32. Troupe: shared memory. PyTorch {version}: Gloo, the fastest "
        f"of its settings. Bars: ratio of medians. Lines: 95 % interval. bench/results.json, {style.days([row['time'] for row in chosen.values()])}.", left=0.22, right=0.985)
    at = [0, 1, 2, 3, 4.5, 5.5]
    for y, row in zip(at, chosen.values()):
        ratio, (low, high) = row["ratio"], row["spread"]
        axes.barh(y - 0.19, ratio, 0.36, color=style.OURS)
        axes.errorbar(ratio, y - 0.19, xerr=[[ratio - low], [high - ratio]], color=style.INK, capsize=3, linewidth=1.2)
        axes.barh(y + 0.19, 1, 0.36, color=style.PEER)
        ours, gain = f"Troupe {style.number(row['ours'])} ms", f"{1 / ratio:.1f} times faster" if high < 1 else "no clear difference"
        if ratio > 0.3:
            axes.text(0.012, y - 0.19, ours, va="center", fontsize=9, color=style.PAPER)
        else:
            gain = f"{gain}, {ours}"
        axes.text(0.012, y + 0.2, f"PyTorch {style.number(row['peer'])} ms", va="center", fontsize=9)
        inside = high > 0.7
        axes.text(low - 0.015 if inside else high + 0.015, y - 0.19, gain, va="center", ha="right" if inside else "left", fontsize=9.5,
                  fontweight="bold", color=style.PAPER if inside else style.OURS)
    axes.set_yticks(at, ROWS.values())
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(6.0, -0.95)
    axes.set_xlim(0, 1.08)
    axes.set_xlabel("time of a step, PyTorch's = 1")
    axes.grid(axis="x", color=style.GRID)
    for y, name in ((-0.62, "beside DDP"), (3.88, "beside FSDP2")):
        axes.text(-0.29, y, name, fontsize=10, fontweight="bold", va="center")
    return style.svg(figure)
