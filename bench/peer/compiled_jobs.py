"""The jobs of the rows, for `troupe compile bench/peer/compiled_jobs.py:gpt -o build/bench-compiled/gpt.tm`."""
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import jobs  # noqa: E402


def made(job):
    return job.model, lambda model, batch: job.loss(model(batch["input"]), batch["target"]), {"input": job.inputs[0], "target": job.targets[0]}


class Scales(torch.nn.Module):
    """Twelve parameters, as a transformer's layer has, and next to nothing to compute."""

    def __init__(self):
        super().__init__()
        self.scales = torch.nn.ParameterList(torch.ones(1) for _ in range(12))

    def forward(self, x):
        return x * sum(self.scales)


def empty_block():
    model = torch.nn.Sequential(Scales(), Scales())
    return model, lambda m, batch: m(batch["input"]).square().mean(), {"input": torch.ones(4, 2)}


def mlp(): return made(jobs.Mlp(0, 4))
def gpt(): return made(jobs.GptJob(0, 2))
def resnet(): return made(jobs.JOBS["resnet"](0, 4))
def resnet_channels_last(): return made(jobs.channels_last(jobs.JOBS["resnet"](0, 4)))
