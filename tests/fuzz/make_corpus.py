"""Writes the seeds of the fuzz targets: make_corpus.py FOLDER. Good inputs to start from, and the bad ones that we know."""
import base64
import gzip
import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from made_files import png, tar, torch_file, torch_tensor

root = pathlib.Path(sys.argv[1])


def seed(target, name, data):
    folder = root / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


# The first byte says what the rest is: 0 file, 1 flag, 2 Slurm's nodes, 3 Slurm's tasks.
for i, text in enumerate([
        "a slots=8\nb slots=4 port=2222 user=me # comment\n", "localhost\n", "", "a\na\n", "a:0", "a:-1", "a:99999", "a slots=0", "a port=65536",
        "[::1] slots=2", "fe80::1%eth0:2", "HOST.example.", "-oProxyCommand=id slots=1", "a;id slots=1", "$(id)", "`id`", "a\tslots=2\t\n", "a\0b",
        "\xef\xbb\xbfa slots=1\r\nb slots=1\r\n", "a slots=9223372036854775808", "a slots=two", "h " * 5000, "".join(f"h{i}\n" for i in range(100_000)), "a address=-oProxyCommand=id", "a user=-l", "a address=$(id)", "../a", "a slots=1e3", "a max_slots=4 slots=2", "user@host:22"]):
    seed("host_list", f"file{i}", b"\0" + text.encode("utf-8", "surrogateescape"))
    seed("host_list", f"flag{i}", b"\1" + text.encode("utf-8", "surrogateescape"))
for i, text in enumerate(["n[1-4,7]", "a,b[01-10]c", "n[4-1]", "n[1-", "n[1-99999999999999999999]", "[]", "n[[1]]", "a[1-2][3-4]", ","]):
    seed("host_list", f"nodes{i}", b"\2" + text.encode())
for i, text in enumerate(["2(x3),1", "4", "0", "2(x0)", "2(x99999999999)", "(x2)", "2x3", "-1"]):
    seed("host_list", f"tasks{i}", b"\3" + text.encode())

for i, text in enumerate([
        "[training]\nbatch_size = 64\nlr = 0.01\n", "", "batch_size = \"ten\"", "[training]\nbatchsize = 1", "[training]\nbatch_size = 1\nbatch_size = 2",
        "[training]\nlr = nan", "[training]\nlr = inf", "[training]\nlr = 1e400", "[training]\nbatch_size = 9223372036854775808",
        "[training]\nbatch_size = -1", "x = " + "[" * 100_000, "x = \"" + "a" * 1_000_000 + "\"", "a = {b = {" * 20_000, "[training]\nlr = -inf\nbatch_size = 0", "schema_version = 99", "\xef\xbb\xbf[training]\r\nepochs = 2\r\n", "a\0b", "[a.b.c]\nd=1",
        "-batch_size=64", "-lr=1e-3", "-lr=1e400", "-use_amp=maybe", "-batch_size=", "-data=\xff", "-batch_s\nize=1", "--=1", "-=", "-bucket_cap_mb=-1", "-collective_timeout=0", "-collective_timeout=nan", "-num_workers=99999999999999999999",
        "-checkpoint_dir=../../$(id)", "-run_dir=-rf", "-strategy=fsdp+ddp", "-run_dir=caf\xe9", "-run_dir=a\x7f"]):
    seed("config", f"{i}", text)

header = b"\0TRJL" + struct.pack("<I", 2)
for i, data in enumerate([header, b"", header + struct.pack("<II", 0xffffffff, 1), header + struct.pack("<II", 4, 2) + b"abcd" + b"\0" * 8,
                          b"\0TRJL" + struct.pack("<I", 99), b"\0PK\3\4",
                          header + struct.pack("<II", 4, 1) + b"abcd" + bytes(7), header + (struct.pack("<II", 1, 1) + b"a" + bytes(8)) * 3]):
    seed("journal", f"{i}", data)
# A record whose hash is right: the first byte is its type. The rest is as CAF writes it: big-endian, sizes as varints.
member = struct.pack(">iQ", 0, 7) + b"\1a\0"
after = struct.pack(">qi", 12, 0) + b"\0\2ok"
generation = struct.pack(">Q", 3)
for i, data in enumerate([b"\1\x100123456789abcdef", b"\1\5other", b"\1" + b"\xff" * 9 + b"\1x", b"\1\xff\xff\xff\xff\x0f",
                          b"\2" + generation + b"\1" + member + after, b"\2" + generation + b"\xff\xff\xff\xff\x0f" + member + after,
                          b"\2" + generation + b"\xff" * 9 + b"\1" + member, b"\2" + struct.pack(">Q", 2**64 - 1) + b"\0" + after,
                          b"\2" + generation + b"\1" + member[:-1] + b"\7" + after, b"\2" + generation + b"\xb8\x17" + member * 3000 + after,
                          b"\2\0", b"\2", b"\3\1"]):
    seed("journal", f"record{i}", data)

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
for i, text in enumerate(["", "{}", "[" * 50000, "{\"a\":1,\"a\":2}", "\xff\xfe", json.dumps({"format_version": 1, "epoch": 1, "step_in_epoch": 2, "counters": {"a": 1.5},
                          "strings": {"b": "c"}, "rng": {"bytes": 3, "base64": "AAEC"}}), '{"a":0E68}']):
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
        tensors({f"t{k}": f32([0], 0, 0) for k in range(3000)}), b"\x80\x02", b"PK\3\4" + b"\0" * 100, tensors({f"t{k}": f32([0], 0, 0) for k in range(20_000)}),
        tensors({"n" * 900_000: f32([1], 0, 4)}, b"\0" * 4), tensors({"a": f32([2**63 - 1, 2], 0, 4)}, b"\0" * 4), tensors({"a": f32([1], -4, 0)}, b"\0" * 4),
        tensors({"a": f32([1], 0, 2**64 - 1)}, b"\0" * 4), tensors({"a": f32([1.5], 0, 4)}, b"\0" * 4), tensors({"a": f32(7, 0, 4)}, b"\0" * 4),
        tensors({"__metadata__": {"format": 1}, "a": f32([1], 0, 4)}, b"\0" * 4), tensors(b'{"__metadata__":{"a":"b","a":"c"}}'), tensors({}), tensors(b"")]):
    seed("safetensors", f"{i}", data)

idx = lambda magic, dimensions, data: struct.pack(">I" + "I" * len(dimensions), magic, *dimensions) + data
for i, data in enumerate([idx(0x803, [2, 3, 3], bytes(18)), idx(0x801, [4], bytes(4)), idx(0x803, [2, 3, 3], bytes(17)), idx(0x803, [0xffffffff] * 3, b""),
                          idx(0xd03, [1, 1, 1], bytes(4)), b"", b"\0\0\x08", gzip.compress(idx(0x801, [4], bytes(4))), gzip.compress(bytes(1 << 20))[:200], idx(0x801, [0], b""),
                          idx(0x803, [1, 0, 0], b""), gzip.compress(idx(0x803, [1 << 20, 28, 28], bytes(1 << 28)), 9)[:1_000_000], idx(0x801, [1 << 31], bytes(16)),
                          gzip.compress(idx(0x801, [4], bytes(4)))[:-8] + b"\0" * 8, gzip.compress(gzip.compress(idx(0x801, [4], bytes(4)))), b"PK\3\4" + bytes(64),
                          idx(0x801, [4], bytes([0, 1, 255, 3])), idx(0x8ff, [1] * 255, b"\0")]):
    seed("datasets", f"idx{i}", b"\0" + data)
for i, data in enumerate([bytes(3073), b"\x0a" + bytes(3072), bytes(3072), b"", bytes(3073 * 3)]):
    seed("datasets", f"cifar{i}", b"\1" + data)
for i, data in enumerate(["a,b,label\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n9,10,0\n", "1,2\n3\n", "", "1e400,0\n", "1,-1\n", "1,0.5\n", "x,y\n", "1,2,\n", "\0", "1;2\n",
                          "nan,1\n" * 6, "1" * 5000 + ",1\n", '1,2\n3,"x\ny"z\n\0']):
    seed("datasets", f"csv{i}", b"\2" + data.encode())

for parameters in (0, 1, 7, 64):
    for fill in (0, 1, 127, 255):
        seed("votes", f"{parameters}-{fill}", bytes([parameters]) + bytes([fill]) * 600)


def frame(operation, length, payload=b"", flags=0, data=0):
    return struct.pack(">BBBBIQQQ", operation, 0, 0, flags, length, data, 1, 1) + payload


# The first byte: even, from a client; the second: how it is cut. CAF's killers among them.
hello = frame(1, 5, b"hello")
told = b"\0\0\0\x08@<>+Told"
for i, data in enumerate([
        hello, hello + hello + frame(2, 15, told + b"abc") + frame(6, 0), hello + frame(2, 12, told) + frame(4, 7, b"hellous") + frame(5, 7, b"otherus"), hello + frame(3, 10, b"helloother"), hello + frame(2, 12, b"\0\0\0\x08@<>+@exi"), frame(0, 5, b"hello"), frame(0, 0, data=1), frame(1, 0), frame(1, 2**30), frame(1, 2**32 - 1),
        hello + frame(2, 2**31), hello + frame(3, 0), hello + frame(7, 1), hello + frame(255, 0), hello + frame(0, 3, b"abc"), hello[:31], hello[:36],
        hello + frame(2, 16, b"\x80" * 10 + b"\xff" * 6), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 32]):
    for sender in (0, 1):
        seed("frames", f"{i}-{sender}", bytes([sender, 6]) + data)

keys_of = lambda *parts: json.dumps(parts, separators=(",", ":"))
keys = keys_of("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n", "c", "k", "0" * 64)
for i, text in enumerate([keys, "", keys[:-1], keys + "x", keys_of("", "", "", "g" * 64), keys_of("", "", ""), keys_of("", "", "", 7), "{}", "x\n", keys_of("a" * 65537, "", "", "0" * 64)]):
    seed("keys", f"{i}", text)
llm = lambda magic, version, count, data: struct.pack("<III", magic, version, count) + bytes(1012) + data
ids = lambda *numbers: struct.pack("<" + "H" * len(numbers), *numbers)
for i, data in enumerate([ids(*range(40)), b"", b"\1", bytes(1023), ids(1, 2, 65535, 3, 4, 5), llm(20240520, 1, 40, ids(*range(40))), llm(20240520, 2, 40, ids(*range(40))),
                          llm(20240520, 1, 2**32 - 1, ids(*range(40))), llm(20240520, 1, 0, b""), llm(20240520, 1, 41, ids(*range(40))), llm(20240520, 1, 3, ids(1, 2, 3))]):
    seed("datasets", f"tokens{i}", b"\3" + data)
for i, data in enumerate([b"a text of some words, longer than a sample\n" * 3, b"", b"short", b"a\0b" * 9, b"\xff\xfe" * 40, b"\xef\xbb\xbf" + b"x" * 40]):
    seed("datasets", f"text{i}", b"\4" + data)

# ---------------------------------------------------------------- state between ranks: the first byte says what, the second how much is behind


def copy(head, data=b"", hash=b"\0" * 8, length=None):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    whole = hash + struct.pack("<Q", len(text) if length is None else length) + text
    return whole + bytes(-len(whole) % 64) + data


held = {"generation": 2, "step": 30, "shard": 1, "shards": 4, "note": "{}"}
entry = lambda name="flat.0", dtype="F32", sizes=(4,): [name, dtype, list(sizes)]
with_tensors = lambda *entries: {**held, "tensors": list(entries)}
heads = [with_tensors(), with_tensors(entry()), with_tensors(entry(), entry("moment.0.0.exp_avg")), with_tensors(entry(), entry()),
         with_tensors(entry(sizes=[2**63])), with_tensors(entry(sizes=[2**64])), with_tensors(entry(sizes=[2**62, 4])),
         with_tensors(entry(sizes=[4194305, 4194305, 211106198978564])), with_tensors(entry(sizes=[-1])), with_tensors(entry(sizes=[1] * 100)),
         with_tensors(entry(dtype="C128")), with_tensors(entry(dtype="")), with_tensors(entry(dtype="F8_E4M3")), with_tensors(entry(dtype=6)), with_tensors(entry("unknown.tensor")),
         with_tensors(entry(sizes=[10**6])), with_tensors(entry() + [0]), with_tensors([1, 2]), {**held, "shard": 7, "tensors": []}, {**held, "shards": -1, "tensors": []},
         {**held, "generation": -1, "tensors": []}, {**held, "step": 2**64, "tensors": []}, {**held, "note": 7, "tensors": []}, {**held, "tensors": {}}, held, [], 7, b"[" * 50_000,
         b'{"a":1,"a":2}', b"\xff\xfe", b""]
for i, head in enumerate(heads):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    seed("state", f"copy{i}", b"\0\0" + copy(head, bytes(128)))
    for behind in (0, 1, 2):
        seed("state", f"head{i}-{behind}", bytes([1, behind]) + text)
for i, data in enumerate([b"", bytes(15), bytes(16), copy(heads[0], length=2**64 - 1), copy(heads[0], length=2**63), copy(heads[0], length=10**6), copy(heads[1], bytes(64), b"\1" * 8)]):
    seed("state", f"bytes{i}", b"\0\0" + data)
for i, text in enumerate(["[]", "[[2,30,1,4,640]]", "[[2,30,1,4,640],[2,30,1,4,640]]", "[[-2,30,1,4,640]]", "[[2,30,4294967296,4,640]]", "[[2,30,1,4]]", "[[2,30,1,4,-1]]", "[[2,30,1,4,1099511627777]]",
                          "[2,30,1,4,640]", "{}", "[[18446744073709551615,9223372036854775808,0,1,640]]", ""]):
    seed("state", f"held{i}", b"\2\0" + text.encode())
for i, text in enumerate(['{"strategy":{"a":"b"},"notes":{},"loss_scale":65536.0,"growth_tracker":3}', '{"strategy":{},"notes":{},"loss_scale":null,"growth_tracker":3}',
                          '{"strategy":[],"notes":{},"loss_scale":1,"growth_tracker":1e300}', '{"strategy":{"a":1},"notes":{},"loss_scale":1,"growth_tracker":1}', "{}", "[]", ""]):
    seed("state", f"heal{i}", b"\3\0" + text.encode())
for i, text in enumerate(['[{"name":"exp_avg","shape":[3,4],"dtype":6}]', '[{"name":"a","shape":[],"dtype":7}]', '[{"name":"a","shape":[-3],"dtype":6}]', '[{"name":"a","shape":[4611686018427387904,4],"dtype":6}]',
                          '[{"name":"a","shape":[1099511627776],"dtype":6}]', '[{"name":"a","shape":[1],"dtype":300}]', '[{"name":"a","shape":{},"dtype":6}]', '[{"name":1}]', "[7]", "[]", "{}"]):
    seed("state", f"shapes{i}", b"\4\0" + text.encode())
word = lambda code=8, kind=0, dtype=6, label=b"bucket 3", cause=b"": (struct.pack("<QqqqiBBBb", 5, 1000, 12, 0, -1, code, kind, 1, dtype) + label.ljust(48, b"\0") + cause)
for i, data in enumerate([word(), word(cause=b"the disk is full"), word(code=255), word(kind=200), word(dtype=127), word(dtype=-128), word(label=b"x" * 48), word()[:-1], b""]):
    seed("state", f"word{i}", b"\5\0" + data)
rank_state = {"format_version": 1, "epoch": 1, "step_in_epoch": 2, "counters": {"loss_scale": 1.0, "zero": 0}, "strings": {"policy": "dynamic"},
              "rng": {"bytes": 48, "base64": base64.b64encode(bytes(48)).decode()}}
for i, value in enumerate([rank_state, {**rank_state, "rng": {"bytes": 2**62, "base64": "A" * 100_001}}, {**rank_state, "epoch": -1}, {**rank_state, "epoch": 2**63},
                           {**rank_state, "counters": {"a": 1e999}}, {**rank_state, "strings": {"size": 2**62}}, {**rank_state, "rng": []}, {}, []]):
    seed("state", f"rank{i}", b"\6\0" + json.dumps(value).encode())

# ---------------------------------------------------------------- messages, as CAF writes them: big-endian, sizes as varints


def varint(n):
    out = b""
    while n > 0x7f:
        out, n = out + bytes([n & 0x7f | 0x80]), n >> 7
    return out + bytes([n])


text = lambda s: varint(len(s)) + (s if isinstance(s, bytes) else s.encode())
process = lambda slot, incarnation: struct.pack(">iQ", slot, incarnation)
report = lambda code=0, cause="": struct.pack(">Bi", code, -1) + text("") + struct.pack(">q", -1) + text("") + text(cause) + text("")
kinds = "JoinJob JoinNode PutValue GetValue CollectiveState Heartbeat RankInterrupted RankExited PartSaved CheckpointPublished LoopDone RankEnded".split()


def join(slot=0, incarnation=1, job="job", world=3, host="host", build="build", config="config", spare=0, generation=0):
    return "JoinJob", text(job) + process(slot, incarnation) + struct.pack(">i", world) + text(host) + text(build) + text(config) + struct.pack(">BQ", spare, generation)


def interrupted(slot, generation=1, done=5, voted=5, unreachable=(), votes=b"", incarnation=None):
    return "RankInterrupted", (process(slot, slot + 1 if incarnation is None else incarnation) + struct.pack(">QqqiBq", generation, done, voted, 0, 1, voted) + text(votes) + text("a connection ended") + b"\0" +
                               varint(len(unreachable)) + b"".join(struct.pack(">i", r) for r in unreachable))


def state(rank, sequence, fingerprint, generation=1, communicator="buckets"):
    return "CollectiveState", (struct.pack(">Qi", generation, rank) + text(communicator) + struct.pack(">BQQ", 1, sequence, fingerprint) + text("all_reduce") + struct.pack(">q", 3) + bytes(8) + b"\0")


def node(host="host", started=(), job="job", asks=False):
    return "JoinNode", text(job) + text(host) + varint(len(started)) + b"".join(process(*p) for p in started) + struct.pack(">B", asks)


exited = lambda slot, incarnation, status=9: ("RankExited", process(slot, incarnation) + struct.pack(">i", status))
heartbeat = lambda slot, incarnation, generation=1, done=3: ("Heartbeat", process(slot, incarnation) + struct.pack(">Qq", generation, done))
ended = lambda slot, incarnation, code=0: ("RankEnded", process(slot, incarnation) + report(code, "why"))
done = lambda slot, generation=1, steps=3: ("LoopDone", process(slot, slot + 1) + struct.pack(">Qq", generation, steps))
put = lambda key, value: ("PutValue", text(key) + text(value))
attempt = struct.pack(">q", 10) + text("a")
part = lambda slot, generation=1, rank=0, ranks=3, code=0: ("PartSaved", process(slot, slot + 1) + struct.pack(">Q", generation) + attempt + struct.pack(">iiB", rank, ranks, 0) + report(code))
endless = ("CheckpointPublished", process(0, 1) + attempt + struct.pack(">q", 10) + text("/x") + struct.pack(">q", 1) + b"\x7f\xf0" + bytes(6) + text("") + report())
published = ("CheckpointPublished", process(0, 1) + attempt + struct.pack(">q", 10) + text("/x") + struct.pack(">q", 1) + bytes(8) + text("") + report())


def converse(mode, *steps):
    """steps: (sender, message), or a number of ticks, or 'kill 2'."""
    out = bytes([3, mode])
    for step in steps:
        if isinstance(step, int):
            out += bytes([len(kinds) + 1, step])
        elif isinstance(step, str):
            out += bytes([len(kinds), int(step.split()[1])])
        else:
            sender, (kind, body) = step
            out += bytes([kinds.index(kind), sender, len(body) & 255, len(body) >> 8]) + body
    return out


good = [join(), node(started=[(0, 1), (1, 2)]), put("g1/program/address/0", b"\1\2\3"), ("GetValue", text("g1/x")), state(0, 5, 1), heartbeat(0, 1), interrupted(0, unreachable=[1, 2]), exited(0, 1), part(0), published,
        done(0), ended(0, 1)]
for i, (kind, body) in enumerate(good):
    seed("messages", f"kind{i}", bytes([0, kinds.index(kind)]) + body)
    seed("messages", f"cut{i}", bytes([0, kinds.index(kind)]) + body[:-1])
    for n, damage in enumerate([b"\xff" * 10, b"\xff\xff\xff\xff\x0f", b"\x80" * 10 + b"\1"]):  # a length of ten continuation bytes, of 2^32 - 1 ...
        seed("messages", f"length{i}-{n}", bytes([0, kinds.index(kind)]) + damage + body[1:])
for i in range(20):
    seed("messages", f"from{i}", bytes([1, i]) + report(3, "a cause") + bytes(200))
frame = lambda name, body: bytes([2]) + text(name) + body
for i, data in enumerate([frame("@<>+JoinJob", join()[1]), frame("JoinJob", join()[1]), frame("@<>", b""), frame("@<>+@i32+@str", struct.pack(">i", 1) + text("x")), frame("@<>+unknown", b""), frame("@<>" + "+@i32" * 300, b""),
                          frame("@<>+@strvec", b"\xff\xff\xff\xff\x0f" + b"abc"), frame("@<>+@message", text("@<>+@message")), frame("@<>+@atom", bytes(8)), frame("", b""), b"\2" + b"\xff" * 10]):
    seed("messages", f"frame{i}", data)
joined = [(0, join(0, 1)), (1, join(1, 2)), (2, join(2, 3))]
for i, data in enumerate([
        converse(1, *joined, 3), converse(0, *joined, 3), converse(1, *joined, *((r, interrupted(r)) for r in range(3)), 5, *((r, interrupted(r, 2)) for r in range(3)), 5),
        converse(3, (1, interrupted(1, unreachable=[2])), (0, interrupted(0)), (2, interrupted(2)), 60), converse(3, (0, interrupted(0, generation=7)), (0, interrupted(0, generation=0))),
        converse(3, (0, state(0, 5, 1)), (1, state(1, 5, 2)), 3), converse(3, (0, state(0, 5, 1, generation=9)), (1, state(-1, 5, 2)), (1, state(2**31 - 1, 5, 2))),
        converse(3, (0, join(3, 9)), (0, join(-1, 9)), (0, join(2**31 - 1, 9)), (0, join(0, 99)), (0, join(0, 1, job="other")), (0, join(0, 1, world=-1)), (0, join(0, 1, generation=2**64 - 1))),
        converse(1, (0x80, join(0, 1)), (0x80, node()), (0x80, heartbeat(0, 1)), 3), converse(1, (0, join(0, 1, host="h" * 60_000)), (0, join(0, 1, host="a\nb")), 3),
        converse(3, (3, node(started=[(0, 1), (1, 2), (2, 3)])), (3, exited(1, 2)), 9, (1, join(1, 44)), *((r, interrupted(r)) for r in (0, 2)), 5),
        converse(3, (3, node(started=[(-5, 1), (2**31 - 1, 2)])), (3, exited(-1, 2)), (3, exited(70_000, 2)), (3, exited(2, 3, 0x7f)), 9), converse(3, "kill 1", 60, (0, interrupted(0)), (2, interrupted(2)), 60),
        converse(3, (0, ended(0, 1)), (1, ended(1, 2, 255)), (2, ended(2, 3, 10)), 3), converse(3, *((r, part(r, rank=r)) for r in range(3)), (0, published), 3), converse(3, *((r, part(r, rank=r)) for r in range(3)), (0, endless), 3), converse(3, (0, part(0, ranks=-1, rank=2**31 - 1)), (1, part(1, generation=9)), "kill 0", 40),
        converse(3, (0, done(0)), (1, done(1)), (2, done(2)), (1, done(1)), 3), converse(3, (0, done(0)), (1, done(1, steps=-2**63)), (0, ended(0, 1)), (2, interrupted(2)), (1, done(1, generation=2)), 60),
        converse(3, (0, put("k" * 1024, "v")), (0, put("k" * 1025, "v")), (0, put("k", "v" * 60_000)), 3), converse(3, 63, 63, 63, 63, 63),
        converse(3, (0, interrupted(0, done=2**63 - 1)), (1, interrupted(1, done=-2**63)), (2, interrupted(2, voted=-2**63)), 60),
        converse(3, (0, interrupted(0, done=6, votes=b"v" * 40)), (1, interrupted(1)), (2, interrupted(2)), 9), converse(3, *((r, interrupted(r, unreachable=[-1, 0, 1, 2, 3, 2**31 - 1])) for r in range(3)), 60)]):
    seed("messages", f"talk{i}", data)
for i, data in enumerate([llm(20240801, 7, 20, struct.pack("<20I", *range(20))), llm(20240801, 7, 20, struct.pack("<20I", *range(20)) + b"ab"), llm(20240801, 1, 0, b"")]):
    seed("datasets", f"wide{i}", b"\3" + data)


JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqMyP/L2u71////m8H////6/+b9//j/2wBDASstLTw1PHZBQXb4pYyl+Pj4+Pj4+Pj4"
    "+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj/wAARCAAHAAkDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAL/xAAXEAADAQAAAAAAAAAAAAAAAAAAARVR/8QAFAEB"
    "AAAAAAAAAAAAAAAAAAAAAP/EABQRAQAAAAAAAAAAAAAAAAAAAAD/2gAMAwEAAhEDEQA/ALlrEJaxAAf/2Q==")  # 9x7, written by Pillow
for i, data in enumerate([JPEG, JPEG[:200], png(9, 7), png(60_000, 60_000, data=b""), png(3, 2)[:40], png(4, 4, 16, 6, bytes(4 * 33)), b"GIF89a", b""]):
    seed("pictures", f"picture{i}", b"\0" + data)
for i, text in enumerate(["a-{000..003}.tar", "{a,b}{1..2}", "{1..", "{2..1}", "{0..99999999999999999999}", "{a\n\0,{b"]):
    seed("pictures", f"braces{i}", b"\1" + text.encode())
good = tar(("a.jpg", JPEG), ("a.cls", b"1"), ("b.png", png(9, 7)), ("b.cls", b"0"))
for i, data in enumerate([good, good[:1000], good[:512], b"", tar(("a.jpg", JPEG)), tar(("x" * 300 + ".jpg", JPEG), ("x" * 300 + ".cls", b"1")), good[:124] + b"\x80" + b"\xff" * 11 + good[136:],
                          gzip.compress(good)]):
    seed("pictures", f"tar{i}", b"\2" + data)
    seed("pictures", f"tar_skip{i}", bytes([66]) + data)
for i, text in enumerate(['{"shardlist": [{"url": "part-0.tar", "nsamples": 3}]}', "[]", '{"shardlist": [{"url": 1}]}', '{"shardlist": [{"url": "part-0.tar", "nsamples": 1e300}]}']):
    seed("pictures", f"index{i}", b"\3" + text.encode())

archived = [{}, {"offset": 1, "sizes": (1,)}, {"offset": 1}, {"offset": -1}, {"sizes": (256,)}, {"sizes": (256, 256, 3, 3), "strides": (2304, 9, 3, 1), "elements": 1}, {"sizes": (-2,)},
           {"strides": (-1,), "offset": 1}, {"strides": (2**62,)}, {"sizes": (2**62, 2**62), "strides": (0, 0)}, {"sizes": (0,)}, {"sizes": (), "strides": ()}, {"elements": 2**40},
           {"elements": -1}, {"storage": "1"}, {"kind": "QInt8Storage"}, {"kind": "BoolStorage"}, {"kind": "UntypedStorage"}, {"rebuild": "_rebuild_sparse_tensor"},
           {"rebuild": "_rebuild_qtensor"}, {"rebuild": "_rebuild_tensor_v3"}, {"sizes": (1,) * 65, "strides": (1,) * 65}]
eight = struct.pack("<2f", 1, 2)
for i, fields in enumerate(archived):
    seed("plain_archive", f"tensor{i}", torch_file({"w": torch_tensor(**fields)}, eight))
good = torch_file({"w": torch_tensor(), "b": torch_tensor(offset=1, sizes=(1,)), "n": b"}X\1\0\0\0kK\7s", "l": b"]" + torch_tensor() + b"a"}, eight)
pickles = [b"\x80\x02}q\0X\1\0\0\0sh\0s.", b"\x80\x02" + b"]" * 1000 + b"a" * 999 + b".", b"\x80\x02X\xff\xff\xff\xff", b"\x80\x02}r\xff\xff\xff\xff.", b"\x80\x04.",
           b"\x80\x02cos\nsystem\n(X\4\0\0\0truetR.", b"\x80\x02}(X\1\0\0\0a" + torch_tensor() + b"X\1\0\0\0bK\1G" + bytes(8) + b"N\x88\x89M\1\0J\1\0\0\0)\x87\x86\x85eu.", b"u", b""]
for i, data in enumerate([good, good[:-1], good[:200], torch_file({"w": torch_tensor()}, eight, compression=8), torch_file({}, eight), *(torch_file(data, eight) for data in pickles)]):
    seed("plain_archive", f"file{i}", data)
for i, data in enumerate([*pickles, b"\x80\x02}(X\1\0\0\0w" + torch_tensor() + b"u."]):
    seed("plain_archive", f"pickle{i}", data)

# The first byte says which file the rest is: 0 shard.npy, 1 shard.bin, 2 the index of a shard.bin of 64 bytes.
numpy = lambda text: b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode()
for i, text in enumerate(["{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }\n", "{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }\n", "{'descr': '|O'}\n", "",
                          "{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,), }\n", "{'descr': '<u2', 'shape': (2, 2)}\n"]):
    seed("tokens", f"numpy{i}", b"\0" + numpy(text) + bytes(8))
for i, data in enumerate([bytes(64), bytes(7), struct.pack("<256i", 20240520, 1, 4, *[0] * 253) + bytes(8), struct.pack("<256i", 20240801, 7, 2, *[0] * 253) + bytes(8),
                          struct.pack("<256i", 20240520, 1, 2**31 - 1, *[0] * 253), struct.pack("<256i", 20240520, 9, 4, *[0] * 253)]):
    seed("tokens", f"shard{i}", b"\1" + data)
for i, (version, kind, sequences, documents) in enumerate([(1, 8, 2, 1), (1, 4, 2, 1), (2, 8, 2, 1), (1, 99, 2, 1), (1, 8, 2**62, 1), (1, 8, 2, 2**63)]):
    seed("tokens", f"index{i}", b"\2" + b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, kind, sequences, documents) + struct.pack("<2i2q2q", 16, 16, 0, 32, 0, 2))

for i, text in enumerate(['{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}', '{"weight_map": {"a": "../a"}}',
                          '{"weight_map": {"a": 1}}', '{"weight_map": []}', "{}", "", "[" * 5000, '{"weight_map": {"a": "model-00003-of-00002.safetensors"}}']):
    seed("model_folder", f"index{i}", b"\0" + text.encode())
for i, data in enumerate([tensors({"b": f32([1], 0, 4)}, bytes(4)), tensors({"__metadata__": {"DCP_SHARDING_INFO": '{"b": {"saved_offsets": [0]}}'}, "b": f32([1], 0, 4)}, bytes(4)),
                          tensors({"a": f32([1], 0, 4)}, bytes(4)), b""]):
    seed("model_folder", f"file{i}", b"\1" + data)

for i, text in enumerate(['{"kind": "train", "step": 1, "loss": 1.5}\n', '{"kind": "start", "step": 0}\n{"kind": "train", "step": 1}\n{"step"', '{"step": -1}\n', '{"step": 1e300}\n', "[" * 5000 + "\n",
                          '{"kind": "event", "step": 1, "event": "membership", "members": [{"rank": 1}]}\n', '{"kind": 7, "step": "x"}\n', "\0\n", "\n\n"]):
    seed("records", f"lines{i}", b"\0" + text.encode())
for i, text in enumerate(['{"job_id": "a", "started": "b", "versions": {"troupe": "1"}, "command": ["a", "b"]}', "[]", '{"command": [1]}', '{"versions": 1}', "{" * 5000, ""]):
    seed("records", f"facts{i}", b"\1" + text.encode())

torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "a"}
slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "1", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0",
         "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURMD_NODENAME": "n2", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_END_TIME": "1800000000"}
launched = {**torchrun, "TROUPE_COORDINATOR": "[::1]:29400", "TROUPE_SLOT": "1", "TROUPE_INCARNATION": "00000000000000ff", "TROUPE_SPARE": "0", "TROUPE_JOB_ID": "a", "TROUPE_NODE": "n"}
places = [torchrun, slurm, launched]
for i, place in enumerate([*places, *({**place, key: value} for place in places for key in place for value in ("", "-1", "99999999999999999999", "x[1-"))]):
    seed("environment", f"{i}", "".join(f"{key}={value}\n" for key, value in place.items()))

form = {"dtype": "F32", "sizes": [[1, "s0"], 3], "order": [0, 1]}
graph = {"inputs": [form, {"dtype": "F32", "sizes": [3], "order": [0]}], "outputs": [{"dtype": "F32", "sizes": [], "order": []}], "writes": [],
         "backward": True, "saved": [["input", 0], ["output", 1]], "tangents": [0], "gradients": [1]}
one_pass = {"calls": [{"graph": 0, "block": "a", "arguments": [{"value": 0}, {"tensor": "a.w"}], "results": [1]}], "loss": {"loss": 1}, "chain": ""}
model = {"format": 1, "torch": "2.11.0", "device": "cpu", "instruction_set": ["avx2"], "autocast": None, "model": "Net", "fields": [{"name": "input", "dtype": "F32"}],
         "tensors": [{"name": "a.w", "kind": "parameter", "dtype": "F32", "shape": [3], "trained": True}], "blocks": [{"path": "a", "type": "Net"}],
         "graphs": [graph], "passes": {"train": one_pass, "eval": one_pass},
         "sections": [{"name": n, "offset": 0, "size": 1, "sha256": "0" * 64} for n in ("0.forward", "0.backward", "values")]}
for i, change in enumerate([{}, {"format": 2}, {"device": "cuda"}, {"graphs": []}, {"sections": []}, {"tensors": []}, {"blocks": []}, {"fields": []},
                            {"graphs": [{**graph, "order": [0, 0]}]}, {"graphs": [{**graph, "saved": [["input", 9]]}]},
                            {"passes": {"train": {**one_pass, "loss": {"loss": 7}}, "eval": one_pass}}]):
    seed("compiled", f"{i}", json.dumps({**model, **change}))
packed = {"format": 1, "fields": [{"name": "x", "dtype": "F32", "shape": [2]}], "train": 3, "held_out": 0, "passes": 1,
          "files": [{"name": "train-000-00000.safetensors", "part": "train", "pass": 0, "samples": 3, "sha256": ""}]}
for i, change in enumerate([{}, {"train": -1}, {"fields": []}, {"files": [{"name": "../x", "part": "train", "samples": 1}]}, {"passes": 0}, {"train": 1 << 62, "passes": 4}]):
    seed("datasets", f"packed{i}", b"\5" + json.dumps({**packed, **change}).encode())
