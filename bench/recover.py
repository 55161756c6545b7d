"""How long a job stands still when a rank dies, ours beside torchrun's and TorchFT's: ./dev bench recover

A job of 4 rank processes takes steps of about 5 ms.

One rank, another each time, gets a SIGKILL at a moment that nobody chose; measured is the time from the kill to the next step that a
survivor reports as done. Ours three ways: the job shrinks, a spare takes the place, a new process is started. torchrun restarts everybody,
from the last checkpoint (here: from the start); TorchFT's survivors go on with a new quorum.

    recover/replaced ours=612 worst=744 torchrun=4021 torchft=4400 unit=ms ratio=0.152 0.139 target=0.25 ok

Then one rank ends at each of 12 phases of a step, or stands still (SIGSTOP); measured is the longest time between two steps.

    phases/spare median=310 worst=560 at=heal unit=ms target=1000 2000 ok
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
TROUPE = ROOT / "build/release/launch/troupe"
PROBE = ROOT / "build/release/tests/launch/rank_probe"
RANKS = 4
MODES = {"shrink": ["--max-restarts", "0"], "spare": ["--max-restarts", "0", "--spares", "1"], "replaced": []}
TARGETS = {"shrink": 0.10, "spare": 0.25, "replaced": 0.25}
PHASES = ["data", "forward", "backward", "buckets", "collective", "reduced", "vote", "voted", "committed", "optimizer", "save", "heal"]
PHASE_TARGETS = {"shrink": (1000, 2000), "spare": (1000, 2000), "replaced": (2000, None), "stopped": (5000, 5000)}  # ms: median, worst
PATIENCE_S = 30


class StoodStill(Exception):
    def __init__(self, command, killed):
        super().__init__(f"{' '.join(command[:4])} ended, or stood still for {PATIENCE_S} s, {'after' if killed else 'before'} the kill")
        self.killed = killed is not None


@contextlib.contextmanager
def running(command, environment):
    """A job that ends when it is left, and that is killed after PATIENCE_S."""
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    deadline = threading.Timer(PATIENCE_S, os.killpg, (process.pid, signal.SIGKILL))
    deadline.start()
    try:
        yield process
    finally:
        deadline.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()


def watch(command, environment, pid_line, step_line, victim, moment, first=10):
    """Kills `victim` `moment` seconds after its job's `first` lines about steps; returns the ms to the next one."""
    killed, pids, steps = None, {}, 0
    with running(command, environment) as process:
        for line in process.stdout:
            now = time.monotonic()
            for found in re.finditer(pid_line, line):
                pids[int(found[1])] = int(found[2])
            if re.search(step_line, line):
                steps += 1
                # Lines that were under way when the rank died come at once.
                if killed and now - killed > 0.02:
                    return (now - killed) * 1e3
                if steps == first:
                    time.sleep(moment)
                    os.kill(pids[victim], signal.SIGKILL)
                    killed = time.monotonic()
    raise StoodStill(command, killed)


def our_job(scratch, mode, *more):
    return [str(TROUPE), "launch", "--nproc", str(RANKS), *MODES[mode], "--run-dir", f"{scratch}/run", str(PROBE), "--probe_model", "norm",
            "--batch_size", "24" if mode == "shrink" else "16", "--epochs", "1000", "--log_interval", "1", "--pause_ms", "5",
            "--run_dir", "", "--checkpoint_dir", f"{scratch}/checkpoints", *more]


def ours(mode, victim, moment):
    with tempfile.TemporaryDirectory() as scratch:
        return watch(our_job(scratch, mode, "--save_every", "-1"), dict(os.environ, OMP_NUM_THREADS="1"), r"\[rank (\d+)\] pid (\d+)",
                     r" step \d+/", victim, moment)


def longest_pause(mode, phase):
    """Of a job of 40 steps whose slot 2 ends in step 20; ms."""
    fault = f"slot=2,step=20,at={'forward' if phase == 'heal' else phase}"
    if mode == "stopped":
        fault += f",signal={int(signal.SIGSTOP)}"
    elif phase == "heal":
        fault += ";slot=3,step=20,at=heal"  # a donor
    with tempfile.TemporaryDirectory() as scratch:
        command = our_job(scratch, "replaced" if mode == "stopped" else mode, "--save_every", "20" if phase == "save" else "-1", "--max_steps", "40",
                          "--first_bucket_mb", "0.001", "--bucket_cap_mb", "0.001")
        if mode == "spare" and phase == "heal":
            command[command.index("--spares") + 1] = "2"
        environment = dict(os.environ, OMP_NUM_THREADS="1", TROUPE_FAULT=fault)
        last, longest, lost, text = None, 0, 0, []
        with running(command, environment) as process:
            for line in process.stdout:
                now = time.monotonic()
                text.append(line)
                lost += "lost" in line or "died" in line or "replac" in line
                if found := re.search(r" step (\d+)/", line):
                    if last and int(found[1]) > 15:
                        longest = max(longest, (now - last) * 1e3)
                    last = now
            process.wait()
        if process.returncode != 0 or not lost:
            raise SystemExit(f"bench: {mode}, {phase}: exit code {process.returncode}, {lost} losses\n" + "".join(text[-20:]))
        return longest


def torchrun(victim, moment):
    command = [str(ROOT / ".venv-bench/bin/python3"), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
               "--max-restarts", "20", str(HERE / "peer/ddp_steps.py")]
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    return watch(command, environment, r"rank (\d+) pid (\d+)", r"^step \d+", victim, moment)


def torchft(victim, moment):
    command = [str(ROOT / ".venv-bench/bin/python3"), str(HERE / "peer/ft_steps.py")]
    return watch(command, dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore"), r"rank (\d+) pid (\d+)",
                 rf"^rank [^{victim}] step \d+", victim, moment, first=200)


PEERS = {"torchrun": torchrun, "torchft": torchft}


def one_kill(name, victim, moment, hangs):
    """A peer that never takes another step counts as the patience with it, and is counted."""
    for _ in range(3):
        try:
            return PEERS[name](victim, moment) if name in PEERS else ours(name, victim, moment)
        except StoodStill as error:
            if name not in PEERS:
                raise SystemExit(f"bench: {error}") from None
            print(f"bench: {error}", file=sys.stderr)
            if error.killed:
                hangs[name] += 1
                return PATIENCE_S * 1e3
    raise SystemExit(f"bench: {name} does not start")


def phases():
    good, pauses = True, {mode: {} for mode in PHASE_TARGETS}
    for phase in PHASES:
        for mode in PHASE_TARGETS:
            if phase == "heal" and mode in ("shrink", "stopped"):
                continue  # nobody is healed; a donor that stands still is a rank that stands still
            pauses[mode][phase] = longest_pause(mode, phase)
    for mode, (most, worst) in PHASE_TARGETS.items():
        at = max(pauses[mode], key=pauses[mode].get)
        median = statistics.median(pauses[mode].values())
        ok = median <= most and (worst is None or pauses[mode][at] <= worst)
        good = good and ok
        print(f"phases/{mode} median={median:.0f} worst={pauses[mode][at]:.0f} at={at} unit=ms target={most} {worst or '-'} {'ok' if ok else 'short'}",
              flush=True)
    return good, pauses


def compare(times, hangs, kills):
    good = True
    peers = {name: statistics.median(times[name]) for name in PEERS}
    for name in filter(hangs.get, PEERS):
        print(f"bench: {name} took no further step within {PATIENCE_S} s of {hangs[name]} of {kills} kills", file=sys.stderr)
    for mode in MODES:
        median = statistics.median(times[mode])
        ratios = [median / peer for peer in peers.values()]
        ok = max(ratios) <= TARGETS[mode]
        good = good and ok
        print(f"recover/{mode} ours={median:.0f} worst={max(times[mode]):.0f} {' '.join(f'{name}={peer:.0f}' for name, peer in peers.items())} "
              f"unit=ms ratio={' '.join(f'{ratio:.3f}' for ratio in ratios)} target={TARGETS[mode]:.2f} {'ok' if ok else 'short'}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(prog="./dev bench recover")
    parser.add_argument("--kills", type=int, default=20, help="of each kind; 0: only the phases of a step")
    parser.add_argument("--output", default=str(HERE / "recover.json"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    choose = random.Random(1)
    times, hangs = {name: [] for name in [*MODES, *PEERS]}, dict.fromkeys(PEERS, 0)
    for kill in range(options.kills):
        for name in choose.sample(list(times), len(times)):
            victim, moment = kill % RANKS, choose.uniform(0, 0.02)
            times[name].append(one_kill(name, victim, moment, hangs))
    good = True
    if options.kills > 0:
        good = compare(times, hangs, options.kills)
    all_phases_good, pauses = phases()
    good = good and all_phases_good
    pathlib.Path(options.output).write_text(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "unit": "ms", "kills": times, "phases": pauses}, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
