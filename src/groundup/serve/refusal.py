"""Requests that are refused: a status, a sentence, and the field that it is about."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Response

from groundup.core.errors import GroundupError

RETRY_AFTER_SECONDS = 1

_ERROR = {
    "description": "Refused; `param` names the field.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {"error": {"type": "object", "required": ["message", "param"]}},
            }
        }
    },
}
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": _ERROR, "503": _ERROR}
"""What is said of refusals in the OpenAPI document."""


class Refusal(GroundupError):
    """A request that is not served.

    Args:
        status: Of the answer.
        what: Which rule it breaks.
        field: Of the request, where one is to blame.
        fix: What to change.
    """

    def __init__(self, status: int, what: str, *, field: str = "", fix: str = "") -> None:
        super().__init__(what, where=field, fix=fix)
        self.status = status
        self.field = field

    def response(self, path: str) -> Response:
        """Returns the answer for a request of a path."""
        return refused(path, self.status, str(self), field=self.field)


def refused(
    path: str, status: int, message: str, *, field: str = "", headers: Mapping[str, str] | None = None
) -> Response:
    """Returns an error as OpenAI writes it, with the ``message`` that Megatron-LM's client prints."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": field or None, "code": status}
    body: dict[str, Any] = {"error": error}
    if path == "/api":
        body["message"] = message
    more = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status in (429, 503) else {}
    return json_response(body, status=status, headers={**(headers or {}), **more})


def json_response(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns compact JSON in ASCII, which can hold what is no valid Unicode too."""
    text = json.dumps(body, separators=(",", ":"), allow_nan=False) + "\n"
    return Response(text, status_code=status, media_type="application/json", headers=headers)


def field_name(body: Any, location: Sequence[str | int], *, missing: bool = False) -> str:
    """Formats the place of a value in a body: ``messages[0].role``.

    Args:
        body: In which it is; parts of the location that name no place in it are left out.
        location: Keys and indices, and whatever else pydantic puts between them.
        missing: The last part should be there.
    """
    name = ""
    for number, part in enumerate(location, 1):
        is_index = isinstance(part, int) and isinstance(body, list) and part < len(body)
        is_key = isinstance(body, dict) and part in body
        if is_index or is_key:
            body = body[part]
        elif not (missing and number == len(location)):
            continue
        name += f"[{part}]" if is_index else f".{part}" if name else str(part)
    return name
