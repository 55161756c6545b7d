"""What the rows of ./dev bench share: programs that are driven by lines, statistics, the line of a row."""
import array
import os
import pathlib
import random
import statistics
import subprocess
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
OURS = ROOT / "build/release/bench"
TORCHRUN = [str(ROOT / ".venv-bench/bin/python3"), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DEADLINE_S = 300  # for one answer


class Program:
    """A program that answers lines on standard input with lines on standard output; bench/README.md has the protocol."""

    def __init__(self, command, name, environment=None, errors=None):
        self.name = name
        environment = dict(environment or os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(HERE / "peer"), PYTHONWARNINGS="ignore")
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self.before = self.read("ready")

    def read(self, last):
        """Lines `NAME VALUE..` as {name: values}, up to and with the one named `last`; other lines are not for us."""
        seen = {}
        deadline = threading.Timer(DEADLINE_S, self.process.terminate)
        deadline.start()
        try:
            for line in self.process.stdout:
                name, *rest = line.split() or [""]
                seen[name] = rest
                if name == last:
                    return seen
        finally:
            deadline.cancel()
        raise SystemExit(f"bench: {self.name} ended (exit code {self.process.wait()}) before it said '{last}'")

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line, last):
        self.tell(line)
        return self.read(last)

    def quit(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


class AtOnce:
    """Programs that do the same at the same time; the answer is the first one's."""

    def __init__(self, programs):
        self.programs = programs

    def ask(self, line, last):
        for program in self.programs:
            program.tell(line)
        return [program.read(last) for program in self.programs][0]

    def quit(self):
        for program in self.programs:
            program.quit()


def floats(words):
    return [float(word) for word in words]


def ratio_interval(ours, peers):
    """95 % bootstrap interval of median(ours) / median(peer), resampling whole blocks: steps of one block are not independent."""
    generator = random.Random(1)
    ratios = []
    for _ in range(2000):
        a = [x for _ in ours for x in generator.choice(ours)]
        b = [x for _ in peers for x in generator.choice(peers)]
        ratios.append(statistics.median(a) / statistics.median(b))
    ratios.sort()
    return ratios[int(0.025 * len(ratios))], ratios[int(0.975 * len(ratios)) - 1]


def flat(blocks):
    return [x for block in blocks for x in block]


def read_floats(path):
    values = array.array("f")
    values.frombytes(pathlib.Path(path).read_bytes())
    return values


def max_difference(path_a, path_b):
    a, b = read_floats(path_a), read_floats(path_b)
    if len(a) != len(b):
        return float("inf")
    return 0.0 if a == b else max(abs(x - y) for x, y in zip(a, b))


def in_turns(names, blocks, measure):
    """What measure(name) returns, by name: in each of `blocks` rounds once for each, in an order of its own. A round before warms up."""
    found = {name: [] for name in names}
    order = random.Random(1)
    for number in range(-1, blocks):
        for name in order.sample(list(names), len(names)):
            result = measure(name)
            if number >= 0:
                found[name].append(result)
    return found


def step_answers(programs, blocks, steps):
    """What each program answers to `block N`, in turns."""
    return in_turns(programs, blocks, lambda name: programs[name].ask(f"block {steps}", "step_ms"))


def step_times(answers):
    return {name: [floats(answer["step_ms"]) for answer in blocks] for name, blocks in answers.items()}


def weights_differences(programs, name, end=True):
    """By program, the largest one between its weights and those of `name`. `end`: ends the programs."""
    with tempfile.TemporaryDirectory() as scratch:
        files = {each: f"{scratch}/{number}" for number, each in enumerate(programs)}
        for each, program in programs.items():
            program.ask(f"weights {files[each]}", "weights")
        differences = {each: max_difference(files[name], file) for each, file in files.items()}
    for program in programs.values() if end else ():
        program.quit()
    return differences


def weights_difference(programs, name):
    """The largest of weights_differences."""
    return max(weights_differences(programs, name).values())


def report(row, target, ours, peers, unit, extra, at_least=False, weight_tolerance=0.0):
    """Prints the line of a row with the best of `peers` ({setting: blocks}) and returns its entry for the results.

    The ratio is ours / peer, which is to be at most the target; `at_least`: peer / ours, which is to be at least the target.
    Weights that differ by more than the tolerance are `short`, whatever the time.
    """
    best = min(peers, key=lambda setting: statistics.median(flat(peers[setting])))
    a, b = statistics.median(flat(ours)), statistics.median(flat(peers[best]))
    ratio = b / a if at_least else a / b
    low, high = ratio_interval(peers[best], ours) if at_least else ratio_interval(ours, peers[best])
    ok = (low >= target if at_least else high <= target) and extra.get("max_weight_difference", 0) <= weight_tolerance
    words = " ".join(f"{name}={value}" for name, value in extra.items())
    print(f"{row} ours={a:.4g} peer={b:.4g} unit={unit} ratio={ratio:.4f} spread={low:.4f}..{high:.4f} target={target:.4f} "
          f"{words + ' ' if words else ''}peer_setting='{best}' {'ok' if ok else 'short'}", flush=True)
    return {"row": row, "unit": unit, "ours": a, "peer": b, "ratio": ratio, "spread": [low, high], "target": target, "ok": ok,
            "peer_setting": best, "samples": {"ours": ours, **peers}, **extra}
