"""The jobs of the rows, for `troupe compile bench/peer/compiled_jobs.py:gpt -o build/bench-compiled/gpt.tm`."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import jobs  # noqa: E402


def made(job):
    return job.model, lambda model, batch: job.loss(model(batch["input"]), batch["target"]), {"input": job.inputs[0], "target": job.targets[0]}


def mlp(): return made(jobs.Mlp(0, 4))
def gpt(): return made(jobs.GptJob(0, 2))
def resnet(): return made(jobs.JOBS["resnet"](0, 4))
def resnet_channels_last(): return made(jobs.channels_last(jobs.JOBS["resnet"](0, 4)))
