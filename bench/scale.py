"""The rows scale/* and local.overhead: jobs of ddp.* beside the same loop by LibTorch alone, with its fused AdamW, on one rank."""
from harness import OURS, Program, report, step_answers, step_times, weights_difference
from steps import STEPS

SCALE_TARGETS = {"scale/b16": 0.88, "scale/b128": 0.95, "scale/gpt": 0.97, "local.overhead": 1.01}
JOBS = {"scale/b16": ("mlp", 16), "scale/b128": ("mlp", 128), "scale/gpt": ("gpt", 1), "local.overhead": ("mlp", 16)}


def bare_and_ours(row, ranks):
    words = ["--batch", str(JOBS[row][1]), "--job", JOBS[row][0]]
    return {"bare": Program([str(OURS / "bench_bare_steps"), *words], "bench_bare_steps"),
            "ours": Program([str(OURS / "bench_steps"), *words, "--ranks", str(ranks)], "bench_steps")}


def run_scale(row, blocks, steps):
    """A step on one rank over a step on two, each with as many samples."""
    programs = bare_and_ours(row, 2)
    times = step_times(step_answers(programs, blocks, steps or STEPS[JOBS[row][0]]))
    for program in programs.values():
        program.quit()
    return report(row, SCALE_TARGETS[row], times["ours"], {"one rank, LibTorch alone": times["bare"]}, "ms", {}, at_least=True)


def run_overhead(row, blocks, steps):
    """ddp on a world of one rank beside the bare loop, whose weights it must have."""
    programs = bare_and_ours(row, 1)
    times = step_times(step_answers(programs, blocks, steps or STEPS["mlp"]))
    difference = weights_difference(programs, "ours")
    return report(row, SCALE_TARGETS[row], times["ours"], {"LibTorch alone": times["bare"]}, "ms", {"max_weight_difference": difference})
