#!/usr/bin/env bash
# try_python_models.sh WHEEL DEB: docs/python_models.md, as it stands there, on a Debian 12 that has nothing but python3, g++ and the wheel
# with PyTorch: compile, pack, train while a rank is killed, and evaluate the best weights in Python. Then on a second one that has the deb and
# LibTorch's libraries, no Python and no compiler: the same file and data give the same losses.
set -euo pipefail
wheel=$(readlink -f "$1")
deb=$(readlink -f "$2")
source=$(cd "$(dirname "$0")/../.." && pwd -P)
. "$source/tests/package/bare_debian.sh"
compiling=$source/build/package/try-compiling
training=$source/build/package/try-training
trap 'rm -rf "$compiling" "$training"' EXIT

timed() {  # timed WHAT COMMAND..
  local begin=$SECONDS
  "${@:2}"
  say "$1: $((SECONDS - begin)) s"
}

# Rank 1 dies in step 40, in the collective.
fault='TROUPE_FAULT=slot=1,step=40,at=collective'
check_run='grep -q "generation 2: 1 rank replaced" out && grep -q "best held-out loss" out'

make_root "$compiling"
mkdir -p "$compiling/work/page"
/usr/bin/python3 "$source/tests/package/page_files.py" "$source/docs/python_models.md" "$compiling/work/page"
cp "$wheel" "$compiling/work/"
cat >"$compiling/work/page/evaluate.py" <<'PYTHON'
import json, torch
from data import make as make_data
from gpt import loss, make
model = make()[0]
exec(open("block1.py").read())  # the page's: load_state_dict
model.eval()
rows = [sample for sample in make_data()[1]]
with torch.no_grad():
    mine = loss(model, {name: torch.stack([row[name] for row in rows]) for name in rows[0]}).item()
records = [json.loads(line) for line in open("runs/latest/metrics.jsonl")]
best = min(r["validation_metrics/loss"] for r in records if r["kind"] == "validation")
print(f"held-out loss of best.safetensors in Python {mine:.9f}, in Troupe's records {best:.9f}")
assert abs(mine - best) < 1e-5 * best
PYTHON
timed "python3 and g++" install_inside "$compiling" python3-venv g++
trust "$compiling"
timed "the wheel, PyTorch and safetensors" inside "$compiling" "python3 -m venv /venv && /venv/bin/pip install -q --no-compile /work/$(basename "$wheel") safetensors"
timed "compile" inside "$compiling" "cd /work/page && export PATH=/venv/bin:\$PATH && bash -eux block1.sh && [ -z \"\$(ls /tmp | grep -v torchinductor)\" ]"
timed "pack" inside "$compiling" "cd /work/page && export PATH=/venv/bin:\$PATH && bash -eux block2.sh"
timed "train, with a death" inside "$compiling" "cd /work/page && export PATH=/venv/bin:\$PATH $fault && bash -eux -o pipefail block3.sh 2>&1 | tee out && $check_run"
timed "evaluate" inside "$compiling" "cd /work/page && /venv/bin/python3 evaluate.py && [ -z \"\$(ls /tmp | grep -v torchinductor)\" ]"

make_root "$training"
mkdir "$training/work/page"
cp -r "$compiling/work/page/"{gpt.tm,data,block3.sh} "$training/work/page/"
cp "$deb" "$training/work/"
timed "the deb" install_inside "$training" "/work/$(basename "$deb")"
site=$(echo "$source"/.venv/lib/python3*/site-packages)
mkdir -p "$training/opt/libtorch/torch"
cp -r "$site/torch/lib" "$training/opt/libtorch/torch/"
cp -r "$site/nvidia" "$training/opt/libtorch/"
ln -sfn /opt/libtorch/torch "$training/usr/lib/troupe/torch"
timed "train without Python and without a compiler" inside "$training" "cd /work/page && ! command -v python3 g++ cc && export $fault && bash -eux -o pipefail block3.sh 2>&1 | tee out && $check_run && [ -z \"\$(ls /tmp | grep -v torchinductor)\" ]"
/usr/bin/python3 - "$compiling" "$training" <<'PYTHON'
import json, sys
def losses(root):
    lines = [json.loads(line) for line in open(f"{root}/work/page/runs/latest/metrics.jsonl")]
    return {(r["kind"], r["step"]): r.get("loss_metrics/global_avg_loss", r.get("validation_metrics/loss")) for r in lines if r["kind"] in ("train", "validation")}
a, b = (losses(root) for root in sys.argv[1:])
assert a and a == b, sorted(set(a.items()) ^ set(b.items()))[:6]
print(f"{len(a)} losses are the same to the last bit on both machines")
PYTHON
say "docs/python_models.md is good"
