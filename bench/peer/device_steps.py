"""PyTorch's side of docs/gpu.md's rows: one rank on one device, DDP or FSDP2 (fully_shard around each layer), driven by lines.

    python3 bench/peer/device_steps.py --job gpt124m --batch 8 [--strategy ddp|fsdp] [--precision fp64|fp32|bf16] [--device cuda|cpu]

`settings` answers the names of what may be set, `use NAME` begins anew with that one, `block N` trains N steps and answers `losses L1 .. LN`
and `step_ms T`, the block's time by N, the device's end included; see bench/README.md. Nothing but torch is needed.
"""
import argparse
import gc
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import blocks
import jobs

SETTINGS = {
    "ddp": {f"bucket_{mb}_MB{'_static_graph' if static else ''}": {"bucket_cap_mb": mb, "static_graph": static}
            for mb in (25, 100) for static in (False, True)},
    "fsdp": {"reshard": {"reshard_after_forward": True}, "keep": {"reshard_after_forward": False}},
}


class Trainer:
    def __init__(self, options, setting):
        self.device = torch.device(options.device)
        self.autocast = options.precision == "bf16" and options.strategy == "ddp"
        self.steps = 0
        with torch.device(self.device):  # made there: on the host GPT-124M's values take seconds, for each setting
            self.job = jobs.JOBS[options.job](0, options.batch)
        dtype = torch.float64 if options.precision == "fp64" else torch.float32
        self.job.model.to(self.device, dtype)
        self.inputs, self.targets = ([tensor.to(self.device, dtype if tensor.is_floating_point() else None) for tensor in tensors]
                                     for tensors in (self.job.inputs, self.job.targets))
        self.model = self.wrap(options, SETTINGS[options.strategy][setting])
        self.optimizer = jobs.make_optimizer(options.job, self.model.parameters())

    def wrap(self, options, setting):
        if options.strategy == "ddp":
            return DistributedDataParallel(self.job.model, gradient_as_bucket_view=True, broadcast_buffers=False, **setting)
        mesh = init_device_mesh(self.device.type, (1,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if options.precision == "bf16" else MixedPrecisionPolicy()
        for unit in [*self.job.units, self.job.model]:
            fully_shard(unit, mesh=mesh, mp_policy=policy, **setting)
        return self.job.model

    def synchronise(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def step(self):
        batch = self.steps % jobs.BATCHES
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            loss = self.job.loss(self.model(self.inputs[batch]), self.targets[batch])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return loss.detach()

    def block(self, count):
        self.synchronise()
        begin = time.perf_counter()
        losses = [self.step() for _ in range(int(count))]  # read after the block: the host runs ahead
        self.synchronise()
        ms = (time.perf_counter() - begin) * 1e3 / len(losses)
        return "losses " + " ".join(f"{loss.item():.17g}" for loss in losses) + f"\nstep_ms {ms:.9g}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", choices=jobs.JOBS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--strategy", choices=SETTINGS, default="ddp")
    parser.add_argument("--precision", choices=("fp64", "fp32", "bf16"), default="fp32")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    on_gpu = torch.device(options.device).type == "cuda"
    torch.backends.cudnn.benchmark = True
    # A store of its own: one rank needs no port.
    dist.init_process_group("nccl" if on_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    settings = list(SETTINGS[options.strategy])
    trainer = Trainer(options, settings[0])

    def use(name):
        nonlocal trainer
        trainer = None
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
        trainer = Trainer(options, name)
        return "using " + name

    # Alone, so nobody is told: blocks.serve broadcasts objects, which needs numpy.
    answers = {"settings": lambda _: "settings " + " ".join(settings), "use": use, "block": lambda count: trainer.block(count)}
    blocks.serve_alone(answers)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
