"""What gpu-check has found, a line of JSON for each step and part, and the tables of docs/gpu.md made of them."""
import json
import os
import re
import signal

NOT_RUN = 77
BROKEN = ("hang", "crash", "FAILED")
SAID_LINES = 40
COLUMNS = 5  # measured, ours, other side, ratio, target


def verdict(code, output, seconds, has_gpu=False):
    """A step's end in words: passed, not run (why), hang, crash (signal) or FAILED (exit code)."""
    if code is None:
        return f"hang ({seconds:g} s)"
    if code == NOT_RUN:
        found = re.search(r"^NOT RUN: (.*)$", output, re.M)
        why = found.group(1) if found else "it does not say why"
        denied = has_gpu and "no GPU" in why
        return f"FAILED: nvidia-smi lists a GPU, and the program says: {why}" if denied else f"not run: {why}"
    if code < 0:
        return f"crash ({signal.Signals(-code).name})"
    return "passed" if code == 0 else f"FAILED (exit code {code})"


def is_broken(result):
    return result.startswith(BROKEN)


def worst(results):
    """A part's result: the worst of its steps."""
    for kind in BROKEN:
        if found := [result for result in results if result.startswith(kind)]:
            return found[0]
    return "passed" if "passed" in results else results[0]


def exit_code(results):
    if any(map(is_broken, results)):
        return 1
    return 0 if "passed" in results else NOT_RUN


def rows_of(output):
    """The cells of docs/gpu.md's rows in it; nvidia-smi draws tables too."""
    lines = [line.strip() for line in output.splitlines()]
    rows = [line[1:-1].split("|") for line in lines if line.startswith("|") and line.endswith("|")]
    return [[cell.strip() for cell in row] for row in rows if len(row) == COLUMNS]


def last_lines(output):
    return "\n".join(output.strip().splitlines()[-SAID_LINES:])


class Results:
    """A file to which lines are added, each on the disk before the next step begins."""

    def __init__(self, path, call, sync=os.fsync):
        self.path, self.call, self.sync = path, call, sync  # `call`, of all its lines: date, commit, device

    def add(self, **line):
        torn = self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n")  # a call was cut off
        with open(self.path, "a", encoding="utf-8") as file:
            file.write("\n" * torn + json.dumps({**self.call, **line}) + "\n")
            file.flush()
            self.sync(file.fileno())

    def passed_before(self):
        """The parts that the same commit has passed on the same device, with nothing worse after."""
        commit, last = self.call["commit"], {}
        if commit == "unknown" or commit.endswith("-dirty"):
            return set()
        for line in read([self.path]):
            if "step" not in line and (line["commit"], line["device"]) == (commit, self.call["device"]):
                last[line["part"]] = line["result"]
        return {part for part, result in last.items() if result == "passed"}


def read(paths):
    """The lines of files that are there; one that was cut off is left out."""
    lines = []
    for path in paths:
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                lines.append(json.loads(text))
            except ValueError:
                continue
    return lines


def latest(lines):
    """The steps by (part, name), as each part's last call left them."""
    calls = {}
    for line in lines:
        calls.setdefault(line["part"], {}).setdefault(line["call"], []).append(line)
    last = [line for by_call in calls.values() for line in list(by_call.values())[-1]]
    return {(line["part"], line["step"]): line for line in last if "step" in line}


def origins(steps):
    """Which parts were run when, where and on what."""
    parts = {}
    for (part, name), line in steps.items():
        origin = f"{line['date']}, {line['device']}, commit {line['commit']}"
        parts.setdefault(origin, {})[part] = None
    versions = [line["said"].splitlines()[-1] for (_, name), line in steps.items()
                if name == "versions" and line["result"] == "passed"]
    return [f"{origin}: {', '.join(names)}" for origin, names in parts.items()] + versions[-1:]


def table(lines):
    """The text of docs/gpu.md's tables."""
    steps = latest(lines)
    tests = ["| part | test | |", "|---|---|---|"]
    rows = ["| measured | ours | other side | ratio | target |", "|---|---|---|---|---|"]
    for (part, name), line in steps.items():
        tests.append(f"| {part} | {name} | {line['result']} |")
        rows += [f"| {' | '.join(row)} |" for row in line["rows"]]
        if line["measures"] and not line["rows"]:
            rows.append(f"| {name} | {line['result']} | | | |")
    return "\n".join([*(f"- {text}" for text in origins(steps)), "", *tests, "", *rows])
