// One session: its place, its negotiated parameters with the cost of those that make commands slow, its TCP connections.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { request } from "./client.js";
import { Card, Empty, Failure, Name, Remedies, Table, bandwidth, bytes, count, duration, latency, safe } from "./widgets.js";
import { explained } from "./explain.js";

// How often the sessions are loaded, in milliseconds.
const PERIOD = 5000;

// The sessions of the target, and why they could not be loaded. `reload` loads them at once.
export function useSessions() {
  const [sessions, setSessions] = useState(null);
  const [problem, setProblem] = useState(null);
  const reload = () => request("GET", "/v1/session").then((all) => { setSessions(all); setProblem(null); }, setProblem);
  useEffect(() => {
    void reload();
    const timer = setInterval(() => document.hidden || reload(), PERIOD);
    return () => clearInterval(timer);
  }, []);
  return { sessions, problem, reload };
}

const Cost = ({ cost }) => (cost ? html`<span class="state warn"><span aria-hidden="true">▲</span> ${safe(cost.words)}</span>` : "–");

const PARAMETERS = [
  { key: "name", title: "Parameter", cell: (one) => safe(one.name), value: (one) => one.name },
  { key: "value", title: "Value", cell: (one) => safe(one.value), value: (one) => one.value },
  { key: "cost", title: "Cost", cell: (one) => html`<${Cost} cost=${one.cost} />`, value: (one) => one.cost?.words ?? "" },
];

const TCP = [
  { key: "number", title: "Connection", cell: (one) => one.number, value: (one) => one.number },
  { key: "rtt", title: "Round trip", number: true, cell: (one) => latency(one["rtt-microseconds"]), value: (one) => one["rtt-microseconds"] },
  { key: "sent", title: "Segments sent", number: true, optional: true, cell: (one) => count(one["segments-sent"]), value: (one) => one["segments-sent"] },
  { key: "again", title: "Sent again", number: true, cell: (one) => count(one.retransmits), value: (one) => one.retransmits },
  { key: "late", title: "Of those late", number: true, optional: true, cell: (one) => count(one.duplicates), value: (one) => one.duplicates },
  { key: "rate", title: "Delivery rate", number: true, optional: true, cell: (one) => bandwidth(one["delivery-rate"]), value: (one) => one["delivery-rate"] },
  { key: "mss", title: "Largest segment", number: true, optional: true, cell: (one) => bytes(one["send-mss"]), value: (one) => one["send-mss"] },
  { key: "client", title: "Waited for the client", number: true, cell: (one) => latency(one["window-limited-microseconds"]), value: (one) => one["window-limited-microseconds"] },
  { key: "buffer", title: "Waited for the send buffer", number: true, optional: true, cell: (one) => latency(one["buffer-limited-microseconds"]),
    value: (one) => one["buffer-limited-microseconds"] },
];

const Fact = ({ name, text }) => html`<div><dt>${name}</dt><dd><${Name} text=${text ?? "–"} /></dd></div>`;

export function Session({ rest }) {
  const { sessions, problem } = useSessions();
  const one = sessions?.find(({ id }) => id === rest[0]);
  if (!one) return html`<${Failure} problem=${problem} /><${Empty}>${sessions ? "This session has ended." : "Loading …"}<//>`;
  const parameters = one.parameters ?? [];
  const remedies = parameters.flatMap(({ cost }) => cost?.remedies ?? []);
  const connections = (one.tcp ?? []).map((tcp, at) => ({ ...tcp, number: at + 1 }));
  return html`<${Failure} problem=${problem} /><div class="cards">
    <${Card} title="Session"><dl class="facts"><${Fact} name="Client" text=${one.initiator} /><${Fact} name="From" text=${one.source} />
      <${Fact} name="Target" text=${one.discovery ? "discovery" : one.target} /><${Fact} name="Group" text=${one.group} /><${Fact} name="User" text=${one.user} />
      <${Fact} name="Transport" text=${one.protocol} /><${Fact} name="Portal group" text=${one["portal-group"]} /><${Fact} name="Age" text=${duration(one.seconds)} /></dl>
      ${!one.discovery && html`<p><a href=${explained("slow", one.initiator)}>Explain where the time goes</a></p>`}<//>
    <${Card} title="Negotiated parameters"><${Table} label="Negotiated parameters" columns=${PARAMETERS} rows=${parameters} rowKey=${({ name }) => name}
      empty="The transport of this session negotiates no parameters." /><//></div>
    <${Remedies} remedies=${remedies} />
    ${connections.length > 0 && html`<${Card} wide title="TCP connections"><${Table} label="TCP connections" columns=${TCP} rows=${connections} rowKey=${({ number }) => number} /><//>`}`;
}
