"""What a stranger needs of a run's page, in a real browser."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from oncegate.proof.check.folder import FaultNote, RunFolder
from oncegate.proof.check.report import write_report
from oncegate.proof.lincheck import Event, Failure, Result
from tests.browser.conftest import HEIGHT, Page
from tests.report import example_runs

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = example_runs.stale_read(tmp_path_factory.mktemp("stale"))
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = example_runs.valid_run(tmp_path_factory.mktemp("valid"))
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = example_runs.large_run(tmp_path_factory.mktemp("large"), 100_000)
    write_report(folder)
    return folder


@pytest.fixture(autouse=True)
def nothing_is_asked_for_and_nothing_goes_wrong(page: Page) -> Any:
    yield
    said, asked = page.logs()
    assert not said
    assert all(address.startswith("file:") and ".html" in address for address in asked)
    assert not page.js("return performance.getEntriesByType('resource').map((entry) => entry.name)")


def within_the_first_screen(page: Page, selector: str) -> bool:
    box = page.driver.find_element(By.CSS_SELECTOR, selector)
    return box.is_displayed() and box.rect["y"] + min(box.rect["height"], 40) <= HEIGHT and box.rect["height"] > 0


def test_invalid_run_opens_at_its_failure_with_the_proof_in_words(page: Page, stale: RunFolder) -> None:
    failure = stale.read_verdict().checks[0].failures[0]
    page.open(stale.report)
    assert page.text("h1").startswith("Invalid")
    assert page.driver.title.startswith("✗ invalid")
    for word in failure.words:
        assert word in page.text("#words")
    assert within_the_first_screen(page, "#words")
    assert within_the_first_screen(page, "#timeline")
    assert "k2" in page.text("#keys button[aria-pressed='true']")
    # The operations of the window and what cannot come next are inside the picture, all of them and large enough.
    boxes = page.js(
        """const rows = [...report.failures[0].window, ...report.failures[0].stuck];
        return rows.map((i) => [report.xOf(report.ops.invoked[i]), report.xOf(report.ops.end[i])]);"""
    )
    width = page.js("return document.getElementById('timeline').clientWidth")
    assert boxes
    assert all(100 <= left < right <= width for left, right in boxes)
    assert max(right for _, right in boxes) - min(left for left, _ in boxes) > width / 4
    assert page.chosen == failure.stuck[0]
    assert "Cannot come next" in page.text("#details")
    assert f"places {len(failure.prefix)} operations" in page.text("#before")


def test_points_of_the_order_lie_inside_their_operations_and_in_the_order(page: Page, stale: RunFolder) -> None:
    page.open(stale.report)
    points = page.js(
        """return report.view.points.map(({ row, at }) => [at,
           report.ops.invoked[row], report.ops.status[row] ? Infinity : report.ops.end[row], report.ops.index[row]])"""
    )
    assert [index for *_, index in points] == stale.read_verdict().checks[0].failures[0].prefix
    times = [at for at, *_ in points]
    assert times == sorted(times)
    assert all(invoked <= at and (end is None or at <= end) for at, invoked, end, _ in points)


def test_valid_run_opens_as_a_whole_and_says_so(page: Page, valid: RunFolder) -> None:
    page.open(valid.report)
    assert page.text("h1").startswith("Valid")
    start, end = page.span()
    assert start <= 0
    assert end >= page.js("return report.ops.end.reduce((a, b) => Math.max(a, b))")
    assert not page.driver.find_element(By.ID, "before").is_displayed()
    assert "✗" not in page.text("#side")


def test_keys_zoom_and_pan(page: Page, valid: RunFolder) -> None:
    page.open(valid.report)
    whole = page.span()
    page.keys("+", "+")
    near = page.span()
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 4)
    page.keys("]")
    later = page.span()
    assert later[0] == pytest.approx(near[0] + (near[1] - near[0]) / 4)
    page.keys(Keys.SHIFT + Keys.ARROW_LEFT)
    assert page.span() == pytest.approx(near)
    page.keys("-")
    assert page.span()[1] - page.span()[0] == pytest.approx((whole[1] - whole[0]) / 2)
    page.keys("0")
    assert page.span()[0] <= 0


def test_keys_walk_over_operations_and_tell_about_them(page: Page, stale: RunFolder) -> None:
    page.open(stale.report)
    first = page.chosen
    process = "return report.ops.lane[report.view.chosen]"
    lane = page.js(process)
    page.keys(Keys.ARROW_RIGHT)
    after = page.chosen
    assert after > first
    assert page.js(process) == lane
    assert page.js("return report.label(report.view.chosen)") == page.text("#details .what")
    assert page.js("return report.label(report.view.chosen)") in page.js(
        "return document.getElementById('live').textContent"
    )
    page.keys(Keys.ARROW_LEFT)
    assert page.chosen == first
    page.keys(Keys.ARROW_UP)
    assert page.js(process) < lane
    page.keys(Keys.HOME)
    assert page.js("return report.view.chosen") == page.js(
        "return report.view.lanes[report.rowOf(report.view.chosen)].rows[0]"
    )
    # What is chosen is always in the picture.
    assert page.js("return report.ops.invoked[report.view.chosen] >= report.view.from")
    page.keys("f", "b")
    assert page.chosen == first
    page.keys("p")
    assert page.chosen == stale.read_verdict().checks[0].failures[0].prefix[-1]
    page.keys("n")
    assert page.chosen == first
    page.keys(Keys.ESCAPE)
    assert page.chosen == -1


def test_help_lists_every_key_that_does_something(page: Page, stale: RunFolder) -> None:
    page.open(stale.report)
    page.keys("?")
    dialog = page.driver.find_element(By.ID, "help")
    assert dialog.is_displayed()
    listed = page.js("return [...document.querySelectorAll('#help kbd')].map((key) => key.textContent)")
    source = (Path(write_report.__code__.co_filename).parent / "assets" / "input.js").read_text()
    bound = {"n", "p", "b", "+", "[", "]", "f", "0", "a", "t", "/", "?", "Home", "End", "Esc"}
    assert bound <= set(listed)
    assert all(f"{key}:" in source or f'"{key}"' in source for key in bound - {"Esc", "?"})
    dialog.send_keys(Keys.ESCAPE)
    page.wait("return !document.getElementById('help').open")


def test_filters_leave_what_they_say(page: Page, stale: RunFolder) -> None:
    page.open(stale.report)
    shown = "return report.view.lanes.flatMap((lane) => [...lane.rows])"
    assert set(page.js(f"return ({shown[7:]}).map((i) => report.data.keys[report.ops.key[i]].name)")) == {"k2"}
    page.driver.find_element(By.CSS_SELECTOR, "#keys button[title='k3']").click()
    page.settled()
    assert set(page.js(f"return ({shown[7:]}).map((i) => report.data.keys[report.ops.key[i]].name)")) == {"k3"}
    assert not page.driver.find_element(By.ID, "before").is_displayed()
    page.driver.find_element(By.CSS_SELECTOR, "#keys button[title='all keys']").click()
    page.driver.find_element(By.CSS_SELECTOR, "#node option[value='1']").click()
    assert set(page.js(f"return ({shown[7:]}).map((i) => report.data.nodes[report.ops.node[i]])")) == {"n2"}
    page.driver.find_element(By.CSS_SELECTOR, "#statuses input[value='0']").click()
    left = set(page.js(f"return ({shown[7:]}).map((i) => report.ops.status[i])"))
    assert left
    assert left <= {1, 2}
    search = page.driver.find_element(By.ID, "search")
    search.send_keys("K4")
    assert [item.text for item in page.driver.find_elements(By.CSS_SELECTOR, "#keys li .name")] == ["k4"]
    search.send_keys("nothing")
    assert page.text("#keys-more") == "no such key"


def test_table_says_what_the_picture_shows(page: Page, stale: RunFolder) -> None:
    page.open(stale.report)
    page.keys("t")
    page.wait("return !!document.querySelector('#table-body tbody tr')")
    rows = page.driver.find_elements(By.CSS_SELECTOR, "#table-body tbody tr")
    assert len(rows) == page.js("return report.visible()")
    stuck = next(row.text for row in rows if "cannot come next" in row.text)
    assert page.js("return report.label(report.failures[0].stuck[0])") in stuck


def test_pointer_drags_zooms_and_chooses(page: Page, stale: RunFolder) -> None:
    page.open(stale.report)
    canvas = page.driver.find_element(By.ID, "lanes")
    start, end = page.span()
    ActionChains(page.driver).drag_and_drop_by_offset(canvas, 120, 0).perform()
    page.settled()
    assert page.span()[0] < start
    assert page.span()[1] - page.span()[0] == pytest.approx(end - start)
    page.keys("f", Keys.ESCAPE)
    x, y = page.js(
        """const i = report.failures[0].stuck[0], box = document.getElementById("lanes").getBoundingClientRect();
        const x = (report.xOf(report.ops.invoked[i]) + report.xOf(report.ops.end[i])) / 2;
        return [x - box.width / 2, report.laneY(report.rowOf(i)) + 12 - box.height / 2];"""
    )
    ActionChains(page.driver).move_to_element_with_offset(canvas, int(x), int(y)).click().perform()
    page.settled()
    assert page.chosen == stale.read_verdict().checks[0].failures[0].stuck[0]


def test_address_keeps_what_is_shown(page: Page, stale: RunFolder) -> None:
    page.open(stale.report)
    page.keys("+", Keys.ARROW_LEFT)
    kept, chosen = page.span(), page.chosen
    page.wait("return location.hash.includes('op=" + str(chosen) + "')")
    address = page.js("return location.hash")
    page.open(stale.report, address)
    assert page.span() == pytest.approx(kept)
    assert page.chosen == chosen


def test_texts_from_users_stay_texts(page: Page, tmp_path: Path) -> None:
    evil = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'>\u2028${x}&amp;\u202e"
    events = [
        Event(process=0, type="invoke", f=evil, key=evil, value=evil, node=evil, request=evil, time=1),
        Event(process=0, type="ok", f=evil, key=evil, value={evil: [evil]}, time=5_000_000),
        Event(process=1, type="invoke", f="read", key=evil, time=2),
        Event(process=1, type="fail", f="read", key=evil, error=evil, time=4_000_000),
    ]
    failure = Failure(key=evil, prefix=[], stuck=[0], window=[0], states=[evil], words=[evil, "second"])
    result = Result(name=evil, verdict="invalid", operations=2, keys=1, failures=[failure], reason=evil)
    faults = [FaultNote(0, None, evil, [evil], evil)]
    folder = example_runs.written(tmp_path, events, faults, result=result)
    info = folder.read_run()
    folder.write_run(type(info)(workload=evil, faults=evil, nodes=[evil], settings={evil: evil}, commit=evil))
    page.open(write_report(folder))
    page.keys("t", Keys.ARROW_RIGHT, "+")
    page.wait("return !!document.querySelector('#table-body tbody tr')")
    assert page.js("return window.hacked === undefined && !document.querySelector('img, iframe, [onerror]')")
    assert page.js("return document.scripts.length") == 2
    assert "</script><script>window.hacked=1</script>" in page.text("#keys button")
    assert "window.hacked=1" in page.text("#words")
    assert "window.hacked=1" in page.text("#details")


def test_page_cannot_reach_the_network_even_if_a_script_gets_in(page: Page, valid: RunFolder) -> None:
    asked: list[str] = []

    class Listening(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listening)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        page.open(valid.report)
        outcome = page.driver.execute_async_script(
            """const [address, done] = arguments;
            window.hacked = 0;
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            document.body.append(script);
            const image = new Image();
            image.src = address + "/image";
            fetch(address + "/fetch").then(() => done("fetched"), () => done("refused " + window.hacked));""",
            f"http://127.0.0.1:{server.server_address[1]}",
        )
        said, _ = page.logs()
        page.open(valid.report)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert outcome == "refused 0"
    assert not asked
    assert len([line for line in said if "Content Security Policy" in line]) >= 3


def test_hundred_thousand_operations_are_shown_and_only_what_is_in_view_is_drawn(page: Page, large: RunFolder) -> None:
    assert large.report.stat().st_size < 24 << 20
    page.open(large.report)
    assert page.js("return report.ops.n") == 100_000
    assert page.js("return report.drawn()") < 500
    page.driver.find_element(By.CSS_SELECTOR, "#keys button[title='all keys']").click()
    page.keys("0")
    width = page.js("return document.getElementById('timeline').clientWidth")
    lanes = page.js("return report.view.lanes.length")
    # At most one bar a status, pixel and lane, however many operations there are.
    assert 1_000 < page.js("return report.drawn()") <= lanes * width * 3
    for _ in range(10):
        page.keys("+", "]", Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert page.chosen >= 0
    assert page.js("return report.visible()") < 10_000
    assert page.js("return performance.memory.usedJSHeapSize") < 256 << 20
    height = page.js(
        """const canvas = document.getElementById("lanes"), scroller = document.getElementById("timeline");
        return [canvas.getBoundingClientRect().height, scroller.clientHeight];"""
    )
    assert height[0] == pytest.approx(height[1], abs=1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_have_contrast_in_light_and_dark(page: Page, stale: RunFolder, scheme: str) -> None:
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    try:
        page.open(stale.report)
        ratios = page.js((Path(__file__).parent / "contrasts.js").read_text())
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert ratios["paper"] == (scheme == "light")
    assert {name: ratio for name, ratio in ratios["of"].items() if ratio < 4.5} == {}


def test_reader_that_wants_no_motion_gets_none(page: Page, valid: RunFolder) -> None:
    feature = {"name": "prefers-reduced-motion", "value": "reduce"}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        page.open(valid.report)
        # The span is the new one at once, in the same turn of the event loop.
        before, after = page.js(
            """const span = () => report.view.to - report.view.from, before = span();
            const press = new KeyboardEvent("keydown", { key: "+", bubbles: true });
            document.getElementById("timeline").dispatchEvent(press);
            return [before, span()];"""
        )
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert after == pytest.approx(before / 2)


def test_page_has_landmarks_and_everything_that_acts_has_a_name(page: Page, stale: RunFolder) -> None:
    page.open(stale.report)
    assert page.js("return ['header', 'nav', 'main', 'h1'].every((tag) => document.querySelectorAll(tag).length === 1)")
    assert page.js("return document.documentElement.lang") == "en"
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    acting = {"button", "checkbox", "combobox", "searchbox", "application", "navigation", "main", "img"}
    nameless = [
        node["role"]["value"]
        for node in nodes
        if not node.get("ignored")
        and node.get("role", {}).get("value") in acting
        and not node.get("name", {}).get("value")
    ]
    assert not nameless
    roles = [node.get("role", {}).get("value") for node in nodes]
    assert {"application", "navigation", "main", "banner"} <= set(roles)
