// The audit log: logins, refusals and changes as they happen.
import { html, useState } from "./vendor/htm-preact.js";
import { state } from "./client.js";
import { Card, Empty, Name, Table, clock, safe } from "./widgets.js";
import { refusals } from "./summary.js";
import { Refused } from "./refused.js";
import { explained } from "./explain.js";

const TOPICS = {
  login: ["ok", "✔", "login"],
  logout: ["info", "●", "logout"],
  refusal: ["bad", "✖", "refusal"],
  change: ["info", "✎", "change"],
  service: ["info", "●", "service"],
};

const Topic = ({ word }) => {
  const [kind, mark, text] = TOPICS[word] || ["info", "●", word];
  return html`<span class="state ${kind}"><span aria-hidden="true">${mark}</span> ${text}</span>`;
};

const COLUMNS = [
  { key: "time", title: "Time", cell: (record) => html`<time>${clock(record.time)}</time>`, value: (record) => record.id },
  { key: "topic", title: "Topic", cell: (record) => html`<${Topic} word=${record.topic} />`, value: (record) => record.topic },
  { key: "who", title: "Who", cell: (record) => html`<${Name} text=${record.who} />`, value: (record) => record.who },
  { key: "words", title: "Event", value: (record) => record.words, cell: ({ who, words, refusal }) => html`<span class="words">${safe(words)}
    ${refusal && html` <code title=${refusal.link}>${refusal.remedy
      ? html`<a href=${explained("login", who, refusal.target, refusal.source)}>${refusal.code}</a>` : refusal.code}</code>`}</span>` },
];

export function Events() {
  const [search, setSearch] = useState("");
  const [topic, setTopic] = useState("all");
  const words = search.toLowerCase();
  const of = (name) => state.records.filter((record) => name === "all" || record.topic === name);
  const rows = of(topic).filter((record) => `${record.who} ${record.words}`.toLowerCase().includes(words));
  const refused = refusals();
  return html`<div class="tools"><label class="search"><span class="unseen">Search events</span>
      <input type="search" placeholder="Search  /" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>
      <label class="filter"><span class="unseen">Topic</span><select value=${topic} onChange=${(event) => setTopic(event.target.value)}>
        ${["all", ...Object.keys(TOPICS)].map((name) => html`<option value=${name}>${name} (${of(name).length})</option>`)}</select></label></div>
    ${refused.length > 0 && html`<${Card} wide title="Refused in the last hour"><${Refused} groups=${refused} most=${5} isLong /><//>`}
    ${state.records.length === 0 ? html`<${Empty}>There are no events yet.<//>`
      : html`<${Table} label="Events" columns=${COLUMNS} rows=${rows} rowKey=${(record) => record.id} sort=${["time", true]} empty="No event fits." />`}
    <p class="dim">The last 4096 records are kept here; all are in the log of the service.</p>`;
}
