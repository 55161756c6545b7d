#!/usr/bin/env python3
"""Where the Python package finds the program: python_command.py"""
import importlib.util
import os
import pathlib
import shutil
import tempfile

SOURCE = pathlib.Path(__file__).parents[3] / "python/troupe/command.py"


def made(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def found(package):
    package.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, package)
    spec = importlib.util.spec_from_file_location("command", package / "command.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.program()


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch).resolve()
    os.environ.pop("TROUPE_COMMAND", None)
    os.environ["PATH"] = str(scratch / "path")
    try:
        raise SystemExit(f"it found {found(scratch / 'a/b/c/none')} where there is none")
    except FileNotFoundError as error:
        assert "TROUPE_COMMAND" in str(error), error
    in_path = made(scratch / "path/troupe")
    assert found(scratch / "a/b/c/none") == in_path
    in_prefix = made(scratch / "prefix/bin/troupe")
    package = scratch / "prefix/share/troupe/python/troupe"
    assert found(package) == in_prefix
    in_wheel = made(package / "bin/troupe")
    assert found(package) == in_wheel
    os.environ["TROUPE_COMMAND"] = "/named"
    assert found(package) == "/named"
print("the program is found: 4 places, and named where there is none")
