"""Reads a checkpoint with Python's own means and says what it found: read_checkpoint.py FOLDER [--small-state STEP]

The standard library is enough for the structure; numpy, safetensors, torch and xxhash each add a check where they are installed.
--small-state compares with tests/support/training_state.hpp.
"""
import ctypes
import json
import pathlib
import struct
import sys

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def xxh3():
    """A function from bytes to 16 digits, or None."""
    try:
        import xxhash
        return lambda data: f"{xxhash.xxh3_64_intdigest(data):016x}"
    except ImportError:
        pass
    try:
        library = ctypes.CDLL("libxxhash.so.0")
    except OSError:
        return None
    library.XXH3_64bits.restype = ctypes.c_uint64
    return lambda data: f"{library.XXH3_64bits(data, ctypes.c_size_t(len(data))):016x}"


def read_safetensors(data):
    """Metadata and {name: (dtype, shape, bytes)}."""
    (header_bytes,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + header_bytes])
    assert header_bytes % 8 == 0, "header is not padded"
    metadata = header.pop("__metadata__")
    end, tensors = 8 + header_bytes, {}
    for name, entry in header.items():  # in the order of the offsets
        begin, stop = (8 + header_bytes + offset for offset in entry["data_offsets"])
        numel = 1
        for dimension in entry["shape"]:
            numel *= dimension
        assert begin == end and begin % BYTES[entry["dtype"]] == 0, f"{name} is not aligned behind the one before"
        assert stop - begin == numel * BYTES[entry["dtype"]], name
        tensors[name] = (entry["dtype"], entry["shape"], data[begin:stop])
        end = stop
    assert end == len(data), "bytes after the last tensor"
    return metadata, tensors


def check_structure(folder):
    text = (folder / "manifest.json").read_bytes()
    manifest = json.loads(text)
    digest = xxh3()
    if digest:
        assert digest(text[:text.rindex(b',\n  "xxh3"')]) == manifest["xxh3"], "manifest's hash"
    for entry in manifest["files"]:
        data = (folder / entry["name"]).read_bytes()
        assert len(data) == entry["bytes"], entry["name"]
        if digest:
            assert digest(entry["chunks"].encode()) == entry["xxh3"], entry["name"]
            step = manifest["chunk_bytes"]
            assert "".join(digest(data[i:i + step]) for i in range(0, len(data), step)) == entry["chunks"], entry["name"]
    for rank in range(manifest["ranks"]):
        json.loads((folder / f"rank-{rank:05}.json").read_text())
    files, shardings = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        metadata, files[path.name] = read_safetensors(path.read_bytes())
        assert metadata["format"] == "pt" and metadata["DCP_VERSION"] == "1.0"
        shardings[path.name] = json.loads(metadata["DCP_SHARDING_INFO"])
    tensors = {}
    for entry in manifest["tensors"]:
        name, data = entry["name"], b""
        for part in sorted(entry["slices"], key=lambda part: part["offsets"]):
            dtype, shape, raw = files[part["file"]][name]
            assert (dtype, shape) == (entry["dtype"], part["shape"]), name
            assert shardings[part["file"]][name] == {"saved_offsets": part["offsets"]}, name
            assert part["offsets"][1:] == [0] * len(part["offsets"][1:]), "only rows are cut"
            data += raw
        tensors[name] = (entry["dtype"], entry["shape"], data)
    print(f"structure: {len(tensors)} tensors in {len(files)} files, {manifest['ranks']} ranks, "
          f"hashes {'equal' if digest else 'NOT CHECKED (no libxxhash)'}")
    return tensors


def check_small_state(tensors, step):
    assert set(tensors) == {"model.weight", "model.steps", "model.half", "optimizer.weight.momentum_buffer"}
    assert list(struct.unpack("<12f", tensors["model.weight"][2])) == [step + i for i in range(12)]
    assert struct.unpack("<q", tensors["model.steps"][2]) == (step,)
    print("values: equal")


def check_with_packages(folder, tensors):
    paths = sorted(str(path) for path in folder.glob("*.safetensors"))
    try:
        from safetensors import safe_open
        for path in paths:
            with safe_open(path, "numpy") as file:
                for name in file.keys():
                    if tensors[name][0] != "BF16":  # numpy has none
                        assert file.get_tensor(name).tobytes() in tensors[name][2], name
        print("safetensors with numpy: equal")
    except ImportError as error:
        print("safetensors with numpy: NOT CHECKED:", error)
    try:
        import safetensors.torch
        import torch
        import torch.distributed.checkpoint as dcp
    except (ImportError, OSError) as error:
        print("torch: NOT CHECKED:", error)
        return
    dtypes = {name: tensor.dtype for path in paths for name, tensor in safetensors.torch.load_file(path).items()}
    state = {name: torch.zeros(shape, dtype=dtypes[name]) for name, (_, shape, _) in tensors.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
    for name, tensor in state.items():
        assert bytes(tensor.reshape(-1).view(torch.uint8).tolist()) == tensors[name][2], name
    print("torch.distributed.checkpoint: equal")


def main():
    folder = pathlib.Path(sys.argv[1])
    tensors = check_structure(folder)
    if "--small-state" in sys.argv:
        check_small_state(tensors, int(sys.argv[sys.argv.index("--small-state") + 1]))
    check_with_packages(folder, tensors)


if __name__ == "__main__":
    main()
