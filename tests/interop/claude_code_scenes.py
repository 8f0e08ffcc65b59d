"""Claude Code: abandoned branches, what `--continue` takes, and a session that a running client has."""

import json
import threading
import time

from . import branches
from .model import REPLY
from .scenes import Scene
from .trial import PROMPT, Failed

LATER = "And later on."


def scenes(agent, samples):
    of_name = {}
    for sample in samples:
        # Of a store with several sessions, the first.
        of_name.setdefault(sample.name, sample)
    found = [
        Scene(agent, f"fork-of-abandoned-{name}", fork_of_abandoned, of_name[name])
        for name in ("branch-resume-at", "last-prompt-other-branch", "rewind-twice")
    ]
    found += [
        Scene(agent, "undo-of-everything", undo_of_everything, of_name["plain"]),
        Scene(agent, "continue-takes-the-fork", continue_takes_the_fork, of_name["plain"]),
        Scene(agent, "session-of-a-running-client", running, of_name["plain"]),
    ]
    found += branches.without(agent, samples, ["plain", "tools", "interactive"])
    return found + branches.scenes(agent, samples, ["plain", "tools", "compact", "interactive"])


def shown(stage, *arguments):
    """`(number, prompt)` of each turn that `turnfs show` lists."""
    listed = json.loads(stage.must("show", *arguments, "--json"))
    if listed["state"] != "ok":
        raise Failed(f"turnfs shows {' '.join(arguments)} as {listed['state']}: {listed['damage']}")
    return [(turn["n"], turn["prompt"]) for turn in listed["turns"]]


def fork_of_abandoned(stage):
    """Every branch that the client itself has left becomes a session of its own, at each of its turns: the client
    goes on with the prompts that the branch shares with the session and with those of the branch. The session and
    the other branches stay."""
    source, sample = stage.sample.session, stage.sample
    before = stage.contents()
    count = 0
    while stage.run("show", source, "--abandoned", str(count + 1)).code == 0:
        count += 1
    if not count:
        raise Failed("turnfs shows no abandoned branch")
    for branch in map(str, range(1, count + 1)):
        turns = shown(stage, source, "--abandoned", branch)
        shared = [turn.prompt for turn in sample.turns[:turns[0][0]]]
        for last in [*(number for number, _ in turns), None]:
            made = stage.must("fork", source, "--abandoned", branch, *([] if last is None else [str(last)])).strip()
            prompts = [*shared, *(prompt for number, prompt in turns if last is None or number <= last)]
            if [prompt for _, prompt in shown(stage, made)] != prompts:
                raise Failed(f"turnfs shows the fork of branch {branch} as {shown(stage, made)}, expected {prompts}")
            sent = stage.asked(stage.client.resume, made, PROMPT)
            said = [text for role, text in sent if role == "user"]
            if said != [*prompts, PROMPT]:
                raise Failed(f"the client sends {said} for the fork of branch {branch}, expected {prompts} and the new one")
            if [prompt for _, prompt in shown(stage, made)] != [*prompts, PROMPT]:
                raise Failed(f"after the client's turn turnfs shows {shown(stage, made)}")
    after = stage.contents()
    changed = [path for path, what in before.items() if after.get(path) != what]
    if changed:
        raise Failed(f"the forks of branches must leave what they come from alone, but these differ: {', '.join(changed)}")
    stage.sent(source, PROMPT, sample.messages[len(sample.turns) - 1])


def undo_of_everything(stage):
    """The client cannot resume a session without a prompt: such an undo is refused, and nothing changes."""
    stage.refused("undo", stage.sample.session, "0", says=["turn 0 cannot be undone"])
    stage.sent(stage.sample.session, PROMPT, stage.sample.messages[len(stage.sample.turns) - 1])


def continue_takes_the_fork(stage):
    """`--continue` takes the newest file of the project: the fork, and after a turn in the source that one again."""
    source, sample = stage.sample.session, stage.sample
    history, latest = sample.messages[len(sample.turns) - 1], stage.client.resume_latest
    made = stage.must("fork", source, "1").strip()
    stage.sent(made, PROMPT, sample.messages[1], way=latest)
    stage.sent(source, PROMPT, history)
    stage.sent(source, LATER, [*history, ["user", PROMPT], ["assistant", REPLY]], way=latest)


def rested(stage, limit):
    """Waits until the client, which writes its prompt behind its question to the model, has written nothing for a second."""
    seen, since = stage.contents(), time.monotonic()
    while time.monotonic() - since < 1:
        if time.monotonic() > limit:
            raise Failed("the client does not stop writing while it waits for its model")
        time.sleep(0.1)
        now = stage.contents()
        if now != seen:
            seen, since = now, time.monotonic()


def running(stage):
    """While a client is at work in a session, undo is refused; a fork has what was there before the client's turn.
    Once the client has ended, undo works."""
    source, sample = stage.sample.session, stage.sample
    last = len(sample.turns) - 1
    stage.model.answers.clear()
    begun = len(stage.model.requests)
    ended = []
    client = threading.Thread(
        target=lambda: ended.append(stage.client.resume(stage.store, stage.scratch, source, PROMPT)), daemon=True
    )
    client.start()
    limit = time.monotonic() + stage.client.timeout
    try:
        while len(stage.model.requests) == begun:
            if ended or time.monotonic() > limit:
                raise Failed(f"the client does not ask its model: {ended and ended[0].complaint()}")
            time.sleep(0.05)
        rested(stage, limit)
        stage.refused("undo", source, "1", says=["has this session open"])
        made = stage.must("fork", source, str(last)).strip()
    finally:
        stage.model.answers.set()
        client.join()
    if ended[0].code != 0:
        raise Failed(f"the client does not end its turn: {ended[0].complaint()}")
    stage.sent(made, LATER, sample.messages[last])
    stage.must("undo", source, "1")
    stage.sent(source, LATER, sample.messages[0])
