#!/usr/bin/env python3
"""A cluster of network namespaces on this machine: every host has its own address, name, /dev/shm, processes and sshd.

  cluster.py up 4 [--name N]          hosts h0..h3 with addresses 10.213.0.1..4; prints what a launcher needs
  cluster.py run HOST CMD...          runs a command there
  cluster.py rate HOST 100mbit|off    limits the host's link, both ways
  cluster.py link HOST up|down        pulls the host's cable, or plugs it in again
  cluster.py drop FROM TO             what FROM sends to TO vanishes
  cluster.py blackhole FROM TO        FROM's kernel refuses to send to TO
  cluster.py heal                     ends every rate, drop, blackhole and pulled cable
  cluster.py kill HOST                the host's power fails: all its processes die
  cluster.py status | down

In Python: `with Cluster(3) as cluster: cluster.run("h0", ["ssh", "-F", cluster.ssh_config, "h1", "hostname"])`.

Each host is a network namespace with one veth, whose other end hangs on a bridge in a namespace of its own: nothing is added to this
machine's own network. A host's first process is a shell with an sshd; it holds the host's other namespaces. What exists is written down
before it is made (/run/troupe-cluster/NAME.json), so that `down`, or the next `up` of the same name, also cleans up after a crash.
Needs root and namespaces; where they are refused it says so and exits with 77.
"""
import argparse
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

STATES = pathlib.Path("/run/troupe-cluster")
SKIP = 77


class CannotRun(Exception):
    """This machine does not let us make a cluster."""


def start_time(pid):
    """The kernel's start time of a process, which tells it from a later one of the same id; None if it is gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else int(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def quiet(*words):
    return subprocess.run(words, capture_output=True, text=True)


def must(*words):
    done = quiet(*words)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def check_machine():
    if os.geteuid() != 0:
        raise CannotRun("a cluster of namespaces needs root")
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux"),
                             ("sshd", "openssh-server"), ("ssh", "openssh-client"), ("ssh-keygen", "openssh-client")):
        if not shutil.which(program):
            raise CannotRun(f"there is no {program} here (Debian package {package})")
    name = f"troupe-try-{os.getpid()}"
    try:
        tried = quiet("ip", "netns", "add", name)
        if tried.returncode != 0:
            raise CannotRun(f"network namespaces are refused: {tried.stderr.strip()}")
        for words in (("ip", "-n", name, "link", "add", "name", "br0", "type", "bridge"), ("ip", "-n", name, "link", "add", "name", "try0", "type", "veth"),
                      ("ip", "netns", "exec", name, "unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "true")):
            tried = quiet(*words)
            if tried.returncode != 0:
                raise CannotRun(f"'{' '.join(words)}' is refused: {tried.stderr.strip()}")
    finally:
        quiet("ip", "netns", "del", name)


class Cluster:
    def __init__(self, hosts, name=None, shm_mb=256):
        self.name = name or f"c{os.getpid()}"
        self.hosts = [f"h{i}" for i in range(hosts)]
        self.shm_mb = shm_mb
        self.folder = None
        self.proxy = None
        self.init = {}  # host -> (pid, start time) of its first process, as this machine counts

    # ---- names

    @property
    def state_file(self):
        return STATES / f"{self.name}.json"

    @property
    def ssh_config(self):
        return f"{self.folder}/ssh_config"

    @property
    def hub(self):
        return f"troupe-{self.name}-hub"

    def namespace(self, host):
        self._known(host)
        return f"troupe-{self.name}-{host}"

    def address(self, host):
        index = self.hosts.index(self._known(host))
        return f"10.213.{(index + 1) // 250}.{(index + 1) % 250}"

    def _known(self, host):
        if host not in self.hosts:
            raise ValueError(f"there is no host {host}, only {', '.join(self.hosts)}")
        return host

    # ---- making and ending

    def __enter__(self):
        self.up()
        return self

    def __exit__(self, *failure):
        self.down()

    def up(self):
        check_machine()
        if self.state_file.exists():
            Cluster.load(self.name).down()
        self.folder = tempfile.mkdtemp(prefix=f"troupe-cluster-{self.name}-")
        self._save()
        try:
            self._make_keys()
            must("ip", "netns", "add", self.hub)
            must("ip", "-n", self.hub, "link", "add", "br0", "type", "bridge")
            must("ip", "-n", self.hub, "link", "set", "br0", "up")
            for host in self.hosts:
                self._make_link(host)
            for host in self.hosts:
                self._start(host)
            for host in self.hosts:
                self._await_sshd(host)
        except BaseException:
            self.down()
            raise

    def _save(self):
        STATES.mkdir(mode=0o700, exist_ok=True)
        state = {"name": self.name, "hosts": len(self.hosts), "folder": self.folder, "init": self.init}
        temporary = self.state_file.with_suffix(".new")
        temporary.write_text(json.dumps(state))
        temporary.rename(self.state_file)

    @staticmethod
    def load(name):
        try:
            state = json.loads((STATES / f"{name}.json").read_text())
        except FileNotFoundError:
            raise ValueError(f"there is no cluster {name}; cluster.py up N --name {name} makes one") from None
        cluster = Cluster(state["hosts"], name)
        cluster.folder = state["folder"]
        cluster.init = {host: tuple(process) for host, process in state["init"].items()}
        return cluster

    def _make_keys(self):
        folder = pathlib.Path(self.folder)
        must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "throw-away", "-f", f"{folder}/user_key")
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        known, config, names = "", "", "127.0.0.1 localhost\n::1 localhost\n"
        for host in self.hosts:
            must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host, "-f", f"{folder}/{host}_key")
            key = " ".join((folder / f"{host}_key.pub").read_text().split()[:2])
            known += f"{host},{self.address(host)} {key}\n"
            config += f"Host {host}\n  HostName {self.address(host)}\n"
            names += f"{self.address(host)} {host}\n"
            # No PAM and no passwords; the folder is ours alone, but /tmp above it is not, which StrictModes would refuse.
            (folder / f"{host}_sshd").write_text(
                f"ListenAddress {self.address(host)}\nHostKey {folder}/{host}_key\nAuthorizedKeysFile {folder}/authorized_keys\n"
                "PidFile none\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
                "StrictModes no\nUseDNS no\nPrintMotd no\nMaxStartups 100\n")
        config += (f"Host *\n  User root\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n"
                   "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  LogLevel ERROR\n")
        (folder / "known_hosts").write_text(known)
        (folder / "ssh_config").write_text(config)
        (folder / "hosts").write_text(names)
        (folder / "hostfile").write_text("".join(f"{host} slots=1 address={self.address(host)}\n" for host in self.hosts))

    def _make_link(self, host):
        space = self.namespace(host)
        must("ip", "netns", "add", space)
        must("ip", "link", "add", "name", "eth0", "netns", space, "type", "veth", "peer", "name", f"to-{host}", "netns", self.hub)
        must("ip", "-n", self.hub, "link", "set", f"to-{host}", "master", "br0", "up")
        must("ip", "-n", space, "link", "set", "lo", "up")
        must("ip", "-n", space, "addr", "add", f"{self.address(host)}/16", "dev", "eth0")
        must("ip", "-n", space, "link", "set", "eth0", "up")

    def _start(self, host):
        # The shell is the host's process 1: it collects orphans, and all end with it.
        script = (f"hostname {host} && mount -t tmpfs -o size={self.shm_mb}m tmpfs /dev/shm && mount -t tmpfs -o size=16m tmpfs /run && "
                  f"mkdir -m 755 /run/sshd && mount --bind {self.folder}/hosts /etc/hosts && "
                  f"{{ {shutil.which('sshd')} -D -e -f {self.folder}/{host}_sshd & wait; while :; do sleep 3600; done; }}")
        log = open(f"{self.folder}/{host}.log", "ab")
        outer = subprocess.Popen(["ip", "netns", "exec", self.namespace(host), "unshare", "--uts", "--ipc", "--mount", "--pid", "--fork",
                                  "--kill-child", "--mount-proc", "sh", "-c", script],
                                 stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        log.close()
        deadline = time.monotonic() + 30
        while True:  # `ip` and `unshare` become one process; its child is the shell
            children = pathlib.Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            inner = children.read_text().split() if children.exists() else []
            if inner and os.readlink(f"/proc/{inner[0]}/ns/pid") != os.readlink("/proc/self/ns/pid"):
                break
            if outer.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{host} did not start: {pathlib.Path(self.folder, host + '.log').read_text().strip()}")
            time.sleep(0.01)
        self.init[host] = (int(inner[0]), start_time(int(inner[0])))
        self._save()

    def _await_sshd(self, host):
        deadline = time.monotonic() + 30
        while ":22 " not in quiet("ip", "netns", "exec", self.namespace(host), "ss", "-Hltn").stdout:
            if time.monotonic() > deadline or not self.alive(host):
                raise RuntimeError(f"{host}'s sshd did not start: {pathlib.Path(self.folder, host + '.log').read_text().strip()}")
            time.sleep(0.02)

    def down(self):
        """Ends every process of the cluster and removes what it made; may be called twice, and after any failure."""
        if self.proxy:
            self.proxy.kill()
            self.proxy.communicate()
            self.proxy = None
        for host in self.hosts:
            self.kill(host)
        spaces = quiet("ip", "netns", "list").stdout.split()
        for space in [self.namespace(host) for host in self.hosts] + [self.hub]:
            if space in spaces:
                for pid in quiet("ip", "netns", "pids", space).stdout.split():  # what was started with run() outside its processes
                    os.kill(int(pid), signal.SIGKILL)
                must("ip", "netns", "del", space)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.state_file.unlink(missing_ok=True)
        try:
            STATES.rmdir()
        except OSError:
            pass

    # ---- using

    def alive(self, host):
        pid, started = self.init.get(self._known(host), (0, None))
        return started is not None and start_time(pid) == started

    def enter(self, host):
        """The words that, put before a command, run it on the host."""
        if not self.alive(host):
            raise RuntimeError(f"{host} is off")
        return ["nsenter", "--target", str(self.init[host][0]), "--net", "--uts", "--ipc", "--mount", "--pid", "--"]

    def run(self, host, words, **options):
        """subprocess.run on the host; keeps this process's working directory."""
        options.setdefault("text", True)
        words = ["sh", "-c", 'cd "$0" && exec "$@"', os.getcwd(), *words]
        return subprocess.run(self.enter(host) + words, **options)

    def start(self, host, words, **options):
        """subprocess.Popen on the host. End it by killing the host or closing its input: a signal reaches nsenter only."""
        words = ["sh", "-c", 'cd "$0" && exec "$@"', os.getcwd(), *words]
        return subprocess.Popen(self.enter(host) + words, **options)

    def pids(self, host):
        """The host's processes, as this machine counts."""
        return [int(pid) for pid in quiet("ip", "netns", "pids", self.namespace(host)).stdout.split()]

    def kill(self, host):
        """The host's power fails. Its process 1 is killed, with it all others; the kernel closes their sockets, so cut the link first if
        its peers must not hear of it."""
        if not self.alive(host):
            return
        pid, _ = self.init[host]
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while self.alive(host):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{host} (process {pid}) does not end")
            time.sleep(0.01)

    def restart(self, host):
        """The power comes back."""
        if not self.alive(host):
            self._start(host)
            self._await_sshd(host)

    def rate(self, host, rate, burst="64kb"):
        """Limits what the host sends and receives, for instance to "100mbit"; None ends that.

        A packet of TCP has up to 64 KiB here, more with its headers: above 64kb `burst` lets it through whole, else the kernel cuts it up,
        in processor time of the same machine (a step of bench/paced_link.py, 6 layers, 460 Mbit/s: 4.2 s, with 1mb 3.2 s).
        """
        for space, device in ((self.namespace(host), "eth0"), (self.hub, f"to-{host}")):
            quiet("tc", "-n", space, "qdisc", "del", "dev", device, "root")
            if rate:
                must("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", burst, "latency", "200ms")

    def link(self, host, up):
        self._known(host)
        must("ip", "-n", self.hub, "link", "set", f"to-{host}", "up" if up else "down")

    def blackhole(self, source, target):
        """source's kernel answers every send to target with an error."""
        must("ip", "-n", self.namespace(source), "route", "replace", "blackhole", f"{self.address(target)}/32")

    def drop(self, source, target):
        """What source sends to target vanishes without a sound: it goes to a hardware address that nobody has."""
        must("ip", "-n", self.namespace(source), "neigh", "replace", self.address(target), "lladdr", "02:00:00:00:00:ff", "nud", "permanent",
             "dev", "eth0")

    def slow_wires(self, *flags):
        """Puts packet_proxy.py into every host's link, until `end_slow_wires`."""
        program = str(pathlib.Path(__file__).with_name("packet_proxy.py"))
        wires = []
        for host in self.hosts:
            must("ip", "-n", self.hub, "link", "add", "name", f"px-{host}", "type", "veth", "peer", "name", f"br-{host}")
            must("ip", "-n", self.hub, "link", "set", f"to-{host}", "nomaster")
            must("ip", "-n", self.hub, "link", "set", f"br-{host}", "master", "br0", "up")
            must("ip", "-n", self.hub, "link", "set", f"px-{host}", "up")
            must("ip", "netns", "exec", self.namespace(host), sys.executable, program, "--offloads", "eth0")
            wires.append(f"to-{host}=px-{host}")
        must("ip", "netns", "exec", self.hub, sys.executable, program, "--offloads", *(end for wire in wires for end in wire.split("=")))
        self.proxy = subprocess.Popen(["ip", "netns", "exec", self.hub, sys.executable, program, *flags, *wires], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
        if self.proxy.stdout.readline() != "ready\n":
            raise RuntimeError("the packet proxy did not start")

    def end_slow_wires(self):
        """The links are as they were. How many frames there were, and how many of them came late."""
        said, _ = self.proxy.communicate(timeout=30)
        self.proxy = None
        for host in self.hosts:
            must("ip", "-n", self.hub, "link", "del", f"px-{host}")
            must("ip", "-n", self.hub, "link", "set", f"to-{host}", "master", "br0")
        return [int(word.split("=")[1]) for word in said.split()]

    def partition(self, *sides):
        """Nothing passes between hosts of different sides."""
        for one, other in itertools.permutations(sides, 2):
            for source in one:
                for target in other:
                    self.drop(source, target)

    def heal(self):
        for host in self.hosts:
            space = self.namespace(host)
            self.link(host, True)
            self.rate(host, None)
            quiet("ip", "-n", space, "route", "flush", "type", "blackhole")
            quiet("ip", "-n", space, "neigh", "flush", "dev", "eth0", "nud", "permanent")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="default", help="which cluster, where there are several")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up").add_argument("hosts", type=int)
    run = verbs.add_parser("run")
    run.add_argument("host")
    run.add_argument("command", nargs=argparse.REMAINDER)
    for verb, *names in (("rate", "host", "rate"), ("link", "host", "state"), ("drop", "source", "target"), ("blackhole", "source", "target"),
                         ("kill", "host"), ("restart", "host"), ("heal",), ("status",), ("down",)):
        added = verbs.add_parser(verb)
        for name in names:
            added.add_argument(name, **({"choices": ("up", "down")} if name == "state" else {}))
    flags = parser.parse_args()
    if not flags.name.isalnum():
        parser.error(f"--name '{flags.name}' may have letters and digits")
    if flags.verb == "up":
        if not 1 <= flags.hosts <= 200:
            parser.error("a cluster has 1 to 200 hosts")
        cluster = Cluster(flags.hosts, flags.name)
        cluster.up()
        print(f"hosts:      {', '.join(f'{host} {cluster.address(host)}' for host in cluster.hosts)}")
        print(f"ssh:        ssh -F {cluster.ssh_config} {cluster.hosts[0]}   (from one of the hosts)")
        print(f"host file:  {cluster.folder}/hostfile")
        return 0
    cluster = Cluster.load(flags.name)
    if flags.verb == "run":
        if not flags.command:
            parser.error("run which command?")
        return cluster.run(flags.host, flags.command).returncode
    if flags.verb == "status":
        for host in cluster.hosts:
            print(f"{host} {cluster.address(host)} {'up' if cluster.alive(host) else 'off'}, {len(cluster.pids(host))} processes")
    elif flags.verb == "rate":
        cluster.rate(flags.host, None if flags.rate == "off" else flags.rate)
    elif flags.verb == "link":
        cluster.link(flags.host, flags.state == "up")
    elif flags.verb in ("drop", "blackhole"):
        getattr(cluster, flags.verb)(flags.source, flags.target)
    elif flags.verb in ("kill", "restart"):
        getattr(cluster, flags.verb)(flags.host)
    else:
        getattr(cluster, flags.verb)()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CannotRun as reason:
        print(f"cluster.py: NO CLUSTER HERE: {reason}", file=sys.stderr)
        sys.exit(SKIP)
    except (RuntimeError, ValueError) as failure:
        print(f"cluster.py: {failure}", file=sys.stderr)
        sys.exit(1)
