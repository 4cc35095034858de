// Forms. Each change is planned first: its steps and the command that does the same are shown before it is made.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { mayWrite, openDialog, reload, request, resources, schema, segment } from "./client.js";
import { Description, Failure, Name, plural, safe } from "./widgets.js";

const EFFECTS = {
  live: ["ok", "no client notices"],
  attention: ["info", "clients are notified"],
  "later-sessions": ["info", "for later sessions"],
  "ends-sessions": ["warn", "ends sessions"],
  restart: ["warn", "after a restart"],
};

// A word of a command line, quoted if a shell needs it.
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`;
}

function Steps({ plan }) {
  return html`
    ${plan.changes.length === 0 && html`<p>Nothing would change.</p>`}
    <ol class="steps">${plan.changes.map((step) => {
      const [kind, words] = EFFECTS[step.effect] || ["info", step.effect];
      return html`<li>${safe(step.words)} <span class="state ${kind}">${words}</span>
        ${step.hosts?.length > 0 && html`<p class="warning"><span aria-hidden="true">▲</span> It takes something from clients
          with sessions: ${step.hosts.map((host) => html`<${Name} text=${host} /> `)}</p>`}</li>`;
    })}</ol>
    ${plan.notes?.map((note) => html`<p class="warning"><span aria-hidden="true">▲</span> ${safe(note)}</p>`)}
    ${plan["needs-restart"] && html`<p class="warning"><span aria-hidden="true">▲</span> A step takes effect after the next start
      of Lunar.</p>`}`;
}

// Shows the plan of a change, and makes it. `send(query)` sends the request. `confirm` is a word that the user types before
// a change that cannot be undone.
export function Plan({ send, command, confirm, danger, onDone, onBack, done }) {
  const [plan, setPlan] = useState(null);
  const [problem, setProblem] = useState(null);
  const [typed, setTyped] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [made, setMade] = useState(null);
  const end = useRef(null);
  useEffect(() => {
    send("dry-run=true").then(setPlan, setProblem);
  }, []);
  // Before it is painted: the next key of the user is for this button.
  useLayoutEffect(() => made && end.current?.focus(), [made]);
  if (made) {
    return html`<div><p class="done" role="status"><span aria-hidden="true">✔</span> ${done || "The change is in force and in the configuration file."}</p>
      <div class="buttons"><button class="primary" ref=${end} onClick=${() => onDone(made)}>Close</button></div></div>`;
  }
  const takes = plan?.changes.some((step) => step.hosts?.length > 0) || problem?.type === "/problems/in-use";
  const word = confirm || (takes ? "force" : "");
  const isReady = plan && (plan.changes.length > 0) && !isBusy && (word === "" || typed === word);
  const apply = async (event) => {
    event.preventDefault();
    if (!isReady) return;
    setBusy(true);
    setProblem(null);
    try {
      setMade(await send(takes ? "force=true" : ""));
      void reload();
    } catch (why) {
      setProblem(why);
    }
    setBusy(false);
  };
  return html`<form onSubmit=${apply}>
    ${!plan && !problem && html`<p role="status">The change is being planned …</p>`}
    ${plan && html`<h3>Steps</h3><${Steps} plan=${plan} />`}
    <${Failure} problem=${problem} />
    ${problem?.hosts?.length > 0 && html`<ul>${problem.hosts.map((host) => html`<li><${Name} text=${host.initiator || host.host || host.name} />
      ${host.loses && html` loses ${safe([].concat(host.loses).join(", "))}`}</li>`)}</ul>`}
    ${command && html`<p class="command"><span class="dim">The same on the command line:</span> <code>${safe(command)}</code></p>`}
    ${plan && plan.changes.length > 0 && word && html`<label class="field"><span>To go on, type <code>${safe(word)}</code></span>
      <input type="text" autocomplete="off" spellcheck="false" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>`}
    <div class="buttons">
      ${onBack && html`<button type="button" onClick=${onBack}>Back</button>`}
      ${(plan || !problem) && html`<button type="submit" class=${danger || takes ? "danger" : "primary"} disabled=${!isReady}>${isBusy ? "Applying …" : "Apply"}</button>`}
    </div></form>`;
}

// A button that opens a dialog with a form; nothing for callers who may not write. The dialog belongs to the frame of the
// page: it stays open if the change removes the row or the view of the button.
export function Action({ label, title, kind, children }) {
  if (!mayWrite()) return null;
  const open = () => openDialog(title || label, children);
  return html`<button class=${kind || ""} onClick=${open}>${label}</button>`;
}

export const Delete = ({ path, what, name, command, onDone, note }) => html`
  <${Action} label="Delete" kind="danger" title=${`Delete ${what} ${safe(name)}`}>
    ${(close) => html`${note && html`<p>${note}</p>`}<${Plan} danger confirm=${name} command=${command}
      send=${(query) => request("DELETE", `${path}?${query}`)}
      onDone=${() => { close(); onDone?.(); }} />`}
  <//>`;

// --- Forms of resources, from the schema of the configuration ---

// The kind of resource that a key names.
const REFERENCES = {
  targets: "target", users: "user", "portal-groups": "portal-group", "tls-keys": "tls-key",
  target: "target", pool: "pool", "portal-group": "portal-group", "mutual-user": "user", "portal.group": "portal-group",
};

// Keys that most operators give, shown first.
const FIRST = {
  volume: ["kind", "size", "path", "block-size", "read-only"],
  user: ["secret", "login"],
  target: ["iqn", "nqn", "portal-groups", "authentication", "users", "alias", "enabled"],
  group: ["targets", "initiators", "sources", "authentication", "users"],
};

const text = (value) => (Array.isArray(value) ? value.join("\n") : value === undefined || value === null ? "" : String(value));

function Choice({ id, names, value, onInput }) {
  const chosen = new Set(value || []);
  const toggle = (name) => () => {
    if (!chosen.delete(name)) chosen.add(name);
    onInput([...chosen]);
  };
  if (names.length === 0) return html`<p class="dim" id=${id}>There are none yet.</p>`;
  return html`<div class="choice" id=${id}>${names.map((name) => html`<label><input type="checkbox" checked=${chosen.has(name)}
    onChange=${toggle(name)} /> ${safe(name)}</label>`)}</div>`;
}

function Input({ id, kind, name, property, value, onInput }) {
  const input = (event) => onInput(event.target.value);
  const reference = REFERENCES[`${kind}.${name}`] || REFERENCES[name];
  const names = reference ? resources(reference).map((one) => one.name) : [];
  if (property.oneOf && !property.type) {
    const isFile = typeof value === "object" && value !== null;
    return html`<span class="secret"><select aria-label="Where the secret is" value=${isFile ? "file" : "typed"}
        onChange=${(event) => onInput(event.target.value === "file" ? { file: "" } : "")}>
        <option value="typed">typed here</option><option value="file">in a file of the server</option></select>
      ${isFile ? html`<input id=${id} type="text" placeholder="/etc/lunar/secrets/NAME" value=${value.file}
          onInput=${(event) => onInput({ file: event.target.value })} />`
        : html`<input id=${id} type="password" autocomplete="new-password" value=${text(value)} onInput=${input} />`}</span>`;
  }
  if (property.enum) {
    return html`<select id=${id} value=${text(value)} onChange=${input}>
      ${property.default === undefined && html`<option value=""></option>`}
      ${property.enum.map((word) => html`<option value=${word}>${word}</option>`)}</select>`;
  }
  if (property.type === "boolean") {
    return html`<input id=${id} type="checkbox" checked=${value === true} onChange=${(event) => onInput(event.target.checked)} />`;
  }
  if (property.type === "array" && (reference || property.items?.enum)) {
    return html`<${Choice} id=${id} names=${property.items?.enum || names} value=${value} onInput=${onInput} />`;
  }
  if (property.type === "array") {
    return html`<textarea id=${id} rows="2" spellcheck="false" value=${text(value)}
      onInput=${(event) => onInput(event.target.value.split("\n").map((line) => line.trim()).filter(Boolean))}></textarea>`;
  }
  if (property.type === "integer") {
    return html`<input id=${id} type="number" min=${property.minimum} max=${property.maximum} value=${text(value)}
      onInput=${(event) => onInput(event.target.value === "" ? undefined : Number(event.target.value))} />`;
  }
  if (reference) {
    return html`<select id=${id} value=${text(value)} onChange=${input}><option value=""></option>
      ${names.map((one) => html`<option value=${one}>${safe(one)}</option>`)}</select>`;
  }
  return html`<input id=${id} type="text" autocomplete="off" spellcheck="false" value=${text(value)} onInput=${input} />`;
}

const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const isEmpty = (value) => value === undefined || value === "" || (Array.isArray(value) && value.length === 0);

// The option of the command line for a key.
function option(name, value) {
  if (value === null) return `--${name} none`;
  if (value === true || value === false) return value ? `--${name}` : `--${name}=false`;
  if (Array.isArray(value)) return `--${name} ${quoted(value.join(","))}`;
  return `--${name} ${quoted(value)}`;
}

// A form that creates a resource of a kind, or changes `resource`.
export function ResourceForm({ kind, resource, preset, onDone }) {
  const types = schema();
  const [name, setName] = useState(resource?.name || "");
  const [values, setValues] = useState({ ...preset, ...resource?.keys });
  const [isPlanned, setPlanned] = useState(false);
  if (!types) return html`<p role="status">Loading …</p>`;
  const type = types[kind];
  const all = Object.entries(type.properties).filter(([, property]) => !property.$ref);
  const isFirst = (key) => type.required?.includes(key) || (FIRST[kind] || []).includes(key);
  const place = (key) => {
    const at = (FIRST[kind] || []).indexOf(key);
    return at < 0 ? 99 : at;
  };
  const first = all.filter(([key]) => isFirst(key)).sort(([one], [other]) => place(one) - place(other));
  const more = all.filter(([key]) => !isFirst(key));
  const keys = {};
  for (const [key, property] of all) {
    const [now, before] = [values[key], resource?.keys[key]];
    const start = resource ? before : property.default;
    if (isSame(now, start) || (isEmpty(now) && isEmpty(start))) continue;
    if (!isEmpty(now)) keys[key] = now;
    else if (resource) keys[key] = null;
  }
  const isSecret = (key) => type.properties[key].oneOf && !type.properties[key].type;
  const words = Object.entries(keys).map(([key, value]) => {
    if (!isSecret(key)) return option(key, value);
    return value?.file ? `--${key} ${quoted(`file:${value.file}`)}` : `--${key} -`;
  });
  const command = `lunar ${kind} ${resource ? "set" : "create"} ${quoted(name)} ${words.join(" ")}`;
  if (isPlanned) {
    const method = resource ? "PATCH" : "POST";
    return html`<${Plan} command=${command} onBack=${() => setPlanned(false)} onDone=${() => onDone(name)}
      send=${(query) => request(method, `/v1/${kind}/${segment(name)}?${query}`, keys)} />`;
  }
  const field = ([key, property]) => {
    const id = `field-${kind}-${key}`;
    const isNeeded = !resource && type.required?.includes(key);
    return html`<div class=${`field${property.type === "boolean" ? " check" : ""}`} key=${key}>
      <label for=${id}>${key}${isNeeded && html` <span class="dim">(needed)</span>`}</label>
      <${Input} id=${id} kind=${kind} name=${key} property=${property} value=${values[key] ?? property.default}
        onInput=${(value) => setValues({ ...values, [key]: value })} />
      <p class="dim"><${Description} text=${property.description} /></p></div>`;
  };
  return html`<form onSubmit=${(event) => { event.preventDefault(); setPlanned(true); }}>
    ${!resource && html`<div class="field"><label for="field-name">Name</label><input id="field-name" type="text" required
      autocomplete="off" spellcheck="false" value=${name} onInput=${(event) => setName(event.target.value)} /></div>`}
    ${first.map(field)}
    ${more.length > 0 && html`<details><summary>${plural(more.length, "more key")}</summary>${more.map(field)}</details>`}
    <div class="buttons"><button class="primary" type="submit" disabled=${name === ""}>Plan</button></div></form>`;
}

export const Create = ({ kind, label, preset, onDone }) => html`
  <${Action} label=${label || `Create ${kind}`} kind="primary" title=${`Create ${kind}`}>
    ${(close) => html`<${ResourceForm} kind=${kind} preset=${preset} onDone=${(name) => { close(); onDone?.(name); }} />`}<//>`;

export const Edit = ({ resource }) => html`
  <${Action} label="Edit" title=${`Change ${resource.kind} ${safe(resource.name)}`}>
    ${(close) => html`<${ResourceForm} kind=${resource.kind} resource=${resource} onDone=${close} />`}<//>`;

// --- Volumes ---

function ResizeForm({ volume, close }) {
  const [size, setSize] = useState(volume.keys.size || "");
  const [isPlanned, setPlanned] = useState(false);
  if (isPlanned) {
    return html`<${Plan} command=${`lunar volume resize ${quoted(volume.name)} ${quoted(size)}`} onBack=${() => setPlanned(false)} onDone=${close}
      send=${(query) => request("PATCH", `/v1/volume/${segment(volume.name)}?${query}`, { size })} />`;
  }
  return html`<form onSubmit=${(event) => { event.preventDefault(); setPlanned(true); }}>
    <label class="field"><span>New size, such as 20G</span><input type="text" required value=${size}
      onInput=${(event) => setSize(event.target.value.trim())} /></label>
    <div class="buttons"><button class="primary" type="submit">Plan</button></div></form>`;
}

export const Resize = ({ volume }) => html`<${Action} label="Resize" title=${`Resize volume ${safe(volume.name)}`}>
  ${(close) => html`<${ResizeForm} volume=${volume} close=${close} />`}<//>`;

const COPIES = {
  snapshot: { label: "Snapshot", share: true, "read-only": true, words: "A read-only snapshot takes no time and no space." },
  clone: { label: "Clone", share: true, "read-only": false, words: "A writable clone takes no time and no space." },
  copy: { label: "Copy", share: false, "read-only": false, words: "A full copy takes time and space." },
};

function CopyForm({ volume, verb, folder, close }) {
  const kind = COPIES[verb];
  const [name, setName] = useState("");
  const [problem, setProblem] = useState(null);
  const [copy, setCopy] = useState(null);
  useEffect(() => {
    if (!copy || copy.ended) return undefined;
    const timer = setTimeout(() => request("GET", `/v1/copy/${copy.id}`).then(setCopy, setProblem), 500);
    return () => clearTimeout(timer);
  }, [copy]);
  const send = (event) => {
    event.preventDefault();
    setProblem(null);
    const body = { name, path: `${folder}${name}.img`, share: kind.share, "read-only": kind["read-only"] };
    request("POST", `/v1/volume/${segment(volume.name)}/copy`, body).then(setCopy, setProblem);
  };
  const isRunning = copy !== null && !copy.ended;
  const isDone = copy?.ended && !copy.why;
  return html`<form onSubmit=${send}><p>${kind.words}</p>
    <label class="field"><span>Name of the new volume</span><input type="text" required autocomplete="off" value=${name}
      onInput=${(event) => setName(event.target.value.trim())} disabled=${isRunning || isDone} /></label>
    <p class="dim">Its file: <code>${safe(`${folder}${name || "NAME"}.img`)}</code></p>
    <p class="command"><span class="dim">The same on the command line:</span>
      <code>${safe(`lunar volume ${verb} ${quoted(volume.name)} ${quoted(name || "NAME")}`)}</code></p>
    <${Failure} problem=${problem || (copy?.why && { title: "The copy failed", message: copy.why })} />
    ${isRunning && html`<p role="status"><progress max=${copy.total} value=${copy.done} aria-label="Copied"></progress></p>`}
    ${isDone && html`<p class="done" role="status"><span aria-hidden="true">✔</span> Volume ${safe(name)} was created.</p>`}
    <div class="buttons">${isDone
      ? html`<button type="button" class="primary" onClick=${() => { void reload(); close(); }}>Close</button>`
      : html`<button type="submit" class="primary" disabled=${name === "" || isRunning}>${kind.label}</button>`}</div>
  </form>`;
}

// A button that copies a volume in a file.
export function Copy({ volume, verb }) {
  const folder = volume.keys.path?.replace(/[^/]*$/, "");
  if (!folder) return null;
  return html`<${Action} label=${COPIES[verb].label} title=${`${COPIES[verb].label} of volume ${safe(volume.name)}`}>
    ${(close) => html`<${CopyForm} volume=${volume} verb=${verb} folder=${folder} close=${close} />`}<//>`;
}

// Ejects and loads the medium of a removable volume.
export function Medium({ volume }) {
  const [medium, setMedium] = useState(null);
  const [problem, setProblem] = useState(null);
  const path = `/v1/volume/${segment(volume.name)}`;
  const isRemovable = volume.keys.medium && volume.keys.medium !== "disk";
  useEffect(() => {
    if (isRemovable) request("GET", `${path}/medium`).then(setMedium, setProblem);
  }, [volume.name]);
  if (!isRemovable) return null;
  const move = (verb, body) => () => {
    setProblem(null);
    request("POST", `${path}/${verb}`, body).then(setMedium, setProblem);
  };
  return html`<p>Medium: ${medium ? (medium.loaded ? "loaded" : "ejected") : "…"}${medium?.locked && ", locked by an initiator"}
    ${mayWrite() && medium && (medium.loaded
      ? html` <button onClick=${move("eject", { forced: medium.locked })}>Eject${medium.locked && " anyway"}</button>`
      : html` <button onClick=${move("load")}>Load</button>`)}</p><${Failure} problem=${problem} />`;
}

// --- LUN maps ---

function MapForm({ group, close }) {
  const taken = Object.keys(group.keys.luns || {}).map(Number);
  const [lun, setLun] = useState(() => {
    let free = 0;
    while (taken.includes(free)) free += 1;
    return free;
  });
  const [name, setName] = useState("");
  const [isReadOnly, setReadOnly] = useState(false);
  const [isPlanned, setPlanned] = useState(false);
  const volumes = resources("volume").map((one) => one.name);
  if (isPlanned) {
    const command = `lunar group map ${quoted(group.name)} ${lun} ${quoted(name)}${isReadOnly ? " --read-only" : ""}`;
    return html`<${Plan} command=${command} onBack=${() => setPlanned(false)} onDone=${close}
      send=${(query) => request("PUT", `/v1/group/${segment(group.name)}/luns/${lun}?${query}`, { volume: name, "read-only": isReadOnly })} />`;
  }
  return html`<form onSubmit=${(event) => { event.preventDefault(); setPlanned(true); }}>
    <label class="field"><span>Volume</span><select required value=${name} onChange=${(event) => setName(event.target.value)}>
      <option value=""></option>${volumes.map((one) => html`<option value=${one}>${safe(one)}</option>`)}</select></label>
    <label class="field"><span>LUN</span><input type="number" required min="0" max="16383" value=${lun}
      onInput=${(event) => setLun(Number(event.target.value))} /></label>
    <label class="field check"><input type="checkbox" checked=${isReadOnly}
      onChange=${(event) => setReadOnly(event.target.checked)} /><span>read-only for this group</span></label>
    <div class="buttons"><button class="primary" type="submit" disabled=${name === ""}>Plan</button></div></form>`;
}

export const MapVolume = ({ group }) => html`<${Action} label="Map a volume" title=${`Map a volume to group ${safe(group.name)}`}>
  ${(close) => html`<${MapForm} group=${group} close=${close} />`}<//>`;

export const Unmap = ({ group, lun }) => html`
  <${Action} label="Unmap" title=${`Remove LUN ${lun} from group ${safe(group)}`}>
    ${(close) => html`<${Plan} danger command=${`lunar group unmap ${quoted(group)} ${lun}`} onDone=${close}
      send=${(query) => request("DELETE", `/v1/group/${segment(group)}/luns/${lun}?${query}`)} />`}<//>`;
