#!/usr/bin/env python3
"""[L04] On three hosts one after the other leaves on notice and comes back, under ddp, fsdp and diloco.

    tests/net/leave_net_test.py TROUPE RANK_PROBE [NOTICES [STRATEGY..]]

Prints for each strategy: how long until the node's launcher has ended, the survivors' longest gap between two steps, beside the median
step, and how many steps were run again. Two notices each without NOTICES.
"""
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from cluster import Cluster
from job import Job, check, probe_words, processes_of, run_claims, wait_until

STRATEGIES = {"ddp": [], "fsdp": [], "diloco": ["--sync_every", "5"]}
WAIT_S = 120


class Nodes:
    """A job of three nodes with a rank each, of which those behind node 0 leave and come back."""

    def __init__(self, cluster, troupe, probe, scratch, strategy):
        self.cluster, self.scratch = cluster, scratch
        scratch.mkdir()
        subprocess.run([troupe, "keys", f"{scratch}/keys"], check=True, stdout=subprocess.DEVNULL)
        self.words = [troupe, "launch", "--nnodes", "1:3", "--nproc-per-node", "1", "--master-addr", cluster.address("h0"), "--master-port", "29400",
                      "--keys", f"{scratch}/keys", "--last-call", "10"]
        words = probe_words(probe, scratch)
        none = words.index("--run_dir")
        self.program = [*words[:none], *words[none + 2:], "--epochs", "10000", "--pause_ms", "20", "--validate_every", "0", "--strategy", strategy, *STRATEGIES[strategy]]
        self.nodes = [self.start(k) for k in range(3)]
        self.nodes[0].wait_for(r"3 ranks, backend")
        self.nodes[0].wait_for(r"step 12/")

    def start(self, k):
        return Job(self.cluster, [*self.words, "--node-rank", str(k), "--run-dir", f"{self.scratch}/run{k}", *self.program], host=f"h{k}")

    def launcher_of(self, k):
        mine = [pid for pid in processes_of(self.cluster, f"--node-rank\0{k}\0", [f"h{k}"])
                if os.readlink(f"/proc/{pid}/exe").endswith("/troupe")]
        assert len(mine) == 1, mine
        return mine[0]

    def wait_for_times(self, pattern, n):
        check(wait_until(lambda: len(re.findall(pattern, self.nodes[0].text())) >= n, WAIT_S), f"not {n} times: {pattern}", self.nodes[0].text())

    def leave(self, k, n):
        """Seconds from the notice to the launcher's end."""
        pid = self.launcher_of(k)
        started = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        code = self.nodes[k].process.wait(timeout=WAIT_S)
        took = time.monotonic() - started
        check(code == 0, f"node {k} ended with {code}", self.nodes[k].text())
        self.wait_for_times(r"leaves \(SIGTERM\): shrinks from 3 to 2 ranks", n)
        return took

    def come_back(self, k, n):
        self.nodes[k] = self.start(k)
        self.wait_for_times(r"generation \d+: grows from 2 to 3 ranks", n)
        self.wait_for_times(" samples/s", self.nodes[0].text().count(" samples/s") + 12)

    def end(self):
        os.kill(self.launcher_of(0), signal.SIGTERM)
        for k, node in enumerate(self.nodes):
            code, text = node.finish()
            check(code in (0, 143), f"node {k} ended with {code}", text)  # the others hear of the end, or of the signal
        return [json.loads(line) for line in pathlib.Path(f"{self.scratch}/run0/metrics.jsonl").read_text().splitlines()]


def gaps(records):
    """Of each leave the time between the two steps around it, in s; how many steps were run again behind one; the median step's time. Where
    a node comes back a sharded job goes back to its last snapshot: that is no leave's cost."""
    found, again, times, leaves = [], 0, [], []
    for record in records:
        if record["kind"] == "train":
            times.append((record["step"], record["wall_time"]))
            if leaves:
                stands = leaves.pop()
                again += max(0, stands - record["step"])
                found.append(times[-1][1] - times[-2][1])
        elif record["kind"] == "event" and " leaves (SIGTERM)" in record.get("text", ""):
            leaves.append(int(re.search(r"at step (\d+)", record["text"]).group(1)))
    return found, again, statistics.median(b[1] - a[1] for a, b in zip(times, times[1:]))


def main():
    troupe, probe = sys.argv[1:3]
    notices = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    for strategy in sys.argv[4:] or STRATEGIES:
        with Cluster(3) as cluster, tempfile.TemporaryDirectory() as scratch:
            job = Nodes(cluster, troupe, probe, pathlib.Path(scratch, strategy), strategy)
            took = []
            for n in range(1, notices + 1):
                took.append(job.leave(1 + n % 2, n))
                job.come_back(1 + n % 2, n)
            records = job.end()
            text = job.nodes[0].text()
            gap, again, step = gaps(records)
            check(len(gap) == notices, f"{len(gap)} of {notices} leaves are in the records", text)
            check(again == 0, f"{again} steps were run again, or left out", text)
            check("is interrupted: rank" not in text, "a rank that left was taken for lost", text)
            print(f"ok: {strategy}: {notices} notices; gone after {statistics.median(took):.2f} s, at most {max(took):.2f}; gap between two steps "
                  f"{statistics.median(gap) * 1000:.0f} ms, at most {max(gap) * 1000:.0f}; a step is {step * 1000:.0f} ms; {again} steps again", flush=True)


if __name__ == "__main__":
    run_claims(main)
