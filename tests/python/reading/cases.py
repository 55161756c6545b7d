"""What tests/reading/cases/READER.json holds: files, and what the usual tool reads in them. A module make_READER.py has `TOOL`, the tool and
its version, and `cases()`, which yields Case; it draws what it needs with a fixed seed, so that it makes the same file each time.
"""
import base64
import dataclasses


@dataclasses.dataclass
class Case:
    name: str
    files: dict  # path below the case's folder -> bytes
    values: dict = dataclasses.field(default_factory=dict)  # name -> numpy array or tensor(), as the usual tool reads it
    refused: str = ""  # words of the refusal, where it is not read
    on_purpose: str = ""  # why it is refused or read otherwise, though the usual tool reads it
    settings: dict = dataclasses.field(default_factory=dict)  # of our reader
    links: dict = dataclasses.field(default_factory=dict)  # path -> what it leads to
    tolerance: float = 0

    def entry(self):
        entry = {"name": self.name, "files": {path: base64.b64encode(data).decode() for path, data in self.files.items()}}
        for name in ("settings", "links", "refused", "on_purpose", "tolerance"):
            if getattr(self, name):
                entry[name] = getattr(self, name)
        if self.values:
            entry["values"] = {name: value if isinstance(value, dict) else tensor(value) for name, value in self.values.items()}
        return entry


def tensor(array, dtype=None):
    """`dtype`: where numpy has no name for it (bfloat16); the array then holds its bits."""
    return {"dtype": dtype or array.dtype.name, "shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}
