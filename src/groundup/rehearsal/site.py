"""A web site to crawl without a network: documentation of Python's standard library, and some bad pages."""

import ast
import contextlib
import html
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from groundup.core.errors import DataError
from groundup.corpus.python_library import find_python_library

NUM_DOCUMENTS = 64
_LEAST_CHARACTERS, _MOST_CHARACTERS = 1200, 6000
_SHORT = "<html lang='en'><body><p>Too short to learn from.</p></body></html>"
_ROBOTS = "User-agent: *\nDisallow: /private/\n"

Paragraphs = list[str]


@contextlib.contextmanager
def served_site() -> Iterator[list[str]]:
    """Serves the site on this machine while entered; yields the URLs of its pages.

    Beside the documents there are a copy of one, nearly a copy of another, a page of a few words, one that
    robots.txt forbids and one that is missing.

    Raises:
        DataError: This Python comes without the source of its standard library.
    """
    pages = _pages()
    names = [*pages, "/missing.html"]
    served = {**pages, "/robots.txt": _ROBOTS}

    class Handler(BaseHTTPRequestHandler):
        """Answers with a page or 404."""

        def do_GET(self) -> None:
            page = served.get(self.path)
            body = (page or "no such page").encode()
            self.send_response(200 if page else 404)
            kind = "plain" if self.path.endswith(".txt") else "html"
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as the base class has it
            """Says nothing: the crawl counts its pages itself."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield [f"http://127.0.0.1:{server.server_port}{name}" for name in names]
        finally:
            server.shutdown()


def _pages() -> dict[str, str]:
    documents = dict(_documents())
    (name, first), (_, second), *_ = documents.items()
    return {
        **{f"/{title}.html": _page(title, paragraphs) for title, paragraphs in documents.items()},
        "/again/copy.html": _page(name, first),
        "/again/nearly.html": _page("Nearly a copy", [*second, "This page has one more sentence."]),
        "/again/short.html": _SHORT,
        "/private/page.html": _page("Private", first),
    }


def _page(title: str, paragraphs: Paragraphs) -> str:
    body = "".join(f"<p>{html.escape(paragraph)}</p>\n" for paragraph in paragraphs)
    head = f"<html lang='en'><head><title>{title}</title></head>"
    menu = "<nav><a href='/'>Home</a> <a href='/about'>About</a></nav>"
    return f"{head}<body>{menu}<article><h1>{title}</h1>\n{body}</article></body></html>"


def _documents() -> Iterator[tuple[str, Paragraphs]]:
    """Yields name and documentation of modules that have enough of it."""
    found = 0
    for file in find_python_library():
        paragraphs = _documentation(file.path.read_bytes())
        if sum(map(len, paragraphs)) >= _LEAST_CHARACTERS:
            yield file.name.removesuffix(".py").replace("/", "."), paragraphs
            found += 1
        if found == NUM_DOCUMENTS:
            return
    raise DataError(f"only {found} modules of this Python's standard library have documentation")


def _documentation(source: bytes) -> Paragraphs:
    """Returns the paragraphs of all docstrings of a module, as far as they fit into a page."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # templates among the library's files
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    paragraphs: Paragraphs = []
    length = 0
    for paragraph in (" ".join(part.split()) for text in texts for part in text.split("\n\n")):
        length += len(paragraph)
        if length > _MOST_CHARACTERS:
            break
        if paragraph:
            paragraphs.append(paragraph)
    return paragraphs
