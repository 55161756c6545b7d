#!/usr/bin/env python3
"""How much of fsdp's communication a paced link leaves exposed.

    bench/paced_link.py [--share 0.7] [--steps 12] [--layers 12] [--batch 8] [--prefetch 2] [--strategy fsdp] [--json FILE]

Two ranks of examples/gpt, each on a host of its own: network namespaces. First with an open link, which tells how long a step computes and
how many bytes a rank sends for it (the interface's own counter); then with `tc tbf` on the links at the rate at which those bytes take
--share of the compute. Communication is what the bytes take on the wire. Of it the share that is exposed: what compute waited for other ranks
(waited_share), and what the second step takes beyond the first one's compute (exposed_share): that has in it what the slower link costs in
processor time, since the network's stack and its emulation run on the ranks' cores.
Needs root and namespaces, two cores and a machine that does nothing else.
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

BUILD = ROOT / "build" / "release"
WARM_UP = 4
MODEL = ["--n_embd", "512", "--block_size", "256", "--optimizer", "adamw", "--epochs", "100", "--log_interval", "1",
         "--save_every", "-1", "--validate_every", "0", "--snapshot_every", "0"]


def sent_bytes(cluster, host):
    words = ["cat", "/sys/class/net/eth0/statistics/tx_bytes"]
    return int(cluster.run(host, words, capture_output=True, text=True, check=True).stdout)


def run(cluster, rate, steps, flags):
    """Median ms of a step, of what it waited for communication, and the bytes that a rank sent for it."""
    with tempfile.TemporaryDirectory(prefix="troupe-paced-link-") as folder:
        hosts = pathlib.Path(folder, "hosts")
        hosts.write_text("".join(f"{host} slots=1 address={cluster.address(host)}\n" for host in cluster.hosts))
        for host in cluster.hosts:
            cluster.rate(host, rate, burst="1mb")
        words = [f"{BUILD}/launch/troupe", "launch", "--hosts", str(hosts), "--ssh-config", str(cluster.ssh_config), "--run-dir",
                 f"{folder}/launch", f"{BUILD}/examples/gpt/gpt", *MODEL, "--max_steps", str(steps + WARM_UP), "--run_dir", f"{folder}/run",
                 "--checkpoint_dir", f"{folder}/checkpoints", *flags]
        before = sent_bytes(cluster, cluster.hosts[1])
        done = subprocess.run(cluster.enter(cluster.hosts[0]) + words, capture_output=True, text=True, timeout=540)
        sent = sent_bytes(cluster, cluster.hosts[1]) - before
        for host in cluster.hosts:
            cluster.rate(host, None)
        if done.returncode != 0:
            raise SystemExit("paced_link: the job failed:\n" + (done.stdout + done.stderr)[-3000:])
        lines = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
        train = [line for line in lines if line["kind"] == "train"][WARM_UP:]
        times = [1e3 * line["time_metrics/end_to_end(s)"] for line in train]
        waits = [t * (line["time_metrics/exposed_communication(%)"] + line["time_metrics/collectives(%)"]) / 100 for t, line in zip(times, train)]
        return statistics.median(times), statistics.median(waits), sent / (steps + WARM_UP)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.7, help="of compute that communication takes")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", default="8", help="samples of a step")
    parser.add_argument("--layers", default="12")
    parser.add_argument("--prefetch", default="2", help="units that are gathered ahead")
    parser.add_argument("--strategy", default="fsdp")
    parser.add_argument("--json")
    flags = parser.parse_args()
    job = ["--batch_size", flags.batch, "--n_layer", flags.layers, "--strategy", flags.strategy,
           *(["--fsdp_prefetch", flags.prefetch] if flags.strategy == "fsdp" else [])]
    try:
        with Cluster(2, "paced-link") as cluster:
            open_ms, open_wait, sent = run(cluster, None, flags.steps, job)
            compute = open_ms - open_wait
            rate = 8 * sent / (compute * flags.share / 1e3)  # bits a second
            paced_ms, paced_wait, paced_sent = run(cluster, f"{rate / 1e6:.1f}mbit", flags.steps, job)
    except CannotRun as reason:
        print(f"paced_link: {reason}", file=sys.stderr)
        return 77
    communication = 8e3 * paced_sent / rate
    result = {"strategy": flags.strategy, "layers": int(flags.layers), "prefetch": int(flags.prefetch), "mbit": round(rate / 1e6, 1),
              "mib_a_step": round(paced_sent / 2**20, 1),
              "open_ms": round(open_ms, 1), "open_wait_ms": round(open_wait, 1), "paced_ms": round(paced_ms, 1),
              "paced_wait_ms": round(paced_wait, 1), "communication_ms": round(communication, 1),
              "exposed_share": round((paced_ms - compute) / communication, 3), "waited_share": round(paced_wait / communication, 3)}
    print(json.dumps(result))
    if flags.json:
        pathlib.Path(flags.json).write_text(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
