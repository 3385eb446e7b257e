"""The page in a real Chromium, clicked and typed through with a running gateway behind it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow

CONTROL, ENTER, TAB = "\ue009", "\ue007", "\ue004"  # as WebDriver names keys
CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
FOCUSED = """
const e = document.activeElement, s = getComputedStyle(e);
return [e.id || e.className || e.tagName, s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2];
"""
NAMELESS = """
const named = (e) => e.ariaLabel || e.textContent.trim() || e.labels?.length || e.getAttribute("aria-labelledby");
return [...document.querySelectorAll("button, input, select, textarea, a, [role=img], [role=meter], [role=region]")]
  .filter((e) => !named(e)).map((e) => e.outerHTML);
"""
BROKEN = """
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
const names = ["aria-labelledby", "aria-describedby", "aria-controls", "for"];
const meant = names.flatMap((name) => [...document.querySelectorAll(`[${name}]`)]
  .flatMap((e) => e.getAttribute(name).split(" ")));
return {
  twice: ids.filter((id, at) => ids.indexOf(id) !== at),
  lost: meant.filter((id) => id && !document.getElementById(id)),
  deaf: [...document.querySelectorAll("[onclick], [role=button]")].filter((e) => e.tagName !== "BUTTON").length,
  unreachable: [...document.querySelectorAll("main *")].filter((e) => e.tabIndex < 0
    && /auto|scroll/.test(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth + 1).map((e) => e.className),
};
"""
NARROW = """
return [...document.querySelectorAll("button, input, select, textarea")]
  .map((e) => [e.id || e.className, e.getBoundingClientRect()])
  .filter(([, box]) => box.width < 24 || box.height < 24).map(([name]) => name);
"""


class Page:
    """A person before the page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, width: int = 1280, scheme: str = "light") -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.get(url)
        self.until(lambda: "answer." in self.text("#health"))

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def text(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def press_with_control(self, key: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).key_down(CONTROL).send_keys(key).key_up(CONTROL).perform()

    def until(self, what: Callable[[], Any], within: float = 120.0) -> None:
        deadline = time.monotonic() + within
        while not what():
            assert time.monotonic() < deadline, self.text("body")
            time.sleep(0.05)

    def complaints(self) -> list[str]:
        """Of the browser's console, since they were last asked for: errors of scripts and what the policy forbids."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]


@pytest.fixture
def page(chromium: Any, page_url: str) -> Iterator[Page]:
    made = Page(chromium)
    made.open(page_url)
    made.js("localStorage.clear()")
    yield made
    assert made.complaints() == []


def ask(url: str, **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "Where does the water go?"}]
    return httpx.post(
        url.replace("/dashboard", "/v1/chat/completions"),
        json={"messages": messages, "max_tokens": 50, **body},
    )


def test_it_shows_what_runs(page: Page, page_url: str) -> None:
    for model in ("7b", "13b", "auto"):
        assert ask(page_url, model=model).status_code == 200
    page.until(lambda: len(page.all("#requests > li")) >= 3)
    assert "All 3 tiers answer." in page.text("#health")
    assert [card.get_attribute("aria-label") for card in page.all(".card")] == [
        "Tier 7b",
        "Tier 13b",
        "Tier 70b",
    ]
    assert "routed: 7b" in str(page.all("#flow svg")[0].get_attribute("aria-label"))
    assert "asked for by name" in page.text("#reasons")
    page.until(lambda: page.all("#first .point, #first .line"))
    assert "%" in page.text("#figures")
    assert "boss" in page.text("#tenants") and "of 600" in page.text("#tenants")
    assert " in" in page.text("#tenants") and "of 5 a day" in page.text("#tenants")


def test_a_prompt_is_tried_by_keyboard_alone(page: Page) -> None:
    page.js("document.getElementById('prompt').focus()")
    page.press("Why does <b>water</b> turn a wheel?")
    page.press_with_control(ENTER)
    page.until(lambda: "answered: first text" in page.text("#tried"))
    assert page.text("#answer").startswith("Water leaves the river")
    assert "To 7b: p=" in page.text("#decision")
    assert len(page.all("#decision li")) == 3
    page.until(lambda: page.all("#course .waterfall li"))
    steps = page.text("#course .waterfall")
    assert all(step in steps for step in ("recall", "route", "7b/0", "first token", "answer"))


def test_a_request_opens_into_its_course(page: Page, page_url: str) -> None:
    answer = ask(page_url, model="13b")
    page.until(lambda: "13b" in page.text("#requests > li:first-child"))
    button = page.all("#requests > li:first-child .brief")[0]
    button.send_keys(ENTER)
    page.until(lambda: answer.headers["x-request-id"] in page.text("#requests > li:first-child .facts"))
    assert button.get_attribute("aria-expanded") == "true"
    assert "13b/0\tanswered" in page.text("#requests > li:first-child table")
    ask(page_url, model="7b")  # what is open stays open while others come
    page.until(lambda: "7b" in page.text("#requests > li:first-child .tier"))
    assert button.get_attribute("aria-expanded") == "true"
    button.send_keys(" ")
    assert button.get_attribute("aria-expanded") == "false"


def test_an_answer_that_breaks_off_says_so(page: Page) -> None:
    page.js("document.getElementById('model').value = '70b'")
    page.all("#prompt")[0].send_keys("x")
    page.all("#ask")[0].click()
    page.until(lambda: "broke off" in page.text("#tried"))
    assert page.text("#ask") == "Ask"
    page.until(lambda: page.all("#requests .state.trouble"))


def test_pause_holds_the_page_still(page: Page, page_url: str) -> None:
    pause = page.all("#pause")[0]
    pause.click()
    assert pause.get_attribute("aria-pressed") == "true"
    before = page.text("#requests")
    id = ask(page_url, model="7b").headers["x-request-id"]
    page.until(lambda: httpx.get(f"{page_url}/state").json()["latest"][0]["id"] == id)
    assert page.text("#requests") == before
    pause.click()
    page.until(lambda: page.text("#requests") != before)


def test_the_theme_is_the_system_s_until_one_is_chosen(page: Page, page_url: str) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = page.js(paper)
    page.open(page_url, scheme="dark")
    dark = page.js(paper)
    assert light != dark
    page.all("#theme")[0].click()
    assert page.text("#theme") == "Theme: light" and page.js(paper) == light
    page.open(page_url, scheme="dark")
    assert page.js(paper) == light
    page.all("#theme")[0].click()
    assert page.js(paper) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_text_can_be_read(page: Page, page_url: str, scheme: str, width: int) -> None:
    ask(page_url, model="nobody")
    ask(page_url, model="7b")
    page.open(page_url, width, scheme)
    page.all("#prompt")[0].send_keys("x")
    page.all("#ask")[0].click()
    page.until(lambda: page.all("#course .waterfall li"))
    for brief in page.all("#requests .brief")[:2]:
        page.js("arguments[0].click()", brief)
    page.until(lambda: len(page.all("#requests .facts")) == 2)
    assert page.js(CONTRAST) == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 2200])
def test_it_fits_every_screen(page: Page, page_url: str, width: int) -> None:
    page.open(page_url, width)
    page.until(lambda: page.all("#flow svg"))
    assert page.js("return document.documentElement.scrollWidth") <= width
    assert page.js(NARROW) == []


def test_the_keyboard_goes_through_it_in_the_order_of_reading(page: Page) -> None:
    page.js("document.body.tabIndex = -1; document.body.focus()")
    order = []
    for _ in range(7):
        page.press(TAB)
        name, visible = page.js(FOCUSED)
        assert visible, name
        order.append(name)
    assert order == ["skip", "pause", "theme", "prompt", "model", "most", "ask"]
    page.js("document.querySelector('.skip').focus()")
    page.press(ENTER)
    assert page.js("return document.activeElement.id") == "main"


def test_a_screen_reader_finds_its_way(page: Page, page_url: str) -> None:
    ask(page_url, model="7b")
    page.until(lambda: page.all("#requests .brief"))
    assert page.js(NAMELESS) == []
    assert page.js("return document.documentElement.lang") == "en"
    assert [len(page.all(name)) for name in ("main", "header", "footer", "h1")] == [1, 1, 1, 1]
    levels = page.js("return [...document.querySelectorAll('h1, h2, h3, h4')].map((h) => +h.tagName[1])")
    assert levels[0] == 1 and all(
        after - before <= 1 for before, after in zip(levels, levels[1:], strict=False)
    )
    assert page.js(
        "return [...document.querySelectorAll('section')].every((s) => s.ariaLabelledByElements?.length)"
    )
    assert page.js("return [...document.querySelectorAll('table')].every((t) => t.caption && t.tHead)")
    assert [e.get_attribute("role") for e in page.all("#health, #tried")] == ["status", "status"]


DRAFTING = """
const [gates, done] = arguments;
import("/dashboard/tiers.js").then(({ drafting }) => done(drafting(gates).map((line) => line.textContent)));
"""


def test_what_speculation_has_found_out_is_told_in_words(page: Page) -> None:
    gates = [
        {"method": "ngram", "task": "code", "tokens": 4, "acceptance": 0.62, "gain": 1.43, "reason": "pays"},
        {
            "method": "ngram",
            "task": "chat",
            "tokens": 0,
            "acceptance": 0.1,
            "gain": 0.9,
            "reason": "unprofitable",
        },
        {"method": "ngram", "task": "qa", "tokens": 0, "acceptance": 0.5, "gain": 1.0, "reason": "probing"},
    ]
    assert page.driver.execute_async_script(DRAFTING, gates) == [
        "Drafts for code 4 tokens at a time, 62% accepted, 1.4 times as fast (ngram)",
        "No drafts for chat (they do not pay); qa (finding out)",
    ]
    assert page.driver.execute_async_script(DRAFTING, []) == []


WORDS = """
const [amounts, prices, done] = arguments;
import("/dashboard/words.js").then(({ money, price }) => done([amounts.map(money), prices.map(price)]));
"""


def test_amounts_as_a_person_writes_them(page: Page) -> None:
    """A cascade that costs more than it saves has saved less than nothing."""
    amounts, prices = [0, -500, -0.25, 0.00012, -0.00012], [0.7 / 10, 1.1 / 10, 15, 0]
    assert page.driver.execute_async_script(WORDS, amounts, prices) == [
        ["0", "-500", "-0.25", "0.00012", "-0.00012"],
        ["0.07", "0.11", "15", "0"],
    ]


CHANNEL = """
const [names, done] = arguments;
import("/dashboard/flow.js").then(({ drawFlow }) => {
  const place = document.body.appendChild(document.createElement("div"));
  drawFlow(place, document.createElement("ul"), names.map((name) => ({ name })), []);
  const room = place.querySelector("svg").getBoundingClientRect();
  const words = [...place.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
  place.remove();
  const apart = (one, other) => one.bottom <= other.top + 2 || other.bottom <= one.top + 2;
  done({
    outside: words.filter((box) => box.right > room.right + 1 || box.bottom > room.bottom + 1).length,
    met: words.filter((one, at) => words.slice(at + 1).some((other) =>
      Math.abs(one.left - other.left) < 60 && !apart(one, other))).length,
  });
});
"""


@pytest.mark.parametrize("width", [360, 1280])
def test_many_tiers_with_long_names_have_room(page: Page, page_url: str, width: int) -> None:
    page.open(page_url, width)
    names = [f"{number}{'-of-a-long-name' * 4}" for number in range(12)]
    assert page.driver.execute_async_script(CHANNEL, names) == {"outside": 0, "met": 0}


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_points_nowhere_and_all_that_scrolls_can_be_scrolled_by_keyboard(
    page: Page, page_url: str, width: int
) -> None:
    ask(page_url, model="7b")
    page.open(page_url, width)
    page.until(lambda: page.all("#requests .brief"))
    page.js("document.querySelector('#requests .brief').click()")
    page.until(lambda: page.all("#requests .facts"))
    assert page.js(BROKEN) == {"twice": [], "lost": [], "deaf": 0, "unreachable": []}


def test_a_key_opens_it_and_everything_on_it(chromium: Any, start_gateway: Callable[..., Any]) -> None:
    with start_gateway(anonymous=False) as (url, key):
        assert httpx.get(f"{url}/dashboard").status_code == 401
        page = Page(chromium)
        page.open(url.replace("http://", f"http://any:{key}@") + "/dashboard")
        page.all("#prompt")[0].send_keys("x")
        page.all("#ask")[0].click()
        page.until(lambda: "answered: first text" in page.text("#tried"))
        page.until(lambda: "boss" in page.text("#tenants"))
        assert key not in page.js("return document.documentElement.outerHTML + JSON.stringify(localStorage)")
        assert page.complaints() == []
    page.until(lambda: "does not answer" in page.text("#health"))
    page.driver.get("about:blank")
    page.complaints()
