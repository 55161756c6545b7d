#!/usr/bin/env python3
"""A job on hosts that are network namespaces: started over ssh from a host list, it loses hosts and goes on, or parks.

    tests/net/job_net_test.py TROUPE RANK_PROBE
"""
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

from cluster import SKIP, CannotRun, Cluster
from job import Job, check, processes_of

def main():
    troupe, probe = sys.argv[1:3]
    try:
        with Cluster(4) as cluster, tempfile.TemporaryDirectory() as scratch:
            # [L02] A host list, ssh, an agent on each host.
            job = Job.of_probe(cluster, troupe, probe, f"{scratch}/a", arguments=["--epochs", "2"])
            code, text = job.finish()
            check(code == 0 and "4 ranks, backend gloo" in text and re.search(r"step 20/20", text), f"exit code {code}", text)

            # [L05] A host loses its power in the middle: the others go on with the same global batch.
            job = Job.of_probe(cluster, troupe, probe, f"{scratch}/b", arguments=["--epochs", "6", "--pause_ms", "20"])
            job.wait_for(r"step 12/")
            cluster.kill("h3")
            code, text = job.finish()
            check(code == 0 and "shrinks from 4 to 3 ranks" in text and "step 60/60" in text, f"exit code {code}", text)
            cluster.restart("h3")

            # [L05] fault 13: a cut network, three hosts with the coordinator on one side: the larger side goes on.
            job = Job.of_probe(cluster, troupe, probe, f"{scratch}/c", arguments=["--epochs", "12", "--pause_ms", "20"])
            job.wait_for(r"step 12/")
            cluster.partition(["h0", "h1", "h2"], ["h3"])
            job.wait_for(r"shrinks from 4 to 3 ranks")
            code, text = job.finish()
            check(code == 0 and "step 120/120" in text, f"exit code {code}", text)
            cluster.heal()

            # [L02] fault 35: a host that can't be reached is named, and the job does not begin without it.
            cluster.kill("h2")
            code, text = Job.of_probe(cluster, troupe, probe, f"{scratch}/d", arguments=["--epochs", "1"]).finish()
            check(code == 69 and "host h2: its agent ended" in text, f"exit code {code}", text)
            # ... unless fewer are enough.
            code, text = Job.of_probe(cluster, troupe, probe, f"{scratch}/e", flags=["--min-ranks", "3"], arguments=["--epochs", "1"]).finish()
            check(code == 0 and "3 ranks, backend gloo" in text, f"exit code {code}", text)
            cluster.restart("h2")

            # [T06] Ctrl-C on the launcher, and a launcher that dies: nothing is left on any host.
            job = Job.of_probe(cluster, troupe, probe, f"{scratch}/f", arguments=["--epochs", "1000", "--pause_ms", "20"])
            job.wait_for(r"step 12/")
            before = {host: set(cluster.pids(host)) for host in cluster.hosts}
            launcher = [pid for pid in before["h0"] if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"{troupe}\0launch".encode())]
            check(len(launcher) == 1, "one launcher", str(launcher))
            os.kill(launcher[0], signal.SIGKILL)
            deadline = time.monotonic() + 30

            def left():
                return processes_of(cluster, probe)
            while left() and time.monotonic() < deadline:
                time.sleep(0.1)
            check(not left(), "orphans", str(left()))
        print("all well")
        return 0
    except CannotRun as why:
        print(f"NOT RUN: {why}", file=sys.stderr)
        return SKIP


if __name__ == "__main__":
    sys.exit(main())
