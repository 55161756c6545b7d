"""The rows of whole optimizer steps: ddp.*, fsdp.*, jitter/*, actors/*, memory/*, beside PyTorch's DDP and FSDP2."""
import statistics

from harness import OURS, TORCHRUN, AtOnce, Program, flat, floats, report, step_answers, step_times, weights_difference, weights_differences

DDP = {"ddp.mlp/b16": ("mlp", 16), "ddp.mlp/b64": ("mlp", 64), "ddp.mlp/b128": ("mlp", 128), "ddp.resnet": ("resnet", 32), "ddp.gpt": ("gpt", 1)}
FSDP = {"fsdp.mlp/b16": ("mlp", 16), "fsdp.mlp/b128": ("mlp", 128), "fsdp.gpt": ("gpt", 1)}
DDP_TARGETS = {"ddp.mlp/b16": 0.62, "ddp.mlp/b16/early": 0.50, "ddp.mlp/b64": 0.72, "ddp.mlp/b128": 0.82, "ddp.resnet": 0.85, "ddp.gpt": 0.85,
               "actors/b16": 50.0, "actors/b64": 50.0, "jitter/b16": 1.08}
FSDP_TARGETS = {"fsdp.mlp/b16": 0.25, "fsdp.mlp/b128": 0.40, "fsdp.gpt": 0.60, "fsdp.mlp/b16/ddp": 1.15, "fsdp.mlp/b128/ddp": 1.15}
MEMORY_TARGETS = {"memory/ddp.gpt": 0.80, "memory/fsdp.gpt": 0.80}
TARGETS = {**DDP_TARGETS, **FSDP_TARGETS, **MEMORY_TARGETS}
STEPS = {"mlp": 15, "gpt": 5, "resnet": 5}  # of a block, by job
JITTER_STEPS = 200
EARLY_STEPS, EARLY_TOLERANCE = 20, 1e-6  # after so many steps the weights of early updates are those of DDP but for so much
BUCKETS_MB = (5, 25, 100)


def ours(job, batch, strategy="ddp", early=False):
    flags = ["--job", job, "--batch", str(batch), "--strategy", strategy] + (["--early-update", "true"] if early else [])
    return Program([str(OURS / "bench_steps")] + flags, f"bench_steps {job} {strategy}{' with early_update' if early else ''}")


def ddp_peer(job, batch, bucket_mb, static=False):
    flags = ["--job", job, "--batch", str(batch), "--bucket-mb", str(bucket_mb)] + (["--static-graph"] if static else [])
    return Program(TORCHRUN + ["bench/peer/ddp.py"] + flags, f"DDP with buckets of {bucket_mb} MB")


def fsdp_peer(job, batch, keep):
    flags = ["--job", job, "--batch", str(batch)] + (["--keep"] if keep else [])
    return Program(TORCHRUN + ["bench/peer/fsdp.py"] + flags, "FSDP2")


def answers_beside_alone(programs, job, batch, blocks, steps):
    """The programs' step_answers, and those, as "alone", where both cores are at LibTorch alone, each for itself: nothing is exchanged."""
    bare = AtOnce([Program([str(OURS / "bench_bare_steps"), "--batch", str(batch), "--job", job, "--core", str(core)], f"LibTorch alone on core {core}")
                   for core in range(2)])
    answers = step_answers({**programs, "alone": bare}, blocks, steps)
    bare.quit()
    return answers


def take_alone_ms(times):
    """The median step of "alone", which is taken out."""
    return round(statistics.median(flat(times.pop("alone"))), 1)


def run_steps(rows, blocks, steps):
    """All rows of this file that are in `rows`: a list of results for each part of the work."""
    for row, (job, batch) in DDP.items():
        mine = [name for name in (row, f"{row}/early", f"actors/b{batch}") if name in rows and (job == "mlp" or not name.startswith("actors"))]
        if mine:
            yield run_ddp(row, mine, job, batch, blocks, steps or STEPS[job])
    if "jitter/b16" in rows:
        yield [run_jitter("jitter/b16", 16, min(blocks, 5), steps or JITTER_STEPS)]
    for row, (job, batch) in FSDP.items():
        mine = [name for name in (row, f"{row}/ddp") if name in rows]
        if mine:
            yield run_fsdp(row, mine, job, batch, blocks, steps or STEPS[job])
    for row in MEMORY_TARGETS:
        if row in rows:
            yield [run_memory(row, blocks)]


def run_ddp(row, rows, job, batch, blocks, steps):
    peers = {f"bucket {mb} MB{', static graph' if static else ''}": ddp_peer(job, batch, mb, static)
             for mb in BUCKETS_MB for static in (False, True)}
    everyone = {"ours": ours(job, batch), **peers}
    if f"{row}/early" in rows:
        everyone["early"] = ours(job, batch, early=True)
    # DDP rebuilds its buckets in the block that warms up, we too.
    answers = answers_beside_alone(everyone, job, batch, blocks, steps)
    times = step_times(answers)
    alone_ms = take_alone_ms(times)
    actors_us = [floats(answer["actors_us"]) for answer in answers["ours"] if "actors_us" in answer]
    differences = weights_differences(everyone, "ours")
    peer_times = {setting: times[setting] for setting in peers}
    results = []
    if row in rows:
        extra = {"max_weight_difference": max(differences[setting] for setting in peers), "alone_ms": alone_ms}
        results.append(report(row, TARGETS[row], times["ours"], peer_times, "ms", extra))
    if f"{row}/early" in rows:  # other bits, which this job makes larger from step to step: compared early in a run of its own
        extra = {"max_weight_difference": early_difference(job, batch), "weight_difference_at_end": differences["early"], "alone_ms": alone_ms}
        results.append(report(f"{row}/early", TARGETS[f"{row}/early"], times["early"], peer_times, "ms", extra, weight_tolerance=EARLY_TOLERANCE))
    if f"actors/b{batch}" in rows and actors_us:
        results.append(actors(f"actors/b{batch}", actors_us, times["ours"]))
    return results


def early_difference(job, batch):
    """The largest difference between the weights of early updates and DDP's after EARLY_STEPS steps."""
    programs = {"early": ours(job, batch, early=True), "peer": ddp_peer(job, batch, BUCKETS_MB[0])}
    for program in programs.values():
        program.ask(f"block {EARLY_STEPS}", "step_ms")
    return weights_difference(programs, "peer")


def actors(row, actors_us, times):
    spent, step = statistics.median(flat(actors_us)), statistics.median(flat(times))
    share = spent / (step * 1e3)
    ok = spent <= TARGETS[row] and share <= 0.01
    print(f"{row} ours={spent:.1f} unit=us share_of_step={share:.4%} target={TARGETS[row]:.0f}us,1% {'ok' if ok else 'short'}", flush=True)
    return {"row": row, "unit": "us", "ours": spent, "share_of_step": share, "ok": ok, "samples": actors_us}


def run_jitter(row, batch, blocks, steps):
    """p99 / p50 of the step, the median of blocks that are long beside what a program takes to be warm again. `alone` is what the machine
    itself does: LibTorch alone on both cores at once."""
    peers = {f"bucket {mb} MB": ddp_peer("mlp", batch, mb) for mb in BUCKETS_MB}
    programs = {"ours": ours("mlp", batch), **peers}
    times = step_times(answers_beside_alone(programs, "mlp", batch, blocks, steps))
    for program in programs.values():
        program.quit()
    found = {name: statistics.median(statistics.quantiles(block, n=100)[98] / statistics.median(block) for block in times[name]) for name in times}
    best = min(peers, key=lambda setting: statistics.median(flat(times[setting])))
    ok = found["ours"] <= TARGETS[row] and found["ours"] <= found[best]
    print(f"{row} ours={found['ours']:.4f} peer={found[best]:.4f} unit=p99/p50 steps={blocks}x{steps} target={TARGETS[row]:.2f},peer "
          f"alone_p99/p50={found['alone']:.4f} peer_setting='{best}' {'ok' if ok else 'short'}", flush=True)
    return {"row": row, "unit": "p99/p50", "ours": found["ours"], "peer": found[best], "ok": ok, "peer_setting": best,
            "alone_p99/p50": round(found["alone"], 3)}


def run_fsdp(row, rows, job, batch, blocks, steps):
    """Beside FSDP2, and beside our own ddp."""
    peers = {"reshard": fsdp_peer(job, batch, False), "keep": fsdp_peer(job, batch, True)}
    everyone = {"fsdp": ours(job, batch, "fsdp"), **peers}
    if f"{row}/ddp" in rows:
        everyone["ddp"] = ours(job, batch)
    times = step_times(answers_beside_alone(everyone, job, batch, blocks, steps))
    alone_ms = take_alone_ms(times)
    extra = {"max_weight_difference": weights_difference(everyone, "fsdp"), "alone_ms": alone_ms}
    results = []
    if row in rows:
        results.append(report(row, TARGETS[row], times["fsdp"], {s: times[s] for s in peers}, "ms", extra))
    if f"{row}/ddp" in rows:
        results.append(report(row + "/ddp", TARGETS[row + "/ddp"], times["fsdp"], {"our ddp": times["ddp"]}, "ms", extra))
    return results


def run_memory(row, rounds):
    """The largest Pss of any rank in 5 steps after 5 others; one program at a time, for what programs share would count in parts."""
    strategy = row.split("/")[1].split(".")[0]
    job, batch = (DDP | FSDP)[row.split("/")[1]]
    peers = ({f"bucket {mb} MB": lambda mb=mb: ddp_peer(job, batch, mb) for mb in BUCKETS_MB} if strategy == "ddp" else
             {"reshard": lambda: fsdp_peer(job, batch, False)})
    found = {name: [] for name in ("ours", *peers)}
    for _ in range(min(rounds, 3)):
        for name, start in {"ours": lambda: ours(job, batch, strategy), **peers}.items():
            program = start()
            program.ask("block 5", "step_ms")
            found[name].append([max(floats(program.ask("memory 5", "peak_pss_mib")["peak_pss_mib"]))])
            program.quit()
    return report(row, TARGETS[row], found["ours"], {name: found[name] for name in peers}, "MiB", {})
