"""The rows of docs/gpu.md that stand beside PyTorch: step times of ours and of DDP or FSDP2, in turns on one device.

    python3 tests/gpu/step_rows.py FOLDER [--device cuda|cpu] [--tiny] [--blocks 10] [--row ROW] [--memory MIB]

FOLDER has gpu_steps. PyTorch is that of TROUPE_TORCH_PYTHON, of this Python, or of .venv-bench. Each side is a process, which waits while the
other works. PyTorch's side begins with two short blocks of each of its settings, and goes on with the fastest. Then blocks in turns; the
ratio is that of the medians, the interval what 95 % of 2,000 draws of whole blocks give. Both begin with the same weights, and their losses
must stay together. `--tiny` with `--device cpu` tries all of that without a GPU.
"""
import argparse
import contextlib
import dataclasses
import functools
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# In a checkout, or as ./dev gpu-check --pack lays it out.
sys.path.insert(0, str(HERE / "bench" if (HERE / "bench").is_dir() else HERE.parents[1] / "bench"))
import harness  # noqa: E402

PEER = pathlib.Path(harness.__file__).parent / "peer/device_steps.py"
TARGET = 1.0
TRIAL_STEPS = 5
LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 0.02}  # relative; bf16 has 8 bits, and each side's kernels round where they like
COMPARED_STEPS = 10  # from equal weights; later ones drift
SMALL_MEMORY_MIB = 40_000  # a device with less gets a quarter of the batches


@dataclasses.dataclass
class Row:
    strategy: str
    job: str
    batch: int
    steps: int  # of a block
    precision: str = "bf16"
    graphs: bool = False  # ours: forward and backward of it as one graph

    @property
    def name(self):
        peer = {"ddp": "PyTorch's DDP", "fsdp": "PyTorch's FSDP2"}[self.strategy]
        return f"step of {self.strategy}{' with cuda_graphs' * self.graphs}, {self.job}, {self.precision}, batch {self.batch}, beside {peer}"


ROWS = [Row("ddp", "resnet50", 64, 20), Row("ddp", "gpt124m", 8, 20), Row("fsdp", "gpt124m", 8, 20),
        Row("ddp", "resnet50", 64, 20, graphs=True), Row("ddp", "gpt124m", 8, 20, graphs=True)]
TINY_ROWS = [Row("ddp", "resnet_tiny", 4, 5, "fp32"), Row("ddp", "gpt_tiny", 4, 5, "fp32"), Row("fsdp", "gpt_tiny", 4, 5, "fp32"),
             Row("fsdp", "gpt_tiny", 4, 5, "bf16"), Row("ddp", "gpt_tiny", 4, 5, "fp32", graphs=True)]


def libraries(folder, torch_folder):
    """Where a packed program's libraries are: LibTorch's, those that it asks for, then the folder's own."""
    site = pathlib.Path(torch_folder).parent
    return [str(site / "torch/lib"), *sorted(str(found) for found in site.glob("nvidia/*/lib")), str(pathlib.Path(folder).resolve() / "lib")]


def pythons():
    candidates = [os.environ.get("TROUPE_TORCH_PYTHON"), os.environ.get("TROUPE_PYTHON"), sys.executable,
                  str(HERE.parents[1] / ".venv-bench/bin/python3")]
    return [python for python in filter(None, candidates) if os.path.exists(python)]


def torch_folder(python):
    """Where a Python has torch; empty where it has none."""
    where = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    found = subprocess.run([os.path.abspath(python), "-c", where], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else ""


@functools.cache
def library_folder():
    """Of the first that has torch, whole or not; empty where none has."""
    return next(filter(None, map(torch_folder, pythons())), "")


def own_environment(folder):
    """Of our programs: a packed one does not know where this machine has LibTorch. The caller's LD_LIBRARY_PATH comes first."""
    variables = dict(os.environ)
    if (pathlib.Path(folder) / "lib").is_dir():
        found = library_folder()
        folders = libraries(folder, found) if found else [str(pathlib.Path(folder).resolve() / "lib")]
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, [variables.get("LD_LIBRARY_PATH", ""), *folders]))
    return variables


def command_of(folder, *, job, batch, strategy, precision, device, **more):
    flags = {"--job": job, "--batch": batch, "--strategy": strategy, "--precision": precision, "--device": device, **more}
    return [str(pathlib.Path(folder).resolve() / "gpu_steps"), *(str(word) for flag in flags.items() for word in flag)]


def ours(folder, *, errors=None, **options):
    command = command_of(folder, **options)
    return harness.Program(command, " ".join(command), own_environment(folder), errors)


def end_of(folder, line, **options):
    """(exit code, standard error) of a gpu_steps that is given this one line."""
    done = subprocess.run(command_of(folder, **options), input=line + "\n", env=own_environment(folder),
                          capture_output=True, text=True)
    return done.returncode, done.stderr


def peer(python, *, job, batch, strategy, precision, device):
    command = [os.path.abspath(python), str(PEER), "--job", job, "--batch", str(batch), "--strategy", strategy, "--precision", precision, "--device", device]
    return harness.Program(command, " ".join(command))


def block(program, steps):
    answer = program.ask(f"block {steps}", "step_ms")
    return float(answer["step_ms"][0]), harness.floats(answer["losses"])


def fastest_setting(program):
    """The first block warms up."""
    times = {}
    for setting in program.ask("settings", "settings")["settings"]:
        program.ask(f"use {setting}", "using")
        block(program, TRIAL_STEPS)
        times[setting] = block(program, TRIAL_STEPS)[0]
    return min(times, key=times.get)


def largest_relative_difference(a, b):
    """Infinite where one is not a number."""
    apart = [abs(x - y) / max(abs(y), 1e-12) for x, y in zip(a, b, strict=True)]
    return max(apart) if all(x == x for x in apart) else float("inf")


def measure(row, folder, python, device, blocks):
    """{ours, peer: ms; ratio; spread; setting; loss_difference}"""
    shape = {"job": row.job, "batch": row.batch, "strategy": row.strategy, "precision": row.precision, "device": device}
    with contextlib.ExitStack() as started:  # one that fails leaves the other no device to hold
        def start(program):
            started.callback(program.process.kill)
            return program
        programs = {"peer": start(peer(python, **shape))}
        setting = fastest_setting(programs["peer"])
        programs["peer"].ask(f"use {setting}", "using")
        programs["ours"] = start(ours(folder, **shape, **({"--graphs": "true"} if row.graphs else {})))
        first = {name: block(program, COMPARED_STEPS)[1] for name, program in programs.items()}
        found = harness.in_turns(["ours", "peer"], blocks, lambda name: block(programs[name], row.steps)[0])
        for program in programs.values():
            program.quit()
    return summary(found["ours"], found["peer"], setting, largest_relative_difference(first["ours"], first["peer"]))


def summary(mine, other, setting, loss_difference):
    a, b = statistics.median(mine), statistics.median(other)
    spread = harness.ratio_interval([[x] for x in mine], [[x] for x in other])
    return {"ours": a, "peer": b, "ratio": a / b, "spread": spread, "setting": setting, "loss_difference": loss_difference}


def line(row, found):
    low, high = found["spread"]
    return (f"| {row.name} ({found['setting'].replace('_', ' ')}); losses of the first {COMPARED_STEPS} steps apart by {found['loss_difference']:.1e} "
            f"| {found['ours']:.3f} ms | {found['peer']:.3f} ms | {found['ratio']:.3f} ({low:.3f} to {high:.3f}) | {TARGET} |")


def problem(row, found):
    """Why the row is no comparison, or nothing."""
    limit = LOSS_TOLERANCE[row.precision]
    if not found["loss_difference"] <= limit:
        return f"{row.name}: the losses are apart by {found['loss_difference']:.3g} of theirs, more than {limit}: the sides do not train the same"
    return ""


@functools.cache
def torch_of(python):
    """What a Python's torch is good for: "cuda", "cpu", or nothing where a part of it is missing."""
    what = "import torch, torch.distributed.fsdp; print('cuda' if torch.cuda.is_available() else 'cpu')"
    found = subprocess.run([os.path.abspath(python), "-c", what], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else ""


def torch_python():
    """The first Python that has all of torch; nothing where none has."""
    return next(filter(torch_of, pythons()), None)


def rows_for(memory_mib):
    divisor = 4 if 0 < memory_mib < SMALL_MEMORY_MIB else 1
    return [dataclasses.replace(row, batch=row.batch // divisor) for row in ROWS]


def run(rows, folder, python, device, blocks, measure=measure):
    """Prints the rows; the problems. One row's failure keeps no other from its turn."""
    problems = []
    for row in rows:
        try:
            found = measure(row, folder, python, device, blocks)
        except (Exception, SystemExit) as ended:  # SystemExit: the program has said why. Else it left half an answer
            problems.append(f"{row.name}: {ended}")
            print(f"| {row.name} | FAILED: {type(ended).__name__}: {ended} | | | {TARGET} |", flush=True)
            continue
        print(line(row, found), flush=True)
        if problem(row, found):
            problems.append(problem(row, found))
    return problems


def self_test():
    found = summary([2.0, 2.0, 2.2], [4.0, 4.1, 4.0], "x", 0.0)
    assert found["ratio"] == 0.5 and found["spread"][0] <= 0.5 <= found["spread"][1], found
    assert summary([1.0] * 5, [1.0] * 5, "x", 0.0)["spread"] == (1.0, 1.0)
    assert libraries("/x", "/site/torch")[0] == "/site/torch/lib" and libraries("/x", "/site/torch")[-1] == "/x/lib"
    row = Row("ddp", "gpt_tiny", 4, 5, "fp32")
    assert problem(row, {"loss_difference": 1e-6}) == ""
    assert "do not train the same" in problem(row, {"loss_difference": 1e-3})
    assert "do not train the same" in problem(row, {"loss_difference": largest_relative_difference([1.0, float("nan")], [1.0, 1.0])})
    assert largest_relative_difference([1.0, 2.2], [1.0, 2.0]) - 0.1 < 1e-9
    assert line(row, found).count("|") == 6
    assert [row.batch for row in rows_for(81559)] == [row.batch for row in rows_for(0)] == [64, 8, 8, 64, 8]
    assert [row.batch for row in rows_for(24564)] == [16, 2, 2, 16, 2]


def main():
    self_test()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--row", default="", help="those whose name has this")
    parser.add_argument("--memory", type=int, default=0, metavar="MIB", help="a small device gets smaller batches")
    options = parser.parse_args()
    python = torch_python()
    if python is None:
        print("NOT RUN: no Python here has all of PyTorch (./dev interop installs it into .venv-bench; TROUPE_TORCH_PYTHON names another)")
        return 77
    if options.device == "cuda" and torch_of(python) != "cuda":
        print(f"NOT RUN: no GPU here, says the torch of {python}")
        return 77
    rows = [row for row in (TINY_ROWS if options.tiny else rows_for(options.memory)) if options.row in row.name]
    problems = run(rows, options.folder, python, options.device, options.blocks)
    for each in problems:
        print(each, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
