"""`troupe debug` finds each planted mistake in the step that it belongs to, and nothing in a sound program: debug_test.py TROUPE PLANTED NAME"""
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from share import in_share  # noqa: E402

# mistake -> (step, verdict, what the finding says, flags)
MISTAKES = {
    # The ten of docs/troubleshooting.md, in its order.
    "backward_first": (1, "fail", "rank.distribute(model)", ""),
    "same_samples": (5, "fail", "samples", ""),
    "same_order": (5, "warn", "same order after 4 steps", ""),
    "batch_norm": (5, "warn", "BatchNorm 'norm'", ""),
    "other_device": (4, "fail", "target is on fake:0", ""),
    "hard_coded_device": (2, "fail", "device: 'cuda:0'", "--device cuda:0"),
    "other_values": (4, "warn", "in.weight has other initial values on rank 1", ""),
    "step_each_micro_batch": (1, "fail", "1 of 2 micro-batches", "--grad_accum_steps 2"),
    "unused": (5, "warn", "unused.weight gets no gradient", ""),
    "not_kept": (1, "fail", "resume is 'latest'", "--resume latest --checkpoint_dir checkpoints"),
    # Others.
    "wrong_reduction": (5, "fail", "comm_hook sum makes 2 times their mean", "--comm_hook sum"),
    "other_data": (4, "fail", "data set of 192 samples", ""),
    "frozen_on_one_rank": (4, "fail", "out.bias (2) Float frozen on rank 1", ""),
    "mean_of_means": (5, "fail", "as if they counted equally", ""),
    "rising_loss": (1, "fail", "the loss rises", ""),
    "left_early": (3, "fail", "left the training loop", ""),
    "own_collective": (3, "fail", "barrier", ""),
    "not_finite": (5, "fail", "not finite", ""),
    "own_dropout": (5, "warn", "draws different random numbers", ""),
    "own_buffer": (4, "warn", "buffer seen differs between ranks 0 and 1", "--broadcast_buffers false"),
    "half_loss": (4, "warn", "the loss is BFloat16", ""),
}
SOUND = {"sound": "", "dropout_module": "", "fsdp": "--strategy fsdp", "adamw": "--optimizer adamw --lr 0.01 --grad_accum_steps 2"}


def debug(troupe, planted, mistake, flags, folder):
    done = subprocess.run([troupe, "debug", "--json", planted, "--mistake", mistake, *flags.split()],
                          cwd=folder, capture_output=True, text=True, timeout=540, stdin=subprocess.DEVNULL)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["findings"]


def main():
    troupe, planted, name = sys.argv[1:]
    if name != "sound" and not in_share(0.3, f"debug {name}"):
        print(f"not in this commit's share: {name}")
        return
    with tempfile.TemporaryDirectory() as folder:
        if name in SOUND:
            code, findings = debug(troupe, planted, "" if name != "dropout_module" else name, SOUND[name], folder)
            wrong = [finding for finding in findings if finding["verdict"] != "ok" and not finding["step"] == 2]
            steps = sorted({finding["step"] for finding in findings})
            assert code == 0 and not wrong and steps == [1, 2, 3, 4, 5, 6], json.dumps(findings, indent=1)
        else:
            step, verdict, says, flags = MISTAKES[name]
            code, findings = debug(troupe, planted, name, flags, folder)
            found = [finding for finding in findings if finding["step"] == step and finding["verdict"] == verdict]
            text = json.dumps(findings, indent=1)
            assert any(says in f["found"] + "; " + f["remedy"] for f in found), text
            assert all(f["page"] for f in found), text
            others = [f for f in findings if f["verdict"] in ("warn", "fail") and f["step"] not in (step, 2)]
            assert not others, text
            assert code == (1 if verdict == "fail" else 0), text
        left = list(pathlib.Path(folder).iterdir())
        assert not left, f"it wrote {left}"


if __name__ == "__main__":
    main()
