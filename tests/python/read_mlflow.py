"""What MLflow's own client finds on a server, as JSON: read_mlflow.py URI EXPERIMENT

[{"status": S, "tags": {...}, "params": {...}, "metrics": {NAME: [[STEP, VALUE], ...]}}, ...], the oldest run first.
"""
import json
import sys

from mlflow.tracking import MlflowClient

client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name(sys.argv[2])
runs = []
for run in reversed(client.search_runs([experiment.experiment_id])) if experiment else []:
    history = {name: [[point.step, point.value] for point in client.get_metric_history(run.info.run_id, name)] for name in run.data.metrics}
    runs.append({"status": run.info.status, "tags": run.data.tags, "params": run.data.params, "metrics": history})
print(json.dumps(runs))
