// Groups of hosts, and the volumes that each of them sees.
import { html } from "./vendor/htm-preact.js";
import { resources } from "./client.js";
import { Card, Empty, Name, Table, plural, safe } from "./widgets.js";
import { Create, Delete, Edit, MapVolume, Unmap, quoted } from "./forms.js";

function Group({ group }) {
  const { name, keys } = group;
  const rows = Object.entries(keys.luns || {}).map(([lun, value]) => {
    const one = typeof value === "string" ? { volume: value } : value;
    return { ...one, lun: Number(lun) };
  });
  const columns = [
    { key: "lun", title: "LUN", cell: (row) => row.lun, value: (row) => row.lun },
    { key: "volume", title: "Volume", value: (row) => row.volume,
      cell: (row) => html`<a href=${`#/volumes/${encodeURIComponent(row.volume)}`}><${Name} text=${row.volume} /></a>` },
    { key: "namespace", title: "Namespace ID", number: true, optional: true, cell: (row) => row.namespace ?? row.lun + 1, value: (row) => row.namespace ?? row.lun + 1 },
    { key: "access", title: "Access", cell: (row) => (row["read-only"] ? "read-only" : "read and write"), value: (row) => String(row["read-only"]) },
    { key: "action", title: "", cell: (row) => html`<${Unmap} group=${name} lun=${row.lun} />` },
  ];
  const list = (words, values) => values?.length > 0 && html`<div><dt>${words}</dt><dd>${values.map((value) => html`<${Name} text=${value} /> `)}</dd></div>`;
  return html`<${Card} wide title=${safe(name)} actions=${html`<${MapVolume} group=${group} /><${Edit} resource=${group} />
      <${Delete} path=${`/v1/group/${encodeURIComponent(name)}`} what="group" name=${name} command=${`lunar group delete ${quoted(name)}`} />`}>
    <dl class="facts across">${list("Targets", keys.targets)}${list("Clients", keys.initiators)}${list("Networks", keys.sources)}${list("Users", keys.users)}</dl>
    <${Table} label=${`LUNs of group ${safe(name)}`} columns=${columns} rows=${rows} rowKey=${(row) => row.lun} empty="This group sees no volume." /><//>`;
}

export function Maps({ rest }) {
  const groups = resources("group");
  const shown = rest[0] ? groups.filter(({ name }) => name === rest[0]) : groups;
  const used = new Set(groups.flatMap(({ keys }) => Object.values(keys.luns || {}).map((lun) => (typeof lun === "string" ? lun : lun.volume))));
  const unused = resources("volume").filter(({ name }) => !used.has(name));
  return html`<div class="tools">${rest[0] && html`<a href="#/maps">All groups</a>`}<span class="spring"></span>
      <${Create} kind="group" label="Create group" /></div>
    ${groups.length === 0 && html`<${Empty}>There is no group: no client sees a volume.<//>`}
    ${shown.slice(0, 50).map((group) => html`<${Group} key=${group.name} group=${group} />`)}
    ${shown.length > 50 && html`<p class="dim">${plural(shown.length - 50, "more group")}:${" "}
      ${shown.slice(50).map(({ name }) => html`<a href=${`#/maps/${encodeURIComponent(name)}`}>${safe(name)}</a> `)}</p>`}
    ${!rest[0] && unused.length > 0 && html`<${Card} wide title="Volumes that no group sees"><ul class="names">
      ${unused.slice(0, 100).map(({ name }) => html`<li><a href=${`#/volumes/${encodeURIComponent(name)}`}><${Name} text=${name} /></a></li>`)}
      ${unused.length > 100 && html`<li>and ${unused.length - 100} others</li>`}</ul><//>`}`;
}
