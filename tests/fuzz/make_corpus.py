"""Writes the seeds of the fuzz targets: make_corpus.py FOLDER. Good inputs to start from, and the bad ones that we know."""
import gzip
import json
import pathlib
import struct
import sys

root = pathlib.Path(sys.argv[1])


def seed(target, name, data):
    folder = root / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


# The first byte says what the rest is: 0 file, 1 flag, 2 Slurm's nodes, 3 Slurm's tasks.
for i, text in enumerate([
        "a slots=8\nb slots=4 port=2222 user=me # comment\n", "localhost\n", "", "a\na\n", "a:0", "a:-1", "a:99999", "a slots=0", "a port=65536",
        "[::1] slots=2", "fe80::1%eth0:2", "HOST.example.", "-oProxyCommand=id slots=1", "a;id slots=1", "$(id)", "`id`", "a\tslots=2\t\n", "a\0b",
        "\xef\xbb\xbfa slots=1\r\nb slots=1\r\n", "a slots=9223372036854775808", "a slots=two", "h " * 5000, "a max_slots=4 slots=2", "user@host:22"]):
    seed("host_list", f"file{i}", b"\0" + text.encode("utf-8", "surrogateescape"))
    seed("host_list", f"flag{i}", b"\1" + text.encode("utf-8", "surrogateescape"))
for i, text in enumerate(["n[1-4,7]", "a,b[01-10]c", "n[4-1]", "n[1-", "n[1-99999999999999999999]", "[]", "n[[1]]", "a[1-2][3-4]", ","]):
    seed("host_list", f"nodes{i}", b"\2" + text.encode())
for i, text in enumerate(["2(x3),1", "4", "0", "2(x0)", "2(x99999999999)", "(x2)", "2x3", "-1"]):
    seed("host_list", f"tasks{i}", b"\3" + text.encode())

for i, text in enumerate([
        "[training]\nbatch_size = 64\nlr = 0.01\n", "", "batch_size = \"ten\"", "[training]\nbatchsize = 1", "[training]\nbatch_size = 1\nbatch_size = 2",
        "[training]\nlr = nan", "[training]\nlr = inf", "[training]\nlr = 1e400", "[training]\nbatch_size = 9223372036854775808",
        "[training]\nbatch_size = -1", "x = " + "[" * 20000, "x = \"" + "a" * 200000 + "\"", "\xef\xbb\xbf[training]\r\nepochs = 2\r\n", "a\0b", "[a.b.c]\nd=1",
        "-batch_size=64", "-lr=1e-3", "-lr=1e400", "-use_amp=maybe", "-batch_size=", "-data=\xff", "-batch_s\nize=1"]):
    seed("config", f"{i}", text)

header = b"TRJL" + struct.pack("<I", 1)
for i, data in enumerate([header, b"", header + struct.pack("<II", 0xffffffff, 1), header + struct.pack("<II", 4, 2) + b"abcd" + b"\0" * 8,
                          b"TRJL" + struct.pack("<I", 99), b"PK\3\4"]):
    seed("journal", f"{i}", data)

manifest = {"format": "troupe checkpoint", "format_version": 1, "step": 3, "epoch": 0, "step_in_epoch": 3, "ranks": 1, "attempt": "a-1", "metadata": {"strategy": "ddp"},
            "chunk_bytes": 1 << 20,
            "files": [{"name": "rank-00000.safetensors", "bytes": 100, "xxh3": "5d3029fccc14146d", "chunks": "0" * 16},
                      {"name": "rank-00000.json", "bytes": 2, "xxh3": "5d3029fccc14146d", "chunks": "0" * 16}],
            "tensors": [{"name": "w", "dtype": "F32", "shape": [2], "slices": [{"file": "rank-00000.safetensors", "offsets": [0], "shape": [2]}]}]}
text = json.dumps(manifest, indent=1)
seed("manifest", "good", b"\2" + text[:-2].encode())
seed("manifest", "part", b"\3" + json.dumps({**manifest, "format": "troupe checkpoint part", "ranks": 2}, indent=1)[:-2].encode())
for i, (key, value) in enumerate([("step", -1), ("ranks", 1 << 40), ("format_version", 2), ("tensors", []), ("files", {}), ("epoch", 1e300)]):
    seed("manifest", f"bad{i}", b"\2" + json.dumps({**manifest, key: value}, indent=1)[:-2].encode())
for i, text in enumerate(["", "{}", "[" * 50000, "{\"a\":1,\"a\":2}", "\xff\xfe", json.dumps({"value0": {"rng": "AAEC", "epoch": 1, "step_in_epoch": 2,
                          "counters": [], "strings": []}})]):
    seed("manifest", f"state{i}", b"\0" + text.encode("latin-1"))
    seed("manifest", f"text{i}", b"\1" + text.encode("latin-1"))


def tensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


f32 = lambda shape, begin, end: {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
for i, data in enumerate([
        tensors({"__metadata__": {"format": "pt"}, "w": f32([2], 0, 8)}, b"\0" * 8), b"", b"1234567", struct.pack("<Q", 1 << 63), struct.pack("<Q", 2**64 - 1),
        struct.pack("<Q", 100_000_001) + b"{}", tensors({"w": f32([4194305, 4194305, 211106198978564], 0, 4)}, b"\0" * 4), tensors({"w": f32([2], 8, 0)}, b"\0" * 8),
        tensors({"w": f32([2], 0, 80)}, b"\0" * 8), tensors({"a": f32([2], 0, 8), "b": f32([2], 4, 12)}, b"\0" * 12), tensors({"a": f32([2], 4, 12)}, b"\0" * 12),
        tensors({"a": f32([2], 0, 8)}, b"\0" * 9), tensors({"a": f32([0], 0, 0), "b": f32([0], 0, 0)}), tensors({"a": {**f32([2], 0, 8), "dtype": "X"}}, b"\0" * 8),
        tensors({"a": f32([-1], 0, 4)}, b"\0" * 4), tensors({"a": f32([1] * 10000, 0, 4)}, b"\0" * 4), tensors({"../../x": f32([1], 0, 4)}, b"\0" * 4),
        tensors({"": f32([1], 0, 4)}, b"\0" * 4), tensors(b'{"a":1,"a":2}'), tensors(b"[" * 50000), tensors(b"\xff\xfe{}"),
        tensors({f"t{k}": f32([0], 0, 0) for k in range(3000)}), b"\x80\x02", b"PK\3\4" + b"\0" * 100]):
    seed("safetensors", f"{i}", data)

idx = lambda magic, dimensions, data: struct.pack(">I" + "I" * len(dimensions), magic, *dimensions) + data
for i, data in enumerate([idx(0x803, [2, 3, 3], bytes(18)), idx(0x801, [4], bytes(4)), idx(0x803, [2, 3, 3], bytes(17)), idx(0x803, [0xffffffff] * 3, b""),
                          idx(0xd03, [1, 1, 1], bytes(4)), b"", b"\0\0\x08", gzip.compress(idx(0x801, [4], bytes(4))), gzip.compress(bytes(1 << 20))[:200]]):
    seed("datasets", f"idx{i}", b"\0" + data)
for i, data in enumerate([bytes(3073), b"\x0a" + bytes(3072), bytes(3072), b"", bytes(3073 * 3)]):
    seed("datasets", f"cifar{i}", b"\1" + data)
for i, data in enumerate(["a,b,label\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n9,10,0\n", "1,2\n3\n", "", "1e400,0\n", "1,-1\n", "1,0.5\n", "x,y\n", "1,2,\n", "\0", "1;2\n",
                          "nan,1\n" * 6, "1" * 5000 + ",1\n"]):
    seed("datasets", f"csv{i}", b"\2" + data.encode())

for parameters in (0, 1, 7, 64):
    for fill in (0, 1, 255):
        seed("votes", f"{parameters}-{fill}", bytes([parameters]) + bytes([fill]) * 600)
