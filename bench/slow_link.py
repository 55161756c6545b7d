#!/usr/bin/env python3
"""Time to the same loss over a slow link: ddp, ddp with bf16 on the wire, local_sgd, diloco.

    bench/slow_link.py [--seeds 1] [--rate 200mbit] [--steps 500] [--most 1500] [--sync-every 20] [--json FILE]

Four ranks of examples/gpt (4 layers, width 256) on the docs' text, two on each of two hosts, which are network namespaces with `tc tbf` on
their links, and 8 samples of 64 tokens a step. The level is the loss of ddp after --steps steps (mean of 20 steps); each run's time is from its first step to the step at which
its own mean of 20 steps is there. Prints each run, and medians over seeds. Needs root and namespaces, and a machine that does nothing else.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "net"))
from cluster import CannotRun, Cluster  # noqa: E402
from loss_curve import loss_curve  # noqa: E402

BUILD = ROOT / "build" / "release"
WINDOW = 20
COMMON = ["--n_embd", "256", "--n_layer", "4", "--block_size", "64", "--batch_size", "8", "--optimizer", "adamw", "--lr", "0.001",
          "--schedule", "constant", "--warmup_steps", "20", "--clip_norm", "1", "--epochs", "100", "--log_interval", "1", "--save_every", "-1",
          "--validate_every", "0"]


def run(cluster, rate, seed, steps, flags, until=None):
    """The loss_curve; ends early once `until` is reached."""
    with tempfile.TemporaryDirectory(prefix="troupe-slow-link-") as folder:
        hosts = pathlib.Path(folder, "hosts")
        hosts.write_text("".join(f"{host} slots=2 address={cluster.address(host)}\n" for host in cluster.hosts))
        for host in cluster.hosts:
            cluster.rate(host, rate)
        words = [f"{BUILD}/launch/troupe", "launch", "--hosts", str(hosts), "--ssh-config", str(cluster.ssh_config), "--run-dir",
                 f"{folder}/launch", f"{BUILD}/examples/gpt/gpt", *COMMON, "--seed", str(seed), "--max_steps", str(steps), "--run_dir",
                 f"{folder}/run", "--checkpoint_dir", f"{folder}/checkpoints", *flags]
        log = open(f"{folder}/log", "w+")
        process = cluster.start(cluster.hosts[0], words, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        metrics = pathlib.Path(folder, "run", "metrics.jsonl")
        points = []
        while True:
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                pass
            points = loss_curve(metrics, WINDOW)
            reached = until is not None and points and min(loss for _, loss, _ in points) <= until
            if process.poll() is not None or reached:
                break
        if process.poll() is None:
            process.stdin.close()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
        elif process.returncode != 0:
            log.seek(0)
            raise SystemExit("slow_link: the job failed:\n" + log.read()[-3000:])
        for host in cluster.hosts:
            cluster.rate(host, None)
        return points


def time_to(points, level):
    for seconds, loss, steps in points:
        if loss <= level:
            return {"seconds": round(seconds, 1), "steps": steps}
    return {"seconds": None, "steps": len(points) + WINDOW - 1, "loss": points[-1][1] if points else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--most", type=int, default=1500)
    parser.add_argument("--sync-every", type=int, default=20)
    parser.add_argument("--json")
    flags = parser.parse_args()
    sides = {"ddp + bf16": ["--comm_hook", "bf16"],
             "local_sgd": ["--strategy", "local_sgd", "--sync_every", str(flags.sync_every), "--comm_hook", "bf16"],
             "diloco": ["--strategy", "diloco", "--sync_every", str(flags.sync_every), "--comm_hook", "bf16"]}
    rows = []
    try:
        with Cluster(2, "slow-link") as cluster:
            for seed in range(1, flags.seeds + 1):
                points = run(cluster, flags.rate, seed, flags.steps, [])
                level = points[-1][1]
                row = {"seed": seed, "level": round(level, 4), "ddp": {"seconds": round(points[-1][0], 1), "steps": flags.steps}}
                print(json.dumps(row), flush=True)
                for name, more in sides.items():
                    row[name] = time_to(run(cluster, flags.rate, seed, flags.most, more, level), level)
                    seconds = row[name]["seconds"]
                    row[name]["of ddp"] = round(seconds / row["ddp"]["seconds"], 3) if seconds else None
                    print(json.dumps({name: row[name]}), flush=True)
                rows.append(row)
    except CannotRun as reason:
        print(f"slow_link: {reason}", file=sys.stderr)
        return 77
    print(f"ddp: {statistics.median(row['ddp']['seconds'] for row in rows):.1f} s for {flags.steps} steps, median of {len(rows)} seeds")
    for name in sides:
        times = [row[name]["seconds"] for row in rows if row[name]["seconds"]]
        shares = [row[name]["of ddp"] for row in rows if row[name]["of ddp"]]
        print(f"{name}: {statistics.median(times):.1f} s, {statistics.median(shares):.3f} of ddp's time to the same loss, {len(shares)} of {len(rows)} seeds" if shares
              else f"{name}: never came to ddp's loss")
    if flags.json:
        pathlib.Path(flags.json).write_text(json.dumps({"rate": flags.rate, "steps": flags.steps, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
