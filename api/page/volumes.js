// The list of volumes, and one volume.
import { html, useState } from "./vendor/htm-preact.js";
import { resources, state } from "./client.js";
import { Bar, Card, Empty, Name, State, Table, bandwidth, bytes, count, latency, percent, plural, safe } from "./widgets.js";
import { Copy, Create, Delete, Edit, Medium, Resize, quoted } from "./forms.js";
import { Charts } from "./overview.js";

const FILTERS = {
  all: () => true,
  busy: ({ rates }) => rates.commands > 0,
  slow: ({ rates }) => rates.p99 !== null && rates.p99 > 50000,
  full: ({ now }) => now.state === "full",
  failed: ({ now }) => now.state === "unavailable" || now.errors > 0,
  unused: ({ now, maps }) => maps.length === 0,
};

// The maps that show a volume: group and LUN.
export function mapsOf(name) {
  const of = (group) => Object.entries(group.keys.luns || {})
    .filter(([, lun]) => (typeof lun === "string" ? lun : lun.volume) === name)
    .map(([lun, value]) => ({ group: group.name, lun: Number(lun), readOnly: value["read-only"] === true, targets: group.keys.targets || [] }));
  return resources("group").flatMap(of);
}

const link = ({ now }) => html`<a href=${`#/volumes/${encodeURIComponent(now.name)}`}><${Name} text=${now.name} /></a>`;
const share = ({ now }) => (now.size > 0 && now.allocated !== undefined ? now.allocated / now.size : null);

const COLUMNS = [
  { key: "name", title: "Volume", cell: link, value: ({ now }) => now.name },
  { key: "state", title: "State", cell: ({ now }) => html`<${State} word=${now.state} />`, value: ({ now }) => now.state },
  { key: "size", title: "Size", number: true, optional: true, cell: ({ now }) => bytes(now.size), value: ({ now }) => now.size },
  { key: "allocated", title: "Allocated", number: true, optional: true, value: share,
    cell: (row) => (share(row) === null ? "–" : html`<${Bar} value=${share(row)} warn=${2} bad=${2} label=${bytes(row.now.allocated)} />`) },
  { key: "reads", title: "Reads/s", number: true, cell: ({ rates }) => count(rates.reads), value: ({ rates }) => rates.reads },
  { key: "writes", title: "Writes/s", number: true, cell: ({ rates }) => count(rates.writes), value: ({ rates }) => rates.writes },
  { key: "bandwidth", title: "Bandwidth", number: true, cell: ({ rates }) => bandwidth(rates.readBytes + rates.writtenBytes),
    value: ({ rates }) => rates.readBytes + rates.writtenBytes },
  { key: "p99", title: "99 % below", number: true, cell: ({ rates }) => latency(rates.p99), value: ({ rates }) => rates.p99 },
  { key: "queue", title: "In progress", number: true, optional: true, rare: true, cell: ({ now }) => count(now["in-flight"]),
    value: ({ now }) => now["in-flight"] },
  { key: "errors", title: "Errors", number: true, optional: true, cell: ({ now }) => count(now.errors), value: ({ now }) => now.errors },
  { key: "maps", title: "Mapped to", optional: true, value: ({ maps }) => maps.length,
    cell: ({ maps }) => (maps.length === 0 ? html`<span class="dim">nothing</span>` : safe(maps.map(({ group, lun }) => `${group}:${lun}`).join(", "))) },
];

export function Volumes() {
  const [search, setSearch] = useState("");
  const [filter, setFilter] = useState("all");
  const { live } = state;
  if (!live?.counters) return html`<${Empty}>The numbers are on their way.<//>`;
  const maps = new Map();
  for (const group of resources("group")) {
    for (const [lun, value] of Object.entries(group.keys.luns || {})) {
      const name = typeof value === "string" ? value : value.volume;
      maps.set(name, [...(maps.get(name) || []), { group: group.name, lun }]);
    }
  }
  const all = [...live.volumes.values()].map((row) => ({ ...row, maps: maps.get(row.now.name) || [] }));
  const words = search.toLowerCase();
  const rows = all.filter(FILTERS[filter]).filter(({ now, maps }) => now.name.toLowerCase().includes(words)
    || maps.some(({ group }) => group.toLowerCase().includes(words)));
  const hidden = live.counters["hidden-volumes"];
  return html`<div class="tools"><label class="search"><span class="unseen">Search volumes</span>
      <input type="search" placeholder="Search  /" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>
      <label class="filter"><span class="unseen">Show</span><select value=${filter} onChange=${(event) => setFilter(event.target.value)}>
        ${Object.keys(FILTERS).map((name) => html`<option value=${name}>${name} (${all.filter(FILTERS[name]).length})</option>`)}</select></label>
      <span class="spring"></span>
      <${Create} kind="volume" label="Create volume" onDone=${(name) => (location.hash = `#/volumes/${encodeURIComponent(name)}`)} /></div>
    <${Table} label="Volumes" columns=${COLUMNS} rows=${rows} rowKey=${({ now }) => now.name} empty="No volume fits."
      onRow=${({ now }) => (location.hash = `#/volumes/${encodeURIComponent(now.name)}`)} />
    ${hidden > 0 && html`<p class="dim">${plural(hidden, "volume")} with fewer commands are not shown.</p>`}`;
}

const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

export function Volume({ rest }) {
  const [name] = rest;
  const row = state.live?.volumes.get(name);
  const volume = resources("volume").find((one) => one.name === name);
  if (!row && !volume) return html`<${Empty}>There is no volume of this name.<//>`;
  const { now, rates } = row || { now: { state: "unavailable", errors: 0, traffic: null }, rates: null };
  const maps = mapsOf(name);
  const path = `/v1/volume/${encodeURIComponent(name)}`;
  const identity = volume?.identity;
  const of = (key) => (now.traffic ? `${count(now.traffic[key].commands)} (${bytes(now.traffic[key].bytes)})` : "–");
  return html`
    <div class="tools"><${State} word=${now.state} /><span class="spring"></span>
      ${volume && html`<${Resize} volume=${volume} /><${Copy} volume=${volume} verb="snapshot" /><${Copy} volume=${volume} verb="clone" />
        <${Copy} volume=${volume} verb="copy" /><${Edit} resource=${volume} />
        <${Delete} path=${path} what="volume" name=${name} command=${`lunar volume delete ${quoted(name)}`}
          note="The data stays in its file or on its device." onDone=${() => (location.hash = "#/volumes")} />`}</div>
    ${rates && html`<dl class="figures">
      <div class="figure"><dt>Commands</dt><dd><span class="value" id="volume-commands">${count(rates.commands)}<small>/s</small></span>
        <span class="dim">${count(rates.reads)} reads, ${count(rates.writes)} writes</span></dd></div>
      <div class="figure"><dt>Bandwidth</dt><dd><span class="value">${bandwidth(rates.readBytes + rates.writtenBytes)}</span>
        <span class="dim">${bandwidth(rates.readBytes)} read, ${bandwidth(rates.writtenBytes)} written</span></dd></div>
      <div class="figure"><dt>Latency, 99 % below</dt><dd><span class="value">${latency(rates.p99)}</span>
        <span class="dim">half below ${latency(rates.p50)}, mean ${latency(rates.mean)}</span></dd></div>
      <div class="figure"><dt>In progress</dt><dd><span class="value">${count(now["in-flight"])}</span>
        <span class="dim">${count(now["in-flight-max"])} at most</span></dd></div></dl>
      <${Charts} name=${name} />`}
    <div class="cards">
      <${Card} title="Space"><dl class="facts">
        <${Fact} name="Size">${bytes(now.size)}<//>
        <${Fact} name="Allocated">${now.allocated === undefined ? "–" : `${bytes(now.allocated)}${now.size ? ` (${percent(now.allocated / now.size)})` : ""}`}<//>
        <${Fact} name="Free in its file system or pool">${bytes(now.free)}<//>
        <${Fact} name="File system">${now.stores?.length ? now.stores.map((store) => html`<${Name} text=${store} />`) : "–"}<//></dl>
        ${volume && html`<${Medium} volume=${volume} />`}<//>
      <${Card} title="Since the start"><dl class="facts">
        <${Fact} name="Reads"><span id="volume-reads" data-value=${now.traffic?.read.commands}>${of("read")}</span><//><${Fact} name="Writes"><span id="volume-writes" data-value=${now.traffic?.write.commands}>${of("write")}</span><//>
        <${Fact} name="Other commands">${now.traffic ? count(now.traffic.other.commands) : "–"}<//>
        <${Fact} name="Errors">${count(now.errors)}<//><${Fact} name="Not aligned to 4 KiB">${count(now.misaligned)}<//></dl><//>
      <${Card} title="Reservations">${now.registrants > 0 || now.reserved ? html`<dl class="facts">
        <${Fact} name="Reserved">${now.reserved ? "yes" : "no"}<//><${Fact} name="Registrants">${now.registrants}<//></dl>`
        : html`<${Empty}>No client has registered a reservation.<//>`}<//>
      <${Card} title="Maps">${maps.length === 0 ? html`<${Empty}>No group shows this volume. <a href="#/maps">Map it</a>.<//>` : html`<ul class="rows">
        ${maps.map(({ group, lun, readOnly, targets }) => html`<li><a href=${`#/maps/${encodeURIComponent(group)}`}><${Name} text=${group} /></a>
          <span>LUN ${lun} of ${safe(targets.join(", "))}${readOnly && ", read-only"}</span></li>`)}</ul>`}<//>
      ${identity && html`<${Card} title="How hosts see it"><dl class="facts">
        <${Fact} name="Linux, iSCSI"><code>/dev/disk/by-id/${identity["by-id"][0]}</code><//>
        <${Fact} name="Linux, NVMe"><code>/dev/disk/by-id/${identity["by-id"][1]}</code><//>
        <${Fact} name="ESXi"><code>naa.${identity.naa}</code><//>
        <${Fact} name="Serial number"><code>${safe(identity.serial)}</code><//><${Fact} name="UUID"><code>${identity.uuid}</code><//></dl><//>`}
      ${volume && html`<${Card} title="Keys"><dl class="facts">${Object.entries(volume.keys).filter(([, value]) => value !== "" && !(Array.isArray(value) && value.length === 0))
        .map(([key, value]) => html`<${Fact} name=${key}>${safe(Array.isArray(value) ? value.join(", ") : String(value))}<//>`)}</dl><//>`}
    </div>`;
}
