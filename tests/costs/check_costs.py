"""A step's allocations, copies and instructions beside what costs.json allows: check_costs.py STEP_COST_PROBE

Instructions are valgrind's callgrind's, of one rank in one process, on the threads of compute and of the reducer: what the others do goes by
the clock, and a machine that is slow would count more of it. Those of a bucket are what LAYERS buckets take more than one, with the same
gradients. How the two threads meet differs from run to run, so what is too much is counted again, up to TRIES times, and the least of each
count is taken. Exits with 1 and says what grew, where something costs more than costs.json says.
"""
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile

PROBE = sys.argv[1]
LAYERS = 9
COUNTED_FROM, STEPS = 30, 60  # the probe has callgrind count from there on, to the end of the job
BUCKETS = ("one", "each")
TRIES = 3
THREADS = ("troupe::Compute::step(", "troupe::ReducerState::ready(")  # what only these two call
ALLOWED = json.loads(pathlib.Path(__file__).with_name("costs.json").read_text())


def probe(*words):
    run = subprocess.run([PROBE, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return json.loads(run.stdout)


def instructions(buckets):
    """Of a step, on the two threads."""
    with tempfile.TemporaryDirectory() as scratch:
        # Nothing is counted until the probe says so: LibTorch's start under callgrind takes longer than all steps.
        run = subprocess.run(["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes", f"--callgrind-out-file={scratch}/out",
                              PROBE, "1", str(STEPS), str(LAYERS), buckets], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             timeout=300)
        if run.returncode != 0:
            sys.exit(f"valgrind: {run.stderr[-2000:]}")
        threads = [path.read_text() for path in pathlib.Path(scratch).glob("out-*")]
    of_interest = [text for text in threads if any(name in text for name in THREADS)]
    if len(of_interest) != len(THREADS):
        sys.exit(f"{len(of_interest)} threads call one of {', '.join(THREADS)}: what are these two called now?")
    return sum(int(re.search(r"^(?:totals|summary): (\d+)", text, re.M)[1]) for text in of_interest) / (STEPS - COUNTED_FROM)


def step_and_bucket(least):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for buckets, counted in zip(BUCKETS, pool.map(instructions, BUCKETS)):
            least[buckets] = min(counted, least.get(buckets, counted))
    one, each = (least[buckets] for buckets in BUCKETS)
    return {"step_instructions": round(one), "bucket_instructions": round((each - one) / (LAYERS - 1))}


def main():
    found = probe(2, 60, LAYERS, "each")
    least = {}
    for _ in range(TRIES):
        found |= step_and_bucket(least)
        print({name: found[name] for name in ("step_instructions", "bucket_instructions")}, flush=True)
        if all(found[name] <= ALLOWED[name] for name in ("step_instructions", "bucket_instructions")):
            break
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
