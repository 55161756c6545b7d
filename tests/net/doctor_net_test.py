#!/usr/bin/env python3
"""[L06] `troupe doctor` on three hosts: doctor_net_test.py PROGRAM. Exits with 77, loudly, where namespaces are refused."""
import json
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cluster import SKIP, CannotRun, Cluster  # noqa: E402

PATIENCE = 240  # s


def doctor(cluster, *flags, hosts="h0,h1:1,h2"):
    done = cluster.run("h0", [f"{cluster.folder}/troupe", "doctor", "--hosts", hosts, "--ssh-config", cluster.ssh_config, "--json", *flags],
                       capture_output=True, timeout=PATIENCE)
    assert done.stderr == "", done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] + result["warn"] + result["fail"] == len(result["findings"])
    assert done.returncode == (69 if result["fail"] else 0), done
    return result["findings"]


def of(findings, check, host=None, verdict=None):
    return [each for each in findings if each["check"] == check and host in (None, each["host"]) and verdict in (None, each["verdict"])]


def only_failure(findings, check, host, found, remedy):
    failures = [each for each in findings if each["verdict"] == "fail"]
    assert len(failures) == 1, failures
    failure = failures[0]
    assert (failure["check"], failure["host"]) == (check, host), failure
    assert found in failure["found"] and remedy in failure["remedy"], failure


def a_healthy_cluster_has_no_failure(cluster):
    findings = doctor(cluster)
    assert not [each for each in findings if each["verdict"] == "fail"], findings
    for check in ("ssh", "build", "clock", "version", "memory", "disk", "shm", "nofile", "addresses", "ports"):
        for host in cluster.hosts:
            assert len(of(findings, check, host)) == 1, (check, host)
    assert len(of(findings, "name")) == 9 and len(of(findings, "link")) == 6
    assert "on h1" in of(findings, "version", "h1")[0]["found"]
    assert not of(findings, "shm", "h0", "ok"), "64 MiB of /dev/shm are few"
    lines = cluster.run("h0", [f"{cluster.folder}/troupe", "doctor", "--hosts", f"{cluster.folder}/hostfile", "--ssh-config", cluster.ssh_config,
                               "--no-links"], capture_output=True, timeout=PATIENCE)
    assert lines.returncode == 0 and "ok    h2        ssh " in lines.stdout and "link" not in lines.stdout, lines


def another_build_is_named(cluster):
    folder = pathlib.Path(cluster.folder)
    program = (folder / "troupe").read_bytes()
    build = bytes.fromhex(json.loads((folder / "build.json").read_text()))
    assert program.count(build) == 1
    (folder / "other").write_bytes(program.replace(build, build[::-1]))
    (folder / "other").chmod(0o755)
    cluster.run("h2", ["mount", "--bind", f"{folder}/other", f"{folder}/troupe"], check=True)
    only_failure(doctor(cluster, "--no-links"), "build", "h2", build[::-1].hex()[:12], "same build")
    cluster.run("h2", ["umount", f"{folder}/troupe"], check=True)


def an_absent_program_is_named(cluster):
    findings = doctor(cluster, "--troupe", "/nowhere/troupe")
    assert len(of(findings, "troupe", verdict="fail")) == 3, findings
    assert "/nowhere/troupe" in of(findings, "troupe", "h1")[0]["found"]


def a_name_that_is_loopback_on_a_host_is_named(cluster):
    folder = pathlib.Path(cluster.folder)
    (folder / "debian_hosts").write_text("127.0.0.1 localhost\n127.0.1.1 h1\n10.213.0.1 h0\n10.213.0.3 h2\n")
    cluster.run("h1", ["mount", "--bind", f"{folder}/debian_hosts", "/etc/hosts"], check=True)
    only_failure(doctor(cluster, "--no-links"), "name", "h1", "127.0.1.1", "address=IP")
    links = of(doctor(cluster), "link", verdict="fail")
    assert {each["host"] for each in links} == {"h0 -> h1", "h2 -> h1"}, links
    addresses = ",".join(cluster.hosts)
    findings = doctor(cluster, hosts=f"{cluster.folder}/hostfile")  # address=IP, as the remedy says
    assert not [each for each in findings if each["verdict"] == "fail"], (addresses, findings)
    cluster.run("h1", ["umount", "/etc/hosts"], check=True)


def a_slow_link_is_a_warning(cluster):
    cluster.rate("h2", "20mbit")
    slow = of(doctor(cluster), "link", verdict="warn")
    cluster.heal()
    assert {"h0 -> h2", "h2 -> h0"} <= {each["host"] for each in slow}, slow


def a_broken_link_is_a_failure(cluster):
    cluster.partition(["h1"], ["h2"])
    broken = of(doctor(cluster), "link", verdict="fail")
    cluster.heal()
    assert {each["host"] for each in broken} == {"h1 -> h2", "h2 -> h1"}, broken
    assert "firewall" in broken[0]["remedy"], broken


def a_host_that_is_off_is_named(cluster):
    cluster.kill("h2")
    findings = doctor(cluster)
    only_failure(findings, "ssh", "h2", "refused", "sshd")
    assert len(of(findings, "link")) == 2
    cluster.restart("h2")


def a_host_without_our_key_is_named(cluster):
    keys = pathlib.Path(cluster.folder, "authorized_keys")
    kept = keys.read_text()
    keys.write_text("")
    findings = doctor(cluster)
    keys.write_text(kept)
    denied = of(findings, "ssh", verdict="fail")
    assert len(denied) == 3 and "Permission denied" in denied[0]["found"] and "ssh-copy-id h0" in denied[0]["remedy"], denied


def a_link_can_be_measured_by_hand(cluster):
    program = f"{cluster.folder}/troupe"
    server = cluster.start("h1", [program, "doctor", "--serve", "10.213.0.2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port, token = server.stdout.readline().split()
    measured = cluster.run("h0", [program, "doctor", "--measure", f"10.213.0.2:{port}"], input=token + "\n", capture_output=True, timeout=PATIENCE)
    assert measured.returncode == 0 and "Mbit/s, round trip" in measured.stdout, measured
    wrong = cluster.run("h0", [program, "doctor", "--measure", f"10.213.0.2:{port}"], input="0" * 32 + "\n", capture_output=True, timeout=PATIENCE)
    assert wrong.returncode == 69 and "token" in wrong.stderr, wrong
    server.stdin.close()
    assert server.wait(timeout=PATIENCE) == 0


def main():
    with Cluster(3, shm_mb=64) as cluster:
        program = f"{cluster.folder}/troupe"
        shutil.copy(sys.argv[1], program)
        facts = cluster.run("h0", [program, "doctor", "--agent"], input="facts /tmp\n", capture_output=True, timeout=PATIENCE).stdout
        build = json.loads(facts.splitlines()[1].removeprefix("facts "))["build_id"]
        pathlib.Path(cluster.folder, "build.json").write_text(json.dumps(build))
        for claim in (a_healthy_cluster_has_no_failure, another_build_is_named, an_absent_program_is_named,
                      a_name_that_is_loopback_on_a_host_is_named, a_slow_link_is_a_warning, a_broken_link_is_a_failure,
                      a_host_that_is_off_is_named, a_host_without_our_key_is_named, a_link_can_be_measured_by_hand):
            claim(cluster)
            print(f"ok: {claim.__name__.replace('_', ' ')}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main()
    except CannotRun as reason:
        print(f"SKIPPED, NOTHING TESTED: {reason}", file=sys.stderr)
        sys.exit(SKIP)
