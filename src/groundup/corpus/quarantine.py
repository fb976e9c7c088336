"""Bad records that are set aside: one JSON object a line."""

import base64

import orjson

MAX_KEPT_BYTES = 1 << 20
"""Of a bad record."""


def quarantine_line(where: str, reason: str, detail: str, record: bytes) -> bytes:
    """A bad record as a line of a quarantine file."""
    cut = record[:MAX_KEPT_BYTES]
    line = {"where": where, "reason": reason, "detail": detail}
    try:
        line["record"] = cut.decode()
    except UnicodeDecodeError:
        line["record_base64"] = base64.b64encode(cut).decode()
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
