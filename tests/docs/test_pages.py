"""Pages hold what they promise: links on GitHub, examples; and what the site makes of links."""

import doctest

import languages
import pytest
import repository_files

from tests.guides import ROOT, blocks

PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("docs", "examples", "deploy", "benchmarks/results")
    for path in (ROOT / folder).rglob("*.md")
)


def test_every_link_leads_to_a_file():
    """On GitHub; `make docs` looks at those of the site, and at anchors."""
    missing = [
        (page, target)
        for page in [*PAGES, "README.md", "CONTRIBUTING.md", "AGENTS.md"]
        for target in repository_files.linked((ROOT / page).read_text(), page)
        if not (ROOT / target).exists()
    ]
    assert len(PAGES) > 50
    assert not missing


@pytest.mark.parametrize("page", [page for page in PAGES if ">>> " in (ROOT / page).read_text()])
def test_examples_in_python_print_what_is_shown(page):
    session = "\n".join(blocks(page, "pycon"))
    test = doctest.DocTestParser().get_doctest(session, {}, page, page, 0)
    assert test.examples
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("docs/guides/serving.md", "guides/serving.md"),
        ("docs/decisions", "decisions/index.md"),
        ("benchmarks/results/tokens.md", "benchmarks/tokens.md"),
        ("benchmarks/results/growth.svg", "benchmarks/growth.svg"),
        ("deploy/slurm/train.sbatch", "repository/deploy/slurm/train.sbatch.md"),
        ("examples/openwebtext", "repository/examples/openwebtext/index.md"),
        ("README.md", "repository/README.md"),
    ],
)
def test_where_a_file_stands_on_the_site(path, place):
    assert (ROOT / path).exists()
    assert repository_files.place_of(path) == place


def test_links_lead_to_where_files_stand_and_code_is_left_alone():
    text = "[a](../../examples/openwebtext) [b](crawl.md#x) [c](https://x.org) [d](#e)\n"
    text += "```\n[a](../../README.md)\n```\n"
    made = repository_files.with_links(text, "docs/guides/corpus.md", "guides/corpus.md")
    first, *code = made.splitlines()
    assert (
        first == "[a](../repository/examples/openwebtext/index.md) [b](crawl.md#x) [c](https://x.org) [d](#e)"
    )
    assert code == ["```", "[a](../../README.md)", "```"]


def test_a_section_is_included_with_links_from_where_it_stands():
    made = repository_files.with_sections("<!-- include README.md#What works -->", "docs/concepts/x.md")
    assert "[recipes](../guides/corpus.md)" in made
    assert "## Speed" not in made
    with pytest.raises(ValueError, match="no section"):
        repository_files.with_sections("<!-- include README.md#Nothing -->", "docs/x.md")


def test_a_folder_that_is_linked_to_is_a_page_with_its_files():
    made = repository_files.pages_beside({"docs/guides/x.md": "[w](../../deploy/slurm)"})
    listing = made["repository/deploy/slurm/index.md"]
    assert "[train.sbatch](train.sbatch.md)" in listing
    assert "```bash\n#!" in made["repository/deploy/slurm/train.sbatch.md"]
    assert made["benchmarks/growth.svg"] == ROOT / "benchmarks/results/growth.svg"


def test_a_translation_leads_to_translations_where_there_are_any():
    known = {"index.md", "quickstart.md", "quickstart.zh.md", "guides/serving.md"}
    made = languages.with_links("[a](quickstart.md#x) [b](guides/serving.md)", "index.zh.md", known)
    assert made == "[a](quickstart.zh.md#x) [b](guides/serving.md)"
    assert languages.with_links("[a](quickstart.md)", "index.md", known) == "[a](quickstart.md)"


def test_code_that_holds_a_block_of_markdown_is_shown_whole():
    made = repository_files.pages_beside({"docs/x.md": "[b](../benchmarks/quickstart.py)"})
    page = made["repository/benchmarks/quickstart.py.md"]
    assert "````python\n" in page and page.endswith("\n````\n")
    assert (ROOT / "benchmarks/quickstart.py").read_text() in page
