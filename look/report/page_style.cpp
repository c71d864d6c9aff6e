#include "look/report/page_style.h"

#include <string_view>

namespace nestgrad::drawing {

namespace {

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--page:#f4f4f1;--surface:#fdfdfc;--ink:#1c1c1a;--soft:#5c5b57;--line:#dfded9;--link:#1a5fb4;
--holds:#0b6e4f;--fails:#b3261e;--fails-back:#fbeae7;--focus:#2a78d6}
@media screen and (prefers-color-scheme:dark){
:root{--page:#111110;--surface:#1a1a19;--ink:#f0efeb;--soft:#b3b2ab;--line:#353531;--link:#84b6f7;--holds:#52c69b;
--fails:#ff9a86;--fails-back:#3a1d18;--focus:#5a9df0}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%;scroll-padding-top:.75rem}
body{margin:0 auto;padding:clamp(1.25rem,4vw,3rem) clamp(1rem,4vw,2.5rem) 5rem;max-width:73rem;background:var(--page);color:var(--ink);
line-height:1.55;font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;overflow-wrap:break-word}
h1{font-size:clamp(1.5rem,1.1rem + 1.8vw,2.125rem);line-height:1.2;letter-spacing:-.012em;font-weight:650;margin:0;text-wrap:balance}
h2{font-size:1.1875rem;line-height:1.3;font-weight:620;margin:0}
h3,figcaption{font-size:.9375rem;line-height:1.35;font-weight:600;margin:0}
p{margin:0 0 .75rem}a{color:var(--link);text-underline-offset:.15em;text-decoration-thickness:1px}
:focus-visible{outline:2px solid var(--focus);outline-offset:3px;border-radius:3px}
.subtitle{color:var(--soft);font-size:1.0625rem;margin:.5rem 0 0;max-width:44rem}
.verdict{margin:1.25rem 0 0;font-size:1rem}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,14rem),1fr));gap:0 2rem;margin:1.5rem 0 0;
border-top:1px solid var(--line)}
.facts div{border-bottom:1px solid var(--line);padding:.5rem 0}.facts dt{font-size:.8125rem;color:var(--soft)}
.facts dd{margin:0;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
table{border-collapse:collapse;font-size:.9375rem;line-height:1.4}
th,td{text-align:left;vertical-align:baseline;padding:.4rem 1.25rem .4rem 0;border-bottom:1px solid var(--line);
font-variant-numeric:tabular-nums}
th:last-child,td:last-child{padding-right:0}thead th{font-weight:400;font-size:.8125rem;color:var(--soft);vertical-align:bottom}
tbody th{font-weight:400}.num{text-align:right;white-space:nowrap}.unit{display:inline-block;min-width:3.4rem;text-align:left;color:var(--soft);font-size:.8125rem}
.state{white-space:nowrap}.holds{color:var(--holds)}.fails{color:var(--fails);font-weight:600}.none{color:var(--soft)}
tr.failing{background:var(--fails-back)}tr.failing>:first-child{box-shadow:-.4rem 0 var(--fails-back)}
nav{margin:2.25rem 0 0}nav table{width:100%;margin-top:.25rem}nav td:first-child{width:46%}nav .about{color:var(--soft);font-size:.875rem}
.controls{display:flex;gap:.5rem;margin:1.5rem 0 0}.controls[hidden]{display:none}
button{font:inherit;font-size:.875rem;color:var(--ink);background:var(--surface);border:1px solid var(--line);border-radius:6px;
padding:.35rem .8rem;cursor:pointer}button:hover{border-color:var(--soft)}
main{margin-top:1.75rem;border-bottom:1px solid var(--line)}
.view{border-top:1px solid var(--line)}
.view>summary{display:flex;align-items:baseline;gap:.25rem .7rem;flex-wrap:wrap;padding:.85rem 0;cursor:pointer;list-style:none}
summary::-webkit-details-marker{display:none}
.view>summary::before,.node>summary::before{content:"";flex:none;width:.42em;height:.42em;border:solid var(--soft);border-width:0 1.6px 1.6px 0;
transform:translateY(-.12em) rotate(-45deg);margin-right:.15rem}
.view[open]>summary::before,.node[open]>summary::before{transform:translateY(-.2em) rotate(45deg)}
.view>summary:hover h2{text-decoration:underline;text-decoration-thickness:1px;text-underline-offset:.2em}
.view>summary h2{flex:1 1 12rem}.view>summary .state{font-size:.875rem}
.body{padding:0 0 2.25rem;display:grid;gap:1.5rem 2.5rem}.body>*{min-width:0}
.question{font-size:1.0625rem;margin:0 0 .9rem}.reading{max-width:44rem}
.checks{margin:1rem 0 .25rem;max-width:44rem;width:100%}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:1.25rem 1.5rem;align-items:start}
figure{margin:0;min-width:0;max-width:36rem;width:100%;background:var(--surface);border:1px solid var(--line);border-radius:8px;padding:.9rem 1rem}
.wide{grid-column:1/-1;max-width:none}figcaption{margin-bottom:.6rem}
figure svg{display:block;width:100%;height:auto}.wide svg{margin:0 auto}
.scroll{overflow-x:auto;overscroll-behavior-x:contain}
.tiles{display:flex;flex-wrap:wrap;align-items:flex-start;gap:.5rem}.tile{max-width:100%;min-width:0;font-size:.8125rem;line-height:1.3;
color:var(--soft);overflow-wrap:anywhere}
.tile img{display:block;width:100%;height:auto;image-rendering:pixelated;margin-bottom:.2rem;outline:1px solid var(--line)}
.tile.good img{outline:2px solid var(--holds)}.tile.bad img{outline:2px solid var(--fails)}
.tile-row{display:grid;grid-template-columns:minmax(0,8rem) minmax(0,1fr);gap:.25rem 1rem;align-items:start;margin-bottom:.75rem}
.row-name{font-size:.875rem}
.note{font-size:.8125rem;color:var(--soft);margin:.5rem 0 0}
figure table{width:100%}figure tbody tr:last-child>*{border-bottom:0}figure td,figure th{overflow-wrap:normal}
.node{padding-left:0;font-size:.9375rem}.node>summary,.leaf{display:flex;flex-wrap:wrap;align-items:baseline;gap:.1rem .5rem;padding:.22rem 0;list-style:none}
.node>summary{cursor:pointer}.leaf{padding-left:calc(.42em + .15rem + .5rem)}
.children{margin-left:.2em;padding-left:1rem;border-left:1px solid var(--line)}
.detail{color:var(--soft);font-size:.875rem;font-variant-numeric:tabular-nums}
.level{font-size:.75rem;line-height:1.3;border:1px solid currentColor;border-radius:4px;padding:0 .3rem;white-space:nowrap}
.v0{color:#54534f}.v1{color:#0b7474}.v2{color:#8a5c00}.v3{color:#7a4fb5}.v4{color:#466f0e}.v5{color:#7c5a46}
@media screen and (prefers-color-scheme:dark){.v0{color:#b5b4ad}.v1{color:#3fbdbd}.v2{color:#e0a526}.v3{color:#b99aec}.v4{color:#a3c94a}.v5{color:#c9a48d}}
pre{margin:0;background:var(--surface);border:1px solid var(--line);border-radius:8px;padding:1rem;overflow-x:auto;white-space:pre-wrap;
overflow-wrap:anywhere;font:.8125rem/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media(min-width:64rem){.one{grid-template-columns:minmax(0,1fr) minmax(0,36rem);align-items:start}.one pre{grid-column:1/-1}}
@media(max-width:40rem){
.picture{font-size:16px}.picture .small{font-size:15px}
figure{padding:.75rem .6rem}th,td{padding-right:.75rem}nav .about{display:none}nav table,.checks,figure table{font-size:.875rem}
nav td:first-child{width:auto}.unit{display:block;text-align:right;min-width:0}.node,.detail{font-size:.875rem}.children{padding-left:.7rem}.tile-row{grid-template-columns:minmax(0,1fr)}}
@media print{
body{max-width:none;padding:0;font-size:10pt;background:none}.controls{display:none}figure,pre,tr{break-inside:avoid}h2{break-after:avoid}
.view>summary::before,.node>summary::before{display:none}.view::details-content{content-visibility:visible;display:block}a{color:inherit}}
)css";

// No '&' and no '<', so that the page is XML as well.
constexpr std::string_view kScript = R"js(
(function () {
  var views = Array.from(document.querySelectorAll("details.view"));
  var controls = document.querySelector(".controls");
  if (controls) {
    controls.hidden = false;
    controls.addEventListener("click", function (event) {
      var button = event.target.closest("button");
      if (button) views.forEach(function (view) { view.open = button.value === "open"; });
    });
  }
  function reveal(hash) {
    var view = hash ? document.getElementById(hash.slice(1)) : null;
    if (view) { view.open = true; view.scrollIntoView(); }
  }
  document.addEventListener("click", function (event) {
    var link = event.target.closest("a[href^='#']");
    if (link) reveal(link.hash);
  });
  window.addEventListener("hashchange", function () { reveal(location.hash); });
  reveal(location.hash);
  var shut = [];
  window.addEventListener("beforeprint", function () {
    shut = Array.from(document.querySelectorAll("details:not([open])"));
    shut.forEach(function (part) { part.open = true; });
  });
  window.addEventListener("afterprint", function () { shut.forEach(function (part) { part.open = false; }); });
})();
)js";

}  // namespace

std::string page_style() { return std::string(kStyle); }
std::string page_script() { return std::string(kScript); }

}  // namespace nestgrad::drawing
