"""Any server of OpenAI's completions: SGLang, vLLM, `ssd serve`. Depends on the standard library only.

Greedy, streamed, with token ids as prompt. A stream has no token ids: the text is handed back, and what came
first of it; tokens are counted by the server's own usage. A server that does not know `ignore_eos` is asked
without it.
"""

import contextlib
import http.client
import json
import urllib.parse
from typing import Any


def load(job: dict[str, Any]) -> Any:
    server = _Server(job["url"], job["api_key"], job["served_model"])

    def generate(_case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        texts, num_tokens = [], 0
        for event in server.stream(prompt, max_tokens):
            for choice in event.get("choices", ()):
                texts.append(choice.get("text") or "")
                note([-1] * bool(texts[-1]))
            num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
        first = next((text for text in texts if text), "")
        return {"text": "".join(texts), "first_text": first, "num_tokens": num_tokens, "tokens": None}

    generate(job["cases"][0], [1, 2, 3], 2, lambda _tokens: None)
    return generate


class _Server:
    def __init__(self, url: str, api_key: str | None, model: str | None) -> None:
        self._url = urllib.parse.urlsplit(url.rstrip("/").removesuffix("/v1") + "/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._more: dict[str, Any] = {"ignore_eos": True}
        self._model = model or self._first_model()

    def stream(self, prompt: list[int], max_tokens: int) -> Any:
        body = {
            "model": self._model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        with contextlib.closing(self._connect()) as connection:
            answer = self._post(connection, {**body, **self._more})
            if answer.status == 400 and self._more:
                answer.read()
                self._more = {}
                answer = self._post(connection, body)
            if answer.status != 200:
                raise ValueError(f"the server refused: {answer.status} {answer.read(500)!r}")
            for line in answer:
                if line.startswith(b"data: ") and b"[DONE]" not in line:
                    yield json.loads(line[6:])

    def _post(self, connection: http.client.HTTPConnection, body: dict[str, Any]) -> http.client.HTTPResponse:
        connection.request("POST", f"{self._url.path}/completions", json.dumps(body), self._headers)
        return connection.getresponse()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        return kind(self._url.netloc, timeout=600)

    def _first_model(self) -> str:
        with contextlib.closing(self._connect()) as connection:
            connection.request("GET", f"{self._url.path}/models", headers=self._headers)
            name: str = json.loads(connection.getresponse().read())["data"][0]["id"]
            return name
