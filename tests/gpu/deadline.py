"""A command in a process group of its own, that ends at its deadline with all its processes."""
import ctypes
import functools
import os
import signal
import subprocess
import time

PR_SET_CHILD_SUBREAPER = 36
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 5  # with what SIGKILL does not end at once: it may be in the driver


def is_over(child, seconds):
    """Waits for a child's end, not longer than that, and leaves it to be waited for. Some sandboxes have no pidfd."""
    end, pause = time.monotonic() + seconds, 0.0005
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, LOOK_SECONDS)
    return True


def kill_group(leader):
    """The leader is not waited for yet, so the number is still its group's."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def reap_group(process):
    """Waits until all of a killed group is gone, and what it held on a device with it. Its orphans are ours by now."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            if process.poll() is None or os.waitpid(-process.pid, os.WNOHANG)[0] == 0:
                time.sleep(0.001)
        except ChildProcessError:
            return True
    return False


def run(command, environment, log, seconds, wait=is_over):
    """(exit code, output): of the leader, after which the rest of the group is killed. No code: it was not over."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with open(log, "wb") as output:
        # What ends this call waits until the child is known that has to end, too.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        take_signals = functools.partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        try:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                       start_new_session=True, preexec_fn=take_signals)
        except OSError as error:
            take_signals()
            return 127, str(error)
    try:
        take_signals()
        in_time = wait(process.pid, seconds)
    finally:
        kill_group(process.pid)
        gone = reap_group(process)
    text = log.read_text(errors="replace")
    if not gone:
        text += f"\nprocesses of group {process.pid} are still there {PATIENCE_SECONDS} s after SIGKILL\n"
    return process.returncode if in_time else None, text
