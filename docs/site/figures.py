"""The figures of README.md and docs/: docs/images from bench/, docs/data and the sources.

    figures.py [NAME..]   writes all figures, or these, and README's table
    figures.py --check    fails if one differs from what the data give

The plots need the matplotlib of .venv-docs, in the version that ./dev installs: another one draws other bytes. Where it is not there, --check
says so and looks at the rest. docs/site/take.py makes docs/data from runs.
"""
import importlib
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
IMAGES = ROOT / "docs/images"
PLOTS = ("step_time", "recovery_time", "memory", "slow_link", "loss_with_kill", "step_timeline")
DRAWINGS = ("folder_map", "message_flow")  # pure Python, as kill_demo
FIGURES = ("kill_demo", *DRAWINGS, *PLOTS)
TABLE = ROOT / "tests/docs/readme_figures.py"


def matplotlib_is_missing():
    """Why plots can't be drawn; empty if they can."""
    wanted = re.search(r"\bmatplotlib==([\d.]+)", (ROOT / "dev").read_text())[1]
    try:
        from matplotlib import __version__ as found
    except ImportError:
        return f"there is no matplotlib (./dev docs installs {wanted})"
    return "" if found == wanted else f"matplotlib is {found}, not {wanted} (./dev docs installs it)"


def kill_demo():
    from drawings import terminal
    return terminal.picture((ROOT / "docs/data/kill_demo.txt").read_text(), "one of two ranks is killed",
                            "A job of two ranks: rank 1 is killed in step 60, a new process takes its place, and training goes on.")


def drawn(names):
    """(name, text) of each figure that can be drawn here."""
    plots, missing = [name for name in names if name in PLOTS], matplotlib_is_missing()
    if "kill_demo" in names:
        yield "kill_demo", kill_demo()
    yield from ((name, importlib.import_module(f"drawings.{name}").draw()) for name in names if name in DRAWINGS)
    if plots and missing:
        print(f"figures: left out: {', '.join(plots)}: {missing}")
    elif plots:
        yield from ((name, importlib.import_module(f"drawings.{name}").draw()) for name in plots)


def main():
    check = sys.argv[1:] == ["--check"]
    names = sys.argv[1:] if sys.argv[1:] and not check else FIGURES
    if unknown := set(names) - set(FIGURES):
        sys.exit(f"figures: no figure is called {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    lagging = []
    for name, text in drawn(names):
        file = IMAGES / f"{name}.svg"
        if check and (not file.exists() or file.read_text() != text):
            lagging.append(f"docs/images/{name}.svg differs from its data: run docs/site/figures.py {name}")
        elif not check:
            file.write_text(text)
    table = subprocess.run([sys.executable, str(TABLE), *([] if check else ["--write"])]).returncode
    print("\n".join(lagging), end="\n" * bool(lagging))
    sys.exit(1 if lagging or table else 0)


if __name__ == "__main__":
    main()
