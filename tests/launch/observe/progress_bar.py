"""The progress bar as a person sees it: progress_bar.py TROUPE RANK_PROBE

Runs `troupe launch` and the probe alone on pseudo-terminals and in pipes, and reads the screen that comes of it.
"""
import fcntl
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

TROUPE, PROBE = sys.argv[1:3]
FLAGS = ["--batch_size", "16", "--epochs", "3", "--pause_ms", "15", "--log_interval", "8", "--save_every", "-1"]
failures = []


def check(claim, holds, shown=""):
    print(("ok   " if holds else "FAIL ") + claim)
    if not holds:
        failures.append(claim)
        print(shown)


def on_terminal(command, columns, environment):
    """What the program wrote on a terminal of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    base = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "TROUPE_PROGRESS")}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, env=base | {"OMP_NUM_THREADS": "1"} | environment)
    os.close(follower)
    written, deadline = b"", time.monotonic() + 90
    while time.monotonic() < deadline:
        if not select.select([leader], [], [], 1)[0]:
            continue
        try:
            block = os.read(leader, 65536)
        except OSError:  # the terminal has no user any more
            break
        if not block:
            break
        written += block
    process.kill() if process.poll() is None and time.monotonic() >= deadline else None
    assert process.wait(30) == 0, written.decode()
    return written.decode()


def screen(text):
    """The lines that stay, and every state of the last line; \\r goes to its beginning, ESC [ K clears what follows. Colours have no width."""
    text = re.sub(r"\x1b\[\d+m", "", text)
    lines, line, column, states = [], "", 0, []
    for part in re.findall(r"\x1b\[K|\r|\n|[^\r\n\x1b]+|\x1b", text):
        if part == "\x1b[K":
            line = line[:column]
        elif part == "\r":
            column = 0
        elif part == "\n":
            lines.append(line)
            line, column = "", 0
        elif part == "\x1b":
            raise AssertionError(f"another escape code in {text!r}")
        else:
            line = line[:column] + part + line[column + len(part):]
            column += len(part)
            states.append(line)
    return lines, states


def judge(name, text, columns, marker):
    lines, states = screen(text)
    bars = [state for state in states if re.match(re.escape(marker) + r"(\[[#.]*\])? +\d+%  (epoch|step)", state)]
    check(f"{name}: a bar with the time left", any("left" in bar for bar in bars) or columns < 100, states[-5:])
    check(f"{name}: it moves", len(set(bars)) > 3, bars)
    check(f"{name}: no bar is wider than the terminal", all(len(bar) < columns for bar in bars), bars)
    whole = re.compile(re.escape(marker) + r"epoch \d/3  step \d+/48  loss [\d.e+-]+  (grad_norm \S+  )?memory \S+GiB  [\d.]+ samples/s  [\d.]+ steps/s  "
                       r"exposed [\d.]+%  data [\d.]+%  lr \S+")
    logged = [line for line in lines if "step" in line and "/48" in line]
    check(f"{name}: log lines are whole and no bar stays", len(logged) == 6 and all(whole.fullmatch(line) for line in logged), logged)


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)  # each run makes a folder of its own there
    launched = [TROUPE, "launch", "--nproc", "2", PROBE, *FLAGS]
    alone = [PROBE, *FLAGS]
    for columns in (160, 60):
        text = on_terminal(launched, columns, {"TERM": "xterm"})
        judge(f"launched, {columns} columns", text, columns, "[rank 0] ")
        check(f"launched, {columns} columns: labels are coloured", "\x1b[2m[rank 0]\x1b[0m " in text, text)
    with open(f"{scratch}/hosts", "w") as file:  # agents of two hosts, both this one, as far as the launcher knows
        file.write("a slots=1 address=127.0.0.1\nb slots=1 address=127.0.0.2\n")
    on_hosts = [TROUPE, "launch", "--hosts", f"{scratch}/hosts", PROBE, *FLAGS]
    for columns in (160, 60):
        judge(f"two hosts, {columns} columns", on_terminal(on_hosts, columns, {"TERM": "xterm"}), columns, "[rank 0] ")
    plain = on_terminal(alone, 160, {"TERM": "xterm", "NO_COLOR": "1"})
    judge("alone, NO_COLOR", plain, 160, "")
    check("alone, NO_COLOR: no colours", not re.search(r"\x1b\[\d+m", plain), plain)
    coloured = on_terminal(alone, 160, {"TERM": "xterm"})
    judge("alone", coloured, 160, "")
    check("alone: the bar is coloured", "\x1b[32m#" in coloured, coloured)
    for name, command, environment in (("launched, TERM=dumb", launched, {"TERM": "dumb"}), ("alone, TERM=dumb", alone, {"TERM": "dumb"}),
                                       ("alone, progress_bar off", [*alone, "--progress_bar", "false"], {"TERM": "xterm"})):
        text = on_terminal(command, 160, environment).replace("\r\n", "\n")
        check(f"{name}: plain lines", "\r" not in text and "\x1b" not in text and "step 48/48" in text, text)
    for name, command in (("launched, pipe", launched), ("alone, pipe", alone), ("two hosts, pipe", on_hosts)):
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TERM": "xterm", "OMP_NUM_THREADS": "1"}, timeout=120)
        check(f"{name}: plain lines", done.returncode == 0 and "\r" not in done.stdout and "\x1b" not in done.stdout and "step 48/48" in done.stdout,
              done.stdout + done.stderr)
    logs = sorted(pathlib.Path("runs").glob("2*/rank0.log"))
    check("each launch has left a log", len(logs) == 7, logs)
    for log in logs:
        text = log.read_text()
        check(f"no bar in a rank's log: {log}", not re.search(r"%  (epoch|step)", text) and "step 48/48" in text, text)
sys.exit(1 if failures else 0)
