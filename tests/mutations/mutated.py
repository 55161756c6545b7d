"""A break of one file, and the test programs that are to see it: what run.py and random_mutants.py have in common."""
import fcntl
import html
import itertools
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
KEPT = ROOT / "build" / "mutation-original"  # the file under mutation: its path in the first line, then its text
# Catch2 may write without end where two ranks' threads fail at once: it was not made for that. The tests' own files are smaller.
FILE_BYTES = 4 << 30
REPORT_BYTES = 16 << 20
MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # a loop without its end allocates until there is no more


def say(text):
    print(text, flush=True)


def begin():
    """Refuses to run beside another run; puts back what one that was killed has broken."""
    global lock  # held until this process ends, however it does
    KEPT.parent.mkdir(exist_ok=True)
    lock = open(KEPT.with_name("mutation-lock"), "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("mutations: another run breaks the files of this checkout; wait for its end", file=sys.stderr)
        sys.exit(2)
    restore()
    for left in BUILD.glob("mutation-*"):  # by a run that was killed
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Mutated:
    """The file with the break in it, for a `with`."""

    def __init__(self, path, broken):
        self.path, self.broken = path, broken

    def __enter__(self):
        whole = KEPT.with_name("mutation-original.new")  # never half of it in KEPT
        whole.write_text(str(self.path.relative_to(ROOT)) + "\n" + self.path.read_text())
        whole.replace(KEPT)
        self.path.write_text(self.broken)

    def __exit__(self, *_):
        restore()


def restore():
    """Puts a file back that a run, this one or one that was killed, has broken."""
    if not KEPT.exists():
        return
    name, text = KEPT.read_text().split("\n", 1)
    (ROOT / name).write_text(text)
    KEPT.unlink()


def build(programs, log, jobs=1):
    return subprocess.run(["ninja", "-C", str(BUILD), f"-j{jobs}", *programs], stdout=log, stderr=log).returncode == 0


def folder_of(program):
    found = [path for path in BUILD.glob(f"tests/**/{program}") if path.is_file()]
    if not found:
        raise SystemExit(f"mutations: there is no {program} in {BUILD.relative_to(ROOT)}: ./dev build first")
    return found[0]


def limits():
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


running = set()  # leaders of groups
runs = itertools.count()
stopping = threading.Event()


def run_bounded(command, seconds, output, **environment):
    """The exit code, None if it was not over in time. What it started ends with it."""
    if stopping.is_set():
        return None
    run = f"{os.getpid()}-{next(runs)}"
    child = subprocess.Popen(command, cwd=BUILD, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
                             preexec_fn=limits, env={**os.environ, "OMP_NUM_THREADS": "1", **environment, "MUTATION_RUN": run})
    running.add(child.pid)
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end_group(child.pid)
        child.wait()
        end_marked(run)
        running.discard(child.pid)


def end_group(leader):
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def end_marked(run):
    """The processes of this MUTATION_RUN that are left: a job that a broken test has detached has a new session."""
    mark = f"MUTATION_RUN={run}".encode()
    for _ in range(5):  # one that is found may have started another meanwhile
        found = False
        for environment in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in environment.read_bytes().split(b"\0"):
                    found = True
                    os.kill(int(environment.parent.name), signal.SIGKILL)
            except OSError:  # it has ended, or is another user's
                pass
        if not found:
            return


def end_running():
    stopping.set()
    for leader in list(running):
        end_group(leader)


def run_tests(path, arguments, seconds, log, **environment):
    """(how many ran, what went red) of the program there: names of test cases, or how it ended if it named none."""
    report = BUILD / f"mutation-{os.getpid()}-{threading.get_ident()}.xml"
    report.unlink(missing_ok=True)
    code = run_bounded([str(path), *arguments, "-r", "xml", "-o", str(report)], seconds, log, **environment)
    text = ""
    if report.exists():
        with open(report, "rb") as file:
            text = file.read(REPORT_BYTES).decode(errors="replace")
    report.unlink(missing_ok=True)
    try:
        cases = list(xml.etree.ElementTree.fromstring(text).iter("TestCase"))
        red = [case.get("name") for case in cases if case.find("OverallResult").get("success") != "true"]
    except (xml.etree.ElementTree.ParseError, AttributeError):  # it died in the middle of its report
        named = re.findall(r'<TestCase name="([^"]*)"', text)
        cases, red = [None], [html.unescape(name) for name in named[-1:]]
    if code is None:
        red.append(f"(no end after {seconds} s)")
    elif code < 0 and not red:
        red.append(f"(ended by {signal.Signals(-code).name})")
    elif code != 0 and not red:
        red.append(f"(exit code {code})")
    return len(cases), red


def one_line(text):
    return " ".join(text.split())


if __name__ == "__main__":
    begin()
