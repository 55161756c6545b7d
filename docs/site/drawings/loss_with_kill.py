"""The loss of a run in which a rank is killed, over that of a run without a fault."""
from . import style


def draw():
    found = style.data("docs/data/loss_with_kill.json")
    undisturbed, killed, at = found["undisturbed"], found["killed"], found["steps_done"]
    if undisturbed != killed:
        raise SystemExit("loss_with_kill: the two curves differ, and the title says that they don't")
    steps = range(1, len(killed) + 1)
    figure, axes = style.page(
        4.0, f"A rank dies after {at} of {len(killed)} steps: every loss keeps its bits",
        f"GPT example (0.8 million parameters, 16 samples a step), 2 CPU ranks with ddp, seed {found['source']['seed']}; rank 1 gets SIGKILL in backward, "
        f"a new process takes its place. {found['source']['machine']}. docs/data/loss_with_kill.json, {found['source']['time'][:10]}.", left=0.085)
    axes.plot(steps, undisturbed, color=style.OURS_LIGHT, linewidth=6, solid_capstyle="round", label="without a fault")
    axes.plot(steps, killed, color=style.OURS, linewidth=1.5, label="rank 1 is killed")
    axes.axvline(at, color=style.KILL, linewidth=1.5, linestyle=(0, (4, 3)))
    axes.text(at + 4, 5.35, f"rank 1 gets SIGKILL;\nrank 0 stands still for {found['stalled_ms']:.0f} ms,\nthen both ranks run the step again", color=style.KILL, va="top", fontsize=9.5)
    axes.set_xlim(0, len(killed))
    axes.set_ylim(2, 6)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss, nats per byte")
    axes.grid(color=style.GRID)
    axes.legend(loc=(0.68, 0.32), frameon=False, fontsize=10)
    return style.svg(figure)
