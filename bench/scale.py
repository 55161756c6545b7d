"""The rows scale/bN and local.overhead: the job of ddp.mlp beside the same loop by LibTorch alone, with its fused AdamW, on one rank."""
import pathlib
import random
import tempfile

from harness import OURS, Program, floats, max_difference, report

SCALE_TARGETS = {"scale/b16": 0.88, "scale/b128": 0.95, "local.overhead": 1.01}


def in_turns(programs, blocks, steps):
    """Step times by program, a block after the other."""
    times = {name: [] for name in programs}
    order = random.Random(1)
    for number in range(-1, blocks):
        for name in order.sample(list(programs), len(programs)):
            answer = programs[name].ask(f"block {steps}", "step_ms")
            if number >= 0:
                times[name].append(floats(answer["step_ms"]))
    return times


def bare_and_ours(batch, ranks):
    return {"bare": Program([str(OURS / "bench_bare_mlp"), "--batch", str(batch)], "bench_bare_mlp"),
            "ours": Program([str(OURS / "bench_ddp_mlp"), "--batch", str(batch), "ddp", str(ranks)], "bench_ddp_mlp")}


def run_scale(row, blocks, steps):
    """A step on one rank over a step on two, each with as many samples."""
    programs = bare_and_ours(int(row.split("/b")[1]), 2)
    times = in_turns(programs, blocks, steps)
    for program in programs.values():
        program.quit()
    return report(row, SCALE_TARGETS[row], times["ours"], {"one rank, LibTorch alone": times["bare"]}, "ms", {}, at_least=True)


def run_overhead(row, blocks, steps):
    """ddp on a world of one rank beside the bare loop, whose weights it must have."""
    programs = bare_and_ours(16, 1)
    times = in_turns(programs, blocks, steps)
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: str(pathlib.Path(scratch, name)) for name in programs}
        for name, program in programs.items():
            program.ask(f"weights {files[name]}", "weights")
            program.quit()
        difference = max_difference(files["ours"], files["bare"])
    return report(row, SCALE_TARGETS[row], times["ours"], {"LibTorch alone": times["bare"]}, "ms", {"max_weight_difference": difference})
