"""Claude Code 2.1.197 (a native program in an npm package).

The store: transcripts `projects/<folder>/<session>.jsonl`. A project's folder is named by its path, and each record
names the path, too. Only the terminal has a list of the sessions; `--continue` takes the newest file.
"""

import json
import os
import re
import shutil

from . import claude_code_scenes, process
from .client import Client, Unusable

PACKAGE = "@anthropic-ai/claude-code"
PROGRAM = "npm/node_modules/@anthropic-ai/claude-code-linux-x64/claude"
# What the client puts into a user message by itself.
REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.S)
# What this version sends and the later one that recorded some samples (2.1.332) does not. It is taken out of what was
# sent, in exactly these words, and only where the sample does not have it.
# The later version sends what a Stop hook says as context, this one as the user's words.
HOOK_FEEDBACK = ["user", "Stop hook feedback:\nplease also say goodbye"]
# This version adds these two where the kept records end with a user's; what /compact prints counts as such.
GOES_ON = [["user", "Continue from where you left off."], ["assistant", "No response requested."]]
COMPACTED = "<local-command-stdout>\x1b[2mCompacted "


class ClaudeCode(Client):
    agent = "claude-code"
    version = "2.1.197"
    glues_to_torn = True

    @property
    def program(self):
        return self.folder / PROGRAM

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
        if not self.program.exists():
            return False
        done = process.run([self.program, "--version"], cwd="/", env=dict(os.environ), timeout=60)
        return done.code == 0 and self.version in done.stdout.split()

    def place(self, sample, scratch, model_url):
        store = scratch.home / ".claude"
        shutil.copytree(sample.store, store)
        # Notes of running clients: a process of this machine may have the same id.
        shutil.rmtree(store / "sessions", ignore_errors=True)
        found = store / "projects" / _folder_name(sample.project)
        if not (found / f"{sample.session}.jsonl").exists():
            raise Unusable(f"{sample.name} has no transcript of {sample.session} in the folder of {sample.project}")
        folder = found.rename(found.with_name(_folder_name(scratch.project)))
        old, new = (f'"cwd":"{path}"'.encode() for path in (sample.project, scratch.project))
        for path in folder.rglob("*.jsonl"):
            path.write_bytes(path.read_bytes().replace(old, new))
        # The client adds the version to the address.
        settings = {"env": {"ANTHROPIC_BASE_URL": model_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": "not-a-key"}}
        (store / "settings.json").write_text(json.dumps(settings))
        return store

    def listed(self, store, scratch):
        return None, None

    def continues(self, sample):
        return None

    def resume(self, store, scratch, session, prompt):
        return self._run(scratch, "--resume", session, "-p", prompt)

    def transcript(self, store, session):
        [found] = store.glob(f"projects/*/{session}.jsonl")
        return found

    def resume_latest(self, store, scratch, session, prompt):
        return self._run(scratch, "--continue", "-p", prompt)

    def _run(self, scratch, *arguments):
        env = scratch.env(
            DISABLE_AUTOUPDATER="1", DISABLE_TELEMETRY="1", DISABLE_ERROR_REPORTING="1",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", TMPDIR=str(scratch.root),
        )
        return process.run([self.program, *arguments], cwd=scratch.project, env=env, timeout=self.timeout)

    def busy_with(self, path):
        return not path.startswith("projects/")

    def scenes(self, samples):
        return claude_code_scenes.scenes(self.agent, samples)

    def as_kept(self, sent, kept):
        """Without what only this version of the client sends, where `kept` does not have it."""
        left, rest = [], list(sent)
        while rest:
            wanted = kept[len(left)] if len(left) < len(kept) else None
            after_compact = left and left[-1][0] == "user" and left[-1][1].startswith(COMPACTED)
            if rest[0] == HOOK_FEEDBACK != wanted:
                del rest[0]
            elif rest[:2] == GOES_ON and wanted is None and after_compact:
                del rest[:2]
            else:
                left.append(rest.pop(0))
        return left

    def history(self, request):
        said = []
        # Titles and such are asked for without tools.
        for message in request["messages"] if request.get("tools") else []:
            role, content = message["role"], message["content"]
            if role == "system":
                continue
            for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                kind = part["type"]
                if kind == "text":
                    text = _own_words(part["text"]) if role == "user" else part["text"]
                    said += [[role, text]] if text else []
                elif kind == "thinking":
                    said.append(["thinking", part["thinking"]])
                elif kind == "tool_use":
                    said.append(["call", part["id"]])
                elif kind == "tool_result":
                    said.append(["tool", _own_words(_text(part.get("content")))])
                else:
                    said.append([role, f"[{kind}]"])
        return said


def _folder_name(project):
    """As the client names the folder of a project's sessions. (It shortens what is longer than any path here.)"""
    name = re.sub(r"[^A-Za-z0-9]", "-", str(project))
    if len(name) > 200:
        raise Unusable(f"the path {project} is too long: the client would shorten its folder's name")
    return name


def _own_words(text):
    return REMINDER.sub("", text).strip()


def _text(content):
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content or [])
