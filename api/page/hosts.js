// Hosts and their sessions.
import { html, useState } from "./vendor/htm-preact.js";
import { mayWrite, request, segment, state } from "./client.js";
import { Card, Failure, Name, Table, bandwidth, count, duration, latency, percent, safe } from "./widgets.js";
import { refusals } from "./summary.js";
import { Refused } from "./refused.js";
import { explained } from "./explain.js";
import { useSessions } from "./session.js";

const HOSTS = [
  { key: "host", title: "Client", cell: ({ now }) => html`<${Name} text=${now.host} />`, value: ({ now }) => now.host },
  { key: "sessions", title: "Sessions", number: true, value: ({ now }) => now.sessions,
    cell: ({ now }) => (now.sessions === 0 ? html`<span class="state warn"><span aria-hidden="true">▲</span> gone</span>` : now.sessions) },
  { key: "target", title: "Target", cell: ({ now }) => html`<${Name} text=${now.target} />`, value: ({ now }) => now.target },
  { key: "transport", title: "Transport", optional: true, cell: ({ now }) => now.transport, value: ({ now }) => now.transport },
  { key: "commands", title: "Commands/s", number: true, cell: ({ rates }) => count(rates.commands), value: ({ rates }) => rates.commands },
  { key: "read", title: "Read", number: true, optional: true, cell: ({ rates }) => bandwidth(rates.readBytes), value: ({ rates }) => rates.readBytes },
  { key: "written", title: "Written", number: true, optional: true, cell: ({ rates }) => bandwidth(rates.writtenBytes), value: ({ rates }) => rates.writtenBytes },
  { key: "p99", title: "99 % below", number: true, cell: ({ rates }) => latency(rates.p99), value: ({ rates }) => rates.p99 },
  { key: "aborts", title: "Aborts", number: true, optional: true, cell: ({ now }) => count(now.aborts), value: ({ now }) => now.aborts },
  { key: "resets", title: "Resets", number: true, optional: true, rare: true, cell: ({ now }) => count(now.resets), value: ({ now }) => now.resets },
  { key: "logins", title: "Logins", number: true, optional: true, rare: true, cell: ({ now }) => count(now.logins), value: ({ now }) => now.logins },
];

// Asks twice: a session that ends by mistake disturbs a client.
function Kick({ session, onDone }) {
  const [isSure, setSure] = useState(false);
  const [problem, setProblem] = useState(null);
  if (!mayWrite()) return null;
  const kick = () => request("DELETE", `/v1/session/${segment(session.id)}`).then(onDone, setProblem);
  if (problem) return html`<${Failure} problem=${problem} />`;
  return isSure
    ? html`<button class="danger" onClick=${kick}>Really end it</button> <button onClick=${() => setSure(false)}>Keep it</button>`
    : html`<button onClick=${() => setSure(true)}>End</button>`;
}

// A number of all TCP connections of a session; null without any.
const tcp = (session, key, merge) => (session.tcp?.length > 0 ? session.tcp.map((one) => one[key]).reduce((one, other) => merge(one, other)) : null);
const add = (one, other) => one + other;
// The segments that were sent again because they were lost, without those that were only late; and their share of all.
const lostSegments = (session) => Math.max(0, tcp(session, "retransmits", add) - tcp(session, "duplicates", add));
const lost = (session) => {
  const sent = tcp(session, "segments-sent", add);
  return sent ? lostSegments(session) / sent : null;
};

// Segments that were lost. More than one of a thousand is too much, as for `lunar doctor`.
function Lost({ session }) {
  const share = lost(session);
  if (share === null) return "–";
  const words = `${count(lostSegments(session))} (${percent(share)})`;
  const isBad = share > 0.001 && tcp(session, "segments-sent", add) >= 1000;
  return isBad ? html`<span class="state warn"><span aria-hidden="true">▲</span> ${words}</span>` : words;
}

export function Hosts() {
  const [search, setSearch] = useState("");
  const { sessions, problem, reload } = useSessions();
  const words = search.toLowerCase();
  const hosts = [...(state.live?.hosts.values() ?? [])];
  const fits = (...texts) => texts.some((text) => (text || "").toLowerCase().includes(words));
  const refused = refusals();
  const columns = [
    { key: "initiator", title: "Client", value: (one) => one.initiator,
      cell: (one) => html`<a href=${`#/hosts/${encodeURIComponent(one.id)}`}><${Name} text=${one.initiator} /></a>` },
    { key: "source", title: "From", cell: (one) => html`<${Name} text=${one.source} />`, value: (one) => one.source },
    { key: "target", title: "Target", cell: (one) => (one.discovery ? "discovery" : html`<${Name} text=${one.target} />`), value: (one) => one.target || "" },
    { key: "group", title: "Group", optional: true, cell: (one) => html`<${Name} text=${one.group || "–"} />`, value: (one) => one.group || "" },
    { key: "user", title: "User", optional: true, cell: (one) => html`<${Name} text=${one.user || "–"} />`, value: (one) => one.user || "" },
    { key: "protocol", title: "Transport", optional: true, cell: (one) => one.protocol, value: (one) => one.protocol },
    { key: "rtt", title: "Round trip", number: true, optional: true, rare: true, value: (one) => tcp(one, "rtt-microseconds", Math.max),
      cell: (one) => latency(tcp(one, "rtt-microseconds", Math.max)) },
    { key: "lost", title: "Lost segments", number: true, optional: true, value: (one) => lost(one), cell: (one) => html`<${Lost} session=${one} />` },
    { key: "seconds", title: "Age", number: true, cell: (one) => duration(one.seconds), value: (one) => one.seconds },
    { key: "slow", title: "", cell: (one) => !one.discovery && html`<a href=${explained("slow", one.initiator)} aria-label=${`Explain where the time of ${safe(one.initiator)} goes`}>explain</a>` },
    { key: "id", title: "", cell: (one) => html`<${Kick} session=${one} onDone=${reload} />` },
  ];
  return html`<div class="tools"><label class="search"><span class="unseen">Search clients</span>
      <input type="search" placeholder="Search  /" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label></div>
    <${Card} title="Clients" wide><${Table} label="Clients" columns=${HOSTS} sort=${["commands", true]} empty="No client has logged in since the start."
      rows=${hosts.filter(({ now }) => fits(now.host, now.target))} rowKey=${({ now }) => JSON.stringify([now.transport, now["target-name"], now.host])} /><//>
    <${Card} title="Sessions" wide><${Failure} problem=${problem} /><${Table} label="Sessions" columns=${columns} rowKey=${(one) => one.id}
      rows=${(sessions ?? []).filter((one) => fits(one.initiator, one.target, one.source, one.user))} empty="There are no sessions." /><//>
    <${Card} title="Refused in the last hour" wide>${refused.length === 0 ? html`<p class="empty">No login and no request was refused.</p>`
      : html`<${Refused} groups=${refused} most=${50} isLong />`}<//>`;
}
