#!/usr/bin/env python3
"""What 64 hostile or broken clients at a job's ports cost it: they have 10 % of a core (a cgroup), and are, by turns of 10 s, at a port of the
job and at one of another process.

    hostile_clients.py TROUPE PROGRAM [SECONDS]

For each port of the job (control, page): the time of a step beside these clients over that beside the others, and how much memory each
process of the job has gained. Promised: at most 1.05, and 16 MiB. PROGRAM is rank_probe; SECONDS (60) for each port. Root only (77).
"""
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from other_user import family, free_port, listeners

CLIENTS, SHARE, TURN_S, PATIENCE_S = 64, 0.1, 10, 60
STEPS_MOST, BYTES_MOST = 1.05, 16 << 20
GROUPS = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup")


def client(port, number):
    """For ever: one way to be a nuisance, by its number."""
    draw = random.Random(number)
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
                if number % 6 == 0:  # silent
                    one.recv(1)
                elif number % 6 == 1:  # a byte now and then
                    for byte in b"GET / HTTP/1.1\r\nHost: " + b"a" * 1000:
                        one.sendall(bytes([byte]))
                        time.sleep(0.2)
                elif number % 6 == 2:  # noise
                    one.sendall(draw.randbytes(1 << draw.randrange(17)))
                    one.recv(100)
                elif number % 6 == 3:  # a header without an end
                    one.sendall(b"GET /metrics HTTP/1.1\r\n")
                    for _ in range(1000):
                        one.sendall(b"X-Header: " + b"x" * 500 + b"\r\n")
                elif number % 6 == 4:  # comes and goes
                    time.sleep(0.01)
                else:  # the first words of TLS, then nothing
                    one.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(200))
                    one.recv(100)
        except OSError:
            time.sleep(0.05)


def start_clients(port, group):
    pid = os.fork()
    if pid:
        return pid
    with open(f"{group}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    for number in range(CLIENTS):
        threading.Thread(target=client, args=(port, number), daemon=True).start()
    signal.pause()
    os._exit(0)


def start_other_process():
    """Takes connections, reads a little and hangs up: what a page of somebody else's would do."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    pid = os.fork()
    if pid:
        port = listener.getsockname()[1]
        listener.close()
        return pid, port

    def serve():
        while True:
            one, _ = listener.accept()
            with one:
                one.settimeout(5)
                try:
                    while one.recv(1 << 14):
                        pass
                except OSError:
                    pass
    for _ in range(CLIENTS):
        threading.Thread(target=serve, daemon=True).start()
    signal.pause()
    os._exit(0)


def make_group():
    parent = next((group for group in GROUPS if os.path.exists(f"{group}/cgroup.procs")), None)
    if os.geteuid() != 0 or parent is None:
        print("it takes root and a cgroup")
        sys.exit(77)
    group = f"{parent}/troupe-hostile-{os.getpid()}"
    os.mkdir(group)
    period = 100_000
    if os.path.exists(f"{group}/cpu.cfs_quota_us"):
        for name, value in (("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", int(period * SHARE))):
            with open(f"{group}/{name}", "w") as file:
                file.write(str(value))
    else:
        with open(f"{group}/cpu.max", "w") as file:
            file.write(f"{int(period * SHARE)} {period}")
    return group


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def memory(pids):
    found = {}
    for pid in pids:
        with open(f"/proc/{pid}/status") as file:
            found[pid] = int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) << 10
    return found


def main():
    troupe, probe = map(os.path.abspath, sys.argv[1:3])
    seconds = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    group, bad = make_group(), False
    other, other_port = start_other_process()
    page = free_port()
    with tempfile.TemporaryDirectory() as folder:
        metrics = f"{folder}/run/metrics.jsonl"
        with open(f"{folder}/printed", "wb") as out:
            job = subprocess.Popen([troupe, "launch", "--nproc", "2", "--run-dir", f"{folder}/run", probe, "--epochs", "10000000", "--batch_size", "64",
                                    "--log_interval", "5", "--checkpoint_dir", f"{folder}/checkpoints", "--metrics_port", str(page)],
                                   env=dict(os.environ, OMP_NUM_THREADS="1"), stdout=out, stderr=out)

        def steps():
            try:
                with open(metrics, "rb") as file:
                    file.seek(max(0, os.path.getsize(metrics) - (1 << 16)))
                    return max([int(step) for step in re.findall(rb'"step": ?(\d+)', file.read())] or [0])
            except OSError:
                return 0

        try:
            deadline = time.monotonic() + PATIENCE_S
            while steps() < 500:
                if job.poll() is not None or time.monotonic() > deadline:
                    with open(f"{folder}/printed") as file:
                        raise SystemExit(f"the job does not train:\n{file.read()[-2000:]}")
                time.sleep(0.1)
            pids = family([job.pid])
            control = [port for port in listeners(pids)[0] if port != page]
            for name, port in [("page", page)] + [("control", port) for port in control]:
                before, rates = memory(pids), {port: [], other_port: []}
                for turn in range(max(2, seconds // TURN_S) * 2):
                    at = (port, other_port)[turn % 2]
                    clients = start_clients(at, group)
                    time.sleep(1)
                    first, began = steps(), time.monotonic()
                    time.sleep(TURN_S)
                    rates[at].append((steps() - first) / (time.monotonic() - began))
                    end(clients)
                gained = {pid: now - before[pid] for pid, now in memory(pids).items()}
                ratio = statistics.median(rates[other_port]) / statistics.median(rates[port])
                most = max(gained.values())
                ok = ratio <= STEPS_MOST and most <= BYTES_MOST
                bad = bad or not ok
                print(f"{name}: a step takes {ratio:.3f} of the time, {statistics.median(rates[port]):.0f} and {statistics.median(rates[other_port]):.0f} "
                      f"steps/s; {most / 2**20:+.1f} MiB at most in one of {len(pids)} processes: {'ok' if ok else 'MORE THAN PROMISED'}", flush=True)
            job.send_signal(signal.SIGINT)
            code = job.wait(timeout=PATIENCE_S)
            if code != 130:
                print(f"the job ended with {code}")
                bad = True
        finally:
            if job.poll() is None:
                job.kill()
                job.wait()
            end(other)
            os.rmdir(group)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
