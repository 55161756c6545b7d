"""What gpu_steps trains is what PyTorch trains, on one rank and on two: steps_test.py FOLDER [--device cpu|cuda] [--case CASE] [--list]

FOLDER has gpu_steps. The losses of PyTorch are in tiny_losses.json; `--record PYTHON` writes that file anew, with a whole torch. On cuda the
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
# Relative. A GPU adds in another order, in f32 convolutions with 10 bits (TF32), and the tiny ResNet's statistics are over few values.
TOLERANCE = {("cpu", "gpt_tiny"): 1e-5, ("cpu", "resnet_tiny"): 1e-4, ("cuda", "gpt_tiny"): 1e-3, ("cuda", "resnet_tiny"): 0.1}
BF16_TOLERANCE = 0.02
TWO_RANKS_TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}
# What a machine may be without: a GPU, a NCCL that lets two ranks use one.
CANNOT = re.compile(r"there is no GPU[^;\n]*|.*(?:Duplicate GPU|NCCL set-up of communicator).*")


class NotRun(Exception):
    pass


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
            if reason := CANNOT.search(said):
                raise NotRun(reason.group(0).strip()) from None
            raise AssertionError(f"{ended}\n{said}") from None


def losses(answer):
    return step_rows.harness.floats(answer["losses"])


def check_close(what, found, expected, tolerance):
    apart = step_rows.largest_relative_difference(found, expected)
    print(f"{what}: apart by {apart:.2e} of the loss, at most {tolerance:g}")
    assert apart <= tolerance, f"{what}: {found} is not {expected}"


def check_losses(folder, device, job, strategy, precision="fp32", **more):
    first, second = train(folder, f"block {STEPS}", "block 4", job=job, strategy=strategy, precision=precision, device=device, **more)
    tolerance = TOLERANCE[device, job] if precision == "fp32" else BF16_TOLERANCE
    check_close(" ".join([strategy, job, precision, *more]), losses(first), json.loads(GOLDEN.read_text())[job], tolerance)
    if device == "cuda":
        waits = float(second["host_waits"][0])
        assert waits == 1, f"the host waited for the device {waits} times in a step, not once"


def ddp_losses(folder, device):
    check_losses(folder, device, "gpt_tiny", "ddp")
    check_losses(folder, device, "resnet_tiny", "ddp")


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


def abort_seconds(folder, device):
    share = {"--share-device": "true"} if device == "cuda" else {}
    return float(train(folder, "stuck", last="abort_s", device=device, **{"--ranks": 2}, **share)[0]["abort_s"][0])


def stuck(folder, device):
    print(f"a collective that one rank never joined was over {abort_seconds(folder, device):.3f} s after its abort")


CASES = {
    "[L03] gpu: ddp trains a transformer and a ResNet to PyTorch's losses": ddp_losses,
    "[L03] gpu: fsdp trains to PyTorch's losses, with offload too": fsdp_losses,
    "[L03] gpu: bf16 stays near f32's losses, by autocast and by fsdp's own dtype": bf16_losses,
    "[L03] gpu: two processes of ddp on one device train to one rank's losses": lambda folder, device: two_ranks(folder, device, "ddp"),
    "[L03] gpu: two processes of fsdp on one device train to one rank's losses": lambda folder, device: two_ranks(folder, device, "fsdp"),
    "[L03] gpu: a collective that is stuck ends with an abort, and device and lanes go on": stuck,
}


def record(python):
    golden = {}
    for job in ("gpt_tiny", "resnet_tiny"):
        program = step_rows.peer(python, job=job, batch=BATCH, strategy="ddp", precision="fp32", device="cpu")
        golden[job] = losses(program.ask(f"block {STEPS}", "step_ms"))
        program.quit()
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--record", metavar="PYTHON")
    options = parser.parse_args()
    if options.list:
        print("\n".join(CASES))
        return 0
    if options.record:
        return record(options.record)
    for name, case in CASES.items():
        if options.case in (None, name):
            try:
                case(options.folder, options.device)
            except NotRun as why:
                print(f"NOT RUN: {why}")
                return 77
            except AssertionError as failure:
                print(f"{name}: {failure}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
