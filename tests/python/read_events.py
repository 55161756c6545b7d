"""What TensorBoard's own readers find in a folder of event files, as JSON: read_events.py FOLDER

{"files": N, "records": N, "bad_records": N, "cut_off": N, "scalars": {TAG: [[STEP, VALUE], ...]}}. A bad record's checksum is wrong; one
that is cut off ends its file, as a killed process leaves it.
"""
import json
import logging
import pathlib
import sys

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.compat.tensorflow_stub import errors
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

logging.disable(logging.CRITICAL)
folder = pathlib.Path(sys.argv[1])
found = {"files": 0, "records": 0, "bad_records": 0, "cut_off": 0}
for file in sorted(folder.glob("events.out.tfevents.*")):
    found["files"] += 1
    reader = PyRecordReader_New(str(file))
    while True:
        try:
            reader.GetNext()
            found["records"] += 1
        except errors.OutOfRangeError:
            break
        except errors.DataLossError as error:
            found["cut_off" if "truncated" in str(error) else "bad_records"] += 1
            break
accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.TENSORS: 0, event_accumulator.SCALARS: 0})
accumulator.Reload()
found["scalars"] = {}
for tag in accumulator.Tags()["scalars"]:
    found["scalars"][tag] = [[event.step, event.value] for event in accumulator.Scalars(tag)]
print(json.dumps(found))
