// The overview: readable in ten seconds.
import { html } from "./vendor/htm-preact.js";
import { historyOf, resources, state } from "./client.js";
import { Bar, Card, Chart, Empty, Name, bandwidth, clock, count, latency, percent, plural, safe } from "./widgets.js";
import { changes, clients, fullest, leftWords, openTargets, refusals, sentence, slowest } from "./summary.js";
import { Topology } from "./topology.js";
import { Refused } from "./refused.js";

const MARKS = { ok: "✔", info: "●", warn: "▲", bad: "✖" };

export const Sentence = () => {
  const { kind, words } = sentence();
  return html`<p class=${`sentence ${kind}`}><span class="mark" aria-hidden="true">${MARKS[kind]}</span> ${words}</p>`;
};

export function Charts({ name }) {
  const past = historyOf(name);
  if (!past) return html`<${Empty}>There were no commands in the last ten minutes.<//>`;
  return html`<div class="charts">
    <${Chart} title="Commands/s" time=${past.time} format=${count} series=${[
      { name: "reads", values: past.reads, colour: "--read", fill: true },
      { name: "writes", values: past.writes, colour: "--write", fill: true }]} />
    <${Chart} title="Bandwidth" isBinary time=${past.time} format=${bandwidth} series=${[
      { name: "read", values: past.readBytes, colour: "--read", fill: true },
      { name: "written", values: past.writtenBytes, colour: "--write", fill: true }]} />
    <${Chart} title="Latency" log time=${past.time} format=${latency} series=${[
      { name: "half below", values: past.p50, colour: "--read" },
      { name: "99 % below", values: past.p99, colour: "--bad" }]} />
    <${Chart} title="Commands in progress" time=${past.time} format=${count} series=${[
      { name: "now", values: past.queue, colour: "--read", fill: true }]} />
  </div>`;
}

const Figure = ({ id, label, value, note }) => html`<div class="figure"><dt>${label}</dt>
  <dd><span class="value" id=${id}>${value}</span>${note && html`<span class="dim">${note}</span>`}</dd></div>`;

export function Overview() {
  const { live } = state;
  if (!live) return html`<${Sentence} />`;
  const { total } = live;
  const { hosts, paths } = clients();
  const [slow, full, refused, changed] = [slowest(3), fullest(3), refusals(), changes(4)];
  const open = openTargets(resources("group"), resources("target"));
  const busy = live.cores.filter((core) => core.busy > 0.5).length;
  const link = (name) => html`<a href=${`#/volumes/${encodeURIComponent(name)}`}><${Name} text=${name} /></a>`;
  return html`
    <${Sentence} />
    ${live.troubles.slice(0, 3).map((trouble) => html`<p class="banner warn"><span aria-hidden="true">▲</span>
      <b>${safe(trouble.subject)}</b> <code title="docs/troubleshooting.md">${trouble.kind}</code> ${safe(trouble.words)}${trouble.remedy && html` – ${safe(trouble.remedy)}`}</p>`)}
    <dl class="figures">
      <${Figure} id="total-commands" label="Commands" value=${html`${count(total.commands)}<small>/s</small>`}
        note=${`${count(total.reads)} reads, ${count(total.writes)} writes`} />
      <${Figure} id="total-bandwidth" label="Bandwidth" value=${bandwidth(total.readBytes + total.writtenBytes)}
        note=${`${bandwidth(total.readBytes)} read, ${bandwidth(total.writtenBytes)} written`} />
      <${Figure} id="total-latency" label="Latency, 99 % below" value=${latency(total.p99)}
        note=${`half below ${latency(total.p50)}`} />
      <${Figure} id="total-clients" label="Clients" value=${hosts} note=${plural(paths, "session")} />
      <${Figure} id="total-cores" label="Cores" value=${html`${busy}<small> of ${live.cores.length} busy</small>`}
        note=${`${percent(live.cores.reduce((sum, core) => sum + core.busy, 0) / Math.max(1, live.cores.length))} of their time`} />
    </dl>
    <div class="cards pairs">
      <${Card} title="Slow">${slow.length === 0 ? html`<${Empty}>No commands in the last second.<//>` : html`<ul class="rows">
        ${slow.map(({ now, rates }) => html`<li key=${now.name}>${link(now.name)}
          <span>${`99 % below ${latency(rates.p99)}, ${count(rates.commands)}/s`}</span></li>`)}</ul>`}<//>
      <${Card} title="Full">${full.length === 0 ? html`<${Empty}>No volume is in a file system or pool.<//>` : html`<ul class="rows">
        ${full.map((store) => html`<li key=${store.name}><${Name} text=${store.name} />
          <${Bar} value=${store.used} label=${`${percent(store.used)} used${leftWords(store)}`} /></li>`)}</ul>`}<//>
      <${Card} title="Refused in the last hour">${refused.length === 0 ? html`<${Empty}>No login and no request was refused.<//>`
        : html`<${Refused} groups=${refused} most=${3} />`}<//>
      <${Card} title="Changed">${changed.length === 0 ? html`<${Empty}>Nothing was changed since the start.<//>`
        : html`<ul class="rows tall">${changed.map((record) => html`<li key=${record.id}><time>${clock(record.time)}</time>
          <${Name} text=${record.who} /> <span class="dim">${safe(record.words)}</span></li>`)}</ul>`}<//>
    </div>
    ${open.length > 0 && html`<p class="banner warn"><span aria-hidden="true">▲</span> Every client may use${" "}
      ${open.length === 1 ? "target" : "targets"} ${open.map((name) => html`<${Name} text=${name} /> `)} without authentication.</p>`}
    <${Charts} name="" />
    <${Topology} />`;
}
