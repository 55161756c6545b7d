"""As share.hpp: of a test of many combinations CI runs a share, others for each commit.

share.py SHARE NAME PROGRAM ARGUMENTS..: runs the program, or says that it is not in this commit's share."""
import hashlib
import os
import sys


def in_share(share, combination):
    """All are, unless TROUPE_SHARE is set, as `./dev test` sets it to the commit: then about `share` (0 to 1) of them."""
    seed = os.environ.get("TROUPE_SHARE")
    return seed is None or int(hashlib.sha256(f"{seed} {combination}".encode()).hexdigest()[:8], 16) < share * 2**32


if __name__ == "__main__":
    share, name, *command = sys.argv[1:]
    if in_share(float(share), name):
        os.execvp(command[0], command)
    print(f"not in this commit's share: {name}")
