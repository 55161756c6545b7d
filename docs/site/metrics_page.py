"""docs/reference/metrics.md: from the list of metrics in actors/metrics/metric.cpp, from what each kind of record is given in metrics.cpp, and from
what the page for Prometheus adds. A line, a name or a key that is not understood here is an error."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = "actors/metrics/metric.cpp"
# Units of metrics whose names do not end with one in parentheses; empty: a number without a unit.
UNITS = {
    "loss_metrics/global_avg_loss": "", "loss_metrics/global_max_loss": "", "grad_norm": "", "buckets": "buckets", "world_size": "ranks", "lr": "",
    "accuracy": "0 to 1", "loss_scale": "", "skipped_steps": "steps", "slow_ranks": "ranks", "total_steps": "steps", "validation_metrics/loss": "",
    "validation_metrics/accuracy": "0 to 1", "validation_metrics/samples": "samples",
}
LONG_UNITS = {"tps": "tokens/s"}
# What a line of metrics.jsonl has beside its metrics, by key of to_json: (kinds, meaning). Inner keys stand with their outer one.
KEYS = {
    "schema": ("all", "version of the format: 1; it grows when a name changes its meaning"),
    "kind": ("all", "`start`, `train`, `validation`, `event` or `end`"),
    "step": ("all", "optimizer steps done in the run"),
    "epoch": ("all", "epoch of the data, from 0"),
    "wall_time": ("all", "seconds since 1970"),
    "own": ("train, validation", "metrics of the program (`Rank::log`), by name, and of the strategy (`strategy/NAME`)"),
    "stragglers": ("train", "slow ranks: `rank`, `host`, `section`, `ratio`, `own(ms)`"),
    "ranks": ("train", "by rank, own work of a step without waiting for others: `data(ms)`, `forward(ms)`, `backward(ms)`"),
    "best": ("validation", "true if this is the best validation of the run so far"),
    "event": ("event", "what happened: see below"),
    "text": ("event", "the reason, the notice or the warning"),
    "generation": ("start, event", "number of the membership"),
    "stalled(ms)": ("event", "membership: time from the news of the loss until rank 0 could go on; 0 if rank 0 is new"),
    "cause": ("event", "membership: why the one before ended; not there if rank 0 is new"),
    "members": ("event", "membership: `rank`, `slot`, `host`, `newcomer` of each rank"),
    "error": ("end", "why the run ended; empty if it ended well"),
    "signal": ("end", "the signal that stopped the run; 0 if none did"),
}
# By name, what an event says.
EVENTS = {
    "membership": "ranks began, were lost, replaced or added",
    "notice": "something that a person should know: a rank that is slow, replicas that differed, data that was skipped",
    "skipped": "a step that was not applied",
    "warning": "one of the costliest problems, as `troupe report` says it",
    "after_save": "how the command of `after_save` ended",
    "trace": "the trace was written, or why not",
}

INTRODUCTION = """# Metrics

Generated from the list of metrics in [actors/metrics/metric.cpp](../../actors/metrics/metric.cpp); `python3 tests/docs/reference.py --write`
writes it anew. [Watching a run](../observe.md) shows how to read them.

Rank 0 writes all metrics. Means and sums are over the steps of one log interval (`log_interval`). Losses and rates count the samples of all ranks.
Times are those of rank 0 unless the table says otherwise. Every metric goes to every sink that is on:

| sink | setting | name |
|---|---|---|
| `metrics.jsonl` in the folder of the run | `run_dir` | the first name below |
| TensorBoard event files | `tensorboard` | the same name |
| Prometheus, `/metrics` on the loopback interface | `metrics_port` | the second table; the last value of each |
| MLflow | `mlflow_uri` | the second table |
"""

OWN = """
## Metrics of the program

A program logs its own metrics with `Rank::log` ([metrics, state and callbacks](../callbacks.md)). Their names appear as follows; in a validation
`validation_metrics/` stands before the name.

| sink | name |
|---|---|
| `metrics.jsonl` | in the object `own`, under the name that the program gave |
| TensorBoard, MLflow | the name that the program gave |
| Prometheus | `troupe_own_metric{name="…"}` |
"""


def literals(text):
    """Adjacent string literals as one."""
    return re.sub(r'"\s*"', "", text)


def metrics():
    """(name, Prometheus's name, meaning) of each."""
    source = (ROOT / LIST).read_text()
    block = re.search(r"constexpr std::array kMetrics\{(.*?)\n\};", source, re.DOTALL)[1]
    found = []
    rest = re.sub(r'MetricName\{\s*"([^"]*)"\s*,\s*"([^"]*)"\s*,\s*"((?:[^"\\]|\\.)*)"\s*\}\s*,',
                  lambda each: found.append(each.groups()) or "", literals(block))
    if rest.strip():
        raise ValueError(f"{LIST}: this is no metric as docs/site/metrics_page.py reads them: {rest.strip()[:200]}")
    return found


def kinds_of_metrics():
    """name -> the kind of record that is given it."""
    source, found = (ROOT / "actors/metrics/metrics.cpp").read_text(), {}
    for name in re.findall(r'record\.add\(\s*"([^"]+)"', source):
        before = source[:source.index(f'"{name}"')]
        of_validation = before.rfind("record_of(const ValidationReport&") > before.rfind("record_of(const MetricsReport&")
        found[name] = "validation" if of_validation else "train"
    return found


def unit_of(name):
    in_name = re.search(r"\(([^()]+)\)$", name)
    if in_name:
        return LONG_UNITS.get(in_name[1], in_name[1])
    if name not in UNITS:
        raise ValueError(f"docs/site/metrics_page.py has no unit for {name}: add it to UNITS")
    return UNITS[name] or "–"


def mlflow_name(name):
    """As mlflow_name in metric.cpp."""
    return name.replace("(", "_").replace(")", "").replace("%", "percent")


def keys_of_lines():
    source = (ROOT / LIST).read_text()
    writing = "".join(re.search(rf"\n{start}.*?\n}}\n", source, re.DOTALL)[0] for start in (r"void write_event\(", r"std::string to_json\("))
    return dict.fromkeys(re.findall(r'\n?[ {]\{"(\w+)", (?:k|record\.)', writing) + re.findall(r'line\["([^"]+)"\]', writing))


def events():
    sources = "".join(file.read_text() for folder in ("actors/metrics", "launch/loop") for file in sorted((ROOT / folder).glob("*.cpp")))
    return set(re.findall(r'\b(?:note|report)\("(\w+)",', sources)) | set(re.findall(r'\.event = "(\w+)"', sources))


def of_prometheus_alone():
    """(name, meaning) of those that the page adds."""
    source = literals((ROOT / "launch/observe/metrics_page.cpp").read_text())
    return re.findall(r'add\("(troupe_\w+)", "([^"]*)"', source)


def page():
    known, kinds = metrics(), kinds_of_metrics()
    names = [name for name, _, _ in known]
    for name in sorted(set(names) ^ set(kinds)):
        raise ValueError(f"{name} is in the list of metrics and in no record, or in a record and not in the list")
    if stale := set(UNITS) - set(names):
        raise ValueError(f"docs/site/metrics_page.py has a unit for {min(stale)}, which is no metric")
    keys = keys_of_lines()
    if set(keys) != set(KEYS):
        raise ValueError(f"docs/site/metrics_page.py does not know these keys of metrics.jsonl, or they are gone: {sorted(set(keys) ^ set(KEYS))}")
    if events() != set(EVENTS):
        raise ValueError(f"docs/site/metrics_page.py does not know these events, or they are gone: {sorted(events() ^ set(EVENTS))}")
    text = INTRODUCTION
    for kind, title in (("train", "Of a log interval"), ("validation", "Of a validation")):
        text += f"\n## {title}\n\nLines of `metrics.jsonl` with the `kind` `{kind}`.\n\n| name | unit | meaning |\n|---|---|---|\n"
        text += "".join(f"| `{name}` | {unit_of(name)} | {meaning} |\n" for name, _, meaning in known if kinds[name] == kind)
    text += "\n## Names in Prometheus and MLflow\n\n| name | Prometheus | MLflow |\n|---|---|---|\n"
    text += "".join(f"| `{name}` | `{prometheus}` | `{mlflow_name(name)}` |\n" for name, prometheus, _ in known)
    text += "\nPrometheus gets these, too:\n\n| name | meaning |\n|---|---|\n"
    text += "".join(f"| `{name}` | {meaning} |\n" for name, meaning in of_prometheus_alone())
    text += OWN + "\n## Other keys of metrics.jsonl\n\nEach line is one JSON object. A value that is not a number is `null`.\n\n"
    text += "| key | kind of line | meaning |\n|---|---|---|\n"
    text += "".join(f"| `{key}` | {KEYS[key][0]} | {KEYS[key][1]} |\n" for key in KEYS)
    text += "\nThe events are:\n\n| event | what happened |\n|---|---|\n"
    return text + "".join(f"| `{name}` | {meaning} |\n" for name, meaning in EVENTS.items())
