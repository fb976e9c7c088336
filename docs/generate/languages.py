"""Pages in other languages: ``page.zh.md`` beside ``page.md`` stands at ``zh/page/``, with a switch."""

import itertools
import posixpath
import re
from collections.abc import Container

from mkdocs.structure import StructureItem
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
    "How-to guides": {"zh": "操作指南", "es": "Guías"},
    "Reference": {"zh": "参考", "es": "Referencia"},
    "Concepts": {"zh": "概念", "es": "Conceptos"},
    "Decisions": {"zh": "设计决策", "es": "Decisiones"},
    "Troubleshooting": {"zh": "故障排查", "es": "Solución de problemas"},
    "Benchmarks": {"zh": "性能测试", "es": "Mediciones"},
}
"""Title of a part of the site -> its title in other languages; without one it keeps its own."""

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
    """The navigation with pages of a language in place of those that they are translations of."""
    mine: list[Page] = []

    def in_language(item: StructureItem) -> StructureItem:
        if isinstance(item, Section):
            section = Section(_title(item.title, language), [in_language(child) for child in item.children])
            for child in section.children:
                if isinstance(child, Section) or child in mine:
                    child.parent = section
            return section
        file = isinstance(item, Page) and files.get_file_from_path(translated(item.file.src_uri, language))
        if not file or not file.page:
            return item
        mine.append(file.page)
        return file.page

    made = Navigation([in_language(item) for item in nav.items], mine)
    for before, after in itertools.pairwise(mine):
        before.next_page, after.previous_page = after, before
    made.homepage = next((page for page in mine if original(page.file.src_uri) == "index.md"), None)
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


def _title(title: str, language: str) -> str:
    return SECTIONS.get(title, {}).get(language, title)
