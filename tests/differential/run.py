#!/usr/bin/env python3
"""Troupe beside a plain LibTorch loop on drawn jobs, or that loop beside Python's PyTorch: ./dev differential."""

import argparse
import collections
import json
import os
import pathlib
import re
import selectors
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from dimensions import DIMENSIONS, SIMPLEST, for_processes, for_python, refusals, settle, short, unknown_to_python  # noqa: E402
from drawing import LEAST, Drawing, all_pairs, count_pairs, meet, read_weights, shown  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/release/tests/differential/differential"
BESIDE_PYTORCH = ROOT / "tests/differential/beside_pytorch.py"
PYTHON = os.environ.get("TROUPE_PYTHON") or str(ROOT / ".venv-bench/bin/python3")  # one that has PyTorch
# With each, sums have other last bits: what is equal by luck with one is not with another.
INSTRUCTIONS = {"own": {}, "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
                "sse4.2": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
                "mixed": {"MKL_ENABLE_INSTRUCTIONS": "AVX"}}


class Way:
    """How jobs are judged: Troupe beside the reference, with threads for ranks or a process for each, or the reference beside Python's PyTorch."""

    def __init__(self, kind="threads", instructions="own"):
        cores = os.cpu_count() or 1
        self.python = kind == "python"
        self.fit = {"threads": lambda job: job, "processes": for_processes, "python": for_python}[kind]
        self.command = {"threads": [PROGRAM], "processes": [PROGRAM, "--processes"], "python": [PYTHON, BESIDE_PYTORCH, PROGRAM]}[kind]
        # More than cores: in an eighth of a job's time all of its threads wait.
        self.workers = {"threads": cores + cores // 2, "processes": max(1, cores // 2), "python": cores}[kind]
        self.deadline_s = 120 if kind == "processes" else 60  # of one job
        self.environment = INSTRUCTIONS[instructions]
        ways = [kind] * (kind != "threads") + [f"instructions {instructions}"] * (instructions != "own")
        self.again = "".join(["./dev differential", *(f" --{way}" for way in ways)])
        self.drawing = Drawing(read_weights())
        self.results = "-".join([commit(), *(way.replace(" ", "-") for way in ways)]) + ".jsonl"

    def draw(self, seed, only=None):
        return self.fit(self.drawing.draw(seed, only))

    def refusals(self, job):
        return [] if self.python else refusals(job)  # those are Troupe's


class Worker:
    """A process that runs one job after the other. A crash or a hang is a verdict, and the next job gets a new process."""

    def __init__(self, way):
        self.way, self.process, self.busy = way, None, None

    def start(self, tag, job):
        if self.process is None or self.process.poll() is not None:
            # Files go to memory where there is some: a job writes three checkpoints.
            environment = dict(os.environ, OMP_NUM_THREADS="1", TMPDIR="/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp",
                               **self.way.environment)
            self.said = tempfile.TemporaryFile()
            self.process = subprocess.Popen(self.way.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, env=environment)
        self.busy, self.began = (tag, job), time.monotonic()
        self.process.stdin.write((json.dumps(job) + "\n").encode())
        self.process.stdin.flush()

    def answer(self):
        """Blocks until the line is there; None: the process has died."""
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        code = self.process.wait()
        self.process = None
        self.said.seek(0)
        last = [line for line in self.said.read()[-2000:].decode(errors="replace").splitlines() if line.strip()][-3:]
        return {"verdict": f"crashed: exit code {code}: {' / '.join(last)}", "ms": 0}

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def run_all(jobs, way):
    """Yields (tag, job, answer) as they come; `jobs` yields (tag, job)."""
    pool, waiting = [Worker(way) for _ in range(way.workers)], iter(jobs)
    selector = selectors.DefaultSelector()

    def feed(worker):
        following = next(waiting, None)
        if following is None:
            return False
        before = worker.process
        worker.start(*following)
        if worker.process is not before:
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        return True

    try:
        busy = sum(feed(worker) for worker in pool)
        while busy:
            ready = selector.select(timeout=1)
            done = [key.data for key, _ in ready]
            for worker in pool:
                if worker.busy and worker not in done and time.monotonic() - worker.began > way.deadline_s:
                    selector.unregister(worker.process.stdout)
                    worker.stop()
                    tag, job = worker.busy
                    yield tag, job, {"verdict": f"hangs: not over after {way.deadline_s} s", "ms": 1000 * way.deadline_s}
                    worker.busy = None
                    busy -= not feed(worker)
            for worker in done:
                stream = worker.process.stdout
                answer = worker.answer()
                if worker.process is None:
                    selector.unregister(stream)
                tag, job = worker.busy
                worker.busy = None
                yield tag, job, answer
                busy -= not feed(worker)
    finally:
        for worker in pool:
            worker.stop()


def judge(job, verdict, way):
    """What is wrong about the verdict; empty: nothing. A job that is listed as refused must be refused, any other must not.
    A rough one differs by what its own rounding makes; PyTorch's side does not cover all."""
    listed = way.refusals(job)
    if not listed:
        return "" if verdict.startswith(("rough: ", "not run: ")) else verdict
    if any(refusal.is_in(verdict) for refusal in listed):
        return ""
    return f"listed as refused ({listed[0].says}), but: {verdict or 'it ran'}"


def kind_of(fault):
    """Faults alike but for numbers and names."""
    return re.sub(r"\[\d+\]|-?\d+(\.\d+)?(e-?\d+)?", "#", re.sub(r"(model|optimizer)\.[\w.]+", r"\1.X", fault))[:90]


def verdict_of(worker, job):
    worker.start(None, job)
    with selectors.DefaultSelector() as selector:
        selector.register(worker.process.stdout, selectors.EVENT_READ)
        if not selector.select(timeout=worker.way.deadline_s):
            worker.stop()
            return f"hangs: not over after {worker.way.deadline_s} s"
    return worker.answer()["verdict"]


def fault_of(worker, job):
    return judge(job, verdict_of(worker, job), worker.way)


def shrink(job, way, say=lambda text: None):
    """The job with every dimension at its simplest value with which it is still at fault, and the fault."""
    worker = Worker(way)
    try:
        fault = fault_of(worker, job)
        if not fault:
            return job, ""
        changed = True
        while changed:
            changed = False
            for name in DIMENSIONS:
                values = list(dict.fromkeys(DIMENSIONS[name]))
                for value in values[:values.index(job[name])]:
                    trial = settle(dict(job, **{name: value}))
                    if trial == job:
                        continue
                    found = fault_of(worker, trial)
                    if found and found.split(":")[0] == fault.split(":")[0]:
                        job, fault, changed = trial, found, True
                        say(json.dumps(short(job)))
                        break
        return job, fault
    finally:
        worker.stop()


def has_pytorch():
    try:
        return subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 0
    except OSError:
        return False


def catch2_test(job, fault):
    return f'''TEST_CASE("[T01] {fault.splitlines()[0][:80]}") {{
  right({{R"({json.dumps(short(job))})"}});
}}'''


def commit():
    name = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude", "*", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True)
    return name.stdout.strip() or "unknown"


def print_coverage(jobs):
    """The pairs of values that these jobs have too seldom, but for those that no job can have."""
    counts = count_pairs(jobs)
    seldom = [pair for pair in all_pairs() if counts[pair] < LEAST]
    never = {pair for pair in seldom if not counts[pair] and not meet(pair)}
    for pair in seldom:
        if pair not in never:
            print(f"{counts[pair]:5} x {shown(*pair[0])} {shown(*pair[1])}")
    possible = sum(1 for _ in all_pairs()) - len(never)
    print(f"{len(seldom) - len(never)} of {possible} pairs of values ran fewer than {LEAST} times; "
          f"{len(never)} others are refused, or one excludes what the other is about")


def values_in(text, name):
    """The values of a dimension that the text lists, between commas; none if it has another word. A value may have commas itself."""
    known = {str(value).lower(): value for value in DIMENSIONS[name]}
    words, values = text.lower().split(","), []
    while words:
        ends = [n for n in range(1, len(words) + 1) if ",".join(words[:n]) in known]
        if not ends:
            return []
        values.append(known[",".join(words[:ends[-1]])])
        del words[:ends[-1]]
    return values


def main():
    parser = argparse.ArgumentParser(prog="./dev differential", description=__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=200)
    parser.add_argument("first", nargs="?", type=int, default=0)
    sides = parser.add_mutually_exclusive_group()
    sides.add_argument("--processes", action="store_const", dest="kind", const="processes", help="each rank is a process that `troupe launch` starts, and is killed by SIGKILL")
    sides.add_argument("--python", action="store_const", dest="kind", const="python", help="the plain LibTorch loop beside Python's PyTorch, without Troupe")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="make this seed's job as simple as it can be and still be at fault")
    parser.add_argument("--job", help="run this job (JSON), or shrink it with --shrink -1")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--instructions", choices=INSTRUCTIONS, default="own", help="of the processor: LibTorch's, MKL's and oneDNN's kernels")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE,..", help="draw this dimension from these values only")
    parser.add_argument("--kinds", type=int, default=0, metavar="N", help="shrink the first seed of so many kinds of faults")
    parser.add_argument("--stop", action="store_true", help="end at the first fault")
    parser.add_argument("--table", action="store_true", help="print the pairs of values that ran too seldom")
    options = parser.parse_args()
    way = Way(options.kind or "threads", options.instructions)
    if way.python and not has_pytorch():
        print(f"{PYTHON} can't import torch: run ./dev interop first, which installs it", file=sys.stderr)
        return 2

    defaults = json.loads(subprocess.run([PROGRAM, "--defaults"], capture_output=True, text=True, check=True).stdout)
    for name, value in SIMPLEST.items():
        if defaults.get(name) != value:
            sys.exit(f"dimensions.py says that {name} is {value!r} at its simplest, job.hpp {defaults.get(name)!r}")
    if unknown := unknown_to_python():
        sys.exit(f"pytorch.py does not know {unknown[0]}: teach it, or name it in dimensions.py's NOT_IN_PYTHON or NOTHING_TO_PYTHON")

    only, again = {}, way.again
    for text in options.set:
        name, _, values = text.partition("=")
        if name not in DIMENSIONS:
            sys.exit(f"--set {text}: there is no dimension '{name}'; there are {', '.join(DIMENSIONS)}")
        only[name] = values_in(values, name)
        if not only[name]:
            sys.exit(f"--set {text}: {name} is one of {', '.join(str(value).lower() for value in DIMENSIONS[name])}")
        way.again += f" --set {text}"

    if options.job or options.shrink is not None:
        job = settle(dict(SIMPLEST, **json.loads(options.job))) if options.job else way.draw(options.shrink, only)
        if options.shrink in (None, -1) and not options.job:
            sys.exit("--shrink -1 goes with --job")
        if options.shrink is None:
            worker = Worker(way)
            verdict = verdict_of(worker, job)
            worker.stop()
            print(judge(job, verdict, way) or (verdict if verdict.startswith("not run: ") else "right"))
            return 0
        job, fault = shrink(job, way, lambda text: print("  " + text, file=sys.stderr))
        if not fault:
            print("right")
            return 0
        print(f"{fault}\nagain: {again} --job '{json.dumps(short(job))}'" + ("" if way.python else "\n" + catch2_test(job, fault)))
        return 1

    began = time.monotonic()
    folder = ROOT / "build/differential"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / way.results
    known = {}
    if path.exists() and "dirty" not in path.name and not only:
        known = {entry["seed"]: entry for entry in map(json.loads, path.read_text().splitlines())}

    def jobs():
        for seed in range(options.first, options.first + options.seeds):
            if options.seconds and time.monotonic() - began > options.seconds or options.stop and faults:
                return
            if seed not in known:
                yield seed, way.draw(seed, only)

    ran, left_out, rough, faults, total_ms = [], 0, 0, [], 0
    with (open(os.devnull, "w") if only else path.open("a")) as log:
        def note(seed, job, entry):
            nonlocal left_out, rough, total_ms
            fault = entry["fault"]
            total_ms += entry["ms"]
            rough += entry["rough"]
            if fault:
                faults.append((seed, job, fault))
                print(f"seed {seed}: {fault}\n  again: {way.again} 1 {seed}; smaller: {way.again} --shrink {seed}", flush=True)
            elif entry["not_run"] or way.refusals(job):
                left_out += 1
            else:
                ran.append(job)

        for seed, entry in sorted(known.items()):
            if options.first <= seed < options.first + options.seeds:
                note(seed, way.draw(seed), entry)
        for seed, job, answer in run_all(jobs(), way):
            verdict = answer["verdict"]
            fault = judge(job, verdict, way)
            entry = {"seed": seed, "fault": fault, "rough": verdict.startswith("rough: "), "not_run": verdict.startswith("not run: "), "ms": answer["ms"]}
            log.write(json.dumps(entry) + "\n")
            log.flush()
            note(seed, job, entry)
            if options.stop and fault:
                break

    seconds = time.monotonic() - began
    count = len(ran) + left_out + len(faults)
    kinds = collections.defaultdict(list)
    for seed, job, fault in faults:
        kinds[kind_of(fault)].append((seed, job, fault))
    for kind, of_kind in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"{len(of_kind):5} x {kind}  (seed {of_kind[0][0]})")
    for kind, of_kind in list(sorted(kinds.items(), key=lambda item: -len(item[1])))[:options.kinds]:
        job, fault = shrink(of_kind[0][1], way)
        print(f"smallest of '{kind}':\n  {json.dumps(short(job))}\n  {fault}", flush=True)
    if options.table:
        print_coverage(ran)
    right = f"{len(ran)} right ({rough} too rough to judge), {left_out} refused as listed"
    if way.python:
        right = f"{len(ran)} compared and right, {left_out} not run"
    print(f"{count} seeds from {options.first}: {right}, {len(faults)} at fault; "
          f"{seconds:.0f} s, {count / max(seconds, 0.001):.1f} seeds/s, {total_ms / max(count, 1):.0f} ms each")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
