#!/usr/bin/env python3
"""[L06] The cluster of namespaces does what its tests lean on. Exits with 77, loudly, where namespaces are refused."""
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cluster as cluster_module  # noqa: E402
from cluster import SKIP, CannotRun, Cluster  # noqa: E402

PATIENCE = 60  # s; for what must happen at all

SERVER = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as server:
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        received = 0
        while block := connection.recv(1 << 16):
            received += len(block)
        connection.sendall(str(received).encode())
        connection.close()
"""
CLIENT = """
import socket, sys, time
begin = time.monotonic()
with socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[3])) as connection:
    connection.settimeout(60)
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(100) == sys.argv[2].encode()
print(time.monotonic() - begin)
"""


def send(cluster, source, target, count=1, timeout=30):
    """Seconds that `count` bytes took, with an answer; the error's text if they did not arrive."""
    done = cluster.run(source, [sys.executable, "-c", CLIENT, cluster.address(target), str(count), str(timeout)], capture_output=True, timeout=PATIENCE)
    return float(done.stdout) if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def arrived(outcome):
    return isinstance(outcome, float)


def eventually(claim):
    deadline = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def hosts_have_names_and_memory_of_their_own(cluster):
    for host in cluster.hosts:
        assert cluster.run(host, ["hostname"], capture_output=True).stdout == host + "\n"
        others = cluster.run(host, ["sh", "-c", f"ls /dev/shm; touch /dev/shm/{host}"], capture_output=True).stdout
        assert others == "", others
    assert "eth0" in cluster.run("h0", ["ip", "addr"], capture_output=True).stdout


def every_host_reaches_every_other_by_ssh(cluster):
    for source in cluster.hosts:
        for target in cluster.hosts:
            done = cluster.run(source, ["ssh", "-F", cluster.ssh_config, "-o", "BatchMode=yes", target, "hostname"], capture_output=True,
                               timeout=PATIENCE)
            assert (done.returncode, done.stdout) == (0, target + "\n"), done


def an_unknown_host_key_is_refused(cluster):
    done = cluster.run("h0", ["ssh", "-F", cluster.ssh_config, "-o", "BatchMode=yes", "-i", "/dev/null", "-o", "IdentityFile=/dev/null", "-o",
                              "UserKnownHostsFile=/dev/null", "h1", "true"], capture_output=True, timeout=PATIENCE)
    assert done.returncode == 255 and "Host key verification failed" in done.stderr, done


def nothing_of_it_is_in_this_machines_network(cluster):
    assert "10.213." not in subprocess.run(["ip", "addr"], capture_output=True, text=True).stdout


def a_rate_holds(cluster):
    free = send(cluster, "h0", "h1", 2_000_000)
    cluster.rate("h1", "16mbit")  # 1 s for 2 MB, less the burst
    limited = send(cluster, "h0", "h1", 2_000_000)
    cluster.rate("h1", None)
    again = send(cluster, "h0", "h1", 2_000_000)
    assert limited > 0.8, limited
    assert limited < 20, limited
    assert free < limited and again < limited, (free, limited, again)


def a_pulled_cable_is_seen(cluster):
    state = lambda: cluster.run("h1", ["ip", "-br", "link", "show", "eth0"], capture_output=True).stdout.split()[1]
    assert state() == "UP"
    cluster.link("h1", False)
    eventually(lambda: state() in ("DOWN", "LOWERLAYERDOWN"))
    assert not arrived(send(cluster, "h0", "h1", timeout=1))
    assert arrived(send(cluster, "h0", "h2"))
    cluster.link("h1", True)
    eventually(lambda: state() == "UP")
    assert arrived(send(cluster, "h0", "h1"))


def drops_and_blackholes_are_of_one_pair(cluster):
    cluster.drop("h0", "h1")
    assert "timed out" in send(cluster, "h0", "h1", timeout=1)
    assert "timed out" in send(cluster, "h1", "h0", timeout=1)  # its answer vanishes
    assert arrived(send(cluster, "h0", "h2")) and arrived(send(cluster, "h2", "h1"))
    cluster.heal()
    assert arrived(send(cluster, "h0", "h1"))
    cluster.blackhole("h0", "h1")
    refused = send(cluster, "h0", "h1")
    assert not arrived(refused) and "timed out" not in refused, refused
    cluster.heal()
    assert arrived(send(cluster, "h0", "h1"))


def a_partition_has_two_sides(cluster):
    cluster.partition(["h0", "h1"], ["h2"])
    assert arrived(send(cluster, "h0", "h1"))
    assert not arrived(send(cluster, "h0", "h2", timeout=1)) and not arrived(send(cluster, "h2", "h1", timeout=1))
    cluster.heal()
    assert arrived(send(cluster, "h0", "h2"))


def a_host_loses_and_gets_power(cluster):
    sleeper = cluster.start("h2", ["sleep", "1000"])
    eventually(lambda: len(cluster.pids("h2")) >= 3)
    cluster.kill("h2")
    assert sleeper.wait(timeout=PATIENCE) != 0
    eventually(lambda: not cluster.pids("h2"))
    assert not arrived(send(cluster, "h0", "h2", timeout=1))
    cluster.restart("h2")
    assert cluster.run("h0", ["ssh", "-F", cluster.ssh_config, "h2", "true"], timeout=PATIENCE).returncode == 0


def left_over(name):
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    folders = [path.name for path in pathlib.Path("/tmp").glob(f"troupe-cluster-{name}-*")]
    state = (cluster_module.STATES / f"{name}.json").exists()
    return [line for line in spaces.splitlines() if f"troupe-{name}-" in line] + folders + (["state"] if state else [])


def a_crash_leaves_nothing_after_down():
    name = f"crash{os.getpid()}"
    program = f"""
import sys, time
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from cluster import Cluster
with Cluster(2, {name!r}) as cluster:
    print(*(cluster.init[host][0] for host in cluster.hosts), flush=True)
    time.sleep(1000)
"""
    crashed = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in crashed.stdout.readline().split()]
    assert len(pids) == 2
    crashed.send_signal(signal.SIGKILL)
    crashed.wait()
    assert left_over(name)
    done = subprocess.run([sys.executable, cluster_module.__file__, "--name", name, "down"], timeout=PATIENCE)
    assert done.returncode == 0
    assert not left_over(name), left_over(name)
    assert not any(cluster_module.start_time(pid) for pid in pids)


def the_command_line_works():
    name = f"line{os.getpid()}"
    tool = [sys.executable, cluster_module.__file__, "--name", name]
    try:
        assert "h1 10.213.0.2" in subprocess.run([*tool, "up", "2"], capture_output=True, text=True, check=True).stdout
        assert subprocess.run([*tool, "run", "h1", "sh", "-c", "hostname; exit 3"], capture_output=True, text=True).returncode == 3
        assert subprocess.run([*tool, "link", "h1", "down"]).returncode == 0
        assert subprocess.run([*tool, "rate", "h0", "1gbit"]).returncode == 0
        assert subprocess.run([*tool, "heal"]).returncode == 0
        unknown = subprocess.run([*tool, "run", "h7", "true"], capture_output=True, text=True)
        assert unknown.returncode == 1 and "no host h7" in unknown.stderr
    finally:
        assert subprocess.run([*tool, "down"]).returncode == 0
    assert not left_over(name)


def main():
    name = f"test{os.getpid()}"
    with Cluster(3, name) as cluster:
        servers = []
        for host in cluster.hosts:
            server = cluster.start(host, [sys.executable, "-c", SERVER, cluster.address(host)], stdout=subprocess.PIPE, text=True)
            assert server.stdout.readline() == "ready\n"
            servers.append(server)
        for claim in (hosts_have_names_and_memory_of_their_own, every_host_reaches_every_other_by_ssh, an_unknown_host_key_is_refused,
                      nothing_of_it_is_in_this_machines_network, a_rate_holds, a_pulled_cable_is_seen, drops_and_blackholes_are_of_one_pair,
                      a_partition_has_two_sides, a_host_loses_and_gets_power):
            claim(cluster)
            print(f"ok: {claim.__name__.replace('_', ' ')}", flush=True)
    for server in servers:
        server.wait(timeout=PATIENCE)
    assert not left_over(name), left_over(name)
    for claim in (a_crash_leaves_nothing_after_down, the_command_line_works):
        claim()
        print(f"ok: {claim.__name__.replace('_', ' ')}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except CannotRun as reason:
        print(f"SKIPPED, NOTHING TESTED: {reason}", file=sys.stderr)
        sys.exit(SKIP)
