"""Monarch's actors in two processes, driven as bench_messages is."""
import sys
import time

from monarch.actor import Actor, endpoint, this_host


class Echo(Actor):
    @endpoint
    async def echo(self, number):
        return number


def main():
    peer = this_host().spawn_procs(per_host={"procs": 1}).spawn("echo", Echo)
    assert peer.echo.call_one(1).get() == 1
    print("ready", flush=True)
    for line in sys.stdin:
        verb, count = line.split()
        count = int(count)
        if verb == "round_trips":
            times = []
            for number in range(count):
                begin = time.perf_counter()
                assert peer.echo.call_one(number).get() == number
                times.append(1e6 * (time.perf_counter() - begin))
            print("round_trip_us", *times, flush=True)
        else:
            begin = time.perf_counter()
            answers = [peer.echo.call_one(number) for number in range(count)]
            assert [answer.get() for answer in answers] == list(range(count))
            print("messages_per_s", count / (time.perf_counter() - begin), flush=True)


if __name__ == "__main__":
    main()
