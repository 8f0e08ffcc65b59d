"""Codex: rollouts of older clients (samples `w_*`), of which only the turns are known and not what each cut leaves.

Each is cut at every turn. The client reads the result (`thread/read`) and must find exactly the kept turns, and what it
sends on resume must be exactly what stands in the rollout before the first dropped turn.
"""

import json
import re
import shutil
import threading

from .client import Scratch
from .model import Model
from .scenes import Scene
from .trial import PROMPT, Failed, same

# What `thread/read` and turnfs call the same end of a turn.
STATUS = {"completed": "complete"}


def scenes(folder):
    found = []
    for case in sorted(folder.iterdir()):
        expected = json.loads((case / "expected.json").read_text())
        if expected.get("keep") or "judge" not in expected:
            continue
        sample = Older(case, expected)
        for n in range(len(expected["turns"])):
            for action in ("fork", "undo"):
                def play(stage, sample=sample, action=action, n=n):
                    sample.cut(stage, action, n)

                found.append(Scene("codex", f"{case.name} {action} {n}", play))
    return found


class Older:
    def __init__(self, case, expected):
        self.store, self.session = case / "store", expected["session"]
        self.turns = [([*turn["prompts"]], STATUS.get(turn["status"], turn["status"])) for turn in expected["turns"]]
        self.is_first_format = "undo" in expected
        lines = (self.store / expected["rollout"]).read_text().splitlines()
        self.records = [json.loads(line) for line in lines]
        self.rolled_back = any(self._event(record) == "thread_rolled_back" for record in self.records)
        self.uncut, self.lock = None, threading.Lock()

    def cut(self, stage, action, n):
        self._copy(stage.store)
        before = stage.contents()
        if action == "undo" and self.is_first_format:
            stage.refused("undo", self.session, str(n), says=["first format", "fork"])
            return
        said = stage.must(action, self.session, str(n))
        kept = n + 1 if action == "fork" else n
        session = said.strip() if action == "fork" else self.session
        if action == "fork":
            after = stage.contents()
            same("the fork's source", before, {path: after.get(path) for path in before})
        with stage.client.server(stage.store, stage.scratch) as server:
            read = server.call("thread/read", threadId=session, includeTurns=True)["thread"]["turns"]
        found = [(_prompts(turn), STATUS.get(turn["status"], turn["status"])) for turn in read]
        # The turns of the first format have no end of their own; the fork gives them one.
        if found != self.turns[:kept]:
            raise Failed(f"the client reads the turns {found}, kept were {self.turns[:kept]}")
        stage.sent(session, PROMPT, self.messages(stage.client, kept))
        shown = json.loads(stage.must("show", session, "--json"))
        prompts = [turn["prompt"] for turn in shown["turns"]]
        wanted = [*(said[0] if said else None for said, _ in self.turns[:kept]), PROMPT]
        if shown["state"] != "ok" or prompts != wanted:
            raise Failed(f"after the client's turn turnfs shows {shown['state']} and {prompts}, expected {wanted}")

    def _copy(self, store):
        """The client resumes a thread with the provider of its beginning only: the scripted model's."""
        shutil.copytree(self.store, store, dirs_exist_ok=True)
        for rollout in store.rglob("rollout-*.jsonl"):
            text = rollout.read_text()
            rollout.write_text(re.sub(r'"model_provider":"[^"]*"', '"model_provider":"mock"', text))

    def messages(self, client, kept):
        """What must be sent when the first `kept` turns are there."""
        if self.rolled_back:
            # What was taken back is in the rollout, too: all of it is what the client itself sends, none is nothing.
            return self._sent_uncut(client) if kept == len(self.turns) else []
        starts = self._starts()
        end = starts[kept] if kept < len(starts) else len(self.records)
        return client.history({"input": [item for item in map(self._item, self.records[:end]) if item]})

    def _starts(self):
        """The records that the turns begin with."""
        explicit = [at for at, record in enumerate(self.records) if self._event(record) == "task_started"]
        if explicit:
            return explicit
        prompts = [prompt for turn in self.turns for prompt in turn[0]]
        starts, at = [], 0
        for prompt in prompts:
            while not self._says(self._item(self.records[at]), prompt):
                at += 1
            starts.append(at)
            at += 1
        return starts

    def _event(self, record):
        return record["payload"].get("type") if record.get("type") == "event_msg" else None

    def _item(self, record):
        if self.is_first_format:
            return record if "type" in record else None
        return record["payload"] if record["type"] == "response_item" else None

    def _says(self, item, prompt):
        is_message = item and item["type"] == "message" and item["role"] == "user"
        return is_message and "".join(part.get("text", "") for part in item["content"]) == prompt

    def _sent_uncut(self, client):
        with self.lock:
            if self.uncut is None:
                with Scratch() as scratch, Model() as model:
                    store = client.empty(scratch, model.url)
                    self._copy(store)
                    client.resume(store, scratch, self.session, PROMPT)
                    histories = [client.history(request) for request in model.requests]
                    self.uncut = next(found for found in histories if ["user", PROMPT] in found)[:-1]
            return self.uncut


def _prompts(turn):
    said = [item for item in turn["items"] if item["type"] == "userMessage"]
    return ["".join(part.get("text", "") for part in item["content"]) for item in said]
