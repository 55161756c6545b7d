"""From a rank's death to a survivor's next step, beside TorchFT's and torchrun's."""
import statistics

from . import style

LIMIT_MS = 30000  # for so long bench/recover.py waits


def draw():
    found, versions = style.data("bench/recover.json"), style.rows()["ddp.mlp/b16"]["versions"]
    sides = {"spare": "Troupe:\na spare takes the place", "shrink": "Troupe:\nthe job shrinks", "replaced": "Troupe:\na new process is started",
             "torchft": f"TorchFT {versions['torchft']},\nits defaults", "torchrun": f"torchrun {versions['torch']},\n--max-restarts 20"}
    kills = {side: found["kills"][side] for side in sides}
    medians = {side: statistics.median(values) for side, values in kills.items()}
    ours = [medians[side] for side in ("spare", "shrink", "replaced")]
    if any(value < LIMIT_MS for value in kills["torchrun"]):
        raise SystemExit("recovery_time: torchrun took a step; its row has to be drawn as the others")
    figure, axes = style.page(
        4.5, f"After a SIGKILL survivors step again within {min(ours):.0f} to {max(ours):.0f} ms (medians)",
        f"4 CPU ranks on one host (2 cores, AMD EPYC, virtual machine), steps of about 5 ms, one rank gets SIGKILL; {len(kills['spare'])} kills each. "
        f"Dots: each kill. Lines and numbers: medians. torchrun's restarted ranks waited in Gloo's connectFullMesh; on an earlier machine they "
        f"took 4.0 to 4.7 s. docs/benchmarks.md, bench/recover.json, {found['time'][:10]}.", left=0.255)
    for y, (side, values) in enumerate(kills.items()):
        colour = style.OURS if side in ("spare", "shrink", "replaced") else style.THIRD if side == "torchft" else style.FAINT
        if side == "torchrun":
            axes.annotate("", (58000, y), (LIMIT_MS, y), arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.6})
            axes.plot([LIMIT_MS], [y], "|", color=colour, markersize=16, markeredgewidth=2)
            axes.text(LIMIT_MS * 0.87, y, f"no step within 30 s, {len(values)} of {len(values)} times", va="center", ha="right", fontweight="bold", color=colour)
            continue
        spread = [y + 0.16 * ((i * 7) % 5 - 2) / 2 for i in range(len(values))]
        axes.plot(values, spread, "o", color=colour, alpha=0.5, markersize=4.5, markeredgewidth=0)
        axes.plot([medians[side]] * 2, [y - 0.33, y + 0.33], color=colour, linewidth=2)
        label = f"{medians[side]:.0f} ms" if medians[side] < 1000 else f"{medians[side] / 1e3:.1f} s"
        axes.text(max(values) * 1.16, y, label, va="center", fontweight="bold", color=colour)
    axes.set_xscale("log")
    axes.set_xlim(20, 60000)
    axes.set_ylim(len(kills) - 0.5, -0.6)
    axes.set_yticks(range(len(kills)), sides.values())
    axes.tick_params(axis="y", length=0)
    axes.set_xticks([30, 100, 300, 1000, 3000, 10000, 30000], ["30 ms", "100 ms", "300 ms", "1 s", "3 s", "10 s", "30 s"])
    axes.minorticks_off()
    axes.set_xlabel("from the kill to a survivor's next step (log scale)")
    axes.grid(axis="x", color=style.GRID)
    return style.svg(figure)
