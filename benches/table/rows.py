"""The rows of the table. Each compares turnfs with a floor that is measured in the same run, so that the ratio
holds on any machine; a row without a floor has an absolute target.

Times are the best of some rounds, ours and the floor's in turn: what a busy machine adds is left out.
"""

import json
import os
import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass

from . import stores
from .mounts import Mount

MB = 1 << 20
# Stamps younger than this are not believed; what is measured is a store at rest.
SETTLED = 2.5  # s


@dataclass(frozen=True)
class Row:
    name: str
    measured: str
    target: str
    met: bool


@dataclass(frozen=True)
class Bench:
    """What the rows need."""

    turnfs: str
    # on a disk
    scratch: object
    # on a tmpfs
    memory: object
    agents: tuple
    # bytes of the large session
    large: int
    rounds: int

    def mount(self, name, *roots):
        return Mount(self.turnfs, self.scratch / f"mount-{name}", roots)


def ratio(name, ours, floor, target, what):
    """A row for times in seconds, `ours` at most `target` times the floor."""
    measured = f"{ours / floor:.2f}x {what} ({1000 * ours:.1f} ms, {1000 * floor:.1f} ms)"
    return Row(name, measured, f"<= {target}x", ours <= target * floor)


def best(rounds, *jobs):
    """The best time of each job in seconds, in turn."""
    times = [[] for _ in jobs]
    for _ in range(rounds):
        for job, taken in zip(jobs, times):
            began = time.perf_counter()
            job()
            taken.append(time.perf_counter() - began)
    return [min(taken) for taken in times]


def shell(command, where):
    """A job: the command in that directory; its output goes to a pipe that nobody looks at."""
    return lambda: subprocess.run(["sh", "-c", f"{{ {command}; }} | cat >/dev/null"], cwd=where, check=True)


def cached(bench):
    """Metadata and small texts that the kernel has, against a tmpfs with the same tree."""
    root = bench.memory / "cached"
    for number in range(10):
        stores.make("kimi-cli", root, f"session-{number}", 1000, 1000 * 400)
    time.sleep(SETTLED)
    with bench.mount("cached", ("kimi-cli", root)) as mount:
        copy = bench.memory / "copy"
        shutil.copytree(mount.path / "w", copy, symlinks=True)
        ours = mount.path / "w"
        turns = "find . -path '*/turns/*' -type f"
        for name, command, target in [
            ("find, second time", "find .", 1.2),
            ("ls -lR, second time", "ls -lR .", 1.2),
            ("stat of all turns, second time", f"{turns} -print0 | xargs -0 stat -c %s", 1.2),
            ("grep -r over 10,000 turns, second time", "grep -rc nothing-has-this . || true", 3.0),
        ]:
            shell(command, ours)()
            yield ratio(name, *best(bench.rounds, shell(command, ours), shell(command, copy)), target, "tmpfs")
        before = mount.store_bytes()
        for _ in range(bench.rounds):
            shell(f"ls -lR . && {turns} -exec cat {{}} +", ours)()
        read = mount.store_bytes() - before
        yield Row("store bytes read in steady state", f"{read} bytes", "0", read == 0)
    shutil.rmtree(copy)
    shutil.rmtree(root)


def large_turn(bench):
    """One turn of 64 MB, read again."""
    root = bench.memory / "turn"
    stores.make("kimi-cli", root, "s", 1, 128 * MB)
    time.sleep(SETTLED)
    with bench.mount("turn", ("kimi-cli", root)) as mount:
        turn = mount.latest() / "turns/000"
        copy = bench.memory / "turn-copy"
        shutil.copyfile(turn, copy)
        read = lambda path: lambda: subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none"])
        ours, floor = best(max(5, bench.rounds), read(turn), read(copy))
        measured = f"{floor / ours:.2f}x tmpfs ({turn.stat().st_size / MB / ours:.0f} MB/s)"
        yield Row("read a 64 MB turn again", measured, ">= 0.9x", floor / ours >= 0.9)
        copy.unlink()
    shutil.rmtree(root)


def large_session(bench, agent):
    """A session of 2,000 turns: first look, an append, cuts at its end, memory."""
    root = bench.scratch / f"large-{agent}"
    session = stores.make(agent, root, "large", 2000, bench.large)
    size = sum(file.stat().st_size for file in session.files)
    names = " ".join(f"'{file}'" for file in session.files)
    cat = lambda: subprocess.run(["sh", "-c", f"cat {names} >/dev/null"], check=True)
    cat()
    os.sync()
    time.sleep(SETTLED)
    label = f"{agent}, {size / MB:.0f} MB:"
    floor, = best(3, cat)

    def first_look():
        with bench.mount(f"large-{agent}", (agent, root)) as mount:
            latest = mount.latest()
            began = time.perf_counter()
            subprocess.run(["ls", "-l", latest / "turns"], stdout=subprocess.DEVNULL, check=True)
            return time.perf_counter() - began

    first = min(first_look() for _ in range(2))
    yield ratio(f"{label} first ls -l turns", first, floor, 5.0, "cat")

    with bench.mount(f"large-{agent}", (agent, root)) as mount:
        latest = mount.latest()
        look = lambda: len(os.listdir(latest / "turns"))
        turns = look()
        times, parsed, added = [], 0, 0
        for _ in range(5):
            before = mount.store_bytes("transcript")
            added += session.append(turns, 10 << 10)
            began = time.perf_counter()
            while look() == turns:
                pass
            times.append(time.perf_counter() - began)
            turns = look()
            parsed += mount.store_bytes("transcript") - before
        seen = min(times)
        yield Row(f"{label} 10 KB appended, then ls", f"{1000 * seen:.1f} ms, {parsed} bytes parsed of {added} added",
                  "<= 10 ms", seen <= 0.010 and parsed <= 2 * added)
        memory = mount.resident()
        yield Row(f"{label} memory, open", f"{memory / MB:.1f} MB", "<= 64 MB", memory <= 64 * MB)

    copy = bench.scratch / "copy"

    def cp():
        subprocess.run(["sh", "-c", f"rm -rf {copy} && mkdir {copy} && cp {names} {copy} && sync {copy}/*"], check=True)

    def turnfs(command, *what):
        return [bench.turnfs, command, f"--store={agent}={root}", *what]

    env = {"HOME": str(bench.scratch / "cuts"), "PATH": os.environ["PATH"], "RUST_LOG": "error"}
    (bench.scratch / "cuts").mkdir(exist_ok=True)
    listed = subprocess.run(turnfs("ls", "--all", "--json"), env=env, capture_output=True, text=True, check=True)
    session_id = json.loads(listed.stdout)[0]["id"]

    def cut(*what):
        subprocess.run(turnfs(*what), env=env, stdout=subprocess.DEVNULL, check=True)

    time.sleep(SETTLED)
    ours, floor_cp = best(2, lambda: cut("fork", session_id, str(turns - 1)), cp)
    yield ratio(f"{label} fork at the last turn", ours, floor_cp, 1.3, "cp + sync")
    took = []
    for last in (turns - 1, turns - 2):
        began = time.perf_counter()
        cut("undo", "--force", session_id, str(last))
        took.append(time.perf_counter() - began)
    yield ratio(f"{label} undo of the last turn", min(took), floor, 1.5, "cat")
    shutil.rmtree(copy)
    shutil.rmtree(root)


def subagents(bench):
    """A Claude Code session of 100 MB with 400 sub-agents: first looks, and a turn read after them."""
    root = bench.scratch / "subagents"
    session = stores.make("claude-code", root, "large", 600, 100 << 20)
    stores.add_subagents(session, 400, 20_000)
    time.sleep(SETTLED)
    label = "claude-code, 400 sub-agents:"

    def took(*command):
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    with bench.mount("subagents", ("claude-code", root)) as mount:
        first = took("ls", mount.latest())
        yield Row(f"{label} first ls", f"{1000 * first:.0f} ms", "<= 300 ms", first <= 0.3)
        listed = took("ls", "-l", mount.latest() / "agents")
        yield Row(f"{label} ls -l agents", f"{1000 * listed:.0f} ms", "<= 100 ms", listed <= 0.1)
        before = mount.store_bytes("transcript")
        turn = mount.latest() / "turns/300"
        read = took("cat", turn)
        parsed = mount.store_bytes("transcript") - before
        yield Row(f"{label} a turn", f"{1000 * read:.0f} ms, {parsed} bytes parsed", "<= 50 ms",
                  read <= 0.05 and parsed <= 2 * turn.stat().st_size)
    shutil.rmtree(root)


def many_sessions(bench, agent):
    """10,000 sessions in the store: mount, first ls of the project, memory."""
    root = bench.scratch / f"many-{agent}"
    stores.make_many(agent, root, 10_000)
    time.sleep(SETTLED)
    with bench.mount(f"many-{agent}", (agent, root)) as mount:
        yield Row(f"{agent}, 10,000 sessions: mount", f"{1000 * mount.took:.0f} ms", "<= 100 ms", mount.took <= 0.1)
        began = time.perf_counter()
        subprocess.run(["ls", mount.project], stdout=subprocess.DEVNULL, check=True)
        took = time.perf_counter() - began
        yield Row(f"{agent}, 10,000 sessions: first ls", f"{1000 * took:.0f} ms", "<= 300 ms", took <= 0.3)
        memory = mount.resident()
        yield Row(f"{agent}, 10,000 sessions: memory", f"{memory / MB:.1f} MB", "<= 40 MB", memory <= 40 * MB)
    shutil.rmtree(root)


def push(bench):
    """From an outside append to the first look that shows it."""
    root = bench.memory / "push"
    session = stores.make("kimi-cli", root, "s", 3, 3000)
    time.sleep(SETTLED)
    times = []
    with bench.mount("push", ("kimi-cli", root)) as mount:
        turns = mount.latest() / "turns"
        for number in range(3, 103):
            known = len(os.listdir(turns))
            session.append(number, 1000)
            began = time.perf_counter()
            while len(os.listdir(turns)) == known:
                time.sleep(0.0002)
            times.append(time.perf_counter() - began)
            time.sleep(0.05)
    median = statistics.median(times)
    yield Row("outside append to visible", f"median {1000 * median:.2f} ms", "<= 5 ms", median <= 0.005)
    shutil.rmtree(root)


def of_groups(bench, groups):
    """The rows of these groups."""
    for group, make in [("cached", cached), ("turn", large_turn), ("push", push), ("subagents", subagents)]:
        if group in groups:
            yield from make(bench)
    for group, make in [("many", many_sessions), ("large", large_session)]:
        for agent in bench.agents if group in groups else ():
            yield from make(bench, agent)
