"""The file of a compiled model (docs/formats.md): a header with its size, a manifest in JSON, and sections: shared objects and first values."""
import ctypes
import hashlib
import json
import os
import pathlib
import struct

import torch

MAGIC = b"TROUPEM1"
ALIGNMENT = 64
SAFETENSORS_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
                     torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}


def bytes_of(tensor):
    tensor = tensor.detach().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""


def safetensors(tensors):
    """The bytes of a safetensors file with these tensors."""
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        blob = bytes_of(tensor)
        header[name] = {"dtype": SAFETENSORS_TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def read_safetensors(path):
    """name -> tensor of a small safetensors file."""
    content = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:8 + size]), bytearray(content[8 + size:])
    types = {name: dtype for dtype, name in SAFETENSORS_TYPES.items()}
    result = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            dtype = types[entry["dtype"]]
            flat = torch.frombuffer(data, dtype=dtype, offset=begin, count=(end - begin) // dtype.itemsize) if end > begin else torch.empty(0, dtype=dtype)
            result[name] = flat.reshape(entry["shape"]).clone()
    return result


def write(path, manifest, sections):
    """Writes beside `path` and renames, so that an interrupted write leaves the old file. `sections`: name -> bytes."""
    place, entries = 0, []
    for name, content in sections.items():
        entries.append({"name": name, "offset": place, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
        place += len(content) + -len(content) % ALIGNMENT
    text = json.dumps({**manifest, "sections": entries}, separators=(",", ":")).encode()
    text += b" " * (-(len(MAGIC) + 8 + len(text)) % ALIGNMENT)
    path = pathlib.Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            file.write(MAGIC + struct.pack("<Q", len(text)) + text)
            for content in sections.values():
                file.write(content + bytes(-len(content) % ALIGNMENT))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
