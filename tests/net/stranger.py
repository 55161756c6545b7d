#!/usr/bin/env python3
"""What a stranger tries at a job's port, from every address of this host in turn. For stranger_net_test.py.

    stranger.py HOST PORT KEYS OTHER_KEYS PACKETS

KEYS is a copy of the job's keys with another token, OTHER_KEYS another job's. Prints how many connections it made, by kind, as JSON.
"""
import itertools
import json
import os
import random
import re
import socket
import ssl
import struct
import subprocess
import sys
import time

PATIENCE_S = 20
SLOW = 40


def basp(operation, length, payload=b"", flags=0, data=0):
    return struct.pack(">BBBBIQQQ", operation, 0, 0, flags, length, data, 1, 1) + payload


def packets(rng):
    """CAF's killers, other protocols' first words, and noise: the same every time."""
    yield from (basp(operation, length) for operation in range(256) for length in (0, 1, 2**31, 2**32 - 1))
    yield from (basp(0, 0, data=data) for data in range(8))
    yield from (basp(1, 40, bytes([0x80] * 10) + b"\xff\xff\xff\xff" * 10, flags) for flags in range(4))
    hello = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="a")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    first = hello.read()
    yield from (first[:n] for n in range(1, len(first), 7))
    yield from (first[:n] + bytes([first[n] ^ 0x55]) + first[n + 1:] for n in range(0, len(first), 3))
    yield from (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\n", b"SSH-2.0-x\r\n", b"\x00" * 65536, b"OPTIONS sip:nm SIP/2.0\r\n\r\n")
    while True:
        yield rng.randbytes(rng.randrange(1, 2000))


def context(keys, certificate):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    if certificate:
        made.load_cert_chain(f"{keys}/certificate.pem", f"{keys}/key.pem")
    return made


def main():
    host, port, keys, other_keys, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
    text = subprocess.run(["ip", "-o", "-4", "addr", "show", "dev", "eth0"], capture_output=True, text=True, check=True).stdout
    sources = itertools.cycle(re.findall(r"inet ([\d.]+)", text))

    def connect():
        return socket.create_connection((host, port), timeout=PATIENCE_S, source_address=(next(sources), 0))

    made = {"malformed": 0, "no certificate": 0, "another job's certificate": 0, "wrong token": 0, "replay": 0, "slow": 0}
    slow = [connect() for _ in range(SLOW)]
    made["slow"] = SLOW
    started = time.monotonic()
    recorded = b""
    for number, packet in zip(range(count), packets(random.Random(7))):
        with connect() as connection:
            try:
                connection.sendall(packet)
                if number % 10 == 0:
                    connection.recv(1)  # until it is refused
            except OSError:
                pass
        made["malformed"] += 1
        if number % 50 == 0:
            for kind, trial in (("no certificate", context(keys, False)), ("another job's certificate", context(other_keys, True)),
                                ("wrong token", context(keys, True)), ("replay", context(keys, True))):
                try:
                    with trial.wrap_socket(connect()) as connection:
                        proof = recorded if kind == "replay" and recorded else os.urandom(32).hex().encode()
                        recorded = proof if kind == "wrong token" else recorded
                        connection.sendall(proof + basp(1, 5, b"hello"))
                        answer = connection.recv(64)
                        assert not answer, f"{kind}: the gate answered {answer}"
                except OSError:
                    pass
                made[kind] += 1
        if number % 100 == 0:
            for dripping in slow:
                try:
                    dripping.sendall(b"\x16")
                except OSError:
                    pass
    print(json.dumps({"connections": made, "seconds": time.monotonic() - started}))


if __name__ == "__main__":
    main()
