#!/usr/bin/env python3
"""Time to the same loss where one rank of four is three times slower: ddp, parameter_server and what else --sides names.

    bench/slow_rank.py [--seeds 5] [--steps 500] [--most 1500] [--sides parameter_server,local_sgd,diloco,gossip] [--staleness 0]
                       [--server-shares 2] [--lr 0.001] [--pace-ms 30] [--slow 3] [--block-size 64] [--json FILE]

Four ranks of bench_slow_rank on this machine: examples/gpt's model (4 layers, width 256) on the docs' text, 8 samples an update. Each
forward also waits --pace-ms for each sample, as for an accelerator, so that few cores are enough; the last rank waits so much more that its
part of a batch takes --slow times as long. The level is the loss of ddp after --steps steps (mean of 20 steps); each run's time is from its
first log line to the one at which its own mean of 20 updates is there. A step of parameter_server is staleness + 1 updates: its batch is so
many times 8 samples. Prints each run, and medians over seeds.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

from loss_curve import compare, loss_curve

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "release"
WINDOW = 20  # updates
BATCH = 8


def run(flags, seed, more, updates, steps, until=None):
    """[(seconds since the first log line, mean loss of WINDOW updates, updates done)]; ends early once `until` is reached."""
    with tempfile.TemporaryDirectory(prefix="troupe-slow-rank-") as folder:
        words = [f"{BUILD}/launch/troupe", "launch", "--nproc", "4", "--run-dir", f"{folder}/launch", f"{BUILD}/bench/bench_slow_rank",
                 "--pace_ms", str(flags.pace_ms), "--slow", str(flags.slow), "--block_size", str(flags.block_size), "--batch_size",
                 str(BATCH * updates), "--optimizer", "adamw", "--lr", "0.001", "--schedule", "constant", "--warmup_steps",
                 str(20 // updates), "--clip_norm", "1", "--epochs", "100", "--log_interval", "1", "--save_every", "-1", "--validate_every",
                 "0", "--seed", str(seed), "--max_steps", str(steps // updates), "--run_dir", f"{folder}/run", "--checkpoint_dir",
                 f"{folder}/checkpoints", *more]
        metrics = pathlib.Path(folder, "run", "metrics.jsonl")
        points = []
        with open(f"{folder}/log", "w+") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            while process.poll() is None:
                time.sleep(0.5)
                points = read(metrics, updates)
                if until is not None and points and min(point[1] for point in points) <= until:
                    process.terminate()
                    process.wait(timeout=60)
                    break
            else:
                points = read(metrics, updates)
                if process.returncode != 0:
                    log.seek(0)
                    raise SystemExit("slow_rank: the job failed:\n" + log.read()[-3000:])
        return points


def read(metrics, updates):
    """The loss_curve with updates in the place of steps, of which each has so many."""
    return [(seconds, loss, steps * updates) for seconds, loss, steps in loss_curve(metrics, max(1, WINDOW // updates))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--most", type=int, default=1500)
    parser.add_argument("--sides", default="parameter_server")
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--server-shares", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.001, help="parameter_server's; ddp's is 0.001")
    parser.add_argument("--pace-ms", type=float, default=30)
    parser.add_argument("--slow", type=float, default=3)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--json")
    flags = parser.parse_args()
    sides = {"parameter_server": ["--strategy", "parameter_server", "--staleness", str(flags.staleness), "--server_shares",
                                  str(flags.server_shares), "--lr", str(flags.lr)],
             "local_sgd": ["--strategy", "local_sgd", "--sync_every", "10"],
             "diloco": ["--strategy", "diloco", "--sync_every", "10", "--outer_momentum", "0.5"],
             "gossip": ["--strategy", "gossip"]}

    def run_side(side, seed, steps, until):
        return run(flags, seed, sides[side] if side else [], flags.staleness + 1 if side == "parameter_server" else 1, steps, until)

    compare(run_side, flags.sides.split(","), flags, vars(flags))
    return 0


if __name__ == "__main__":
    sys.exit(main())
