#!/usr/bin/env python3
"""[L08] A stranger on the hosts' network: 10,000 malformed packets, TLS without the job's keys, replays, slow connections. The job's losses
are those of a job that nobody touched, the coordinator's memory is bounded, and every attempt is counted in its log. And who listens where.

    tests/net/stranger_net_test.py TROUPE RANK_PROBE
"""
import ipaddress
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from cluster import Cluster, must
from job import Job, check, probe_words, run_claims, wait_until

PACKETS = 2_000 if "TROUPE_SHARE" in os.environ else 10_000  # a share of them in CI
ADDRESSES = 120
MEMORY_MB = 64
if "ASAN_OPTIONS" in os.environ:
    MEMORY_MB += 512  # it keeps 256 MB of what was freed, and more beside what is there
PORT = 29400


def keys(troupe, folder):
    subprocess.run([troupe, "keys", folder], check=True, stdout=subprocess.DEVNULL)
    return folder


def train(cluster, troupe, probe, scratch, job_keys, epochs):
    """The same command on two nodes, as a user types it."""
    return [Job(cluster, [troupe, "launch", "--nnodes", "2", "--node-rank", str(k), "--nproc-per-node", "2", "--master-addr", cluster.address("h0"),
                          "--master-port", str(PORT), "--keys", job_keys, "--run-dir", f"{scratch}/run{k}", *probe_words(probe, scratch),
                          "--run_dir", f"{scratch}/run{k}", "--epochs", str(epochs), "--pause_ms", "20"], host=f"h{k}") for k in (0, 1)]


def losses(scratch):
    lines = map(json.loads, pathlib.Path(scratch, "run0/metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss_metrics/global_avg_loss"]) for line in lines if line["kind"] == "train"]


def process_of(cluster, host, verb):
    """The pid of `troupe VERB` on the host."""
    def is_it(pid):
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return len(words) > 1 and words[0].endswith(b"/troupe") and words[1] == verb.encode()
    return next(pid for pid in cluster.pids(host) if is_it(pid))


def peak_memory_mb(pid):
    return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) / 1024


def listeners(cluster, host):
    """Addresses on which somebody listens, without sshd's."""
    text = must("ip", "netns", "exec", cluster.namespace(host), "ss", "-Hltun")
    found = {tuple(line.split()[4].rsplit(":", 1)) for line in text.splitlines()}
    return {(address.strip("[]").split("%")[0], port) for address, port in found if port != "22"}


def who_listens_where(cluster, troupe, probe, scratch):
    """On one machine nothing but loopback; across hosts nothing but the hosts' own addresses."""
    for backend in ("shm", "gloo"):
        job = Job(cluster, [troupe, "launch", "--nproc", "2", "--run-dir", f"{scratch}/local-{backend}",
                            *probe_words(probe, f"{scratch}/local-{backend}"), "--epochs", "20", "--pause_ms", "20", "--backend", backend])
        job.wait_for(r"step 12/")
        found = listeners(cluster, "h0")
        code, text = job.finish()
        check(code == 0, f"exit code {code}", text)
        check(found and all(ipaddress.ip_address(address).is_loopback for address, _ in found), f"{backend}: listeners {found}", text)
    nodes = train(cluster, troupe, probe, f"{scratch}/audit", keys(troupe, f"{scratch}/audit-keys"), 20)
    nodes[0].wait_for(r"step 12/")
    found = {host: listeners(cluster, host) for host in ("h0", "h1")}
    for node in nodes:
        code, text = node.finish()
        check(code == 0, f"exit code {code}", text)
    for host, seen in found.items():
        allowed = {cluster.address(host)}
        check(all(address in allowed or ipaddress.ip_address(address).is_loopback for address, _ in seen), f"{host} listens on {seen}", text)
    check((cluster.address("h0"), str(PORT)) in found["h0"], f"the gate is not there: {found}", text)


def a_stranger_changes_nothing(cluster, troupe, probe, scratch):
    epochs = 600
    calm = train(cluster, troupe, probe, f"{scratch}/calm", keys(troupe, f"{scratch}/calm-keys"), 30)
    for node in calm:
        code, text = node.finish()
        check(code == 0, f"undisturbed: exit code {code}", text)
    expected = losses(f"{scratch}/calm")

    own, stolen, foreign = keys(troupe, f"{scratch}/keys"), f"{scratch}/stolen", keys(troupe, f"{scratch}/foreign")
    shutil.copytree(own, stolen)
    pathlib.Path(stolen, "token").write_text("0" * 64)
    for i in range(ADDRESSES):
        must("ip", "-n", cluster.namespace("h2"), "addr", "add", f"10.213.7.{i + 1}/16", "dev", "eth0")
    nodes = train(cluster, troupe, probe, f"{scratch}/job", own, epochs)
    nodes[0].wait_for(r"step 12/")
    pid = process_of(cluster, "h0", "coordinator")
    before = peak_memory_mb(pid)
    done = cluster.run("h2", [sys.executable, str(pathlib.Path(__file__).with_name("stranger.py")), cluster.address("h0"), str(PORT), stolen, foreign,
                              str(PACKETS)], stdout=subprocess.PIPE)
    check(done.returncode == 0, "the stranger failed", nodes[0].text())
    tried = json.loads(done.stdout)
    grown = peak_memory_mb(pid) - before
    total = sum(tried["connections"].values())
    subprocess.run(["kill", "-INT", str(process_of(cluster, "h0", "launch"))], check=True)
    for node in nodes:
        code, text = node.finish()
    text = nodes[0].text()
    seen = losses(f"{scratch}/job")
    shared = min(len(seen), len(expected))
    check(shared >= 100 and seen[:shared] == expected[:shared], f"{shared} losses differ", text)
    check([step for step, _ in seen] == list(range(1, len(seen) + 1)), "steps are missing", text)
    check("generation" not in text, "the membership changed", text)
    check(grown < MEMORY_MB, f"the coordinator's memory grew by {grown:.0f} MB", text)
    refused = re.search(r"gate: (\d+) connections were refused: (.*)", text)
    check(refused is not None, "the gate counted nothing", text)
    check(int(refused.group(1)) >= total, f"{refused.group(1)} of {total} attempts were counted", text)
    for reason in ("no TLS 1.3", "no certificate", "a certificate that is not the job's", "a wrong token", "too slow"):
        check(reason in refused.group(2), f"'{reason}' was not counted", refused.group(0))
    print(f"ok: {tried['connections']} in {tried['seconds']:.0f} s beside {len(seen)} steps; memory +{grown:.1f} MB; {refused.group(0)}", flush=True)


def main():
    troupe, probe = sys.argv[1:3]
    with Cluster(3) as cluster, tempfile.TemporaryDirectory() as scratch:
        who_listens_where(cluster, troupe, probe, scratch)
        print("ok: nobody listens but on loopback, and on the hosts' own addresses", flush=True)
        a_stranger_changes_nothing(cluster, troupe, probe, scratch)


if __name__ == "__main__":
    run_claims(main)
