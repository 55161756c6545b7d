"""The row start: from the command to the first step's end, two ranks, a model of two numbers; ours beside torchrun."""
import os
import subprocess
import tempfile
import time

from harness import HERE, OURS, ROOT, TORCHRUN, in_turns, report

DEADLINE_S = 60


def first_step(command, folder):
    """ms until the program says so; it may end by itself after that."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            if "first step" in line:
                taken = (time.perf_counter() - begin) * 1e3
                process.communicate(timeout=DEADLINE_S)
                return taken
    raise SystemExit(f"bench: {command[0]} ended (exit code {process.returncode}) before its first step")


def run_start(target, rounds):
    sides = {"ours": [str(ROOT / "build/release/launch/troupe"), "launch", "--nproc", "2", str(OURS / "bench_start")],
             "torchrun": [*TORCHRUN, str(HERE / "peer/start.py")]}
    with tempfile.TemporaryDirectory() as folder:
        times = in_turns(sides, rounds, lambda name: [first_step(sides[name], folder)])
    return report("start", target, times["ours"], {"torchrun": times["torchrun"]}, "ms", {})
