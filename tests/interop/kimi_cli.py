"""kimi-cli 1.52.0 (Python).

The store: `kimi.json` lists the work directories, `sessions/<md5 of the work directory's path>/` holds the sessions.
The package's `kimi` command is only a notice in this version; `run_original_cli` is the client.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import branches, process
from .client import Client, Unusable

# Python 3.12.1 cannot import the client (a TypeError in a generic dataclass).
OLDEST_PYTHON = (3, 12, 2)
# No sample's recorded token count comes near: otherwise the client would compact before it sends the prompt, and
# what it sends would no longer be the kept history.
WINDOW = 10_000_000

START = """
import sys
from kimi_cli.__main__ import run_original_cli
sys.argv[0] = "kimi"
sys.exit(run_original_cli(sys.argv[1:]))
"""
LIST = """
import asyncio, json, pathlib, sys
from kaos.path import KaosPath
from kimi_cli.session import Session

async def look():
    here = KaosPath.unsafe_from_local_path(pathlib.Path(sys.argv[1]))
    last = await Session.continue_(here)
    print(json.dumps([{s.id: s.title for s in await Session.list(here)}, last and last.id]))

asyncio.run(look())
"""


class KimiCli(Client):
    agent = "kimi-cli"
    indexes = ("kimi.json",)
    version = "1.52.0"

    @property
    def python(self):
        return self.folder / "kimi" / "bin" / "python"

    def install(self, say):
        if self._usable():
            return
        base = _find_python()
        say(f"installing kimi-cli {self.version} into {self.folder / 'kimi'} (once, about a minute)")
        self.folder.mkdir(parents=True, exist_ok=True)
        packages = [f"kimi-cli=={self.version}", "lxml_html_clean"]
        for step in (
            [base, "-m", "venv", "--clear", self.folder / "kimi"],
            [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
        ):
            done = process.run(step, cwd=self.folder, env=dict(os.environ), timeout=900)
            if done.code != 0:
                raise Unusable(f"kimi-cli {self.version} could not be installed: {done.complaint()}")
        if not self._usable():
            raise Unusable(f"kimi-cli {self.version} is installed in {self.folder / 'kimi'} but does not start")

    def _usable(self):
        if not self.python.exists():
            return False
        check = (
            "import sys, importlib.metadata, kimi_cli.app; from kimi_cli.__main__ import run_original_cli; "
            f"sys.exit(importlib.metadata.version('kimi-cli') != {self.version!r})"
        )
        return process.run([self.python, "-c", check], cwd="/", env=dict(os.environ), timeout=120).code == 0

    def place(self, sample, scratch, model_url):
        store = scratch.home / ".kimi"
        shutil.copytree(sample.store, store)
        index = json.loads((store / "kimi.json").read_text())
        _work_dir(index, sample)["path"] = str(scratch.project)
        (store / "kimi.json").write_text(json.dumps(index))
        sessions = store / "sessions"
        (sessions / _folder_name(sample.project)).rename(sessions / _folder_name(scratch.project))
        (store / "config.toml").write_text(
            'default_model = "scripted"\n'
            "telemetry = false\n"
            "[models.scripted]\n"
            'provider = "scripted"\n'
            'model = "scripted"\n'
            f"max_context_size = {WINDOW}\n"
            'capabilities = ["image_in", "thinking"]\n'
            "[providers.scripted]\n"
            'type = "kimi"\n'
            f"base_url = {json.dumps(model_url)}\n"
            'api_key = "not-a-key"\n'
        )
        return store

    def listed(self, store, scratch):
        done = self._run(store, scratch, LIST, str(scratch.project))
        if done.code != 0:
            raise Unusable(f"the client's session list fails: {done.complaint()}")
        titles, last = json.loads(done.stdout)
        return titles, last

    def continues(self, sample):
        index = json.loads((sample.store / "kimi.json").read_text())
        return _work_dir(index, sample).get("last_session_id")

    def resume(self, store, scratch, session, prompt):
        return self._run(store, scratch, START, "--print", "--session", session, "-p", prompt)

    def _run(self, store, scratch, program, *arguments):
        env = scratch.env(KIMI_SHARE_DIR=str(store), KIMI_DISABLE_TELEMETRY="1", KIMI_CLI_NO_AUTO_UPDATE="1")
        command = [self.python, "-c", program, *arguments]
        return process.run(command, cwd=scratch.project, env=env, timeout=self.timeout)

    def scenes(self, samples):
        undone = branches.scenes(self.agent, samples, ["a-plain", "b-tools", "c-compact", "m-autocompact"])
        return undone + branches.subagents(self.agent, samples, ["j-sub", "old-0.59"])

    def history(self, request):
        said = []
        for message in request.get("messages", []):
            role, texts = message["role"], _texts(message.get("content"))
            if role == "user":
                said += [["user", text] for text in texts]
            elif role == "tool":
                said.append(["tool", " ".join(texts)])
            elif role == "assistant":
                said += [["assistant", " ".join(texts)]] if texts else []
                said += [["call", call["id"]] for call in message.get("tool_calls") or []]
        return said


def _work_dir(index, sample):
    for entry in index["work_dirs"]:
        if entry["path"] == sample.project:
            return entry
    # the client would not complain: it would make an empty session of that id
    raise Unusable(f"kimi.json of {sample.name} does not list {sample.project}")


def _texts(content):
    if isinstance(content, str):
        return [content] if content else []
    return [part["text"] for part in content or [] if part.get("type") == "text" and part["text"]]


def _folder_name(project):
    return hashlib.md5(os.fsencode(project), usedforsecurity=False).hexdigest()


def _find_python():
    """A Python that the client runs with: `$PYTHON`, this one, those on PATH, those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(pyenv.glob("3.*/bin/python3"), key=lambda path: _numbers(path.parts[-3]), reverse=True)
    names = [os.environ.get("PYTHON"), sys.executable, "python3.13", "python3.14", "python3.12", *installed]
    for name in filter(None, names):
        check = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {OLDEST_PYTHON})"
        try:
            if subprocess.run([name, "-c", check], capture_output=True, timeout=60).returncode == 0:
                return name
        except OSError:
            continue
    oldest = ".".join(map(str, OLDEST_PYTHON))
    raise Unusable(f"kimi-cli needs Python {oldest} or later with venv; none found, name one in $PYTHON")


def _numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)]
