"""Codex: forks by reference, sub-agents, and the TUI with the daemon that it leaves behind."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import termios
import time
from contextlib import contextmanager

from . import branches
from .model import REPLY
from .scenes import Scene, lines, written
from .trial import PROMPT, Failed, same

AGAIN = "And another one."


def scenes(samples):
    of_name = {sample.name: sample for sample in samples}
    found = []
    for name, sample in of_name.items():
        # Of a store with several threads the samples hold such forks already.
        if not sample.archived and "fork" not in name and name != "o_sigkill_midturn":
            found.append(Scene("codex", f"client-fork-of-{name}", fork_survives, sample))
    found.append(Scene("codex", "client-fork-of-an-undone-thread", fork_of_undone, of_name["a_plain4"]))
    found.append(Scene("codex", "sub-agent", subagent))
    found += branches.without("codex", samples, ["a_plain4", "a_plain4_legacy", "b_tools_reasoning", "f_client_fork", "h_aborted"])
    found += branches.scenes("codex", samples, ["a_plain4", "a_plain4_legacy", "b_tools_reasoning", "e_client_revert"])
    for name in ("a_plain4", "a_plain4_legacy"):
        found.append(Scene("codex", f"tui-and-daemon-{name}", tui, of_name[name], slow=True))
    return found


def client_fork(stage, session):
    with stage.client.server(stage.store, stage.scratch) as server:
        return server.call("thread/fork", threadId=session)["thread"]["id"]


def fork_survives(stage):
    """The client forks a thread, by reference where it can; whatever we undo in the source, the fork's history
    stays what it is, and every undo can be taken back."""
    source, last = stage.sample.session, len(stage.sample.turns) - 1
    history = stage.sample.messages[last]
    fork = client_fork(stage, source)
    stage.sent(fork, PROMPT, history)
    history = [*history, ["user", PROMPT], ["assistant", REPLY]]
    before = stage.contents()
    for n in range(last, -1, -1):
        done = stage.run("undo", source, str(n))
        # Refusing is right, too, if it says who needs the file.
        if done.code != 0 and fork not in done.stderr:
            raise Failed(f"undo {n} is refused, but not for the fork: {done.stderr.strip()}")
        left = len(json.loads(stage.must("show", source, "--json"))["turns"])
        if done.code == 0 and left != n:
            raise Failed(f"undo {n} left {left} turns")
    stage.sent(fork, AGAIN, history)
    shown = json.loads(stage.must("show", fork, "--json"))
    if shown["state"] != "ok" or len(shown["turns"]) != last + 3:
        raise Failed(f"turnfs shows the fork as {shown['state']} with {len(shown['turns'])} turns")
    for _ in range(last + 1):
        stage.must("redo", source)
    after = stage.contents()
    mine = {path: what for path, what in before.items() if fork not in path}
    same("the undos and their redos", mine, {path: after.get(path) for path in mine})
    stage.sent(source, PROMPT, stage.sample.messages[last])


def fork_of_undone(stage):
    """The client forks a thread that we have cut; our redo takes nothing away that this fork needs."""
    source = stage.sample.session
    stage.must("undo", source, "2")
    fork = client_fork(stage, source)
    stage.must("redo", source)
    stage.sent(fork, PROMPT, stage.sample.messages[1])
    stage.sent(source, PROMPT, stage.sample.messages[len(stage.sample.turns) - 1])
    stage.refused("redo", source, says=["nothing"])


def subagent(stage):
    """A real sub-agent stands under its parent, without control files; the parent is cut and resumed."""
    wait = '@tool exec_command {"cmd": "sleep 3"}'
    prompt = f'@tool multi_agent_v1.spawn_agent {{"message": "Look around."}} {wait}'
    done = stage.client.begin(stage.store, stage.scratch, prompt)
    if done.code != 0:
        raise Failed(f"the client does not start: {done.complaint()}")
    listed = json.loads(stage.must("ls", "--all", "--json"))
    if len(listed) != 1:
        raise Failed(f"{len(listed)} sessions are listed, not the parent alone: {listed}")
    parent = listed[0]["id"]
    first = [["user", prompt], ["call", "call-0"], ["tool", ""], ["call", "call-1"], ["tool", ""], ["assistant", REPLY]]
    done = stage.client.resume(stage.store, stage.scratch, parent, PROMPT)
    if done.code != 0:
        raise Failed(f"the client does not resume the parent: {done.complaint()}")
    with stage.mounted() as mount:
        directory = mount / listed[0]["path"]
        agents = os.listdir(directory / "agents")
        if len(agents) != 1:
            raise Failed(f"agents/ holds {agents}")
        agent = directory / "agents" / agents[0]
        if sorted(os.listdir(agent)) != ["meta.json", "status", "turns"]:
            raise Failed(f"the sub-agent's directory holds {os.listdir(agent)}")
        text = (agent / "turns" / "000").read_text()
        if "Look around." not in text or REPLY not in text:
            raise Failed(f"the sub-agent's turn is {text!r}")
        before = stage.contents()
        for control in ("undo", "redo"):
            refusal = written(directory / control, "1" if control == "undo" else "last")
            if refusal:
                raise Failed(f"{control} of the parent: {refusal}, {lines(directory / 'status')[-1]}")
            turns = 1 if control == "undo" else 2
            if len(os.listdir(directory / "turns")) != turns or os.listdir(directory / "agents") != agents:
                raise Failed(f"after {control} the parent has {os.listdir(directory / 'turns')}")
        same("an undo and its redo", before, stage.contents())
        if written(directory / "undo", "1"):
            raise Failed(lines(directory / "status")[-1])
        fork = stage.must("fork", str(agent), "0").strip()
    own = [message for message in sent_history(stage, fork, AGAIN) if message[0] != "tool"]
    if own[-3:] != [["user", "Look around."], ["assistant", REPLY], ["user", AGAIN]]:
        raise Failed(f"in the fork of the sub-agent the model is sent {own}")
    sent = [message for message in sent_history(stage, parent, AGAIN) if not is_report(message)]
    kept = [message for message in sent if message[0] != "tool"]
    wanted = [*(message for message in first if message[0] != "tool"), ["user", AGAIN]]
    if [role for role, _ in kept] != [role for role, _ in wanted] or kept[0] != wanted[0] or kept[-1] != wanted[-1]:
        raise Failed(f"after the undo the model is sent {sent}")


def is_report(message):
    """What a sub-agent tells its parent by itself."""
    return message[0] == "user" and message[1].lstrip().startswith("<subagent_notification>")


def sent_history(stage, session, prompt):
    begun = len(stage.model.requests)
    done = stage.client.resume(stage.store, stage.scratch, session, prompt)
    if done.code != 0:
        raise Failed(f"the client does not resume {session}: {done.complaint()}")
    return stage.client.history(stage.model.requests[begun])


def tui(stage):
    """The TUI and then the daemon that it leaves behind have the thread: they are named, and nothing is cut
    until the daemon lets go."""
    session, before = stage.sample.session, None
    try:
        with stage.mounted() as mount:
            directory = mount / json.loads(stage.must("ls", "--all", "--json"))[0]["path"]
            with terminal(stage, session):
                wait_for(20, lambda: writer(stage), "the TUI never had the thread")
                before = stage.contents()
                for step in ("while the TUI runs", "after it"):
                    pid = writer(stage)
                    if not pid or "codex" not in os.readlink(f"/proc/{pid}/exe"):
                        raise Failed(f"{step} the writer is {pid}")
                    if f"writer: codex (pid {pid}" not in "\n".join(lines(directory / "status")):
                        raise Failed(f"{step} status is {lines(directory / 'status')}")
                    refusal = written(directory / "undo", "1")
                    said = lines(directory / "status")[-1]
                    if refusal != "EBUSY" or f"pid {pid}" not in said or "about a minute" not in said:
                        raise Failed(f"{step} undo is answered {refusal}: {said}")
                    says = [f"pid {pid}", "about a minute"]
                    stage.refused("undo", session, "1", says=says)
                    if step == "while the TUI runs":
                        end_terminal(stage)
            wait_for(90, lambda: not writer(stage), "the daemon still has the thread after 90 s")
            same("the refused undos", before, stage.contents())
            refusal = written(directory / "undo", "1")
            if refusal:
                raise Failed(f"after the daemon let go: {refusal}, {lines(directory / 'status')[-1]}")
    finally:
        end_daemons(stage)
    stage.sent(session, PROMPT, stage.sample.messages[0])


def writer(stage):
    """The process that turnfs says has the thread."""
    found = json.loads(stage.must("ls", "--all", "--json"))[0]["writer"]
    return found and found["pid"]


def wait_for(seconds, condition, otherwise):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Failed(otherwise)
        time.sleep(0.5)


# What a terminal answers to what the TUI asks it at its start: cursor, kind, colours.
ANSWERS = {
    b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?62;c",
    b"\x1b]10;?": b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\", b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\",
}


@contextmanager
def terminal(stage, session):
    """The TUI in a terminal of its own, with the thread resumed."""
    command = [str(stage.client.binary), "resume", session]
    env = {**stage.client.environment(stage.store, stage.scratch), "TERM": "xterm-256color"}
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(stage.scratch.project)
        os.execve(command[0], command, env)
    stage.terminal = (pid, descriptor)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    try:
        seen = pump(descriptor, 30, b"Use session directory")
        if b"Use session directory" not in seen:
            raise Failed(f"the TUI does not ask for the directory: {seen[-300:]!r}")
        # It does not listen from the first moment on; an Enter too many does nothing.
        for _ in range(3):
            pump(descriptor, 2)
            os.write(descriptor, b"\r")
        pump(descriptor, 2)
        yield
    finally:
        end_terminal(stage)
        os.close(descriptor)


def end_terminal(stage):
    """Leaves the TUI as a user does, by force if it does not go."""
    pid, descriptor = stage.terminal
    if pid is None:
        return
    for _ in range(5):
        try:
            os.write(descriptor, b"\x03")
        except OSError:
            pass
        pump(descriptor, 1)
        if os.waitpid(pid, os.WNOHANG)[0]:
            break
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    stage.terminal = (None, descriptor)


def pump(descriptor, seconds, until=None):
    """Reads what the TUI shows and answers what it asks, for so long or until it shows `until`."""
    seen, end = b"", time.monotonic() + seconds
    while time.monotonic() < end and not (until and until in seen):
        if not select.select([descriptor], [], [], 0.2)[0]:
            continue
        try:
            piece = os.read(descriptor, 1 << 16)
        except OSError:
            break
        seen += piece
        for question, answer in ANSWERS.items():
            if question in piece:
                os.write(descriptor, answer)
    return seen


def end_daemons(stage):
    """Ends the client's background processes of this scene: those whose program lies in its scratch HOME."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/exe").startswith(str(stage.scratch.root)):
                os.kill(int(name), signal.SIGKILL)
        except OSError:
            pass  # gone, or somebody else's
