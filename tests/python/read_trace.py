"""What HolisticTraceAnalysis says of the ranks' traces in a folder, as JSON: read_trace.py FOLDER

{RANK: PERCENT}: get_comm_comp_overlap. Exits with 77 where HTA is not installed.
"""
import json
import logging
import os
import sys
import warnings

warnings.simplefilter("ignore")  # pandas' about HTA, between the lines of what is printed; those it forks, too
os.environ["PYTHONWARNINGS"] = "ignore"
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # it would cut times to whole microseconds
try:
    from hta.trace_analysis import TraceAnalysis
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

logging.disable(logging.CRITICAL)
table = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True).get_comm_comp_overlap(visualize=False)
print(json.dumps({str(rank): percent for rank, percent in zip(table["rank"].tolist(), table["comp_comm_overlap_pctg"].tolist())}))
