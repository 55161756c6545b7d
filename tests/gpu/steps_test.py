"""What gpu_steps trains is what PyTorch trains, on one rank and on two: steps_test.py FOLDER [--device cpu|cuda] [--case CASE] [--list]

FOLDER has gpu_steps. The losses of PyTorch in f64 are in tiny_losses.json; `--record PYTHON` writes that file anew, with a whole torch. On cuda the
two ranks are processes that share a device. Exit code 77, and a line NOT RUN, where that cannot be.
"""
import argparse
import json
import pathlib
import re
import sys
import tempfile

import step_rows

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE / "tiny_losses.json"
STEPS = 8
BATCH = 4
# Relative. In f64 every instruction set, and a GPU, gives PyTorch's losses. In f32 the tiny ResNet's statistics are over so few values that
# eight steps make a rounding 200,000 times as large: PyTorch's own f32 losses are apart by 0.02 between AVX2 and AVX-512. A GPU adds in
# another order still, in convolutions with 10 bits (TF32).
F64_TOLERANCE = 1e-9
TOLERANCE = {("cpu", "gpt_tiny"): 1e-5, ("cpu", "resnet_tiny"): 0.05, ("cuda", "gpt_tiny"): 1e-3, ("cuda", "resnet_tiny"): 0.1}
BF16_TOLERANCE = 0.02
TWO_RANKS_TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}
# What a machine may be without. A NCCL that does not come to be is a failure.
CANNOT = re.compile(r"there is no GPU[^;\n]*")
DEVICE_LOST = 70


class NotRun(Exception):
    pass


def failure_of(said, ended):
    """What a program that has ended so, and said that, comes to."""
    reason = CANNOT.search(said)
    return NotRun(reason.group(0).strip()) if reason else AssertionError(f"{ended}\n{said}")


def train(folder, *lines, last="step_ms", **options):
    """The answers to the lines of a gpu_steps of its own; without a line to one block of STEPS."""
    options = {"job": "gpt_tiny", "batch": BATCH, "strategy": "ddp", "precision": "fp32", **options}
    with tempfile.TemporaryFile("w+") as errors:
        try:
            program = step_rows.ours(folder, errors=errors, **options)
            answers = [program.ask(line, last) for line in lines or [f"block {STEPS}"]]
            program.quit()
            return answers
        except SystemExit as ended:
            errors.seek(0)
            said = errors.read()
            raise failure_of(said, ended) from None


def losses(answer):
    return step_rows.harness.floats(answer["losses"])


def check_close(what, found, expected, tolerance):
    apart = step_rows.largest_relative_difference(found, expected)
    print(f"{what}: apart by {apart:.2e} of the loss, at most {tolerance:g}")
    assert apart <= tolerance, f"{what}: {found} is not {expected}"


def check_losses(folder, device, job, strategy, precision="fp32", **more):
    first, second = train(folder, f"block {STEPS}", "block 4", job=job, strategy=strategy, precision=precision, device=device, **more)
    tolerance = {"fp64": F64_TOLERANCE, "fp32": TOLERANCE[device, job], "bf16": BF16_TOLERANCE}[precision]
    check_close(" ".join([strategy, job, precision, *more]), losses(first), json.loads(GOLDEN.read_text())[job], tolerance)
    if device == "cuda":
        waits = float(second["host_waits"][0])
        assert waits == 1, f"the host waited for the device {waits} times in a step, not once"


def ddp_losses(folder, device):
    check_losses(folder, device, "gpt_tiny", "ddp")
    check_losses(folder, device, "resnet_tiny", "ddp")
    check_losses(folder, device, "gpt_tiny", "ddp", "fp64")
    check_losses(folder, device, "resnet_tiny", "ddp", "fp64")


def fsdp_losses(folder, device):
    check_losses(folder, device, "gpt_tiny", "fsdp")
    check_losses(folder, device, "gpt_tiny", "fsdp", **{"--offload": "true"})


def bf16_losses(folder, device):
    check_losses(folder, device, "gpt_tiny", "ddp", "bf16")
    check_losses(folder, device, "gpt_tiny", "fsdp", "bf16")


def two_ranks(folder, device, strategy):
    share = {"--share-device": "true"} if device == "cuda" else {}
    alone = train(folder, device=device, strategy=strategy, **{"--as-ranks": 2})[0]
    both = train(folder, device=device, strategy=strategy, **{"--ranks": 2}, **share)[0]
    check_close(f"two ranks of {strategy} and one with the samples of both", losses(both), losses(alone), TWO_RANKS_TOLERANCE[device])


def seconds_of(folder, device, line, last):
    """Of two ranks, which share a GPU."""
    share = {"--share-device": "true"} if device == "cuda" else {}
    return float(train(folder, line, last=last, device=device, **{"--ranks": 2}, **share)[0][last][0])


def stuck(folder, device):
    seconds = seconds_of(folder, device, "stuck", "abort_s")
    print(f"| abort of a collective that a rank never joins, to its end | {seconds:.3f} s | | {seconds:.3f} | 1 s |")


def lonely(folder, device):
    seconds = seconds_of(folder, device, "lonely", "set_up_s")
    print(f"a set-up to which one of two never came was over after {seconds:.3f} s")


def lost_device(folder, device):
    options = {"job": "gpt_tiny", "batch": BATCH, "strategy": "ddp", "precision": "fp32", "device": device}
    code, said = step_rows.end_of(folder, "assert", **options)
    if code != DEVICE_LOST:
        raise failure_of(said, f"the exit code is {code}, not {DEVICE_LOST}")


CASES = {
    "[L03] gpu: ddp trains a transformer and a ResNet to PyTorch's losses": ddp_losses,
    "[L03] gpu: fsdp trains to PyTorch's losses, with offload too": fsdp_losses,
    "[L03] gpu: bf16 stays near f32's losses, by autocast and by fsdp's own dtype": bf16_losses,
    "[L03] gpu: two processes of ddp on one device train to one rank's losses": lambda folder, device: two_ranks(folder, device, "ddp"),
    "[L03] gpu: two processes of fsdp on one device train to one rank's losses": lambda folder, device: two_ranks(folder, device, "fsdp"),
    "[L03] gpu: a collective that is stuck ends with an abort, and device and communicators go on": stuck,
}
ON_A_DEVICE = {
    "[L03] gpu: a set-up beside another process that never comes ends at its deadline, and the communicators go on": lonely,
    "[L03] gpu: a process whose kernel fails ends with 70": lost_device,
}


def record(python):
    golden = {}
    for job in ("gpt_tiny", "resnet_tiny"):
        program = step_rows.peer(python, job=job, batch=BATCH, strategy="ddp", precision="fp64", device="cpu")
        golden[job] = losses(program.ask(f"block {STEPS}", "step_ms"))
        program.quit()
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


def self_test():
    no_gpu = failure_of("error: 'cuda' was asked for, but there is no GPU: there is no NVIDIA driver; look", "x")
    assert isinstance(no_gpu, NotRun) and str(no_gpu) == "there is no GPU: there is no NVIDIA driver"
    for failure in ("NCCL set-up of communicator 'buckets': not finished after 9 ms", "Duplicate GPU detected"):
        assert isinstance(failure_of(failure, "x"), AssertionError), failure


def run(name, case, options):
    """The exit code of one case."""
    try:
        case(options.folder, options.device)
    except NotRun as why:
        print(f"NOT RUN: {why}")
        return 77
    except AssertionError as failure:
        print(f"{name}: {failure}")
        return 1
    return 0


def main():
    self_test()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--case", choices={**CASES, **ON_A_DEVICE})
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--record", metavar="PYTHON")
    options = parser.parse_args()
    cases = {**CASES, **(ON_A_DEVICE if options.device == "cuda" else {})}
    if options.list:
        print("\n".join(cases))
        return 0
    if options.record:
        return record(options.record)
    codes = {run(name, case, options) for name, case in cases.items() if options.case in (None, name)}
    return 1 if 1 in codes else max(codes, default=2)  # a case that did not run keeps no other from running


if __name__ == "__main__":
    sys.exit(main())
