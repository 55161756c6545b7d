"""`./dev compiled [PART..]`: Python models, compiled, beside PyTorch. Parts: refusals, data, models, random, costs, places, train, combined; all without one.

refusals  what `troupe compile` and `troupe pack` do not do, and what a file's reader does not believe: each message
models    loss, gradients and buffers of models.py, one step (--check)
data      torchvision's and Hugging Face's data classes, packed; packing that is killed; `troupe.train`
random    the same of modules that a generator draws (--count, --seed, --seeds), many to a file
costs     what a step allocates and copies, beside tests/costs
places    /tmp where nothing may be executed; nothing stays there
train     losses of whole runs at 1, 2 and 4 ranks, with ddp and fsdp, a kill, a resume at another number of ranks
combined  the same with every strategy, accumulation, clipping, activation checkpointing, recomputing and autocast
"""
import argparse
import sys
import time

import ring

import costs
import models
import places
import python_data
import random_modules
import refusals
import rounding
import training


def check_models(names, dtypes):
    for name in names:
        for dtype in dtypes:
            ring.compiled(name, dtype)


def check_share():
    """What CI has time for."""
    rounding.check()
    check_models(["gpt_dropout"], ["float32"])
    costs.check()
    training.check_training(["two_towers"], ["float64"])
    random_modules.check([*range(2000, 2004), *random_modules.KNOWN_HARD])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--models", default=",".join(models.ALL))
    parser.add_argument("--dtypes", default="float64,float32")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--combinations", help="of `combined`: zero1,hybrid")
    parser.add_argument("--seeds", help="of random modules, in place of --count from --seed on: 1154,1158")
    options = parser.parse_args()
    ring.begin()
    begin = time.monotonic()
    seeds = [int(seed) for seed in options.seeds.split(",")] if options.seeds else list(range(options.seed, options.seed + options.count))
    names, dtypes = options.models.split(","), options.dtypes.split(",")
    parts = {
        "refusals": refusals.check,
        "data": python_data.check_data,
        "models": lambda: (rounding.check(), check_models(names, dtypes)),
        "random": lambda: random_modules.check(seeds),
        "costs": costs.check,
        "places": places.check,
        "train": lambda: training.check_training([n for n in names if n != "gpt_dropout"], dtypes),  # whose masks are Troupe's
        "combined": lambda: training.check_combinations(options.combinations.split(",") if options.combinations else None),
    }
    share = {"ci": check_share}
    for part in options.parts or parts:
        check = {**parts, **share}.get(part)
        if check is None:
            sys.exit(f"there is no part {part}: {', '.join([*parts, *share])}")
        check()
    print(f"compiled: {len(ring.successes)} passed, {len(ring.failures)} failed, {time.monotonic() - begin:.0f} s")
    sys.exit(1 if ring.failures else 0)


if __name__ == "__main__":
    main()
