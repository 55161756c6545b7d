"""How long a job stands still when a rank dies, ours beside torchrun's: ./dev bench recover

A job of 4 rank processes takes steps of about 5 ms. One rank, another each time, gets a SIGKILL at a moment that nobody chose; measured is
the time from the kill to the next step that rank 0 (or, if that was the one, whoever is rank 0 then) reports as done. Ours three ways: the
job shrinks, a spare takes the place, a new process is started. torchrun restarts everybody, from the last checkpoint (here: from the start).

    recover/replaced ours=612 worst=744 peer=4021 unit=ms ratio=0.152 target=0.25 ok
"""
import argparse
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
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
TROUPE = ROOT / "build/release/launch/troupe"
PROBE = ROOT / "build/release/tests/launch/rank_probe"
RANKS = 4
MODES = {"shrink": ["--max-restarts", "0"], "spare": ["--max-restarts", "0", "--spares", "1"], "replaced": []}
TARGETS = {"recover/shrink": 0.25, "recover/spare": 0.25, "recover/replaced": 0.25}
PATIENCE_S = 60


def watch(command, environment, pid_line, step_line, victim, moment):
    """Kills `victim` `moment` seconds after its job's tenth step; returns the ms to the next step."""
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    killed, pids, steps = None, {}, 0
    deadline = time.monotonic() + PATIENCE_S
    try:
        for line in process.stdout:
            now = time.monotonic()
            if now > deadline:
                raise SystemExit(f"bench: {command[0]} took longer than {PATIENCE_S} s")
            if found := re.search(pid_line, line):
                pids[int(found[1])] = int(found[2])
            if re.search(step_line, line):
                steps += 1
                # Lines that were under way when the rank died come at once.
                if killed and now - killed > 0.02:
                    return (now - killed) * 1e3
                if steps == 10:
                    time.sleep(moment)
                    os.kill(pids[victim], signal.SIGKILL)
                    killed = time.monotonic()
        raise SystemExit(f"bench: {command[0]} ended before its next step")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()


def ours(mode, victim, moment):
    with tempfile.TemporaryDirectory() as scratch:
        command = [str(TROUPE), "launch", "--nproc", str(RANKS), *MODES[mode], "--run-dir", f"{scratch}/run", str(PROBE), "--probe_model", "norm",
                   "--batch_size", "24" if mode == "shrink" else "16", "--epochs", "1000", "--log_interval", "1", "--pause_ms", "5",
                   "--run_dir", "", "--save_every", "-1", "--checkpoint_dir", f"{scratch}/checkpoints"]
        return watch(command, dict(os.environ, OMP_NUM_THREADS="1"), r"\[rank (\d+)\] pid (\d+)", r" step \d+/", victim, moment)


def torchrun(victim, moment):
    command = [str(ROOT / ".venv-bench/bin/python3"), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
               "--max-restarts", "20", str(HERE / "peer/ddp_steps.py")]
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    return watch(command, environment, r"rank (\d+) pid (\d+)", r"^step \d+", victim, moment)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench recover")
    parser.add_argument("--kills", type=int, default=12, help="of each kind")
    parser.add_argument("--output", default=str(HERE / "recover.json"))
    options = parser.parse_args()
    choose = random.Random(1)
    times = {name: [] for name in [*MODES, "torchrun"]}
    for kill in range(options.kills):
        for name in choose.sample(list(times), len(times)):
            victim, moment = kill % RANKS, choose.uniform(0, 0.02)
            times[name].append(torchrun(victim, moment) if name == "torchrun" else ours(name, victim, moment))
    peer = statistics.median(times["torchrun"])
    good = True
    for mode in MODES:
        median = statistics.median(times[mode])
        ok = median / peer <= TARGETS[f"recover/{mode}"]
        good = good and ok
        print(f"recover/{mode} ours={median:.0f} worst={max(times[mode]):.0f} peer={peer:.0f} unit=ms ratio={median / peer:.3f} "
              f"target={TARGETS[f'recover/{mode}']} {'ok' if ok else 'short'}", flush=True)
    pathlib.Path(options.output).write_text(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "unit": "ms", "samples": times}, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
