// Formats, tables, charts and other parts of the views.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Problem } from "./client.js";

// --- Formats ---

// A number of a few digits: 48.2 k. Decimal prefixes, as for rates.
export function count(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const units = ["", " k", " M", " G", " T", " P"];
  let at = 0;
  let rest = value;
  while (rest >= 999.5 && at + 1 < units.length) {
    rest /= 1000;
    at += 1;
  }
  const digits = at === 0 && Number.isInteger(value) ? 0 : rest < 9.995 ? 2 : rest < 99.95 ? 1 : 0;
  return rest.toFixed(digits) + units[at];
}

// Bytes with binary prefixes, as sizes in the configuration have them.
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let at = 0;
  let rest = value;
  while (rest >= 1023.5 && at + 1 < units.length) {
    rest /= 1024;
    at += 1;
  }
  const digits = at === 0 || Number.isInteger(rest) ? 0 : rest < 9.995 ? 2 : rest < 99.95 ? 1 : 0;
  return `${rest.toFixed(digits)} ${units[at]}`;
}

export const bandwidth = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

// A time in microseconds.
export function latency(value) {
  if (value === null || value === undefined) return "–";
  if (value === Infinity) return "> 8 s";
  if (value < 1000) return `${value < 9.95 && !Number.isInteger(value) ? value.toFixed(1) : Math.round(value)} µs`;
  if (value < 1e6) return `${(value / 1000).toFixed(value < 1e4 ? 1 : 0)} ms`;
  return `${(value / 1e6).toFixed(1)} s`;
}

export const percent = (value) => `${(100 * value).toFixed(value < 0.0995 && value > 0 ? 1 : 0)} %`;

export function duration(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([unit]) => seconds >= unit);
  if (first < 0) return "0 s";
  const [unit, name] = parts[first];
  const rest = parts[first + 1];
  const text = `${Math.floor(seconds / unit)} ${name}`;
  const more = rest ? Math.floor((seconds % unit) / rest[0]) : 0;
  return more > 0 ? `${text} ${more} ${rest[1]}` : text;
}

export function clock(seconds, withDate = true) {
  const time = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} `;
  return `${withDate ? day : ""}${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

export const plural = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

const NAME_MAX = 256;

// A text that may come from a stranger: characters that could reorder or hide other text are shown as codes, and what is
// too long is cut.
export function safe(text) {
  const hidden = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff]/gu;
  const shown = String(text ?? "").replace(hidden, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
  return shown.length > NAME_MAX ? `${shown.slice(0, NAME_MAX)}…` : shown;
}

// --- Parts ---

export const Name = ({ text }) => html`<bdi class="name" title=${safe(text)}>${safe(text)}</bdi>`;

const STATES = {
  up: ["ok", "✔", "up"],
  "read-only": ["info", "●", "read-only"],
  formatting: ["warn", "▲", "formatting"],
  full: ["bad", "✖", "full"],
  unavailable: ["bad", "✖", "unavailable"],
};

export function State({ word }) {
  const [kind, mark, text] = STATES[word] || ["info", "●", word];
  return html`<span class="state ${kind}"><span aria-hidden="true">${mark}</span> ${text}</span>`;
}

// A description with code between backticks.
export const Description = ({ text }) => (text || "").split("`").map((part, at) => (at % 2 === 1 ? html`<code>${part}</code>` : part));

export const Card = ({ title, children, wide, actions }) => html`
  <section class=${`card${wide ? " wide" : ""}`} aria-label=${title}>
    <header><h2>${title}</h2>${actions && html`<div class="actions">${actions}</div>`}</header>
    ${children}
  </section>`;

// Commands to paste, each with the place where it is run.
export const Remedies = ({ remedies }) => remedies.length > 0 && html`<${Card} wide title="What to do">${remedies.map((remedy) => html`<div class="command">
  <span class="dim">${remedy.place === "client" ? "On the client" : "Here"}${remedy.words && `, ${safe(remedy.words)}`}</span>
  <code>${safe(remedy.command)}</code></div>`)}<//>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

// A bar of a share from 0 to 1, with its number beside it.
export function Bar({ value, label, warn = 0.8, bad = 0.9 }) {
  const kind = value >= bad ? "bad" : value >= warn ? "warn" : "ok";
  const width = Math.max(0, Math.min(1, value));
  return html`<span class="bar"><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
    <rect class="track" width="100" height="8" rx="2" /><rect class=${kind} width=${100 * width} height="8" rx="2" />
  </svg><span>${label ?? percent(value)}</span></span>`;
}

export function Failure({ problem }) {
  if (!problem) return null;
  const errors = problem instanceof Problem ? problem.errors : [];
  return html`<div class="failure" role="alert">
    <strong><span aria-hidden="true">✖</span> ${problem.title || "It failed"}</strong>
    ${errors.length === 0 && html`<p><${Description} text=${safe(problem.message)} /></p>`}
    ${errors.length > 0 && html`<ul>${errors.map((error) => html`<li>
      ${error.key && html`<code>${safe(error.key)}</code>`} ${safe(error.detail)}
      ${error.line > 0 && html` <span class="dim">(line ${error.line})</span>`}</li>`)}</ul>`}
  </div>`;
}

// --- Tables ---

const ROWS = 100;

const kindOf = (column) => ["number", "optional", "rare"].filter((kind) => column[kind]).join(" ");

// A table that can be sorted. A column: `key`, `title`, `cell(row)`, `value(row)` for sorting, `number`, `optional` (left
// out on phones), `rare` (left out on all but wide screens).
export function Table({ label, columns, rows, rowKey, sort: initial, empty, onRow }) {
  const [sort, setSort] = useState(initial || [columns[0].key, false]);
  const [most, setMost] = useState(ROWS);
  // While the pointer or the focus is in the table, rows keep their places.
  const isHeld = useRef(false);
  const order = useRef([]);
  const [by, isDown] = sort;
  const column = columns.find((column) => column.key === by) || columns[0];
  const value = column.value || (() => 0);
  const compare = (one, other) => {
    const [a, b] = [value(one), value(other)];
    const least = (x) => x === null || x === undefined;
    const found = least(a) && least(b) ? 0 : least(a) ? -1 : least(b) ? 1
      : typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
    return isDown ? -found : found;
  };
  let sorted;
  if (isHeld.current) {
    const place = new Map(order.current.map((key, at) => [key, at]));
    const at = (row) => place.get(rowKey(row)) ?? Infinity;
    sorted = [...rows].sort((one, other) => (at(one) === at(other) ? compare(one, other) : at(one) - at(other)));
  } else {
    sorted = [...rows].sort(compare);
  }
  order.current = sorted.map(rowKey);
  const hold = (held) => () => (isHeld.current = held);
  const press = (key) => () => {
    isHeld.current = false;
    setSort([key, key === by ? !isDown : columns.find((column) => column.key === key).number === true]);
  };
  if (rows.length === 0) return html`<${Empty}>${empty || "Nothing to show."}<//>`;
  return html`
    <div class="table" tabindex="0" role="region" aria-label=${`Table: ${label}`} onPointerEnter=${hold(true)}
      onPointerLeave=${hold(false)} onFocusIn=${hold(true)} onFocusOut=${hold(false)}>
      <table><caption class="unseen">${label}</caption><thead><tr>
        ${columns.map((column) => {
          const kind = kindOf(column);
          const order = column.key === by ? (isDown ? "descending" : "ascending") : undefined;
          return html`<th scope="col" class=${kind} aria-sort=${order}>
            ${column.value ? html`<button class="sort" onClick=${press(column.key)}>${column.title}
              ${order && html`<span aria-hidden="true"> ${isDown ? "▾" : "▴"}</span>`}</button>`
              : column.title || html`<span class="unseen">Actions</span>`}</th>`;
        })}
      </tr></thead><tbody>
        ${sorted.slice(0, most).map((row) => html`<tr key=${rowKey(row)} class=${onRow ? "link" : ""}
          onClick=${onRow && ((event) => event.target.closest("a,button,input") || onRow(row))}>
          ${columns.map((column, at) => {
            const kind = kindOf(column);
            return at === 0 ? html`<th scope="row" class=${kind}>${column.cell(row)}</th>`
              : html`<td class=${kind} data-title=${column.title} data-key=${column.key}>${column.cell(row)}</td>`;
          })}</tr>`)}
      </tbody></table>
      ${sorted.length > most && html`<p class="more"><button onClick=${() => setMost(most + 400)}>
        Show more: ${sorted.length - most} of ${sorted.length} are not shown</button></p>`}
    </div>`;
}

// --- Charts ---

// Steps of an axis: powers of ten on a logarithmic one, powers of two for bytes.
const DECADES = [10, 100, 1e3, 1e4, 1e5, 1e6, 1e7];
const DOUBLINGS = Array.from({ length: 50 }, (_, at) => 2 ** at);

// A colour of the style sheet.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A chart of rates over time. A series: `name`, `values`, `colour`. The numbers of now are in the caption.
export function Chart({ title, time, series, format, log, isBinary, height = 150 }) {
  const place = useRef(null);
  const plot = useRef(null);
  const [isTable, setTable] = useState(false);
  const data = [time, ...series.map((one) => one.values)];
  useLayoutEffect(() => {
    if (isTable || !place.current) return undefined;
    const element = place.current;
    const make = () => {
      plot.current?.destroy();
      const text = colour("--dim");
      const grid = { stroke: colour("--line"), width: 1 };
      const axis = { stroke: text, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      plot.current = new window.uPlot({
        width: element.clientWidth, height,
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, points: { show: false } },
        scales: { x: { time: true }, y: log
          ? { distr: 3, log: 10, range: (_, low, high) => [Math.max(1, Math.min(low ?? 8, 8)), Math.max(high ?? 100, 100)] }
          : { range: (_, low, high) => [0, Math.max(high ?? 0, 1) * 1.1] } },
        axes: [
          { ...axis, size: 24, space: 70, values: (_, splits) => splits.map((at) => clock(at, false).slice(0, 8)) },
          { ...axis, size: 64, space: 28, ...(isBinary && { incrs: DOUBLINGS }),
            ...(log && { splits: (_, at, low, high) => DECADES.filter((split) => split >= low && split <= high) }), values: (_, splits) => splits.map((at) => (at === null ? "" : format(at))) },
        ],
        series: [{}, ...series.map((one) => ({
          label: one.name, stroke: colour(one.colour), width: 1.5, fill: one.fill ? `${colour(one.colour)}22` : undefined,
          points: { show: false }, spanGaps: false,
        }))],
      }, data, element);
    };
    make();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    resized.observe(element);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    return () => {
      resized.disconnect();
      dark.removeEventListener("change", make);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [isTable, series.length]);
  useEffect(() => plot.current?.setData(data));
  const last = (values) => (values.length > 0 ? format(values[values.length - 1]) : "–");
  const shown = time.length > 12 ? time.slice(-12) : time;
  return html`<figure class="chart"><figcaption><span class="title">${title}</span>
      ${series.map((one) => html`<span class="key"><i class="swatch" data-colour=${one.colour} aria-hidden="true"></i>${one.name}
        ${" "}<b>${last(one.values)}</b></span>`)}
      <button class="quiet" aria-pressed=${isTable} onClick=${() => setTable(!isTable)}>table</button></figcaption>
    ${isTable ? html`<div class="table" tabindex="0" role="region" aria-label=${`${title} as table`}><table>
        <caption class="unseen">${title}</caption>
        <thead><tr><th scope="col">time</th>${series.map((one) => html`<th scope="col" class="number">${one.name}</th>`)}</tr></thead>
        <tbody>${[...shown.keys()].reverse().map((at) => html`<tr><th scope="row">${clock(shown[at], false)}</th>
          ${series.map((one) => html`<td class="number">${format(one.values[time.length - shown.length + at])}</td>`)}</tr>`)}
        </tbody></table></div>`
    : html`<div class="plot" ref=${place} role="img" aria-label=${`${title}: ${series.map((one) => `${one.name} ${last(one.values)}`).join(", ")}`}></div>`}
  </figure>`;
}

// --- Dialogs ---

// A dialog. Escape and the button close it; the focus returns to where it was, or to the view if that is gone.
export function Dialog({ title, onClose, children, wide }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    const before = document.activeElement;
    const dialog = place.current;
    dialog.showModal();
    return () => {
      // While it is open, nothing else can have the focus.
      dialog.close();
      (before?.isConnected ? before : document.getElementById("main"))?.focus();
    };
  }, []);
  return html`<dialog class=${wide ? "wide" : ""} ref=${place} aria-label=${title} onClose=${onClose}
    onCancel=${onClose}>
    <header><h2>${title}</h2></header>
    ${children}
    <button class="quiet close" aria-label="Close" onClick=${onClose}>✕</button>
  </dialog>`;
}
