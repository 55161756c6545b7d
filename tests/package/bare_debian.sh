# Sourced, with $source, the project's folder: Debian 12 that has nothing else, for tries of packages. Needs root, debootstrap, unshare, a
# Debian mirror and PyPI; exit code 77 says that one is missing. The bare Debian stays in build/package/debian12 for the next time.
bare=$source/build/package/debian12
log=$source/build/package/try.log
torch=(torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)  # what libtorch_cpu loads, without the 4 GB for GPUs

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
cannot() { say "not run: $*"; exit 77; }

# In new namespaces: nothing is mounted outside, and no process outlives it.
inside() {  # inside ROOT COMMANDS
  unshare --mount --pid --fork bash -euc '
    mount --make-rprivate / && mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev"
    exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 OMP_NUM_THREADS=1 \
      DEBIAN_FRONTEND=noninteractive bash -euo pipefail -c "$1"' "$1" "$2"
}

# What this machine trusts, for pip: ca-certificates writes another list when it is installed.
trust() {  # trust ROOT
  [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp --remove-destination -L /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
}

install_inside() {  # install_inside ROOT PACKAGE..
  inside "$1" "apt-get update -q && apt-get install -y -q --no-install-recommends ${*:2}" >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
}

make_root() {  # make_root ROOT: a copy of the bare Debian, with /work
  [ "$(id -u)" = 0 ] || cannot "to install into another Debian takes root"
  command -v debootstrap >/dev/null || cannot "debootstrap is not installed"
  unshare --mount --pid --fork true 2>/dev/null || cannot "no namespaces here"
  if [ ! -e "$bare/complete" ]; then
    local mirror
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
  rm -rf "$1"
  cp -a "$bare" "$1"
  mkdir "$1/work"
}
