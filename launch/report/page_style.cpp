#include "launch/report/page_style.hpp"

namespace troupe {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #6b6b6b; --paper: #fff; --line: #ddd; --warn: #b3261e; --good: #2e7d32; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --soft: #9a9a9a; --paper: #16181b; --line: #3a3d41; --warn: #ff8a80; --good: #81c784; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; } code { overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
figure { margin: 1rem 0 1.6rem; } figcaption .soft { display: block; } svg { width: 100%; height: auto; display: block; overflow: visible; margin-top: .6rem; } a { color: inherit; }
svg text { font-size: 13px; fill: var(--soft); } svg .grid { stroke: var(--line); } svg .mark { stroke: var(--warn); stroke-dasharray: 4 3; stroke-width: 1.5; }
polyline { fill: none; stroke-width: 1.6; pointer-events: none; } .hit { fill: transparent; } .hit:hover { fill: var(--ink); fill-opacity: .12; } polyline.c1 { stroke-dasharray: 8 3; } polyline.c2 { stroke-dasharray: 2 3; } svg.bar { height: 18px; margin: 0; } rect { stroke: var(--paper); }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; } th { font-weight: 500; }
.ranks td:nth-child(2) { width: 60%; } .number { white-space: nowrap; } thead th { color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; } .cards div { border: 1px solid var(--line); border-radius: 6px; padding: .3rem .7rem; }
.cards b { display: block; font-size: 1.15rem; } .cards span, .missing, .soft { color: var(--soft); } p.soft, .legend { margin: .3rem 0; }
.problem { border-left: 4px solid var(--warn); } .fine { border-left: 4px solid var(--good); } .note { border-left: 4px solid var(--line); } .advice, .outcome { padding: .1rem .8rem; margin: .6rem 0; }
.outcome p { margin: .3rem 0; } .legend span { display: inline-block; margin-right: 1em; } i[class] { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
@media (max-width: 600px) { svg text { font-size: 26px; } .ranks td:nth-child(2) { width: 45%; } svg .minor, .failures thead { display: none; } .failures td { display: block; padding: 0; }
  .failures td::before { content: attr(data-name) ": "; color: var(--soft); } .failures tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--line); } }
)css";

constexpr const char* kPalette[] = {"#4a7fc8", "#2f8f8e", "#c07a1c", "#c2527c", "#8a6cb8",
                                    "#5f8f43", "#9a7a6e", "#a68512", "#858585"};

}  // namespace

std::string page_style() {
  std::string css = kStyle;
  int i = 0;
  for (const char* colour : kPalette) {
    const auto n = std::to_string(i++);
    css += "polyline.c" + n + "{stroke:" + colour + "} rect.c" + n + ",circle.c" + n + "{fill:" + colour + "} .b" + n +
           "{background:" + colour + "}\n";
  }
  return css;
}

}  // namespace troupe
