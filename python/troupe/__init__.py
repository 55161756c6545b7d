"""The `troupe` command, a program that starts ranks, and what it does in Python: `troupe compile` and `troupe pack`."""
import os
import pathlib
import sys


def program():
    """Where the command lies."""
    return str(pathlib.Path(__file__).parent / "bin" / "troupe")


def main():
    os.execv(program(), [program(), *sys.argv[1:]])
