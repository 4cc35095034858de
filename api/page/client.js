// The client of the API: requests, the login, and the stream of numbers with the rates that follow from it.

// A problem report of the API (RFC 9457).
export class Problem extends Error {
  constructor(status, report) {
    super(report.detail || `the service answered with status ${status}`);
    this.status = status;
    this.title = report.title || "The request failed";
    this.errors = report.errors || [];
    this.hosts = report.hosts || [];
    this.type = report.type || "";
  }
}

const listeners = new Set();

// Everything that the views show. A view never changes it.
export const state = {
  caller: undefined, // undefined: not known yet; null: nobody is logged in
  loginProblem: "",
  connected: false,
  lastFrame: 0,
  live: null,
  status: null,
  records: [],
  resources: new Map(), // by kind
  schema: null,
  dialog: null, // the open dialog
};

export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

let isDrawn = false;
export function changed() {
  if (isDrawn) return;
  isDrawn = true;
  queueMicrotask(() => {
    isDrawn = false;
    for (const listener of listeners) listener();
  });
}

let dialogs = 0;

// Opens a dialog. `content(close)` returns its content.
export function openDialog(title, content) {
  dialogs += 1;
  const dialog = { key: dialogs, title, close: () => closeDialog(dialog), content: () => content(dialog.close) };
  state.dialog = dialog;
  changed();
}

// Closes this dialog. The browser tells of a close later, when another dialog may be open.
export function closeDialog(dialog) {
  if (state.dialog !== dialog) return;
  state.dialog = null;
  changed();
}

export function mayWrite() {
  return state.caller?.role === "write";
}

// Sends a request. `body` is JSON, or a text with `isText`. Returns the JSON of the answer, or its text.
export async function request(method, path, body, isText = false) {
  const headers = { "Lunar-Page": "1" };
  if (body !== undefined) headers["Content-Type"] = isText ? "application/toml" : "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, headers, credentials: "same-origin", cache: "no-store",
      body: body === undefined ? undefined : isText ? body : JSON.stringify(body),
    });
  } catch {
    throw new Problem(0, { title: "No connection", detail: "Lunar does not answer" });
  }
  const isJson = (response.headers.get("Content-Type") || "").includes("json");
  const content = isJson ? await response.json() : await response.text();
  if (response.ok) return content;
  if (response.status === 401 && state.caller && path !== "/v1/login") lost();
  throw new Problem(response.status, isJson ? content : {});
}

export const segment = (name) => (/^\.\.?$/.test(name) ? name.replaceAll(".", "%2E") : encodeURIComponent(name));

// Forgets the login of this page.
function end(words) {
  stop();
  Object.assign(state, { caller: null, loginProblem: words, live: null, status: null, records: [], dialog: null });
  state.resources.clear();
  forgetHistory();
  changed();
}

async function begin(login) {
  state.caller = await request("POST", "/v1/login", login);
  state.loginProblem = "";
  start();
  changed();
}

// The token that was typed, in the memory of this page only: Lunar forgets logins when it restarts, and the page goes on.
let typed = null;
// As long as a login lasts, in milliseconds.
const TYPED_TIME_MAX = 12 * 60 * 60 * 1000;

export async function logIn(token) {
  await begin({ token });
  typed = { token, until: Date.now() + TYPED_TIME_MAX };
}

export async function logOut() {
  try {
    await request("DELETE", "/v1/login");
  } finally {
    typed = null;
    end("You are logged out.");
  }
}

// The login of this page; null before the login.
async function caller() {
  const found = await request("GET", "/v1/login");
  return found.role === "none" ? null : found;
}

// Finds out the role of the login. A one-time link is in the fragment of the address, which no server sees.
export async function boot() {
  const link = /^#link=([0-9a-f]+)$/.exec(location.hash)?.[1];
  try {
    if (link) {
      window.history.replaceState(null, "", location.pathname);
      await begin({ link });
    } else {
      state.caller = await caller();
      if (state.caller) start();
    }
  } catch (problem) {
    state.caller = null;
    state.loginProblem = problem.message;
  }
  changed();
}

// --- The streams ---

let live = null;
let events = null;
let retry = 0;

function start() {
  document.addEventListener("visibilitychange", onVisible);
  onVisible();
}

function stop() {
  document.removeEventListener("visibilitychange", onVisible);
  clearTimeout(retry);
  live?.close();
  events?.close();
  live = events = null;
  state.connected = false;
}

// A page that is not visible costs nothing.
function onVisible() {
  if (document.hidden) {
    live?.close();
    events?.close();
    live = events = null;
  } else if (!live) {
    // Lunar has kept the rates of the time in which the page was hidden.
    forgetHistory();
    connect();
  }
}

function connect() {
  clearTimeout(retry);
  live = new EventSource("/v1/live");
  live.addEventListener("live", (event) => onFrame(JSON.parse(event.data)));
  live.onerror = () => {
    state.connected = false;
    changed();
    // A browser tries again by itself only if the connection broke, not after an answer with an error.
    if (live?.readyState !== EventSource.CLOSED) return;
    live = null;
    events?.close();
    events = null;
    retry = setTimeout(reconnect, 2000);
  };
  events = new EventSource("/v1/events");
  for (const topic of ["login", "logout", "refusal", "change", "service"]) {
    events.addEventListener(topic, (event) => addRecord(JSON.parse(event.data)));
  }
  events.onopen = () => void loadRecords();
}

// A request was refused because the login has ended.
function lost() {
  live?.close();
  events?.close();
  live = events = null;
  state.connected = false;
  clearTimeout(retry);
  retry = setTimeout(reconnect, 0);
}

async function reconnect() {
  try {
    let now = await caller();
    if (!now && typed && Date.now() < typed.until) now = await request("POST", "/v1/login", { token: typed.token });
    if (!now) return end("Your login has ended.");
    state.caller = now;
  } catch (problem) {
    if (problem.status === 401) {
      typed = null;
      return end(problem.message);
    }
    retry = setTimeout(reconnect, 2000);
    return;
  }
  if (!document.hidden) connect();
}

const RECORDS_MAX = 4096;

function addRecord(record) {
  const last = state.records[state.records.length - 1];
  if (last && record.id <= last.id) return;
  state.records = [...state.records.slice(1 - RECORDS_MAX), record];
  changed();
}

async function loadRecords() {
  try {
    state.records = await request("GET", "/v1/audit");
    changed();
  } catch {
    // The stream tells when the service is there again.
  }
}

// --- Numbers ---

// The time of which rates are shown, in seconds: that of which Lunar keeps them.
const HISTORY_TIME = 600;
// The time between two samples that Lunar keeps. It keeps none while there are no commands.
const STEP = 2;
const GAP = 5;
const SERIES = ["reads", "writes", "readBytes", "writtenBytes", "p50", "p99", "queue"];

// Rates of the past, of the whole target ("") and of each volume with commands.
const history = new Map();

class History {
  constructor() {
    this.time = [];
    for (const name of SERIES) this[name] = [];
  }

  add(time, rates) {
    this.time.push(time);
    for (const name of SERIES) this[name].push(rates[name] ?? null);
    while (this.time[0] < time - HISTORY_TIME) {
      this.time.shift();
      for (const name of SERIES) this[name].shift();
    }
  }

  // Adds the times without commands between two samples.
  rest(from, to) {
    if (to - from <= GAP) return;
    for (const time of [from + STEP, to - STEP]) this.add(time, NO_RATES);
  }
}

// The volumes of which the rates before the page was opened were asked for.
const asked = new Set();

// The rates of a volume, or of all with an empty name.
export function historyOf(name) {
  if (!asked.has(name)) {
    asked.add(name);
    loadPast(name).catch(() => asked.delete(name));
  }
  return history.get(name);
}

// Puts the rates that Lunar has kept before those that the page has seen itself.
async function loadPast(name) {
  const found = await request("GET", `/v1/history${name === "" ? "" : `?volume=${encodeURIComponent(name)}`}`);
  const own = history.get(name);
  if (name !== "" && !own && found.reads.every((reads, at) => reads + found.writes[at] === 0)) return;
  const past = new History();
  const first = own?.time[0] ?? Infinity;
  let last = null;
  for (let at = 0; at < found.time.length; at++) {
    const time = found.time[at] / 1000;
    if (time >= first) break;
    if (last !== null) past.rest(last, time);
    past.add(time, {
      reads: found.reads[at], writes: found.writes[at], readBytes: found["read-bytes"][at], writtenBytes: found["written-bytes"][at],
      p50: found.p50[at], p99: found.p99[at], queue: found.queue[at],
    });
    last = time;
  }
  if (last !== null) past.rest(last, own ? first : Date.now() / 1000);
  for (let at = 0; at < (own?.time.length ?? 0); at++) {
    past.add(own.time[at], Object.fromEntries(SERIES.map((name) => [name, own[name][at]])));
  }
  history.set(name, past);
  changed();
}

function forgetHistory() {
  history.clear();
  asked.clear();
}

const NO_CLASS = { commands: 0, bytes: 0, nanoseconds: 0, cells: [] };
const NO_TRAFFIC = { read: NO_CLASS, write: NO_CLASS, other: NO_CLASS };

// The upper bound in microseconds below which a share of the commands ended; Infinity beyond the last bound.
function percentile(cells, bounds, share) {
  const total = cells.reduce((sum, count) => sum + count, 0);
  if (total === 0) return null;
  let left = total * share;
  for (let at = 0; at < cells.length; at++) {
    left -= cells[at];
    if (left <= 1e-9) return bounds[at] ?? Infinity;
  }
  return Infinity;
}

function difference(now, before) {
  return now.map((count, at) => count - (before[at] ?? 0));
}

function sum(one, other) {
  const length = Math.max(one.length, other.length);
  return Array.from({ length }, (_, at) => (one[at] ?? 0) + (other[at] ?? 0));
}

// The rates of commands between two readings.
function ratesOf(now, before, seconds, bounds) {
  const classes = ["read", "write", "other"];
  const cells = classes.map((name) => difference(now[name].cells, before[name].cells));
  const all = cells.reduce(sum, []);
  const of = (name, key) => (now[name][key] - before[name][key]) / seconds;
  const commands = classes.reduce((total, name) => total + of(name, "commands"), 0);
  const time = classes.reduce((total, name) => total + of(name, "nanoseconds"), 0);
  return {
    reads: of("read", "commands"),
    writes: of("write", "commands"),
    others: of("other", "commands"),
    commands,
    readBytes: of("read", "bytes"),
    writtenBytes: of("write", "bytes"),
    mean: commands > 0 ? time / commands / 1000 : null,
    p50: percentile(all, bounds, 0.5),
    p99: percentile(all, bounds, 0.99),
    cells: all,
  };
}

const NO_RATES = {
  reads: 0, writes: 0, others: 0, commands: 0, readBytes: 0, writtenBytes: 0, mean: null, p50: null, p99: null, queue: 0, cells: [],
};

const hostKey = (host) => JSON.stringify([host.transport, host["target-name"], host.host]);

function onFrame(frame) {
  const isFirst = !state.connected;
  state.connected = true;
  state.lastFrame = Date.now();
  const before = state.live;
  const counters = frame.counters;
  const next = {
    troubles: frame.troubles, version: frame.version, record: frame.record, counters: null,
    volumes: new Map(), hosts: new Map(), total: NO_RATES, cores: [],
  };
  if (counters) {
    const isSameRun = before?.counters && before.counters.start === counters.start;
    if (!isSameRun) forgetHistory();
    const seconds = isSameRun ? (counters.nanoseconds - before.counters.nanoseconds) / 1e9 : 0;
    next.counters = counters;
    merge(next, frame, isSameRun ? before : null, seconds);
    if (seconds > 0) remember(next);
  }
  const isNew = before?.version !== next.version || isFirst;
  state.live = next;
  changed();
  if (isNew) void reload();
}

// Adds the rows of a frame to those of the one before it.
function merge(next, frame, before, seconds) {
  const counters = frame.counters;
  const { bounds } = counters;
  const rate = (now, then) => (seconds > 0 && then ? ratesOf(now, then, seconds, bounds) : NO_RATES);
  if (before && !frame.whole) {
    for (const [name, row] of before.volumes) next.volumes.set(name, { ...row, rates: NO_RATES });
    for (const name of frame.gone) next.volumes.delete(name);
    for (const [key, row] of before.hosts) next.hosts.set(key, { ...row, rates: NO_RATES });
  }
  for (const now of counters.volumes) {
    next.volumes.set(now.name, { now, rates: rate(now.traffic, before?.volumes.get(now.name)?.now.traffic) });
  }
  for (const now of counters.hosts) {
    next.hosts.set(hostKey(now), { now, rates: rate(now.traffic, before?.hosts.get(hostKey(now))?.now.traffic) });
  }
  const total = { ...NO_RATES, cells: [] };
  let time = 0;
  for (const { rates } of next.volumes.values()) {
    for (const key of ["reads", "writes", "others", "commands", "readBytes", "writtenBytes"]) total[key] += rates[key];
    time += (rates.mean ?? 0) * rates.commands;
    if (rates.commands > 0) total.cells = sum(total.cells, rates.cells);
  }
  total.mean = total.commands > 0 ? time / total.commands : null;
  total.p50 = percentile(total.cells, bounds, 0.5);
  total.p99 = percentile(total.cells, bounds, 0.99);
  next.total = total;
  next.cores = counters.cores.map((now, at) => {
    const then = before?.counters.cores[at];
    const share = (key) => (then && seconds > 0 ? (now[key] - then[key]) / seconds / 1e9 : 0);
    return { now, busy: share("busy-nanoseconds"), spin: share("spin-nanoseconds"), sleep: share("sleep-nanoseconds") };
  });
}

function remember(next) {
  const time = next.counters.time / 1000;
  let queue = 0;
  for (const [name, { now, rates }] of next.volumes) {
    queue += now["in-flight"];
    if (rates.commands === 0 && !history.has(name)) continue;
    if (!history.has(name)) history.set(name, new History());
    history.get(name).add(time, { ...rates, queue: now["in-flight"] });
  }
  for (const name of history.keys()) {
    if (name !== "" && !next.volumes.has(name)) history.delete(name);
  }
  if (!history.has("")) history.set("", new History());
  history.get("").add(time, { ...next.total, queue });
}

// --- Resources ---

// Loads the status and all kinds of resources that were shown before.
export async function reload() {
  try {
    state.status = await request("GET", "/v1/status");
    await Promise.all([...state.resources.keys()].map(load));
  } catch {
    // The next change of the configuration, or the next frame, loads them.
  }
  changed();
}

async function load(kind) {
  state.resources.set(kind, await request("GET", `/v1/${kind}`));
  changed();
}

// The resources of a kind; an empty list until they are loaded.
export function resources(kind) {
  if (!state.resources.has(kind)) {
    state.resources.set(kind, []);
    load(kind).catch(() => state.resources.delete(kind));
  }
  return state.resources.get(kind);
}

// The schema of the configuration; null until it is loaded.
export function schema() {
  if (state.schema === null) {
    state.schema = undefined;
    request("GET", "/v1/schema").then((found) => {
      state.schema = found;
      changed();
    }).catch(() => (state.schema = null));
  }
  return state.schema?.$defs;
}
