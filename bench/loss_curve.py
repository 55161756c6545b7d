"""The time to ddp's loss, for slow_link.py and slow_rank.py: what they read of runs that may still go on, and their comparison."""
import json
import pathlib
import statistics


def loss_curve(metrics, window):
    """[(seconds since the first step, mean loss of `window` steps, steps done)] of a metrics.jsonl with a line for each step."""
    if not metrics.exists():
        return []
    entries = []
    for line in metrics.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # not yet whole
            continue
        if entry["kind"] == "train":
            entries.append((entry["wall_time"], entry["loss_metrics/global_avg_loss"]))
    return [(entries[i][0] - entries[0][0], statistics.fmean(loss for _, loss in entries[i - window + 1:i + 1]), i + 1)
            for i in range(window - 1, len(entries))]


def compare(run, sides, flags, settings):
    """ddp and then each of `sides`, for each seed: prints each, and medians over seeds; the same to flags.json.

    run(side, seed, steps, until) -> loss_curve, of ddp where side is None; it may end early once a loss of `until` is there. The level is
    ddp's after flags.steps steps; a side has flags.most of its own to come there.
    """
    rows = []
    for seed in range(1, flags.seeds + 1):
        points = run(None, seed, flags.steps, None)
        seconds, level, _ = points[-1]
        row = {"seed": seed, "level": round(level, 4), "ddp": {"seconds": round(seconds, 1), "steps": flags.steps}}
        print(json.dumps(row), flush=True)
        for side in sides:
            points = run(side, seed, flags.most, level)
            there = next((point for point in points if point[1] <= level), None)
            row[side] = {"seconds": None, "steps": points[-1][2] if points else 0}
            if there:
                row[side] = {"seconds": round(there[0], 1), "steps": there[2], "of ddp": round(there[0] / seconds, 3)}
            print(json.dumps({side: row[side]}), flush=True)
        rows.append(row)
    print(f"ddp: {statistics.median(row['ddp']['seconds'] for row in rows):.1f} s for {flags.steps} steps, median of {len(rows)} seeds")
    for side in sides:
        there = [row[side] for row in rows if row[side]["seconds"] is not None]
        print(f"{side}: {statistics.median(t['seconds'] for t in there):.1f} s, {statistics.median(t['of ddp'] for t in there):.3f} of ddp's time to "
              f"the same loss, {len(there)} of {len(rows)} seeds" if there else f"{side}: never came to ddp's loss")
    if flags.json:
        pathlib.Path(flags.json).write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")
