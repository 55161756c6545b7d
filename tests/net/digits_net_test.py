#!/usr/bin/env python3
"""[L05] Handwritten digits on four hosts started from a host list; one loses its power in the middle, and the accuracy is that of a run to
which nothing happened.

    tests/net/digits_net_test.py TROUPE IMAGE_CLASSIFIER SOURCE_DIRECTORY
"""
import re
import sys
import tempfile

from cluster import Cluster
from job import Job, check, run_claims

EPOCHS = 4


def train(cluster, troupe, classifier, source, scratch):
    return Job(cluster, [troupe, "launch", "--hosts", f"{cluster.folder}/hostfile", "--ssh-config", cluster.ssh_config, "--run-dir", f"{scratch}/run",
                         classifier, "--config", f"{source}/examples/image_classifier/digits.toml", "--epochs", str(EPOCHS), "--log_interval", "1",
                         "--run_dir", "", "--checkpoint_dir", f"{scratch}/checkpoints"])


def accuracy(job, what):
    code, text = job.finish()
    check(code == 0, f"{what}: exit code {code}", text)
    return float(re.search(r"best held-out accuracy: ([\d.]+)%", text).group(1)), text


def main():
    troupe, classifier, source = sys.argv[1:4]
    with Cluster(4) as cluster, tempfile.TemporaryDirectory() as scratch:
        undisturbed, text = accuracy(train(cluster, troupe, classifier, source, f"{scratch}/a"), "undisturbed")
        check("4 ranks, backend gloo" in text and "generation" not in text, "four hosts", text)
        job = train(cluster, troupe, classifier, source, f"{scratch}/b")
        steps = int(re.search(r"step \d+/(\d+)", text).group(1))
        job.wait_for(rf"step {steps // 2}/")
        cluster.kill("h2")
        disturbed, text = accuracy(job, "with a host lost")
        check("shrinks from 4 to 3 ranks" in text and f"step {steps}/{steps}" in text, "the loss", text)
        check(undisturbed > 93 and abs(disturbed - undisturbed) < 2, f"{disturbed} % instead of {undisturbed} %", text)
        print(f"ok: {undisturbed} % undisturbed, {disturbed} % with a host lost in step {steps // 2} of {steps}")


if __name__ == "__main__":
    run_claims(main)
