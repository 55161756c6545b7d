#!/usr/bin/env python3
"""[L05] A job that begins with two nodes is joined by a third while it runs, loses it, and is joined again.

    tests/net/grow_net_test.py TROUPE RANK_PROBE
"""
import subprocess
import sys
import tempfile

from cluster import Cluster
from job import Job, check, probe_words, run_claims


def main():
    troupe, probe = sys.argv[1:3]
    with Cluster(3) as cluster, tempfile.TemporaryDirectory() as scratch:
        def node(k, *flags):
            # What a user types on each node: the same but for --node-rank.
            return Job(cluster, [troupe, "launch", "--nnodes", "2:3", "--node-rank", str(k), "--nproc-per-node", "2", "--master-addr",
                                 cluster.address("h0"), "--master-port", "29400", "--keys", f"{scratch}/keys", "--run-dir", f"{scratch}/run{k}", *flags,
                                 *probe_words(probe, scratch), "--epochs", "100", "--pause_ms", "20"], host=f"h{k}")
        subprocess.run([troupe, "keys", f"{scratch}/keys"], check=True, stdout=subprocess.DEVNULL)
        first, second = node(0), node(1)
        first.wait_for(r"4 ranks, backend")
        first.wait_for(r"step 12/")
        third = node(2)
        first.wait_for(r"slot [45] on node2 joins")
        first.wait_for(r"generation \d+: .* to 6 ranks")
        third.wait_for(r"\[rank 5\] pid")
        cluster.kill("h2")
        first.wait_for(r"generation \d+: shrinks .* to 4 ranks")
        cluster.restart("h2")
        before = len([line for line in first.text().splitlines() if "to 6 ranks" in line])
        again = node(2)
        first.wait_for(rf"(?s)(to 6 ranks.*){{{before + 1}}}", whole=True)
        code, text = first.finish()
        check(code == 0 and "step 1000/1000" in text, f"exit code {code}", text)
        check(text.count("[rank 0] pid") == 1 and text.count("[rank 1] pid") == 1, "the first node's processes were replaced", text)
        for other in (second, again):
            code, theirs = other.finish()
            check(code == 0, f"exit code {code}", theirs)
    print("ok: a node joins a running job, and comes back after a power failure")


if __name__ == "__main__":
    run_claims(main)
