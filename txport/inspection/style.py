"""The style sheet of the page, for light and dark screens, phones and paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --ink: #1d2430; --soft: #5b6675; --line: #dfe4ea; --panel: #f5f7fa;
  --accent: #2457c5; --good: #176b2c; --bad: #b00020;
  --k0: #4472c4; --k1: #d9822b; --k2: #3d9970; --k3: #8a5cc7; --k4: #c0476b; --k5: #6b7785;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181f; --ink: #e4e9f0; --soft: #9aa6b6; --line: #2c3440; --panel: #1c222b;
    --accent: #8fb3ff; --good: #7ddc94; --bad: #ff8a95;
    --k0: #5b86d6; --k1: #d98f45; --k2: #4fae86; --k3: #9d78d3; --k4: #cf6284; --k5: #7f8b9a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 62rem;
  background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif;
}
h1 { margin: 0 0 .25rem; font-size: 1.7rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.75rem 0 .75rem; padding-top: .75rem; border-top: 1px solid var(--line); font-size: 1.2rem; }
h3 { margin: 1.75rem 0 .5rem; font-size: 1rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; max-width: 44rem; }
ol, ul { padding-left: 1.3rem; }
li { margin: .35rem 0; }
code, .code { font: .875em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.facts { display: flex; flex-wrap: wrap; gap: .5rem; margin: 1rem 0; padding: 0; list-style: none; }
.facts li { margin: 0; padding: .2rem .65rem; border: 1px solid var(--line); border-radius: 1rem; font-size: .875rem; }
.facts .pass { border-color: var(--good); color: var(--good); font-weight: 600; }
.facts .fail { border-color: var(--bad); color: var(--bad); font-weight: 600; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: .875rem; }
th, td { padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.name { min-width: 9rem; }
td.key { width: 12rem; color: var(--soft); }
svg { display: block; max-width: 100%; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg text.small { fill: var(--soft); font-size: 11.5px; }
svg text.inner { fill: #fff; }
svg text.inner.small { fill: #fffd; }
.flow { width: 100%; background: var(--panel); border-radius: .75rem; padding: .75rem 0; }
.flow .graph { fill: var(--page); stroke: var(--accent); stroke-width: 1.5; }
.flow .value { fill: none; stroke: var(--line); stroke-width: 1.5; }
.flow .arrow { fill: none; stroke: var(--soft); stroke-width: 1.3; }
.flow .state { stroke: var(--accent); }
.flow .tip { fill: var(--soft); }
.map { width: 100%; height: auto; margin: .75rem 0; }
.bar { width: 100%; min-width: 7rem; height: .8rem; margin-top: .3rem; }
.k0 { fill: var(--k0); } .k1 { fill: var(--k1); } .k2 { fill: var(--k2); }
.k3 { fill: var(--k3); } .k4 { fill: var(--k4); } .k5 { fill: var(--k5); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .5rem 0; padding: 0; list-style: none; }
.legend li { margin: 0; font-size: .875rem; }
.legend svg { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; vertical-align: -.05rem; }
footer { margin-top: 3rem; font-size: .875rem; color: var(--soft); overflow-wrap: anywhere; }
@media (max-width: 48rem) {
  body { padding: 1rem .9rem 3rem; }
  td.name { min-width: 0; }
  td.key { width: 8rem; }
  .bar { min-width: 4rem; }
}
@media print {
  :root { color-scheme: light; --page: #fff; --ink: #000; --soft: #444; --line: #bbb; --panel: #fff; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  h2, h3 { break-after: avoid; }
  tr, svg { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
