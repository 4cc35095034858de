// The troubles, and the state of the parts: checks, cores, portals, file systems.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { request, resources, state } from "./client.js";
import { Bar, Card, Description, Empty, Failure, Name, Table, bytes, clock, count, duration, latency, percent, safe } from "./widgets.js";
import { fullest, leftWords, openTargets } from "./summary.js";
import { Sentence } from "./overview.js";

const Mark = ({ isWell, words }) => html`<span class="state ${isWell ? "ok" : "bad"}"><span aria-hidden="true">${isWell ? "✔" : "✖"}</span> ${words}</span>`;

const CORES = [
  { key: "core", title: "Core", cell: ({ now }) => now.core, value: ({ now }) => now.core },
  { key: "busy", title: "Busy", cell: ({ busy }) => html`<${Bar} value=${busy} />`, value: ({ busy }) => busy },
  { key: "spin", title: "Polling", number: true, cell: ({ spin }) => percent(spin), value: ({ spin }) => spin },
  { key: "sleep", title: "Asleep", number: true, optional: true, cell: ({ sleep }) => percent(sleep), value: ({ sleep }) => sleep },
  { key: "connections", title: "Connections", number: true, cell: ({ now }) => now.connections, value: ({ now }) => now.connections },
  { key: "buffer", title: "Data memory used", optional: true, value: ({ now }) => now["buffer-used-bytes"],
    cell: ({ now }) => html`<${Bar} value=${now["buffer-bytes"] > 0 ? now["buffer-used-bytes"] / now["buffer-bytes"] : 0} />` },
  { key: "turn", title: "Longest turn", number: true, optional: true, cell: ({ now }) => latency(now["longest-turn-nanoseconds"] / 1000), value: ({ now }) => now["longest-turn-nanoseconds"] },
];

const PORTALS = [
  { key: "name", title: "Portal", cell: (one) => html`<${Name} text=${one.name} />`, value: (one) => one.name },
  { key: "address", title: "Address", cell: (one) => one.address, value: (one) => one.address },
  { key: "transport", title: "Transport", cell: (one) => one.transport, value: (one) => one.transport },
  { key: "up", title: "State", cell: (one) => html`<${Mark} isWell=${one.up} words=${one.up ? "listening" : "not listening"} />`, value: (one) => String(one.up) },
];

function Checks() {
  const [lines, setLines] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    // A check that fails has status 503, and the same text.
    const load = () => fetch("/readyz?verbose", { cache: "no-store" }).then((response) => response.text())
      .then((text) => setLines(text.trim().split("\n")), () => setProblem({ title: "No connection", message: "Lunar does not answer" }));
    void load();
    const timer = setInterval(() => document.hidden || load(), 5000);
    return () => clearInterval(timer);
  }, []);
  if (problem && !lines) return html`<${Failure} problem=${problem} />`;
  return html`<ul class="rows">${(lines || []).map((line) => {
    const [code, words] = line.split(/: (.*)/s);
    return html`<li><b>${code}</b><${Mark} isWell=${words === "ok"} words=${words} /></li>`;
  })}</ul>`;
}

const SEVERITIES = { error: ["bad", "✖"], warning: ["warn", "▲"], advice: ["info", "●"] };

// The findings of `lunar doctor` about the service itself. They take two seconds: the load is watched.
function Findings() {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const examine = () => {
    setBusy(true);
    request("GET", "/v1/doctor").then((all) => { setFound(all); setProblem(null); }, setProblem).finally(() => setBusy(false));
  };
  useEffect(examine, []);
  const again = html`<button onClick=${examine} disabled=${isBusy}>${isBusy ? "Examining …" : "Examine again"}</button>`;
  return html`<${Card} wide title="Findings" actions=${again}><${Failure} problem=${problem} />
    ${!found && !problem && html`<${Empty}>Lunar examines itself.<//>`}
    ${found?.findings.length === 0 && html`<${Empty}>Nothing was found.<//>`}
    ${found?.findings.length > 0 && html`<ul class="troubles" id="findings">${found.findings.map((one) => {
      const [kind, mark] = SEVERITIES[one.severity];
      return html`<li key=${one.code + one.subject}><p><span class=${`state ${kind}`}><span aria-hidden="true">${mark}</span> ${one.severity}</span>
          <${Name} text=${one.subject} /> <code title="docs/doctor.md">${one.code}</code></p>
        <p>${safe(one.words)}${one.evidence.length > 0 && html` <span class="dim">${safe(one.evidence.map(({ name, value }) => `${name} ${value}`).join(", "))}</span>`}</p>
        <p class="remedy">What to do: ${safe(one.remedy)}</p>
        ${one.command && html`<div class="command"><code>${safe(one.command)}</code></div>`}</li>`;
    })}</ul>`}
    ${found?.unchecked.map(({ subject, reason }) => html`<p class="dim">Not checked: ${safe(subject)}: <${Description} text=${safe(reason)} />.</p>`)}<//>`;
}

export function Health() {
  const { live, status } = state;
  if (!live) return html`<${Sentence} />`;
  const open = openTargets(resources("group"), resources("target"));
  const stores = fullest(100);
  return html`<${Sentence} />
    <${Card} wide title="Troubles">${live.troubles.length === 0 && open.length === 0 ? html`<${Empty}>No trouble is known.<//>` : html`<ul class="troubles">
      ${live.troubles.map((trouble) => html`<li key=${trouble.kind + trouble.subject}><p><span class="state warn"><span aria-hidden="true">▲</span> ${trouble.kind}</span>
        <${Name} text=${trouble.subject} />${trouble.since > 0 && html` <span class="dim">since <time>${clock(trouble.since)}</time></span>`}</p>
        <p>${safe(trouble.words)}</p>${trouble.remedy && html`<p class="remedy">What to do: ${safe(trouble.remedy)}</p>`}</li>`)}
      ${open.map((name) => html`<li key=${`open ${name}`}><p><span class="state warn"><span aria-hidden="true">▲</span> target-open</span> target <${Name} text=${name} /></p>
        <p>Every client that reaches a portal may use this target without authentication.</p>
        <p class="remedy">What to do: name the clients in <code>initiators</code> of its groups, or set <code>authentication</code>.</p></li>`)}</ul>`}<//>
    <${Findings} />
    <div class="cards"><${Card} title="Checks"><${Checks} /><//>
      <${Card} title="Service">${status ? html`<dl class="facts"><div><dt>Version</dt><dd>${status.version}</dd></div>
        <div><dt>Process</dt><dd>${status.process}</dd></div><div><dt>Running</dt><dd>${duration(Math.max(0, Date.now() / 1000 - status.since))}</dd></div>
        <div><dt>Configuration</dt><dd>version ${live.version ?? "–"}</dd></div>
        <div><dt>After the next start</dt><dd>${status["after-restart"].length === 0 ? "nothing changes" : status["after-restart"].map(safe).join("; ")}</dd></div></dl>`
        : html`<${Empty}>Loading …<//>`}<//></div>
    <${Card} wide title="Portals"><${Table} label="Portals" columns=${PORTALS} rows=${live.counters?.portals ?? []} rowKey=${(one) => one.name} empty="No portal is configured." /><//>
    <${Card} wide title="Cores"><${Table} label="Cores" columns=${CORES} rows=${live.cores} rowKey=${({ now }) => now.core} /><//>
    <${Card} wide title="File systems and pools">${stores.length === 0 ? html`<${Empty}>No volume is in a file system or pool.<//>` : html`<ul class="rows">
      ${stores.map((store) => html`<li key=${store.name}><${Name} text=${store.name} /><${Bar} value=${store.used}
        label=${`${percent(store.used)} of ${bytes(store.size)} used, ${bytes(store.free)} free${leftWords(store)}`} /></li>`)}</ul>`}<//>
    ${(live.counters?.refused ?? []).length > 0 && html`<${Card} wide title="Refused logins since the start"><ul class="rows">
      ${live.counters.refused.map((one) => html`<li><b>${one.reason}</b><span>${one.transport}: ${count(one.count)}</span></li>`)}</ul><//>`}`;
}
