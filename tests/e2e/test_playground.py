"""The playground in a real browser, against a real service of a trained model."""

import asyncio
import dataclasses
import json
import math
import re
import shutil
import subprocess
import threading
import urllib.request

import pytest
import torch

pytest.importorskip("fastapi", reason="fastapi is not installed")

from groundup.checkpoint.formats import open_model
from groundup.inference.engine import Engine
from groundup.serve.http_server import HttpServer, bind, url_of
from groundup.serve.service import Service
from tests.browser import chromium, needs_chromium, playwright

pytestmark = needs_chromium

PROMPT = "Once upon a time,"
expect = playwright.expect
expect.set_options(timeout=60_000)


@dataclasses.dataclass
class Served:
    url: str
    service: Service


@pytest.fixture(scope="module")
def loaded(shared_data):
    return open_model(shared_data / "models/stories260K", device=torch.device("cpu"))


def serving(loaded, **options):
    """Runs a service on a free port, in a thread."""
    service = Service(loaded, Engine(loaded), name="stories", **options)
    listener = bind("127.0.0.1", 0)
    ready, told = threading.Event(), {}

    async def main():
        server = HttpServer(service, ready.set, drain_seconds=0)
        told["loop"], told["server"] = asyncio.get_running_loop(), server
        await server.run_on(listener)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(120)
    yield Served(url_of(listener), service)
    told["loop"].call_soon_threadsafe(told["server"].drain)
    thread.join(120)


@pytest.fixture(scope="module")
def served(loaded):
    yield from serving(loaded)


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser):
    """Opens the page of a service; in the end nothing may have been asked of others, or complained about."""
    complaints, addresses, contexts = [], [], []

    def visit(served, *, status="stories", **options):
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **options)
        context.set_default_timeout(120_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: addresses.append((served.url, request.url)))
        page.goto(served.url)
        expect(page.locator("#model")).to_contain_text(status)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not complaints
    assert all(asked.startswith((url, "data:")) for url, asked in addresses)


def ask(served, **fields):
    """Returns what the API itself answers."""
    body = {"prompt": PROMPT, "logprobs": 5, "temperature": 0.8, **fields}
    request = urllib.request.Request(
        f"{served.url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]


def generate(page, *, prompt=PROMPT, pane=0, **settings):
    page.fill("#prompt", prompt)
    fill(page, pane, settings)
    page.locator("#prompt").press("Control+Enter")


def fill(page, pane, settings):
    for name, value in settings.items():
        page.locator(".pane").nth(pane).locator(f"input[name={name}]").fill(str(value))


def text_of(page, pane=0):
    expect(page.locator(".facts").nth(pane)).to_contain_text("ended by")
    return page.locator(".output").nth(pane).text_content()


def test_a_text_streams_in_with_the_probability_of_each_token(served, visit):
    page = visit(served)
    generate(page, max_tokens=24, seed=7)
    assert text_of(page) == PROMPT + ask(served, max_tokens=24, seed=7)["text"]
    logprobs = ask(served, max_tokens=24, seed=7)["logprobs"]
    tokens = page.locator(".token")
    assert tokens.all_text_contents() == logprobs["tokens"]
    for node, logprob in zip(tokens.all(), logprobs["token_logprobs"], strict=True):
        surprise = re.search(r"--surprise: ([-\d.e]+)", node.get_attribute("style"))[1]
        assert float(surprise) == pytest.approx(1 - math.exp(logprob), abs=1e-3)
    expect(page.locator(".facts")).to_contain_text("24 tokens")


def test_the_alternatives_of_a_token_are_shown_and_can_be_taken(served, visit):
    page = visit(served)
    generate(page, max_tokens=12, seed=7)
    text_of(page)
    logprobs = ask(served, max_tokens=12, seed=7)["logprobs"]
    page.locator(".token").nth(3).hover()
    offered = page.locator("#alternatives")
    expect(offered).to_be_visible()
    ranked = sorted(logprobs["top_logprobs"][3].items(), key=lambda item: -item[1])
    for row, (token, logprob) in zip(offered.locator("button").all(), ranked, strict=False):
        assert row.locator("code").text_content() == token.replace(" ", "␣")
        assert row.text_content().endswith(f"{100 * math.exp(logprob):.1f} %")
    before = PROMPT + "".join(logprobs["tokens"][:3])
    offered.locator("button").nth(1).click()
    expect(page.locator("#prompt")).to_have_value(before + ranked[1][0])
    assert text_of(page).startswith(before + ranked[1][0])


def test_the_keyboard_is_enough(served, visit):
    page = visit(served)
    generate(page, max_tokens=12, seed=7)
    before = text_of(page)
    page.locator(".output").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".token").nth(1)).to_be_focused()
    expect(page.locator("#alternatives")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("#alternatives button").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#alternatives")).to_be_hidden()
    page.locator(".keep").press("Enter")
    expect(page.locator("#prompt")).to_have_value(before)


def test_two_settings_side_by_side(served, visit):
    page = visit(served)
    page.check("#compare")
    fill(page, 1, {"max_tokens": 10, "temperature": 0, "seed": 1})
    generate(page, max_tokens=20, seed=3)
    assert text_of(page, 0) == PROMPT + ask(served, max_tokens=20, seed=3)["text"]
    assert text_of(page, 1) == PROMPT + ask(served, max_tokens=10, temperature=0)["text"]
    page.reload()  # all is there again
    expect(page.locator(".pane")).to_have_count(2)
    expect(page.locator("#prompt")).to_have_value(PROMPT)
    expect(page.locator("input[name=temperature]").nth(1)).to_have_value("0")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_command_asks_for_the_same(served, visit):
    page = visit(served)
    prompt = 'It\'s "one" $HOME `day`\nand'
    generate(page, prompt=prompt, max_tokens=8, seed=5, stop="zq\\n")
    shown = text_of(page)
    page.locator(".curl").click()
    expect(page.locator("#announcement")).to_have_text("Copied the curl command.")
    command = page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True, timeout=120)
    events = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("data: {")]
    assert prompt + "".join(event["choices"][0]["text"] for event in events) == shown


def test_a_text_can_be_stopped(served, visit):
    page = visit(served)
    generate(page, max_tokens=480, seed=7)
    expect(page.locator(".token").nth(2)).to_be_visible()
    page.keyboard.press("Escape")
    assert PROMPT in text_of(page)
    expect(page.locator("#stop")).to_be_disabled()


def test_what_is_refused_is_told(served, visit):
    page = visit(served)
    generate(page, prompt="a " * 2000, max_tokens=8)
    text_of(page)
    expect(page.locator(".error")).to_contain_text("prompt")
    generate(page, temperature=3)  # the browser itself tells, and nothing is sent
    assert page.locator("input[name=temperature]:invalid").count() == 1


def test_a_key_is_asked_for_and_sent(loaded, visit):
    for served in serving(loaded, api_key="secret"):
        page = visit(served, status="API key")
        page.fill("#key", "wrong")
        page.locator("#key").press("Tab")
        expect(page.locator("#model")).to_contain_text("API key")
        page.fill("#key", "secret")
        page.locator("#key").press("Tab")
        expect(page.locator("#model")).to_have_text("stories")
        generate(page, max_tokens=4, seed=1)
        assert len(text_of(page)) > len(PROMPT)


def test_a_phone_at_night(served, visit):
    page = visit(served, viewport={"width": 360, "height": 740}, color_scheme="dark")
    page.locator("summary").click()  # settings are folded where there is little room
    generate(page, max_tokens=24, seed=7)
    text_of(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert brightness(page) < 64
    page.locator("#theme").click()  # light
    assert brightness(page) > 192
    page.set_viewport_size({"width": 1280, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def brightness(page):
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return max(map(int, re.findall(r"\d+", colour)[:3]))
