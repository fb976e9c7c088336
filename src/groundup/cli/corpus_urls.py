"""``groundup corpus urls``: from lists of links to one list worth fetching."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from groundup.core.errors import ConfigError
from groundup.corpus.url_list import clean_url_list
from groundup.corpus.urls import UrlRules, default_rules, read_list


def urls(
    *sources: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    out: Annotated[Path, Parameter(alias="-o")],
    block_domains: tuple[Path, ...] = (),
    block_extensions: tuple[Path, ...] = (),
    default_lists: bool = True,
    min_characters: int = 12,
) -> None:
    """Clean lists of URLs: well-formed ones of pages, each once.

    Removes what is malformed, too short, not http or https, of an address that is not public, of a domain or
    an extension that holds no articles (images, video, social networks, shops, PDF, archives, ...), or a
    duplicate: of URLs that differ in scheme, www., a slash at the end, parameters that track the reader or
    their order, the first is kept. Prints a count and examples for each reason.

    For example:

        groundup corpus urls links/ more.txt.gz --out urls.txt
        zcat dump.gz | groundup corpus urls - -o urls.txt
        groundup corpus urls submissions.jsonl --block-domains own.txt -o urls.txt

    Args:
        sources: Files of one URL a line or JSON lines with "url", also .gz and .zst; folders; quoted globs;
            - for stdin.
        out: The list to write.
        block_domains: Files of more domains, one a line; each blocks its subdomains too.
        block_extensions: Files of more extensions, one a line.
        default_lists: Use the lists of domains and extensions that come with groundup.
        min_characters: Drop shorter URLs.
    """
    if min_characters < 1:
        raise ConfigError(f"got {min_characters}", where="--min-characters", fix="Give 1 or more.")
    domains = [domain for path in block_domains for domain in read_list(path)]
    extensions = [extension for path in block_extensions for extension in read_list(path)]
    if default_lists:
        rules = default_rules(more_domains=domains, more_extensions=extensions, min_characters=min_characters)
    else:
        rules = UrlRules(
            blocked_domains=frozenset(domains),
            blocked_extensions=frozenset(extensions),
            min_characters=min_characters,
        )
    report = clean_url_list(sources, out, rules)
    sys.stdout.write(f"{report.table()}\n\n{out}\n")
