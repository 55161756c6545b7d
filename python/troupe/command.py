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
    package = pathlib.Path(__file__).resolve().parent
    places = [package / "bin" / "troupe"]
    if package.parts[-4:-1] == ("share", "troupe", "python"):
        places.append(package.parents[3] / "bin" / "troupe")
    if in_path := shutil.which("troupe"):
        places.append(pathlib.Path(in_path))
    for place in places:
        if place.exists() and not place.samefile(sys.argv[0] or "."):  # pip's script of that name starts this
            return str(place)
    raise FileNotFoundError(f"the program troupe is neither beside {package} nor in PATH; set TROUPE_COMMAND to its path")


def main():
    os.environ.setdefault("TROUPE_PYTHON", sys.executable)  # for `troupe compile`: where this package is, torch is
    os.execv(program(), [program(), *sys.argv[1:]])
