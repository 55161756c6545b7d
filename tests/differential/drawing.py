"""Draws the jobs of `./dev differential`, so that each pair of values that go together runs often enough.

    python3 tests/differential/drawing.py [ROUNDS]   measures which pairs seldom meet, and writes seldom_pairs.txt (minutes)
"""

import bisect
import collections
import itertools
import math
import pathlib
import random
import sys

from dimensions import DIMENSIONS, LOCAL, RARE, SHARDED, SIMPLEST, refusals, settle

SELDOM = pathlib.Path(__file__).parent / "seldom_pairs.txt"
SEEDS, LEAST = 10_000, 20  # each pair is to run LEAST times in the first SEEDS seeds

# The places of one seed after the other, which fill [0, 1) evenly wherever one begins (a Kronecker sequence): drawn at random, one pair in ten
# of those that are to run 26 times runs fewer than 20 times.
STEPS = [(math.sqrt(5) - 1) / 2, math.sqrt(2) - 1, math.sqrt(3) - 1]

HURTS = ["kill", "lose", "leave", "all", "net", "disk", "stop"]
OF_TORCH = [name for name in DIMENSIONS["optimizer"] if name.startswith("torch.")]
CUT = [name for name in DIMENSIONS["strategy"] if name in SHARDED or "fsdp=" in name]
DILOCO = ({"strategy": ["diloco"]}, {"event": ["resume"], "resume_strategy": ["diloco"]}, {"strategy": ["ddp", "local_sgd"], "switch_at": ["4:diloco"]})
LOCAL_SGD = ({"strategy": list(LOCAL)}, {"event": ["resume"], "resume_strategy": list(LOCAL)}, {"strategy": ["ddp"], "switch_at": ["3:local_sgd", "4:diloco"]})
# Values that mean nothing, or are refused, without certain values of other dimensions: in one of these ways.
NEEDS = [
    ("staleness", [1, 2], {"strategy": ["parameter_server"], "ranks": [1]}),
    ("graphs", [True], {"device": ["fake"], "model": ["mlp", "tokens"], "norm": ["none"], "unused": ["none", "always"],
                        "frozen": ["none", "always"], "desk": [False]}),
    ("vote", ["late"], {"device": ["fake"], "event": ["none", "resume", "infinite"]}),
    ("shards", ["each"], {"strategy": CUT, "accumulate": [2]}),
    ("shards", ["one_by_one"], {"strategy": CUT}),
    ("shards", ["offload"], {"strategy": list(SHARDED), "device": ["fake"]}),
    ("units", ["none", "numel:60"], {"strategy": [*SHARDED[:5]]}),
    ("server_shares", [2], {"strategy": ["parameter_server"]}),
    ("stages", ["gpipe", "zero_bubble"], {"strategy": [name for name in DIMENSIONS["strategy"] if name.startswith("pipeline")]}),
    ("scale", [1e6], {"comm_hook": ["fp16"], "loss": ["mean"], "optimizer": ["sgd", "torch.SGD"]}),
    ("overlap", [1], *DILOCO),
    ("fragments", [2], *DILOCO),
    ("outer_momentum", [0], *DILOCO),
    ("sync_every", [3], *LOCAL_SGD),
    ("switch_at", DIMENSIONS["switch_at"][1:], {"strategy": ["ddp", *LOCAL]}),
    ("kill_at", DIMENSIONS["kill_at"][1:], {"event": [event for event in HURTS if event != "leave"], "ranks": [2, 3, 4]}),
    ("hurt_step", [0, 6], {"event": HURTS}),
    ("hurt_rank", ["first"], {"event": HURTS, "ranks": [2, 3, 4]}),
    ("again", ["other"], {"event": ["kill", "net"], "ranks": [2, 3, 4]}),
    ("again", ["newcomer"], {"event": ["kill"], "ranks": [2, 3, 4]}),
    ("stop_at", ["validate"], {"event": ["resume"], "validate": [31]}),
    ("resume_ranks", [1, 2], {"event": ["resume"]}),
    ("resume_batch", [12, 24], {"event": ["resume"]}),
    ("resume_strategy", DIMENSIONS["resume_strategy"][1:], {"event": ["resume"]}),
    ("powersgd_rank", [2], {"comm_hook": ["powersgd"]}),
    ("loss_scale_interval", [2], {"loss_scaler": ["on"]}),
    ("unused", ["micro_batch"], {"accumulate": [2]}),
    ("unused", ["rank"], {"ranks": [2, 3, 4]}),
    ("balance", ["weights"], {"ranks": [2, 3, 4]}),
    ("listed", ["twice"], {"tie": DIMENSIONS["tie"][1:], "optimizer": OF_TORCH}),
    ("padding_idx", [0], {"model": ["tokens"]}),
    ("tie", ["output"], {"model": ["tokens"]}),
    ("broadcast_buffers", [False], {"norm": ["batch"]}),
    ("sync_batchnorm", [True], {"norm": ["batch"]}),
    ("samples", [3, 1], {"drop_last": [False]}),
    ("early_update", [True], {"strategy": ["ddp"], "comm_hook": ["none"], "clip_norm": [0], "loss": ["mean"], "switch_at": [""],
                              "loss_scaler": ["auto"], "amp": ["none"], "optimizer": ["sgd", "adamw"]}),
]


def shown(name, value):
    return f"{name}={str(value).lower()}"


VALUES = {shown(name, value): (name, value) for name, values in DIMENSIONS.items() for value in values}
NEEDED = {VALUES[shown(name, value)]: ways for name, values, *ways in NEEDS for value in values}


def pairs_of(job):
    return itertools.combinations([(name, job[name]) for name in DIMENSIONS], 2)


def all_pairs():
    for a, b in itertools.combinations(DIMENSIONS, 2):
        for x, y in itertools.product(dict.fromkeys(DIMENSIONS[a]), dict.fromkeys(DIMENSIONS[b])):
            yield (a, x), (b, y)


def read_weights():
    """Of pairs that seldom meet: how often each is to be wanted."""
    weights = {}
    for line in SELDOM.read_text().splitlines():
        weight, *pair = line.split()
        weights[tuple(VALUES[part] for part in pair)] = float(weight)
    return weights


class Drawing:
    """By seed; `weights`: pairs that seldom meet, and how often each is to be wanted."""

    def __init__(self, weights):
        self.weights, self.pairs, self.sums = weights, list(weights), list(itertools.accumulate(weights.values()))

    def draw(self, seed, only=None):
        """The job of a seed. `only`: name -> values, to draw from these alone."""
        rng = random.Random(seed)
        if comes_as_it_is(rng):
            return drawn(rng, only or {})  # refused or not
        wanted, job = {}, None
        for pair in [self.pair_at(seed * step % 1) for step in STEPS] if self.pairs else []:
            both = {**wanted, **dict(pair)}
            if all(both[name] == value for name, value in wanted.items()):
                found = job_with(rng, tuple(both.items()), only or {}, self.weights, *((8, 2) if job else (30, 3)))
                wanted, job = (both, found) if found else (wanted, job)
        return job or allowed(rng, (), only or {})

    def pair_at(self, place):
        """The pair that has this place, 0 to 1, if each is as long as its weight."""
        return self.pairs[min(bisect.bisect(self.sums, place * self.sums[-1]), len(self.pairs) - 1)]


def comes_as_it_is(rng):
    """Of a seed's first number: whether nothing is looked for in its job, and so it may be one that is refused."""
    return rng.random() < 0.1


def drawn(rng, within):
    job = {}
    for name, values in {**DIMENSIONS, **within}.items():
        rare = RARE.get(name, {})
        job[name] = rng.choices(values, [1 / rare.get(value, 1) for value in values])[0]
    return settle(job)


def allowed(rng, wanted, within):
    """A job that seldom is refused: what does not go together is drawn again."""
    job = drawn(rng, within)
    for _ in range(20):
        listed = refusals(job)
        if not listed:
            break
        name = rng.choice(listed[0].between)
        if name in dict(wanted) and rng.random() < 0.8:
            continue
        values = within.get(name) or ([SIMPLEST[name]] if rng.random() < 0.7 else DIMENSIONS[name])
        job[name] = rng.choice(values)
        settle(job)
    return job


def limits(rng, wanted, only):
    """What these values need, as name -> values; None: they need what `only` does not have."""
    within = dict(only)
    for needs in [{name: [value]} for name, value in wanted] + [rng.choice(NEEDED[value]) for value in wanted if value in NEEDED]:
        for name, values in needs.items():
            both = [value for value in within.get(name, DIMENSIONS[name]) if value in values]
            if not both and name in only:
                return None
            within[name] = both or within[name]  # another way may lead there
    return within


def job_with(rng, wanted, only, weights, tries=30, of=3):
    """A job with these values that is not refused: of the first `of`, the one with more pairs that seldom meet. None: there was none."""
    found = []
    for _ in range(tries):
        within = limits(rng, wanted, only)
        if within is None:
            continue
        job = allowed(rng, wanted, within)
        if all(job[name] == value for name, value in wanted) and not refusals(job):
            found.append(job)
            if len(found) == of:
                break
    return max(found, key=lambda job: sum(weights.get(pair, 0) for pair in pairs_of(job)), default=None)


def meet(pair, tries=60):
    """Whether a job that runs can have both values: none can if one is about something that the other excludes, or both are refused together."""
    return job_with(random.Random(str(pair)), pair, {}, {}, tries, 1) is not None


def count_pairs(jobs):
    counts = collections.Counter()
    for job in jobs:
        counts.update(pairs_of(job))
    return counts


def more_or_less(count):
    """What a pair's weight is to be multiplied with that ran so often."""
    if count < 1.25 * LEAST:
        return min(1.6, 1.35 * LEAST / (count + 0.5))
    return 1 if count < 1.6 * LEAST else max(0.7, 1.5 * LEAST / count)


def balance(rounds):
    """Draws the first seeds, and makes the pairs that they have too seldom weigh more; keeps the weights that left the fewest."""
    weights, best, never = {}, None, None
    for number in range(rounds):
        drawing = Drawing(weights)
        counts = count_pairs(job for job in map(drawing.draw, range(SEEDS)) if not refusals(job))
        if never is None:
            never = {pair for pair in all_pairs() if not counts[pair] and not meet(pair)}
        low = sum(counts[pair] < LEAST and pair not in never for pair in all_pairs())
        print(f"round {number}: {low} pairs fewer than {LEAST} times, {len(never)} never; {len(weights)} have a weight", flush=True)
        if best is None or low < best[0]:
            best = low, weights
        if not low:
            break
        wanted = [pair for pair in all_pairs() if pair not in never and (pair in weights or counts[pair] < 1.25 * LEAST)]
        weights = {pair: weights.get(pair, 2) * more_or_less(counts[pair]) for pair in wanted}
        weights = {pair: weight for pair, weight in weights.items() if weight >= 0.5}
    SELDOM.write_text("".join(f"{weight:.4g} {shown(*a)} {shown(*b)}\n" for (a, b), weight in best[1].items()))


if __name__ == "__main__":
    balance(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
