#!/usr/bin/env python3
"""A job whose clock is moved by eight days, more than keys are dated, and back by ten, recovers a rank and a coordinator each time.

    moved_clock.py TROUPE PROGRAM

The clock is libfaketime's; where there is none it says so and exits with 77. PROGRAM is rank_probe.
"""
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60


def main():
    troupe, probe = map(os.path.abspath, sys.argv[1:3])
    library = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    if not library:
        print("there is no libfaketime (apt-get install faketime)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        clock, log = f"{folder}/clock", f"{folder}/printed"

        def move(offset):
            with open(clock + ".new", "w") as file:
                file.write(offset + "\n")
            os.rename(clock + ".new", clock)

        def printed():
            with open(log, errors="replace") as file:
                return file.read()

        def wait_for(what, condition):
            deadline = time.monotonic() + PATIENCE_S
            while not condition():
                if job.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"no {what}; exit code {job.poll()}; it printed:\n{printed()[-3000:]}")
                time.sleep(0.05)

        def steps():
            return max([int(step) for step in re.findall(r"step (\d+)/", printed())] or [0])

        def trains(what):
            before = steps()
            wait_for(f"step after {what}", lambda: steps() > before + 20)

        def child(word):
            """The newest child of the launcher with this word on its command line."""
            found = []
            for name in os.listdir("/proc"):
                if not name.isdigit():
                    continue
                try:
                    with open(f"/proc/{name}/stat") as file:
                        parent = int(file.read().rsplit(")", 1)[1].split()[1])
                    with open(f"/proc/{name}/cmdline", "rb") as file:
                        words = file.read().split(b"\0")
                except OSError:
                    continue
                if parent == job.pid and word.encode() in words:
                    found.append(int(name))
            return max(found) if found else None

        move("+0")
        variables = dict(os.environ, OMP_NUM_THREADS="1", LD_PRELOAD=library[0], FAKETIME_TIMESTAMP_FILE=clock, FAKETIME_NO_CACHE="1",
                         FAKETIME_DONT_FAKE_MONOTONIC="1")
        with open(log, "wb") as out:
            job = subprocess.Popen([troupe, "launch", "--nproc", "2", "--run-dir", f"{folder}/run", probe, "--epochs", "100000", "--batch_size", "16",
                                    "--pause_ms", "2", "--log_interval", "10", "--checkpoint_dir", f"{folder}/checkpoints"], env=variables, stdout=out,
                                   stderr=out, start_new_session=True)
        try:
            trains("the start")
            for offset in ("+8d", "-2d", "-2h"):
                move(offset)
                for word in (probe, "coordinator"):
                    victim = child(word)
                    os.kill(victim, signal.SIGKILL)
                    wait_for(f"new process for {word} at {offset}", lambda victim=victim, word=word: child(word) not in (None, victim))
                    trains(f"{offset} and the loss of {os.path.basename(word)}")
            job.send_signal(signal.SIGINT)
            code = job.wait(timeout=PATIENCE_S)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        if code != 130:
            raise SystemExit(f"exit code {code}:\n{printed()[-3000:]}")
        print(f"ok: 3 moves of the clock, 6 recoveries, {steps()} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
