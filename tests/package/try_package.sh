#!/usr/bin/env bash
# try_package.sh deb|wheel FILE: installs a package in a Debian 12 that has nothing else, trains there, and (deb) builds
# examples/external_project against it. Needs root, debootstrap, unshare, a Debian mirror and PyPI; 77 says that one is missing.
# The bare Debian stays in build/package/debian12 for the next time; the tries are copies of it.
set -euo pipefail
kind=$1
file=$(readlink -f "$2")
source=$(cd "$(dirname "$0")/../.." && pwd -P)
bare=$source/build/package/debian12
root=$source/build/package/try-$kind
torch=(torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)  # what libtorch_cpu loads, without the 4 GB for GPUs

say() { printf 'try-package: %s\n' "$*" >&2; }
cannot() { say "not run: $*"; exit 77; }
[ "$(id -u)" = 0 ] || cannot "a Debian of its own takes root"
command -v debootstrap >/dev/null || cannot "debootstrap is not installed"
unshare --mount --pid --fork true 2>/dev/null || cannot "no namespaces here"

# In namespaces of its own: nothing is mounted outside, and no process outlives it.
inside() {
  unshare --mount --pid --fork bash -euc '
    mount --make-rprivate / && mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev"
    exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 OMP_NUM_THREADS=1 \
      DEBIAN_FRONTEND=noninteractive bash -euo pipefail -c "$1"' "$root" "$1"
}

# What this machine trusts, for pip: ca-certificates, when it is installed, writes a list of its own.
trust() {
  [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp --remove-destination -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
}

if [ ! -e "$bare/complete" ]; then
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m1 '/debian/$' || true)
  say "making a Debian 12 (60 MB to download)"
  rm -rf "$bare"
  debootstrap --variant=minbase bookworm "$bare" ${mirror:+"$mirror"} >"$source/build/package/debootstrap.log" 2>&1 ||
    cannot "debootstrap failed, see build/package/debootstrap.log"
  # What this machine needs to reach the mirrors.
  rm -f "$bare/etc/apt/sources.list"
  cp -r /etc/apt/sources.list.d /etc/apt/apt.conf.d "$bare/etc/apt/"
  cp /etc/resolv.conf /etc/hosts "$bare/etc/"
  [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$bare/etc/"
  touch "$bare/complete"
fi
rm -rf "$root"
cp -a "$bare" "$root"
trap 'rm -rf "$root"' EXIT
mkdir "$root/work"
cp "$file" "$root/work/"
cp -r "$source/examples/external_project" "$root/work/"
name=$(basename "$file")

if [ "$kind" = deb ]; then
  say "installing $name with apt, what it depends on, a compiler and CMake"
  inside "apt-get update -q && apt-get install -y -q --no-install-recommends /work/$name cmake g++ ninja-build python3-venv" >"$source/build/package/try.log" 2>&1 ||
    { tail -n 20 "$source/build/package/try.log" >&2; exit 1; }
  grep -q "LibTorch is missing" "$source/build/package/try.log" || { say "the package did not say that LibTorch is missing"; exit 1; }
  trust
  say "LibTorch, as README.Debian says"
  inside "grep -q 'ln -sfn /opt/troupe/lib/python3.11/site-packages/torch /usr/lib/troupe/torch' /usr/share/doc/troupe/README.Debian
    python3 -m venv /opt/troupe && /opt/troupe/bin/pip install -q --no-deps ${torch[*]}
    ln -sfn /opt/troupe/lib/python3.11/site-packages/torch /usr/lib/troupe/torch"
  inside "troupe --version && troupe doctor"
  say "examples/external_project, against the package alone"
  inside "cd /work/external_project && cmake -G Ninja -B build && cmake --build build && ctest --test-dir build --output-on-failure --no-tests=error
    troupe launch --nproc 2 build/train --epochs 2 | tee out && grep -q 'held-out' out
    troupe checkpoint ls . 2>&1 | tee out && grep -q 'no checkpoint' out"
  inside "apt-get remove -y -q troupe >/dev/null && ! command -v troupe"
else
  inside "apt-get update -q && apt-get install -y -q --no-install-recommends python3-venv" >"$source/build/package/try.log" 2>&1 ||
    { tail -n 20 "$source/build/package/try.log" >&2; exit 1; }
  trust
  say "a fresh venv: LibTorch's wheels, then $name"
  inside "python3 -m venv /venv && /venv/bin/pip install -q --no-deps ${torch[*]} && /venv/bin/pip install -q --no-deps /work/$name
    /venv/bin/pip show troupe | grep -x 'Requires: torch'
    cd /work && /venv/bin/troupe --version && /venv/bin/python3 -m troupe --version && /venv/bin/troupe doctor
    /venv/bin/troupe launch --no-recovery --nproc 2 /bin/sh -c 'echo rank \$RANK of \$WORLD_SIZE' | tee out
    grep -q 'rank 0 of 2' out && grep -q 'rank 1 of 2' out
    /venv/bin/troupe checkpoint ls /work 2>&1 | grep 'no checkpoint'
    /venv/bin/troupe new /work/mine | grep -q 'a wheel brings none'
    /venv/bin/pip uninstall -q -y troupe && [ ! -e /venv/bin/troupe ]"
fi
say "$name is good"
