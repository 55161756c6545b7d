"""Runs what needs a GPU, in parts.

Each step of a part is a process group, which is killed at the part's deadline. A hang, a crash or a device that broke
costs one part. Results are on the disk before the next step begins: gpu-check.jsonl in $OUT, in --out, or in build/;
the output of each step lies beside it. --table FILE.. prints the tables of docs/gpu.md out of such files. The rows
beside PyTorch need a Python with torch: TROUPE_TORCH_PYTHON's, this one, or the checkout's .venv-bench.
Exit code 0: all that could run passed, and something ran; 1: something failed; 77: nothing ran, since there is no GPU.
"""
import argparse
import datetime
import os
import pathlib
import re
import shutil
import signal
import sys
import time

import deadline
import parts
import results
import step_rows

HERE = pathlib.Path(__file__).resolve().parent
IS_PACKED = (HERE / "test_gpu").is_file()
ROOT = HERE.parents[1]
UNAVAILABLE = 69
SHORT_SECONDS = 10  # for a question about the machine
TOOL_FOLDERS = ("/usr/local/cuda/bin", *map(str, pathlib.Path("/opt/nvidia/nsight-compute").glob("*")))


class Missing(Exception):
    """A tool that this machine lacks."""


class Words(dict):
    """The placeholders of parts.py; a name that is none of ours is a tool."""

    def __init__(self, path, **words):
        super().__init__(words)
        self.path = os.pathsep.join([path, *TOOL_FOLDERS])

    def __missing__(self, name):
        if found := shutil.which(name, path=self.path):
            return found
        raise Missing(f"no {name} here")


def memory_mib(device):
    """Of the smallest one; 0 where nothing is said."""
    return min((int(number) for number in re.findall(r"(\d+) MiB", device)), default=0)


class Machine:
    """Where steps run: programs of `folder`, what they print into `out`."""

    def __init__(self, folder, out, python, environment, wait=deadline.is_over):
        self.environment, self.wait = environment, wait
        self.logs = out / "gpu-check-logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        scripts = {name: HERE / f"{name}.py" for name in ("steps_test", "strategies_test", "step_rows", "host_rows", "counters")}
        programs = {name: folder / name for name in ("test_gpu", "gpu_rows")}
        self.words = Words(environment.get("PATH", ""), folder=folder, logs=self.logs, python=python, **scripts, **programs)
        query = ("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
        self.device = self.answer(("{nvidia-smi}", *query), "no GPU")
        self.words["memory"] = memory_mib(self.device)

    def run(self, words, log, seconds, variables=None):
        """(exit code or nothing, output), as deadline.run. Throws Missing."""
        command = [str(word).format_map(self.words) for word in words]
        own = os.environ if "{python}" in words else self.environment  # a script makes our programs' environment itself
        return deadline.run(command, {**own, **(variables or {})}, self.logs / f"{log}.log", seconds, self.wait)

    def answer(self, words, otherwise):
        """One line of this machine."""
        try:
            code, output = self.run(words, "question", SHORT_SECONDS)
        except Missing:
            return otherwise
        return output.strip().replace("\n", "; ") if code == 0 and output.strip() else otherwise

    def run_step(self, part, step, seconds):
        """(exit code or nothing, output)"""
        variables = {"PYTHONUNBUFFERED": "1", "TROUPE_GPU_CHECK_STEP": f"{part.name}/{step.name}"}
        return self.run(step.words, f"{part.name}-{re.sub('[^a-zA-Z0-9]+', '_', step.name)[:80]}", seconds, variables)

    def commit(self):
        """Of what runs here; a packed folder has it as a file."""
        file = HERE / "commit"
        git = ("git", "-C", HERE, "describe", "--always", "--dirty", "--exclude", "*", "--abbrev=12")
        return file.read_text().strip() if file.is_file() else self.answer(git, "unknown")


def tests_in(output):
    """Steps of the tests that test_gpu has listed. Catch2 would take the row that a name begins with for a tag."""
    names = [line.strip() for line in output.splitlines() if line.strip().startswith("[")]
    return [parts.Step(name, ("{test_gpu}", re.sub(r"([\[\],\\*])", r"\\\1", name))) for name in names]


def run_part(machine, part, seconds, found):
    """Adds the results of its steps, and then its own, to `found`."""
    start = time.monotonic()
    steps, ends = list(part.steps), []
    while steps:
        step = steps.pop(0)
        began = time.monotonic()
        try:
            code, output = machine.run_step(part, step, start + seconds - began)
            end = results.verdict(code, output, seconds, machine.words["memory"] > 0)
        except Missing as why:
            code, output, end = results.NOT_RUN, "", f"not run: {why}"
        if step.tag and code is not None and (tests := tests_in(output)):  # Catch2's exit code of a list is its length
            steps = tests + steps
            continue
        ends.append(end)
        add_step(found, part, step, end, time.monotonic() - began, output)
        if code is None:
            for rest in steps:
                ends.append("not reached")
                add_step(found, part, rest, ends[-1], 0, "")
            break
    found.add(part=part.name, result=results.worst(ends), seconds=round(time.monotonic() - start, 1))
    return results.worst(ends)


def add_step(found, part, step, end, seconds, output):
    found.add(part=part.name, step=step.name, result=end, seconds=round(seconds, 1), measures=step.measures,
              rows=results.rows_of(output), said=results.last_lines(output))
    print(f"{part.name}: {step.name}: {end}, {seconds:.1f} s", flush=True)
    if results.is_broken(end):
        print(results.last_lines(output), file=sys.stderr)


def run_parts(machine, chosen, found, *, skips=False, budget=None, seconds=None):
    """The parts' results: without those that passed before, if `skips`; up to the first beyond `budget`."""
    start, before, ends = time.monotonic(), found.passed_before() if skips else set(), []
    for number, part in enumerate(chosen):
        if part.name in before:
            print(f"{part.name}: passed before")
            ends.append("passed")
            continue
        limit = seconds or part.seconds
        if budget is not None and time.monotonic() - start + limit > budget:
            left = [rest.name for rest in chosen[number:] if rest.name not in before]
            print(f"{budget:g} s are not enough; left for another call with --continue: {' '.join(left)}")
            break
        ends.append(run_part(machine, part, limit, found))
    return ends


def list_parts():
    for part in parts.PARTS:
        print(f"{part.name:16} {part.seconds:3} s  {part.about}")
    print(f"{'all':16} {sum(part.seconds for part in parts.PARTS):3} s at most, in this order")


def parse(arguments):
    summary, _, rest = __doc__.partition("\n")
    parser = argparse.ArgumentParser(prog="gpu-check", description=summary, epilog=rest,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="all, if none is named")
    parser.add_argument("--list", action="store_true", help="the parts and their limits")
    parser.add_argument("--self-test", action="store_true", help="plays a hang, a crash and a failure in each part")
    parser.add_argument("--table", nargs="+", type=pathlib.Path, metavar="FILE", help="the tables of earlier results")
    parser.add_argument("--continue", action="store_true", dest="skips",
                        help="without the parts that this commit has passed on this device")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="start no part that may not be over by then")
    parser.add_argument("--seconds", type=float, help=f"each part's limit, at most {parts.MOST_SECONDS}")
    parser.add_argument("--out", type=pathlib.Path, metavar="FOLDER", help="of the results")
    parser.add_argument("--folder", type=pathlib.Path, default=HERE if IS_PACKED else ROOT / "build/cuda/tests/gpu",
                        help="of test_gpu, gpu_rows and gpu_steps")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.parts if name not in parts.NAMES]:
        parser.error(f"there is no part {unknown[0]!r}; --list shows them")
    if missing := [file for file in options.table or [] if not file.is_file()]:
        parser.error(f"--table: there is no file {missing[0]}")
    if options.seconds is not None and not 0 < options.seconds <= parts.MOST_SECONDS:
        parser.error(f"--seconds is above 0 and at most {parts.MOST_SECONDS}")
    otherwise = os.environ.get("OUT") or (pathlib.Path.cwd() if IS_PACKED else ROOT / "build")
    options.out = (options.out or pathlib.Path(otherwise)).resolve()
    return options


def check(options):
    folder = options.folder.resolve()
    if not (folder / "test_gpu").is_file():
        print(f"gpu-check: {folder} has no test_gpu; ./dev gpu-check builds it", file=sys.stderr)
        return UNAVAILABLE
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the step's processes end too
    machine = Machine(folder, options.out, sys.executable, step_rows.own_environment(folder))
    now = datetime.datetime.now(datetime.timezone.utc)
    call = {"call": now.isoformat(), "date": str(now.date()), "commit": machine.commit(), "device": machine.device}
    found = results.Results(options.out / "gpu-check.jsonl", call)
    chosen = [part for part in parts.PARTS if not options.parts or part.name in options.parts]
    ends = run_parts(machine, chosen, found, skips=options.skips, budget=options.budget, seconds=options.seconds)
    print(f"\n{results.table(results.read([found.path]))}\n\n{found.path}")
    if not any(end == "passed" or results.is_broken(end) for end in ends):
        print("\nNOTHING RAN: there is no GPU here. This is no pass.", file=sys.stderr)
    return results.exit_code(ends)


def main():
    options = parse(sys.argv[1:])
    if options.list:
        return list_parts()
    if options.table:
        return print(results.table(results.read(options.table)))
    if options.self_test:
        import self_test
        return self_test.main()
    return check(options)


if __name__ == "__main__":
    sys.exit(main())
