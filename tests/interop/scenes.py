"""Scenes: what a sample cannot hold, played with the real client and judged step by step.

A client offers its scenes in `Client.scenes()`. Each gets a stage of its own: a scratch HOME, a model, turnfs.
"""

import errno
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from . import process
from .client import Client, Scratch, Unusable
from .judge import difference
from .model import Model
from .samples import Sample
from .trial import TURNFS_TIMEOUT, Failed, Turnfs, contents, same


@dataclass(frozen=True)
class Scene:
    agent: str
    # What the table shows, and what `--only` takes.
    name: str
    play: Callable[["Stage"], None]
    # The sample that it begins with, or None for an empty store.
    sample: Sample | None = None
    # Takes a minute: left out by `--quick`.
    slow: bool = False


@dataclass
class Stage:
    """Everything that a scene acts with."""

    sample: Sample | None
    turnfs: Turnfs
    client: Client
    scratch: Scratch
    model: Model
    store: Path = None

    def run(self, *arguments):
        return self.turnfs.run(self.store, self.scratch, self.client.agent, *arguments)

    def must(self, *arguments):
        return self.turnfs.must(self.store, self.scratch, self.client.agent, *arguments)

    def contents(self):
        """What must stay equal: of a store that its client has been in, what only a turn or a cut changes."""
        found = self.client.compared(self.store, contents(self.store))
        return {path: what for path, what in found.items() if not self.client.busy_with(path)}

    def refused(self, *arguments, says):
        """A command that must be refused with these words, changing nothing."""
        before = self.contents()
        done = self.run(*arguments)
        if done.code != 1:
            raise Failed(f"turnfs {' '.join(arguments)} must be refused: {done.complaint()}")
        for words in says:
            if words not in done.stderr:
                raise Failed(f"turnfs {' '.join(arguments)} does not say {words!r}: {done.stderr.strip()}")
        same(f"the refused {' '.join(arguments)}", before, self.contents())

    def sent(self, session, prompt, expected, way=None):
        """The client resumes `session` with `prompt`, and its model must be sent `expected` and the prompt."""
        found = self.asked(way or self.client.resume, session, prompt)
        wrong = difference([*expected, ["user", prompt]], self.client.as_kept(found, expected))
        if wrong:
            raise Failed(f"{prompt!r}: {wrong}")

    def asked(self, way, session, prompt):
        """The client goes on with `session` in one of its ways (`resume`, `resume_latest`); what its model is sent,
        up to the prompt."""
        begun = len(self.model.requests)
        done = way(self.store, self.scratch, session, prompt)
        if done.code != 0:
            raise Failed(f"the client does not resume {session}: {done.complaint()}")
        histories = [self.client.history(request) for request in self.model.requests[begun:]]
        found = next((history for history in histories if ["user", prompt] in history), None)
        if found is None:
            raise Failed(f"the client never sent {prompt!r}")
        return found[:len(found) - found[::-1].index(["user", prompt])]

    @contextmanager
    def mounted(self):
        """The mount of all projects."""
        place = self.scratch.root / "turns"
        self.must("mount", str(place))
        try:
            yield place
        finally:
            command = [self.turnfs.binary, "umount", place]
            process.run(command, cwd="/", env=self.scratch.env(), timeout=TURNFS_TIMEOUT)


def play(scene, turnfs, client, keep_failed):
    """None if the scene went as it must, else a sentence."""
    with Scratch() as scratch, Model() as model:
        try:
            stage = Stage(scene.sample, turnfs, client, scratch, model)
            if scene.sample:
                stage.store = client.place(scene.sample, scratch, model.url)
            else:
                stage.store = client.empty(scratch, model.url)
            scene.play(stage)
        except (Failed, Unusable) as failure:
            wrong = str(failure)
        except Exception as fault:  # output that is not what it must be; the others go on
            wrong = f"{type(fault).__name__}: {fault}"
        else:
            return None
        scratch.keep = keep_failed
        return f"{wrong}\n(in {scratch.root})" if keep_failed else wrong


def written(control, command):
    """The errno of a command written to a control file, or None. One write and no more: a Python file would
    write again what was refused when it is closed."""
    try:
        file = os.open(control, os.O_WRONLY)
        try:
            os.write(file, f"{command}\n".encode())
        finally:
            os.close(file)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return None


def lines(path):
    with open(os.fspath(path)) as file:
        return file.read().splitlines()
