#!/usr/bin/env python3
"""Opens a report page in headless Chromium and checks what a reader relies on; writes screenshots.

    page.py PAGE [FOLDER] [--control]

FOLDER: where screenshots go. --control: also breaks the page in several ways, each of which has to be noticed.
Exit code: 0 all checks passed, 1 one failed, 2 wrong call, 77 (and "SKIPPED") without Chromium.
"""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

WIDTHS = (360, 768, 1200)
LARGEST = 5_000_000  # bytes
SMALLEST_TEXT = 9.0  # px, of letters in pictures
SECONDS = 60  # for any one answer of the browser

# Runs in the page: what is wrong with its layout as it stands, one line each.
LAYOUT = """
(() => {
  const wrong = [];
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) wrong.push(`the page is ${wide} px wide in a window of ${innerWidth} px`);
  for (const svg of document.querySelectorAll("figure svg")) {
    const box = svg.getBoundingClientRect(), name = svg.querySelector("title")?.textContent;
    if (!svg.checkVisibility()) continue;
    if (!name) wrong.push("a picture has no title");
    if (box.width < 50 || box.height < 20) wrong.push(`picture '${name}' is ${box.width} x ${box.height} px`);
    const scale = box.width / svg.viewBox.baseVal.width;
    for (const text of svg.querySelectorAll("text")) {
      const size = parseFloat(getComputedStyle(text).fontSize) * scale, at = text.getBoundingClientRect();
      if (size < SMALLEST) wrong.push(`letters of ${size.toFixed(1)} px in '${name}': ${text.textContent}`);
      if (at.width > 0 && (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1))
        wrong.push(`text is cut off in '${name}': ${text.textContent}`);
    }
  }
  for (const image of document.querySelectorAll("figure img")) {
    if (!image.checkVisibility()) continue;
    const box = image.getBoundingClientRect();
    if (!image.alt) wrong.push("an image has no words for those who do not see it");
    if (!image.naturalWidth) wrong.push(`image '${image.alt}' cannot be shown`);
    if (box.width < 8 || box.height < 8) wrong.push(`image '${image.alt}' is ${box.width} x ${box.height} px`);
    if (box.right > innerWidth) wrong.push(`image '${image.alt}' ends at ${box.right} px`);
  }
  return [...new Set(wrong)];
})()
""".replace("SMALLEST", str(SMALLEST_TEXT))

# Contrast of text with what is behind it, as WCAG 2 defines it.
CONTRAST = """
(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = parts(colour).slice(0, 3).map((c) => c / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const wrong = new Set();
  for (const part of document.querySelectorAll("h1,h2,p,a,dt,dd,th,td,span,button,pre,figcaption,div.about,svg text")) {
    if (!part.checkVisibility() || !part.textContent.trim()) continue;
    let behind = part;
    while (behind && (parts(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
    const style = getComputedStyle(part), front = part.tagName === "text" ? style.fill : style.color;
    const [low, high] = [luminance(front), luminance(getComputedStyle(behind ?? document.body).backgroundColor)].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) wrong.add(`contrast ${contrast.toFixed(2)} of ${part.tagName} .${part.getAttribute("class") ?? ""}`);
  }
  return [...wrong];
})()
"""

# Of each link in the contents, what is wrong with the view that it names. All views are open.
VIEWS = """
[...document.querySelectorAll("nav a")].map((link) => {
  const view = document.getElementById(link.hash.slice(1));
  if (!view) return `the contents name '${link.hash}', which is not there`;
  const shown = [...view.querySelectorAll("svg,table,pre,.node,img")].filter((part) => {
    const box = part.getBoundingClientRect();
    return box.width > 0 && box.height > 0;
  });
  return shown.length ? "" : `view '${view.id}' is empty`;
}).filter((words) => words)
"""


class Failed(Exception):
    pass


class Browser:
    """Chromium, spoken to over two pipes (--remote-debugging-pipe)."""

    def __init__(self, program, profile):
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()

        def connect():  # the browser reads its file 3 and writes its file 4
            os.dup2(to_read, 10), os.dup2(back_write, 11)
            os.dup2(10, 3), os.dup2(11, 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=connect, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_read), os.close(back_write)
        self.buffer, self.count, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def message(self, until):
        while b"\0" not in self.buffer:
            if not select.select([self.back], [], [], max(0, until - time.monotonic()))[0]:
                raise Failed(f"no answer from the browser in {SECONDS} s")
            part = os.read(self.back, 1 << 20)
            if not part:
                raise Failed("the browser ended")
            self.buffer += part
        one, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        rest = json.dumps(message).encode() + b"\0"
        while rest:
            rest = rest[os.write(self.to, rest):]
        until = time.monotonic() + SECONDS
        while True:
            answer = self.message(until)
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise Failed(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def run(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise Failed(f"{answer['exceptionDetails']['text']} in {script}")
        return answer["result"].get("value")

    def go(self, url):
        seen = len(self.events)
        self.call("Page.navigate", url=url)
        until = time.monotonic() + SECONDS
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events[seen:]):
            self.events.append(self.message(until))

    def open(self, url):
        self.go("about:blank")  # so that an address that differs only in its fragment is loaded too
        self.go(url)
        self.run("1")  # what the page has said until now is among the events

    def window(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def click(self, selector):
        at = self.run(f"""(() => {{
            const part = document.querySelector({json.dumps(selector)});
            part.scrollIntoView({{block: "center"}});
            const box = part.getBoundingClientRect();
            return [box.left + Math.min(box.width, 60) / 2, box.top + box.height / 2]; }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def key(self, name, code, text=""):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, windowsVirtualKeyCode=code, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, code=name, windowsVirtualKeyCode=code)

    def screenshot(self, path):
        height = self.run("document.documentElement.scrollHeight")
        width = self.run("innerWidth")
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                          clip={"x": 0, "y": 0, "width": width, "height": min(height, 16000), "scale": 1})
        path.write_bytes(base64.b64decode(image["data"]))

    def complaints(self):
        """What the page wrote as errors, and what it asked a network for."""
        out = []
        for event in self.events:
            method, p = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                out.append(f"exception: {p['exceptionDetails'].get('text')}")
            elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
                out.append(f"console: {[a.get('value') for a in p['args']]}")
            elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
                out.append(f"log: {p['entry']['text']}")
            elif method == "Network.requestWillBeSent" and not p["request"]["url"].startswith(("file:", "data:", "about:")):
                out.append(f"asks for {p['request']['url']}")
            elif method == "Network.requestWillBeSent" and p.get("type") != "Document" and not p["request"]["url"].startswith("data:"):
                out.append(f"needs the file {p['request']['url']}")
        return out

    def close(self):
        try:
            self.call("Browser.close")
        except (Failed, OSError):
            self.process.kill()
        self.process.wait()
        os.close(self.to), os.close(self.back)


def opened(browser):
    return browser.run("[...document.querySelectorAll('details.view')].map((view) => view.open)")


def set_all(browser, state):
    browser.run(f"document.querySelectorAll('details').forEach((part) => {{ part.open = {state}; }})")


def views(browser, wrong):
    set_all(browser, "true")
    names = browser.run("[...document.querySelectorAll('details.view')].map((view) => view.id)")
    links = browser.run("[...document.querySelectorAll('nav a')].map((link) => link.hash.slice(1))")
    if not names:
        wrong.append("the page has no views")
    if names != links:
        wrong.append(f"the contents name {links}, the page has {names}")
    wrong += browser.run(VIEWS)
    return names


def folding(browser, names, wrong):
    """A pointer, the keyboard, links and both buttons."""
    summary = f"[id='{names[0]}'] > summary"
    is_open = f"document.getElementById('{names[0]}').open"
    body = f"document.querySelector(\"[id='{names[0]}'] .body\").checkVisibility()"
    set_all(browser, "false")
    if browser.run(body):
        wrong.append("a folded view is still shown")
    browser.click(summary)
    if not (browser.run(is_open) and browser.run(body)):
        wrong.append("a click does not unfold a view")
    browser.run("document.querySelector('nav a').focus()")
    for _ in range(len(names) + 10):  # as a reader without a pointer gets there
        browser.key("Tab", 9)
        if browser.run(f"document.activeElement === document.querySelector(\"{summary}\")"):
            break
    else:
        wrong.append("the keyboard does not reach the first view")
    browser.key("Enter", 13, "\r")
    if browser.run(is_open):
        wrong.append("Enter does not fold a view")
    for value, state in (("open", True), ("shut", False)):
        browser.click(f".controls button[value={value}]")
        if opened(browser) != [state] * len(names):
            wrong.append(f"the button '{value}' leaves views {opened(browser)}")
    browser.click(f"nav a[href='#{names[-1]}']")
    if not opened(browser)[-1]:
        wrong.append("a link does not unfold its view")


def layout(browser, folder, wrong):
    for state in ("false", "true"):
        set_all(browser, state)
        for width in WIDTHS:
            browser.window(width)
            wrong += [f"at {width} px: {words}" for words in browser.run(LAYOUT)]
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        wrong += [f"{scheme}: {words}" for words in browser.run(CONTRAST)]
        for width in WIDTHS if folder else ():
            browser.window(width)
            browser.screenshot(folder / f"{width}-{scheme}.png")
    light = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.scheme("light")
    if light == browser.run("getComputedStyle(document.body).backgroundColor"):
        wrong.append("dark mode changes nothing")


def check(browser, page, folder=None):
    """Everything that is wrong with a page, as lines."""
    wrong = []
    if page.stat().st_size > LARGEST:
        wrong.append(f"the page has {page.stat().st_size} bytes, more than {LARGEST}")
    try:
        xml.etree.ElementTree.parse(page)
    except xml.etree.ElementTree.ParseError as error:
        wrong.append(f"not well-formed: {error}")
    url = page.resolve().as_uri()
    browser.events.clear()
    browser.scheme("light")
    browser.window(1200)
    browser.open(url)
    first = opened(browser)
    names = views(browser, wrong)
    if names:
        folding(browser, names, wrong)
        shut = names[first.index(False)] if False in first else names[0]
        browser.open(f"{url}#{shut}")
        if not browser.run(f"document.getElementById('{shut}').open"):
            wrong.append(f"an address that ends with #{shut} does not show that view")
    layout(browser, folder, wrong)
    wrong += browser.complaints()

    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(url)
    if browser.run("document.querySelector('.controls')?.checkVisibility()"):
        wrong.append("without scripts there are buttons that do nothing")
    if names:
        browser.click(f"[id='{names[0]}'] > summary")
        if browser.run(f"document.getElementById('{names[0]}').open") == first[0]:
            wrong.append("without scripts views do not fold")
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    return wrong


def control(browser, text, folder):
    """Broken pages that were taken for good ones."""
    broken = {
        "a wide part": text.replace("<main>", '<main><div style="width:900px">wide</div>'),
        "an error": text.replace("<main>", '<main><script>console.error("an error")</script>'),
        "an exception": text.replace("<main>", "<main><script>nothing.there()</script>"),
        "a missing view": text.replace('id="', 'id="not-', 1),
        "an open tag": text.replace("</main>", ""),
        "an image from elsewhere": text.replace("<main>", '<main><img alt="" src="other.png"/>'),
        "an image without words": text.replace('alt="', 'alt="" title="', 1),
        "an image that is none": text.replace("data:image/png;base64,", "data:image/png;base64,AAAA", 1),
        "small letters": text.replace("</style>", ".picture{font-size:9px !important}</style>", 1),
        "faint letters": text.replace("</style>", "p{color:#aaa}</style>", 1),
        "no dark mode": text.replace("prefers-color-scheme:dark", "prefers-color-scheme:none"),
        "no script": text[: text.index("<script>")] + text[text.index("</script>") + len("</script>"):],
        "views that do not fold": text.replace("</style>", "details.view>summary{pointer-events:none}</style>", 1),
    }
    missed = []
    for what, page in broken.items():
        path = pathlib.Path(folder) / "broken.html"
        path.write_text(page)
        wrong = check(browser, path)
        print(f"control: {what}: {wrong[0] if wrong else 'NOT NOTICED'}")
        if not wrong:
            missed.append(what)
    return missed


def main(arguments):
    rest = [a for a in arguments if a != "--control"]
    if not 1 <= len(rest) <= 2 or rest[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    page = pathlib.Path(rest[0])
    if not page.is_file():
        print(f"page: error: {page} is no file", file=sys.stderr)
        return 2
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        print("SKIPPED: no Chromium")
        return 77
    folder = pathlib.Path(rest[1]) if len(rest) > 1 else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        browser = Browser(program, f"{work}/profile")
        try:
            wrong = check(browser, page, folder)
            if "--control" in arguments:
                wrong += [f"{what} was not noticed" for what in control(browser, page.read_text(), work)]
        finally:
            browser.close()
    for words in wrong:
        print(f"FAIL: {words}")
    print(f"{page}: {'failed' if wrong else 'passed'}, {page.stat().st_size / 1000:.0f} kB")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
