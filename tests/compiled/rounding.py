"""`--check` where rounding decides about a gradient."""
import dataclasses

import torch
from torch import nn

from ring import passed
from troupe import source
from troupe import check as troupe_check


class Edge(nn.Module):
    """A ReLU whose first unit gets `offset`, next to nothing, from the first sample."""

    def __init__(self, offset):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
        with torch.no_grad():
            self.a.weight[0] = torch.tensor([1.0, -1.0, 0.0])
            self.a.bias[0] = offset

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def check():
    batch = torch.tensor([[0.3, 0.3, 0.1], [0.5, -0.2, 0.4]]), torch.tensor([0, 1])
    described = source.checked((Edge(1e-9), batch))
    other = source.checked((Edge(-1e-9), batch))
    real, off = troupe_check.compiled_results, 0.0

    def other_results(checked, _):
        results = troupe_check.eager_results(dataclasses.replace(other, fields=checked.fields), [])
        return {**results, "gradient:b.weight": results["gradient:b.weight"] + off}

    plain = max((a - b).abs().max().item() for a, b in zip(other_results(described, "").values(), troupe_check.eager_results(described, []).values()))
    troupe_check.compiled_results = other_results
    try:
        passed(f"models: a ReLU that rounding decides about makes {plain:.1e}", plain > 1e-2)
        try:
            passed(f"models: and that is right: {troupe_check.check(described, '')}", True)
        except troupe_check.Refusal as refusal:
            passed("models: and that is right", False, str(refusal))
        off = 0.01
        try:
            passed("models: another difference beside it is found", False, troupe_check.check(described, ""))
        except troupe_check.Refusal as refusal:
            passed(f"models: another difference beside it is found: {refusal}", "gradient:b.weight differs" in str(refusal))
    finally:
        troupe_check.compiled_results = real
