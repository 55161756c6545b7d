#!/usr/bin/env python3
"""Faults of docs/faults.md that are those of links: one that is cut one way, and ones that are slow at random.

    tests/net/link_net_test.py TROUPE RANK_PROBE [FAULT ..]
"""
import hashlib
import pathlib
import re

from job import Job, check, run_claims, run_faults


def of_two_hosts_whose_link_is_cut_one_way_one_is_left_out_once(cluster, troupe, probe, scratch):
    """fault 15"""
    job = Job.of_probe(cluster, troupe, probe, scratch, arguments=["--epochs", "12", "--pause_ms", "20", "--collective_timeout", "3"])
    job.wait_for(r"step 12/")
    cluster.drop("h1", "h2")  # what h1 sends; all other ways are open, those of the coordinator too
    code, text = job.finish()
    cluster.heal()
    check(code == 0 and "step 120/120" in text, f"exit code {code}", text)
    evicted = re.findall(r"rank (\d) is killed: it and rank (\d) can't reach each other over the data network", text)
    check(evicted == [("2", "1")], f"killed for it: {evicted}", text)
    check("shrinks from 4 to 3 ranks" in text, "the others go on", text)
    check("is on a link that failed: it is not started again for" in text, "it is held down", text)
    # One generation that tried again with all, one without it; nobody comes and goes.
    generations = re.findall(r"generation \d+: (.*)", text)
    check(len(generations) <= 2 and "grows" not in text, f"generations: {generations}", text)


def links_that_are_slow_at_random_change_no_bit(cluster, troupe, probe, scratch):
    """fault 17"""
    def run(name):
        job = Job.of_probe(cluster, troupe, probe, f"{scratch}/{name}", arguments=["--epochs", "4"])
        code, text = job.finish()
        check(code == 0 and "generation" not in text and "silent" not in text, f"exit code {code}", text)
        steps = [re.sub(r" \d+(\.\d+)? (ms|s|steps/s|samples/s|img/s)\b.*", "", line)
                 for line in re.findall(r"step \d+/\d+ .*?loss [0-9.e+-]+", text)]
        files = sorted(pathlib.Path(f"{scratch}/{name}/checkpoints").glob("step-*/*.safetensors"))
        check(len(steps) == 40 and files, f"{len(steps)} steps, {len(files)} files", text)
        return steps, [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]

    calm = run("calm")
    cluster.slow_wires("--share", "0.2", "--delay-ms", "50", "--jitter-ms", "50")
    slow = run("slow")
    frames, late = cluster.end_slow_wires()
    check(frames > 1000 and late > frames / 10, f"of {frames} frames {late} were late", "")
    check(calm == slow, "the same losses and the same weights", f"{calm}\n{slow}")


CLAIMS = {"15": of_two_hosts_whose_link_is_cut_one_way_one_is_left_out_once, "17": links_that_are_slow_at_random_change_no_bit}


if __name__ == "__main__":
    run_claims(lambda: run_faults(CLAIMS, hosts=4))
