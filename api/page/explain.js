// Explanations: the decisions of the running target about a login, a LUN, a path, with what to do.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { request, resources, segment, state } from "./client.js";
import { Card, Description, Empty, Failure, Name, Remedies, Table, clock, count, safe } from "./widgets.js";

const CLIENT = { key: "client", title: "Client", list: "clients", help: "The name that the client sends: an IQN or an NQN." };
const TARGET = { key: "target", title: "Target", list: "targets", query: true, help: "Its name in the configuration or in the protocol; empty: the one that the client wanted last." };
const FROM = { key: "from", title: "Address", query: true, help: "The address of the client; empty: the last one that is known." };
const VOLUME = { key: "volume", title: "Volume", list: "volumes" };

// The topics, with the fields of each: those of the path of the API first, then the parameters of the query.
const TOPICS = {
  login: { title: "Why can this client not log in?", fields: [CLIENT, TARGET, FROM,
    { key: "portal", title: "Portal", list: "portals", query: true, help: "Its name in the configuration; empty: any." },
    { key: "user", title: "User", query: true, help: "The user name that the client gives; empty: that is not in question." }] },
  refusal: { title: "Why was this login refused?", fields: [{ key: "number", title: "Number of the refusal", isNumber: true }] },
  lun: { title: "Why does the client not see the disk?", fields: [CLIENT, { key: "lun", title: "LUN", isNumber: true }, TARGET, FROM] },
  path: { title: "Which path is missing?", fields: [CLIENT, VOLUME, TARGET, FROM] },
  volume: { title: "What is the state of the volume, and who sees it?", fields: [VOLUME] },
  reservation: { title: "Who holds the reservation?", fields: [VOLUME] },
  slow: { title: "Where does the time go?", fields: [{ key: "subject", title: "Volume or client", list: "subjects" }] },
};

// The address of an explanation in this page: the topic, and the values of its fields.
export function explained(topic, ...values) {
  const filled = values.map((value) => value ?? "");
  while (filled.length > 0 && filled[filled.length - 1] === "") filled.pop();
  return `#/explain/${[topic, ...filled].map(encodeURIComponent).join("/")}`;
}

// The request for an explanation; null if a field that it needs is empty.
function pathOf(topic, values) {
  const { fields } = TOPICS[topic];
  const parts = fields.filter((field) => !field.query).map((field) => values[field.key]);
  if (parts.some((part) => part === "")) return null;
  const query = fields.filter((field) => field.query && values[field.key] !== "")
    .map((field) => `${field.key}=${encodeURIComponent(values[field.key])}`);
  return `/v1/explain/${topic}/${parts.map(segment).join("/")}${query.length > 0 ? `?${query.join("&")}` : ""}`;
}

// The command of `lunar` that asks the same.
function commandOf(topic, values) {
  const word = (text) => (/^[A-Za-z0-9._:@,/+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const parts = TOPICS[topic].fields.filter((field) => values[field.key] !== "")
    .map((field) => (field.query ? `--${field.key} ` : "") + word(safe(values[field.key])));
  return ["lunar explain", topic, ...parts].join(" ");
}

const REFUSALS = [
  { key: "last", title: "Last", cell: (one) => html`<time>${clock(one.last)}</time>`, value: (one) => one.last },
  { key: "code", title: "Code", cell: (one) => html`<a href=${explained("refusal", String(one.number))}>${safe(one.code)}</a>`, value: (one) => one.code },
  { key: "initiator", title: "Client", value: (one) => one.initiator,
    cell: (one) => (one.initiator ? html`<${Name} text=${one.initiator} />` : html`<span class="dim">without a name</span>`) },
  { key: "source", title: "From", optional: true, cell: (one) => one.source, value: (one) => one.source },
  { key: "target", title: "Target", optional: true, cell: (one) => (one.target ? html`<${Name} text=${one.target} />` : "discovery"), value: (one) => one.target || "" },
  { key: "user", title: "User", optional: true, rare: true, cell: (one) => safe(one.user ?? "–"), value: (one) => one.user || "" },
  { key: "count", title: "Times", number: true, cell: (one) => count(one.count), value: (one) => one.count },
];

// Refused logins, each with its explanation.
export const Refusals = ({ label, rows, empty }) => html`<${Table} label=${label} columns=${REFUSALS} rows=${rows}
  rowKey=${(one) => one.number} sort=${["last", true]} empty=${empty} />`;

// A volume or a reservation is a state, and no question.
const QUESTIONS = ["login", "lun", "path"];

function Explanation({ found }) {
  const { topic, well, words, code, paragraph, steps = [], near = [], remedies = [], refusals = [] } = found;
  const start = QUESTIONS.includes(topic) ? (well ? "Yes: " : "No: ") : "";
  // That of one refusal is in its words.
  const before = topic === "refusal" ? [] : refusals;
  return html`<p class=${`sentence ${well ? "ok" : "bad"}`} id="explanation"><span class="mark" aria-hidden="true">${well ? "✔" : "✖"}</span>
      <span>${start}${safe(words)}${code && html` <code>${code}</code>`}</span></p>
    ${steps.length > 0 && html`<${Card} wide title="Step by step"><ol class="steps decided">${steps.map((step) => html`<li>
      <span class=${`state ${step.passed ? "ok" : "bad"}`}><span aria-hidden="true">${step.passed ? "✔" : "✖"}</span> ${step.passed ? "passed" : "not passed"}</span>
      ${" "}${safe(step.words)}</li>`)}</ol><//>`}
    ${near.length > 0 && html`<${Card} wide title="What is known about it"><ul class="plain">${near.map((words) => html`<li>${safe(words)}</li>`)}</ul><//>`}
    <${Remedies} remedies=${remedies} />
    ${paragraph && html`<${Card} wide title=${`More about ${code}`}><p><${Description} text=${paragraph.words} /></p>
      <p class="dim">From the documentation: <code>${paragraph.link}</code></p><//>`}
    ${before.length > 0 && html`<${Card} wide title="Refused before"><${Refusals} label="Refused before" rows=${before} /><//>`}`;
}

// The names that are known, for the fields.
function Names() {
  const hosts = [...new Set([...(state.live?.hosts.values() ?? [])].map(({ now }) => now.host))];
  const volumes = resources("volume").map(({ name }) => name);
  const lists = { clients: hosts, volumes, subjects: [...volumes, ...hosts],
    targets: resources("target").map(({ name }) => name), portals: resources("portal").map(({ name }) => name) };
  return Object.entries(lists).map(([key, names]) => html`<datalist id=${`known-${key}`}>
    ${names.slice(0, 200).map((name) => html`<option value=${safe(name)}></option>`)}</datalist>`);
}

function Answer({ topic, values }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const path = pathOf(topic, values);
  useEffect(() => {
    if (path) request("GET", path).then(setFound, setProblem);
  }, [path]);
  if (!path) return null;
  return html`<div class="command"><span class="dim">The same on the command line</span><code>${commandOf(topic, values)}</code></div>
    <${Failure} problem=${problem} />${found ? html`<${Explanation} found=${found} />` : !problem && html`<${Empty}>Loading …<//>`}`;
}

function Refused() {
  const [all, setAll] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    request("GET", "/v1/refusal").then(setAll, setProblem);
  }, []);
  return html`<${Card} wide title="Refused logins"><${Failure} problem=${problem} />
    ${all ? html`<${Refusals} label="Refused logins" rows=${all} empty="No login was refused." />` : !problem && html`<${Empty}>Loading …<//>`}
    <p class="dim">Equal refusals are counted together. They are kept across restarts.</p><//>`;
}

export function Explain({ rest }) {
  const first = Object.hasOwn(TOPICS, rest[0]) ? rest[0] : "login";
  const [topic, setTopic] = useState(first);
  const given = Object.fromEntries(TOPICS[first].fields.map((field, at) => [field.key, rest[at + 1] ?? ""]));
  const [values, setValues] = useState(given);
  const { fields } = TOPICS[topic];
  const send = (event) => {
    event.preventDefault();
    location.hash = explained(topic, ...fields.map((field) => values[field.key] ?? ""));
  };
  const isAsked = pathOf(first, given) !== null;
  return html`<form class="card wide question" onSubmit=${send} aria-label="Question"><${Names} />
      <label class="field"><span>Question</span><select value=${topic} onChange=${(event) => setTopic(event.target.value)}>
        ${Object.entries(TOPICS).map(([name, { title }]) => html`<option value=${name}>${title}</option>`)}</select></label>
      <div class="fields">${fields.map((field) => html`<div class="field" key=${field.key}>
        <label for=${`ask-${field.key}`}>${field.title}</label>
        <input id=${`ask-${field.key}`} type="text" inputmode=${field.isNumber ? "numeric" : undefined} pattern=${field.isNumber ? "[0-9]+" : undefined}
          list=${field.list && `known-${field.list}`} required=${!field.query} value=${values[field.key] ?? ""} autocomplete="off" spellcheck=${false}
          aria-describedby=${field.help && `help-${field.key}`} onInput=${(event) => setValues({ ...values, [field.key]: event.target.value.trim() })} />
        ${field.help && html`<p class="dim" id=${`help-${field.key}`}>${field.help}</p>`}</div>`)}</div>
      <div class="buttons"><button class="primary" type="submit">Explain</button></div></form>
    ${isAsked ? html`<${Answer} topic=${first} values=${given} />` : html`<${Refused} />`}`;
}
