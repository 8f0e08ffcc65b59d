"""What an undo removed, as a session of its own after the client has gone on in the one that it was removed from."""

from .model import REPLY
from .scenes import Scene
from .trial import PROMPT

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
    stage.refused("redo", source, says=["moved on"])
    for last in (keep for keep in sorted(sample.messages) if keep > kept):
        made = stage.must("fork", source, "--undone", "1", str(last)).strip()
        stage.sent(made, PROMPT, sample.messages[last])
    stage.sent(source, AGAIN, [*sample.messages[kept], ["user", ELSEWHERE], ["assistant", REPLY]])
