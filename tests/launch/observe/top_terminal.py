"""`troupe top` on a terminal follows a run until its end: top_terminal.py TROUPE"""
import http.server
import json
import os
import pathlib
import pty
import select
import sys
import tempfile
import threading
import time

deadline = time.monotonic() + 120


def record(kind, step, **more):
    return json.dumps({"schema": 1, "kind": kind, "step": step, "epoch": 0, "wall_time": 1.0, **more}) + "\n"


def read_until(text):
    global seen
    while text not in seen:
        if time.monotonic() > deadline:
            sys.exit(f"never shown: {text}\n{seen}")
        if select.select([terminal], [], [], 1)[0]:
            try:
                seen += os.read(terminal, 65536).decode()
            except OSError:  # the program has ended
                break
    return text in seen


def start(*words):
    global child, terminal, seen
    seen = ""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.argv[1], [sys.argv[1], "top", *words])


def wait_for_end():
    global seen
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:
            break
        if not block:
            break
        seen += block.decode()
    return os.waitpid(child, 0)[1]


class Page:
    """A live page's server, as far as `troupe top` asks it."""

    def __init__(self, port, life, records):
        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                after = int(self.path.partition("=")[2])
                body = json.dumps({"life": life, "next": len(records), "records": [json.loads(r) for r in records[after:]]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


with tempfile.TemporaryDirectory() as folder:
    metrics = pathlib.Path(folder, "metrics.jsonl")
    metrics.write_text(record("start", 0) + record("train", 7))
    start(folder)
    assert read_until("step 7 "), seen
    assert "\x1b[H" in seen, "the screen is drawn anew from its first line"
    line = record("train", 8)
    with metrics.open("a") as file:  # half a line is not shown, and not lost
        file.write(line[:20])
        file.flush()
        time.sleep(1.5)
        file.write(line[20:])
    assert read_until("step 8 "), seen
    with metrics.open("a") as file:
        file.write(record("end", 8, error="rank 1: it broke"))
    assert read_until("failed: rank 1: it broke"), seen
    assert wait_for_end() == 0

# A page that is away for a while, since rank 0 is being replaced, and then for good.
page = Page(0, "first", [record("start", 0), record("train", 7)])
start("--port", str(page.port))
assert read_until("step 7 "), seen
page.close()
assert read_until("no answer to 1 request; trying again, 10 times in all"), seen
assert read_until("no answer to 2 requests in a row"), seen
page = Page(page.port, "second", [record("start", 0), record("train", 9)])
assert read_until("step 9 "), seen
page.close()
assert wait_for_end() == 0, seen
assert "no answer to 9 requests in a row" in seen, seen
last = seen.rsplit("\x1b[H", 1)[1]
assert "step 9 " in last and "the run's page is gone: no answer to 10 requests in a row; its last state is above" in last, seen

# The end of a run that is told is the end at once.
page = Page(0, "first", [record("start", 0), record("train", 7), record("end", 7, error="")])
start("--port", str(page.port))
assert wait_for_end() == 0, seen
assert "finished" in seen and "no answer" not in seen, seen
page.close()
