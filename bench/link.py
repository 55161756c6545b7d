"""The rows ddp.link*: ddp.mlp/b128 between two namespaces with 1 Gbit/s between them, beside PyTorch's DDP on the same link.

Needs root. Communication is what a step takes longer than the same loop on one rank by LibTorch alone.
"""
import os
import statistics
import subprocess
import sys

from harness import HERE, OURS, ROOT, Program, flat, report, step_answers, step_times, weights_difference

sys.path.insert(0, str(ROOT / "tests" / "net"))
from cluster import CannotRun, Cluster  # noqa: E402

LINK_TARGETS = {"ddp.link": 0.95, "ddp.link/bf16": 0.55, "ddp.link/exposed": 0.5}
RATE = "1gbit"
BATCH = ["--batch", "128"]
PYTHON = str(ROOT / ".venv-bench/bin/python3")


class Pair(Program):
    """A program with a rank on each of two hosts; rank 0's lines are the program's."""

    def __init__(self, cluster, words, port, name):
        def on(rank):
            variables = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank,
                         "MASTER_ADDR": cluster.address("h0"), "MASTER_PORT": port,
                         "TORCHELASTIC_RUN_ID": port, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": 1, "TROUPE_INSECURE_NETWORK": 1,
                         "PYTHONPATH": HERE / "peer"}
            settings = [f"{name}={value}" for name, value in variables.items()]
            return cluster.enter(f"h{rank}") + ["sh", "-c", 'cd "$0" && exec "$@"', str(ROOT), "env", *settings, *words]

        self.other = subprocess.Popen(on(1), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        super().__init__(on(0), name)

    def quit(self):
        super().quit()
        self.other.wait(timeout=60)


def run_link(rows, blocks, steps):
    if os.geteuid() != 0:
        raise SystemExit("bench: the rows ddp.link* make network namespaces, which needs root")
    try:
        with Cluster(2, "bench-link") as cluster:
            return measure(cluster, rows, blocks, steps or 10)
    except CannotRun as reason:
        raise SystemExit(f"bench: the rows ddp.link* cannot run: {reason}") from None


def measure(cluster, rows, blocks, steps):
    ports = iter(range(29500, 30000, 10))
    for host in cluster.hosts:
        cluster.rate(host, RATE)
    ours = {name: Pair(cluster, [str(OURS / "bench_steps"), *BATCH, *words], next(ports), name)
            for name, words in {"ours": [], "bf16": ["--comm-hook", "bf16"]}.items()}
    peers = {f"bucket {mb} MB": Pair(cluster, [PYTHON, "bench/peer/ddp.py", *BATCH, "--bucket-mb", str(mb)], next(ports), f"DDP, {mb} MB")
             for mb in (5, 25, 100)}
    bare = Program([str(OURS / "bench_bare_steps"), *BATCH, "--job", "mlp"], "bench_bare_steps")
    times = step_times(step_answers({**ours, **peers, "bare": bare}, blocks, steps))
    for program in (bare, ours["bf16"]):
        program.quit()
    difference = weights_difference({"ours": ours["ours"], **peers}, "ours")
    others = {name: times[name] for name in peers}
    results = []
    if "ddp.link" in rows:
        results.append(report("ddp.link", LINK_TARGETS["ddp.link"], times["ours"], others, "ms", {"max_weight_difference": difference}))
    if "ddp.link/bf16" in rows:
        results.append(report("ddp.link/bf16", LINK_TARGETS["ddp.link/bf16"], times["bf16"], others, "ms", {}))
    if "ddp.link/exposed" in rows:
        compute = statistics.median(flat(times["bare"]))
        exposed = {name: [[ms - compute for ms in block] for block in times[name]] for name in ("ours", *peers)}
        results.append(report("ddp.link/exposed", LINK_TARGETS["ddp.link/exposed"], exposed["ours"], {name: exposed[name] for name in peers}, "ms",
                              {"compute_ms": round(compute, 1)}))
    return results
