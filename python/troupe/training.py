"""`troupe.train`: compile, pack and launch, in one call."""
import contextlib
import datetime
import itertools
import pathlib
import subprocess

from .command import program
from .refusal import Refusal


def train(model, data, loss=None, *, nproc=1, folder=None, resume=False, blocks=(), dynamic=(), autocast=None, recompute=1.0, workers=0, passes=1,
          launch=(), **settings):
    """Trains `model` by Troupe's ranks, and gives it their weights. Returns the folder.

    model: a torch.nn.Module on the CPU. It is compiled into FOLDER/model.tm.
    data: a data set, or a pair (to train on, held out), as `troupe pack` takes them; packed into FOLDER/data with `workers` and `passes`.
    loss: loss(model, batch) returns a mean, (sum, count) or a dict, as for `troupe compile`; None: cross entropy of (input, target).
    nproc: ranks on this machine; launch=["--hosts", "a:2,b:2"]: more words for `troupe launch`.
    folder: a new one; None: runs/<class>-<time>. With resume=True one that was interrupted: its model and data are used as they are.
    blocks, recompute: as for `troupe compile`; dynamic: pairs (field, dimension); autocast="bfloat16": trains with use_amp.
    settings: of the config, by name: epochs=3, lr=1e-3, strategy="fsdp".

    The weights are those of the last step; FOLDER/run has records and checkpoints, the best one too. Raises Refusal for what cannot be compiled
    or packed, and RuntimeError if a job ends before its time. All hosts have to see FOLDER under the same name.
    """
    program()  # before what takes long
    folder = pathlib.Path(folder or f"runs/{type(model).__name__}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    model_path, data_path, run = folder / "model.tm", folder / "data", folder / "run"
    if resume and not (model_path.exists() and (data_path / "packed.json").exists()):
        raise Refusal(f"there is nothing to resume in {folder}: no model.tm, or no data")
    if not resume:
        if folder.exists() and any(folder.iterdir()):
            raise Refusal(f"{folder} is not empty; give another folder, or resume=True to go on with it")
        prepare(model, data, loss, model_path, data_path, workers=workers, passes=passes, blocks=blocks, dynamic=dynamic, autocast=autocast,
                recompute=recompute)
    if autocast:
        settings = {"use_amp": True, **settings}
    launched = ["launch", "--nproc", str(nproc), "--run-dir", str(run), *launch]
    wanted = ["train", "--model", str(model_path), "--data", "packed", "--data_dir", str(data_path), *(["--resume", "auto"] if resume else [])]
    call([*launched, program(), *wanted, *words(settings)])
    take_weights(model, run, folder / "last.safetensors")
    return folder


def prepare(model, data, loss, model_path, data_path, *, workers, passes, **options):
    from . import build_model, source
    from .compile import quiet_and_alone
    from .pack import pack_parts, train_and_held_out
    train_on, held_out = train_and_held_out(data)
    described = source.checked((model, loss, example(train_on)))
    folder = model_path.parent
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with quiet_and_alone():
            print(build_model.build(described, model_path, say=lambda line: print(line, flush=True), **options), flush=True)
        print(pack_parts(train_on, held_out, data_path, workers=workers, passes=passes), flush=True)
    except Refusal:
        model_path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # what is packed stays
            folder.rmdir()
        raise


def example(data):
    """The batch of the first samples."""
    import torch
    from .pack import by_number, fields_of
    if not by_number(data) and iter(data) is data:
        raise Refusal("the data is an iterator, which can be read once only; give a data set, or a list")
    first = [data[i] for i in range(min(4, len(data)))] if by_number(data) else list(itertools.islice(data, 4))
    if len(first) < 2:
        raise Refusal(f"the data has too few samples, {len(first)}; at least 2 are needed")
    rows = [fields_of(sample, i) for i, sample in enumerate(first)]
    try:
        fields = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    except (KeyError, RuntimeError):
        raise Refusal("the first samples differ in names or shapes; pad or cut them to the same shape") from None
    return fields if isinstance(first[0], dict) else tuple(fields.values())


def words(settings):
    """The config's settings as words of a command line."""
    text = {True: "true", False: "false"}
    return [word for name, value in settings.items() for word in (f"--{name}", text[value] if isinstance(value, bool) else str(value))]


def call(arguments):
    ended = subprocess.run([program(), *arguments]).returncode
    if ended != 0:
        raise RuntimeError(f"troupe {arguments[0]} ended with exit code {ended}; see its output for the cause")


def take_weights(model, run, path):
    from .model_file import read_safetensors
    call(["checkpoint", "convert", str(run / "checkpoints"), str(path)])
    model.load_state_dict(read_safetensors(path))
