"""TorchFT's side of bench/recover.py: the steps of ddp_steps.py by four replica groups of one rank each, at TorchFT's defaults.

Without arguments it starts the lighthouse and the groups, and a group that died again, as torchrun would for each group.
"""
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

RANKS = 4
# Nothing outlives who started it: PR_SET_PDEATHSIG.
ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def say(text):
    os.write(1, (text + "\n").encode())  # at once: the groups share a pipe


def supervise():
    port = free_port()
    lighthouse = subprocess.Popen([str(pathlib.Path(sys.executable).parent / "torchft_lighthouse"), "--min_replicas", "2", "--quorum_tick_ms", "100",
                                   "--join_timeout_ms", "10000", "--bind", f"[::]:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    environment = dict(os.environ, TORCHFT_LIGHTHOUSE=f"http://localhost:{port}")
    start = lambda rank: subprocess.Popen([sys.executable, __file__, str(rank)], env=environment, stderr=subprocess.DEVNULL)
    groups = [start(rank) for rank in range(RANKS)]

    def stop(*_):
        for process in [*groups, lighthouse]:
            process.kill()
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    while os.getppid() != 1:
        for rank, group in enumerate(groups):
            if group.poll() is not None:
                groups[rank] = start(rank)
        time.sleep(0.1)
    stop()


def train(rank):
    import torch
    from torch.distributed import TCPStore
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    say(f"rank {rank} pid {os.getpid()}")
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    sgd = torch.optim.SGD(inner.parameters(), lr=0.01, momentum=0.9)

    def load(state):
        inner.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    manager = Manager(pg=ProcessGroupGloo(), load_state_dict=load, state_dict=lambda: {"model": inner.state_dict(), "optimizer": sgd.state_dict()},
                      min_replica_size=2, rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port, replica_id=f"group_{rank}")
    model = DistributedDataParallel(manager, inner)
    optimizer = Optimizer(manager, sgd)
    while True:
        time.sleep(0.005)
        before = manager.current_step()
        optimizer.zero_grad()
        model(torch.randn(4, 2)).square().mean().backward()
        optimizer.step()
        if manager.current_step() > before:  # committed
            say(f"rank {rank} step {manager.current_step()}")


if __name__ == "__main__":
    train(int(sys.argv[1])) if len(sys.argv) > 1 else supervise()
