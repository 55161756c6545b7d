#!/usr/bin/env python3
"""[C04] A sharded job on four hosts: one goes silent, its shard comes back from the memory of another host, no more than snapshot_every
steps are run again, and the losses are those of a run to which nothing happened.

    tests/net/sharded_net_test.py TROUPE RANK_PROBE
"""
import json
import pathlib
import re
import sys
import tempfile
import time

from cluster import Cluster
from job import Job, check, run_claims

SNAPSHOT_EVERY = 10


def train(cluster, troupe, probe, scratch):
    return Job.of_probe(cluster, troupe, probe, scratch, batch_size=12,
                        arguments=["--probe_model", "plain", "--strategy", "fsdp", "--optimizer", "adamw", "--lr", "0.01", "--epochs", "4",
                                   "--pause_ms", "20", "--snapshot_every", str(SNAPSHOT_EVERY), "--run_dir", f"{scratch}/run"])


def losses(scratch):
    lines = map(json.loads, pathlib.Path(scratch, "run/metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss_metrics/global_avg_loss"] for line in lines if line["kind"] == "train"}


def main():
    troupe, probe = sys.argv[1:3]
    with Cluster(4) as cluster, tempfile.TemporaryDirectory() as scratch:
        code, text = train(cluster, troupe, probe, f"{scratch}/a").finish()
        check(code == 0 and "4 ranks, backend gloo" in text and "generation" not in text, "undisturbed", text)
        expected = losses(f"{scratch}/a")

        job = train(cluster, troupe, probe, f"{scratch}/b")
        job.wait_for(r"step 36/")
        began = time.monotonic()
        cluster.link("h2", False)  # nobody is told: its heartbeats stop
        job.wait_for(r"is run again: .*from the snapshot of step")
        seconds = time.monotonic() - began
        code, text = job.finish()
        check(code == 0 and "shrinks from 4 to 3 ranks" in text, f"a host lost: exit code {code}", text)
        again = re.search(r"step (\d+) is run again: .* from the snapshot of step (\d+)", text)
        steps = int(again.group(1)) - int(again.group(2))
        check(0 <= steps <= SNAPSHOT_EVERY, f"{steps} steps run again", text)
        seen = losses(f"{scratch}/b")
        check(seen.keys() == expected.keys(), f"steps {sorted(seen.keys() ^ expected.keys())} in one run only", text)
        difference = max(abs(seen[step] - expected[step]) for step in seen)
        check(difference < 1e-4, f"losses differ by {difference}", text)
        print(f"ok: back {seconds:.1f} s after the loss, {steps} steps run again, losses differ by {difference:.1g}")


if __name__ == "__main__":
    run_claims(main)
