"""The `troupe` command, a program that starts ranks."""
import os
import pathlib
import sys


def program():
    """Where it lies: what called this, or in this package."""
    return os.environ.get("TROUPE_COMMAND") or str(pathlib.Path(__file__).parent / "bin" / "troupe")


def main():
    os.environ.setdefault("TROUPE_PYTHON", sys.executable)  # for `troupe compile`: where this package is, torch is
    os.execv(program(), [program(), *sys.argv[1:]])
