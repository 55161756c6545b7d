"""`troupe compile`: python3 -m troupe.compile SOURCE.py:FUNCTION -o MODEL"""
import argparse
import contextlib
import logging
import signal
import sys
import warnings


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="troupe compile", description="Compiles a Python model for training in C++: forward, backward and loss, "
                                     "into one file for `troupe train --model FILE`.")
    parser.add_argument("source", metavar="SOURCE.py:FUNCTION", help="the function returns (model, loss, batch): a torch.nn.Module; "
                        "loss(model, batch), which returns a mean, or (sum, count), or a dict with loss and correct; and an example batch of at "
                        "least 2 samples, (input, target) or a dict of tensors")
    parser.add_argument("-o", "--output", metavar="MODEL", required=True, help="the file to write")
    parser.add_argument("--blocks", metavar="CLASS", action="append", default=[], help="modules of this class are blocks: what fsdp shards "
                        "and a pipeline cuts between; may be repeated; none: no blocks (default: classes that stand side by side at least twice)")
    parser.add_argument("--dynamic", metavar="FIELD:DIM", action="append", default=[], help="a dimension of the batch's field that varies; the "
                        "first always does, and the second of whole numbers (tokens)")
    parser.add_argument("--autocast", choices=["bfloat16"], help="matrix products and the like in this type, as under torch.autocast")
    parser.add_argument("--recompute", metavar="BUDGET", type=float, default=1.0, help="share of the activations that is kept, 0 to 1; the rest is "
                        "computed again in backward (default: 1)")
    parser.add_argument("--check", action="store_true", help="run the compiled file and compare its loss and gradients with Python's")
    options = parser.parse_args(arguments)
    quiet()
    try:
        import torch  # noqa: F401
    except ImportError as error:
        sys.exit(f"troupe compile: PyTorch for Python is needed to compile a model, not to train it: {error}; install torch==2.11.0 in a virtual environment, and set TROUPE_PYTHON to its python3")
    from .refusal import Refusal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is half done goes with it
    try:
        run(options)
    except Refusal as refusal:
        print(f"troupe compile: {refusal}", file=sys.stderr)
        return 2
    return 0


def quiet():
    """PyTorch warns of NumPy and Python.h, which need not be there, and of what will change."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", module=r"torch\b")


@contextlib.contextmanager
def quiet_and_alone():
    """What a compile needs of its process; puts back what was."""
    import torch
    import torch._inductor.config
    threads, disabled = torch.get_num_threads(), logging.root.manager.disable
    torch.set_num_threads(1)  # what compiles is a fork of this process, and OpenMP's threads do not come along
    logging.disable(logging.CRITICAL)  # PyTorch's own: CUDA that is not there, deprecations, graphs of what could not be captured
    try:
        # No pool of processes that import torch again.
        with torch._inductor.config.patch(compile_threads=1), warnings.catch_warnings():
            quiet()
            yield
    finally:
        logging.disable(disabled)
        torch.set_num_threads(threads)


def run(options):
    from . import build_model, source
    from .refusal import Refusal
    if not 0 <= options.recompute <= 1:
        raise Refusal(f"--recompute {options.recompute}: a share is 0 to 1")
    dynamic = []
    for text in options.dynamic:
        field, _, dim = text.rpartition(":")
        if not field or not dim.isdigit():
            raise Refusal(f"--dynamic {text}: not FIELD:DIM")
        dynamic.append((field, int(dim)))
    with quiet_and_alone():
        described = source.read(options.source)
        print(build_model.build(described, options.output, blocks=options.blocks, dynamic=dynamic, autocast=options.autocast,
                                recompute=options.recompute, say=lambda line: print(line, flush=True)), flush=True)
        if options.check:
            from . import check
            print(check.check(described, options.output, build_model.AUTOCAST[options.autocast]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
