"""Gives the site what is no file of docs/: pages made from code, files of the repository, other languages.

MkDocs calls these functions by their names while it builds (``hooks`` in mkdocs.yml).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import languages
import repository_files
import setting_pages
import verb_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

_LISTS: Mapping[str, Callable[[], str]] = {
    "<!-- list of commands -->": verb_pages.listed,
    "<!-- list of settings -->": setting_pages.listed,
    "<!-- list of benchmarks -->": partial(repository_files.listed, repository_files.BENCHMARKS),
    "<!-- list of decisions -->": partial(repository_files.listed, "docs/decisions"),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are no files of docs/, and fills the navigation."""
    made: dict[str, str | Path] = {**verb_pages.pages(), **setting_pages.pages()}
    sources = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    texts = {source: repository_files.with_sections(text, source) for source, text in sources.items()}
    made |= repository_files.pages_beside(texts)
    for place, content in made.items():
        if isinstance(content, Path):
            files.append(File.generated(config, place, abs_src_path=str(content)))
        else:
            files.append(File.generated(config, place, content=content))
    languages.put_in_their_folders(files)
    config.nav = _filled(config.nav, [file.src_uri for file in files.documentation_pages()])
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Makes the navigation of each other language."""
    for language in languages.LANGUAGES:
        if language != languages.FIRST:
            config.extra.setdefault("navigations", {})[language] = languages.navigation_in(
                language, nav, files
            )
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links to where the site has what they name."""
    page.meta["alternate"] = languages.switch(page, files)
    if page.file.generated_by:
        return markdown
    source = f"docs/{page.file.src_uri}"
    text = repository_files.with_sections(markdown, source)
    text = repository_files.with_links(text, source, page.file.src_uri)
    for marker, made in _LISTS.items():
        if marker in text:
            text = text.replace(marker, made())
    return languages.with_links(text, page.file.src_uri, files.src_uris)


def on_page_context(
    context: dict[str, Any], page: Page, config: MkDocsConfig, nav: Navigation
) -> dict[str, Any]:
    """Shows a page in its language, with links to the others."""
    language = languages.language_of(page.file.src_uri)
    config.theme["language"] = language
    config.extra["alternate"] = page.meta["alternate"]
    context["nav"] = config.extra["navigations"].get(language, nav)
    return context


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Takes out links to other languages in the head: the theme's script asks for a site map at each."""
    return re.sub(r'<link rel="alternate"[^>]*>', "", output)


def _filled(nav: list[Any], pages: list[str]) -> list[Any]:
    """The navigation of mkdocs.yml with pages in place of ``folder/*``."""
    named = set(_named(nav))

    def fill(items: list[Any]) -> Iterator[Any]:
        for item in items:
            if isinstance(item, str) and "*" in item:
                yield from _unnamed(item, pages, named)
            elif isinstance(item, dict):
                ((title, inside),) = item.items()
                inner = list(fill(inside if isinstance(inside, list) else [inside]))
                if inner:
                    yield {title: inside if isinstance(inside, str) and inner == [inside] else inner}
            else:
                yield item

    return list(fill(nav))


def _unnamed(pattern: str, pages: list[str], named: set[str]) -> list[str]:
    return [
        page
        for page in pages
        if PurePosixPath(page).match(pattern) and page not in named and languages.original(page) == page
    ]


def _named(items: Any) -> Iterator[str]:
    for item in (
        items if isinstance(items, list) else items.values() if isinstance(items, Mapping) else [items]
    ):
        if isinstance(item, str):
            yield item
        else:
            yield from _named(item)
