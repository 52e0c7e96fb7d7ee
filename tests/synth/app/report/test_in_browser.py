"""The page in a real browser: its script runs without errors, requests nothing, and does what it states."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emit.msccl.format import write_msccl
from synth.app.report import layout as report_layout
from synth.app.report import schedule as report_schedule
from synth.app.report.page import report
from synth.model.problem import make_problem
from synth.model.schedule import untimed
from synth.storage.schedule_file import write_schedule
from synth.timing.simulate import timed
from tests.combinations import every_other
from tests.emit.small_programs import allpairs_allreduce, ring_allgather
from tests.synth.app.report import browser
from tests.synth.app.report.report_pages import NOTHING, page_data, stored, straight
from topologies.load import load

pytestmark = pytest.mark.skipif(
    browser.find_browser() is None,
    reason="no browser: `make test` fetches one; or put chromium on the PATH, or name one in SYNTH_BROWSER",
)


@pytest.fixture(scope="module")
def tab() -> Iterator[browser.Tab]:
    with browser.browsing() as browser_tab:
        yield browser_tab


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    two_files = folder / "both"
    two_files.mkdir()
    sources = {
        "8 ranks": stored(folder, make_problem(load("hypercube:3"), "allreduce"), proof=True),
        "16 ranks": stored(folder, make_problem(load("mesh:4x4"), "alltoall")),
        "512 ranks": straight(folder, "torus:8x8x8"),
        "several": two_files,
    }
    with pytest.MonkeyPatch.context() as patch:
        for module in (report_schedule, report_layout):
            patch.setattr(module, "MOST_VERTICES", 8)
        paths = {"not drawn": folder / "not drawn.html"}
        paths["not drawn"].write_text(report(sources["16 ranks"]).html, encoding="utf-8")
    stored(two_files, make_problem(load("dgx1"), "allgather", (0, 1, 2, 3)), proof=True)
    (two_files / "program.xml").write_text(write_msccl(allpairs_allreduce(4)))
    for name, source in sources.items():
        paths[name] = folder / f"{name}.html"
        paths[name].write_text(report(source).html, encoding="utf-8")
    return paths


def figures(page: Path) -> dict[str, Any]:
    algorithm: dict[str, Any] = page_data(page.read_text(encoding="utf-8"))["algorithms"][0]
    return algorithm


def quiet(tab: browser.Tab, page: Path) -> None:
    assert tab.errors == []
    assert tab.requests == [page.resolve().as_uri()]


def place_of(tab: browser.Tab, row: int, time: float) -> tuple[float, float]:
    """Return the pointer's position for a row and a time of the timeline."""
    tab.run("$('timeline-box').scrollIntoView({block: 'center'})")
    tab.run(f"$('timeline-box').scrollTop = yOf({row}) - $('timeline-box').clientHeight / 2")
    tab.settle()
    x, y = tab.run(
        f"(() => {{ const box = $('timeline').getBoundingClientRect();"
        f" return [box.left + xOf({time}), box.top + yOf({row}) + plan.each / 2]; }})()"
    )
    return x, y


@pytest.mark.parametrize(("name", "dark"), every_other(["8 ranks", "16 ranks", "512 ranks", "several"], [False, True]))
def test_every_page_is_drawn(tab: browser.Tab, pages: dict[str, Path], name: str, dark: bool) -> None:
    """Check that both canvases have many colours, in both schemes, and that every view and algorithm can be shown."""
    tab.open(pages[name], dark=dark)
    quiet(tab, pages[name])
    for index in range(tab.run("DATA.algorithms.length")):
        tab.run(f"show({index})")
        tab.settle()
        for view in tab.run("[...document.querySelectorAll('[data-view]')].map((b) => b.dataset.view)"):
            tab.run(f"document.querySelector('[data-view={view}]').click()")
            tab.settle()
            for canvas in ("network", "timeline"):
                colours = tab.run(
                    f"(() => {{ const c = $('{canvas}');"
                    " const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);"
                    " return new Set(d).size; })()"
                )
                assert colours > 4, (view, canvas)
    # Nothing overflows to the side, on a narrow screen either.
    for width in (1280, 380):
        tab.size(width, 800)
        tab.settle()
        assert tab.run("document.documentElement.scrollWidth") <= width
    background = tab.run("getComputedStyle(document.body).backgroundColor")
    light = sum(int(part) for part in background[4:-1].split(",")) / 3
    assert light < 60 if dark else light > 200
    quiet(tab, pages[name])


def test_the_slider_goes_through_time_by_keyboard(tab: browser.Tab, pages: dict[str, Path]) -> None:
    page = pages["8 ranks"]
    tab.open(page)
    span = figures(page)["span"]
    tab.run("$('time').focus()")
    before = tab.picture()
    for _ in range(3):
        tab.key("ArrowRight")
    assert tab.run("state.time") == pytest.approx(3 * span / 1000)
    tab.key("End")
    assert tab.run("state.time") == pytest.approx(span)
    assert "of" in tab.run("$('now').textContent")
    assert tab.run("$('time').getAttribute('aria-valuetext')") == tab.run("$('now').textContent")
    assert tab.picture() != before
    # All chunks are at every rank at the end: all rings are full.
    assert tab.run("view.network.names.every((_, i) => i >= view.network.n || view.got.at(i, view.got.bins - 1) === 1)")
    tab.key("Home")
    assert tab.run("state.time") == 0
    tab.run("$('play').focus()")
    tab.key(" ")
    tab.run("new Promise((done) => setTimeout(done, 300))")
    assert 0 < tab.run("state.time") < span
    assert tab.run("$('play').getAttribute('aria-pressed')") == "true"
    tab.key(" ")
    stopped = tab.run("state.time")
    tab.settle()
    assert tab.run("state.time") == stopped
    quiet(tab, page)


@pytest.mark.parametrize("name", ["8 ranks", "16 ranks", "512 ranks"])
def test_the_pointer_shows_where_a_chunk_came_from(tab: browser.Tab, pages: dict[str, Path], name: str) -> None:
    """Check each hop against the figures in the page: a pointer shows it, a click keeps it and Escape releases it."""
    page = pages[name]
    tab.open(page, height=1100)
    algorithm = figures(page)
    sends, net = algorithm["sends"], algorithm["network"]
    rng = random.Random(1)
    # This is well in the middle of a send that is wide enough to be hit.
    for send in rng.sample([i for i in range(sends["shown"]) if sends["hop"][i] > 1], 2):
        row = sends["links"]["row"][sends["link"][send]]
        lasts = sends["end"][send] - sends["start"][send]
        tab.run(f"state.zoom = Math.max(1, view.span / {8 * lasts}); setTime({sends['start'][send]}); chooseSend(-1)")
        tab.settle()
        tab.mouse(*place_of(tab, row, (sends["start"][send] + sends["end"][send]) / 2))
        assert tab.run("state.send") == send
        before, new = set(), {send}
        while new:
            before |= new
            new = {
                p
                for send_row in new
                for p in sends["from"][sends["from_ptr"][send_row] : sends["from_ptr"][send_row + 1]]
            } - before
        chain = sorted(before, key=lambda send_row: (send_row == send, sends["start"][send_row], send_row))
        items = tab.run("[...$('provenance').querySelectorAll('li')].map((li) => li.textContent)")
        assert len(chain) == len(items) > 1
        for hop, item in zip(chain, items, strict=True):
            link = sends["link"][hop]
            a, b = (net["names"][sends["links"][side][link]] for side in ("src", "dst"))
            assert item.startswith(f"{a} → {b}: leaves "), item
        assert not tab.run("$('tip').hidden")
        tab.mouse(*place_of(tab, row, (sends["start"][send] + sends["end"][send]) / 2), click=True)
        assert tab.run("[state.send, state.pinned]") == [send, True]
        tab.mouse(5, 5)
        assert tab.run("state.send") == send
        tab.run("$('timeline').focus()")
        tab.key("Escape")
        assert tab.run("[state.send, state.pinned]") == [-1, False]
    tab.run("chooseSend(-1)")
    tab.key("ArrowRight")
    start = tab.run("state.send")
    tab.key("ArrowRight")
    assert tab.run(f"view.sends.start[state.send] >= view.sends.start[{start}]")
    tab.key("Enter")
    assert tab.run("state.time") == pytest.approx(sends["start"][tab.run("state.send")])
    quiet(tab, page)


def test_a_translated_view_is_right(tab: browser.Tab, pages: dict[str, Path]) -> None:
    """Check that seen from another rank every name is translated: the links exist, and the ends are right."""
    page = pages["512 ranks"]
    tab.open(page)
    algorithm = figures(page)
    for rank in (1, 63, 300):
        tab.run(f"$('seen').value = {rank}; $('seen').oninput()")
        shifted = tab.run("Array.from({ length: 512 }, (_, r) => translate(r))")
        assert sorted(shifted) == list(range(512))
        assert shifted[0] == rank
        links = algorithm["sends"]["links"]
        pairs = set(zip(algorithm["network"]["u"], algorithm["network"]["v"], strict=True))
        assert all((shifted[a], shifted[b]) in pairs for a, b in zip(links["src"], links["dst"], strict=True))
        tab.run("chooseSend(5)")
        assert f"from rank {rank} " in tab.run("$('provenance').textContent")
    quiet(tab, page)


def test_the_chooser_shows_one_at_a_time(tab: browser.Tab, pages: dict[str, Path]) -> None:
    page = pages["several"]
    tab.open(page)
    for index in (1, 0):
        tab.run(f"$('chooser').value = '{index}'; $('chooser').onchange()")
        tab.settle()
        shown = tab.run(
            "[...document.querySelectorAll('article')].filter((a) => !a.hidden).map((a) => a.dataset.algorithm)"
        )
        assert shown == [str(index)]
        kind = tab.run("view.kind")
        assert kind == page_data(page.read_text())["algorithms"][index]["kind"]
        assert tab.run("$('blocks-card').hidden") == (kind != "program")
    quiet(tab, page)


def test_empty_algorithms_are_drawn(tab: browser.Tab, tmp_path: Path) -> None:
    """Check a program without a threadblock, a schedule without a send, and a program that stops at once."""
    (tmp_path / "nothing.xml").write_text(NOTHING)
    ring = make_problem(load("ring:3"), "allgather")
    none = np.zeros(0, dtype=np.int64)
    write_schedule(tmp_path / "none.synth", ring, timed(ring, untimed(none, none, none, none > 0), 1e3), "nobody")
    (tmp_path / "stuck.xml").write_text(write_msccl(ring_allgather(3)).replace('type="s"', 'type="rcs"'))
    page = tmp_path / "page.html"
    page_of_folder = report(tmp_path)
    assert {name for name, _ in page_of_folder.wrong} == {"none.synth", "stuck.xml"}
    page.write_text(page_of_folder.html, encoding="utf-8")
    tab.open(page)
    for index in range(3):
        tab.run(f"show({index}); play(true)")
        tab.settle()
        assert tab.run("$('timeline-card').hidden && $('network-card').hidden")
        assert "NaN" not in tab.run("document.body.innerText")
    quiet(tab, page)


def test_a_network_that_is_too_large_to_draw_is_shown_in_numbers(tab: browser.Tab, pages: dict[str, Path]) -> None:
    page = pages["not drawn"]
    tab.open(page)
    assert figures(page)["network"]["names"] == []
    assert "too many to be drawn" in tab.run("$('network-card').innerText")
    assert tab.run("$('network').offsetHeight") == 0
    tab.run("$('play').click()")
    tab.run("new Promise((done) => setTimeout(done, 100))")
    tab.run("chooseSend(3)")
    assert "→" in tab.run("$('provenance').textContent")
    quiet(tab, page)


def test_a_fault_in_the_script_is_noticed(tab: browser.Tab, pages: dict[str, Path], tmp_path: Path) -> None:
    """Check that the tests above would notice an exception, and a page that requests something."""
    html = pages["8 ranks"].read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    assert html.count("\nstart();\n") == 1
    broken.write_text(html.replace("\nstart();\n", "\nstart();\nnowhere.at.all();\n"), encoding="utf-8")
    tab.open(broken)
    assert any("nowhere" in error for error in tab.errors)
    (tmp_path / "x.png").write_bytes(b"")
    # The page's own policy forbids it, and the browser reports that.
    broken.write_text(html.replace("</main>", '<img src="x.png"></main>'), encoding="utf-8")
    tab.open(broken)
    assert tab.errors


@pytest.mark.parametrize(
    ("button", "begins"),
    [
        ("frontier svg", "data:image/svg+xml"),
        ("frontier png", "data:image/png"),
        ("frontier csv", "data:text/csv"),
        ("network png", "data:image/png"),
        ("timeline png", "data:image/png"),
    ],
)
def test_figures_are_saved(tab: browser.Tab, pages: dict[str, Path], button: str, begins: str) -> None:
    """Check that each button offers a file of its kind that is not empty, and that nothing is requested for it."""
    tab.open(pages["several"])
    tab.run("globalThis.saved = []; HTMLAnchorElement.prototype.click = function () { saved.push(this); }; 0")
    tab.run(f"document.querySelector('[data-save=\"{button}\"]').click()")
    tab.settle()
    name, address = tab.run("[saved[0].download, saved[0].href]")
    assert name.endswith(f"-{button.replace(' ', '.')}")
    assert address.startswith(begins)
    assert len(address) > 200
    if begins == "data:image/svg+xml":
        assert "stroke%3A" in address  # It looks the same without the page's style sheet.
    assert not tab.errors
    assert all(request.startswith(("file:", "data:")) for request in tab.requests)


def test_the_network_is_magnified(tab: browser.Tab, pages: dict[str, Path]) -> None:
    """Check that larger drawings have room between ranks, scroll, and answer the pointer at their places."""
    tab.open(pages["16 ranks"])
    gap, width = tab.run("[shape.gap, $('network').clientWidth]")
    for _ in range(2):
        tab.run("$('larger').click()")
    tab.settle()
    assert tab.run("$('magnified').textContent") == "4 ×"
    assert tab.run("shape.gap") > 3 * gap
    assert tab.run("$('network').clientWidth") == pytest.approx(4 * width, abs=8)
    x, y = tab.run(
        "(() => { const box = $('network').parentElement; box.scrollTo(shape.x[15] - 100, shape.y[15] - 100);"
        " const at = $('network').getBoundingClientRect(); return [at.x + shape.x[15], at.y + shape.y[15]]; })()"
    )
    tab.mouse(x, y)
    tab.settle()
    assert tab.run("$('tip').textContent").startswith("rank 15")
    tab.run("$('smaller').click(); $('smaller').click(); $('smaller').click()")
    tab.settle()
    assert tab.run("[$('magnified').textContent, $('network').clientWidth]") == ["1 ×", width]
    assert not tab.errors
