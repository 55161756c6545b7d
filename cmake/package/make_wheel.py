"""A wheel that brings the `troupe` command: make_wheel.py INSTALLED VERSION FOLDER

INSTALLED is what `cmake --install` put there. The command finds LibTorch in the torch package beside it, by a path relative to itself; what
else it links, but the C and C++ runtime, is in the wheel. Written with Python's own modules, since a wheel is a zip file with a list.
"""
import base64
import hashlib
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

PROGRAMS = ("troupe", "troupe-check-ranks", "troupe-checkpoint", "troupe-train")
# Of every Linux with this C library; never bring a second one into a process.
OF_THE_SYSTEM = re.compile(r"^(linux-vdso|ld-linux|lib(c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\+\+))[.-]")
RPATH = "$ORIGIN/../lib:$ORIGIN/../../torch/lib"
PYTHON = pathlib.Path(__file__).resolve().parents[2] / "python/troupe"


def libraries_of(program):
    """name -> path of what it loads that is neither LibTorch's nor the system's."""
    found = {}
    listing = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    for name, path in re.findall(r"^\s*(\S+) => (\S+)", listing, re.M):
        if path == "not":
            sys.exit(f"make_wheel: {program} needs {name}, which is not there")
        if "/torch/" not in path and "/nvidia/" not in path and not OF_THE_SYSTEM.match(name):
            found[name] = path
    return found


def main():
    installed, version, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    glibc = platform.libc_ver()[1].replace(".", "_")
    tag = f"py3-none-manylinux_{glibc}_{platform.machine()}"
    info = f"troupe-{version}.dist-info"
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        (root / "troupe/bin").mkdir(parents=True)
        (root / "troupe/lib").mkdir()
        (root / info).mkdir()
        for program in PROGRAMS:
            for name, path in libraries_of(installed / "bin" / program).items():
                shutil.copy(path, root / "troupe/lib" / name)
            copy = root / "troupe/bin" / program
            shutil.copy(installed / "bin" / program, copy)
            # RPATH, not RUNPATH: it holds for what the libraries in the wheel load, too.
            subprocess.run(["patchelf", "--force-rpath", "--set-rpath", RPATH, copy], check=True)
            subprocess.run(["strip", copy], check=True)
        for source in PYTHON.glob("*.py"):
            shutil.copy(source, root / "troupe" / source.name)
        (root / info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: troupe\nVersion: {version}\nSummary: Distributed training of PyTorch models in C++, every rank a "
            "system of actors\nLicense: Apache-2.0\nRequires-Python: >=3.10\nRequires-Dist: torch==2.11.0\n")
        (root / info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n")
        (root / info / "entry_points.txt").write_text("[console_scripts]\ntroupe = troupe:main\n")
        folder.mkdir(parents=True, exist_ok=True)
        wheel = folder / f"troupe-{version}-{tag}.whl"
        record = ""
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as out:
            for file in sorted(path for path in root.rglob("*") if path.is_file()):
                name, content = file.relative_to(root).as_posix(), file.read_bytes()
                executable = file.parent.name == "bin"
                entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same bytes for the same content
                entry.external_attr = (0o100755 if executable else 0o100644) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                out.writestr(entry, content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                record += f"{name},sha256={digest},{len(content)}\n"
            out.writestr(zipfile.ZipInfo(f"{info}/RECORD", (1980, 1, 1, 0, 0, 0)), record + f"{info}/RECORD,,\n")
        print(wheel)


if __name__ == "__main__":
    main()
