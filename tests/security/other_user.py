#!/usr/bin/env python3
"""Plays another user of the machine against a job of each kind of launch: at every port, socket, folder, file and process of it. He gets
nothing, writes nothing, and the job does not mind.

    other_user.py TROUPE PROGRAM [KIND..]

Root may become another user; without that it says so and exits with 77. PROGRAM is rank_probe.
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

OTHER = 65534  # nobody
PATIENCE_S = 60
# Slurm's, of `srun -N2 --ntasks-per-node=1`, after its own src/common/env.c. The second node's name is never looked up.
SLURM = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "3", "SLURM_STEP_NODELIST": "localhost,elsewhere", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
         "SLURM_JOB_NODELIST": "localhost,elsewhere", "SLURM_LOCALID": "0"}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# ---------------------------------------------------------------- the other user: a process of his own, told as JSON what there is
def answer_at(kind, address, words, patience_s):
    """The bytes that come back to these words; None: no connection."""
    with socket.socket(kind) as visitor:
        visitor.settimeout(patience_s)
        got = None
        try:
            visitor.connect(address)
            visitor.sendall(words)
            visitor.shutdown(socket.SHUT_WR)
            got = b""
            while len(got) < 1 << 16:
                block = visitor.recv(1 << 14)
                if not block:
                    break
                got += block
            return got
        except socket.timeout:
            return got
        except OSError:
            return None


def visit(place):
    """Tries all that he can think of. Returns what he got: lines, each a fault."""
    got, tries, heard = [], 0, 0
    greeting = bytes([1, 0, 0, 0, 0, 0, 0, 5]) + bytes(24) + b"hello"
    words = {"nothing": b"", "a page": b"GET / HTTP/1.0\r\n\r\n", "metrics": b"GET /metrics HTTP/1.0\r\n\r\n", "a post": b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
             "CAF's greeting": greeting, "a ClientHello": b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03", "noise": os.urandom(300)}
    for port in place["ports"]:
        for name, bytes_sent in words.items():
            tries += 1
            answer = answer_at(socket.AF_INET, ("127.0.0.1", port), bytes_sent, place["patience_s"])
            heard += answer is not None
            alert = answer is not None and answer[:1] == b"\x15" and len(answer) < 64  # TLS says no
            refused = answer is not None and re.match(rb"HTTP/1\.[01] (400|403|405|503) ", answer) and len(answer) < 1024
            if answer and not alert and not refused:
                got.append(f"port {port} answers to {name}: {answer[:80]!r}")
    for path in place["sockets"]:
        tries += 1
        answer = answer_at(socket.AF_UNIX, path.replace("@", "\0", 1), greeting, place["patience_s"])
        if answer:
            got.append(f"socket {path} answers: {answer[:80]!r}")
    for path in place["secret"]:
        tries += 1
        try:
            with open(path, "rb") as file:
                got.append(f"{path} can be read: {len(file.read())} bytes")
        except OSError:
            pass
    for folder, names in place["folders"].items():
        tries += 2
        try:
            with open(f"{folder}/of another", "w"):
                got.append(f"{folder} can be written to")
        except OSError:
            pass
        for name in names:
            path = f"{folder}/{name}"
            tries += 2
            for what, call in (("written to", lambda: os.open(path, os.O_WRONLY)), ("removed", lambda: os.unlink(path))):
                try:
                    call()
                    got.append(f"{path} can be {what}")
                except OSError:
                    pass
            try:
                with open(path, "rb") as file:
                    text = file.read()
                got += [f"{path} tells a secret" for secret in place["secrets"] if secret.encode() in text]
            except OSError:
                pass
    for pid in place["pids"]:
        for call in (lambda: os.kill(pid, signal.SIGTERM), lambda: open(f"/proc/{pid}/environ", "rb").read(), lambda: open(f"/proc/{pid}/mem", "rb"),
                     lambda: os.listdir(f"/proc/{pid}/fd")):
            tries += 1
            try:
                call()
                got.append(f"process {pid} obeys")
            except OSError:
                pass
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read()
        got += [f"the command line of {pid} tells a secret" for secret in place["secrets"] if secret.encode() in text]
    if place["ports"] and heard == 0:
        got.append("no port takes a connection: this tries nothing")
    return {"tries": tries, "got": got}


# ---------------------------------------------------------------- the job, and what there is of it
def kinds(troupe, probe, folder):
    """Of each kind of launch its processes: command and environment."""
    program = [probe, "--epochs", "100000", "--batch_size", "16", "--pause_ms", "2", "--log_interval", "20", "--save_every", "200", "--metrics_port",
               str(free_port())]
    own = program + ["--run_dir", f"{folder}/run"]
    port = str(free_port())

    def torchrun(rank):
        return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

    def node(rank):
        return [troupe, "launch", "--nnodes", "2", "--node-rank", rank, "--master-port", port, "--keys", f"{folder}/keys/node{rank}", "--run-dir",
                f"{folder}/run"] + program

    def slurm(rank):
        return [troupe, "launch", "--slurm", "--nproc-per-node", "1", "--master-port", port, "--run-dir", f"{folder}/run"] + program

    return {
        "alone": [(own, {})],
        "launch": [([troupe, "launch", "--nproc", "2", "--run-dir", f"{folder}/run"] + program, {})],
        # Its data ports are open only while its ranks connect, so one of them stands still there.
        "data": [([troupe, "launch", "--nproc", "2", "--run-dir", f"{folder}/run"] + program + ["--backend", "gloo"],
                  {"TROUPE_FAULT": f"slot=1,step=0,at=connect,signal={int(signal.SIGSTOP)}"})],
        "hosts": [([troupe, "launch", "--hosts", "localhost:2", "--run-dir", f"{folder}/run"] + program, {})],
        "nnodes": [(node(rank), {}) for rank in "01"],
        "torchrun": [(own, torchrun(rank)) for rank in "01"],
        "slurm": [(slurm(rank), dict(SLURM, SLURM_PROCID=rank, SLURM_NODEID=rank)) for rank in "01"],
    }


def family(pids):
    """These processes and all that come from them."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    children.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
            except OSError:
                pass
    found = list(pids)
    for pid in found:
        found += children.get(pid, [])
    return found


def inodes_of(pids):
    found = set()
    for pid in pids:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                match = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
                if match:
                    found.add(match[1])
        except OSError:
            pass
    return found


def listeners(pids):
    own = inodes_of(pids)
    rows = [line.split() for name in ("tcp", "tcp6") if os.path.exists(f"/proc/net/{name}") for line in open(f"/proc/net/{name}").readlines()[1:]]
    ports = sorted({int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in own})
    lines = [line.split() for line in open("/proc/net/unix").readlines()[1:]]
    return ports, sorted({line[7] for line in lines if len(line) > 7 and line[6] in own})


def place_of(pids, folder):
    ports, sockets = listeners(pids)
    secret, secrets = [], set()
    for pid in pids:
        with open(f"/proc/{pid}/environ", "rb") as file:
            keys = re.search(rb"TROUPE_KEYS=([^\0]*)", file.read())
        if keys:
            name = keys[1].decode()
            if os.path.isdir(name):
                secret += [name] + [f"{name}/{file}" for file in os.listdir(name)]
                with open(f"{name}/token") as file:
                    secrets.add(file.read())
    folders = {}
    with open(f"{folder}/printed", errors="replace") as file:
        secrets |= set(re.findall(r"http://\S+\?token=([0-9a-f]+)", file.read()))
    for parent, _, names in os.walk(folder):
        if "keys" in parent[len(folder):]:
            secret += [f"{parent}/{name}" for name in names]
            continue
        folders[parent] = [name for name in names if name != "printed"]
    return {"ports": ports, "sockets": sockets, "secret": sorted(set(secret)), "secrets": sorted(secrets), "folders": folders, "pids": pids,
            "patience_s": 5}


def as_other(place):
    """visit() in a process of the other user's."""
    out, back = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir("/")
        os.setgroups([])
        os.setgid(OTHER)
        os.setuid(OTHER)
        code = 1
        try:
            with os.fdopen(back, "w") as told:
                json.dump(visit(place), told)
            code = 0
        finally:
            os._exit(code)
    os.close(back)
    with os.fdopen(out) as told:
        text = told.read()
    os.waitpid(child, 0)
    return json.loads(text)


def steps_of(path):
    with open(path, errors="replace") as file:
        return [int(step) for step in re.findall(r"step (\d+)/", file.read())]


def wait_for(what, condition, jobs, log):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        dead = [job.args for job in jobs if job.poll() is not None]
        if dead or time.monotonic() > deadline:
            with open(log, errors="replace") as file:
                raise SystemExit(f"no {what}; ended: {dead}; it printed:\n{file.read()[-3000:]}")
        time.sleep(0.05)


def is_stopped(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def visit_data_ports(jobs, log, page):
    """While a rank stands still where it connects: it must go on before the coordinator takes it for dead, after 3 s."""
    stopped, ports = [], []

    def waits():
        stopped[:] = [pid for pid in family([job.pid for job in jobs]) if is_stopped(pid)]
        return stopped

    def listens():
        program = os.readlink(f"/proc/{stopped[0]}/exe")
        ranks = [pid for pid in family([job.pid for job in jobs]) if os.readlink(f"/proc/{pid}/exe") == program]
        ports[:] = [port for port in listeners(ranks)[0] if port != page]
        return ports

    wait_for("rank that connects", waits, jobs, log)
    try:
        wait_for("open data port", listens, jobs, log)
        return as_other({"ports": ports, "sockets": [], "secret": [], "secrets": [], "folders": {}, "pids": [], "patience_s": 0.1}), len(ports)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def try_kind(kind, processes, troupe, folder):
    if kind == "nnodes":
        subprocess.run([troupe, "keys", f"{folder}/keys", "2"], check=True, stdout=subprocess.DEVNULL)
    log = f"{folder}/printed"
    jobs = []
    try:
        with open(log, "wb") as out:
            os.chmod(log, 0o600)  # the terminal's
            for command, variables in processes:
                jobs.append(subprocess.Popen(command, env=dict(os.environ, OMP_NUM_THREADS="1", **variables), stdout=out, stderr=out, cwd=folder,
                                             start_new_session=True))
        early, data_ports = visit_data_ports(jobs, log, int(command[command.index("--metrics_port") + 1])) if kind == "data" else ({"tries": 0, "got": []}, 0)
        wait_for("tenth step and checkpoint", lambda: max(steps_of(log), default=0) >= 40, jobs, log)
        pids = family([job.pid for job in jobs])
        place = place_of(pids, folder)
        found = as_other(place)
        found = {what: early[what] + found[what] for what in found}
        before = max(steps_of(log))
        wait_for("step after the visit", lambda: max(steps_of(log)) > before + 40, jobs, log)
        for job in jobs:
            job.send_signal(signal.SIGINT)
        codes = [job.wait(timeout=PATIENCE_S) for job in jobs]
        if any(code not in (0, 130) for code in codes):
            found["got"].append(f"the job ended with {codes}")
        found["got"] += [f"{folder}/run/{name} is left" for name in os.listdir(f"{folder}/run") if name.startswith(".keys")]
        print(f"{kind}: {len(pids)} processes, {len(place['ports']) + data_ports} ports, {len(place['sockets'])} sockets, "
              f"{sum(map(len, place['folders'].values()))} files, {len(place['secret'])} of keys; {found['tries']} tries, got {len(found['got'])}",
              flush=True)
        for line in found["got"]:
            print("  " + line, flush=True)
        return found["got"]
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()


def main():
    if os.geteuid() != 0:
        print("only root can become another user")
        return 77
    troupe, probe = map(os.path.abspath, sys.argv[1:3])
    bad = 0
    for kind in sys.argv[3:] or kinds("", "", ""):
        folder = tempfile.mkdtemp(prefix="troupe-other-user-")
        os.chmod(folder, 0o755)  # he may look around, as in a home that is not closed
        try:
            bad += bool(try_kind(kind, kinds(troupe, probe, folder)[kind], troupe, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
