"""What slow_link.py and slow_rank.py read of a run that may still go on."""
import json
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
