#!/usr/bin/env python3
"""A wire that is slow at random, between pairs of network devices of this namespace: packet_proxy.py [FLAGS] A=B ...

It hands every frame that arrives at A on to B and the other way round, some of them late, so that they overtake each other: within a
connection, which TCP puts right, and across connections, which nothing does. Prints `ready`; ends with its standard input and prints
`frames=N late=N`. With --offloads DEVICE .. it instead turns off what a driver leaves to hardware, which no wire carries, and ends.
"""
import argparse
import array
import fcntl
import heapq
import random
import select
import socket
import struct
import sys
import time

ETH_P_ALL, PACKET_OUTGOING, SIOCETHTOOL = 3, 4, 0x8946
# ETHTOOL_SRXCSUM, STXCSUM, SSG, STSO, SGSO, SGRO: frames are whole, of at most the link's length, and carry their checksums.
OFFLOADS = (0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C)


def turn_off(device):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS:
            value = array.array("I", (command, 0))
            try:
                fcntl.ioctl(control, SIOCETHTOOL, struct.pack("16sP", device.encode(), value.buffer_info()[0]))
            except OSError:
                pass  # it has no such offload


def tap(device):
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    end.bind((device, 0))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    end.setblocking(False)
    return end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.2, help="of the frames that are late")
    parser.add_argument("--delay-ms", type=float, default=50)
    parser.add_argument("--jitter-ms", type=float, default=50, help="a late frame comes up to so much earlier or later")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--offloads", nargs="+", metavar="DEVICE")
    parser.add_argument("wires", nargs="*")
    flags = parser.parse_args()
    if flags.offloads:
        for device in flags.offloads:
            turn_off(device)
        return
    dice = random.Random(flags.seed)
    other = {}
    for wire in flags.wires:
        one, two = (tap(device) for device in wire.split("="))
        other[one], other[two] = two, one
    print("ready", flush=True)
    waiting, frames, late = [], 0, 0
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select([*other, sys.stdin], [], [], patience)[0]:
            if end is sys.stdin:
                print(f"frames={frames} late={late}", flush=True)
                return
            try:
                frame, address = end.recvfrom(1 << 16)
            except OSError:
                continue  # the device went down
            if address[2] == PACKET_OUTGOING:
                continue
            frames += 1
            due = time.monotonic()
            if dice.random() < flags.share:
                late += 1
                due += max(0.0, flags.delay_ms + flags.jitter_ms * dice.uniform(-1, 1)) / 1e3
            heapq.heappush(waiting, (due, frames, other[end], frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, end, frame = heapq.heappop(waiting)
            try:
                end.send(frame)
            except OSError:
                pass  # as a wire loses it


if __name__ == "__main__":
    main()
