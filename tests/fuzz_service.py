"""Requests of all kinds to a service: by its OpenAPI document, against it, and bytes that are none."""

import collections
import concurrent.futures
import json
import random
import socket

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

_METHODS = (b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"\x00", b"post", b"PRI")
_PATHS = (
    b"/api",
    b"/v1/completions",
    b"/v1/chat/completions",
    b"/v1/models/x",
    b"/metrics",
    b"//",
    b"*",
    b"/%ff",
)
_HEADERS = (
    b"Host: x",
    b"Content-Type: application/json",
    b"Content-Type: text/plain",
    b"Transfer-Encoding: chunked",
    b"Content-Length: -1",
    b"Content-Length: 99999999999",
    b"Expect: 100-continue",
    b"Authorization: Bearer \xff",
    b"Upgrade: websocket\r\nConnection: Upgrade",
    b"Connection: close",
    b"X: " + b"y" * 9000,
    b": :",
)
_VALUES = (
    *("a", "", "\x00", "\u2603" * 9, "<|endoftext|>", "x" * 500, -1, 0, 1, 2**31, 2**63, 1e-300, 1e300, 0.5),
    *(None, True, [], {}, [[]], ["a"], [1, 2], [[1], [2]], [{"role": "user", "content": "a"}]),
)

_POSITIVE = schemathesis.GenerationMode.POSITIVE
_FIELDS = {
    "/api": "prompts tokens_to_generate logprobs temperature top_k top_p top_p_decay top_p_bound add_BOS"
    " stop_on_eol stop_on_double_eol random_seed beam_width stop_token length_penalty"
    " prevent_newline_after_colon",
    "/v1/completions": "prompt max_tokens logprobs echo n stop seed stream top_p temperature overflow min_p"
    " top_k repetition_penalty stream_options best_of",
    "/v1/chat/completions": "messages max_tokens logprobs top_logprobs n stop stream",
}


def fuzz(url: str, count: int, *, seed: int = 0) -> collections.Counter[int]:
    """Sends about so many requests; returns how often each status was the answer.

    Raises:
        AssertionError: An answer is a server's error, or a refusal without a message.
    """
    statuses: collections.Counter[int] = collections.Counter()
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    with_body = [operation for operation in operations if list(operation.body)]
    for operation in operations:
        modes = list(schemathesis.GenerationMode) if operation in with_body else [_POSITIVE]
        for mode in modes:
            share = count // 4 // len(with_body) if operation in with_body else count // 100
            _send_cases(operation.as_strategy(generation_mode=mode), max(2, share), statuses)
    generator = random.Random(seed)
    with requests.Session() as session:
        for _ in range(count // 4):
            statuses[_send_fields(session, url, generator)] += 1
    for _ in range(count // 4):
        statuses[_send_bytes(url, generator)] += 1
    return statuses


def _send_cases(strategy, count: int, statuses: collections.Counter[int]) -> None:
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def send(case) -> None:
        response = case.call(timeout=120)
        _require_sound(response.status_code, response.content, case.path)
        statuses[response.status_code] += 1

    send()


def _send_fields(session: requests.Session, url: str, generator: random.Random) -> int:
    """Known fields with values of any kind."""
    path = generator.choice(list(_FIELDS))
    body = {"prompts": ["a"], "tokens_to_generate": 3} if path == "/api" else {"prompt": "a", "max_tokens": 3}
    body = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else body
    for name in generator.sample(_FIELDS[path].split(), generator.randint(0, 4)):
        body[name] = generator.choice(_VALUES)
    send = session.put if path == "/api" else session.post
    response = send(url + path, json=body, timeout=120)
    _require_sound(response.status_code, response.content, path)
    return response.status_code


def _send_bytes(url: str, generator: random.Random) -> int:
    """Something like HTTP, by hand; 0 where the connection is closed without an answer."""
    lines = [generator.choice(_METHODS) + b" " + generator.choice(_PATHS) + b" HTTP/1.1"]
    lines += generator.sample(_HEADERS, generator.randint(0, 4))
    body = generator.choice((b"", b"{", b"\xff\x00", b'{"prompt": "a"', b"5\r\nabc", b"zz\r\n", b"[" * 5000))
    data = bytearray(b"\r\n".join(lines) + b"\r\n\r\n" + body)
    for _ in range(generator.choice((0, 0, 1, 5, 50))):
        data[generator.randrange(len(data))] = generator.randrange(256)
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)  # nothing more comes: no body is waited for
        answer = bytearray()
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:  # it had read enough
            pass
    if not answer:
        return 0
    status = int(answer.split(b" ", 2)[1])
    assert status < 500, (bytes(data), bytes(answer))
    return status


def _require_sound(status: int, content: bytes, path: str) -> None:
    assert status < 500, (status, content, path)
    assert b"Traceback" not in content
    if status >= 400 and content:
        answer = json.loads(content)
        assert (path == "/api" and isinstance(answer, str)) or answer["error"]["message"], (status, content)


def soak(url: str, *, clients: int, rounds: int) -> collections.Counter[str]:
    """A mixed load: each client sends ``rounds`` requests of every kind; returns how often each ended well.

    Some read a stream to its end, some leave after its first bytes, some want many texts, some nonsense.
    """
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        counts = list(pool.map(lambda number: _soak_client(url, number, rounds), range(clients)))
    return sum(counts, collections.Counter())


def _soak_client(url: str, number: int, rounds: int) -> collections.Counter[str]:
    generator = random.Random(number)
    done: collections.Counter[str] = collections.Counter()
    with requests.Session() as session:
        for _ in range(rounds):
            prompt = "a b c " * generator.randint(1, 6)
            body = {"prompt": prompt, "max_tokens": generator.randint(1, 20), "seed": generator.randrange(99)}
            kind = generator.choice(("whole", "stream", "leave", "many", "megatron", "beams", "nonsense"))
            if kind == "stream":
                text = session.post(f"{url}/v1/completions", json={**body, "stream": True}, timeout=120).text
                assert text.endswith("data: [DONE]\n\n")
            elif kind == "leave":
                asked = {**body, "stream": True, "max_tokens": 10_000, "overflow": "slide"}
                with requests.post(f"{url}/v1/completions", json=asked, stream=True, timeout=120) as response:
                    next(response.iter_content(10))
            elif kind in ("megatron", "beams"):
                asked = {"prompts": [prompt], "tokens_to_generate": 5}
                asked |= {"beam_width": 3} if kind == "beams" else {"logprobs": True}
                answer = session.put(f"{url}/api", json=asked, timeout=120).json()
                assert answer["text"][0].startswith(prompt)
            else:
                asked = {"nonsense": body} if kind == "nonsense" else body | {"n": 9 if kind == "many" else 1}
                status = session.post(f"{url}/v1/completions", json=asked, timeout=120).status_code
                assert status in ((422,) if kind == "nonsense" else (200, 429))
            done[kind] += 1
    return done
