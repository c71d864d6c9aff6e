#!/usr/bin/env python3
"""Opens the site of the documents in headless Chromium: does it fit a phone, is it dark at night, does the search work
without a network?

    site.py SITE [FOLDER]   SITE: the folder with index.html; FOLDER: where screenshots go

Exit code: 0 all checks passed, 1 one failed, 77 (and "SKIPPED") without Chromium or without a site.
"""
import contextlib
import functools
import http.server
import pathlib
import shutil
import sys
import tempfile
import threading
import time

from page import Browser, Failed

PAGES = ("index", "page_lecture_07_dual_form", "page_lecture_04_first_order", "page_guide_policy", "page_reference",
         "structnestgrad_1_1ttt_1_1Policy", "nestgrad_8h", "annotated")
WIDE = """(() => {
  const wide = document.documentElement.scrollWidth;
  if (wide <= innerWidth) return "";
  const part = [...document.querySelectorAll("*")].filter((p) => p.getBoundingClientRect().right > innerWidth + 1).pop();
  return `${wide} px wide, for <${part?.tagName} class="${part?.className}">`;
})()"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
FOUND = """(() => {
  const results = document.querySelector("#MSearchResults").contentDocument;
  return [...results?.querySelectorAll("a.SRSymbol") ?? []].filter((a) => a.checkVisibility()).map((a) => a.textContent);
})()"""


@contextlib.contextmanager
def served(site):
    """The address of the site: what a page may read of its own frames, it may not read of files."""
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def look(browser, site, page, folder):
    for width in (1200, 360):
        browser.window(width)
        grounds = []
        for scheme in ("light", "dark"):
            browser.scheme(scheme)
            browser.open(f"{site}/{page}.html")
            time.sleep(0.3)  # the tree of pages comes with scripts
            grounds.append(browser.run(BACKGROUND))
            if wide := browser.run(WIDE):
                yield f"{page} in {width} px: {wide}"
            browser.run("localStorage.clear()")  # how wide the tree of pages was
            if folder:
                browser.screenshot(folder / f"{page}-{width}-{scheme}.png")
        if grounds[0] == grounds[1]:
            yield f"{page}: dark is as light"


def search(browser, site, folder):
    browser.scheme("light")
    browser.window(1200)
    browser.open(f"{site}/index.html")
    browser.run("document.querySelector('#MSearchField').focus()")
    for letter in "train_along":
        browser.key(letter, ord(letter.upper()), letter)
        time.sleep(0.1)
    time.sleep(2)
    found = browser.run(FOUND)
    if folder:
        browser.screenshot(folder / "search.png")
    if "train_along" not in found:
        yield f"a search for train_along finds {found}"


def main(site, folder=None):
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not program or not (site / "index.html").exists():
        print(f"SKIPPED: there is no {'browser' if not program else site}")
        return 77
    wrong = []
    with tempfile.TemporaryDirectory() as profile, served(site) as address:
        browser = Browser(program, profile)
        try:
            for page in PAGES:
                wrong += look(browser, address, page, folder)
            wrong += search(browser, address, folder)
            wrong += sorted({c for c in browser.complaints() if address not in c and c.startswith(("asks for", "exception"))})
        except Failed as failure:
            wrong.append(str(failure))
        browser.close()
    print("\n".join(wrong) or f"site: {len(PAGES)} pages fit, the search works")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*(pathlib.Path(a).resolve() for a in sys.argv[1:3])))
