"""What an undo removed, as a session of its own after the client has gone on in the one that it was removed from."""

import json

from .model import REPLY
from .scenes import Scene
from .trial import PROMPT, Failed

ELSEWHERE = "Something else."
AGAIN = "And on."


def scenes(agent, samples, names):
    of_name = {sample.name: sample for sample in samples}
    return [Scene(agent, f"fork-of-undone-{name}", fork_of_undone, of_name[name]) for name in names if name in of_name]


def fork_of_undone(stage):
    """Undo, go on with the client, and give the removed branch back to it: with exactly that history, at every turn."""
    source, sample = stage.sample.session, stage.sample
    kept = next(keep for keep in sorted(sample.messages) if keep >= 0)
    stage.must("undo", source, str(kept + 1))
    stage.sent(source, ELSEWHERE, sample.messages[kept])
    stage.refused("redo", source, says=["gone on since"])
    for last in (keep for keep in sorted(sample.messages) if keep > kept):
        made = stage.must("fork", source, "--undone", "1", str(last)).strip()
        stage.sent(made, PROMPT, sample.messages[last])
    stage.sent(source, AGAIN, [*sample.messages[kept], ["user", ELSEWHERE], ["assistant", REPLY]])


def without(agent, samples, names):
    of_name = {sample.name: sample for sample in samples}
    return [Scene(agent, f"fork-without-{name}", fork_without, of_name[name]) for name in names if name in of_name]


def fork_without(stage):
    """Each turn but the last is left out in turn: the client goes on with all others, or turnfs refuses that."""
    source, sample = stage.sample.session, stage.sample
    last = max(sample.messages)
    everything, made = sample.messages[last], 0
    for turn in (keep for keep in sorted(sample.messages) if 0 <= keep < last):
        asked = ("fork", source, str(last), "--without", str(turn))
        done = stage.run(*asked)
        if done.code != 0:
            stage.refused(*asked, says=[f"turn {turn}"])
            continue
        # What the client adds behind a turn that ends a session does not stand in the whole.
        before, behind = (common(sample.messages.get(keep, []), everything) for keep in (turn - 1, turn))
        stage.sent(done.stdout.strip(), PROMPT, [*everything[:before], *everything[behind:]])
        made += 1
    if not made:
        raise Failed("turnfs leaves no turn out")


def common(one, other):
    """How many messages both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def subagents(agent, samples, names):
    of_name = {sample.name: sample for sample in samples}
    return [Scene(agent, f"fork-of-sub-agent-{name}", fork_of_subagent, of_name[name]) for name in names if name in of_name]


def fork_of_subagent(stage):
    """A sub-agent's history becomes a session of its own, at each of its turns, and the client goes on with it."""
    with stage.mounted() as mount:
        listed = json.loads(stage.must("ls", "--all", "--json"))
        path = next(row["path"] for row in listed if row["id"] == stage.sample.session)
        for agent in sorted((mount / path / "agents").iterdir()):
            turns = sorted(int(turn.name) for turn in (agent / "turns").iterdir())
            for last in turns:
                made = stage.must("fork", str(agent), str(last)).strip()
                said = []
                for record in map(json.loads, context(stage, made)):
                    if record["role"] in ("user", "assistant"):
                        said.append([record["role"], text(record["content"])])
                if not said:
                    raise Failed(f"the fork of {agent.name} at turn {last} is empty")
                stage.sent(made, PROMPT, said)


def context(stage, session):
    [file] = stage.store.glob(f"sessions/*/{session}/context.jsonl")
    return file.read_text().splitlines()


def text(content):
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
