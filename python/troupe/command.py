"""The `troupe` command, a program that starts ranks."""
import os
import pathlib
import shutil
import sys


def program():
    """Its path: TROUPE_COMMAND, in this package (a wheel), in the prefix in which this package lies, or the first in PATH. Raises
    FileNotFoundError."""
    if named := os.environ.get("TROUPE_COMMAND"):
        return named
    package = pathlib.Path(__file__).resolve().parent  # of a prefix: share/troupe/python/troupe
    beside = [path for path in (package / "bin" / "troupe", package.parents[3] / "bin" / "troupe") if path.exists()]
    if found := str(beside[0]) if beside else shutil.which("troupe"):
        return found
    raise FileNotFoundError(f"the program troupe is neither beside {package} nor in PATH; set TROUPE_COMMAND to its path")


def main():
    os.environ.setdefault("TROUPE_PYTHON", sys.executable)  # for `troupe compile`: where this package is, torch is
    os.execv(program(), [program(), *sys.argv[1:]])
