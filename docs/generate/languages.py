"""Pages in other languages: ``page.zh.md`` beside ``page.md`` stands at ``zh/page/``, with a switch."""

import itertools
import posixpath
import re
from collections.abc import Container

from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page
from repository_files import change_links

LANGUAGES = {"en": "English", "zh": "中文", "es": "Español"}
"""Code -> the language's own name; the first is that of pages without a code."""

FIRST = next(iter(LANGUAGES))

SECTIONS = {
    "Start": {"zh": "开始", "es": "Empezar"},
    "Workflows": {"zh": "工作流程", "es": "Flujos de trabajo"},
}
"""Title of a section that has pages in other languages -> its title there."""

_MARKED = re.compile(rf"\.({'|'.join(LANGUAGES)})(\.md)$")


def language_of(src_uri: str) -> str:
    """The code of a page's language."""
    found = _MARKED.search(src_uri)
    return found[1] if found else FIRST


def original(src_uri: str) -> str:
    """The page that this one is a translation of, or itself."""
    return _MARKED.sub(r"\2", src_uri)


def translated(src_uri: str, language: str) -> str:
    """The path of a page's translation."""
    return src_uri if language == FIRST else original(src_uri).removesuffix(".md") + f".{language}.md"


def put_in_their_folders(files: Files) -> None:
    """Lets each translation be written to the folder of its language."""
    for file in files.documentation_pages():
        language = language_of(file.src_uri)
        if language != FIRST:
            as_original = File(original(file.src_uri), "", file.dest_dir, file.use_directory_urls)
            file.dest_uri = f"{language}/{as_original.dest_uri}"
            for derived in ("url", "abs_dest_path"):  # properties that are kept once they are asked for
                file.__dict__.pop(derived, None)


def with_links(text: str, page: str, known: Container[str]) -> str:
    """A translation whose links lead to the translations of what they name, where there are any."""
    language = language_of(page)

    def in_language(target: str) -> str:
        path, hash_mark, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if not path.endswith(".md") or translated(there, language) not in known:
            return target
        return translated(path, language) + hash_mark + anchor

    return text if language == FIRST else change_links(text, in_language)


def navigation_in(language: str, nav: Navigation, files: Files) -> Navigation:
    """The sections that have pages in a language, of these pages."""
    sections = []
    for section in nav.items:
        if not isinstance(section, Section):
            continue
        pages = [
            file.page
            for one in _pages(section)
            if (file := files.get_file_from_path(translated(one.file.src_uri, language))) and file.page
        ]
        if pages:
            mine = Section(SECTIONS.get(section.title, {}).get(language, section.title), [*pages])
            for page in pages:
                page.parent = mine
            for before, after in itertools.pairwise(pages):
                before.next_page, after.previous_page = after, before
            sections.append(mine)
    made = Navigation([*sections], [page for section in sections for page in _pages(section)])
    made.homepage = next((page for page in made.pages if original(page.file.src_uri) == "index.md"), None)
    return made


def switch(page: Page, files: Files) -> list[dict[str, str]]:
    """Links to a page in all languages; to the home page in those that it does not exist in."""
    links = []
    for language, name in LANGUAGES.items():
        there = files.get_file_from_path(translated(original(page.file.src_uri), language))
        home = files.get_file_from_path(translated("index.md", language))
        found = there or home
        if found is not None:
            links.append({"name": name, "lang": language, "link": found.url})
    return links


def _pages(item: Section) -> list[Page]:
    found: list[Page] = []
    for child in item.children:
        found += _pages(child) if isinstance(child, Section) else [child] if isinstance(child, Page) else []
    return found
