// Hosts, targets and volumes, with the traffic between them. The list below the picture is the accessible form.
import { html } from "./vendor/htm-preact.js";
import { resources, state } from "./client.js";
import { Card, bandwidth, plural, safe } from "./widgets.js";

// The most nodes of a column; the others are counted.
const MOST = 10;
const ROW = 34;
const COLUMNS = [["hosts", 8, 232], ["targets", 364, 232], ["volumes", 720, 232]];

const volumeOf = (value) => (typeof value === "string" ? value : value.volume);

export function Topology() {
  const { live } = state;
  if (!live?.counters) return null;
  const sessions = [...live.hosts.values()].filter(({ now }) => now.sessions > 0);
  const traffic = ({ rates }) => rates.readBytes + rates.writtenBytes;
  sessions.sort((one, other) => traffic(other) - traffic(one));
  const maps = resources("group").flatMap((group) => (group.keys.targets || []).flatMap((target) =>
    Object.values(group.keys.luns || {}).map((lun) => [target, volumeOf(lun)])));
  const all = {
    hosts: [...new Set(sessions.map(({ now }) => now.host))],
    targets: [...new Set([...sessions.map(({ now }) => now.target), ...maps.map(([target]) => target)])],
    volumes: [...new Set(maps.map(([, volume]) => volume))],
  };
  if (all.targets.length === 0) return null;
  const rates = (name) => {
    const found = live.volumes.get(name);
    return found ? traffic(found) : 0;
  };
  all.volumes.sort((one, other) => rates(other) - rates(one));
  const shown = Object.fromEntries(Object.entries(all).map(([kind, names]) => [kind, names.slice(0, MOST)]));
  const rows = Math.max(...Object.values(all).map((names) => Math.min(names.length, MOST) + (names.length > MOST ? 1 : 0)));
  const height = Math.max(1, rows) * ROW + 8;
  const middle = (kind, name) => shown[kind].indexOf(name) * ROW + ROW / 2 + 4;
  const edge = (from, to, y1, y2, bytes) => {
    const [x1, x2] = [from[1] + from[2], to[1]];
    const bend = (x1 + x2) / 2;
    const width = bytes > 0 ? Math.max(1.5, Math.min(9, Math.log10(bytes) - 2)) : 1;
    return html`<path class=${bytes > 0 ? "edge busy" : "edge"} d=${`M${x1} ${y1} C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`} stroke-width=${width} />`;
  };
  const edges = sessions.filter(({ now }) => shown.hosts.includes(now.host) && shown.targets.includes(now.target))
    .map((one) => edge(COLUMNS[0], COLUMNS[1], middle("hosts", one.now.host), middle("targets", one.now.target), traffic(one)));
  const pairs = [...new Map(maps.map((pair) => [JSON.stringify(pair), pair])).values()];
  const mapped = pairs.filter(([target, volume]) => shown.targets.includes(target) && shown.volumes.includes(volume))
    .map(([target, volume]) => edge(COLUMNS[1], COLUMNS[2], middle("targets", target), middle("volumes", volume), rates(volume)));
  const cut = (text) => {
    const words = safe(text);
    return words.length > 29 ? `…${words.slice(-28)}` : words;
  };
  return html`<${Card} title="Load by volume and host" wide>
    <svg class="topology" viewBox=${`0 0 960 ${height}`} aria-hidden="true">
      ${edges}${mapped}
      ${COLUMNS.map(([kind, x, width]) => html`${shown[kind].map((name, at) => html`<g>
          <rect class="node" x=${x} y=${at * ROW + 6} width=${width} height=${ROW - 6} rx="6" />
          <text x=${x + 10} y=${at * ROW + ROW / 2 + 8}>${cut(name)}</text></g>`)}
        ${all[kind].length > MOST && html`<text class="dim" x=${x + 10} y=${MOST * ROW + ROW / 2 + 8}>and ${all[kind].length - MOST} others</text>`}`)}
    </svg>
    <details><summary>As a list</summary><ul>${sessions.map(({ now, rates }) => html`<li><bdi>${safe(now.host)}</bdi> uses target${" "}
      <bdi>${safe(now.target)}</bdi> over ${plural(now.sessions, "session")} (${now.transport}):${" "}
      ${bandwidth(rates.readBytes)} read, ${bandwidth(rates.writtenBytes)} written</li>`)}
      ${pairs.map(([target, volume]) => html`<li>target <bdi>${safe(target)}</bdi> has volume <bdi>${safe(volume)}</bdi></li>`)}</ul></details>
  <//>`;
}
