// The configuration as a text, its versions, and changes of it.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { mayWrite, request, state } from "./client.js";
import { Card, Dialog, Failure, Name, Table, clock, safe } from "./widgets.js";
import { Action, Plan } from "./forms.js";

const Difference = ({ text }) => html`<pre class="diff" tabindex="0" aria-label="Difference">${text === "" ? "There is no difference."
  : text.split("\n").map((line) => html`<span class=${line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : ""}>${line}${"\n"}</span>`)}</pre>`;

function Version({ number, onClose }) {
  const [text, setText] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    request("GET", `/v1/version/${number}/diff`).then(setText, setProblem);
  }, []);
  return html`<${Dialog} wide title=${`Version ${number} compared with the running configuration`} onClose=${onClose}>
    <${Failure} problem=${problem} />${text === null && !problem && html`<p role="status">Loading …</p>`}
    ${text !== null && html`<${Difference} text=${text} />`}<//>`;
}

function Versions() {
  const [versions, setVersions] = useState([]);
  const [problem, setProblem] = useState(null);
  const [shown, setShown] = useState(null);
  useEffect(() => {
    request("GET", "/v1/version").then(setVersions, setProblem);
  }, [state.live?.version]);
  const columns = [
    { key: "number", title: "Version", cell: (one) => one.number, value: (one) => one.number },
    { key: "time", title: "Written", cell: (one) => html`<time>${clock(one.time)}</time>`, value: (one) => one.time },
    { key: "who", title: "By", cell: (one) => html`<${Name} text=${one.who} />`, value: (one) => one.who },
    { key: "changes", title: "Changes", cell: (one) => html`<span class="words">${safe(one.changes)}</span>` },
    { key: "action", title: "", cell: (one) => html`<span class="row-actions"><button onClick=${() => setShown(one.number)}>Compare</button>
      <${Action} label="Restore" title=${`Restore version ${one.number}`}>${(close) => html`<${Plan} onDone=${close}
        command=${`lunar rollback ${one.number}`} send=${(query) => request("POST", `/v1/version/${one.number}/restore?${query}`)} />`}<//></span>` },
  ];
  return html`<${Card} wide title="Versions"><${Failure} problem=${problem} />
    <${Table} label="Versions" columns=${columns} rows=${versions} rowKey=${(one) => one.number} sort=${["number", true]} empty="No version is stored." />
    ${shown !== null && html`<${Version} number=${shown} onClose=${() => setShown(null)} />`}<//>`;
}

export function Configuration() {
  const [running, setRunning] = useState(null);
  const [text, setText] = useState("");
  const [difference, setDifference] = useState(null);
  const [problem, setProblem] = useState(null);
  const [isEdited, setEdited] = useState(false);
  const load = () => request("GET", "/v1/config/text").then((found) => { setRunning(found); setText(found); setEdited(false); setDifference(null); }, setProblem);
  useEffect(() => {
    // A text that is being edited stays.
    if (!isEdited) void load();
  }, [state.live?.version]);
  const compare = () => {
    setProblem(null);
    request("POST", "/v1/diff", text, true).then(setDifference, setProblem);
  };
  const send = (query) => (query.includes("dry-run") ? request("POST", "/v1/plan", text, true) : request("POST", `/v1/apply?${query}`, text, true));
  const late = state.status?.["after-restart"] || [];
  return html`
    ${late.length > 0 && html`<p class="banner warn"><span aria-hidden="true">▲</span> After the next start: ${late.map(safe).join("; ")}</p>`}
    <${Card} wide title=${state.status ? safe(state.status.file) : "The file"} actions=${mayWrite() && isEdited && html`
        <button onClick=${load}>Discard</button><button onClick=${compare}>Compare</button>
        <${Action} label="Plan and apply" kind="primary" title="Apply the configuration">${(close) => html`<${Plan} send=${send}
          command="lunar apply FILE" onDone=${() => { close(); void load(); }} />`}<//>`}>
      <p class="dim">Secrets are not shown. A secret that is left as it is shown stays as it is.</p>
      <${Failure} problem=${problem} />
      ${running !== null && html`<label class="unseen" for="configuration">The configuration</label>
        <textarea id="configuration" class="code" rows="24" spellcheck="false" readonly=${!mayWrite()} value=${text}
          onInput=${(event) => { setText(event.target.value); setEdited(event.target.value !== running); setDifference(null); }}></textarea>`}
      ${difference !== null && html`<h3>Difference to the running configuration</h3><${Difference} text=${difference} />`}<//>
    <${Versions} />`;
}
