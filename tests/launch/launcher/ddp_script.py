"""What a script of torch.distributed expects of its launcher; for launcher_test.cpp. With torch: a gradient is averaged by
DistributedDataParallel. Without: the ranks meet at MASTER_ADDR:MASTER_PORT, as torch's store would have them."""
import os
import socket
import sys
import time

rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
assert 0 <= local_rank < int(os.environ["LOCAL_WORLD_SIZE"]) and 0 <= rank < world_size
assert int(os.environ["GROUP_RANK"]) < int(os.environ["GROUP_WORLD_SIZE"])

if sys.argv[1] == "torch":
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    (model(torch.full((1, 1), float(rank)))).sum().backward()
    total = model.module.weight.grad.item() * world_size
    dist.destroy_process_group()
elif rank == 0:
    with socket.create_server(address) as server:
        server.settimeout(30)
        total, others = 0, []
        while len(others) < world_size - 1:
            other = server.accept()[0]
            total += int(other.makefile().readline())
            others.append(other)
        for other in others:
            other.sendall(f"{total}\n".encode())
else:
    deadline = time.monotonic() + 30
    while True:
        try:
            store = socket.create_connection(address, timeout=30)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    store.sendall(f"{rank}\n".encode())
    total = int(store.makefile().readline())
assert total == world_size * (world_size - 1) / 2, total
print(f"rank {rank} of {world_size} met the others")
