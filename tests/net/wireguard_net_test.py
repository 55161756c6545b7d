#!/usr/bin/env python3
"""SECURITY.md's way to a data plane that cannot be read: two hosts with WireGuard between them. All that a job says goes through it, and
nothing but its packets is on the wire.

    wireguard_net_test.py TROUPE RANK_PROBE

Uses the kernel's WireGuard or wireguard-go; without either, or without wg, it says so and exits with 77.
"""
import collections
import json
import os
import pathlib
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

from cluster import SKIP, CannotRun, Cluster, must, quiet
from job import Job, check, probe_words

PORT = 51820


def sniff():
    """What is on this host's wire until standard input ends: packets by protocol and port, and how many bytes they hold."""
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    wire.bind(("eth0", 0))
    seen = collections.Counter()
    print("listens", flush=True)
    while True:
        readable = select.select([wire, sys.stdin], [], [])[0]
        if sys.stdin in readable:
            break
        frame = wire.recv(1 << 16)
        if frame[12:14] != b"\x08\x00":
            continue
        packet = frame[14:]
        if packet[9] == 2:  # IGMP: the kernel's own, some time after an interface came up
            continue
        ports = struct.unpack(">HH", packet[4 * (packet[0] & 15):][:4])
        kind = {1: "icmp", 6: "tcp", 17: "udp"}.get(packet[9], str(packet[9]))
        seen["wireguard" if kind == "udp" and PORT in ports else kind] += len(packet)
    print(json.dumps(seen), flush=True)


def connect(cluster, folder):
    """SECURITY.md's commands, on both hosts."""
    keys = {}
    for host in ("h0", "h1"):
        private = must("wg", "genkey").strip()
        keys[host] = (private, subprocess.run(["wg", "pubkey"], input=private, capture_output=True, text=True, check=True).stdout.strip())
    for host, other, number in (("h0", "h1", 1), ("h1", "h0", 2)):
        if cluster.run(host, ["ip", "link", "add", "wg0", "type", "wireguard"], capture_output=True).returncode != 0:
            if shutil.which("wireguard-go") is None:
                raise CannotRun("there is neither the kernel's WireGuard nor wireguard-go")
            made = cluster.run(host, ["env", f"WG_SOCKET_DIR={folder}", "wireguard-go", "wg0"], capture_output=True, text=True)
            check(made.returncode == 0, "wireguard-go", made.stdout + made.stderr)
        config = pathlib.Path(folder, f"{host}.conf")
        config.write_text(f"[Interface]\nPrivateKey = {keys[host][0]}\nListenPort = {PORT}\n[Peer]\nPublicKey = {keys[other][1]}\n"
                          f"AllowedIPs = 10.99.0.{3 - number}/32\nEndpoint = {cluster.address(other)}:{PORT}\n")
        for words in (["wg", "setconf", "wg0", str(config)], ["ip", "address", "add", f"10.99.0.{number}/24", "dev", "wg0"],
                      ["ip", "link", "set", "wg0", "mtu", "1420", "up"]):
            done = cluster.run(host, words, capture_output=True, text=True)
            check(done.returncode == 0, " ".join(words), done.stderr)


def main():
    if sys.argv[1:] == ["sniff"]:
        return sniff()
    troupe, probe = sys.argv[1:3]
    try:
        if shutil.which("wg") is None:
            raise CannotRun("there is no wg (apt-get install wireguard-tools)")
        with Cluster(2) as cluster, tempfile.TemporaryDirectory() as scratch:
            connect(cluster, scratch)
            check(quiet(troupe, "keys", f"{scratch}/keys", "2").returncode == 0, "troupe keys", "")
            seen = {}
            for name, address in (("wireguard", "10.99.0.1"), ("bare", cluster.address("h0"))):
                sniffer = cluster.start("h0", [sys.executable, os.path.abspath(__file__), "sniff"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
                sniffer.stdout.readline()
                jobs = [Job(cluster, [troupe, "launch", "--nnodes", "2", "--node-rank", str(node), "--master-addr", address, "--keys",
                                      f"{scratch}/keys/node{node}", "--run-dir", f"{scratch}/{name}-{node}",
                                      *probe_words(probe, f"{scratch}/{name}"), "--epochs", "2"], host=f"h{node}") for node in (0, 1)]
                for job in jobs:
                    code, text = job.finish()
                    check(code == 0, f"{name}: exit code {code}", text)
                seen[name] = json.loads(sniffer.communicate(timeout=30)[0].splitlines()[-1])
            print(f"bytes on the wire, with WireGuard: {seen['wireguard']}; without: {seen['bare']}")
            check(seen["bare"].get("tcp", 0) > 100_000, "without it the job is on the wire", str(seen))
            check(set(seen["wireguard"]) == {"wireguard"} and seen["wireguard"]["wireguard"] > 100_000, "nothing but WireGuard", str(seen))
    except CannotRun as why:
        print(why)
        return SKIP
    return 0


if __name__ == "__main__":
    sys.exit(main())
