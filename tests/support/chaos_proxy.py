#!/usr/bin/env python3
"""A TCP proxy on loopback that misbehaves when told to: chaos_proxy.py TARGET_HOST:PORT [--listen PORT] [--seed N]

It prints `port N`, then obeys one command per line of standard input and answers each with `ok ...` or `error REASON`; it ends with its
input. A direction is `up` (to the target), `down` (to the client) or `both`. Commands hold for connections that exist and those to come.

  delay DIRECTION MS [JITTER_MS]   each piece arrives later by MS plus or minus up to JITTER_MS; order is kept
  throttle DIRECTION BYTES_PER_S   0 ends it
  stall DIRECTION                  nothing is passed on, and the sender's buffers fill
  resume DIRECTION                 ends a stall
  half-close DIRECTION             ends that direction of every connection, the other stays
  cut                              resets every connection
  hold                             new connections are accepted and not forwarded
  release                          those held go on
  refuse / accept                  new connections are reset at once / served again
  corrupt DIRECTION OFFSET         flips a bit of the byte OFFSET bytes from now, in every connection
  clear                            ends delays, throttles, stalls, hold, refuse
  stats                            ok connections=N up=BYTES down=BYTES
"""
import argparse
import asyncio
import random
import socket
import struct
import sys

PIECE = 1 << 14
WINDOW = 1 << 18  # bytes on their way in one direction of a connection; beyond it the sender is held


class Direction:
    """What is asked of one direction, of all connections."""

    def __init__(self):
        self.clear()
        self.bytes = 0

    def clear(self):
        self.delay = self.jitter = 0.0  # s
        self.rate = 0.0  # bytes/s; 0: no limit
        self.stalled = False


class Pipe:
    """One direction of one connection: a reader that stamps pieces with their time of arrival, and a writer that waits for it."""

    def __init__(self, proxy, direction, reader, writer):
        self.proxy, self.direction, self.reader, self.writer = proxy, direction, reader, writer
        self.queue = asyncio.Queue()
        self.room = asyncio.Semaphore(WINDOW // PIECE)
        self.last_due = 0.0
        self.corrupt_in = None  # bytes from here
        self.half_closed = False

    async def run(self):
        tasks = [asyncio.create_task(self.read()), asyncio.create_task(self.write())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def read(self):
        while True:
            await self.room.acquire()
            await self.proxy.until(lambda: not self.direction.stalled)
            piece = await self.reader.read(PIECE)
            now = asyncio.get_running_loop().time()
            due = now + self.direction.delay + self.proxy.random.uniform(-1, 1) * self.direction.jitter
            self.last_due = max(self.last_due, due)  # TCP keeps order, whatever the jitter
            await self.queue.put((self.last_due, piece))
            if not piece:
                return

    async def write(self):
        loop = asyncio.get_running_loop()
        while True:
            due, piece = await self.queue.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self.proxy.until(lambda: not self.direction.stalled)
            self.room.release()
            if self.half_closed:
                if not piece:
                    return
                continue
            if not piece:
                self.end()
                return
            if self.corrupt_in is not None:
                if self.corrupt_in < len(piece):
                    changed = bytearray(piece)
                    changed[self.corrupt_in] ^= 1
                    piece, self.corrupt_in = bytes(changed), None
                else:
                    self.corrupt_in -= len(piece)
            if self.direction.rate:
                await asyncio.sleep(len(piece) / self.direction.rate)
            self.writer.write(piece)
            await self.writer.drain()
            self.direction.bytes += len(piece)

    def end(self):
        self.half_closed = True
        if self.writer.can_write_eof() and not self.writer.is_closing():
            self.writer.write_eof()


class Proxy:
    def __init__(self, host, port, seed):
        self.target = host, port
        self.random = random.Random(seed)
        self.directions = {"up": Direction(), "down": Direction()}
        self.held = self.refusing = False
        self.connections = {}  # client's writer -> (target's writer, pipes)
        self.accepted = 0
        self.opening = 0  # connections that the target may know before we do
        self.changed = asyncio.Event()

    async def until(self, condition):
        while not condition():
            await self.changed.wait()

    def notify(self):
        self.changed.set()
        self.changed = asyncio.Event()

    async def serve(self, reader, writer):
        self.accepted += 1
        self.connections[writer] = (None, ())
        target = None
        try:
            if self.refusing:
                return reset(writer)
            await self.until(lambda: not self.held)
            self.opening += 1
            try:
                target_reader, target = await asyncio.open_connection(*self.target)
            finally:
                self.opening -= 1
                self.notify()
            for end in (writer, target):
                end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pipes = {"up": Pipe(self, self.directions["up"], reader, target), "down": Pipe(self, self.directions["down"], target_reader, writer)}
            self.connections[writer] = (target, pipes)
            await asyncio.gather(*(pipe.run() for pipe in pipes.values()))
        except (ConnectionError, OSError):
            reset(writer)
            if target:
                reset(target)
        except asyncio.CancelledError:
            pass  # the proxy ends
        finally:
            self.connections.pop(writer, None)
            for end in (writer, target):
                if end:
                    end.close()

    def obey(self, words):
        """The answer to a command; ValueError if it is none."""
        name, *values = words

        def chosen():
            if not values or values[0] not in ("up", "down", "both"):
                raise ValueError("a direction is up, down or both")
            return ("up", "down") if values[0] == "both" else (values[0],)

        def numbers(least, most):
            if not least <= len(values) - 1 <= most:
                raise ValueError(f"{name} takes {least} to {most} numbers after the direction")
            found = [float(value) for value in values[1:]]
            if any(not 0 <= value < 1e12 for value in found):
                raise ValueError("a number is from 0 to 1e12")
            return found

        def pipes():
            return [pipes[direction] for _, pipes in self.connections.values() if pipes for direction in chosen()]

        if name == "delay":
            milliseconds = numbers(1, 2)
            for direction in chosen():
                asked = self.directions[direction]
                asked.delay, asked.jitter = milliseconds[0] / 1e3, (milliseconds[1:] or [0])[0] / 1e3
        elif name == "throttle":
            (rate,) = numbers(1, 1)
            for direction in chosen():
                self.directions[direction].rate = rate
        elif name in ("stall", "resume"):
            numbers(0, 0)
            for direction in chosen():
                self.directions[direction].stalled = name == "stall"
        elif name == "half-close":
            numbers(0, 0)
            for pipe in pipes():
                pipe.end()
        elif name == "corrupt":
            (offset,) = numbers(1, 1)
            for pipe in pipes():
                pipe.corrupt_in = int(offset)
        elif values:
            raise ValueError(f"there is no command '{' '.join(words)}'")
        elif name == "cut":
            for client, (target, _) in list(self.connections.items()):
                reset(client)
                if target:
                    reset(target)
        elif name in ("hold", "release"):
            self.held = name == "hold"
        elif name in ("refuse", "accept"):
            self.refusing = name == "refuse"
        elif name == "clear":
            self.held = self.refusing = False
            for direction in self.directions.values():
                direction.clear()
        elif name == "stats":
            return f"ok connections={self.accepted} up={self.directions['up'].bytes} down={self.directions['down'].bytes}"
        else:
            raise ValueError(f"there is no command '{' '.join(words)}'")
        self.notify()
        return "ok " + " ".join(words)


def reset(writer):
    """Ends a connection with RST, not FIN."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--listen", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    host, _, port = flags.target.rpartition(":")
    if not host or not port.isdecimal():
        parser.error(f"'{flags.target}' is not HOST:PORT")
    proxy = Proxy(host.strip("[]"), int(port), flags.seed)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", flags.listen, limit=PIECE)
    print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        words = line.decode(errors="replace").split()
        if not words:
            continue
        await proxy.until(lambda: proxy.opening == 0)
        try:
            print(proxy.obey(words), flush=True)
        except ValueError as reason:
            print(f"error {reason}", flush=True)
    server.close()
    proxy.obey(["cut"])


if __name__ == "__main__":
    asyncio.run(main())
