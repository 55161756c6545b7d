#!/usr/bin/env python3
"""Faults of docs/faults.md that need hosts of their own: what networks do, and hosts that go together.

    tests/net/fault_net_test.py TROUPE RANK_PROBE
"""
import pathlib
import re
import time

from job import Job, check, processes_of, run_claims, run_faults, wait_until


def a_link_that_flaps_for_200_ms_changes_nothing(cluster, troupe, probe, scratch):
    """fault 16"""
    job = Job.of_probe(cluster, troupe, probe, scratch, arguments=["--epochs", "12", "--pause_ms", "20"])
    for step in (12, 30, 50):
        job.wait_for(rf"step {step}/")
        cluster.link("h2", False)
        time.sleep(0.2)
        cluster.link("h2", True)
    code, text = job.finish()
    check(code == 0 and "step 120/120" in text and "generation" not in text, f"exit code {code}", text)


def two_hosts_that_die_at_once_are_left_out_together(cluster, troupe, probe, scratch):
    """fault 5"""
    job = Job.of_probe(cluster, troupe, probe, scratch, hosts=5, batch_size=60, arguments=["--epochs", "15", "--pause_ms", "20"])
    job.wait_for(r"step 12/")
    cluster.kill("h1")
    cluster.kill("h4")
    code, text = job.finish()
    cluster.restart("h1")
    cluster.restart("h4")
    generations = re.findall(r"generation \d+: ", text)
    check(code == 0 and "to 3 ranks" in text and "step 60/60" in text and len(generations) <= 2, f"exit code {code}", text)


def halves_of_a_cut_network_both_park(cluster, troupe, probe, scratch):
    """fault 14"""
    job = Job.of_probe(cluster, troupe, probe, scratch, flags=["--park-after", "6"], arguments=["--epochs", "100", "--pause_ms", "20"])
    job.wait_for(r"step 12/")
    cluster.partition(["h0", "h1"], ["h2", "h3"])
    check(wait_until(lambda: not processes_of(cluster, f"{probe}\0", ["h2", "h3"]), 60), "the far side does not end", job.text())
    code, text = job.finish()
    cluster.heal()
    check(code == 75 and "no quorum" in text, f"exit code {code}", text)
    check("goes on" not in text and "shrinks" not in text, "a half went on", text)
    for rank in (2, 3):
        log = pathlib.Path(f"{scratch}/run/rank{rank}.log").read_text()
        check("the coordinator can't be reached" in log and "resume auto" in log, f"rank {rank} did not park", log)
    # Each side's last committed step, and where the checkpoint is from.
    done = max(int(step) for step in re.findall(r"step (\d+)/", text))
    latest = pathlib.Path(f"{scratch}/checkpoints/latest").read_text().split()[0]
    check(done <= int(latest.split("-")[1]) <= done + 1, f"{latest} after step {done}", text)
    resumed = Job.of_probe(cluster, troupe, probe, scratch, arguments=["--resume", "latest", "--epochs", "100", "--max_steps", str(done + 20)])
    code, text = resumed.finish()
    check(code == 0 and f"resume from {scratch}/checkpoints/{latest}" in text, f"exit code {code}", text)


CLAIMS = {"16": a_link_that_flaps_for_200_ms_changes_nothing, "5": two_hosts_that_die_at_once_are_left_out_together,
          "14": halves_of_a_cut_network_both_park}


if __name__ == "__main__":
    run_claims(lambda: run_faults(CLAIMS, hosts=5))
