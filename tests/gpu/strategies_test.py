"""Every strategy on a device, started as a user starts it, has the CPU's losses: strategies_test.py FOLDER [--device cuda|cpu] [--case CASE] [--list]

Each case is two jobs of `troupe launch` with examples/gpt: one on the CPU, one on the device, which all its processes share. FOLDER has troupe and
gpt, as ./dev gpu-check --pack lays them out, or is that of gpu_steps in a build. Several cases run at once. Exit code 77, and a line NOT RUN, where
there is no GPU.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import step_rows

STEPS = 8
SECONDS = 50  # of a job; a part of gpu-check has 60
TOLERANCE = 1e-4  # relative, in f32: a GPU adds in another order
CANNOT = re.compile(r"there is no GPU[^;\n]*")
MODEL = "--n_embd 64 --n_layer 4 --n_head 4 --block_size 32 --batch_size 8"
TRAINING = f"--optimizer adamw --lr 0.01 --clip_norm 0.5 --max_steps {STEPS} --save_every -1 --log_interval 1 --seed 3"


@dataclasses.dataclass
class Case:
    ranks: int
    flags: str
    fault: str = ""
    launch: str = ""


KILL = "slot=1,step=4,at=vote"
CASES = {
    "ddp": Case(2, "--strategy ddp"),
    "ddp, late vote": Case(2, "--strategy ddp --vote late", launch="--no-recovery"),
    "ddp, CUDA graphs": Case(2, "--strategy ddp --cuda_graphs true"),
    "ddp, powersgd": Case(2, "--strategy ddp --comm_hook powersgd"),
    "ddp, a rank is killed": Case(2, "--strategy ddp", KILL),
    "zero1": Case(2, "--strategy zero1"),
    "zero2": Case(2, "--strategy zero2"),
    "fsdp": Case(2, "--strategy fsdp"),
    "fsdp, offload": Case(2, "--strategy fsdp --fsdp_cpu_offload true"),
    "fsdp, hybrid": Case(4, "--strategy fsdp --fsdp_mode hybrid_shard --fsdp_shard_size 2"),
    "fsdp, a rank is killed": Case(2, "--strategy fsdp", KILL),
    "pipeline": Case(2, "--strategy pipeline --mesh pp=2 --grad_accum_steps 4"),
    "pipeline, interleaved": Case(2, "--strategy pipeline --mesh pp=2 --grad_accum_steps 4 --pipeline_chunks 2 --pipeline_schedule interleaved"),
    "pipeline, zero_bubble": Case(2, "--strategy pipeline --mesh pp=2 --grad_accum_steps 4 --pipeline_schedule zero_bubble"),
    "pipeline, a rank is killed": Case(2, "--strategy pipeline --mesh pp=2 --grad_accum_steps 4", KILL),
    "tensor_parallel": Case(2, "--strategy tensor_parallel --mesh tp=2"),
    "tensor_parallel, tokens": Case(2, "--strategy tensor_parallel --mesh tp=2 --sequence_parallel true"),
    "mesh of layers and stages": Case(4, "--strategy pipeline --mesh tp=2,pp=2 --grad_accum_steps 2"),
    "mesh of shards and stages": Case(4, "--strategy pipeline --mesh fsdp=2,pp=2 --grad_accum_steps 2"),
    "local_sgd": Case(2, "--strategy local_sgd --sync_every 2"),
    "diloco": Case(2, "--strategy diloco --sync_every 2"),
    "parameter_server": Case(2, "--strategy parameter_server --staleness 0"),
}


class NotRun(Exception):
    pass


def program(folder, name, built):
    packed = folder / name
    return packed if packed.is_file() else folder.parents[1] / built / name


def losses_of(case, folder, device, work, run):
    """By step, of one job, whose run has this name in `work`."""
    run = work / run
    share = "--share_device true" if device == "cuda" else ""
    command = (f"{program(folder, 'troupe', 'launch')} launch --nproc {case.ranks} {case.launch} --run-dir {run} -- "
               f"{program(folder, 'gpt', 'examples/gpt')} --data_dir {work / 'text.txt'} --device {device} {share} {MODEL} {TRAINING} {case.flags}")
    environment = {**step_rows.own_environment(folder), "OMP_NUM_THREADS": "1", **({"TROUPE_FAULT": case.fault} if case.fault else {})}
    with subprocess.Popen(command.split(), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True) as job:
        try:
            said = job.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            job.terminate()  # the launcher ends its ranks
            said = f"not over after {SECONDS} s\n" + job.communicate()[0]
    if job.returncode != 0:
        if reason := CANNOT.search(said):
            raise NotRun(reason.group(0).strip())
        raise AssertionError(f"exit code {job.returncode} on {device}: {' '.join(command.split()[2:])}\n{said[-3000:]}")
    if case.fault and "replaced" not in said:
        raise AssertionError(f"on {device} no rank was replaced:\n{said[-3000:]}")
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss_metrics/global_avg_loss"] for line in lines if line["kind"] == "train"}


def run(name, case, folder, device):
    """The exit code of one case."""
    with tempfile.TemporaryDirectory(prefix="troupe-gpu-") as work:
        work = pathlib.Path(work)
        (work / "text.txt").write_text(" ".join(str(i * i % 1009) for i in range(6000)))
        try:
            there, cpu = (losses_of(case, folder, place, work, run) for run, place in (("there", device), ("cpu", "cpu")))
        except NotRun as why:
            print(f"NOT RUN: {why}", flush=True)
            return 77
        except AssertionError as failure:
            print(f"{name}: FAILED: {failure}", flush=True)
            return 1
    if sorted(cpu) != list(range(1, STEPS + 1)) or sorted(there) != sorted(cpu):
        print(f"{name}: FAILED: losses of steps {sorted(there)} and {sorted(cpu)}", flush=True)
        return 1
    apart = max(abs(there[step] - cpu[step]) / abs(cpu[step]) for step in cpu)
    print(f"{name}: losses of {STEPS} steps apart by {apart:.1e}{'' if apart <= TOLERANCE else ': FAILED: ' + str((there, cpu))}", flush=True)
    return 0 if apart <= TOLERANCE else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(CASES))
        return 0
    chosen = {name: case for name, case in CASES.items() if options.case in (None, name)}
    folder = options.folder.resolve()
    with concurrent.futures.ThreadPoolExecutor(max(1, min(6, (os.cpu_count() or 1) // 2))) as pool:
        codes = set(pool.map(lambda each: run(*each, folder, options.device), chosen.items()))
    return 1 if 1 in codes else max(codes)


if __name__ == "__main__":
    sys.exit(main())
