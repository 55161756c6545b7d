#!/usr/bin/env python3
"""[L07] `troupe doctor` starts a rank on every host of a list: sums, gradients, pace; and names the rank that fails.

    tests/net/check_net_test.py TROUPE
"""
import json
import sys

from cluster import Cluster
from job import check, run_claims


def doctor(cluster, troupe, *flags, fault=""):
    done = cluster.run("h0", ["env", f"TROUPE_FAULT={fault}", troupe, "doctor", "--hosts", f"{cluster.folder}/hostfile", "--ssh-config",
                              cluster.ssh_config, "--json", *flags], capture_output=True, timeout=240)
    return done.returncode, json.loads(done.stdout)["findings"], done.stderr


def main():
    troupe = sys.argv[1]
    with Cluster(3) as cluster:
        code, findings, errors = doctor(cluster, troupe)
        by_check = {finding["check"]: finding for finding in findings}
        check(code == 0 and errors == "", f"exit code {code}", f"{findings}\n{errors}")
        for name in ("collective", "gradients", "pace"):
            check(by_check[name]["verdict"] == "ok", name, str(findings))
        check("3 ranks" in by_check["collective"]["found"] and "gloo" in by_check["collective"]["found"], "three hosts", str(by_check))
        check(len([finding for finding in findings if finding["check"] == "link"]) == 6, "links", str(findings))
        print("ok: three hosts add up and agree on gradients")

        code, findings, _ = doctor(cluster, troupe, "--no-links", fault="slot=1,step=0,at=vote")
        failures = [finding for finding in findings if finding["verdict"] == "fail"]
        check(code == 69 and len(failures) == 1 and failures[0]["check"] == "collective" and "rank 1" in failures[0]["found"],
              f"exit code {code}", str(findings))
        print("ok: a rank that dies is named")

        code, findings, _ = doctor(cluster, troupe, "--no-links", "--no-ranks")
        check(code == 0 and not [finding for finding in findings if finding["check"] == "collective"], f"exit code {code}", str(findings))


if __name__ == "__main__":
    run_claims(main)
