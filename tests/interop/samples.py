"""tests/samples as values: a sample's store and what its expected.json says of it."""

import json
from dataclasses import dataclass
from pathlib import Path

# What expected.json calls a refusal, and its errno.
ERRNO_OF_REFUSAL = {"ambiguous": "ENOTUNIQ", "lost": "ENODATA"}


@dataclass(frozen=True)
class Turn:
    prompt: str | None
    # The first turn of the group that is only kept or dropped as a whole.
    group: int


@dataclass(frozen=True)
class Sample:
    agent: str
    name: str
    store: Path
    project: str
    session: str
    turns: list[Turn]
    # By the last turn kept (-1: nothing): what the model must be sent before the next prompt, `[[role, text]...]` ...
    messages: dict[int, list]
    # ... or the errno of the refusal.
    refused: dict[int, str]
    # How sure it is where a kept turn ends: "exact" or "aligned". A refused one has no entry.
    boundaries: dict[int, str]
    # A form from before the agent kept a list of turns: it has no title, and the client's next turn begins a list
    # that does not hold the old turns.
    old_form: bool
    # Codex neither resumes nor cuts an archived thread; a fork of it is an ordinary one.
    archived: bool
    # The last line is not whole.
    torn: bool

    def kept_turns(self, keep):
        """How many turns stay when the cut keeps 0..=keep: more than keep + 1 inside a group."""
        if keep < 0:
            return 0
        rest = self.turns[keep + 1:]
        in_group = [turn for turn in rest if turn.group == self.turns[keep].group]
        return keep + 1 + len(in_group)


def load(folder, agents):
    """The samples of `agents` that can be cut: sound or torn, and not refused as a whole."""
    samples = []
    for agent in agents:
        for case in sorted((folder / agent).iterdir()):
            expected = json.loads((case / "expected.json").read_text())
            for session in expected.get("sessions", [expected]):
                if session["state"] in ("ok", "torn") and "cuts_refused" not in session and session.get("keep"):
                    samples.append(_sample(agent, case, session))
    return samples


def _sample(agent, case, session):
    messages, refused, boundaries = {}, {}, {}
    for n, keep in session["keep"].items():
        if "refuse" in keep:
            refused[int(n)] = ERRNO_OF_REFUSAL[keep["refuse"]]
        else:
            messages[int(n)] = keep["messages"]
            boundaries[int(n)] = keep.get("confidence", "exact")
    turns = [Turn(turn["prompt"], turn.get("group", turn["index"])) for turn in session["turns"]]
    return Sample(
        agent=agent, name=case.name, store=case / "store",
        project=session["project"], session=session["session"], turns=turns,
        messages=messages, refused=refused, boundaries=boundaries,
        old_form=session.get("numbering") == "context",
        archived=bool(session.get("archived")),
        torn=session["state"] == "torn",
    )
