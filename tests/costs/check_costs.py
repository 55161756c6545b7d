"""A step's allocations, copies and instructions beside what costs.json allows: check_costs.py STEP_COST_PROBE

Instructions are valgrind's callgrind's, of one rank in one process: those of a bucket are what LAYERS buckets take more than one, with the
same gradients. Exits with 1 and says what grew, where something costs more than costs.json says; less by a tenth is told, too.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

PROBE = sys.argv[1]
LAYERS = 9
STEPS = (30, 60)
ALLOWED = json.loads(pathlib.Path(__file__).with_name("costs.json").read_text())


def probe(*words):
    run = subprocess.run([PROBE, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return json.loads(run.stdout)


def instructions(steps, buckets):
    with tempfile.TemporaryDirectory() as scratch:
        run = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={scratch}/out", PROBE, "1", str(steps), str(LAYERS), buckets],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300)
    if run.returncode != 0:
        sys.exit(f"valgrind: {run.stderr[-2000:]}")
    return int(re.search(r"Collected : (\d+)", run.stderr).group(1))


def step_instructions(buckets):
    few, many = (instructions(steps, buckets) for steps in STEPS)
    return (many - few) / (STEPS[1] - STEPS[0])


def main():
    found = probe(2, 60, LAYERS, "each")
    one, each = step_instructions("one"), step_instructions("each")
    found["step_instructions"], found["bucket_instructions"] = round(one), round((each - one) / (LAYERS - 1))
    failed = False
    for name, value in found.items():
        allowed = ALLOWED[name]
        verdict = "ok" if value <= allowed else "MORE THAN ALLOWED"
        failed = failed or value > allowed
        print(f"{name}: {value}, allowed are {allowed}: {verdict}")
    if failed:
        print("a step costs more than tests/costs/costs.json says: find out why, or write down there what it costs now")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
