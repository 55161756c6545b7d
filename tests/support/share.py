"""As share.hpp: of a test of many combinations CI runs a share, others for each commit."""
import hashlib
import os


def in_share(share, combination):
    """All are, unless TROUPE_SHARE is set, as `./dev test` sets it to the commit: then about `share` (0 to 1) of them."""
    seed = os.environ.get("TROUPE_SHARE")
    return seed is None or int(hashlib.sha256(f"{seed} {combination}".encode()).hexdigest()[:8], 16) < share * 2**32
