"""A bad input as a user gives it: what is written, what is typed, what must come of it."""
import dataclasses
import hashlib
import os
import pathlib
import subprocess
import sys

LONGEST_LINE = 1000
EXTRA_MEMORY_KIB = 64 << 10
DEADLINE_S = 60


@dataclasses.dataclass
class Case:
    """`number`: of the list in docs/bad_input.md. `make` writes files into a folder, the current one of `command`. `says`: words of the one
    line that starts with `error:`, or that has a rank before it."""
    number: int
    name: str
    command: list
    code: int
    says: list
    make: object = None
    environment: dict = dataclasses.field(default_factory=dict)
    lines: int = 1  # of error, at most: ranks say it each
    accepted: bool = False  # harmless after all: exit code 0, and `says` is in the output


def hashes(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)}


def run(command, folder, environment):
    """(exit code, output, the most memory in KiB)."""
    with open(folder.parent / (folder.name + ".out"), "w+b") as output:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
        try:
            _, status, usage = wait(process)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, 9)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read(), usage.ru_maxrss


def wait(process):
    import signal
    def late(*_):
        os.killpg(process.pid, signal.SIGKILL)
    signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE_S)
    try:
        pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        return pid, status, usage
    finally:
        signal.alarm(0)


def faults_of(case, folder, usual_memory):
    """What is wrong with how the program took it; empty: nothing. `usual_memory`: KiB of a run with good input; None: not judged."""
    folder.mkdir(parents=True)
    if case.make:
        case.make(folder)
    before = hashes(folder)
    size_kib = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) >> 10
    code, raw, memory = run(case.command, folder, case.environment)
    text = raw.decode("utf-8", "replace")
    lines = text.splitlines()
    errors = [line for line in lines if line.startswith(("error: ", "troupe: ", "bad  ")) or "] error:" in line]
    wrong = []
    if case.accepted:
        if code != 0:
            wrong.append(f"exit code {code}, not 0")
        wrong += [f"its output lacks {word!r}" for word in case.says if word not in text]
    else:
        if code != case.code:
            wrong.append(f"exit code {code}, not {case.code}")
        if not 1 <= len(errors) <= case.lines:
            wrong.append(f"{len(errors)} lines of error")
        wrong += [f"its line lacks {word!r}" for word in case.says if not any(word in line for line in errors)]
    if any(len(line) > LONGEST_LINE for line in lines):
        wrong.append(f"a line of {max(map(len, lines))} characters")
    if any(c < 32 and c not in b"\n\r\t" or c == 127 for c in raw) or "\ufffd" in text:
        wrong.append("bytes that are no text in its output")
    if usual_memory is not None and memory > usual_memory + 2 * size_kib + EXTRA_MEMORY_KIB:
        wrong.append(f"{memory >> 10} MiB of memory; with good input {usual_memory >> 10} MiB")
    after = hashes(folder)
    wrong += [f"{name} was changed" for name in before if after.get(name) != before[name]]
    if wrong:
        sys.stdout.write("".join(f"    | {line}\n" for line in lines[:12]))
    return wrong
