"""The playground: a static page that talks to the service as any client does."""

from pathlib import Path

from fastapi import Response

_FOLDER = Path(__file__).parent / "playground"
_FILES = {
    "/": ("index.html", "text/html"),
    "/playground/playground.css": ("playground.css", "text/css"),
    "/playground/playground.js": ("playground.js", "text/javascript"),
}
PATHS = frozenset(_FILES)
"""Where its files are served."""

_HEADERS = {
    # What a model says can never become a script, and nothing is asked from elsewhere.
    "Content-Security-Policy": "default-src 'self'; img-src data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_file(path: str) -> Response:
    """Returns one file of the page."""
    name, media_type = _FILES[path]
    return Response((_FOLDER / name).read_bytes(), media_type=media_type, headers=_HEADERS)
