"""A job on a cluster of namespaces, for the tests in this folder."""
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

from cluster import SKIP, CannotRun, Cluster

PATIENCE_S = 240


class Job:
    """`troupe launch` on a host of the cluster, and what it has printed."""

    def __init__(self, cluster, words, host="h0", environment=None):
        self.lines, self.changed = [], threading.Condition()
        words = [f"{name}={value}" for name, value in (environment or {}).items()] + list(words)
        self.process = cluster.start(host, ["env", *words], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    def of_probe(cls, cluster, troupe, probe, scratch, flags=(), arguments=(), hosts=4, batch_size=24):
        """The probe on the cluster's first hosts, started on h0 over ssh."""
        pathlib.Path(scratch).mkdir(parents=True, exist_ok=True)
        lines = pathlib.Path(cluster.folder, "hostfile").read_text().splitlines(keepends=True)
        pathlib.Path(scratch, "hosts").write_text("".join(lines[:hosts]))
        return cls(cluster, [troupe, "launch", "--hosts", f"{scratch}/hosts", "--ssh-config", str(cluster.ssh_config), "--run-dir",
                             f"{scratch}/run", *flags, *probe_words(probe, scratch, batch_size), *arguments])

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip())
                self.changed.notify_all()

    def wait_for(self, pattern, whole=False):
        """Until a line, or the whole text so far, has the pattern."""
        deadline = time.monotonic() + PATIENCE_S
        with self.changed:
            while not any(re.search(pattern, text) for text in (["\n".join(self.lines)] if whole else self.lines)):
                left = deadline - time.monotonic()
                assert left > 0 and self.changed.wait(left), f"no '{pattern}' in:\n" + "\n".join(self.lines[-40:])

    def text(self):
        with self.changed:
            return "\n".join(self.lines)

    def finish(self):
        code = self.process.wait(timeout=PATIENCE_S)
        time.sleep(0.2)
        return code, self.text()


def probe_words(probe, scratch, batch_size=24):
    return [probe, "--probe_model", "norm", "--batch_size", str(batch_size), "--log_interval", "1", "--run_dir", "", "--checkpoint_dir",
            f"{scratch}/checkpoints"]


def check(condition, what, text):
    assert condition, f"{what}\n{text}"


def processes_of(cluster, program, hosts=None):
    """The pids, as this machine counts, of the program's processes on these hosts."""
    found = []
    for host in hosts or cluster.hosts:
        for pid in cluster.pids(host):
            try:
                if program.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except FileNotFoundError:
                pass
    return found


def wait_until(condition, patience_s=30):
    deadline = time.monotonic() + patience_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def run_faults(claims, hosts):
    """Of a script that is called as SCRIPT TROUPE RANK_PROBE [FAULT..]: the claims (fault -> function), all or these, on one cluster."""
    troupe, probe = sys.argv[1:3]
    with Cluster(hosts) as cluster, tempfile.TemporaryDirectory() as scratch:
        for number in sys.argv[3:] or claims:
            claims[number](cluster, troupe, probe, f"{scratch}/{number}")
            print(f"ok: fault {number}: {claims[number].__name__.replace('_', ' ')}", flush=True)


def run_claims(main):
    try:
        main()
    except CannotRun as why:
        print(f"NOT RUN: {why}", file=sys.stderr)
        sys.exit(SKIP)
