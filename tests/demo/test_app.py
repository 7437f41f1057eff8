"""The page in a real browser: a headless Chromium, driven by Playwright.

One server and one browser serve all tests here. Every name on the page is hostile, also where a test is about
something else.
"""

import json
import re
import shutil
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from importlib.util import find_spec

import pytest

from hf_maxmig import read_annotations
from hf_maxmig.demo.trying import Trying
from tests.children import needs_fork, started
from tests.demo.hostile_page import (
    ANNOTATORS,
    CLASSES,
    ITEMS,
    OTHERS,
    TRUTH,
    corrections,
    judged,
    picture,
    serve,
    trying,
)
from tests.modalities import TEXT

MISSING = [name for name in ("gradio", "playwright") if find_spec(name) is None]
PHONE = {"width": 360, "height": 740}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = [
    pytest.mark.slow,
    needs_fork,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(BROWSER is None, reason=f"there is no browser: {', '.join(BROWSERS)}"),
]


class World:
    """Where the page is served, and what happened on it."""

    def __init__(self, folder, addresses):
        self.folder, self.addresses = folder, addresses
        self.address = addresses["image"]
        self.corrections = corrections(folder)
        self.asked, self.errors = [], []

    def open(self, browser, name="image", **how):
        """Open the page in a browser of its own; note where its requests go, and what goes wrong on it."""
        page = browser.new_context(**how).new_page()
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)  # fmt: skip
        page.set_default_timeout(20_000)
        page.goto(self.addresses[name])
        page.get_by_role("tab", name="Try the model").wait_for()
        return page


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    with started(folder / "log", serve, folder) as child:
        deadline = time.monotonic() + 120
        while not (folder / "addresses").exists():
            assert child.is_alive(), (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield World(folder, json.loads((folder / "addresses").read_text()))


@pytest.fixture(scope="module")
def browser(world):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=BROWSER,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def desk(world, browser):
    """The page on a desk."""
    return world.open(browser, viewport={"width": 1200, "height": 900})


@pytest.fixture(scope="module")
def phone(world, browser):
    """The page on another person's phone, in the dark."""
    return world.open(browser, viewport=PHONE, color_scheme="dark", is_mobile=True, has_touch=True)


def to_tab(page, name):
    page.get_by_role("tab", name=name).click()


def choose(page, label, option):
    """Choose in a list by the keyboard."""
    box = page.get_by_role("tabpanel").get_by_label(label, exact=True).locator("visible=true")
    box.click()
    page.get_by_role("option").nth(option).click()


def saved(world):
    return {row[:2]: row[2] or row[3] for row in world.corrections.rows()}


def test_person_agrees_by_keyboard_alone(world, desk):
    """From opening the page to a saved correction, which `read_annotations` reads as a vote."""
    desk.get_by_role("tab", name="Try the model").focus()
    desk.keyboard.press("Tab")
    desk.keyboard.press("Enter")
    desk.get_by_text("Item 1 of 6; the first 6 are suspect.").wait_for()
    desk.get_by_label("Your name").focus()
    desk.keyboard.type("Zoë <b>")
    desk.keyboard.press("Tab")
    assert desk.evaluate("document.activeElement.textContent").strip() == "Agree with the model"
    desk.keyboard.press("Enter")
    desk.get_by_text("Item 2 of 6").wait_for()
    assert desk.locator(".mm-note", has_text="Saved:").inner_text() == (
        f"Saved: {ITEMS[0]} is cat. 1 correction in corrections.csv."
    )
    (vote,) = read_annotations(world.corrections.path)
    assert [*vote.values()][:3] == [ITEMS[0], "Zoë <b>", "cat"]


def test_person_corrects_and_gives_a_gold_label(world, desk):
    """Another class than the model's, and a gold label that is nobody's vote."""
    to_tab(desk, "Check labels")
    desk.get_by_label("Your name").fill("yan")
    desk.get_by_role("button", name="Save this class").click()
    desk.get_by_text("A correction must have a class: choose one.").wait_for()
    desk.get_by_text("Item 2 of 6").wait_for()
    desk.get_by_label("cat", exact=True).check()
    desk.get_by_role("button", name="Save this class").click()
    desk.get_by_text("Item 3 of 6").wait_for()
    assert not desk.get_by_label("cat", exact=True).is_checked()  # the next one is chosen anew
    desk.get_by_label("the gold label").check()
    desk.get_by_role("button", name="Agree with the model").click()
    desk.get_by_text("Item 4 of 6").wait_for()
    desk.get_by_role("button", name="Previous").click()
    desk.get_by_text("Corrected as gold label").wait_for()
    assert saved(world)[ITEMS[1], "yan"] == "cat"
    assert saved(world)[ITEMS[2], ""] == CLASSES[2]


def test_two_people_at_once_lose_nothing(world, desk, phone):
    """Each has a place of their own, and both corrections are in the file."""
    people = {"one": desk, "two": phone}
    to_tab(phone, "Check labels")
    phone.get_by_text("Item 1 of 6").wait_for()
    phone.get_by_role("button", name="Agree with the model").click()
    phone.get_by_text("A reviewer must have a name, got none: type yours.").wait_for()
    while not desk.get_by_text("Item 1 of 6").count():
        before = desk.get_by_text(re.compile("Item . of 6")).inner_text()
        desk.get_by_role("button", name="Previous").click()
        desk.get_by_text(before).wait_for(state="detached")
    for name, page in people.items():
        page.get_by_label("my vote").check()
        page.get_by_label("Your name").fill(name)
    before = saved(world)
    for number in (2, 3):
        for page in people.values():  # both are sent before either is answered
            page.get_by_role("button", name="Agree with the model").click(no_wait_after=True)
        for page in people.values():
            page.get_by_text(f"Item {number} of 6").wait_for()
    added = {key: value for key, value in saved(world).items() if key not in before}
    assert added == {(ITEMS[i], name): CLASSES[TRUTH[i]] for i in range(2) for name in people}


def test_votes_move_the_answer_on_a_picture(world, desk):
    """What a person sees is what the model says, before and after each vote."""
    to_tab(desk, "Try the model")
    path = picture(world.folder, "dropped.png")
    desk.locator("input[type=file]").set_input_files(path)
    desk.get_by_text("The classifier says").wait_for()
    desk.get_by_alt_text("your item").wait_for()
    desk.get_by_role("button", name="Add the vote").click()
    desk.get_by_text("A vote must have an annotator and a class: choose both.").wait_for()
    votes = [(1, 2), (3, 0)]
    for number, (m, c) in enumerate(votes, 1):
        choose(desk, "Annotator", m)
        choose(desk, "Says", c)
        desk.get_by_role("button", name="Add the vote").click()
        desk.locator(f".mm-steps tbody tr:nth-child({number + 1})").wait_for()
    answer = trying().answer({"image": str(path)}, votes)
    rows = desk.locator(".mm-steps tbody tr").all_inner_texts()
    assert len(rows) == 3
    for row, step in zip(rows, answer.steps, strict=True):
        shares = [float(share) for share in re.findall(r"([\d.]+)\s%", row)]
        assert shares == pytest.approx([100 * float(p.max()) for p in (step.aggregator, step.forecast)], abs=0.06)  # fmt: skip
    desk.get_by_role("button", name="Take all votes back").click()
    desk.locator(".mm-steps").wait_for(state="detached")


@pytest.mark.parametrize("content", [b"no picture", b"\x89PNG\r\n\x1a\n" + b"x" * 99])
def test_what_is_no_picture_is_answered_by_a_sentence(content, world, desk):
    """A person drops whatever lies on the desk; a stack would show the server's folders."""
    to_tab(desk, "Try the model")
    if (remove := desk.get_by_label("Clear")).count():
        remove.first.click()
        desk.get_by_text("Give an item to see what the model says.").wait_for()
    desk.locator("input[type=file]").set_input_files(picture(world.folder, "holiday.png", content))
    alert = desk.get_by_role("alert").filter(has_text="This must be a picture")
    alert.wait_for()
    told = alert.inner_text()
    assert told.startswith("This must be a picture that can be read, got a file that is not: ")
    assert "/" not in told
    assert "Traceback" not in desk.content()


@pytest.mark.parametrize("modality", OTHERS, ids=repr)
def test_other_items_than_pictures_have_a_form_of_their_own(modality, world, browser):
    """A text is typed, and each column of a row has a field."""
    page = world.open(browser, modality.name)
    item = modality.raw(1)[0]
    if modality is TEXT:
        page.get_by_label("Type or paste a text").fill(item)
    else:
        item = {}
        for column in modality.processor().columns:
            box = page.get_by_label(column["name"], exact=True)
            if column["kind"] == "number":
                box.fill("1.5")
                item[column["name"]] = 1.5
            else:
                box.click()
                page.get_by_role("option").nth(1).click()
                item[column["name"]] = 1 if column["kind"] == "truth" else column["categories"][1]
    page.get_by_role("button", name="Classify").click()
    page.get_by_text("The classifier says").wait_for()
    answer = Trying(modality.model(), modality.processor()).answer(modality.parts(item))
    shares = [float(share) for share in page.locator(".mm-bars td").all_inner_texts() for share in re.findall(r"[\d.]+", share)]  # fmt: skip
    assert shares == pytest.approx(sorted((100 * answer.classifier).tolist(), reverse=True), abs=0.06)  # fmt: skip
    page.context.close()


def test_annotator_is_shown_with_matrix_and_errors(world, desk):
    """The first is the one to act on first; another is a choice away."""
    to_tab(desk, "Annotators")
    order = judged().to_act_on_first()
    desk.get_by_text(judged().reason[order[0]].replace("\u202e", "\ufffd")).wait_for()
    choose(desk, "Annotator", order.index(1))
    desk.get_by_text(f"because of {ANNOTATORS[1]}").wait_for()
    matrix = desk.locator(".mm-confusion tbody td").all_inner_texts()
    wanted = [f"{100 * share:.0f}\u00a0%" for share in judged().confusion[1].ravel()]
    assert matrix == wanted
    assert desk.locator(".mm-errors li").count() == 6  # their votes are all for the next class


def contrast(page, selector):
    """Return the contrast of a text with the page under it, by the formula of WCAG."""
    return page.evaluate(
        """selector => {
            const light = ([r, g, b]) => {
                const [x, y, z] = [r, g, b].map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                return .2126 * x + .7152 * y + .0722 * z;
            };
            const numbers = text => text.match(/[\\d.]+/g).map(Number);
            let under = document.querySelector(selector);
            const ink = light(numbers(getComputedStyle(under).color));
            let paper = [0, 0, 0, 0];
            while (under && (paper.length == 4 && paper[3] == 0)) {
                paper = numbers(getComputedStyle(under).backgroundColor);
                under = under.parentElement;
            }
            const page = light(paper);
            return (Math.max(ink, page) + .05) / (Math.min(ink, page) + .05);
        }""",
        selector,
    )


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_page_fits_a_phone_in_light_and_dark(scheme, desk, phone):
    """A reviewer sits on a train, in the evening."""
    page = {"dark": phone, "light": desk}[scheme]
    page.set_viewport_size(PHONE)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 3 * 100) == (scheme == "dark")
    for tab, text in (("Check labels", "suspect."), ("Annotators", "Right votes")):
        to_tab(page, tab)
        page.get_by_text(text).wait_for()
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1] == 360, tab
    assert contrast(page, ".mm-facts dt") >= 4.5
    assert contrast(page, ".mm-badge") >= 4.5


def test_hostile_names_did_nothing(world, desk):
    """After all that was done above, with names that are scripts, templates, attributes and turned lines."""
    assert desk.evaluate("window.hacked") is None
    for tab in ("Check labels", "Annotators", "Try the model"):
        to_tab(desk, tab)
        assert desk.evaluate("document.querySelectorAll('.mm script, img[src=x], .mm [onclick]').length") == 0  # fmt: skip
    to_tab(desk, "Check labels")
    assert CLASSES[2][:50] in desk.locator(".mm-bars").locator("visible=true").first.inner_text()
    assert world.errors == []


def test_nothing_goes_to_another_place(world, desk):
    """A page about people and their data asks for no fonts, no scripts and no statistics, and neither does its server."""
    assert len(world.asked) > 20
    local = ("http://127.0.0.1:", "data:", "blob:")
    assert [url for url in world.asked if not url.startswith(local)] == []
    lines = (world.folder / "connections").read_text().splitlines()
    connected = [place for place in map(json.loads, lines) if isinstance(place, list)]
    assert {host for host, *_ in connected} == {"127.0.0.1"}  # it asks itself whether it is there


def test_page_is_for_this_machine_alone(world):
    """Another machine cannot reach it, and a page elsewhere cannot lead its own name here."""
    port = urllib.parse.urlsplit(world.address).port
    with pytest.raises(ConnectionRefusedError):  # a server for all addresses would answer here too
        socket.create_connection(("127.0.0.2", port), timeout=5)
    with urllib.request.urlopen(world.address) as answer:
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(urllib.request.Request(world.address, headers={"Host": "evil.example"}))  # fmt: skip
