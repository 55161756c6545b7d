"""What Prometheus's own parser reads at http://127.0.0.1:PORT/metrics, as JSON: scrape.py PORT

{NAME: VALUE}. Fails where a line breaks the grammar, or a sample has no type or no help. TROUPE_PROMTOOL: Prometheus's own promtool, which is
asked, too. Exits with 77 without the parser.
"""
import json
import os
import subprocess
import sys
import urllib.request

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    print("SKIPPED: install python3-prometheus-client")
    sys.exit(77)

with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=10) as answer:
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4", answer.headers["Content-Type"]
    text = answer.read().decode()
if promtool := os.environ.get("TROUPE_PROMTOOL"):
    judged = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    assert judged.returncode in (0, 3), judged.stderr  # 3: the grammar holds, and a unit is not one that Prometheus likes best (ms, GiB)
else:
    print("SKIPPED: TROUPE_PROMTOOL names no promtool; ./dev observe has one")
values = {}
for family in text_string_to_metric_families(text):
    assert family.type != "unknown" and family.documentation, f"{family.name} has no type or help"
    for sample in family.samples:
        values[sample.name] = sample.value
print(json.dumps(values))
