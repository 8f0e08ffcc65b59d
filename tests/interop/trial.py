"""One trial: copy a sample, let `turnfs` cut the copy, let the client resume the result, judge everything.

Four things are judged: what turnfs changed on disk (nothing when it refuses; a fork leaves the source alone; a redo
puts every byte back), what the client lists, what the client sends to its model, and what turnfs shows after the
client has added a turn of its own to the cut session.
"""

import hashlib
import json
import stat
from dataclasses import dataclass

from . import process
from .client import Client, Scratch, Unusable
from .judge import difference
from .model import Model
from .samples import Sample

PROMPT = "One more question, please."
# Limit of one start of turnfs, seconds.
TURNFS_TIMEOUT = 30


class Failed(Exception):
    """What was not as it must be, as a sentence."""


@dataclass(frozen=True)
class Trial:
    sample: Sample
    # The last turn that must stay; -1: none.
    keep: int
    # "fork", "undo", "redo" (an undo and its redo: every turn stays), or "adopt" (the project moves: every turn stays).
    action: str

    @property
    def agent(self):
        return self.sample.agent

    @property
    def name(self):
        return self.sample.name

    @property
    def command(self):
        if self.action == "fork":
            return f"fork {self.keep}"
        if self.action == "adopt":
            return "adopt"
        return f"undo {self.keep + 1}" + (", redo" if self.action == "redo" else "")


def trials(sample):
    """Everything that is asked about a sample: each cut that is one, and two undos taken back."""
    last = len(sample.turns) - 1
    wanted = []
    for keep in sorted([*sample.messages, *sample.refused]):
        if keep >= 0:
            wanted.append(Trial(sample, keep, "fork"))
        if sample.kept_turns(keep) <= last and not sample.archived:
            wanted.append(Trial(sample, keep, "undo"))
    undone = [trial.keep for trial in wanted if trial.action == "undo" and trial.keep in sample.messages]
    for keep in sorted({undone[0], undone[len(undone) // 2]} if undone else ()):
        wanted.append(Trial(sample, keep, "redo"))
    if last in sample.messages and not sample.archived:
        wanted.append(Trial(sample, last, "adopt"))
    return wanted


@dataclass(frozen=True)
class Turnfs:
    """The program under test."""

    binary: str

    def run(self, store, scratch, agent, *arguments):
        command = [self.binary, *arguments, "--store", f"{agent}={store}"]
        return process.run(command, cwd=scratch.project, env=scratch.env(), timeout=TURNFS_TIMEOUT)

    def must(self, store, scratch, agent, *arguments):
        done = self.run(store, scratch, agent, *arguments)
        if done.code != 0:
            raise Failed(f"turnfs {' '.join(arguments)}: {done.complaint()}")
        return done.stdout


def judge(trial, turnfs: Turnfs, client: Client, keep_failed):
    """None if all is as it must be, else a sentence. `keep_failed`: leave the scratch directory of a failure."""
    with Scratch() as scratch, Model() as model:
        try:
            store = client.place(trial.sample, scratch, model.url)
            if trial.action == "adopt":
                _judge_adoption(trial.sample, turnfs, client, store, scratch, model)
            elif trial.keep in trial.sample.refused:
                _judge_refusal(trial, turnfs, store, scratch)
            else:
                _judge_cut(trial, turnfs, client, store, scratch, model)
        except (Failed, Unusable) as failure:
            wrong = str(failure)
        except Exception as fault:  # output that is not what it must be; the other trials go on
            wrong = f"{type(fault).__name__}: {fault}"
        else:
            return None
        scratch.keep = keep_failed
        return f"{wrong}\n(in {scratch.root})" if keep_failed else wrong


def _judge_refusal(trial, turnfs, store, scratch):
    errno, arguments = trial.sample.refused[trial.keep], _arguments(trial)
    before = contents(store)
    done = turnfs.run(store, scratch, trial.sample.agent, *arguments)
    if done.code != 1:
        raise Failed(f"turnfs {' '.join(arguments)} must be refused ({errno}) with exit status 1: {done.complaint()}")
    if REFUSAL_SAYS[errno] not in done.stderr:
        raise Failed(f"refused, but not for {errno}: {done.stderr.strip()}")
    same("the refused cut", before, contents(store))


# The command line has no errno; these words of the sentence stand for it.
REFUSAL_SAYS = {"ENOTUNIQ": "is ambiguous", "ENODATA": "is no longer on disk"}


def _judge_cut(trial, turnfs, client, store, scratch, model):
    sample, arguments = trial.sample, _arguments(trial)
    def compared():
        return client.compared(store, contents(store))

    before = compared()
    said = turnfs.must(store, scratch, sample.agent, *arguments)
    session, kept, messages = sample.session, sample.kept_turns(trial.keep), sample.messages[trial.keep]

    if trial.action == "fork":
        session = said.removesuffix("\n")
        if session == sample.session or session.split() != [session]:
            raise Failed(f"fork must print a new id and nothing else, it printed {said!r}")
        after = compared()
        same("the fork's source", before, {path: after.get(path) for path in before})
    if trial.action == "redo":
        if compared() == before:
            raise Failed("the undo changed nothing")
        turnfs.must(store, scratch, sample.agent, "redo", sample.session)
        same("the undo and its redo", before, compared())
        kept, messages = len(sample.turns), sample.messages[len(sample.turns) - 1]

    titles, last = client.listed(store, scratch)
    # A session without anything in it is left out by the client itself.
    has_list = titles is not None
    if has_list and messages and session not in titles:
        raise Failed(f"the client's list does not hold {session}: {titles}")
    if has_list and messages and titles[session] in ("", "Untitled") and not (sample.old_form and trial.action != "fork"):
        raise Failed(f"the client lists {session} without a title")
    if last != client.continues(sample):
        raise Failed(f"the client's continue opens {last}; before the cut it was {client.continues(sample)}")

    torn_line = None
    if trial.action == "redo" and sample.torn and client.glues_to_torn:
        torn_line = client.transcript(store, session).read_bytes().count(b"\n") + 1
    resumed = client.resume(store, scratch, session, PROMPT)
    if resumed.code != 0:
        raise Failed(f"the client does not resume the session: {resumed.complaint()}")
    wrong = difference([*messages, ["user", PROMPT]], client.as_kept(_sent(client, model), messages))
    if wrong:
        raise Failed(wrong)
    shown = json.loads(turnfs.must(store, scratch, sample.agent, "show", session, "--json"))
    if torn_line:
        _judge_glued(sample, torn_line, shown)
    else:
        _judge_shown(sample, kept, shown)
    wrong = client.on_top(store, scratch, session, kept + 1)
    if wrong:
        raise Failed(wrong)


def _judge_adoption(sample, turnfs, client, store, scratch, model):
    """The project moves, `turnfs adopt` copies the session, and the client's "continue" in the new place takes it."""
    old = client.recorded(sample, scratch)
    new = scratch.root / "moved"
    scratch.project.rename(new)
    scratch.project = new
    client.trust(store, new)
    before = client.compared(store, contents(store))
    session = turnfs.must(store, scratch, sample.agent, "adopt", old, str(new), "--session", sample.session)
    session = session.removesuffix("\n")
    after = client.compared(store, contents(store))
    sources = {path: after.get(path) for path in before if path not in client.indexes}
    same("an adopted source", {path: before[path] for path in sources}, sources)
    again = turnfs.must(store, scratch, sample.agent, "adopt", old, str(new), "--session", sample.session)
    if again:
        raise Failed(f"a second adoption made {again!r}")
    resumed = client.resume_latest(store, scratch, session, PROMPT)
    if resumed.code != 0:
        raise Failed(f"the client does not resume the session in {new}: {resumed.complaint()}")
    kept = len(sample.turns)
    messages = sample.messages[kept - 1]
    wrong = difference([*messages, ["user", PROMPT]], client.as_kept(_sent(client, model), messages))
    if wrong:
        raise Failed(wrong)
    _judge_shown(sample, kept, json.loads(turnfs.must(store, scratch, sample.agent, "show", session, "--json")))


def _arguments(trial):
    number = trial.keep if trial.action == "fork" else trial.keep + 1
    return "fork" if trial.action == "fork" else "undo", trial.sample.session, str(number)


def _sent(client, model):
    """The first request that carries the new prompt; reminders that the client adds behind it do not count."""
    for request in model.requests:
        history = client.history(request)
        at = [n for n, message in enumerate(history) if message == ["user", PROMPT]]
        if at:
            return history[:at[-1] + 1]
    raise Failed(f"the client asked its model {len(model.requests)} times and never sent the prompt")


def _judge_glued(sample, line, shown):
    """A redo has brought a torn last line back and the client has written behind it: that line is damaged, and turnfs
    must say so and show only turns before it."""
    damage = shown["damage"]
    if shown["state"] != "damaged" or damage["line"] != line:
        raise Failed(f"the client has written behind the torn line {line}, but turnfs calls it {shown['state']}: {damage}")
    prompts = [turn["prompt"] for turn in shown["turns"]]
    if prompts != [turn.prompt for turn in sample.turns[:len(prompts)]]:
        raise Failed(f"of the session with the damaged line {line} turnfs shows {prompts}")


def _judge_shown(sample, kept, shown):
    """After the client's turn, turnfs must show the kept turns and that one, as sure of the boundaries as before."""
    if shown["state"] != "ok":
        raise Failed(f"after the client's turn turnfs calls the session {shown['state']}: {shown['damage']}")
    if sample.old_form:
        return
    expected = [*(turn.prompt for turn in sample.turns[:kept]), PROMPT]
    prompts = [turn["prompt"] for turn in shown["turns"]]
    # Several parts of a message are lines in one and one line in the other.
    words = [(text or "").split() for text in expected]
    if [(text or "").split() for text in prompts] != words:
        raise Failed(f"after the client's turn turnfs shows the turns {prompts}, expected {expected}")
    # `boundary` of turn n is the one before it, where keeping 0..=n-1 ends.
    for turn in shown["turns"]:
        before = sample.boundaries.get(turn["n"] - 1)
        if before == "exact" != turn["boundary"] or before == "aligned" and turn["boundary"] not in ("exact", "aligned"):
            raise Failed(
                f"after the client's turn the boundary before turn {turn['n']} of {len(prompts)} is "
                f"{turn['boundary']}, in the sample it is {before}"
            )


def contents(store):
    """Every path below `store` with its kind, mode and content, to be compared."""
    found = {}
    for path in sorted(store.rglob("*")):
        mode = path.lstat().st_mode
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else None
        found[str(path.relative_to(store))] = (oct(mode), content)
    return found


def same(what, before, after):
    """Raises where two results of `contents` differ."""
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    if changed:
        raise Failed(f"{what} must leave the store as it was, but these differ: {', '.join(changed)}")
