"""Where nothing may be executed in /tmp: compile, and train while a rank is killed; nothing stays there."""
import os
import shutil
import subprocess
import sys

from ring import FOLDER, TROUPE, passed

# $1: a shell command; what it leaves in /tmp is printed.
SCRIPT = """mount --make-rprivate / && mount -t tmpfs -o noexec none /tmp
cp /bin/true /tmp/t && ! /tmp/t 2>/dev/null && rm /tmp/t || exit 99
bash -c "$1" >&2; code=$?; ls -A /tmp; exit $code"""


def check():
    for name in ("places.data", "places-run"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        print("places: not run, since another /tmp takes root and a mount namespace")
        return
    environment = {**os.environ, "TROUPE_PYTHON": sys.executable, "DTYPE": "float64", "MODEL": "two_towers"}

    def shell(command, **more):
        return subprocess.run(["unshare", "--mount", "bash", "-c", SCRIPT, "-", command], capture_output=True, text=True, timeout=900, cwd=FOLDER,
                              env={**environment, **more})

    ran = shell(f"{TROUPE} compile entry.py:make -o places.tm --check && {TROUPE} pack entry.py:data -o places.data")
    left = [name for name in ran.stdout.splitlines() if not name.startswith("torchinductor_")]  # PyTorch's own, made on import
    passed("places: compiled where /tmp is noexec", ran.returncode == 0 and not left, f"/tmp has {left}; {ran.stderr[-400:]}")
    passed("places: the compile leaves nothing beside the file", not list(FOLDER.glob(".troupe-compile-*")))
    ran = shell(f"{TROUPE} launch --nproc 2 --run-dir places-run {TROUPE} train --model places.tm --data packed --data_dir places.data --batch_size 8 "
                "--epochs 3", TROUPE_FAULT="slot=1,step=5,at=collective")
    passed("places: trained where /tmp is noexec, a rank was killed, and /tmp is empty",
           ran.returncode == 0 and not ran.stdout and "1 rank replaced" in ran.stderr, f"/tmp has {ran.stdout.split()}; {ran.stderr[-400:]}")
