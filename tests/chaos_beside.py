"""What goes wrong beside the ranks of a job on this machine: its coordinator, that one's port, the disk of its run folder, its launcher."""
import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import threading
import time

PARK_AFTER_S = 4


class Beside(threading.Thread):
    """Faults of these kinds, `mtbf` seconds apart in the mean, from `begin` to `end`. `counts` has how many of each."""

    def __init__(self, kinds, mtbf, seed, folder):
        super().__init__(daemon=True)
        self.kinds, self.mtbf, self.draw, self.folder = kinds, mtbf, random.Random(seed), folder
        self.over, self.counts, self.launcher = threading.Event(), dict.fromkeys(kinds, 0), None

    def begin(self, launcher):
        self.launcher = launcher
        self.start()

    def end(self):
        self.over.set()
        self.join()

    def run(self):
        while not self.over.wait(self.draw.expovariate(1 / self.mtbf)):
            kind = self.draw.choice(self.kinds)
            coordinator = next((pid for pid, words in children(self.launcher) if b"coordinator" in words.split(b"\0")), None)
            if coordinator is not None:
                self.counts[kind] += 1
                getattr(self, kind)(coordinator)

    def coordinator(self, pid):
        """It dies, or stands still."""
        kill(pid, self.draw.choice([signal.SIGKILL, signal.SIGSTOP]))

    def port(self, pid):
        """It dies, and another process has its port for a while."""
        ports, taken = listening(pid), []
        kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 0.05
        while time.monotonic() < deadline and not taken:
            for port in ports:
                other = socket.socket()
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    other.bind(("127.0.0.1", port))
                    other.listen()
                    taken.append(other)
                except OSError:
                    other.close()
        self.over.wait(3)
        for other in taken:
            other.close()

    def disk(self, _):
        """It is full for two seconds."""
        hog = pathlib.Path(self.folder, "hog")
        with contextlib.suppress(OSError), hog.open("wb", buffering=0) as out:
            while True:
                out.write(bytes(1 << 12))
        self.over.wait(2)
        hog.unlink(missing_ok=True)

    def park(self, pid):
        """It dies while the launcher stands still: the ranks save, and end with 75."""
        kill(self.launcher, signal.SIGSTOP)
        kill(pid, signal.SIGKILL)
        time.sleep(PARK_AFTER_S + 3)
        kill(self.launcher, signal.SIGCONT)


def kill(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def children(pid):
    """Their ids and command lines."""
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                yield int(child), pathlib.Path(f"/proc/{child}/cmdline").read_bytes()


def listening(pid):
    """The TCP ports that the process listens at."""
    sockets = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(link))
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]


@contextlib.contextmanager
def small_disk(folder, size):
    """The folder on a disk of this size, which can be filled."""
    pathlib.Path(folder).mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
