"""Generated stores: large sessions, many sessions. Sizes are in bytes."""

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

AGENTS = ("kimi-cli", "kimi-code", "codex", "openmax", "claude-code")
PROJECT = "/w/a"
# md5 of the project's path
KIMI_GROUP = "sessions/4b24918b77d02ba73f3f0be652ed7127"
STAMP = "2026-01-05T13:43:08.000Z"
CLOCK = 1767620588.5
LINE = "src/main.rs:42:17: warning: unused variable: 'width', use '_width' instead (id 0x1f)\\n"


@dataclass(frozen=True)
class Session:
    agent: str
    root: Path
    # what grows with each turn, and makes one more turn of about so many bytes
    files: tuple
    turn: object

    def append(self, number, size):
        """Adds a turn, as the agent does; the bytes added."""
        added = 0
        for file, text in zip(self.files, self.turn(number, size)):
            with open(file, "ab") as open_file:
                open_file.write(text)
            added += len(text)
        return added


def make(agent, root, name, turns, size):
    """A session of so many turns in the store at `root`, of about `size` bytes in all."""
    session = MAKERS[agent](root, name)
    open_files = [open(file, "ab", buffering=1 << 20) for file in session.files]
    for number in range(turns):
        for file, text in zip(open_files, session.turn(number, size // turns)):
            file.write(text)
    for file in open_files:
        file.close()
    return session


def make_many(agent, root, count):
    """So many sessions of one short turn."""
    names = [f"s{number:05}" for number in range(count)]
    if agent == "openmax":
        _openmax_index(root, names)
    for name in names:
        make(agent, root, name, 1, 300)


def texts(size):
    """`size` bytes as JSON strings of 4 KB at most, without their quotes."""
    whole = LINE * (min(size, 4096) // len(LINE) + 1)
    return [whole] * max(1, size // len(whole))


def _file(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(text)
    return path


def _kimi(root, name):
    _file(root / "kimi.json", json.dumps({"work_dirs": [{"path": PROJECT}]}))
    session = root / KIMI_GROUP / name
    wire = _file(session / "wire.jsonl", '{"type": "metadata", "protocol_version": "1.10"}\n')
    context = _file(session / "context.jsonl", '{"role": "_system_prompt", "content": "You are a bench."}\n')
    return Session("kimi-cli", root, (wire, context), _kimi_turn)


def _kimi_turn(number, size):
    prompt = f"please do number {number}"
    parts = texts(size // 2)
    events = [("TurnBegin", f'{{"user_input": "{prompt}"}}'), ("StepBegin", '{"n": 1}')]
    events += [("ContentPart", f'{{"type": "text", "text": "{part}"}}') for part in parts]
    events.append(("TurnEnd", "{}"))
    wire = "".join(
        f'{{"timestamp": {CLOCK + number}, "message": {{"type": "{kind}", "payload": {payload}}}}}\n'
        for kind, payload in events
    )
    context = (
        f'{{"role": "_checkpoint", "id": {2 * number}}}\n{{"role":"user","content":"{prompt}"}}\n'
        f'{{"role": "_checkpoint", "id": {2 * number + 1}}}\n'
        f'{{"role":"assistant","content":"{"".join(parts)}"}}\n'
    )
    return wire.encode(), context.encode()


def _kimi_code(root, name):
    session = root / f"sessions/wd_a_4b24918b77d0/session_{name}"
    state = {"id": f"session_{name}", "version": 2, "cwd": PROJECT, "createdAt": int(CLOCK * 1000), "archived": False,
             "agents": {"main": {"type": "main"}}, "custom": {}}
    _file(session / "state.json", json.dumps(state))
    head = (f'{{"type":"metadata","protocol_version":"1.5","created_at":{int(CLOCK * 1000)}}}\n'
            f'{{"type":"profile.bind","agentId":"main","modelAlias":"bench","time":{int(CLOCK * 1000)}}}\n')
    return Session("kimi-code", root, (_file(session / "agents/main/wire.jsonl", head),), _kimi_code_turn)


def _kimi_code_turn(number, size):
    def line(kind, rest):
        return f'{{"type":"{kind}","agentId":"main",{rest},"time":{int(CLOCK * 1000) + number}}}\n'

    def event(rest):
        return line("context.append_loop_event", f'"event":{{{rest}}}')

    prompt = f'[{{"type":"text","text":"please do number {number}"}}]'
    message = f'{{"role":"user","content":{prompt},"id":"msg_{number}","toolCalls":[],"origin":{{"kind":"user"}}}}'
    out = [line("turn.prompt", f'"input":{prompt},"promptId":"msg_{number}","turnId":{number}')]
    out.append(line("context.append_message", f'"message":{message}'))
    out += [event(f'"type":"content.part","part":{{"type":"text","text":"{part}"}}') for part in texts(size)]
    out.append(line("turn.ended", f'"turnId":{number},"reason":"completed"'))
    return ("".join(out).encode(),)


def _codex(root, name):
    thread = f"01a22cb1-efc7-7c10-ad92-{int.from_bytes(name.encode()[-5:], 'big'):012x}"
    meta = {"id": thread, "timestamp": STAMP, "cwd": PROJECT, "originator": "bench", "cli_version": "0.171.0",
            "source": "cli"}
    path = root / f"sessions/2026/01/05/rollout-2026-01-05T13-43-08-{thread}.jsonl"
    head = json.dumps({"timestamp": STAMP, "type": "session_meta", "payload": meta}) + "\n"
    return Session("codex", root, (_file(path, head),), _codex_turn)


def _codex_turn(number, size):
    def line(kind, payload):
        return f'{{"timestamp":"{STAMP}","type":"{kind}","payload":{payload}}}\n'

    def message(role, kind, text):
        content = f'[{{"type":"{kind}","text":"{text}"}}]'
        return line("response_item", f'{{"type":"message","role":"{role}","content":{content}}}')

    out = [line("event_msg", '{"type":"task_started"}')]
    out.append(message("user", "input_text", f"please do number {number}"))
    out += [message("assistant", "output_text", part) for part in texts(size)]
    out.append(line("event_msg", '{"type":"task_complete"}'))
    return ("".join(out).encode(),)


def _openmax(root, name):
    _openmax_index(root, [name])
    file = _file(root / f"sessions/{name}.messages.json", '{"role":"system","content":"You are a bench."}\n')
    return Session("openmax", root, (file,), _openmax_turn)


def _openmax_index(root, names):
    entries = [
        {"id": name, "project": PROJECT, "title": name, "created_at": int(CLOCK), "updated_at": int(CLOCK)}
        for name in names
    ]
    _file(root / "sessions/index.json", json.dumps(entries))


def _openmax_turn(number, size):
    out = [f'{{"role":"user","content":"please do number {number}"}}\n']
    out += [f'{{"role":"assistant","content":"{part}"}}\n' for part in texts(size)]
    return ("".join(out).encode(),)


def _claude(root, name):
    file = _file(root / f"projects/-w-a/{_uuid(name)}.jsonl")
    return Session("claude-code", root, (file,), lambda number, size: _claude_turn(name, number, size))


def _uuid(*of):
    return str(uuid.uuid5(uuid.NAMESPACE_OID, " ".join(map(str, of))))


def _claude_turn(name, number, size):
    """A prompt, pairs of a call and its result, an answer: each record names the one before it."""
    session = _uuid(name)
    before = f'"{_uuid(name, number - 1, "end")}"' if number else "null"
    out = []

    def line(kind, of, message, more=""):
        nonlocal before
        own = _uuid(name, number, of)
        out.append(f'{{"parentUuid":{before},"isSidechain":false,"type":"{kind}","message":{message},"uuid":"{own}",{more}'
                   f'"timestamp":"{STAMP}","cwd":"{PROJECT}","sessionId":"{session}","version":"2.1.197"}}\n')
        before = f'"{own}"'

    def assistant(of, block):
        line("assistant", of, f'{{"role":"assistant","id":"msg_{number}_{of}","model":"bench","content":[{block}]}}')

    line("user", "prompt", f'{{"role":"user","content":"please do number {number}"}}')
    for at, part in enumerate(texts(size)):
        call = f"toolu_{number}_{at}"
        assistant(f"call{at}", f'{{"type":"tool_use","id":"{call}","name":"Bash","input":{{"command":"make"}}}}')
        result = f'{{"type":"tool_result","tool_use_id":"{call}","content":"{part}"}}'
        line("user", f"result{at}", f'{{"role":"user","content":[{result}]}}', '"toolUseResult":{"interrupted":false},')
    assistant("end", '{"type":"text","text":"done"}')
    return ("".join(out).encode(),)


def add_subagents(session, count, size):
    """So many runs of sub-agents beside a session of Claude Code, each of about `size` bytes."""
    [file] = session.files
    folder = file.with_suffix("") / "subagents"
    for number in range(count):
        agent = f"agent-{number:017x}"
        text = _claude_turn(agent, 0, size)[0].replace(b'"isSidechain":false', b'"isSidechain":true')
        _file(folder / f"{agent}.jsonl", text.decode().replace(_uuid(agent), file.stem))
        _file(folder / f"{agent}.meta.json", json.dumps({"agentType": "general-purpose", "description": f"run {number}"}))


MAKERS = {"kimi-cli": _kimi, "kimi-code": _kimi_code, "codex": _codex, "openmax": _openmax, "claude-code": _claude}
