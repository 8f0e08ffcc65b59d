"""A model on the loopback interface that says one fixed sentence and remembers what it was asked.

One function per API; `APIS` maps the end of a request's path to it. The samples already hold every kind of turn, and
the one new turn of a trial is plain text. Only the responses API takes orders, for scenes: `@tool NAME {json}` in a
prompt, one after the other, are called in turn (NAMESPACE.NAME for a tool of a namespace), then comes the sentence.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPLY = "Understood."
# Far below any window: a client that counts tokens has no reason to compact after the new turn.
USAGE = {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102}


class Model:
    """Serves while entered. `requests` are the decoded bodies of the requests to a model API, oldest first."""

    def __init__(self):
        self.requests = []
        # Answers of the messages API wait until it is set: a scene may hold a client in the middle of its turn.
        self.answers = threading.Event()
        self.answers.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.model = self

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self):
        serve = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        serve.start()
        return self

    def __exit__(self, *_):
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.endswith("/models"):
            self._json(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        else:
            self._json(404, {"error": {"message": "no such endpoint"}})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        api = next((api for end, api in APIS.items() if path.endswith(end)), None)
        if api is None:
            return self._json(404, {"error": {"message": "no such endpoint"}})
        try:
            request = json.loads(body)
        except ValueError:
            return self._json(400, {"error": {"message": "the body is not JSON"}})
        self.server.model.requests.append(request)
        try:
            api(self, request)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client ended before it had read everything; what it sent is what counts

    def _json(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _events(self, lines, names=None):
        """Server-sent events; `names`: the kind of each, where an API wants it told outside of the JSON, too."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        kinds = [f"event: {name}\n" for name in names] if names else [""] * len(lines)
        self.wfile.write("".join(f"{kind}data: {line}\n\n" for kind, line in zip(kinds, lines)).encode())
        self.close_connection = True


def _chat_completions(handler, request):
    """POST /chat/completions, streamed or not."""
    head = {"id": "scripted-1", "created": 0, "model": "scripted"}
    if not request.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": REPLY}, "finish_reason": "stop"}
        return handler._json(200, {**head, "object": "chat.completion", "choices": [choice], "usage": USAGE})

    def chunk(choices, **more):
        return json.dumps({**head, "object": "chat.completion.chunk", "choices": choices, **more})

    handler._events([
        chunk([{"index": 0, "delta": {"role": "assistant", "content": REPLY}, "finish_reason": None}]),
        chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}]),
        chunk([], usage=USAGE),
        "[DONE]",
    ])


ORDER = re.compile(r"@tool (?:(\w+)\.)?(\w+) (\{.*?\})(?= @|$)", re.M)


def _ordered(request):
    """The next tool call that the last prompt orders, as an item, or None."""
    said, results = "", 0
    for item in request.get("input", []):
        if item.get("type") == "function_call_output":
            results += 1
        elif item.get("role") == "user":
            text = " ".join(part.get("text", "") for part in item["content"])
            if not text.lstrip().startswith("<"):
                said, results = text, 0
    orders = ORDER.findall(said)
    if results >= len(orders):
        return None
    namespace, name, arguments = orders[results]
    call = {"type": "function_call", "id": f"item-{results}", "call_id": f"call-{results}", "name": name,
            "arguments": arguments}
    return {**call, "namespace": namespace} if namespace else call


def _responses(handler, request):
    """POST /responses, streamed."""
    message = {"type": "message", "role": "assistant", "id": "scripted-1", "content": [{"type": "output_text", "text": REPLY}]}
    usage = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2,
             "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 102}
    events = [
        {"type": "response.created", "response": {"id": "scripted"}},
        {"type": "response.output_item.done", "output_index": 0, "item": _ordered(request) or message},
        {"type": "response.completed", "response": {"id": "scripted", "usage": usage}},
    ]
    handler._events([json.dumps(event) for event in events])


def _messages(handler, request):
    """POST /messages, streamed or not."""
    handler.server.model.answers.wait()
    usage = {"input_tokens": 100, "output_tokens": 2}
    head = {"id": "scripted-1", "type": "message", "role": "assistant", "model": request.get("model", "scripted"), "usage": usage}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    if not request.get("stream"):
        return handler._json(200, {**head, **end, "content": [{"type": "text", "text": REPLY}]})
    events = [
        {"type": "message_start", "message": {**head, "content": [], "stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": REPLY}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": usage},
        {"type": "message_stop"},
    ]
    handler._events([json.dumps(event) for event in events], [event["type"] for event in events])


APIS = {"/chat/completions": _chat_completions, "/responses": _responses, "/messages": _messages}
