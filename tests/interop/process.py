"""Child processes with a time limit; each has a process group of its own, which ends with it."""

import os
import signal
import subprocess
import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Finished:
    code: int
    stdout: str
    stderr: str
    timed_out: bool = False

    def complaint(self):
        """What went wrong, short enough for a table's footnote."""
        if self.timed_out:
            return "time limit reached"
        said = (self.stderr.strip() or self.stdout.strip())[-600:]
        return f"exit status {self.code}: {said}"


_running = set()
_lock = threading.Lock()
_stopped = False


def run(command, *, cwd, env, timeout):
    """Runs `command` without input; `timeout` in seconds. Whatever it left in its process group is killed."""
    with _lock:
        if _stopped:
            return Finished(-1, "", "not started: the run was stopped")
        child = subprocess.Popen(
            [os.fspath(word) for word in command],
            cwd=cwd, env=env, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        _running.add(child.pid)
    timed_out = False
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        timed_out = True
        _kill_group(child.pid)
        out, err = child.communicate()
    finally:
        with _lock:
            _running.discard(child.pid)
        # the leader has been waited for, but the group's number stays taken while a member lives
        _kill_group(child.pid)
    return Finished(child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), timed_out)


def stop_all():
    """Kills every running child with its group and lets no new one start."""
    global _stopped
    with _lock:
        _stopped = True
        for pid in _running:
            _kill_group(pid)


def _kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
