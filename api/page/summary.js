// The first questions of an operator: is everything well, who is there, what is slow, full, refused and changed.
import { state } from "./client.js";
import { duration, plural, safe } from "./widgets.js";

// The state of the target in one sentence: how bad it is, and words.
export function sentence() {
  const { live } = state;
  if (!live) return { kind: "info", words: "The numbers are on their way." };
  if (!live.counters) return { kind: "warn", words: live.troubles[0]?.words || "Lunar is starting." };
  const volumes = [...live.volumes.values()];
  const failed = volumes.filter(({ now }) => now.state === "unavailable" || now.state === "full");
  const { hosts, paths } = clients();
  const clientWords = hosts === 0 ? "no client is connected"
    : `${plural(hosts, "client")} with ${plural(paths, "session")}`;
  if (failed.length > 0) {
    const [first] = failed;
    const more = failed.length > 1 ? `, and ${plural(failed.length - 1, "more volume")}` : "";
    return { kind: "bad", words: `Volume ${safe(first.now.name)} is ${first.now.state}${more}; ${clientWords}.` };
  }
  const served = volumes.length === 0 ? "No volume is configured"
    : volumes.length === 1 ? "The volume is served" : `All ${volumes.length} volumes are served`;
  const troubles = live.troubles.length;
  if (troubles > 0) return { kind: "warn", words: `${served}; ${clientWords}; ${plural(troubles, "trouble")} to look at.` };
  return { kind: "ok", words: `${served}; ${clientWords}; no trouble is known.` };
}

// The number of clients with sessions, and of their sessions.
export function clients() {
  const names = new Set();
  let paths = 0;
  for (const { now } of state.live?.hosts.values() ?? []) {
    if (now.sessions === 0) continue;
    names.add(now.host);
    paths += now.sessions;
  }
  return { hosts: names.size, paths };
}

// The volumes with the highest latency now.
export function slowest(most) {
  const volumes = [...(state.live?.volumes.values() ?? [])].filter(({ rates }) => rates.p99 !== null);
  return volumes.sort((one, other) => other.rates.p99 - one.rates.p99).slice(0, most);
}

// The free space of file systems over time, for the time until one is full.
const space = new Map();

function remember(stores, time) {
  for (const { name, free } of stores) {
    const known = space.get(name) || [];
    const last = known[known.length - 1];
    if (!last || time - last.time >= 10) known.push({ time, free });
    if (known.length > 720) known.shift();
    space.set(name, known);
  }
}

// The fullest file systems, each with the seconds until it is full at the rate since the page was opened, if it fills.
export function fullest(most) {
  const counters = state.live?.counters;
  if (!counters) return [];
  remember(counters.stores, counters.time / 1000);
  const rows = counters.stores.filter((store) => store.size > 0).map((store) => {
    const known = space.get(store.name);
    const [first, last] = [known[0], known[known.length - 1]];
    const rate = last.time - first.time >= 300 ? (first.free - last.free) / (last.time - first.time) : 0;
    return { ...store, used: 1 - store.free / store.size, left: rate > 0 ? store.free / rate : null };
  });
  return rows.sort((one, other) => other.used - one.used).slice(0, most);
}

export const leftWords = (store) => (store.left === null || store.left > 365 * 86400 ? "" : `, full in ${duration(store.left)}`);

// The refusals of the last hour, by client and reason. `login` is the refused login; other requests have none.
export function refusals() {
  const since = Date.now() / 1000 - 3600;
  const groups = new Map();
  for (const record of state.records) {
    if (record.topic !== "refusal" || record.time < since) continue;
    const { who, refusal: login = null } = record;
    const words = login ? login.words.replace(/\.$/, "") : record.words;
    const key = JSON.stringify([who, words, login?.target, login?.source]);
    const group = groups.get(key) || { key, who, words, login, count: 0, time: 0 };
    groups.set(key, { ...group, count: group.count + 1, time: Math.max(group.time, record.time) });
  }
  return [...groups.values()].sort((one, other) => other.count - one.count || other.time - one.time);
}

export const changes = (most) => state.records.filter((record) => record.topic === "change").slice(-most).reverse();

// Targets whose groups admit every client without authentication.
export function openTargets(groups, targets) {
  const open = new Set();
  for (const { keys } of groups) {
    if (!keys.initiators?.includes("*") || keys.sources?.length > 0) continue;
    for (const name of keys.targets || []) {
      const target = targets.find((target) => target.name === name);
      if ((keys.authentication || target?.keys.authentication) === "none") open.add(name);
    }
  }
  return [...open];
}
