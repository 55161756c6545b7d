#!/usr/bin/env python3
"""Time to the same loss over a slow link: ddp, ddp with bf16 on the wire, local_sgd, diloco, and with --program bench_slow_rank also gossip
and parameter_server.

    bench/slow_link.py [--seeds 1] [--rate 200mbit] [--steps 500] [--most 1500] [--sync-every 10] [--sides diloco,..] [--program gpt]
                       [--json FILE]

Four ranks of examples/gpt (4 layers, width 256) on the docs' text, two on each of two hosts, which are network namespaces with `tc tbf` on
their links, and 8 samples of 64 tokens a step. The level is the loss of ddp after --steps steps (mean of 20 steps); each run's time is from
its first step to the step at which its own mean of 20 steps is there. Prints each run, and medians over seeds. Needs root and namespaces,
and a machine that does nothing else.
"""
import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "net"))
from cluster import CannotRun, Cluster  # noqa: E402
from loss_curve import compare, loss_curve  # noqa: E402

BUILD = ROOT / "build" / "release"
WINDOW = 20
COMMON = ["--n_embd", "256", "--n_layer", "4", "--block_size", "64", "--batch_size", "8", "--optimizer", "adamw", "--lr", "0.001",
          "--schedule", "constant", "--warmup_steps", "20", "--clip_norm", "1", "--epochs", "100", "--log_interval", "1", "--save_every", "-1",
          "--validate_every", "0"]


PROGRAMS = {"gpt": [f"{BUILD}/examples/gpt/gpt"], "bench_slow_rank": [f"{BUILD}/bench/bench_slow_rank", "--pace_ms", "0", "--slow", "1"]}


def run(cluster, rate, seed, steps, flags, program, until=None):
    """The loss_curve; ends early once `until` is reached."""
    with tempfile.TemporaryDirectory(prefix="troupe-slow-link-") as folder:
        hosts = pathlib.Path(folder, "hosts")
        hosts.write_text("".join(f"{host} slots=2 address={cluster.address(host)}\n" for host in cluster.hosts))
        for host in cluster.hosts:
            cluster.rate(host, rate)
        words = [f"{BUILD}/launch/troupe", "launch", "--hosts", str(hosts), "--ssh-config", str(cluster.ssh_config), "--run-dir",
                 f"{folder}/launch", *PROGRAMS[program], *COMMON, "--seed", str(seed), "--max_steps", str(steps), "--run_dir",
                 f"{folder}/run", "--checkpoint_dir", f"{folder}/checkpoints", *flags]
        log = open(f"{folder}/log", "w+")
        process = cluster.start(cluster.hosts[0], words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
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
            stop_launch(cluster)
            process.wait(timeout=60)
        elif process.returncode != 0:
            log.seek(0)
            raise SystemExit("slow_link: the job failed:\n" + log.read()[-3000:])
        for host in cluster.hosts:
            cluster.rate(host, None)
        return points


def stop_launch(cluster):
    """A signal to the process that was started reaches nsenter only."""
    for pid in cluster.pids(cluster.hosts[0]):
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[1:2] == [b"launch"]:
            os.kill(pid, signal.SIGTERM)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--most", type=int, default=1500)
    parser.add_argument("--sync-every", type=int, default=10)
    parser.add_argument("--sides", default="ddp + bf16,local_sgd,diloco", help="those to run beside ddp")
    parser.add_argument("--program", default="gpt", choices=PROGRAMS)
    parser.add_argument("--json")
    flags = parser.parse_args()
    sides = {"ddp + bf16": ["--comm_hook", "bf16"],
             "local_sgd": ["--strategy", "local_sgd", "--sync_every", str(flags.sync_every), "--comm_hook", "bf16"],
             # So few outer steps want less momentum than 0.9, with which it does not come there in 1,500.
             "diloco": ["--strategy", "diloco", "--sync_every", str(flags.sync_every), "--outer_momentum", "0.5", "--comm_hook", "bf16"],
             "gossip": ["--strategy", "gossip"],
             "parameter_server": ["--strategy", "parameter_server", "--staleness", "0", "--server_shares", "2"]}
    try:
        with Cluster(2, "slow-link") as cluster:
            compare(lambda side, seed, steps, until: run(cluster, flags.rate, seed, steps, sides[side] if side else [], flags.program, until),
                    flags.sides.split(","), flags, vars(flags))
    except CannotRun as reason:
        print(f"slow_link: {reason}", file=sys.stderr)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
