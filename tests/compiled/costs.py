"""What a step of a compiled model allocates and copies, beside what tests/costs allows of one in C++."""
import json
import subprocess

from ring import FOLDER, ROOT, passed, troupe

PROBE = ROOT / "build/release/tests/costs/step_cost_probe"
LAYERS, WIDTH = 9, 48


def layers():
    """The probe's model."""
    import torch
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    return model, lambda m, batch: m(batch["input"]).square().mean(), {"input": torch.randn(4, WIDTH)}


def check():
    path = FOLDER / "costs.tm"
    ran = troupe("compile", "entry.py:layers", "-o", path)
    if not passed("costs: the probe's model is compiled", ran.returncode == 0, ran.stderr[-300:]):
        return
    run = subprocess.run([str(PROBE), "2", "60", str(LAYERS), "each", str(path)], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    found, allowed = json.loads(run.stdout), json.loads((ROOT / "tests/costs/costs.json").read_text())
    for name, count in found.items():
        passed(f"costs {name} of a step: {count}, allowed {allowed[name]}", count <= allowed[name])
