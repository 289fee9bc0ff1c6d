"""What an operator needs of the dashboard, in a real browser, at real nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from oncegate.gateway.client.sync_crossing import LoopThread
from oncegate.gateway.http.server import running
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.session_handlers import open_session
from oncegate.gateway.machine.table_life import declare_table
from oncegate.stores.claimed import claimed_store
from oncegate.stores.dead_letters import DEAD_LETTERS
from oncegate.stores.tables import WRITE_TS
from tests.browser.conftest import HEIGHT, WIDTH
from tests.gateway.http_contract import founded, one_node
from tests.gateway.test_auth import entry

pytestmark = pytest.mark.browser
ADMIN, READER = "t-admin", "t-reader"
EVIL = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'>"


class Dashboard:
    """The page in the browser. Waits are for conditions; the longest is generous, and reached only by a failure."""

    def __init__(self, driver: webdriver.Chrome, base: str) -> None:
        self.driver = driver
        self.base = base

    def open(self, view: str = "", *, base: str | None = None) -> None:
        """Open the page anew, also if it is open already."""
        self.driver.get("about:blank")
        self.logs()
        self.driver.get(f"{base or self.base}/dashboard{view}")
        self.wait("return !!window.dashboard")

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str) -> None:
        WebDriverWait(self.driver, 60, poll_frequency=0.05).until(lambda _: self.js(condition), condition)

    def wait_text(self, selector: str, text: str) -> None:
        self.wait(f"return !!document.querySelector({json.dumps(selector)})?.textContent.includes({json.dumps(text)})")

    def keys(self, *keys: str) -> None:
        actions = ActionChains(self.driver)
        for key in keys:
            actions.send_keys(key)
        actions.perform()

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements at one moment: what is live may be replaced between two questions."""
        found: list[str] = self.js(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
        )
        return found

    def click(self, selector: str) -> None:
        self.wait(f"return !!document.querySelector({json.dumps(selector)})")
        self.js(
            """const press = new MouseEvent("click", { bubbles: true, cancelable: true });
            document.querySelector(arguments[0]).dispatchEvent(press);""",
            selector,
        )

    def emulate(self, *, width: int = WIDTH, scheme: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}] if scheme else []
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def logs(self) -> tuple[list[str], list[str]]:
        """Return what the console said and which addresses were asked for, since the last call."""
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return said, [address for address in sent if not address.startswith(("data:", "about:", "chrome"))]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with tables, flows that cascade, sessions, a store of rows, and texts that would be HTML."""
    url = f"sqlite:///{tmp_path_factory.mktemp('store')}/store"
    with LocalCluster(tmp_path_factory.mktemp("nodes"), 3, flags=("--stream-store", url)) as cluster:
        cluster.start()
        cluster.wait_ready()
        base = cluster.endpoints[0]
        with requests.Session() as http:
            for name in ("orders", "totals", "invoices"):
                assert http.put(f"{base}/v1/tables/{name}", json={"kind": "resident"}, timeout=30).ok
            assert http.put(f"{base}/v1/tables/events", json={"kind": "stream"}, timeout=30).ok
            flow = {"source": "orders", "target": ["totals", "invoices"], "consumers": ["billing", "search"]}
            assert http.put(f"{base}/v1/flows/orders-out", json=flow, timeout=30).ok
            assert http.put(f"{base}/v1/flows/totals-out", json={"source": "totals"}, timeout=30).ok
            opened = {"nonce": "n", "lease_ms": 3_600_000}
            client_id = http.post(f"{base}/v1/sessions", json=opened, timeout=30).json()["client_id"]
            written = [
                {"sequence": n, "op": "put", "table": "orders", "key": EVIL if n == 1 else f"k{n:03}", "value": EVIL}
                for n in range(1, 121)
            ]
            body = {"client_id": client_id, "epoch": 1, "first_incomplete": 1, "operations": written}
            assert http.post(f"{base}/v1/operations", json=body, timeout=30).ok
            identity = http.get(f"{base}/v1/cluster", timeout=30).json()["identity"]
        letter = {"job": "hourly", "flow": "orders-out", "batch": 1, "commit": 7, "item_key": EVIL, "raw": b"?"}
        letter |= {"error": f"KeyError: {EVIL}", "client_id": 1, "sequence": 7, "time_ms": 5, WRITE_TS: 7}
        with claimed_store(url, identity) as store:
            store.create([DEAD_LETTERS])
            rows = pa.RecordBatch.from_pylist([letter | {"traceparent": None}], schema=DEAD_LETTERS.schema)
            store.write(DEAD_LETTERS, rows)
        yield cluster


@pytest.fixture
def page(chromium: webdriver.Chrome, nodes: LocalCluster) -> Iterator[Dashboard]:
    shown = Dashboard(chromium, nodes.endpoints[0])
    shown.emulate()
    try:
        yield shown
        said, asked = shown.logs()
        own = tuple(nodes.endpoints)
        assert all(address.startswith(own) for address in asked), "nothing but the nodes is asked"
        assert not said
    finally:
        shown.js("window.dashboard?.stream.abort?.abort()")
        chromium.get("about:blank")
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        shown.logs()


def test_cluster_is_told_in_words_and_goes_on_living(page: Dashboard) -> None:
    page.open()
    page.wait_text("#about", "3 of 3 voters answer")
    assert page.driver.title.startswith("✓")
    assert page.texts("#main tbody th b") == ["n1", "n2", "n3"]
    roles = page.texts("#main tbody td[data-label=role]")
    assert sorted(roles) == ["· follower", "· follower", "✓ leader"]
    assert len(page.texts(".plot figcaption")) == 12
    page.wait("return [...dashboard.hour.moments.values()].every((one) => one.rows.length >= 2)")
    at = page.js("return dashboard.hour.at")
    page.wait(f"return dashboard.hour.at > {at}")
    # Each member has its own dashes beside its own colour, and its name stands beside both.
    page.wait("return document.querySelectorAll('.plot .key li').length === 36")
    dashes = "return [...document.querySelectorAll('#plot-0 .key path')].map((p) => p.getAttribute('stroke-dasharray'))"
    assert len(set(page.js(dashes))) == 3
    label = page.js("return document.querySelector('#plot-0 > svg').getAttribute('aria-label')")
    assert label.startswith("Operations applied, per second. n1: now ")


def test_pause_stops_and_goes_on(page: Dashboard) -> None:
    page.open()
    page.wait_text("#live", "live from n1")
    page.keys("p")
    page.wait_text("#live", "paused")
    assert page.js("return dashboard.stream.abort.signal.aborted")
    page.keys("p")
    page.wait_text("#live", "live from n1")


def test_flows_are_drawn_with_their_lag_in_words(page: Dashboard) -> None:
    page.open("#/flows")
    page.wait_text(".graph", "orders-out")
    assert {"orders", "totals", "invoices", "events"} <= set(page.texts(".graph .name"))
    assert any("search: never attached" in text for text in page.texts(".graph .says"))
    places = page.js(
        """const at = {};
        for (const a of document.querySelectorAll(".graph a")) {
          const box = a.querySelector("rect");
          const place = ["x", "y", "width", "height"].map((name) => Number(box.getAttribute(name)));
          at[a.getAttribute("aria-label").split(":")[0]] = place;
        }
        return at;"""
    )
    way = ["table orders", "flow orders-out", "table totals", "flow totals-out"]
    assert [places[name][0] for name in way] == sorted({places[name][0] for name in way})
    boxes = list(places.values())
    for i, (x, y, width, height) in enumerate(boxes):
        for left, top, wide, high in boxes[i + 1 :]:
            apart = x + width <= left or left + wide <= x or y + height <= top or top + high <= y
            assert apart, "no box lies upon another one"
    page.click(".graph a[href='#/flows/orders-out']")
    page.wait_text("#main h2", "orders-out")
    assert "waits for consumer" in page.js("return document.querySelector('#main .pairs').textContent")


def test_dead_letters_of_a_flow_are_shown_with_their_error_and_never_as_html(page: Dashboard) -> None:
    page.open("#/flows/orders-out")
    page.wait_text("#main", "1 item became no row")
    cells = page.texts("[aria-label='Dead letters of orders-out'] tbody tr > *")
    assert cells[:6] == ["7", "hourly", "1", EVIL, f"KeyError: {EVIL}", "1970-01-01 00:00:00.005"]
    page.open("#/flows/totals-out")
    page.wait_text("#main", "None in the store that this node reads.")


def test_filter_of_flows_is_in_the_address_and_counts_after_a_reload(page: Dashboard) -> None:
    page.open("#/flows")
    page.wait_text("#main", "of 3 flows")
    page.keys("/", "totals")
    page.wait("return location.hash.includes('name=totals')")
    page.wait("return document.querySelectorAll('#main tbody tr').length === 2")
    assert page.js("return document.activeElement.value") == "totals", "whoever types goes on typing"
    page.open(page.js("return location.hash"))
    page.wait("return document.querySelectorAll('#main tbody tr').length === 2")


def test_rows_are_paged_and_their_values_hidden_until_asked_for(page: Dashboard) -> None:
    page.open("#/tables/orders")
    page.wait("return document.querySelectorAll('#main tbody tr').length === 50")
    assert "window.hacked" not in page.js("return document.querySelector('#main td[data-label=value]').textContent")
    page.click("[data-focus='page next']")
    page.wait("return location.hash.includes('after=')")
    page.click("[data-focus='filter values']")
    page.wait_text("#main td[data-label=value]", "window.hacked=1")
    page.open("#/tables/orders?prefix=k11")
    page.wait("return document.querySelectorAll('#main tbody tr').length === 10")


def test_texts_of_users_stay_texts_in_every_view(page: Dashboard) -> None:
    for view in ("#/tables/orders?values=1&reverse=", "#/tables/orders?values=1", "#/history?table=orders&key=" + EVIL):
        page.open(view.replace("<", "%3C").replace(">", "%3E").replace("'", "%27").replace(" ", "%20"))
        page.wait_text("#main", "</script><script>window.hacked=1</script>")
        assert page.js(
            "return window.hacked === undefined && !document.querySelector('#main img, #main script, [onerror]')"
        )


def test_session_shows_its_records_and_leads_to_the_history_of_each(page: Dashboard) -> None:
    page.open("#/sessions")
    page.wait("return document.querySelectorAll('#main tbody tr').length === 1")
    page.click("#main tbody a")
    page.wait("return document.querySelectorAll('#main tbody tr').length === 50")
    assert set(page.texts("#main td[data-label=state]")) == {"✓ executed"}
    page.click("#main tbody tr a")
    page.wait("return !!document.querySelector('.timeline tbody tr')")
    told = page.texts(".timeline tbody td:nth-child(4)")
    assert {"✓ attempt", "✓ log"} <= set(told)
    assert len(page.js("return [...document.querySelectorAll('.timeline svg')]")) == len(told)
    page.open("#/sessions?records=121")
    page.wait_text("#main", "No session of this token's tenant is so.")


def test_everything_is_reached_by_keys(page: Dashboard) -> None:
    page.open()
    page.wait("return !!document.querySelector('.plot')")
    for key, view in (
        ("2", "flows"),
        ("3", "tables"),
        ("4", "sessions"),
        ("5", "history"),
        ("6", "check"),
        ("1", "cluster"),
    ):
        page.keys(key)
        page.wait(f"return document.querySelector('#views [aria-current]')?.dataset.view === '{view}'")
    page.keys("?")
    page.wait("return document.getElementById('help').open")
    assert {"p", "r", "/", "?", "1", "6"} <= set(page.texts("#help-keys kbd"))
    page.keys(Keys.ESCAPE)
    page.wait("return !document.getElementById('help').open")
    page.open()
    page.keys(Keys.TAB)
    assert page.js("return document.activeElement.id") == "skip"
    page.keys(Keys.ENTER)
    assert page.js("return document.activeElement.id") == "main"
    # What has the focus keeps it while the figures go on.
    page.wait("return !!document.querySelector(\"[data-focus='span 1 h']\")")
    page.js("document.querySelector(\"[data-focus='span 1 h']\").focus()")
    at = page.js("return dashboard.hour.at")
    page.wait(f"return dashboard.hour.at > {at}")
    assert page.js("return document.activeElement.dataset.focus") == "span 1 h"
    page.keys(Keys.ENTER)
    page.wait("return location.hash.includes('span=1+h')")


VIEWS = (
    "",
    "#/flows",
    "#/flows/orders-out",
    "#/tables",
    "#/tables/orders?values=1",
    "#/sessions",
    "#/history",
    "#/check",
)


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_is_wider_than_a_narrow_screen(page: Dashboard, width: int) -> None:
    page.emulate(width=width)
    for view in VIEWS:
        page.open(view)
        page.wait("return !!dashboard.hour.told && document.querySelectorAll('#main > *').length > 1")
        assert page.js("return document.documentElement.scrollWidth <= innerWidth"), view


CONTRASTS = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const linear = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => [r, g, b].map((c) => linear(c / 255))
  .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (element) => {
  for (; element; element = element.parentElement) {
    const colour = rgb(getComputedStyle(element).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const poor = [];
for (const element of document.querySelectorAll("body *")) {
  const box = element.getBoundingClientRect();
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || !box.width || element.closest("svg, dialog, .skip, .hidden, :disabled")) continue;
  const [a, b] = [light(rgb(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) poor.push([element.outerHTML.slice(0, 120), (a + 0.05) / (b + 0.05)]);
}
return { poor, paper: light(behind(document.body)) > 0.5 };
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_have_contrast_in_light_and_dark(page: Dashboard, scheme: str) -> None:
    page.emulate(scheme=scheme)
    for view in VIEWS:
        page.open(view)
        page.wait("return !!dashboard.hour.told && document.querySelectorAll('#main > *').length > 1")
        found = page.js(CONTRASTS)
        assert found["paper"] == (scheme == "light")
        assert not found["poor"], view


def test_page_has_landmarks_and_everything_that_acts_has_a_name(page: Dashboard) -> None:
    acting = {
        "button",
        "checkbox",
        "combobox",
        "searchbox",
        "textbox",
        "navigation",
        "main",
        "img",
        "region",
        "link",
        "meter",
    }
    for view in VIEWS:
        page.open(view)
        page.wait("return !!dashboard.hour.told && document.querySelectorAll('#main > *').length > 1")
        assert page.js("return ['header', 'main', 'h1'].every((tag) => document.querySelectorAll(tag).length === 1)")
        tree = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        nameless = [
            node["role"]["value"]
            for node in tree
            if not node.get("ignored")
            and node.get("role", {}).get("value") in acting
            and not node.get("name", {}).get("value")
        ]
        assert not nameless, view
        assert {"banner", "navigation", "main"} <= {node.get("role", {}).get("value") for node in tree}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node with 100,000 sessions and 1,000 tables, put into its state at once."""
    settings = one_node(tmp_path_factory.mktemp("crowded"))
    thread = LoopThread("crowded node")
    life = AsyncExitStack()

    async def start() -> None:
        node = await life.enter_async_context(running(settings))
        await founded(node)
        machine = node.machine
        for number in range(TABLES):
            kind = "stream" if number % 10 == 0 else "resident"
            declare_table(machine, c.DeclareTable(f"shop{number % 7}.table{number:04}", kind, 2**20, b""))
        for number in range(SESSIONS):
            open_session(machine, c.OpenSession(f"n{number}", 3_600_000, 64))

    thread.run(start())
    yield settings.address.http
    thread.run(life.aclose())
    thread.stop()


TABLES, SESSIONS = 1_000, 100_000


def test_hundred_thousand_sessions_and_a_thousand_tables_stay_usable(chromium: webdriver.Chrome, crowded: str) -> None:
    page = Dashboard(chromium, crowded)
    page.emulate()
    rows = "return document.querySelectorAll('#main tbody tr').length"
    page.open("#/sessions")
    page.wait(f"{rows} === 50")
    first = page.texts("#main tbody th")[0]
    page.click("[data-focus='page next']")
    page.wait(f"{rows} === 50 && document.querySelector('#main tbody th').textContent !== '{first}'")
    last = f"{SESSIONS:016x}"
    page.keys("/", last)
    page.wait_text("#main h2", last)
    assert page.js("return location.hash") == f"#/sessions/{last}"
    page.open("#/tables")
    page.wait(f"{rows} === 50")
    page.keys("/", "shop3.")
    page.wait(
        "return [...document.querySelectorAll('#main tbody th')].every((th) => th.textContent.startsWith('shop3.'))"
    )
    page.open("#/flows")
    page.wait("return document.querySelectorAll('.graph a').length > 0")
    assert page.js("return document.querySelectorAll('.graph rect.box').length") <= 2 * 60
    # What a view holds and what the node sends for it stay small, however much there is.
    assert page.js("return document.querySelectorAll('*').length") < 5_000
    sent = page.js("return performance.getEntriesByType('resource').map((one) => one.decodedBodySize)")
    assert max(sent) < 512 * 1024
    assert page.js("return performance.memory.usedJSHeapSize") < 128 << 20
    assert not page.logs()[0]


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A node with a token for everything and one that reads the tables ``orders…`` alone."""
    directory = tmp_path_factory.mktemp("guarded")
    file = directory / "tokens.toml"
    file.write_text(entry(ADMIN, "ops", "read", "write", "flows", "admin") + entry(READER, "ann", "read:orders"))
    settings = one_node(directory, tokens_file=file)
    thread = LoopThread("guarded node")
    life = AsyncExitStack()

    async def start() -> None:
        node = await life.enter_async_context(running(settings))
        await founded(node)
        for name in ("orders", "payments"):
            await node.submit(c.DeclareTable(name, "resident", 2**20, b""), 64)

    thread.run(start())
    yield settings.address.http, settings.data_dir
    thread.run(life.aclose())
    thread.stop()


def log_in(page: Dashboard, token: str) -> None:
    page.wait("return !document.getElementById('login').hidden")
    page.js("document.getElementById('token').focus()")
    page.keys(token, Keys.ENTER)


def refusals_alone(page: Dashboard) -> bool:
    """Whether the console says nothing but that the node has refused something: Chromium tells each such answer."""
    return all("the server responded with a status of" in line for line in page.logs()[0])


def test_token_is_asked_for_kept_in_the_tab_alone_and_masks_what_it_may_not_read(
    chromium: webdriver.Chrome, guarded: tuple[str, Path]
) -> None:
    page = Dashboard(chromium, guarded[0])
    page.emulate()
    page.open("#/tables")
    log_in(page, "t-wrong")
    page.wait_text("#login-refused", "known token")
    assert page.js("return sessionStorage.length") == 0
    log_in(page, READER)
    page.wait("return document.querySelectorAll('#main tbody tr').length === 1")
    assert page.texts("#main tbody th") == ["orders"]
    page.wait_text("#live", f"as {READER}")
    assert page.js("return [document.cookie, localStorage.length, location.href.includes('t-reader')]") == [
        "",
        0,
        False,
    ]
    page.js("location.hash = '#/tables/payments'")
    page.wait_text("#main .bad", "Not with this token")
    page.js("location.hash = '#/cluster'")
    page.wait("return !!document.querySelector('.plot')")
    assert not page.js("return document.getElementById('changes')"), "it may change nothing"
    page.click("#forget")
    page.wait("return !document.getElementById('login').hidden && sessionStorage.length === 0")
    assert page.js("return document.getElementById('main').childElementCount") == 0
    assert refusals_alone(page)


def test_change_is_confirmed_carried_out_and_audited(chromium: webdriver.Chrome, guarded: tuple[str, Path]) -> None:
    page = Dashboard(chromium, guarded[0])
    page.emulate()
    page.open()
    log_in(page, ADMIN)
    page.click("#changes summary")
    page.click("[data-focus='remove n1']")
    page.wait("return document.getElementById('confirm').open")
    assert page.js("return document.getElementById('confirm-yes').disabled")
    page.keys("n2")
    assert page.js("return document.getElementById('confirm-yes').disabled"), "another word does not count"
    page.keys(Keys.ESCAPE)
    page.wait("return !document.getElementById('confirm').open")
    log = guarded[1] / "audit" / "audit.jsonl"
    assert not log.exists() or "member.remove" not in log.read_text(), "nothing was asked of the node"
    page.click("[data-focus='remove n1']")
    page.wait("return document.getElementById('confirm').open")
    again = "document.querySelector(`[data-focus='remove n1']`).click(); return document.getElementById('confirm').open"
    assert page.js(f"document.getElementById('confirm').close(); {again}"), "open anew before it told that it closed"
    page.keys("n1")
    page.click("#confirm-yes")
    page.wait_text("#act", "Not done: remove n1")  # the only voter stays
    acts = [json.loads(line) for line in log.read_text().splitlines()]
    assert [act["who"]["token"] for act in acts if act["act"] == "member.remove"] == [ADMIN]
    assert refusals_alone(page)


def test_leader_moves_when_it_is_told_to(page: Dashboard, nodes: LocalCluster) -> None:
    page.open()
    page.wait("return !!dashboard.hour.told?.leader")
    before = page.js("return dashboard.hour.told.leader")
    other = next(name for name in ("n1", "n2", "n3") if name != before)
    page.click("#changes summary")
    page.click(f"[data-focus='lead {other}']")
    page.wait("return document.getElementById('confirm').open")
    page.keys(other)
    page.click("#confirm-yes")
    page.wait_text("#act", f"Done: let {other} lead")
    page.wait(f"return dashboard.hour.told.leader === '{other}'")


def test_member_that_is_gone_is_shown_so(page: Dashboard, nodes: LocalCluster) -> None:
    page.open()
    page.wait_text("#about", "3 of 3 voters answer")
    nodes.kill("n3")
    try:
        page.wait_text("#about", "n3 does not answer")
        assert page.js("return document.getElementById('mark').textContent") == "!"
        page.wait("return document.querySelector('tr.gone td')?.textContent === '✗ does not answer'")
    finally:
        nodes.start("n3")
    page.wait_text("#about", "3 of 3 voters answer")
