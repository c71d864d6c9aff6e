#!/usr/bin/env bash
# Builds the site of the documents and of the API into a folder (build/site/html unless one is given), and checks its
# links. Needs doxygen (scripts/setup.sh --docs); says SKIPPED where there is none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
site=$(realpath -m "${1:-build/site}")
if ! command -v doxygen >/dev/null; then
  echo "SKIPPED: no doxygen here; scripts/setup.sh --docs installs it"
  exit 77
fi
rm -rf "$site/html" && mkdir -p "$site"
theme=/usr/share/doxygen-awesome-css/doxygen-awesome.css
doxygen -l "$site/layout.xml"
sed -i 's/\(tab type="pages" visible="yes" title=\)""/\1"Documents"/; s/\(tab type="mainpage" visible="yes" title=\)""/\1"What to read"/' "$site/layout.xml"
{
  cat docs/Doxyfile
  echo "OUTPUT_DIRECTORY = $site"
  echo "LAYOUT_FILE = $site/layout.xml"
  echo "STRIP_FROM_PATH = $site/include $PWD"
  echo "STRIP_FROM_INC_PATH = $site/include"
  echo "HTML_EXTRA_STYLESHEET = $([[ -f $theme ]] && echo "$theme") docs/site.css"
  echo "INPUT = $(scripts/site.py --inputs "$site" | tr '\n' ' ')"
} >"$site/Doxyfile"
doxygen "$site/Doxyfile" >"$site/log" 2>"$site/warnings" || { tail -5 "$site/warnings" >&2; exit 1; }
scripts/site.py --check "$site/html"
if [[ -s $site/warnings ]]; then
  cat "$site/warnings" >&2
  echo "site: doxygen warns of the above" >&2
  exit 1
fi
echo "site: $site/html/index.html"
