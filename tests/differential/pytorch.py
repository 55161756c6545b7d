#!/usr/bin/env python3
"""A drawn job with Python's PyTorch. Jobs, one a line of JSON on standard input; for each a line of JSON on standard output: its steps,
states and held-out loss as in outcome.hpp, or {"not_run": why}."""

import copy
import json
import math
import pathlib
import sys
import types

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from dimensions import APART, SIMPLEST, data_ranks  # noqa: E402
from pytorch_net import CHANGE_STEP, STEPS, Net, Place, optimizer_of, rate_of, samples_at, target_of, uneven_batches  # noqa: E402

RESUME_STEP, HELD_OUT = 4, 5000


def why_not(job):
    """Why this file does not cover the job; empty: it does."""
    for name, value in (("shuffle", False), ("comm_hook", "none"), ("amp", "none"), ("switch_at", "")):
        if getattr(job, name) != value:
            return f"{name} is {getattr(job, name)}"
    return f"strategy is {job.strategy}" if job.strategy in APART or job.resume_strategy in APART else ""


class Run:
    def __init__(self, job):
        self.job = job
        self.net = Net(job)
        self.net.freeze(0)
        self.optimizer = optimizer_of(job, self.net)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        per_epoch = self.per_epoch()
        self.epochs = math.ceil(STEPS / per_epoch) if per_epoch else 1
        self.step_number = self.epoch = self.in_epoch = self.total = 0
        self.outcome = {"steps": {}, "states": {}, "held_out_loss": 0.0}

    def run(self):
        resumes = self.job.event == "resume"
        self.phase(RESUME_STEP if resumes else 0)
        if resumes:  # at the same sample, as far as whole batches go
            self.job.ranks = self.job.resume_ranks or self.job.ranks
            batch = self.job.resume_batch or self.job.batch_size
            self.in_epoch = self.in_epoch * self.job.batch_size // batch
            self.job.batch_size = batch
            self.job.strategy = self.job.resume_strategy or self.job.strategy
            self.phase(0)
        return self.outcome

    def per_epoch(self):
        whole, rest = divmod(self.job.samples, self.job.batch_size)
        return whole if self.job.drop_last else whole + (rest > 0)

    def phase(self, until):
        uneven, per_epoch = self.job.feed == "uneven", self.per_epoch()
        last = STEPS if uneven else self.step_number + self.epochs * per_epoch - self.epoch * per_epoch - self.in_epoch
        self.total = (self.job.max_steps or last) if uneven else min(last, self.job.max_steps or last)
        last = min(last, self.total, until or last)
        while self.step_number < last:
            self.step(self.uneven() if uneven else self.batches())
            self.in_epoch += 1
            if not uneven and self.in_epoch == per_epoch:
                self.epoch, self.in_epoch = self.epoch + 1, 0
                self.hold_out()
        if until == 0 and self.in_epoch > 0 and not uneven:
            self.hold_out()
        self.keep_state()

    def uneven(self):
        batches = [uneven_batches(self.job, rank) for rank in range(self.job.ranks)]
        return [[of_rank[self.step_number] if self.step_number < len(of_rank) else [] for of_rank in batches]]

    def batches(self):
        """The samples of a step by micro-batch and rank. An epoch's last batch is cut as a whole one is."""
        job, ranks = self.job, data_ranks(self.job.strategy, self.job.ranks)
        begin, whole = self.in_epoch * job.batch_size, job.batch_size // job.accumulate
        rows = min(job.batch_size, job.samples - begin)
        batches = []
        for m in range(job.accumulate):
            first, last = begin + rows * m // job.accumulate, begin + rows * (m + 1) // job.accumulate
            cuts = [first + (last - first) * (whole * rank // ranks) // whole for rank in range(ranks + 1)]
            batches.append([[(p + 1) % job.samples if p == job.bad_sample else p for p in range(*cut)] for cut in zip(cuts, cuts[1:])])
        return batches

    def factor(self):
        """The schedule's, of each group's own rate."""
        job, step = self.job, self.step_number
        if step < job.warmup_steps:
            return (step + 1) / (job.warmup_steps + 1)
        if job.schedule in ("cosine", "floor"):
            least = 0.2 if job.schedule == "floor" else 0
            done = min(1, (step - job.warmup_steps) / max(1, self.total - job.warmup_steps))
            return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * done))
        return 0.5 ** (step // self.per_epoch()) if job.schedule == "step" else 1

    def loss_of(self, output, target):
        """The sum of cross entropies, how many count, how many were right."""
        scores, labels = output.flatten(0, -2), target.flatten()
        counts = labels != -100
        correct = (scores.argmax(1) == labels) & counts
        return self.job.scale * F.cross_entropy(scores, labels, reduction="sum"), int(counts.sum()), int(correct.sum())

    def step(self, batches):
        job, net = self.job, self.net
        indices = [i for micro_batch in batches for mine in micro_batch for i in mine]
        counted = sum(int((target_of(job, i) != -100).sum()) for i in indices)
        before = copy.deepcopy(dict(net.named_buffers()))
        net.freeze(self.step_number)
        self.optimizer.zero_grad()
        loss = correct = 0
        for m, micro_batch in enumerate(batches):
            parts = [(rank, mine) for rank, mine in enumerate(micro_batch) if mine]
            # Each rank's statistics are its own in a BatchNorm that is not synchronised, and rank 0's are kept.
            alone = job.norm == "batch" and not job.sync_batchnorm
            for forward in ([[part] for part in parts] if alone else [parts] if parts else []):
                buffers = copy.deepcopy(dict(net.named_buffers()))
                inputs, targets = samples_at(job, [i for _, mine in forward for i in mine])
                output = net(inputs, Place(self.step_number, m, [(rank, mine[0], len(mine)) for rank, mine in forward]))
                of_part, _, right = self.loss_of(output, targets)
                of_part = of_part / max(1, counted)
                if job.event == "infinite" and self.step_number == CHANGE_STEP and forward[0][0] == 0:
                    of_part = of_part * math.inf
                of_part.backward()
                loss, correct = loss + of_part.item(), correct + right
                if alone and forward[0][0] != 0:
                    net.load_state_dict(buffers, strict=False)
        committed = math.isfinite(loss) and counted > 0
        norm = nn.utils.clip_grad_norm_(net.parameters(), job.clip_norm).item() if job.clip_norm > 0 else 0
        factor = self.factor()
        for group, rate in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = rate * factor
        if committed:
            self.optimizer.step()
        else:
            net.load_state_dict(before, strict=False)
        rate = (self.rates[0] if job.optimizer.startswith("torch.") else rate_of(job)) * factor
        self.outcome["steps"][self.step_number] = {
            "committed": committed, "loss": loss, "samples": len(indices), "correct": correct, "norm": norm, "rate": rate}
        self.step_number += 1
        if self.step_number % 5 == 0:
            self.keep_state()

    @torch.no_grad()
    def hold_out(self):
        if self.job.validate == 0:
            return
        inputs, targets = samples_at(self.job, [HELD_OUT + i for i in range(self.job.validate) if i != self.job.bad_sample])
        self.net.eval()
        loss, counted, _ = self.loss_of(self.net(inputs, Place(self.step_number, 0, [(0, HELD_OUT, len(inputs))])), targets)
        self.net.train()
        self.outcome["held_out_loss"] = loss.item() / max(1, counted)

    def keep_state(self):
        state = {"model." + name: value for name, value in [*self.net.named_parameters(), *self.net.named_buffers()]}
        for name, parameter in self.net.named_parameters():
            state.update({f"optimizer.{name}.{slot}": value for slot, value in self.optimizer.state.get(parameter, {}).items()})
        self.outcome["states"][self.step_number] = {name: value.detach().double().flatten().tolist() for name, value in state.items()}


def outcome_of(job):
    """Of a job as a dictionary, of which what is missing has its simplest value."""
    job = types.SimpleNamespace(**{**SIMPLEST, "seed": 42, **job})
    why = why_not(job)
    return {"not_run": why} if why else Run(job).run()


def plain(value):
    """With the numbers that JSON lacks as "nan", "inf" and "-inf"."""
    if isinstance(value, dict):
        return {str(key): plain(of) for key, of in value.items()}
    if isinstance(value, list):
        return [plain(of) for of in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(plain(outcome_of(json.loads(line)))), flush=True)
