"""Steps and trainings over links that are slower than compute."""
from . import style


def draw():
    found, training = style.rows(), style.data("docs/data/slow_link.json")
    ddp, bf16 = found["ddp.link"], found["ddp.link/bf16"]
    to_loss = training["rows"]
    figure, (left, right) = style.page(
        4.3, f"On slow links fewer bytes count: with bf16 on the wire a step takes {bf16['ratio']:.2f} of DDP's; "
        f"diloco reaches ddp's loss in {to_loss[2]['seconds'] / to_loss[0]['seconds']:.2f} of its time",
        "Left: 8 × Linear(1024), 128 samples a rank, 2 ranks, DDP on Gloo at its fastest setting; lines: 95 % interval of the ratio. "
        "Right: GPT, 4 layers, width 256, 4 ranks on 2 hosts, diloco with an outer step every 10 steps, medians of 5 seeds; lines: least and largest share of ddp's time. "
        f"2 cores, AMD EPYC, virtual machine, tc tbf. bench/results.json {ddp['time'][:10]}, docs/strategies.md {training['source']['time']}.",
        columns=2, left=0.095, right=0.985, wspace=0.27)

    def bar(axes, place, value, ends, colour, label):
        axes.bar(place, value, 0.6, color=colour)
        if ends:
            axes.errorbar(place, value, yerr=[[value - ends[0]], [ends[1] - value]], color=style.INK, capsize=3, linewidth=1.2)
        axes.text(place, (ends or [0, value])[1] * 1.0 + axes.get_ylim()[1] * 0.025, label, ha="center", fontweight="bold")

    left.set_ylim(0, 520)
    peer = ddp["peer"]
    bar(left, 0, peer, None, style.PEER, f"{peer:.0f} ms")
    bar(left, 1, ddp["ours"], [end * peer for end in ddp["spread"]], style.OURS, f"{ddp['ours']:.0f} ms")
    bar(left, 2, bf16["ours"], [end * peer for end in bf16["spread"]], style.OURS, f"{bf16['ours']:.0f} ms")
    left.set_xticks(range(3), [f"PyTorch\nDDP {ddp['versions']['torch']}", "Troupe\nddp", "Troupe ddp,\nbf16"])
    left.set_ylabel("a step at 1 Gbit/s (ms)")
    right.set_ylim(0, 370)
    for place, row in enumerate(to_loss):
        ends = [end * to_loss[0]["seconds"] for end in row.get("share_of_ddp_by_seed", [])]
        bar(right, place, row["seconds"], ends, style.OURS, f"{row['seconds']:.4g} s")
    right.set_xticks(range(3), ["Troupe\nddp", "Troupe ddp,\nbf16", "Troupe diloco,\nbf16"])
    right.set_ylabel("to ddp's loss at 200 Mbit/s (s)")
    for axes in (left, right):
        axes.tick_params(axis="x", length=0, labelsize=9)
        axes.grid(axis="y", color=style.GRID)
    return style.svg(figure)
