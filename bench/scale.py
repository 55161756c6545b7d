"""The rows scale/bN and local.overhead: the job of ddp.mlp beside the same loop by LibTorch alone, with its fused AdamW, on one rank."""
from harness import OURS, Program, report, step_answers, step_times, weights_difference

SCALE_TARGETS = {"scale/b16": 0.88, "scale/b128": 0.95, "local.overhead": 1.01}


def bare_and_ours(batch, ranks):
    return {"bare": Program([str(OURS / "bench_bare_mlp"), "--batch", str(batch)], "bench_bare_mlp"),
            "ours": Program([str(OURS / "bench_ddp_mlp"), "--batch", str(batch), "ddp", str(ranks)], "bench_ddp_mlp")}


def run_scale(row, blocks, steps):
    """A step on one rank over a step on two, each with as many samples."""
    programs = bare_and_ours(int(row.split("/b")[1]), 2)
    times = step_times(step_answers(programs, blocks, steps))
    for program in programs.values():
        program.quit()
    return report(row, SCALE_TARGETS[row], times["ours"], {"one rank, LibTorch alone": times["bare"]}, "ms", {}, at_least=True)


def run_overhead(row, blocks, steps):
    """ddp on a world of one rank beside the bare loop, whose weights it must have."""
    programs = bare_and_ours(16, 1)
    times = step_times(step_answers(programs, blocks, steps))
    difference = weights_difference(programs, "ours")
    return report(row, SCALE_TARGETS[row], times["ours"], {"LibTorch alone": times["bare"]}, "ms", {"max_weight_difference": difference})
