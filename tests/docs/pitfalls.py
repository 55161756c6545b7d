"""What docs/troubleshooting.md says that is printed is what is printed: pitfalls.py PROGRAM

A message in the page is a text block behind the comment `<!-- printed: FLAGS -->`; the program run with these flags must print each of its
lines. Numbers of processes and times are not in there.
"""
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/troubleshooting.md"


def messages_of(page):
    return re.findall(r"^<!-- printed: (.*?) -->\n+```(?:text)?\n(.*?)^```", page, re.M | re.S)


TRIES = 5  # which of two ranks fails first, and which then only hears of it, is chance


def lines_of(text):
    """Whoever tells it: the rank at the beginning of a line is the one that failed first."""
    return {re.sub(r"^error: rank \d+", "error: rank N", line) for line in text.splitlines()}


def main():
    messages = messages_of(PAGE.read_text())
    assert len(messages) >= 10, f"{len(messages)} messages in {PAGE}: is the pattern right?"
    failed = 0
    for flags, expected in messages:
        for _ in range(TRIES):
            done = subprocess.run([sys.argv[1], *flags.split()], capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL)
            printed = done.stdout + done.stderr
            missing = lines_of(expected) - lines_of(printed)
            if not missing:
                break
        else:
            failed = 1
            print(f"{PAGE.name}: with {flags} the program (exit code {done.returncode}) does not print\n  " + "\n  ".join(missing) + f"\nbut\n{printed}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
