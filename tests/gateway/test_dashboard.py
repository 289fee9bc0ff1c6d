"""``/dashboard``: what is sent, to whom, under which policy. What it shows is tried in tests/browser."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import aiohttp
import pytest

from oncegate.gateway.http import dashboard
from oncegate.gateway.http.dashboard import page as sent
from oncegate.gateway.testing import FakeGateway
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, one_node, serving
from tests.gateway.test_auth import ADMIN, entry, written

PATHS = ("/dashboard", "/dashboard/page.css", "/dashboard/page.js")
ASSETS = files(dashboard).joinpath("assets")


async def test_page_its_style_and_its_script_are_served_to_everyone_under_a_policy_without_holes(
    tmp_path: Path,
) -> None:
    tokens = written(tmp_path / "tokens.toml", entry(ADMIN, "ops", "read", "admin"))
    async with serving(one_node(tmp_path, tokens_file=tokens)) as (api, _):
        for path, media in zip(PATHS, ("text/html", "text/css", "text/javascript"), strict=True):
            status, headers, body = await api.call("GET", path)
            assert (status, headers["Content-Type"]) == (200, f"{media}; charset=utf-8")
            assert body
            policy = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
            assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert policy["require-trusted-types-for"] == "'script'"
            assert not re.search(r"unsafe|https?:|\*", headers["Content-Security-Policy"])
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert "Set-Cookie" not in headers
        assert_problem(await api.call("GET", "/v1/cluster/figures"), "UNAUTHENTICATED")


async def test_browser_that_has_the_newest_file_is_told_so_and_another_one_gets_it(api: Api) -> None:
    for path in PATHS:
        _, headers, body = await api.call("GET", path)
        again = await api.call("GET", path, headers={"If-None-Match": headers["ETag"]})
        assert again[0] == 304
        assert again[1]["Content-Security-Policy"]
        assert (await api.call("GET", path, headers={"If-None-Match": '"other"'}))[2] == body
        assert (await api.call("HEAD", path))[0] == 200


async def test_address_with_a_slash_at_its_end_leads_to_the_page(api: Api) -> None:
    async with api._http.get("/dashboard/") as followed, api._http.get("/dashboard") as page:
        assert [one.status for one in followed.history] == [308]
        assert (followed.status, followed.url) == (200, page.url)
        assert await followed.read() == await page.read()


async def test_nothing_else_is_served_below_the_page(api: Api) -> None:
    for path in ("/dashboard/main.js", "/dashboard/page.html", "/dashboard/assets/page.css"):
        assert_problem(await api.call("GET", path), "NOT_FOUND")
    assert_problem(await api.call("POST", "/dashboard"), "METHOD_NOT_ALLOWED")


async def test_fake_gateway_has_no_figures_and_serves_no_page_that_asks_for_them() -> None:
    async with FakeGateway() as fake, aiohttp.ClientSession(fake.endpoints[0]) as http:
        for path in (*PATHS, "/v1/token", "/v1/cluster/figures"):
            assert_problem(await Api(http).call("GET", path), "NOT_FOUND")


def test_assets_name_no_other_server_and_hold_no_inline_script_or_style() -> None:
    page = ASSETS.joinpath("page.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", page)
    assert re.findall(r'(?:src|href)="([^"#]+)"', page) == ["data:,", "dashboard/page.css", "dashboard/page.js"]
    for name in (*sent.SCRIPTS, "page.css", "page.html"):
        text = ASSETS.joinpath(name).read_text()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|//cdn|@import|url\(", text), name


@pytest.mark.parametrize("name", sent.SCRIPTS)
def test_script_makes_no_html_of_text_and_keeps_nothing_but_the_token(name: str) -> None:
    text = ASSETS.joinpath(name).read_text()
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|\.style\b|setTimeout\(\s*[\"']"
    assert not re.search(sinks, text)
    assert not re.search(r"localStorage|document\.cookie|indexedDB|EventSource", text.replace("EventSource could", ""))
    assert ("sessionStorage" in text) == (name == "api.js")


def test_every_script_of_the_folder_is_part_of_the_page() -> None:
    assert {one.name for one in ASSETS.iterdir()} == {*sent.SCRIPTS, "page.css", "page.html"}
