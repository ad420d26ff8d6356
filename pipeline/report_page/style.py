"""The style sheet of `report.html`: light and dark, for screens from 320 pixels on and for paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1d1d1b; --muted: #66645f; --rule: #dcdad4; --faint: #f5f4f0;
  --train: #0072b2; --valid: #c4500a; --rate: #00805e; --norm: #8a4f7d; --heat: 0 114 178;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181b; --ink: #e6e3dc; --muted: #9d9a93; --rule: #34373c; --faint: #1e2125;
    --train: #62b4ea; --valid: #f0935a; --rate: #45c19c; --norm: #cf9bc4; --heat: 70 150 210;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 3rem 1.25rem 5rem; max-width: 58rem; background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.55 Charter, "Bitstream Charter", "Source Serif 4", Cambria, Georgia, "DejaVu Serif", serif;
  font-variant-numeric: lining-nums tabular-nums; overflow-wrap: anywhere;
}
h1 { font-size: 1.9rem; line-height: 1.2; font-weight: 600; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; font-weight: 600; margin: 3rem 0 .9rem; padding-top: .6rem; border-top: 1px solid var(--rule); }
section + article, article + article { margin-top: 5rem; }
p { margin: .7rem 0; max-width: 44rem; }
p.subtitle, p.note, figcaption, caption, summary, .label, footer { color: var(--muted); font-size: .9rem; }
p.subtitle { margin: 0 0 1.4rem; }
nav { font-size: .9rem; margin: 0 0 1rem; }
nav a { color: var(--train); text-decoration: none; margin-right: 1rem; display: inline-block; }
nav a:hover { text-decoration: underline; }
.headline { margin: .2rem 0 1.2rem; }
.headline .label { display: block; }
.headline data { font-size: 2.6rem; line-height: 1.15; font-weight: 600; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .3rem 1.5rem; margin: .6rem 0; }
dt { color: var(--muted); }
dd { margin: 0; }
.wide { display: inline-block; vertical-align: top; overflow-x: auto; margin: .9rem 1.6rem .5rem 0; max-width: 100%; }
table { border-collapse: collapse; font-size: .95rem; overflow-wrap: normal; }
caption { text-align: left; padding-bottom: .35rem; caption-side: top; }
th, td { padding: .22rem 1.1rem .22rem 0; text-align: left; vertical-align: baseline; }
th:last-child, td:last-child { padding-right: 0; }
thead th { font-weight: 600; border-bottom: 1px solid var(--ink); }
tbody tr + tr > * { border-top: 1px solid var(--rule); }
tbody th { font-weight: 400; }
td.number, th.number { text-align: right; }
tbody th, td.text { max-width: 26rem; overflow-wrap: break-word; }
.confusion { border-collapse: separate; border-spacing: 2px; }
.confusion th { font-weight: 400; padding: .15rem .5rem; white-space: nowrap; border: 0; min-width: 0;
  vertical-align: middle; }
.confusion thead th { text-align: center; vertical-align: bottom; }
.confusion thead td { background: none; }
.confusion tbody tr + tr > * { border: 0; }
.confusion tbody th { text-align: right; }
.confusion td { min-width: 2.3rem; height: 2.1rem; padding: 0 .3rem; text-align: center; vertical-align: middle; border: 0;
  background: linear-gradient(rgb(var(--heat) / var(--share)), rgb(var(--heat) / var(--share))), var(--faint); }
.confusion td.high { color: #ffffff; }
.confusion th .name { display: inline-block; max-width: 9rem; overflow: hidden; text-overflow: ellipsis; vertical-align: bottom; }
.confusion thead .name { max-width: 5.5rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1.2rem 2rem; margin: .9rem 0; }
figure { margin: 0; }
.charts figcaption, .reliability figcaption { margin-bottom: .2rem; }
.reliability { max-width: 30rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 11px; fill: var(--muted); }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .axis { stroke: var(--muted); stroke-width: 1; }
svg .diagonal { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 4 4; }
svg polyline { fill: none; stroke: var(--series); stroke-width: 1.75; stroke-linejoin: round; stroke-linecap: round; }
svg circle { fill: var(--series); }
svg .bar { fill: var(--train); opacity: .3; } svg .share { fill: var(--muted); opacity: .55; }
.key { margin-left: .9rem; display: inline-block; max-width: 100%; }
.key i { display: inline-block; width: 1.1rem; height: 0; border-top: 2px solid var(--series); vertical-align: middle; margin-right: .35rem; }
.train { --series: var(--train); } .valid { --series: var(--valid); } .rate { --series: var(--rate); } .norm { --series: var(--norm); }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.2rem, 1fr)); gap: 1rem .9rem; margin: .9rem 0; }
.gallery img { width: 100%; height: auto; max-width: 8rem; display: block; image-rendering: pixelated; border: 1px solid var(--rule); }
.gallery figcaption { line-height: 1.3; margin-top: .3rem; font-size: .85rem; }
.excerpt { margin: .9rem 0; }
.excerpt pre { margin-top: .2rem; }
pre { font: .875rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; background: var(--faint);
  padding: .7rem .9rem; margin: .7rem 0; white-space: pre-wrap; overflow-wrap: anywhere; border-radius: 3px; }
code { font: .82em/1.4 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
details { margin: .9rem 0; }
summary { cursor: pointer; }
footer { margin-top: 4rem; border-top: 1px solid var(--rule); padding-top: .8rem; }
@media (max-width: 34rem) {
  body { padding: 1.5rem 1rem 3rem; font-size: 1rem; }
  h1 { font-size: 1.55rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; }
  th, td { padding-right: .6rem; }
  table { font-size: .88rem; }
  .wide { display: block; margin-right: 0; }
}
@media print { body { max-width: none; padding: 0; } nav { display: none; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""
