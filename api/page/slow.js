// The slow log: commands that took too long, with the parts of their time.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { request } from "./client.js";
import { Card, Empty, Failure, Name, Table, bytes, clock, count, latency, percent, plural, safe } from "./widgets.js";
import { explained } from "./explain.js";

// The parts of the time of a command, each with its colour.
const PARTS = [["network", "the client and the network"], ["queue", "waiting for a slot, memory or the core"], ["store", "the store"]];

// A bar of the parts of a time, and the largest of them in words.
function Split({ times, parts }) {
  const total = Math.max(1, parts.reduce((sum, name) => sum + (times[name] ?? 0), 0));
  let x = 0;
  const most = parts.reduce((one, other) => ((times[other] ?? 0) > (times[one] ?? 0) ? other : one));
  return html`<span class="bar split"><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">${parts.map((name) => {
    const width = (100 * (times[name] ?? 0)) / total;
    const part = html`<rect class=${`part-${parts.indexOf(name)}`} x=${x} width=${width} height="8" />`;
    x += width;
    return part;
  })}</svg><span>${most} ${percent((times[most] ?? 0) / total)}</span></span>`;
}

// The time, with the day unless it is today.
const when = (seconds) => clock(seconds, new Date(seconds * 1000).toDateString() !== new Date().toDateString());

const subject = (one) => one.volume || one.initiator;

const COLUMNS = [
  { key: "time", title: "Time", value: (one) => one.milliseconds,
    cell: (one) => html`<time title=${clock(one.milliseconds / 1000)}>${when(one.milliseconds / 1000)}</time>` },
  { key: "total", title: "Took", number: true, cell: (one) => html`<b>${latency(one.microseconds.total)}</b>`, value: (one) => one.microseconds.total },
  { key: "parts", title: "Mostly", cell: (one) => html`<${Split} times=${one.microseconds} parts=${PARTS.map(([name]) => name)} />`,
    value: (one) => PARTS.map(([name]) => name).reduce((a, b) => (one.microseconds[b] > one.microseconds[a] ? b : a)) },
  ...PARTS.map(([name]) => ({ key: name, title: name[0].toUpperCase() + name.slice(1), number: true, optional: true, rare: true,
    cell: (one) => latency(one.microseconds[name]), value: (one) => one.microseconds[name] })),
  { key: "volume", title: "Volume", value: (one) => one.volume || "",
    cell: (one) => (one.volume ? html`<a href=${`#/volumes/${encodeURIComponent(one.volume)}`}><${Name} text=${one.volume} /></a>` : "–") },
  { key: "command", title: "Command", optional: true, cell: (one) => safe(one.command), value: (one) => one.command },
  { key: "bytes", title: "Size", number: true, optional: true, cell: (one) => bytes(one.bytes), value: (one) => one.bytes ?? null },
  { key: "lba", title: "LBA", number: true, optional: true, rare: true, cell: (one) => one.lba ?? "–", value: (one) => one.lba ?? null },
  { key: "initiator", title: "Client", optional: true, value: (one) => one.initiator || "",
    cell: (one) => (one.initiator ? html`<${Name} text=${one.initiator} />` : "–") },
  { key: "depth", title: "In progress", number: true, optional: true, rare: true, cell: (one) => one["in-flight"], value: (one) => one["in-flight"] },
  { key: "ending", title: "End", value: (one) => one.ending,
    cell: (one) => (one.ending === "done" ? "done" : html`<span class="state bad"><span aria-hidden="true">✖</span> ${one.ending}</span>`) },
  { key: "explain", title: "", cell: (one) => subject(one) && html`<a href=${explained("slow", subject(one))}>explain</a>` },
];

// Where the time of all commands goes, by volume: the parts of those that were timed.
function Stages({ volumes }) {
  const rows = Object.entries(volumes).filter(([, { commands }]) => commands > 0);
  if (rows.length === 0) return html`<${Empty}>No command was timed yet: one in about a thousand is.<//>`;
  const parts = Object.keys(rows[0][1].nanoseconds);
  const columns = [
    { key: "volume", title: "Volume", cell: ([name]) => html`<a href=${explained("slow", name)}><${Name} text=${name} /></a>`, value: ([name]) => name },
    { key: "most", title: "Mostly", value: ([, one]) => parts.reduce((a, b) => (one.nanoseconds[b] > one.nanoseconds[a] ? b : a)),
      cell: ([, one]) => html`<${Split} times=${one.nanoseconds} parts=${parts} />` },
    ...parts.map((part) => ({ key: part, title: part[0].toUpperCase() + part.slice(1), number: true, optional: true,
      cell: ([, one]) => latency(one.nanoseconds[part] / one.commands / 1000), value: ([, one]) => one.nanoseconds[part] / one.commands })),
    { key: "commands", title: "Timed", number: true, optional: true, cell: ([, one]) => count(one.commands), value: ([, one]) => one.commands },
  ];
  return html`<${Table} label="Where the time goes" columns=${columns} rows=${rows} rowKey=${([name]) => name} />`;
}

// How often the log is loaded, in milliseconds.
const PERIOD = 5000;

export function Slow() {
  const [search, setSearch] = useState("");
  const [log, setLog] = useState(null);
  const [stages, setStages] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    const load = () => Promise.all([request("GET", "/v1/slow"), request("GET", "/v1/stages")])
      .then(([slow, all]) => { setLog(slow); setStages(all); setProblem(null); }, setProblem);
    void load();
    const timer = setInterval(() => document.hidden || load(), PERIOD);
    return () => clearInterval(timer);
  }, []);
  const words = search.toLowerCase();
  const fits = (one) => [one.volume, one.initiator, one.command, one.ending].some((text) => (text || "").toLowerCase().includes(words));
  const rows = (log?.commands ?? []).map((one, at) => ({ ...one, at })).filter(fits);
  return html`<div class="tools"><label class="search"><span class="unseen">Search slow commands</span>
      <input type="search" placeholder="Search  /" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label></div>
    <${Failure} problem=${problem} />
    <${Card} wide title="Slow commands">${log ? html`<${Table} label="Slow commands" columns=${COLUMNS} rows=${rows} sort=${["time", true]}
        rowKey=${(one) => `${one.milliseconds} ${one.core} ${one.at}`} empty="No command was slow." />
      <p class="dim">A command is slow if it takes longer than <code>slow</code> in <code>[logging]</code>, or if it is aborted.
        ${log.omitted > 0 && ` ${plural(log.omitted, "more slow command")} came within the same seconds and ${log.omitted === 1 ? "is" : "are"} only counted.`}</p>
      <dl class="facts across legend">${PARTS.map(([name, what], at) => html`<div><dt><i class=${`swatch part-${at}`} aria-hidden="true"></i>${name}</dt><dd>${what}</dd></div>`)}</dl>`
      : !problem && html`<${Empty}>Loading …<//>`}<//>
    <${Card} wide title="Where the time of commands goes">${stages && html`<${Stages} volumes=${stages.volumes} />`}<//>`;
}
