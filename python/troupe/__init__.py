"""The `troupe` command, and what it does in Python: `troupe compile`, `troupe pack` and `troupe.train`."""
from .command import main, program
from .refusal import Refusal
from .training import train

__all__ = ["Refusal", "main", "program", "train"]
