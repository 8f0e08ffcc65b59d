"""What the judge needs of a client. A new client is a module with a subclass and a line in `scripts/interop`."""

import os
import shutil
import tempfile
from pathlib import Path


class Unusable(Exception):
    """A sentence: why the client cannot be installed, or cannot be asked about this session."""


class Scratch:
    """One trial's own HOME, project directory and turnfs state; removed at the end unless `keep` is set."""

    def __init__(self):
        self.root = Path(tempfile.mkdtemp(prefix="turnfs-interop-")).resolve()
        self.home, self.project, self.state = self.root / "home", self.root / "project", self.root / "state"
        for path in (self.home, self.project, self.state):
            path.mkdir()
        self.keep = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.keep:
            shutil.rmtree(self.root, ignore_errors=True)

    def env(self, **more):
        """The environment of every process of the trial: nothing of the user's, no way beyond loopback."""
        env = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
        nowhere = "http://127.0.0.1:9"
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            env[name] = env[name.lower()] = nowhere
        env["NO_PROXY"] = env["no_proxy"] = "127.0.0.1,localhost"
        return {**env, "HOME": str(self.home), "XDG_STATE_HOME": str(self.state), "TERM": "dumb", **more}


class Client:
    """One agent's real client, installed below `folder`."""

    # As in tests/samples and on turnfs's command line.
    agent = ""
    # Files of the store that say where sessions belong.
    indexes = ()
    version = ""
    # The client writes its next turn right behind a last line that is not whole, which damages that line.
    glues_to_torn = False

    def __init__(self, folder, timeout):
        self.folder = Path(folder)
        # Limit of one start of the client, seconds.
        self.timeout = timeout

    def install(self, say):
        """Makes the client usable, by package name; says what it does only if there is something to do."""
        raise NotImplementedError

    def place(self, sample, scratch, model_url):
        """Copies the sample's store below `scratch.home`, moved to `scratch.project` and set up for the model;
        returns the store's root."""
        raise NotImplementedError

    def listed(self, store, scratch):
        """The client's own session list for the project, and what its "continue" would open:
        `({id: title}, id or None)`. None instead of the list where only a person at a terminal gets it."""
        raise NotImplementedError

    def continues(self, sample):
        """The id of the session that the client's "continue" opens in the sample as it is, or None."""
        raise NotImplementedError

    def resume(self, store, scratch, session, prompt):
        """Lets the client resume `session` with one prompt; returns a `process.Finished`."""
        raise NotImplementedError

    def recorded(self, sample, scratch):
        """The project's path as the placed store records it."""
        return str(scratch.project)

    def trust(self, store, project):
        """Lets the client work in `project` without asking."""

    def transcript(self, store, session):
        """The file that the client appends a session's turns to; only asked where it `glues_to_torn`."""
        raise NotImplementedError

    def resume_latest(self, store, scratch, session, prompt):
        """As `resume`, by the client's own way to the latest session of the directory, where it has one."""
        return self.resume(store, scratch, session, prompt)

    def compared(self, store, found):
        """What of `found` (`{path: (mode, hash or None)}` of everything in the store) must stay equal."""
        return found

    def on_top(self, store, scratch, session, turns):
        """After the resume: whether the client's own turn list agrees (`turns` turns), and whether its own ways to
        cut work on top of ours. None, or what was wrong."""
        return None

    def scenes(self, samples):
        """More than cuts of samples: a list of `scenes.Scene`. A client that plays some without a sample also knows
        `empty`, which makes an empty store as `place` makes a full one."""
        return []

    def busy_with(self, path):
        """Whether a file of the store changes by itself after the client was in it."""
        return False

    def as_kept(self, sent, kept):
        """What was sent, with messages that the client sends as one taken apart as they are kept: `kept` tells where."""
        return sent

    def history(self, request):
        """What a request to the model carries as conversation, `[[role, text]...]` with the roles user, assistant,
        call (text: the call's id) and tool; one entry per text part of a user message."""
        raise NotImplementedError
