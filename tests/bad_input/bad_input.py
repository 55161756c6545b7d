"""Every bad input of docs/bad_input.md, as a user gives it: bad_input.py TROUPE CLASSIFIER GPT [--no-memory] [NAME..]

Each must end in one line that names file and field, a non-zero exit code that fits, no more memory than twice the input and 64 MiB, and the
input as it was. Prints one line per case that is taken otherwise, and exits with 1 if there was one. --no-memory: of a program that is built with
a sanitizer memory is not judged.
"""
import gzip
import json
import os
import pathlib
import pickle
import re
import shlex
import shutil
import struct
import sys
import tempfile

from case import Case, faults_of, run

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from made_files import png, tar, torch_file, torch_tensor
from share import in_share

arguments = sys.argv[1:]
judges_memory = "--no-memory" not in arguments
arguments = [argument for argument in arguments if argument != "--no-memory"]
TROUPE, CLASSIFIER, GPT, ONLY = arguments[0], arguments[1], arguments[2], arguments[3:]
SHORT = ["--max_steps", "2", "--batch_size", "4", "--checkpoint_dir", "c", "--run_dir", "r", "--synthetic_size", "16", "--image_size", "8"]
LONG = "1" * 70_000

CASES = []


def case(number, name, command, code, *says, make=None, **more):
    CASES.append(Case(number, name, [str(word) for word in command], code, list(says), make, **more))


def text_file(name, text):
    return lambda folder: (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def together(*makers):
    def make(folder):
        for maker in makers:
            maker(folder)
    return make


# ---------------------------------------------------------------- flags and settings


def flag(number, *words, says=(), code=2, **more):
    case(number, "flags " + " ".join(word[:20] for word in words), [CLASSIFIER, *SHORT, *words], code, words[0].lstrip("-").split("=")[0], *says, **more)


def config(number, what, text, *says, code=2, **more):
    case(number, f"config, {what}", [CLASSIFIER, *SHORT, "--config", "job.toml"], code, *says, make=text_file("job.toml", text), **more)


def launch(number, *words, says=(), code=2, **more):
    case(number, "launch " + " ".join(word[:20] for word in words), [TROUPE, "launch", *words, CLASSIFIER, *SHORT], code, *says, **more)


flag(1, "--nope", "1", says=["there is no setting"])
flag(1, "--nope", says=["no value"])
launch(1, "--nope", says=["--nope"])
case(1, "verb", [TROUPE, "lunch"], 2, "lunch")
case(1, "verb of checkpoint", [TROUPE, "checkpoint", "lss", "."], 2, "lss")
flag(2, "--bath_size", "3", says=["did you mean batch_size?"])
config(2, "misspelt key", "[data]\nbatchsize = 1\n", "job.toml:2", "did you mean batch_size?")
config(2, "key of another section", "[optimizer]\nbatch_size = 1\n", "job.toml:2", "optimizer.batch_size")
config(2, "unknown section", "[datas]\nbatch_size = 1\n", "job.toml:1", "datas")
case(2, "environment", [CLASSIFIER, *SHORT], 2, "TROUPE_BATHC_SIZE", "did you mean", environment={"TROUPE_BATHC_SIZE": "3"})
config(3, "key twice", "[data]\nbatch_size = 1\nbatch_size = 2\n", "job.toml:3", "batch_size")
config(3, "section twice", "[data]\nbatch_size = 1\n[data]\nprefetch = 2\n", "job.toml:3", "data")
for value in ("ten", "", "1.5", "0x10", "1e3", "true"):
    flag(4, "--batch_size", value, says=["whole number"])
flag(4, "--lr", "fast", says=["number"])
flag(4, "--shuffle", "maybe", says=["true or false"])
flag(4, "--data", "imagenet", says=["imagenet"])
flag(4, "--amp_dtype", "fp8", says=["fp8"])
flag(4, "--comm_hook", "zip", says=["zip"])
flag(4, "--fsdp_wrap", "size:x", "--strategy", "fsdp", says=["size:x"])
flag(4, "--batch_size", says=["value"], code=2)
config(4, "text for a number", "[data]\nbatch_size = \"ten\"\n", "job.toml:2", "batch_size", "ten")
config(4, "list for a number", "[data]\nbatch_size = [1]\n", "job.toml:2", "batch_size")
config(4, "number for a section", "data = 3\n", "job.toml:1", "data")
config(4, "date for a number", "[data]\nbatch_size = 1979-05-27\n", "job.toml:2", "batch_size")
case(4, "environment", [CLASSIFIER, *SHORT], 2, "TROUPE_LR", "fast", environment={"TROUPE_LR": "fast"})
for name in ("batch_size", "ranks", "collective_timeout", "first_bucket_mb", "grad_accum_steps", "epochs", "num_classes", "lr_step_epochs", "keep_last"):
    for value in ("0", "-1"):
        flag(5, f"--{name}", value, says=["number"])
flag(5, "--bucket_cap_mb", "-1", says=["number"])  # 0 is its own choice
for words in (["--nproc", "0"], ["--nproc", "-1"], ["--nproc", "1", "--spares", "-1"], ["--nproc", "2", "--replace-timeout", "-1"], ["--nproc", "2", "--min-ranks", "0"]):
    launch(5, *words, says=[words[-2], words[-1]])
for value in ("9223372036854775808", "-9223372036854775809", "99999999999999999999999", LONG):
    flag(6, "--batch_size", value, says=["whole number"])
    launch(6, "--nproc", value, says=["--nproc"])
flag(6, "--lr", "1e400", says=["1e400"])
config(6, "number too large", "[data]\nbatch_size = 9223372036854775808\n", "job.toml:2")
config(6, "1e400", "[optimizer]\nlr = 1e400\n", "job.toml:2")
for value in ("nan", "inf", "-inf", "-nan"):
    flag(7, "--lr", value, says=["number"])
    config(7, value, f"[optimizer]\nlr = {value.replace('-nan', '-nan')}\n", "job.toml:2", "lr")
launch(7, "--nproc", "2", "--fence-after", "nan", says=["--fence-after"])
config(8, "NUL", "a\0b", "job.toml:1")
config(8, "no UTF-8", b"[data]\ndata_dir = \"\xff\xfe\"\n", "job.toml:2")
config(8, "control characters", b"[data]\nx\x1b[31m = 1\n", "job.toml:2")
case(8, "8-bit junk in a flag", [CLASSIFIER, *SHORT, "--data", b"\xff\xfe\x1b[2J".decode("utf-8", "surrogateescape")], 2, "data")
case(8, "BOM and CRLF", [CLASSIFIER, "--config", "job.toml", "--print-config"], 0, "epochs = 2", make=text_file("job.toml", "\ufeff[training]\r\nepochs = 2\r\n"),
     accepted=True)
config(9, "1 MB in one line", "[data]\ndata_dir = \"" + "a" * 1_000_000 + "\"\nx = 1\n", "job.toml:3")
config(9, "a value of 1 MB", "[data]\nbatch_size = \"" + "a" * 1_000_000 + "\"\n", "job.toml:2", "batch_size")
config(9, "a key of 1 MB", "a" * 1_000_000 + " = 1\n", "job.toml:1")
config(9, "100,000 brackets", "x = " + "[" * 100_000, "job.toml:1")
config(9, "20,000 tables", "a = {b = {" * 20_000, "job.toml:1")
config(9, "50 MiB", "# " + "a" * (50 << 20), "job.toml", "larger than 1 MiB")
for what, make, says in [("a folder", lambda folder: (folder / "job.toml").mkdir(), ["not a regular file"]), ("a FIFO", lambda folder: os.mkfifo(folder / "job.toml"), ["not a regular file"]),
                         ("an endless device", lambda folder: (folder / "job.toml").symlink_to("/dev/zero"), ["not a regular file"]),
                         ("a loop of links", lambda folder: (folder / "job.toml").symlink_to("job.toml"), ["job.toml"]), ("nothing", None, ["there is no such"])]:
    case(10, f"config, {what}", [CLASSIFIER, *SHORT, "--config", "job.toml"], 2, "job.toml", *says, make=make)
case(10, "config, an empty file", [CLASSIFIER, "--config", "job.toml", "--print-config"], 0, "batch_size = 64", make=text_file("job.toml", ""), accepted=True)
case(11, "a folder's name of blanks, $(), a dash and ..", [CLASSIFIER, *SHORT, "--checkpoint_dir", "-a b/$(touch x)/../c"], 0, "-a b/$(touch x)/../c/step-00000002", accepted=True)
flag(12, "--strategy", "fsdp+ddp", says=["fsdp+ddp", "known:"])
launch(12, "--nproc", "2", "--min-ranks", "3", says=["--min-ranks", "3"])
launch(12, "--nnodes", "3:2", says=["--nnodes", "3:2"])
launch(12, "--nproc", "2", "--no-recovery", "--chaos", "seed=1", says=["--chaos", "--no-recovery"])
launch(12, "--nproc", "2", "--hosts", "localhost:2", says=["--nproc", "--hosts"])
launch(12, "--hosts", "localhost:2", "--nnodes", "2", says=["--hosts", "--nnodes"])
launch(12, "--slurm", says=["--slurm"])
launch(12, "--suspect-after", "5", "--fence-after", "1", "--nproc", "2", says=["--suspect-after", "--fence-after"])
launch(12, "--nproc", "2", "--keys", "k", says=["--keys", "--nnodes"])
case(12, "ranks in ranks", [TROUPE, "launch", "--nproc", "1", "--run-dir", "r", CLASSIFIER, *SHORT, "--ranks", "2"], 2, "ranks", lines=2)
flag(12, "--clip_norm", "-1", says=["number"])
flag(12, "--resume", "latest", "--checkpoint_dir", "", says=["checkpoint_dir"])
flag(12, "--batch_size", "2", "--ranks", "4", says=["4"], lines=2)  # ranks of one process say what is wrong once
flag(12, "--batch_size", "4", "--grad_accum_steps", "3", says=["3"])
config(14, "a schema of tomorrow", "schema_version = 99\n", "job.toml:1", "schema_version")
config(15, "include", "include = \"job.toml\"\n", "job.toml:1", "include")

# ---------------------------------------------------------------- the host list


def hosts(number, what, text, *says, code=2, **more):
    case(number, f"hosts, {what}", [TROUPE, "launch", "--hosts", "list", CLASSIFIER, *SHORT], code, *says, make=text_file("list", text), **more)


def hosts_flag(number, text, *says, code=2):
    case(number, f"hosts {text[:30]}", [TROUPE, "launch", f"--hosts={text}", CLASSIFIER, *SHORT], code, *says)


hosts(16, "empty", "", "list", "names no host")
hosts(16, "comments only", "# nothing\n\n", "list", "names no host")
hosts_flag(16, "", "--hosts")
hosts(17, "a host twice, at two ports", "a slots=1\na slots=2 port=7\n", "list line 2", "a")
hosts_flag(17, "a:1,b@a:1", "entry 2", "'a'")
for text in ("a:0", "a:-1", "a:99999999999"):
    hosts_flag(18, text, "slots", text[2:])
hosts(18, "a port out of range", "a slots=1 port=65536\n", "list line 1", "port", "65536")
hosts(18, "no slots", "a slots=0\n", "list line 1", "slots")
hosts(19, "an open bracket", "[::1 slots=2\n", "list line 1", "[::1")
hosts(20, "an option of ssh", "-oProxyCommand=id slots=1\n", "list line 1", "-oProxyCommand=id")
hosts(20, "an option as address", "a address=-oProxyCommand=id\n", "list line 1", "address")
hosts(20, "an option as user", "a user=-l\n", "list line 1", "user")
for name in ("a;id", "$(id)", "`id`", "a|b", "a&b", "a'b", "a\"b", "a\\b", "../a"):
    hosts(21, f"{name}", f"{name} slots=1\n", "list line 1")
hosts(22, "unresolvable", "no-such-host.invalid slots=1\n", "no-such-host.invalid", code=69)
hosts(23, "100,000 lines", "".join(f"h{i}\n" for i in range(100_000)), "list")
hosts(24, "tabs and an unknown word", "a\tslots=1\tspeed=9\t# fast\n", "list line 1", "speed")
hosts(24, "control characters", "a\x07\x1b[2J slots=1\n", "list line 1")
hosts(24, "NUL", "a\0b slots=1\n", "list line 1")
hosts(24, "a number too large", "a slots=9223372036854775808\n", "list line 1", "slots")
case(10, "hosts, a FIFO", [TROUPE, "launch", "--hosts", "list", CLASSIFIER], 2, "list", make=lambda folder: os.mkfifo(folder / "list"))
case(10, "hosts, a folder", [TROUPE, "launch", "--hosts", "list/", CLASSIFIER], 2, "list", make=lambda folder: (folder / "list").mkdir())

# ---------------------------------------------------------------- tensors and checkpoints


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def weights(number, what, data, *says):
    """Both who starts with it and who looks at it say the same."""
    case(number, f"weights, {what}", [CLASSIFIER, *SHORT, "--init_from", "w.safetensors"], 65, "w.safetensors", *says, make=text_file("w.safetensors", data))
    case(number, f"inspect, {what}", [TROUPE, "checkpoint", "inspect", "w.safetensors"], 65, "w.safetensors", *says, make=text_file("w.safetensors", data))


weights(25, "empty", b"")
weights(25, "7 bytes", b"1234567")
weights(26, "a header beyond the file", struct.pack("<Q", 1000) + b"{}")
weights(26, "a header of 2^64 - 1", struct.pack("<Q", 2**64 - 1) + b"{}")
weights(26, "a header above the cap", struct.pack("<Q", 100_000_001) + b"{}")
weights(27, "no UTF-8", safetensors(b'{"\xff\xfe":1}'))
weights(27, "a name twice", safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)), "a")
weights(27, "50,000 brackets", safetensors(b"[" * 50_000))
weights(28, "200,000 tensors of nothing", safetensors({f"t{k}": tensor([0], 0, 0) for k in range(200_000)}))
weights(29, "a shape whose product overflows", safetensors({"w": tensor([4194305, 4194305, 211106198978564], 0, 4)}, bytes(4)), "w")
weights(30, "begins after its end", safetensors({"w": tensor([2], 8, 0)}, bytes(8)), "w")
weights(30, "ends after the file", safetensors({"w": tensor([20], 0, 80)}, bytes(8)), "w")
weights(30, "bytes that are not its shape's", safetensors({"w": tensor([2], 0, 4)}, bytes(4)), "w")
weights(31, "overlap", safetensors({"a": tensor([2], 0, 8), "b": tensor([2], 4, 12)}, bytes(12)))
weights(31, "a hole", safetensors({"a": tensor([2], 4, 12)}, bytes(12)), "a")
weights(31, "bytes behind the last", safetensors({"a": tensor([2], 0, 8)}, bytes(9)))
weights(32, "an unknown dtype", safetensors({"a": tensor([2], 0, 8, "X9")}, bytes(8)), "a", "X9")
weights(32, "a negative size", safetensors({"a": tensor([-1], 0, 4)}, bytes(4)), "a")
weights(32, "10,000 dimensions", safetensors({"a": tensor([1] * 10_000, 0, 4)}, bytes(4)), "a")
weights(33, "a path as name", safetensors({"../../x": tensor([1], 0, 4)}, bytes(4)))
weights(33, "an empty name", safetensors({"": tensor([1], 0, 4)}, bytes(4)))
weights(33, "a name of 1 MiB", safetensors({"n" * (1 << 20): tensor([1], 0, 4)}, bytes(4)))
weights(37, "a pickle", pickle.dumps({"a": 1}), "pickle")
weights(37, "a TorchScript archive", b"PK\3\4" + bytes(200))


def torch_weights(number, what, data, *says):
    case(number, f"weights, {what}", [CLASSIFIER, *SHORT, "--init_from", "w.pt"], 65, "w.pt", *says, make=text_file("w.pt", data))
    case(number, f"inspect, {what}", [TROUPE, "checkpoint", "inspect", "w.pt"], 65, "w.pt", *says, make=text_file("w.pt", data))


torch_weights(58, "a .pt with sizes beyond its storage", torch_file({"layer.w": torch_tensor(1, sizes=(256, 256, 3, 3), strides=(2304, 9, 3, 1))}, bytes(4)), "layer.w", "589824")
torch_weights(58, "a .pt with an offset beyond its storage", torch_file({"layer.w": torch_tensor(offset=2**40)}, bytes(8)), "layer.w")
torch_weights(58, "a .pt with a negative stride", torch_file({"layer.w": torch_tensor(offset=1, strides=(-1,))}, bytes(8)), "layer.w", "stride")
torch_weights(58, "a .pt with a storage of 2^40 elements", torch_file({"layer.w": torch_tensor(elements=2**40)}, bytes(8)), "layer.w")
torch_weights(59, "a .pt with a sparse tensor", torch_file({"layer.w": torch_tensor(rebuild="_rebuild_sparse_tensor")}, bytes(8)), "layer.w", "sparse")
torch_weights(59, "a .pt with a type that we do not know", torch_file({"layer.w": torch_tensor(kind="QInt8Storage")}, bytes(8)), "layer.w", "QInt8Storage")
torch_weights(59, "a .pt that names a function", torch_file({"layer.w": b"cos\nsystem\n(X\4\0\0\0truetR"}), "layer.w", "os.system")
torch_weights(60, "a .pt that holds itself", torch_file(b"\x80\x02}q\0X\1\0\0\0ah\0s."), "nested")
torch_weights(60, "a .pt of 2 million values", torch_file(b"\x80\x02](" + b"N" * 2_000_000 + b"e."), "values")
torch_weights(60, "a .pt with a compressed bomb", torch_file({"layer.w": torch_tensor(elements=2**24, sizes=(2**24,))}, bytes(2**26), compression=8), "compressed")
case(34, "weights of another model", [CLASSIFIER, *SHORT, "--init_from", "w.safetensors"], 65, "w.safetensors", make=text_file("w.safetensors", safetensors({"other": tensor([1], 0, 4)}, bytes(4))))
case(36, "weights, a FIFO", [CLASSIFIER, *SHORT, "--init_from", "w.safetensors"], 65, "w.safetensors", make=lambda folder: os.mkfifo(folder / "w.safetensors"))
case(36, "weights, a device", [CLASSIFIER, *SHORT, "--init_from", "/dev/zero"], 65, "/dev/zero")
case(10, "weights, nothing", [CLASSIFIER, *SHORT, "--init_from", "w.safetensors"], 2, "init_from", "w.safetensors")

TEMPLATE = {}


def checkpoint(number, what, damage, *says, code=65, verify=True, resume=True):
    def make(folder):
        shutil.copytree(TEMPLATE["checkpoints"], folder / "c", symlinks=True)
        damage(folder / "c" / (folder / "c/latest").read_text().split()[0])
    if resume:
        case(number, f"resume, {what}", [CLASSIFIER, *SHORT, "--max_steps", "4", "--resume", "latest"], code, *says, make=make)
    if verify:
        case(number, f"verify, {what}", [TROUPE, "checkpoint", "verify", "c"], code, *says, make=make)


def in_json(name, change):
    def damage(step):
        path = next(step.glob(name))
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))
    return damage


def cut(name, to):
    return lambda step: os.truncate(next(step.glob(name)), to)


def flip(name, at):
    def damage(step):
        path = next(step.glob(name))
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
    return damage


def replace(name, by):
    def damage(step):
        path = next(step.glob(name))
        path.unlink()
        by(path)
    return damage


TENSORS, MANIFEST = "rank-00000.safetensors", "manifest.json"
checkpoint(25, "an empty file of tensors", cut(TENSORS, 0), TENSORS)
checkpoint(25, "a file of tensors of 7 bytes", cut(TENSORS, 7), TENSORS)
checkpoint(35, "a bit flipped", flip(TENSORS, -100), TENSORS)
# Whoever signs a manifest anew finds each field looked at: tests/tensor_io/manifest_test.
for what, number, change in [("another step", 35, lambda v: v.update(step=77)), ("a format of tomorrow", 35, lambda v: v.update(format_version=99)),
                             ("a file outside", 33, lambda v: v["files"][0].update(name="../../x")), ("a tensor renamed", 34, lambda v: v["tensors"][0].update(name="other"))]:
    checkpoint(number, what, in_json(MANIFEST, change), MANIFEST, "hash")
checkpoint(27, "a manifest that is cut", cut(MANIFEST, 100), MANIFEST)
checkpoint(27, "a manifest of brackets", replace(MANIFEST, lambda path: path.write_text("[" * 100_000)), MANIFEST)
checkpoint(36, "a link in place of a file", replace(TENSORS, lambda path: path.symlink_to("/etc/passwd")), TENSORS)
checkpoint(36, "a device in place of a file", replace(TENSORS, lambda path: path.symlink_to("/dev/zero")), TENSORS)
checkpoint(36, "a FIFO in place of a file", replace(TENSORS, os.mkfifo), TENSORS)
checkpoint(36, "a file that is missing", replace(TENSORS, lambda path: None), TENSORS)
checkpoint(36, "a FIFO in place of the manifest", replace(MANIFEST, os.mkfifo), MANIFEST)
case(10, "resume, no checkpoint", [CLASSIFIER, *SHORT, "--resume", "c/step-00000003"], 2, "c/step-00000003")
case(10, "verify, nothing", [TROUPE, "checkpoint", "verify", "nothing"], 2, "nothing")

# ---------------------------------------------------------------- data sets


def idx(magic, dimensions, data):
    return struct.pack(">I" + "I" * len(dimensions), magic, *dimensions) + data


def classifier(data, *more):
    return [CLASSIFIER, *SHORT, "--data", data, "--data_dir", "d", *more]


MNIST = {"train-images-idx3-ubyte": idx(0x803, [8, 4, 4], bytes(128)), "train-labels-idx1-ubyte": idx(0x801, [8], bytes(8)),
         "t10k-images-idx3-ubyte": idx(0x803, [8, 4, 4], bytes(128)), "t10k-labels-idx1-ubyte": idx(0x801, [8], bytes(8))}


def mnist(number, what, *says, code=65, drop=None, **files):
    def make(folder):
        (folder / "d").mkdir()
        for name, data in {**MNIST, **{key.replace("_", "-"): value for key, value in files.items()}}.items():
            if name != drop:
                (folder / "d" / name).write_bytes(data)
    case(number, f"mnist, {what}", classifier("mnist", "--in_channels", "1"), code, *says, make=make)


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
mnist(48, "an empty file", IMAGES, **{IMAGES: b""})
mnist(48, "a missing file", IMAGES, code=69, drop=IMAGES)
mnist(49, "no images", IMAGES, **{IMAGES: idx(0x803, [0, 4, 4], b""), LABELS: idx(0x801, [0], b"")})
mnist(49, "other numbers of images and labels", "8", "7", **{LABELS: idx(0x801, [7], bytes(7))})
mnist(51, "a last image that is cut", IMAGES, **{IMAGES: idx(0x803, [8, 4, 4], bytes(127))})
mnist(51, "bytes behind the last", IMAGES, **{IMAGES: idx(0x803, [8, 4, 4], bytes(129))})
mnist(52, "2^96 pixels", IMAGES, **{IMAGES: idx(0x803, [0xffffffff] * 3, b"")})
mnist(52, "2^31 labels", LABELS, **{LABELS: idx(0x801, [1 << 31], bytes(16))})
mnist(53, "a label out of range", LABELS, "255", **{LABELS: idx(0x801, [8], bytes([0, 1, 255, 3, 4, 5, 6, 7]))})
mnist(56, "a bomb", IMAGES, **{IMAGES: gzip.compress(idx(0x803, [1 << 19, 28, 28], bytes(1 << 28)), 9)[:1 << 18]})
case(48, "mnist, no folder", classifier("mnist"), 69, "d/train")


def cifar(number, what, data, *says):
    def make(folder):
        (folder / "d").mkdir()
        for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
            (folder / "d" / name).write_bytes(bytes(3073 * 2))
        (folder / "d/data_batch_3.bin").write_bytes(data)
    case(number, f"cifar10, {what}", classifier("cifar10"), 65, "data_batch_3.bin", *says, make=make)


cifar(48, "an empty file", b"")
cifar(51, "a cut image", bytes(3000))
cifar(53, "a label out of range", b"\x0a" + bytes(3072), "10")


def csv(number, what, text, *says):
    case(number, f"csv, {what}", classifier("csv", "--in_channels", "1"), 65, "d", *says, make=text_file("d", text))


csv(48, "empty", "")
csv(49, "a header alone", "a,b,label\n")
csv(51, "a short row", "1,2,0\n3,1\n", "2")
csv(51, "no number", "1,2,0\nx,2,1\n", "2", "x")
csv(51, "NUL", "1,2,0\n\0,2,1\n", "2")
csv(52, "a number too large", "1,2,0\n1e400,2,1\n", "2", "1e400")
csv(53, "a label below 0", "1,2,0\n1,2,-1\n", "2", "-1")
csv(53, "half a label", "1,2,0\n1,2,0.5\n", "2", "0.5")
csv(53, "a label above the classes", "1,2,0\n" * 30 + "1,2,11\n", "11")
csv(10, "1 MiB in one line", "1" * (1 << 20) + ",1\n")
case(10, "csv, a FIFO", classifier("csv"), 65, "d", make=lambda folder: os.mkfifo(folder / "d"))
case(10, "csv, an endless device", classifier("csv"), 65, "d", make=lambda folder: (folder / "d").symlink_to("/dev/zero"))
case(56, "digits, a bomb", classifier("digits"), 65, "d", make=text_file("d", gzip.compress(b"1,2,3\n" * (1 << 26), 9)))
case(56, "digits, a broken archive", classifier("digits"), 65, "d", make=text_file("d", gzip.compress(b"1,2,3\n" * 999)[:-9]))


def tar_size(data, size):
    """The first member's size is another one, and its header's sum agrees."""
    header = data[:124] + size + data[136:148] + b" " * 8 + data[156:512]
    return header[:148] + f"{sum(header):06o}\0 ".encode() + header[156:] + data[512:]


PICTURE = png(8, 8)


def pictures(number, what, data, *says, **more):
    def make(folder):
        for i in range(12):
            (folder / f"d/class{i % 2}").mkdir(parents=True, exist_ok=True)
            (folder / f"d/class{i % 2}/{i:02}.png").write_bytes(PICTURE if i != 2 else data)
    case(number, f"image_folder, {what}", classifier("image_folder"), 65, "class0/02.png", *says, make=make, **more)


def shards(number, what, change, *says, code=65, label=b"1"):
    def make(folder):
        (folder / "d").mkdir()
        good = tar(*[(f"{i}.{kind}", content) for i in range(8) for kind, content in (("png", PICTURE), ("cls", label))])
        (folder / "d/a.tar").write_bytes(change(good))
    case(number, f"webdataset, {what}", classifier("webdataset"), code, *says, make=make)


pictures(48, "an empty picture", b"", "neither JPEG nor PNG")
pictures(51, "a picture that is cut", PICTURE[:60], "offset")
pictures(52, "60000x60000 pixels in a few bytes", png(60_000, 60_000, data=b""), "60000x60000 pixels")
pictures(52, "8000x8000 pixels in a few bytes", png(8_000, 8_000, data=b""), "more than its")
pictures(51, "a bit that flipped", PICTURE[:50] + bytes([PICTURE[50] ^ 4]) + PICTURE[51:], "offset")
case(48, "image_folder, nothing", classifier("image_folder"), 69, "d")
case(48, "image_folder, no classes", classifier("image_folder"), 65, "holds no folders", make=lambda folder: (folder / "d").mkdir())
shards(48, "an empty shard", lambda good: b"", "a.tar")
shards(51, "a shard that is cut", lambda good: good[:1700], "a.tar", "offset")
shards(51, "a compressed shard", gzip.compress, "a.tar", "plain tar")
shards(52, "a member of 2^63 bytes", lambda good: tar_size(good, b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7), "a.tar")
shards(53, "a label out of range", bytes, "a.tar", "'99'", label=b"99")
shards(53, "a label that is no number", bytes, "a.tar", "'cat'", label=b"cat")
case(48, "webdataset, nothing", [*classifier("webdataset")[:-1], "d-{0..1}.tar"], 69, "d-0.tar")
case(2, "webdataset, a brace that is not closed", [*classifier("webdataset")[:-1], "d-{0..1.tar"], 2, "data_dir", "not closed")


def tokens(number, what, data, *says, name="train.bin", code=65, more=()):
    case(number, f"tokens, {what}", [GPT, "--max_steps", "1", "--batch_size", "2", "--checkpoint_dir", "c", "--run_dir", "r", "--data_dir", name, *more], code, *(says or [name]),
         make=text_file(name, data))


def shard(count, data, magic=20240520, version=1):
    return struct.pack("<III", magic, version, count) + bytes(1012) + data


def ids(*numbers):
    return struct.pack("<" + "H" * len(numbers), *numbers)


GPT2 = ["--vocab_size", "50257"]
tokens(48, "empty", b"", "data_dir", "0 tokens", code=2, more=GPT2)
tokens(49, "no tokens", shard(0, b""), "data_dir", "0 tokens", code=2, more=GPT2)
tokens(51, "fewer than it says", shard(9999, ids(*range(400))), more=GPT2)
tokens(51, "more than it says", shard(3, ids(*range(400))), more=GPT2)
tokens(51, "half a token", ids(*range(400)) + b"\1", more=GPT2)
tokens(52, "2^32 - 1 tokens", shard(2**32 - 1, ids(*range(400))), more=GPT2)
tokens(50, "a version of tomorrow", shard(400, ids(*range(400)), version=9), "train.bin", "9", more=GPT2)
tokens(53, "a token beyond the vocabulary", ids(*[1, 2, 65535] * 400), "train.bin", "65535", more=GPT2)
tokens(48, "an empty text", b"", "data_dir", "0 tokens", code=2, name="text.txt")
tokens(49, "a text shorter than a sample", b"short", "data_dir", "5 tokens", code=2, name="text.txt")
case(48, "tokens, nothing", [GPT, "--max_steps", "1", "--data_dir", "nothing", "--run_dir", "r", "--checkpoint_dir", "c"], 69, "nothing")

# ---------------------------------------------------------------- ranks that differ


def each_rank(number, what, words, *says, make=None):
    """Two ranks with `words` of a shell, in which $RANK is the rank."""
    def script(folder):
        (folder / "each").write_text(f"#!/bin/sh\nexec {shlex.join([CLASSIFIER, *SHORT])} {words}\n")
        (folder / "each").chmod(0o755)
    case(number, what, [TROUPE, "launch", "--nproc", "2", "--run-dir", "r", "./each"], 65, *says, make=together(script, make or (lambda folder: None)), lines=6)


each_rank(13, "ranks with other settings", "--lr 0.0$(($RANK + 1))", "the config differs from rank")
each_rank(55, "ranks with other data", "--data digits --data_dir d$RANK", "rank 1 drew from a data set of 64 samples, the others from one of 32",
          make=together(*(text_file(f"d{rank}", ("0," * 64 + "1\n") * (40 + 40 * rank)) for rank in range(2))))


def shards_of(folder, *counts):
    """As many samples in all, in shards of the same names."""
    def make(scratch):
        (scratch / folder).mkdir()
        for name, count in zip("ab", counts):
            (scratch / folder / f"{name}.tar").write_bytes(tar(*[(f"{i}.{kind}", content) for i in range(count) for kind, content in (("png", PICTURE), ("cls", b"1"))]))
    return make


each_rank(55, "ranks with other shards", "--data webdataset --data_dir d$RANK", "rank 1 read different files from the others",
          make=together(shards_of("d0", 8, 8), shards_of("d1", 6, 10)))

# ---------------------------------------------------------------- keys


def keys(number, what, *says, code=65, make=None):
    case(number, f"keys, {what}", [TROUPE, "launch", "--nnodes", "1", "--node-rank", "0", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", "29999", "--keys", "k", CLASSIFIER], code,
         *(says or ["k"]), make=make)


def made_keys(damage):
    def make(folder):
        run([TROUPE, "keys", "k"], folder, {})
        damage(folder / "k")
    return make


keys(45, "no folder", "k: No such file", code=74)
keys(45, "readable to others", make=made_keys(lambda k: next(p for p in sorted(k.iterdir()) if "key" in p.name or "token" in p.name).chmod(0o644)))
for each in ("authority.pem", "certificate.pem", "key.pem"):
    keys(45, f"an empty {each}", f"k/{each}: it is damaged", make=made_keys(lambda k, each=each: os.truncate(k / each, 0)))
    keys(45, f"a {each} that is cut", f"k/{each}: it is damaged", make=made_keys(lambda k, each=each: os.truncate(k / each, 200)))
keys(46, "a token of junk", "k/token", make=made_keys(lambda k: (k / "token").write_text("g" * 64)))


# ---------------------------------------------------------------- a run's folder


def run_folder(what, metrics, says, code=65):
    for verb in ("report", "top"):
        case(57, f"{verb} of a run that is {what}", [TROUPE, verb, "r"], code, f"r/metrics.jsonl: {says}", make=metrics)


def in_run(metrics):
    def make(folder):
        (folder / "r").mkdir()
        metrics(folder / "r" / "metrics.jsonl")
    return make


run_folder("none", lambda folder: None, "there is no such file")
run_folder("another program's", in_run(lambda path: path.write_text("step,loss\n1,0.5\n")), "no line of it is a record")
run_folder("brackets", in_run(lambda path: path.write_text("[" * 100_000 + "\n")), "no line of it is a record")
run_folder("NUL", in_run(lambda path: path.write_bytes(bytes(1 << 20) + b"\n")), "no line of it is a record")
run_folder("a FIFO", in_run(os.mkfifo), "there is no such file")
run_folder("an endless device", in_run(lambda path: path.symlink_to("/dev/zero")), "there is no such file")
run_folder("of tomorrow", in_run(lambda path: path.write_text('{"schema":2,"kind":"train","step":1,"epoch":0,"wall_time":1}\n')), "no line of it is a record")


def faults_of_page(page):
    """Rows 1 to 63, each with tests that are there; `bad_input` in those that have a case here, and only there."""
    tests = pathlib.Path(__file__).parents[1]
    rows = {int(number): row.split("|")[-2] for number, row in re.findall(r"^\| (\d+) (\|.*)$", page, re.M)}
    numbers = {each.number for each in CASES}
    for number in range(1, 64):
        named = [word.strip() for word in rows.get(number, "").split(",") if word.strip()]
        if not named:
            yield f"{number}: docs/bad_input.md names no test"
        if ("bad_input" in named) != (number in numbers):
            yield f"{number}: docs/bad_input.md is wrong about its having a case here"
        for name in named:
            if name != "bad_input" and not any(path for ending in (".cpp", ".py") for path in tests.rglob(f"{name}{ending}")):
                yield f"{number}: there is no test {name}"


def main():
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="troupe-bad-input-"))
    done = 0
    wrong_rows = list(faults_of_page((pathlib.Path(__file__).parents[2] / "docs/bad_input.md").read_text()))
    print("".join(f"{row}\n" for row in wrong_rows), end="")
    failed = len(wrong_rows)
    try:
        good = scratch / "good"
        good.mkdir()
        code, output, usual = run([CLASSIFIER, *SHORT], good, {})
        if code != 0:
            print(output.decode("utf-8", "replace"), f"bad_input: with good input the exit code is {code}", sep="")
            return 1
        TEMPLATE["checkpoints"] = good / "c"
        for number, each in enumerate(CASES):
            if ONLY and not any(word in f"{each.number} {each.name}" for word in ONLY):
                continue
            if not ONLY and not in_share(0.25, each.name):
                continue
            done += 1
            wrong = faults_of(each, scratch / str(number), usual if judges_memory else None)
            if wrong:
                failed += 1
                print(f"{each.number} {each.name}: {'; '.join(wrong)}", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"bad_input: {done} cases of {len({each.number for each in CASES})} kinds, {failed} taken otherwise")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
