"""One step of a rank: compute above, the reducer below."""
from . import style

COLOURS = {"forward": style.OURS_LIGHT, "backward": style.OURS, "wait for gradients": style.KILL, "vote": "#7a4fa3", "optimizer": "#4d8b57"}


def draw():
    found = style.data("docs/data/step_timeline.json")
    spans = {name: (begin, length) for name, begin, length in found["compute"]}
    ends = spans["backward"][0] + spans["backward"][1]
    under_backward = sum(min(begin + length, ends) - begin for _, begin, length, _ in found["reducer"] if begin < ends)
    busy = sum(length for _, _, length, _ in found["reducer"])
    source, mib = found["source"], sum(numel for *_, numel in found["reducer"]) * 4 / 2**20
    figure, axes = style.page(
        3.7, f"Backward hides {100 * under_backward / busy:.0f} % of this step's all-reduces ({100 * found['overlap_of_all_steps']:.0f} % over {found['steps']} steps)",
        f"Rank 0 of 2, ddp, GPT with 4 layers of width 512, {len(found['reducer'])} buckets with {mib:.0f} MiB of gradients, Gloo over loopback; the step of median length "
        f"of {found['steps']} in a trace. {source['machine']}. docs/data/step_timeline.json, {source['time'][:10]}.", left=0.105, right=0.98)
    for name, colour in COLOURS.items():
        begin, length = spans[name]
        axes.barh(0, length, 0.62, left=begin, color=colour)
    for name, place in (("forward", style.INK), ("backward", style.PAPER)):
        begin, length = spans[name]
        axes.text(begin + length / 2, 0, f"{name} {length:.0f} ms", ha="center", va="center", color=place, fontweight="bold")
    for i, (_, begin, length, _) in enumerate(found["reducer"]):
        axes.barh(1, length, 0.62, left=begin, color=style.THIRD)
        axes.text(begin + length / 2, 1.5, f"{i}", ha="center", va="center", fontsize=9)
    axes.text(found["reducer"][0][1] - 3, 1, "all-reduces of buckets", ha="right", va="center", fontsize=9.5)
    for name, offset, y, side in (("wait for gradients", -12, -0.62, "right"), ("vote", 0, -0.95, "center")):
        begin, length = spans[name]
        axes.annotate(f"{name} {length:.1f} ms", (begin + length / 2, -0.33), (begin + length / 2 + offset, y), ha=side, va="center", fontsize=9.5,
                      color=COLOURS[name], arrowprops={"arrowstyle": "-", "color": COLOURS[name], "linewidth": 1})
    begin, length = spans["optimizer"]
    axes.text(begin + 1, -0.48, f"optimizer {length:.0f} ms", ha="left", va="center", fontsize=9.5, color=COLOURS["optimizer"])
    axes.plot([ends, ends], [-0.33, 1.75], color=style.FAINT, linewidth=1, linestyle=(0, (3, 3)), zorder=0)
    axes.set_yticks([0, 1], ["compute", "reducer"])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, found["step_ms"] * 1.1)
    axes.set_ylim(1.75, -1.15)
    axes.set_xlabel("ms since the step began")
    axes.grid(axis="x", color=style.GRID)
    return style.svg(figure)
