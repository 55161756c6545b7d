#!/usr/bin/env python3
"""What a second run does to the files of a first one: two_runs.py TROUPE RANK_PROBE

Starts every pair out of what people do with two runs of a program in one working directory, and compares the hash of every file of the first
run before and after: it is as it was, unless the second goes on with it. Prints a line for each pair, and exits with 1 if a file changed
that must not, or a second run ended otherwise than it should.
"""
import hashlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from share import in_share  # noqa: E402

TROUPE, PROBE = map(os.path.abspath, sys.argv[1:3])
DEADLINE_S = 60
FIRST = ["--epochs", "1", "--save_every", "8"]  # 16 steps

# How a run is started: alone, with simulated ranks, with processes.
STARTS = {"alone": [PROBE], "simulated": [PROBE, "--ranks", "2"], "processes": [TROUPE, "launch", "--nproc", "2", PROBE]}
KILLED = {"one process": [TROUPE, "launch", "--nproc", "1", "--no-recovery", PROBE]}
# Where the first run's files go, and what the second says of the place.
PLACES = {
    "default folders": [],
    "same folder": ["--run_dir", "mine"],
    "same checkpoints": ["--checkpoint_dir", "mine"],
}
# What the second does: its arguments, the exit codes it may have by place, and whether it goes on with the first.
REFUSED = {"default folders": 0, "same folder": 2, "same checkpoints": 2}
AFTERWARDS = {
    "the same again": ([], REFUSED, False),
    "another model": (["--probe_model", "plain"], REFUSED, False),
    "another batch size": (["--batch_size", "32"], REFUSED, False),
    "resume": (["--resume", "latest", "--epochs", "2"], dict.fromkeys(PLACES, 0), True),
    "resume auto": (["--resume", "auto", "--epochs", "2"], dict.fromkeys(PLACES, 0), True),
    "resume, another model": (["--resume", "latest", "--probe_model", "wide"], dict.fromkeys(PLACES, 65), True),
}
NOT_OF_A_RUN = ("lock",)  # who has the folder now


def command(start, place, more=()):
    return [*(STARTS | KILLED)[start], "--batch_size", "16", *FIRST, *PLACES[place], *more]


def run(words, folder, fault=None):
    environment = dict(os.environ, OMP_NUM_THREADS="1", **({"TROUPE_FAULT": fault} if fault else {}))
    done = subprocess.run(words, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE_S)
    return done.returncode, done.stdout


def hashes(folder):
    """Of every file and link below, without those that say who has a folder."""
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file() and path.name not in NOT_OF_A_RUN:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    found.pop("runs/latest", None)
    return found


def changed(before, after):
    return sorted(name for name, digest in before.items() if after.get(name) != digest)


def judge(what, code, expected, spoilt, said):
    good = code == expected and not spoilt
    print(f"{'ok   ' if good else 'WRONG'} {what}: exit code {code}" + (f", {expected} expected" if code != expected else "") +
          (f"; changed: {', '.join(spoilt[:4])}" if spoilt else ""), flush=True)
    if not good:
        print("\n".join("      " + line for line in said.splitlines()[-8:]), flush=True)
    return good


def one_after_the_other(start, place, second):
    more, codes, goes_on = AFTERWARDS[second]
    with tempfile.TemporaryDirectory() as folder:
        code, said = run(command(start, place), folder)
        if code != 0:
            return judge(f"{start}, {place}", code, 0, [], said)
        before = hashes(folder)
        code, said = run(command(start, place, more), folder)
        spoilt = [] if goes_on and code == 0 else changed(before, hashes(folder))
        if goes_on and code != 0:  # it wrote its lines, and must have left what was saved
            spoilt = [name for name in spoilt if "step-" in name or name.endswith(("/latest", "/best"))]
        return judge(f"{start}, {place}, then {second}", code, codes[place], spoilt, said)


def two_at_once(start, place):
    """The second begins while the first trains, and the first ends as if it were alone."""
    with tempfile.TemporaryDirectory() as folder:
        words = command(start, place, ["--epochs", "40", "--pause_ms", "20", "--log_interval", "1", "--keep_last", "1000"])
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        first = subprocess.Popen(words, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        until = time.monotonic() + DEADLINE_S
        for line in first.stdout:
            if "step 18/" in line or time.monotonic() > until:
                break
        # That of step 8 is on disk before that of step 16 begins.
        saved = {name: digest for name, digest in hashes(folder).items() if "/step-00000008/" in name}
        code, said = run(command(start, place), folder)
        expected = 0 if place == "default folders" else 69
        spoilt = changed(saved, hashes(folder)) or ([] if saved else ["nothing was saved"])
        good = judge(f"{start}, {place}, two at once: the second", code, expected, spoilt, said)
        first.send_signal(signal.SIGTERM)
        rest = first.communicate(timeout=DEADLINE_S)[0]
        return judge(f"{start}, {place}, two at once: the first", first.returncode, 128 + signal.SIGTERM, [], rest) and good


def killed_in_a_save(place):
    """What the first had saved before is there, and a second run goes on with it."""
    with tempfile.TemporaryDirectory() as folder:
        code, said = run(command("one process", place), folder, fault="slot=0,step=16,at=save,signal=9")
        if code != 128 + signal.SIGKILL:
            return judge(f"{place}, killed in a save", code, 128 + signal.SIGKILL, [], said)
        before = {name: digest for name, digest in hashes(folder).items() if "/step-00000008/" in name}
        code, said = run(command("alone", place, ["--probe_model", "plain"]), folder)
        spoilt = changed(before, hashes(folder)) or ([] if before else ["nothing was saved"])
        good = judge(f"{place}, killed in a save, then another model", code, REFUSED[place], spoilt, said)
        if place == "default folders":  # the newest run is the other model's now
            return good
        code, said = run(command("alone", place, ["--resume", "latest"]), folder)
        return judge(f"{place}, killed in a save, then resume", code, 0, [], said) and good


def main():
    pairs = [(one_after_the_other, *pair) for pair in itertools.product(STARTS, PLACES, AFTERWARDS)]
    pairs += [(two_at_once, *pair) for pair in itertools.product(STARTS, PLACES)]
    pairs += [(killed_in_a_save, place) for place in PLACES]
    results = [judged(*values) for judged, *values in pairs if in_share(0.3, f"{judged.__name__} {values}")]
    print(f"{len(results)} pairs, {results.count(False)} wrong")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
