#!/usr/bin/env bash
# try_package.sh deb|wheel FILE: installs a package in a Debian 12 that has nothing else, trains there, and (deb) builds
# examples/external_project against it.
set -euo pipefail
kind=$1
file=$(readlink -f "$2")
source=$(cd "$(dirname "$0")/../.." && pwd -P)
. "$source/tests/package/bare_debian.sh"
root=$source/build/package/try-$kind
make_root "$root"
trap 'rm -rf "$root"' EXIT
cp "$file" "$root/work/"
cp -r "$source/examples/external_project" "$root/work/"
name=$(basename "$file")

if [ "$kind" = deb ]; then
  say "installing $name with apt, what it depends on, a compiler and CMake"
  install_inside "$root" "/work/$name" cmake g++ ninja-build python3-venv
  grep -q "LibTorch is missing" "$log" || { say "the package did not say that LibTorch is missing"; exit 1; }
  trust "$root"
  say "LibTorch, as README.Debian says"
  inside "$root" "grep -q 'ln -sfn /opt/troupe/lib/python3.11/site-packages/torch /usr/lib/troupe/torch' /usr/share/doc/troupe/README.Debian
    python3 -m venv /opt/troupe && /opt/troupe/bin/pip install -q --no-deps ${torch[*]}
    ln -sfn /opt/troupe/lib/python3.11/site-packages/torch /usr/lib/troupe/torch"
  inside "$root" "troupe --version && troupe doctor"
  say "examples/external_project, against the package alone"
  inside "$root" "cd /work/external_project && cmake -G Ninja -B build && cmake --build build && ctest --test-dir build --output-on-failure --no-tests=error
    troupe launch --nproc 2 build/train --epochs 2 | tee out && grep -q 'held-out' out
    troupe checkpoint ls . 2>&1 | tee out && grep -q 'no checkpoint' out"
  inside "$root" "apt-get remove -y -q troupe >/dev/null && ! command -v troupe"
else
  install_inside "$root" python3-venv
  trust "$root"
  say "a fresh venv: LibTorch's wheels, then $name"
  inside "$root" "python3 -m venv /venv && /venv/bin/pip install -q --no-deps ${torch[*]} && /venv/bin/pip install -q --no-deps /work/$name
    /venv/bin/pip show troupe | grep -x 'Requires: torch'
    cd /work && /venv/bin/troupe --version && /venv/bin/python3 -m troupe --version && /venv/bin/troupe doctor
    /venv/bin/troupe launch --no-recovery --nproc 2 /bin/sh -c 'echo rank \$RANK of \$WORLD_SIZE' | tee out
    grep -q 'rank 0 of 2' out && grep -q 'rank 1 of 2' out
    /venv/bin/troupe checkpoint ls /work 2>&1 | grep 'no checkpoint'
    /venv/bin/troupe new /work/mine | grep -q 'a wheel does not include them'
    /venv/bin/pip uninstall -q -y troupe && [ ! -e /venv/bin/troupe ]"
fi
say "$name is good"
