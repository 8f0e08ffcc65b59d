"""Codex CLI 0.171.0 (a native program in an npm package).

The store: rollout files below `sessions/`, and `state_5.sqlite`, whose rows hold absolute paths. Lists and turn lists
come from the client's app-server, which speaks JSON lines.
"""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing, contextmanager
from pathlib import Path

from . import codex_older, codex_scenes, process
from .client import Client, Unusable

PACKAGE = "@openai/codex"
# The package of the program itself, by platform.
BINARY = "npm/node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
INDEX = "state_5.sqlite"
SAMPLES = Path(__file__).resolve().parent.parent / "samples" / "codex"
# What the client puts into the conversation by itself.
OWN_WORDS = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions", "<permissions instructions>",
             "<recommended_plugins>")


class Codex(Client):
    agent = "codex"
    version = "0.171.0"

    @property
    def binary(self):
        return self.folder / BINARY

    def install(self, say):
        if self._usable():
            return
        say(f"installing {PACKAGE} {self.version} into {self.folder / 'npm'} (once, about a minute)")
        (self.folder / "npm").mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", self.folder / "npm", f"{PACKAGE}@{self.version}"]
        done = process.run(command, cwd=self.folder, env=dict(os.environ), timeout=900)
        if done.code != 0:
            raise Unusable(f"{PACKAGE} {self.version} could not be installed: {done.complaint()}")
        if not self._usable():
            raise Unusable(f"{PACKAGE} {self.version} is installed in {self.folder / 'npm'} but does not start")

    def _usable(self):
        if not self.binary.exists():
            return False
        done = process.run([self.binary, "--version"], cwd="/", env=dict(os.environ), timeout=60)
        return done.code == 0 and self.version in done.stdout

    def place(self, sample, scratch, model_url):
        store = scratch.home / ".codex"
        shutil.copytree(sample.store, store)
        with closing(sqlite3.connect(store / INDEX)) as index:
            for thread, path in index.execute("SELECT id, rollout_path FROM threads").fetchall():
                inside = re.search(r"/((?:archived_)?sessions/.*)$", path)[1]
                index.execute("UPDATE threads SET rollout_path = ? WHERE id = ?", (str(store / inside), thread))
            index.commit()
        self._configure(store, scratch, model_url)
        return store

    def empty(self, scratch, model_url):
        store = scratch.home / ".codex"
        store.mkdir()
        self._configure(store, scratch, model_url)
        return store

    def busy_with(self, path):
        """Whether the client writes to this file of its store by itself: logs, locks, its other databases."""
        return not path.startswith(("sessions/", "archived_sessions/", f"{INDEX}, row"))

    def scenes(self, samples):
        older = codex_older.scenes(SAMPLES)
        return codex_scenes.scenes(samples) + older

    def _configure(self, store, scratch, model_url):
        (store / "config.toml").write_text(
            'model = "gpt-5.2-codex"\nmodel_provider = "mock"\napproval_policy = "never"\n'
            'sandbox_mode = "danger-full-access"\ncheck_for_update_on_startup = false\n'
            "[model_providers.mock]\n"
            f'name = "mock"\nbase_url = {json.dumps(model_url)}\nenv_key = "SCRIPTED_KEY"\nwire_api = "responses"\n'
            "request_max_retries = 0\nstream_max_retries = 0\n"
            "[analytics]\nenabled = false\n"
            "[skills]\ninclude_instructions = false\n[skills.bundled]\nenabled = false\n"
            f'[projects.{json.dumps(str(scratch.project))}]\ntrust_level = "trusted"\n'
        )

    def compared(self, store, found):
        """The index counts row by row, not byte by byte; empty date folders do not count."""
        found = {path: what for path, what in found.items() if not path.startswith(INDEX) and what[1] is not None}
        if not (store / INDEX).exists():
            return found
        with closing(sqlite3.connect(f"file:{store / INDEX}?mode=ro", uri=True)) as index:
            for row in index.execute("SELECT id, * FROM threads"):
                found[f"{INDEX}, row {row[0]}"] = hashlib.sha256(repr(row).encode()).hexdigest()
        return found

    def listed(self, store, scratch):
        with self.server(store, scratch) as server:
            found = server.call("thread/list", limit=100)["data"]
            found += server.call("thread/list", limit=100, archived=True)["data"]
        return {thread["id"]: thread["preview"] for thread in found}, None

    def continues(self, sample):
        return None

    def recorded(self, sample, scratch):
        return sample.project

    def trust(self, store, project):
        with (store / "config.toml").open("a") as config:
            config.write(f'[projects.{json.dumps(str(project))}]\ntrust_level = "trusted"\n')

    def resume_latest(self, store, scratch, session, prompt):
        command = [self.binary, "exec", "--skip-git-repo-check", "resume", "--last", "--json", prompt]
        return process.run(command, cwd=scratch.project, env=self.environment(store, scratch), timeout=self.timeout)

    def begin(self, store, scratch, prompt):
        """A new thread with one prompt."""
        command = [self.binary, "exec", "--skip-git-repo-check", "--json", prompt]
        return process.run(command, cwd=scratch.project, env=self.environment(store, scratch), timeout=self.timeout)

    def resume(self, store, scratch, session, prompt):
        command = [self.binary, "exec", "--skip-git-repo-check", "resume", session, "--json", prompt]
        return process.run(command, cwd=scratch.project, env=self.environment(store, scratch), timeout=self.timeout)

    def on_top(self, store, scratch, session, turns):
        """After the client's turn: its turn list has `turns` turns, and a fork and a revert of its own work on top
        of what turnfs wrote. None, or what was wrong."""
        with self.server(store, scratch) as server:
            thread = server.call("thread/resume", threadId=session)["thread"]
            listed = server.call("thread/turns/list", threadId=session, limit=100)["data"]
            if len(listed) != turns:
                return f"the client's turn list has {len(listed)} turns, not {turns}"
            forked = server.call("thread/fork", threadId=session)["thread"]["id"]
            copied = server.call("thread/turns/list", threadId=forked, limit=100)["data"]
            if len(copied) != turns:
                return f"the client's own fork of it has {len(copied)} turns, not {turns}"
            if thread.get("historyMode") == "paginated":
                # The list is newest first.
                server.call("thread/revert", threadId=session, beforeTurnId=listed[0]["id"])
                left = server.call("thread/turns/list", threadId=session, limit=100)["data"]
                if len(left) != turns - 1:
                    return f"after the client's own revert there are {len(left)} turns, not {turns - 1}"
        return None

    def history(self, request):
        said = []
        for item in request.get("input", []):
            kind, role = item.get("type"), item.get("role")
            if kind == "message" and role in ("user", "assistant"):
                text = " ".join(part.get("text", "") for part in item["content"])
                if role == "assistant" or not text.lstrip().startswith(OWN_WORDS):
                    said.append([role, text])
            elif kind == "function_call":
                said.append(["call", item["call_id"]])
            elif kind == "function_call_output":
                output = item["output"]
                parts = output if isinstance(output, list) else [{"text": output}]
                said.append(["tool", " ".join(part.get("text", "") for part in parts)])
        return said

    def environment(self, store, scratch):
        return scratch.env(CODEX_HOME=str(store), SCRIPTED_KEY="not-a-key")

    @contextmanager
    def server(self, store, scratch):
        """The client's app-server, ready for calls; ended at the end."""
        command = [self.binary, "app-server"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        child = subprocess.Popen(command, cwd=scratch.project, env=self.environment(store, scratch), **pipes)
        limit = threading.Timer(self.timeout, child.kill)
        limit.start()
        try:
            server = _Server(child)
            server.call("initialize", clientInfo={"name": "interop", "title": "interop", "version": "1"},
                        capabilities={"experimentalApi": True})
            server.tell("initialized")
            yield server
        finally:
            limit.cancel()
            child.stdin.close()
            child.kill()
            child.wait()
            child.stdout.close()


class _Server:
    """Calls of the app-server, one at a time."""

    def __init__(self, child):
        self.child, self.number = child, 0

    def tell(self, method, **message):
        self.child.stdin.write(json.dumps({"method": method, **message}) + "\n")
        self.child.stdin.flush()

    def call(self, method, **parameters):
        self.number += 1
        self.tell(method, id=self.number, params=parameters)
        for line in self.child.stdout:
            answer = json.loads(line)
            if answer.get("id") == self.number and "method" not in answer:
                if "result" not in answer:
                    raise Unusable(f"{method}: {answer.get('error')}")
                return answer["result"]
        raise Unusable(f"{method}: the client's app-server ended")
