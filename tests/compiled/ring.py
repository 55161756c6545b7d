"""What the parts of `./dev compiled` share: where files lie, the command, what passed."""
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "python"), str(HERE)]
TROUPE = ROOT / "build/release/launch/troupe"
FOLDER = ROOT / "build/compiled"
os.environ["TROUPE_COMMAND"] = str(TROUPE)
os.environ["OMP_NUM_THREADS"] = "2"  # of a rank alone: code that is right with one may be wrong with more

failures, successes = [], []

# What the command line calls: SOURCE.py:FUNCTION gets model and dtype by the environment.
ENTRY = f"""import os, sys
sys.path.insert(0, {str(HERE)!r})
import torch, models, random_modules
from costs import layers
def make():
    return models.made(os.environ["MODEL"], getattr(torch, os.environ["DTYPE"]))
def data():
    return models.Packed(os.environ["MODEL"], getattr(torch, os.environ["DTYPE"]))
def drawn():
    return random_modules.drawn([int(seed) for seed in os.environ["SEEDS"].split(",")])
"""


def begin():
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "entry.py").write_text(ENTRY)


def passed(what, holds, why=""):
    print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else ': ' + why}", flush=True)
    (successes if holds else failures).append(what)
    return holds


def troupe(*words, **more):
    environment = {**os.environ, "TROUPE_PYTHON": sys.executable, **more}
    return subprocess.run([str(TROUPE), *map(str, words)], capture_output=True, text=True, timeout=900, cwd=FOLDER, env=environment)


def compiled(name, dtype, check=True, kind="", flags=()):
    """The file of a model of models.py; compiles it unless it is there from the same sources. `kind`: what `flags` make of it."""
    path = FOLDER / f"{name}{kind}.{dtype}.tm"
    newest = max(f.stat().st_mtime for f in [*(ROOT / "python/troupe").glob("*.py"), HERE / "models.py"])
    if path.exists() and path.stat().st_mtime > newest:
        return path
    path.unlink(missing_ok=True)
    ran = troupe("compile", "entry.py:make", "-o", path, *(["--check"] if check else []), *flags, MODEL=name, DTYPE=dtype)
    line = (ran.stdout.strip().splitlines() or [""])[-1]
    passed(f"models {name}{kind} {dtype}: {line}", ran.returncode == 0, ran.stderr.strip()[-300:])
    return path if ran.returncode == 0 else None
