"""A turnfs mount of generated stores, in a HOME of its own, and what its daemon says of itself."""

import os
import signal
import subprocess
import time
from pathlib import Path

from .stores import PROJECT

LIMIT = 60.0  # s


class Mount:
    """`with Mount(...)`: mounted by a daemon in the foreground, unmounted at the end, however it ends."""

    def __init__(self, turnfs, scratch, stores):
        self.turnfs = turnfs
        self.path = scratch / "mnt"
        self.stores = [f"--store={agent}={root}" for agent, root in stores]
        self.env = {"HOME": str(scratch / "home"), "PATH": os.environ["PATH"], "RUST_LOG": "error"}
        (scratch / "home").mkdir(parents=True, exist_ok=True)
        self.project = self.path / PROJECT.lstrip("/")
        # s, from the start of the daemon to a mount
        self.took = None

    def __enter__(self):
        began = time.perf_counter()
        self.path.mkdir(parents=True, exist_ok=True)
        command = [self.turnfs, "mount", "-f", *self.stores, self.path]
        self.daemon = subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL)
        while not is_mounted(self.path):
            if self.daemon.poll() is not None:
                raise RuntimeError(f"turnfs mount ended with {self.daemon.returncode}")
            if time.perf_counter() - began > LIMIT:
                self.__exit__()
                raise RuntimeError(f"no mount within {LIMIT:.0f} s")
            time.sleep(0.001)
        os.stat(self.path)
        self.took = time.perf_counter() - began
        return self

    def __exit__(self, *_):
        self.daemon.send_signal(signal.SIGTERM)
        try:
            self.daemon.wait(LIMIT)
        finally:
            self.daemon.kill()
            self.daemon.wait()
            if is_mounted(self.path):
                subprocess.run(["umount", "-l", self.path], check=False)

    def resident(self):
        """Memory of the daemon now, in bytes: its own, not that of files it maps."""
        status = Path(f"/proc/{self.daemon.pid}/status").read_text()
        lines = [line.split() for line in status.splitlines()]
        return next(int(line[1]) for line in lines if line and line[0] == "VmRSS:") * 1024

    def written(self):
        """Bytes that the daemon has asked to be written, so far."""
        io = Path(f"/proc/{self.daemon.pid}/io").read_text()
        return int(next(line.split()[1] for line in io.splitlines() if line.startswith("wchar:")))

    def store_bytes(self, *kinds):
        """Bytes that were read from the stores, so far; of these kinds, or of all."""
        total = 0
        for line in (self.path / ".turnfs/metrics").read_text().splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("turnfs_store_bytes_read_total") and (
                not kinds or any(f'kind="{kind}"' in name for kind in kinds)
            ):
                total += int(value)
        return total

    def latest(self):
        """The directory of the only session."""
        return self.project / os.readlink(self.project / "latest")


def is_mounted(path):
    with open("/proc/self/mountinfo") as table:
        return any(line.split(" ")[4] == str(path) for line in table)
