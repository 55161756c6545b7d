"""The rows messages/*: a number from an actor of one process to one of another and back, ours beside Monarch's."""
from harness import HERE, OURS, TORCHRUN, Program, floats, in_turns, report

MESSAGE_TARGETS = {"messages/round_trip": 0.40, "messages/pipelined": 1 / 20}
ROUND_TRIPS, PIPELINED = 200, 2000


def run_messages(rows, blocks):
    both = {"ours": Program([str(OURS / "bench_messages")], "bench_messages"),
            "Monarch 0.7": Program([TORCHRUN[0], str(HERE / "peer/messages.py")], "Monarch")}
    asked = {"messages/round_trip": lambda name: floats(both[name].ask(f"round_trips {ROUND_TRIPS}", "round_trip_us")["round_trip_us"]),
             "messages/pipelined": lambda name: [1e6 / rate for rate in
                                                 floats(both[name].ask(f"pipelined {PIPELINED}", "messages_per_s")["messages_per_s"])]}
    results = []
    for row in filter(asked.get, rows):
        times = in_turns(both, blocks, asked[row])
        results.append(report(row, MESSAGE_TARGETS[row], times["ours"], {"Monarch 0.7": times["Monarch 0.7"]}, "us", {}))
    for program in both.values():
        program.quit()
    return results
